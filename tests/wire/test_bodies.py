"""Body framing without sockets: exact at every cut, and nothing repaired."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxy.ports import BodyTooLarge, CallerGone
from proxy.wire.bodies import BadBody, BodyDecoder, ChunkedDecoder, Intake, LengthDecoder

from .peers import chunked


def fed(decoder: BodyDecoder, *wire: bytes) -> tuple[bytes, bytes]:
    """The decoded body and what is left behind it."""
    body, rest = b"", b""
    for part in wire:
        pieces, rest = decoder.feed(rest + part)
        body += b"".join(pieces)
    return body, rest


WIRES = {
    "plain": (b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", b"abcde", ()),
    "extensions": (b'3;a=b\r\nabc\r\n2 ;c="d e"\r\nde\r\n0;last\r\n\r\n', b"abcde", ()),
    "upper and leading zeros": (b"00A\r\n0123456789\r\n000\r\n\r\n", b"0123456789", ()),
    "trailers": (b"1\r\na\r\n0\r\nX-Sum: 1\r\nX-Two:2\r\n\r\n", b"a", ((b"X-Sum", b"1"), (b"X-Two", b"2"))),
    "forbidden trailers": (
        b"1\r\na\r\n0\r\nContent-Length: 9\r\nX: 1\r\nHost: h\r\n\r\n",
        b"a",
        ((b"X", b"1"),),
    ),
    "body like framing": (b"7\r\n0\r\n\r\n0\r\r\n0\r\n\r\n", b"0\r\n\r\n0\r", ()),
    "empty": (b"0\r\n\r\n", b"", ()),
}


@pytest.mark.parametrize(("wire", "body", "trailers"), WIRES.values(), ids=WIRES.keys())
def test_chunked_body_is_the_same_at_every_cut(
    wire: bytes, body: bytes, trailers: tuple[tuple[bytes, bytes], ...]
) -> None:
    for first in range(len(wire) + 1):
        for second in range(first, len(wire) + 1, 3):
            decoder = ChunkedDecoder()
            cut = (wire[:first], wire[first:second], wire[second:] + b"NEXT")
            assert fed(decoder, *cut) == (body, b"NEXT")
            assert decoder.is_whole
            assert decoder.trailers == trailers


def test_chunked_body_is_the_same_byte_by_byte() -> None:
    for wire, body, trailers in WIRES.values():
        decoder = ChunkedDecoder()
        assert fed(decoder, *(wire[at : at + 1] for at in range(len(wire)))) == (body, b"")
        assert decoder.is_whole
        assert decoder.trailers == trailers


BAD = {
    "no size": b"\r\nabc\r\n0\r\n\r\n",
    "size not hex": b"g\r\nabc\r\n0\r\n\r\n",
    "size with 0x": b"0x3\r\nabc\r\n0\r\n\r\n",
    "size negative": b"-3\r\nabc\r\n0\r\n\r\n",
    "size signed": b"+3\r\nabc\r\n0\r\n\r\n",
    "size with underscore": b"1_0\r\n",
    "size with blank before": b" 3\r\nabc\r\n0\r\n\r\n",
    "size with blank after": b"3 \r\nabc\r\n0\r\n\r\n",
    "size overlong": b"1" * 16 + b"\r\n",
    "size ended by LF": b"3\nabc\r\n0\r\n\r\n",
    "size ended by CR": b"3\rabc\r\n0\r\n\r\n",
    "extension with LF": b"3;a\nb\r\nabc\r\n0\r\n\r\n",
    "extension with CR": b"3;a\rb\r\nabc\r\n0\r\n\r\n",
    "extension with NUL": b"3;a\0\r\nabc\r\n0\r\n\r\n",
    "extension endless": b"3;" + b"a" * 2_000,
    "extensions beyond all": (b"1;" + b"a" * 1_000 + b"\r\nx\r\n") * 20,
    "chunk longer than said": b"3\r\nabcd\r\n0\r\n\r\n",
    "chunk ended by LF": b"3\r\nabc\n0\r\n\r\n",
    "chunk ended by CR x": b"3\r\nabc\rx0\r\n\r\n",
    "trailer folded": b"0\r\nX: a\r\n b\r\n\r\n",
    "trailer with bare LF": b"0\r\nX: a\nY: b\r\n\r\n",
    "trailers ended by LF": b"0\r\n\n",
    "trailer without colon": b"0\r\nnonsense\r\n\r\n",
    "trailers endless": b"0\r\nX: " + b"a" * 20_000,
}


@pytest.mark.parametrize("wire", BAD.values(), ids=BAD.keys())
def test_odd_chunked_framing_is_refused_at_every_cut(wire: bytes) -> None:
    for step in (len(wire), 1, 7):
        with pytest.raises(BadBody):
            fed(ChunkedDecoder(), *(wire[at : at + step] for at in range(0, len(wire), step)))


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.binary(min_size=1, max_size=40), max_size=6), st.data())
def test_any_body_survives_any_chunking_and_any_cut(pieces: list[bytes], data: st.DataObject) -> None:
    wire = chunked(pieces) + b"GET"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=8)))
    parts = [wire[start:end] for start, end in zip([0, *cuts], [*cuts, len(wire)], strict=True)]
    decoder = ChunkedDecoder()
    assert fed(decoder, *parts) == (b"".join(pieces), b"GET")


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(max_size=80))
def test_noise_is_refused_or_waited_on_and_never_crashes(noise: bytes) -> None:
    decoder = ChunkedDecoder()
    try:
        decoder.feed(noise)
    except BadBody:
        return


def test_body_of_a_length_leaves_the_rest() -> None:
    decoder = LengthDecoder(5)
    assert fed(decoder, b"ab", b"cdeGET") == (b"abcde", b"GET")
    assert decoder.is_whole


async def test_intake_gives_pieces_then_its_failure() -> None:
    intake = Intake(lambda: None)
    intake.push([b"ab"], is_whole=False)
    intake.fail(CallerGone("gone"))
    assert await anext(intake) == b"ab"
    with pytest.raises(CallerGone):
        await anext(intake)


async def test_intake_asks_for_more_once_it_has_room() -> None:
    asked: list[int] = []
    intake = Intake(lambda: asked.append(intake.size))
    intake.push([b"x" * 50_000, b"y" * 50_000], is_whole=False)
    assert intake.is_full
    await anext(intake)
    assert asked == [50_000]


async def test_intake_past_the_limit_is_too_large() -> None:
    intake = Intake(lambda: None)
    reading = asyncio.ensure_future(intake.read_whole(3))
    await asyncio.sleep(0)
    intake.push([b"abcd"], is_whole=False)
    with pytest.raises(BodyTooLarge):
        await reading


async def test_intake_joins_crumbs() -> None:
    """A body sent two bytes at a time must not cost many times its size."""
    intake = Intake(lambda: None)
    for _ in range(10_000):
        intake.push([b"ab"], is_whole=False)
    assert len(intake.pieces) < 10
    intake.push([], is_whole=True)
    assert intake.take_whole() == b"ab" * 10_000
