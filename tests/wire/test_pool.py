"""The pool of upstream connections: its cap, queue and age, and what a call that gave up leaves (O-34, O-35)."""

from __future__ import annotations

import asyncio

import pytest

from proxy.core.http import Answered, NotSent, NotSentReason, WireRequest, WireResult
from proxy.wire.pool import PoolLimits
from proxy.wire.upstream import HttpUpstream

from .conftest import Bench
from .peers import LIMIT_S, HalfClose, Hang, Hold, RawPlatform, Script, Send, answer, turned

GET = WireRequest(b"GET", b"/", (), b"")


async def ask(upstream: HttpUpstream, *, fresh: bool = False, timeout_ms: int = 5_000) -> WireResult:
    return await upstream.send(GET, timeout_ms=timeout_ms, fresh=fresh)


async def test_connections_stay_within_the_cap_and_every_call_gets_its_turn(bench: Bench) -> None:
    platform = await bench.platform()
    upstream = bench.upstream(platform.url, pool=PoolLimits(connections_max=3))
    results = await asyncio.gather(*(ask(upstream) for _ in range(50)))
    assert all(isinstance(result, Answered) for result in results)
    assert len(platform.streams) == 3
    assert upstream.pool.connections_open == upstream.pool.connections_idle == 3


async def test_call_without_a_connection_in_time_is_not_sent(bench: Bench) -> None:
    platform = await bench.platform(Script(Hang()))
    upstream = bench.upstream(platform.url, pool=PoolLimits(connections_max=1, wait_ms=20))
    busy = asyncio.ensure_future(ask(upstream))
    await platform.got(1)
    result = await ask(upstream)
    assert isinstance(result, NotSent)
    assert result.reason is NotSentReason.POOL_TIMEOUT
    assert platform.hits == 1
    busy.cancel()


async def test_queue_is_bounded(bench: Bench) -> None:
    platform = await bench.platform(Script(Hang()))
    upstream = bench.upstream(platform.url, pool=PoolLimits(connections_max=1, waiting_max=2))
    waiting = [asyncio.ensure_future(ask(upstream)) for _ in range(3)]
    await platform.got(1)
    result = await ask(upstream)
    assert isinstance(result, NotSent)
    assert "too many" in result.detail
    for task in waiting:
        task.cancel()


async def test_calls_that_gave_up_leave_their_places_in_the_queue(bench: Bench) -> None:
    platform = await bench.platform(Script(Hang()))
    upstream = bench.upstream(platform.url, pool=PoolLimits(connections_max=1, waiting_max=2, wait_ms=10))
    busy = asyncio.ensure_future(ask(upstream))
    await platform.got(1)
    for _ in range(3):
        result = await ask(upstream)
        assert isinstance(result, NotSent)
        assert "within 10 ms" in result.detail
    busy.cancel()


async def test_calls_that_gave_up_leave_their_slots_to_others(bench: Bench) -> None:
    """O-35: waiters that were cancelled or timed out must pass on what they were handed."""
    gate = asyncio.Event()
    platform = await bench.platform(Script(Hold(gate), Send(answer(200, b"ok"))))
    upstream = bench.upstream(platform.url, pool=PoolLimits(connections_max=5))
    hung = [asyncio.ensure_future(ask(upstream, timeout_ms=1_000 + at)) for at in range(60)]
    await platform.got(5)
    for at, task in enumerate(hung):
        if at % 3:
            task.cancel()
    await asyncio.wait(hung)
    gate.set()
    results = await asyncio.gather(*(ask(upstream) for _ in range(50)))
    assert all(isinstance(result, Answered) for result in results)
    assert upstream.pool.connections_open <= 5
    assert len(platform.streams) - len(platform.ended) <= 5


async def test_slot_handed_to_a_call_in_the_turn_it_is_cancelled_is_not_lost(bench: Bench) -> None:
    gate = asyncio.Event()
    platform = await bench.platform(Script(Hold(gate), Send(answer(200, b"ok"))))
    upstream = bench.upstream(platform.url, pool=PoolLimits(connections_max=1))
    first = asyncio.ensure_future(ask(upstream))
    await platform.got(1)
    second = asyncio.ensure_future(ask(upstream))
    await asyncio.sleep(0)
    gate.set()
    await first
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    assert isinstance(await ask(upstream), Answered)


async def test_dead_connection_that_a_call_gave_back_leaves_its_slot(bench: Bench) -> None:
    """Handed over, ended by the platform and given up, all in one turn of the loop."""
    gate = asyncio.Event()
    platform = await bench.platform(Script(Hold(gate), Send(answer(200, b"ok")), HalfClose(), Hang()))
    upstream = bench.upstream(platform.url, pool=PoolLimits(connections_max=1))
    first = asyncio.ensure_future(ask(upstream))
    await platform.got(1)
    second = asyncio.ensure_future(ask(upstream))
    await asyncio.sleep(0)
    gate.set()
    await first
    second.cancel()
    await asyncio.wait([second])
    await turned(lambda: upstream.pool.connections_open == 0)
    assert isinstance(await ask(upstream), Answered)


