"""Rows as bytes: MessagePack of the ledger's frozen values, with a format tag and a checksum before it.

A member that the reader doesn't know is ignored and one that the writer didn't know takes its default, so
that two releases can share a store while an upgrade rolls. The checksum is there because a damaged page of a
database file can hold a damaged row that the file's own structure doesn't betray.
"""

from __future__ import annotations

import struct
import zlib
from typing import TypeVar

import msgspec

from proxy.core.model import Operation, Subject
from proxy.ports import RowUnreadable

FORMAT = 1
_HEAD = struct.Struct("<BI")  # format tag, CRC-32 of the rest

Row = TypeVar("Row", Operation, Subject)

_encoder = msgspec.msgpack.Encoder()
_operations = msgspec.msgpack.Decoder(Operation)
_subjects = msgspec.msgpack.Decoder(Subject)


def pack(row: Operation | Subject) -> bytes:
    """The row as bytes, to be read back by `unpack_operation` or `unpack_subject`."""
    body = _encoder.encode(row)
    return _HEAD.pack(FORMAT, zlib.crc32(body)) + body


def unpack_operation(doc: bytes) -> Operation:
    """Raises: RowUnreadable."""
    return _unpack(doc, _operations, "an operation")


def unpack_subject(doc: bytes) -> Subject:
    """Raises: RowUnreadable."""
    return _unpack(doc, _subjects, "a subject")


def _unpack(doc: bytes, decoder: msgspec.msgpack.Decoder[Row], what: str) -> Row:
    if len(doc) < _HEAD.size:
        raise RowUnreadable(_damaged(what, f"it is {len(doc)} bytes long"))
    tag, checksum = _HEAD.unpack_from(doc)
    if tag != FORMAT:
        raise RowUnreadable(
            f"store: {what} is in row format {tag}; this Safepost reads {FORMAT}. "
            "Its money is not touched: nothing is sent for it. Run the release that wrote it, or a newer one."
        )
    body = memoryview(doc)[_HEAD.size :]
    if zlib.crc32(body) != checksum:
        raise RowUnreadable(_damaged(what, "its checksum does not match"))
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RowUnreadable(_damaged(what, str(error))) from error


def _damaged(what: str, how: str) -> str:
    return (
        f"store: {what} can't be read: {how}. Nothing is sent for it, since what it says of the money is not "
        "known. Restore the store from a backup, or look the payment up at the platform."
    )
