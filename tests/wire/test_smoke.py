"""The happy path: a call through listener and upstream, both loops, byte for byte."""

from __future__ import annotations

from .conftest import Bench, through
from .peers import Script, Send, answer

PAYMENT = (
    b"POST /v1/payments?x=%2F HTTP/1.1\r\nHost: sut.test\r\nIdempotency-Key: k\r\nContent-Length: 2\r\n\r\n{}"
)


async def test_call_passed_through_arrives_whole_both_ways(bench: Bench) -> None:
    platform = await bench.platform(Script(Send(answer(201, b'{"id":1}', (b"X-A", b"1")))))
    listener = await bench.listener(through(bench.upstream(platform.url)))
    caller = await bench.caller(listener)
    for _ in range(3):
        await caller.send(PAYMENT)
        read = await caller.answer()
        assert (read.status, read.body, read.header(b"x-a")) == (201, b'{"id":1}', [b"1"])
    assert platform.hits == 3
    assert len(platform.streams) == 1
    assert platform.received[0].head == (
        b"POST /v1/payments?x=%%2F HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nIdempotency-Key: k\r\n"
        b"Via: 1.1 safepost\r\nContent-Length: 2\r\n\r\n" % platform.port
    )
    assert platform.received[0].body == b"{}"
