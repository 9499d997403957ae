"""Callers that send anything at all, through the whole data plane: the platform sees lawful requests only."""

from __future__ import annotations

import asyncio
import contextlib

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from .conftest import Bench, through
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
    for received in platform.received:
        assert is_lawful(received.head)
        assert len(received.header(b"host")) == 1
        assert len(received.header(b"content-length")) + len(received.header(b"transfer-encoding")) <= 1
        assert received.header(b"via")[-1] == b"1.1 safepost"
