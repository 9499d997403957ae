"""Callers that send anything at all, through the whole data plane: the platform sees lawful requests only."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from proxy.wire.link import Link

from .conftest import Bench, through
from .fuzz import Conversation, Disagreement, Fuzzer, check
from .memory import Ends, MemoryConnector
from .peers import LIMIT_S, RawCaller, Script, Send, answer
from .test_heads import is_lawful

HOST = b"Host: sut.test\r\n"
WHOLE = [
    b"GET /a HTTP/1.1\r\n" + HOST + b"\r\n",
    b"POST /b HTTP/1.1\r\n" + HOST + b"Content-Length: 5\r\n\r\nhello",
    b"POST /c HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    b"POST /d HTTP/1.1\r\n" + HOST + b"Content-Length: 0\r\nConnection: close\r\n\r\n",
    b"POST /e HTTP/1.0\r\nContent-Length: 2\r\n\r\nhi",
]
_CHUNKED = b"Transfer-Encoding: chunked\r\n"
_SMUGGLED = b"5\r\nGET /v1/internal HTTP/1.1\r\nHost: x\r\n\r\n0\r\n\r\n"


@st.composite
def conversations(draw: st.DrawFn) -> list[bytes]:
    """Requests one after the other, mangled here and there, cut into writes."""
    wire = bytearray(b"".join(draw(st.lists(st.sampled_from(WHOLE), min_size=1, max_size=4))))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(wire)))
        insert = st.sampled_from(
            [
                b"\r",
                b"\n",
                b"\r\n",
                b" ",
                b"\0",
                b":",
                b"Content-Length: 3\r\n",
                b"Transfer-Encoding: chunked\r\n",
                _SMUGGLED,
            ]
        )
        wire[at : at + draw(st.integers(0, 4))] = draw(insert | st.binary(max_size=3))
    cuts = sorted(draw(st.lists(st.integers(0, len(wire)), max_size=3)))
    return [bytes(wire[start:end]) for start, end in zip([0, *cuts], [*cuts, len(wire)], strict=True)]


async def test_whatever_callers_send_the_platform_sees_lawful_requests(bench: Bench) -> None:
    platform = await bench.platform(Script(Send(answer(200, b"ok"))))
    listener = await bench.listener(through(bench.upstream(platform.url)))
    loop = asyncio.get_running_loop()
    said: list[list[bytes]] = []

    @settings(
        max_examples=60,
        database=None,
        deadline=None,
        phases=[Phase.generate],
    )
    @given(conversations())
    def collect(conversation: list[bytes]) -> None:
        said.append(conversation)

    await loop.run_in_executor(None, collect)
    assert len(said) > 30
    for conversation in said:
        async with await RawCaller.dial(listener.address) as caller:
            with contextlib.suppress(ConnectionError):
                for part in conversation:
                    await caller.send(part)
                    await asyncio.sleep(0)
                caller.half_close()
                async with asyncio.timeout(LIMIT_S):
                    await caller.to_end()
    assert bench.errors == []
    assert platform.hits > 10, "too few got through to tell anything"
    for received in platform.received:
        assert is_lawful(received.head)
        assert len(received.header(b"host")) == 1
        assert len(received.header(b"content-length")) + len(received.header(b"transfer-encoding")) <= 1
        assert received.header(b"via")[-1] == b"1.1 safepost"


def test_four_ends_of_any_conversation_tell_one_story() -> None:
    """What the caller sent, what the platform saw, what it said, what the caller got (`make fuzz` is longer)."""
    fuzzer = Fuzzer()

    @settings(max_examples=250, database=None, deadline=None, phases=[Phase.generate, Phase.shrink])
    @given(st.binary(max_size=300))
    def converse(data: bytes) -> None:
        fuzzer(data)

    try:
        converse()
        assert fuzzer.count >= 200
    finally:
        fuzzer.close()


@pytest.mark.parametrize(
    ("said", "arrived"),
    [
        (b"GET /a HTTP/1.1\r\nHost: x\r\nA: 1\r\n\r\n", b"GET /a HTTP/1.1\r\nHost: y\r\nA: 2\r\n\r\n"),
        (b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n", b"GET /b HTTP/1.1\r\nHost: y\r\n\r\n"),
        (b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n", 2 * b"GET /a HTTP/1.1\r\nHost: y\r\n\r\n"),
        (b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n", b"GET /a HTTP/1.1\nHost: y\n\n"),
        (b"GET /a HTTP/1.1\nHost: x\r\n\r\n", b"GET /a HTTP/1.1\r\nHost: y\r\n\r\n"),
    ],
    ids=["field", "target", "twice", "bare LF arrived", "bare LF sent"],
)
async def test_fuzzer_sees_that_something_else_arrived(said: bytes, arrived: bytes) -> None:
    """The judge itself: it is given what a broken product would have done."""
    loop = asyncio.get_running_loop()
    one, other = socket.socketpair()
    with one, other:
        ends = Ends(one, ())
        await MemoryConnector(ends).open(lambda: Link(loop, lambda _link: None))
        ends.platforms[0].write(arrived)
        with pytest.raises(Disagreement):
            check(Conversation((said,), (), hangs_up=False), ends)
        await ends.close()