async def test_cancelled_connecting_leaves_its_slot(bench: Bench) -> None:
    upstream = bench.upstream("http://127.0.0.1:9", pool=PoolLimits(connections_max=1))
    connecting = asyncio.ensure_future(ask(upstream))
    await asyncio.sleep(0)
    connecting.cancel()
    await asyncio.wait([connecting])
    assert upstream.pool.connections_open == 0


async def test_failed_connection_leaves_its_slot_to_the_next_waiter(bench: Bench) -> None:
    upstream = bench.upstream("http://127.0.0.1:9", pool=PoolLimits(connections_max=1))
    results = await asyncio.gather(*(ask(upstream) for _ in range(10)))
    reasons = {result.reason for result in results if isinstance(result, NotSent)}
    assert reasons == {NotSentReason.REFUSED}
    assert upstream.pool.connections_open == 0


async def test_idle_connection_is_closed_after_its_time(bench: Bench) -> None:
    platform = await bench.platform()
    upstream = bench.upstream(platform.url, pool=PoolLimits(idle_ms=500))
    await ask(upstream)
    assert upstream.pool.connections_idle == 1
    await platform.gone(0)
    await turned(lambda: upstream.pool.connections_open == 0)
    assert isinstance(await ask(upstream), Answered)


async def test_old_connection_is_not_used_again(bench: Bench) -> None:
    """O-34: unbroken traffic must not pin the platform's old address."""
    platform = await bench.platform()
    upstream = bench.upstream(platform.url, pool=PoolLimits(age_ms_max=40))
    async with asyncio.timeout(LIMIT_S):
        while len(platform.streams) < 3:
            assert isinstance(await ask(upstream), Answered)
            await asyncio.sleep(0.002)


async def test_fresh_call_takes_no_used_connection(bench: Bench) -> None:
    platform = await bench.platform()
    upstream = bench.upstream(platform.url)
    await ask(upstream)
    await ask(upstream, fresh=True)
    assert len(platform.streams) == 2
    assert [received.connection for received in platform.received] == [0, 1]
    await ask(upstream)
    assert len(platform.streams) == 2


async def test_fresh_call_at_the_cap_replaces_an_idle_connection(bench: Bench) -> None:
    platform = await bench.platform()
    upstream = bench.upstream(platform.url, pool=PoolLimits(connections_max=1))
    for _ in range(3):
        assert isinstance(await ask(upstream, fresh=True), Answered)
    assert len(platform.streams) == 3
    assert upstream.pool.connections_open == 1


async def test_fresh_call_in_the_queue_gets_a_new_connection(bench: Bench) -> None:
    gate = asyncio.Event()
    platform = await bench.platform()
    platform.plan(Script(Hold(gate), Send(answer(200, b"ok"))))
    upstream = bench.upstream(platform.url, pool=PoolLimits(connections_max=1))
    first = asyncio.ensure_future(ask(upstream))
    await platform.got(1)
    second = asyncio.ensure_future(ask(upstream, fresh=True))
    await asyncio.sleep(0)
    gate.set()
    assert isinstance(await first, Answered)
    assert isinstance(await second, Answered)
    assert [received.connection for received in platform.received] == [0, 1]


async def test_closed_pool_takes_no_new_work_and_lets_the_old_end(bench: Bench) -> None:
    gate = asyncio.Event()
    platform = await bench.platform()
    platform.plan(Script(Send(answer(200, b"ok"))), Script(Hold(gate), Send(answer(200, b"late"))))
    upstream = bench.upstream(platform.url)
    await ask(upstream)
    busy = asyncio.ensure_future(ask(upstream))
    await platform.got(2)
    await upstream.close()
    assert isinstance(await ask(upstream), NotSent)
    gate.set()
    late = await busy
    assert isinstance(late, Answered)
    assert late.response.body == b"late"
    assert upstream.pool.connections_open == 0


async def test_waiting_calls_are_told_when_the_pool_closes(bench: Bench) -> None:
    platform = await bench.platform(Script(Hang()))
    upstream = bench.upstream(platform.url, pool=PoolLimits(connections_max=1))
    busy = asyncio.ensure_future(ask(upstream))
    await platform.got(1)
    waiting = asyncio.ensure_future(ask(upstream))
    await asyncio.sleep(0)
    await upstream.close()
    result = await waiting
    assert isinstance(result, NotSent)
    assert "closed" in result.detail
    busy.cancel()


async def test_platform_that_moves_is_followed(bench: Bench) -> None:
    """The connection to the old process is dead; the call finds that out before its first byte."""
    old = RawPlatform()
    async with old:
        port = old.port
        upstream = bench.upstream(old.url)
        await ask(upstream)
    async with RawPlatform(port=port) as new:
        assert isinstance(await ask(upstream), Answered)
        assert new.hits == 1
