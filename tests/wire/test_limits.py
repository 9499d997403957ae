"""Time limits, sizes and caps of callers' connections, and draining (H10, O3, O-36, O-37)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from proxy.core.http import Response
from proxy.ports import CallerGone, Exchange
from proxy.wire.caller import ListenerLimits
from proxy.wire.heads import HeadLimits
from proxy.wire.listener import listen
from proxy.wire.sockets import Endpoint, bound_unix_socket

from .conftest import Bench, saying
from .peers import LIMIT_S, RawCaller, turned
from .test_listener import GET, HOST, post

LONG = ListenerLimits(
    first_byte_ms=60_000, head_ms=60_000, body_ms=60_000, idle_ms=60_000, write_ms=60_000, linger_ms=50
)


async def test_connection_without_a_byte_is_closed_in_silence(bench: Bench) -> None:
    caller = await bench.caller(await bench.listener(saying(), replace(LONG, first_byte_ms=20)))
    assert await caller.to_end() == b""


async def test_idle_connection_is_closed_in_silence(bench: Bench) -> None:
    caller = await bench.caller(await bench.listener(saying(), replace(LONG, idle_ms=20)))
    await caller.send(GET)
    assert (await caller.answer()).status == 200
    assert await caller.to_end() == b""


async def test_empty_line_behind_a_request_stops_no_clock(bench: Bench) -> None:
    """Old clients send one; the connection is idle all the same."""
    caller = await bench.caller(await bench.listener(saying(), replace(LONG, idle_ms=20)))
    await caller.send(GET + b"\r\n")
    assert (await caller.answer()).status == 200
    assert await caller.to_end() == b""


async def test_head_that_takes_too_long_gets_408(bench: Bench) -> None:
    caller = await bench.caller(await bench.listener(saying(), replace(LONG, head_ms=20)))
    await caller.send(GET[:20])
    answer = await caller.answer()
    assert answer.status == 408
    assert b"Nothing was sent" in answer.body
    assert await caller.to_end() == b""


async def test_head_is_not_kept_alive_by_dripping(bench: Bench) -> None:
    """The limit runs from the head's first byte, not from its last one."""
    caller = await bench.caller(await bench.listener(saying(), replace(LONG, head_ms=60)))

    async def drip() -> None:
        await caller.send(GET[:16])
        for _ in range(5_000):
            await caller.send(b"X-A: b\r\n")
            await asyncio.sleep(0.005)

    dripping = asyncio.ensure_future(drip())
    assert (await caller.answer()).status == 408
    assert not dripping.done()
    dripping.cancel()


async def test_second_head_that_takes_too_long_gets_408(bench: Bench) -> None:
    caller = await bench.caller(await bench.listener(saying(), replace(LONG, head_ms=20)))
    await caller.send(GET + GET[:20])
    assert (await caller.answer()).status == 200
    assert (await caller.answer()).status == 408


async def test_body_that_stops_gets_408_and_the_call_is_told(bench: Bench) -> None:
    told = asyncio.Event()

    async def read(exchange: Exchange) -> None:
        try:
            await exchange.read_body(bytes_max=100)
        except CallerGone:
            told.set()
            raise

    caller = await bench.caller(await bench.listener(read, replace(LONG, body_ms=20)))
    await caller.send(post(b"0123456789")[:-3])
    answer = await caller.answer()
    assert answer.status == 408
    assert await caller.to_end() == b""
    assert told.is_set()
    assert bench.errors == []


async def test_body_that_drips_gets_408(bench: Bench) -> None:
    """A byte now and then resets no clock: the whole body has its time, by its size."""
    limits = replace(LONG, body_ms=50, body_bytes_per_second_min=1_000)
    caller = await bench.caller(await bench.listener(saying(), limits))
    await caller.send(post(b"x" * 1_000)[:-1_000])

    async def drip() -> None:
        for _ in range(1_000):
            await caller.send(b"x")
            await asyncio.sleep(0.01)

    dripping = asyncio.ensure_future(drip())
    assert (await caller.answer()).status == 408
    assert not dripping.done()
    dripping.cancel()


async def test_body_in_good_time_is_read_however_long_it_is(bench: Bench) -> None:
    """Longer than `body_ms` in total, but never slower than the least rate."""
    limits = replace(LONG, body_ms=1_000, body_bytes_per_second_min=100)
    caller = await bench.caller(await bench.listener(saying(b"read"), limits))
    await caller.send(post(b"x" * 2_500)[:-2_500])
    for _ in range(25):
        await caller.send(b"x" * 100)
        await asyncio.sleep(0.06)
    assert (await caller.answer()).body == b"read"


