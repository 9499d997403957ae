"""Rows as bytes: other releases' rows, damaged rows."""

from __future__ import annotations

import zlib

import msgspec
import pytest

from proxy.core.model import Operation, Scope, Subject, replace
from proxy.ports import RowUnreadable
from proxy.stores.codec import FORMAT, pack, unpack_operation, unpack_subject
from tests.contract.test_steps import full
from tests.contract.values import operation


def frame(members: dict[str, object], tag: int = FORMAT) -> bytes:
    body = msgspec.msgpack.encode(members)
    return bytes([tag]) + zlib.crc32(body).to_bytes(4, "little") + body


def members_of(row: Operation) -> dict[str, object]:
    decoded: dict[str, object] = msgspec.msgpack.decode(pack(row)[5:])
    return decoded


def test_pack_every_member_comes_back() -> None:
    assert unpack_operation(pack(full("K"))) == full("K")


def test_unpack_row_of_an_older_release_takes_defaults() -> None:
    members = members_of(operation("K"))
    for later in ("settled_by", "lookups", "answer_before"):
        members.pop(later, None)
    assert unpack_operation(frame(members)) == operation("K")


def test_unpack_row_of_a_newer_release_drops_what_is_unknown() -> None:
    members = members_of(operation("K")) | {"a_later_member": [1, {"x": None}]}
    assert unpack_operation(frame(members)) == operation("K")


def test_unpack_newer_format_says_which_release() -> None:
    with pytest.raises(RowUnreadable, match="row format 2; this Safepost reads 1"):
        unpack_operation(frame({}, tag=2))


@pytest.mark.parametrize("at", [5, 60, -1])
def test_unpack_any_flipped_byte_is_found(at: int) -> None:
    doc = bytearray(pack(operation("K")))
    doc[at] ^= 0x40
    with pytest.raises(RowUnreadable, match="checksum"):
        unpack_operation(bytes(doc))


@pytest.mark.parametrize("doc", [b"", b"\x01", b"\x01abc"])
def test_unpack_cut_row_is_refused(doc: bytes) -> None:
    with pytest.raises(RowUnreadable, match="bytes long"):
        unpack_operation(doc)


def test_unpack_wrong_shape_names_the_member() -> None:
    members = members_of(operation("K")) | {"state": "levitating"}
    with pytest.raises(RowUnreadable, match="state"):
        unpack_operation(frame(members))


def test_unpack_error_holds_no_row_content() -> None:
    doc = pack(replace(operation("K"), path="/v1/secret-path"))
    with pytest.raises(RowUnreadable) as raised:
        unpack_operation(doc[:-1] + b"\xff")
    assert "secret" not in str(raised.value)


def test_pack_subject_comes_back() -> None:
    row = Subject(scope=Scope("m", "e"), handle=operation("K").handles[0], updated_ms=1)
    assert unpack_subject(pack(row)) == row
