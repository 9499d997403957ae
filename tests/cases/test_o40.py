"""O-40 where nothing is said: the reader of a silent stream leaves, and the platform's connection goes too."""

from __future__ import annotations

import asyncio

import pytest

from tests.e2e.callers import request
from tests.e2e.stage import Stage
from tests.wire.peers import Hang, RawCaller, Script, Send, answer

HEAD = answer(
    200, b"", (b"Content-Type", b"text/event-stream"), (b"Transfer-Encoding", b"chunked"), length=None
)


@pytest.mark.parametrize("leaving", ["close", "reset"])
async def test_o40_silent_stream_ends_with_its_reader(stage: Stage, leaving: str) -> None:
    platform = await stage.platform(Script(Send(HEAD + b"9\r\ndata: 1\n\n\r\n"), Hang()))
    proxy = await stage.proxy(platform.url)
    async with await RawCaller.dial(proxy.address) as caller:
        await caller.send(request("GET", "/v1/events"))
        await caller.until(b"data: 1\n\n")
        if leaving == "reset":
            caller.reset()
        else:
            caller.stream.writer.close()
        async with asyncio.timeout(8):  # the limit of a silent stream is ten seconds
            await platform.gone(0)

    assert proxy.app.now.upstream.pool.connections_open == 0