async def test_caller_that_does_not_read_its_answer_is_cut(bench: Bench) -> None:
    given: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    async def say(exchange: Exchange) -> None:
        given.set_result(await exchange.reply(Response(200, (), b"x" * 50_000_000)))

    listener = await bench.listener(say, replace(LONG, write_ms=30))
    caller = await bench.caller(listener)
    cast(asyncio.ReadTransport, caller.stream.writer.transport).pause_reading()
    await caller.send(GET)
    async with asyncio.timeout(LIMIT_S):
        assert await given is False
    await turned(lambda: listener.connections_open == 0)


async def test_lingering_connection_ends_though_the_caller_stays(bench: Bench) -> None:
    listener = await bench.listener(saying(), replace(LONG, linger_ms=20))
    async with await RawCaller.dial(listener.address) as caller:
        await caller.send(b"nonsense\r\n\r\n")
        assert (await caller.answer()).status == 400
        await turned(lambda: listener.connections_open == 0)


@pytest.mark.parametrize(
    ("wire", "status"),
    [
        (b"GET /" + b"a" * 600 + b" HTTP/1.1\r\n" + HOST + b"\r\n", 414),
        (b"GET /" + b"a" * 5_000, 414),
        (b"GET / HTTP/1.1\r\n" + HOST + b"X: " + b"a" * 5_000, 431),
        (b"GET / HTTP/1.1\r\n" + HOST + b"X: " + b"a" * 5_000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\n" + HOST + b"X: a\r\n" * 10 + b"\r\n", 431),
    ],
)
async def test_head_past_a_size_gets_its_status(bench: Bench, wire: bytes, status: int) -> None:
    limits = replace(LONG, head=HeadLimits(head_bytes_max=2_000, target_bytes_max=500, header_count_max=5))
    caller = await bench.caller(await bench.listener(saying(), limits))
    await caller.send(wire)
    answer = await caller.answer()
    assert answer.status == status
    assert answer.header(b"content-type") == [b"application/json"]
    assert await caller.to_end() == b""


async def test_connection_over_the_cap_gets_503_and_is_closed(bench: Bench) -> None:
    listener = await bench.listener(saying(), replace(LONG, connections_max=2))
    first, second = await bench.caller(listener), await bench.caller(listener)
    await turned(lambda: listener.connections_open == 2)
    third = await bench.caller(listener)
    await third.send(GET)
    answer = await third.answer()
    assert answer.status == 503
    assert b"too_many_connections" in answer.body
    assert b'"retryable": true' in answer.body
    assert answer.header(b"retry-after") == [b"1"]
    assert await third.to_end() == b""
    first.reset()
    await turned(lambda: listener.connections_open == 1)
    fourth = await bench.caller(listener)
    for caller in (second, fourth):
        await caller.send(GET)
        assert (await caller.answer()).status == 200


async def test_slow_callers_do_not_hold_a_good_one_up(bench: Bench) -> None:
    listener = await bench.listener(saying(), replace(LONG, head_ms=100, body_ms=100))
    slow = [await bench.caller(listener) for _ in range(60)]
    for at, caller in enumerate(slow):
        await caller.send(GET[:20] if at % 2 else post(b"x" * 1_000)[:-900])
    good = await bench.caller(listener)
    for _ in range(20):
        await good.send(GET)
        assert (await good.answer()).status == 200
    for caller in slow:
        assert (await caller.answer()).status == 408


async def test_drain_closes_idle_connections_and_ends_busy_ones_after_their_answer(bench: Bench) -> None:
    gate = asyncio.Event()

    async def wait(exchange: Exchange) -> None:
        await gate.wait()
        await exchange.reply(Response(200, (), b"done"))

    listener = await bench.listener(wait, LONG)
    idle, busy = await bench.caller(listener), await bench.caller(listener)
    await busy.send(GET)
    await turned(lambda: listener.calls_running == 1 and listener.connections_open == 2)
    listener.drain()
    assert await idle.to_end() == b""
    with pytest.raises(ConnectionRefusedError):
        await RawCaller.dial(listener.address)
    gate.set()
    answer = await busy.answer()
    assert (answer.body, answer.header(b"connection")) == (b"done", [b"close"])
    assert await busy.to_end() == b""
    assert await listener.close(grace_ms=30_000) is True


async def test_close_waits_for_calls_then_ends_them_and_tells_their_callers(bench: Bench) -> None:
    cancelled = asyncio.Event()

    async def stuck(exchange: Exchange) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    listener = await bench.listener(stuck, LONG)
    caller = await bench.caller(listener)
    await caller.send(GET)
    await turned(lambda: listener.calls_running == 1)
    assert await listener.close(grace_ms=20) is False
    assert cancelled.is_set()
    assert listener.calls_running == 0
    answer = await caller.answer()
    assert answer.status == 504
    assert b"the platform may have acted" in answer.body


async def test_close_waits_for_a_call_whose_caller_has_gone(bench: Bench) -> None:
    """Contract H6: the call belongs to the application."""
    gate = asyncio.Event()
    ended: list[bool] = []

    async def work(exchange: Exchange) -> None:
        await gate.wait()
        ended.append(await exchange.reply(Response(200, (), b"")))

    listener = await bench.listener(work, LONG)
    caller = await bench.caller(listener)
    await caller.send(GET)
    await turned(lambda: listener.calls_running == 1)
    caller.reset()
    await turned(lambda: listener.connections_open == 0)
    closing = asyncio.ensure_future(listener.close(grace_ms=30_000))
    await asyncio.sleep(0)
    gate.set()
    assert await closing is True
    assert ended == [False]


async def test_unix_socket_is_served_and_removed(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    listener = await bench.listener(saying(b"here"), address=f"unix:{path}")
    caller = await bench.caller(listener)
    await caller.send(GET)
    assert (await caller.answer()).body == b"here"
    listener.stop_accepting()
    assert not path.exists()


async def test_unix_socket_left_by_a_killed_process_is_replaced(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    listener = await bench.listener(saying(b"first"), address=f"unix:{path}")
    listener._socket_inode = None  # as if this process had been killed: the file stays
    await listener.close(grace_ms=0)
    assert path.exists()
    again = await bench.listener(saying(b"second"), address=f"unix:{path}")
    caller = await bench.caller(again)
    await caller.send(GET)
    assert (await caller.answer()).body == b"second"


async def test_shared_unix_socket_outlives_one_of_those_who_serve_it(bench: Bench, tmp_path: Path) -> None:
    """As workers do: one that ends leaves the others reachable. From Python 3.13 the loop would remove it (O3)."""
    endpoint = Endpoint(path=str(tmp_path / "s.sock"))
    with bound_unix_socket(str(endpoint.path)) as bound:
        first = await listen(endpoint, saying(b"a"), on_error=bench.errors.append, sock=bound.dup())
        second = await listen(endpoint, saying(b"b"), on_error=bench.errors.append, sock=bound.dup())
        try:
            assert await first.close(grace_ms=30_000)
            async with await RawCaller.dial(second.address) as caller:
                await caller.send(GET)
                assert (await caller.answer()).body == b"b"
        finally:
            await second.close(grace_ms=0)


async def test_unix_socket_in_use_is_not_taken_away(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    listener = await bench.listener(saying(b"first"), address=f"unix:{path}")
    with pytest.raises(OSError, match="in use"):
        await bench.listener(saying(b"second"), address=f"unix:{path}")
    caller = await bench.caller(listener)
    await caller.send(GET)
    assert (await caller.answer()).body == b"first"


async def test_two_listeners_share_a_port(bench: Bench) -> None:
    first = await listen(Endpoint("127.0.0.1"), saying(b"a"), on_error=bench.errors.append, reuse_port=True)
    second = await listen(first.endpoint, saying(b"b"), on_error=bench.errors.append, reuse_port=True)
    bodies = set()
    for _ in range(40):
        async with await RawCaller.dial(first.address) as caller:
            await caller.send(GET)
            bodies.add((await caller.answer()).body)
    assert bodies == {b"a", b"b"}
    assert await first.close(grace_ms=30_000)
    assert await second.close(grace_ms=30_000)


@pytest.mark.parametrize(
    "text", ["8080", ":8080", "host", "host:99999", "::1:80", "unix:", "[::1]", "h:x", "h:-1"]
)
def test_address_that_is_none_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected .*unix:"):
        Endpoint.parse(text)


@pytest.mark.parametrize("text", ["127.0.0.1:8080", "[::1]:8080", "unix:/run/safepost.sock", "localhost:0"])
def test_address_is_written_as_it_is_read(text: str) -> None:
    assert str(Endpoint.parse(text)) == text
