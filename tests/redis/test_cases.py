"""Failure cases of Redis through the whole product: O-03 and O-49 to O-55."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

from proxy.core.model import State
from tests.e2e.callers import Told, lookup, payment
from tests.e2e.platforms import ok
from tests.e2e.stage import Proxy, Stage
from tests.redis.crowd import patient, with_store
from tests.redis.lines import SlowLine
from tests.redis.probes import away
from tests.stores.redis_server import ClusterTrio, Server
from tests.wire.peers import Hold, Script

O51_CALLS = 100
"""One each 200 ms for twenty seconds, as the case has it."""
O51_RECOVERY_S = 15.0
"""It asks for five seconds, which a busy machine may not keep; the fault that it is about lasts for hours."""


def outside(server: Server, *command: str) -> Any:
    """A command by somebody else."""
    with contextlib.closing(server.client()) as client:
        return client.execute_command(*command)


async def ready(proxy: Proxy, query: str = "") -> Told:
    admin = proxy.app.admin
    assert admin is not None
    address = admin.url.removeprefix("http://")
    raw = f"GET /readyz{query} HTTP/1.1\r\nHost: {address}\r\n\r\n".encode()
    return await patient(address, raw)


@pytest.mark.parametrize("n", range(3))
async def test_o03_waiters_read_the_result_instead_of_running_again(
    stage: Stage, server: Server, n: int
) -> None:
    """Forty calls within a moment, Redis 300 ms away, an answer after 200 ms."""
    sandbox = await stage.sandbox()
    async with SlowLine(server.port, 0.3) as line, contextlib.AsyncExitStack() as stack:
        pair = [await stage.proxy(sandbox.url, **with_store(line.url)) for _ in range(2)]
        for one in pair:
            stack.push_async_callback(one.app.stop)
        sandbox.add_fault({"fault": "delay", "seconds": 0.2})
        raw = payment(f"K-{n}", order=f"O-{n}")

        told = await asyncio.gather(*(patient(pair[i % 2].address, raw) for i in range(40)))

    assert {(one.status, one.body) for one in told} == {(201, told[0].body)}
    assert len(sandbox.requests.seen) == 1


async def test_o49_no_waiter_misses_the_end_however_close_it_comes(stage: Stage, server: Server) -> None:
    """The second call comes while the first one ends: from well before it to well after it."""
    platform = await stage.platform(ok())
    a = await stage.proxy(platform.url, **with_store(server.url))
    b = await stage.proxy(platform.url, **with_store(server.url))
    loop = asyncio.get_running_loop()

    async def ended(call: asyncio.Task[Told]) -> tuple[Told, float]:
        return await call, loop.time()

    for n in range(40):
        go = asyncio.Event()
        platform.plan(Script(Hold(go), *ok().steps))
        raw = payment(f"K-{n}", order=f"O-{n}")
        hits = platform.hits
        first = asyncio.create_task(a.call(raw))
        await platform.got(hits + 1)
        loop.call_later(0.02, go.set)
        await asyncio.sleep(0.001 * n)
        second = asyncio.create_task(b.call(raw))

        (one, one_at), (other, other_at) = await asyncio.gather(ended(first), ended(second))

        assert (one.status, one.body) == (other.status, other.body) == (201, one.body)
        assert other_at - one_at < 10, "a waiter that missed the end would wait for forty seconds"
        assert platform.hits - hits <= 2  # a call that came after the end is a repeat, and forwarded (P6)


async def test_o50_flushed_scripts_are_not_noticed(stage: Stage, server: Server) -> None:
    go = asyncio.Event()
    platform = await stage.platform(ok())
    proxy = await stage.proxy(platform.url, **with_store(server.url))
    assert (await proxy.call(payment("K-1", order="O-1"))).status == 201
    platform.plan(Script(Hold(go), *ok().steps))
    second = asyncio.create_task(proxy.call(payment("K-2", order="O-2")))
    await platform.got(2)
    outside(server, "SCRIPT", "FLUSH")
    go.set()

    told = [await second, await proxy.call(payment("K-3", order="O-3"))]

    assert [one.status for one in told] == [201, 201]
    assert {found.state for found in await proxy.operations()} == {State.EXECUTED}


@pytest.mark.slow
async def test_o51_demoted_primary_is_left_within_seconds(stage: Stage, server: Server) -> None:
    """Open connections lead to the demoted server; each call is a hit with a record, or neither."""
    second = Server(stage.folder / "second", "--replicaof", f"127.0.0.1 {server.port}").start()
    try:
        second.wait_until(lambda client: client.info("replication")["master_link_status"] == "up")
        async with SlowLine(server.port, 0.0) as line, contextlib.AsyncExitStack() as stack:
            platform = await stage.platform(ok())
            proxy = await stage.proxy(platform.url, store={"url": line.url, "timeout": "1s"})
            stack.push_async_callback(proxy.app.stop)
            told: list[Told] = []
            loop = asyncio.get_running_loop()
            swapped = good_at = 0.0
            for n in range(O51_CALLS):
                if n == 10:
                    outside(second, "REPLICAOF", "NO", "ONE")
                    outside(server, "REPLICAOF", "127.0.0.1", str(second.port))
                    line.port = second.port
                    swapped = loop.time()
                hits = platform.hits
                told.append(await proxy.call(payment(f"K-{n}", order=f"O-{n}")))
                is_paid = told[-1].status == 201
                assert is_paid or told[-1].code == "store_unavailable", told[-1]
                assert platform.hits - hits == (1 if is_paid else 0)
                if swapped and is_paid and not good_at:
                    good_at = loop.time()
                await asyncio.sleep(0.2)
            assert 0 < good_at - swapped < O51_RECOVERY_S
            assert {one.status for one in told[-10:]} == {201}
            paid = {f"K-{n}" for n, one in enumerate(told) if one.status == 201}
            assert paid <= {str(found.key) for found in await proxy.operations()}
    finally:
        second.stop()


async def test_o52_full_server_refuses_payments_lets_reads_pass_and_recovers(
    stage: Stage, server: Server
) -> None:
    platform = await stage.platform(ok())
    proxy = await stage.proxy(platform.url, **with_store(server.url))
    outside(server, "CONFIG", "SET", "maxmemory", "1mb")
    refused = await proxy.call(payment())
    read = await proxy.call(lookup("x"))
    unfit = await ready(proxy, "?for=payments")
    posts = [seen for seen in platform.received if seen.method == b"POST"]
    outside(server, "CONFIG", "SET", "maxmemory", "0")

    told = await proxy.call(payment())

    assert (refused.status, refused.code, refused.knowledge) == (503, "store_unavailable", "unknown")
    assert refused.header("retry-after") is not None
    assert posts == []
    assert read.status == 201
    assert (unfit.status, "memory is full" in unfit.json["store"]["fault"]) == (503, True)
    assert told.status == 201


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--maxmemory", "50mb", "--maxmemory-policy", "allkeys-lru"), "maxmemory-policy is allkeys-lru"),
        (("--rename-command", "CONFIG", ""), "CONFIG can't be read"),
    ],
    ids=["evicting", "hidden"],
)
async def test_o53_store_that_may_evict_is_told_at_start_and_in_readiness(
    stage: Stage, tmp_path: Path, options: tuple[str, ...], says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    shared = Server(tmp_path / "shared", *options).start()
    try:
        platform = await stage.platform(ok())
        proxy = await stage.proxy(platform.url, **with_store(shared.url))
        told = await ready(proxy, "?for=payments")
        works = await proxy.call(payment())
    finally:
        await proxy.app.stop()
        shared.stop()

    assert told.status == 200
    assert any(says in warning for warning in told.json["store"]["warnings"])
    assert says in capfd.readouterr().out
    assert works.status == 201


@pytest.mark.slow
async def test_o54_any_key_is_one_hit_in_a_cluster(stage: Stage) -> None:
    trio = ClusterTrio(stage.folder / "trio")
    try:
        await asyncio.to_thread(trio.start)
        platform = await stage.platform(ok())
        by_merchant: dict[str, Any] = {"merchant": {"header": "X-Merchant-Id"}}
        proxy = await stage.proxy(platform.url, **with_store(trio.url), **by_merchant)
        styles = ["payment.create:ORDER-1:1", "a{b}c", "}{", "{}x", "{user}"]
        merchants = ["acme", "globex", "initech", "umbrella"]  # a scope is one slot; scopes spread
        keys = [f"{style}{n}" for style in styles for n in range(50)]

        async def pay(n: int, key: str) -> Told:
            merchant = ("X-Merchant-Id", merchants[n % len(merchants)])
            return await patient(proxy.address, payment(key, 10_000, merchant, order=f"O-{n}"))

        told = await asyncio.gather(*(pay(n, key) for n, key in enumerate(keys)))
        rows = [len(outside(node, "KEYS", "safepost:{*}:o:*")) for node in trio.nodes]
    finally:
        trio.stop()

    assert {one.status for one in told} == {201}
    assert platform.hits == len(keys)
    assert sum(rows) == len(keys)
    assert sum(count > 0 for count in rows) > 1, rows


@pytest.mark.slow
async def test_o55_liveness_is_the_processs_and_readiness_the_payments(stage: Stage, server: Server) -> None:
    """`python -m tests.redis --away 90` has the case's own length."""
    seen = await away(stage, server, away_s=15, answer_s=10)

    assert seen.probes == {(200, 200, 503): 15}
    assert {(one.status, one.knowledge) for one in seen.told} == {(201, "executed")}
    assert set(seen.states) == {"executed"}
    assert seen.is_same_process
