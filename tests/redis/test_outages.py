"""Redis frozen, killed, emptied, failed over, a node lost: before sending and after it (contract D3, D6)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from proxy.core.model import State
from proxy.ports import StoreUnavailable
from proxy.sandbox import Sandbox
from proxy.stores import redis, redis_guardian
from tests.e2e.callers import Told, payment
from tests.e2e.platforms import ok
from tests.e2e.stage import Proxy, Stage, until
from tests.redis.crowd import patient
from tests.stores.redis_server import ClusterTrio, SentinelTrio, Server
from tests.wire.peers import Reset, Script

RECOVERY_S = 60.0
SHORT: dict[str, Any] = {"timeout": "800ms", "lease": "2s"}


def on(url: str, **more: Any) -> dict[str, Any]:
    return {"store": {"url": url, **SHORT, **more}, "retry": {"attempt_timeout": "10s", "deadline": "20s"}}


class Server3Ways:
    """One server, and the three ways in which it goes away and comes back."""

    def __init__(self, server: Server, how: str) -> None:
        self.server = server
        self.how = how

    def fail(self) -> None:
        if self.how == "frozen":
            self.server.freeze()
        else:
            self.server.kill()

    def mend(self) -> None:
        if self.how == "frozen":
            self.server.thaw()
        else:
            self.server.start()


@pytest.fixture(params=["frozen", "killed", "emptied"])
def failing(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server3Ways]:
    how: str = request.param
    keeps = "no" if how == "emptied" else "yes"
    server = Server(tmp_path / how, "--appendonly", keeps, "--appendfsync", "always").start()
    yield Server3Ways(server, how)
    server.thaw()
    server.stop()


async def recovered(proxy: Proxy) -> None:
    """The store takes writes again and nothing is owed to it."""

    async def holds() -> bool:
        try:
            await proxy.app.store.ping()
        except StoreUnavailable:
            return False
        return not len(proxy.app.now.driver.owed)

    await until(holds, within_s=RECOVERY_S)


async def sent(sandbox: Sandbox, order: str) -> None:
    await until(lambda: any(seen.order == order for seen in sandbox.requests.seen))


async def slowly_paid(sandbox: Sandbox, proxy: Proxy, order: str, *, seconds: float) -> asyncio.Task[Told]:
    """A payment that the platform has and takes its time over."""
    sandbox.add_fault({"fault": "delay", "seconds": seconds})
    call = asyncio.create_task(patient(proxy.address, payment(order, order=order)))
    await sent(sandbox, order)
    return call


def refused_unsent(told: Told, sandbox: Sandbox, order: str) -> bool:
    """D3: 503, this call sent nothing, and nothing is known of the operation."""
    return (told.status, told.code, told.knowledge) == (503, "store_unavailable", "unknown") and not any(
        seen.order == order for seen in sandbox.requests.seen
    )


async def test_store_lost_before_sending_sends_nothing_and_the_key_works_again(
    stage: Stage, failing: Server3Ways
) -> None:
    sandbox = await stage.sandbox()
    proxy = await stage.proxy(sandbox.url, **on(failing.server.url))
    failing.fail()
    told = await proxy.call(payment("K", order="O-1"))
    was_refused = refused_unsent(told, sandbox, "O-1")
    await asyncio.to_thread(failing.mend)
    await recovered(proxy)

    again = await proxy.call(payment("K", order="O-1"))

    assert was_refused, told
    assert (again.status, again.attempts) == (201, 1)
    assert len(sandbox.ledger.charges("O-1")) == 1


async def test_store_lost_after_sending_loses_neither_answer_nor_record(
    stage: Stage, failing: Server3Ways
) -> None:
    sandbox = await stage.sandbox()
    proxy = await stage.proxy(sandbox.url, **on(failing.server.url))
    call = await slowly_paid(sandbox, proxy, "O-1", seconds=0.5)
    failing.fail()

    told = await call

    await asyncio.to_thread(failing.mend)
    await recovered(proxy)
    kept = await proxy.until("O-1", lambda operation: operation.state is State.EXECUTED)
    again = await proxy.call(payment("O-1", order="O-1"))
    assert (told.status, told.knowledge) == (201, "executed")
    assert kept.status == "succeeded"
    assert (again.status, again.json["id"]) == (200, told.json["id"])
    assert len(sandbox.ledger.charges("O-1")) == 1


# --- a store that forgot (D6) --------------------------------------------------------------------------------


async def _doubtful(stage: Stage, server: Server, **store: Any) -> tuple[Any, dict[str, Any]]:
    """A platform that breaks off each first attempt, and the configuration before it."""
    platform = await stage.platform(ok())
    platform.plan(Script(Reset()))
    given = on(server.url, **store) | {"retry": {"attempts": 1}}
    return platform, given


def _empty(server: Server) -> None:
    server.kill()
    server.start()


async def test_d6_journal_of_a_living_sidecar_puts_doubt_back_after_an_empty_restart(
    stage: Stage, forgetful: Server
) -> None:
    platform, given = await _doubtful(stage, forgetful, journal=str(stage.folder / "journal"))
    proxy = await stage.proxy(platform.url, **given)
    assert (await proxy.call(payment("K1"))).code == "result_unknown"
    await asyncio.to_thread(_empty, forgetful)
    await recovered(proxy)
    await proxy.until("K1", lambda operation: operation.state is State.UNKNOWN)

    told = await proxy.call(payment("K2"))

    assert (told.status, told.code, told.error["idempotency_key"]) == (409, "result_unknown", "K1")
    assert platform.hits == 1
    assert any("lost its data" in warning for warning in proxy.app.store.warnings())


@pytest.mark.slow
async def test_d6_journal_of_a_killed_sidecar_is_put_back_by_its_successor(
    stage: Stage, forgetful: Server
) -> None:
    journal = stage.folder / "journal"
    platform, given = await _doubtful(stage, forgetful, journal=str(journal))
    first = await stage.process(platform.url, **given)
    assert (await first.call(payment("K1"))).code == "result_unknown"
    await until(lambda: journal.stat().st_size > 0)  # a thread of its own writes it
    await first.kill()
    await asyncio.to_thread(_empty, forgetful)
    second = await stage.process(platform.url, **given)

    async def is_unknown() -> bool:
        """Killed before its last line, the journal says that K1 is under way: so it is, until its lease ends."""
        told = await second.call(payment("K2"))
        assert (told.status, told.error["idempotency_key"]) == (409, "K1")
        return bool(told.code == "result_unknown")

    await until(is_unknown)
    assert platform.hits == 1


async def test_d6_doubt_that_no_journal_holds_is_lost_and_said_so(stage: Stage, forgetful: Server) -> None:
    """What docs/guarantees.md names as lost: the guard across keys. The store's loss itself is told."""
    platform, given = await _doubtful(stage, forgetful)
    proxy = await stage.proxy(platform.url, **given)
    assert (await proxy.call(payment("K1"))).code == "result_unknown"
    await asyncio.to_thread(_empty, forgetful)
    await recovered(proxy)

    assert await proxy.operations() == ()
    assert any("lost its data" in warning for warning in proxy.app.store.warnings())


# --- settings that could lose claims (D5) --------------------------------------------------------------------


async def test_d5_eviction_switched_on_at_run_time_is_told_by_metric_and_readiness(
    stage: Stage, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were read at start only, so that a failover or a CONFIG SET stayed unseen until a restart."""
    monkeypatch.setattr(redis_guardian, "WATCH_S", 0.02)
    proxy = await stage.proxy((await stage.platform()).url, **on(server.url))

    async def tells(count: int) -> bool:
        _, page = await proxy.app.observer.metrics("")
        return f"safepost_store_warnings {count:.1f}\n".encode() in page

    await until(lambda: tells(0))
    _set(server, "maxmemory-policy", "allkeys-lru")
    await until(lambda: tells(1))
    (warning,) = proxy.app.store.warnings()
    assert "maxmemory-policy is allkeys-lru" in warning
    _set(server, "maxmemory-policy", "noeviction")
    await until(lambda: tells(0))
    assert proxy.app.store.warnings() == ()


def _set(server: Server, setting: str, value: str) -> None:
    with contextlib.closing(server.client()) as client:
        client.config_set(setting, value)


# --- failover, a node lost -----------------------------------------------------------------------------------


async def _charged_once_over_a_loss(
    sandbox: Sandbox, proxy: Proxy, *, lose: Callable[[], None], mend: Callable[[], None]
) -> None:
    """One payment on the wire and one not yet claimed when the store goes."""
    assert (await proxy.call(payment("O-0", order="O-0"))).status == 201
    call = await slowly_paid(sandbox, proxy, "O-1", seconds=0.5)
    lose()
    early = await patient(proxy.address, payment("O-2", order="O-2"))
    assert early.status == 201 or refused_unsent(early, sandbox, "O-2"), early
    told = await call
    assert (told.status, told.knowledge) == (201, "executed")
    await asyncio.to_thread(mend)
    await recovered(proxy)

    again = await patient(proxy.address, payment("O-2", order="O-2"))
    assert again.status == (200 if early.status == 201 else 201)
    assert (await patient(proxy.address, payment("O-1", order="O-1"))).json["id"] == told.json["id"]
    for order in ("O-1", "O-2"):
        await proxy.until(order, lambda operation: operation.state is State.EXECUTED)
    assert [len(sandbox.ledger.charges(order)) for order in ("O-0", "O-1", "O-2")] == [1, 1, 1]


@pytest.mark.slow
async def test_sentinel_failover_loses_no_answer_and_charges_nothing_twice(stage: Stage) -> None:
    trio = SentinelTrio(stage.folder / "trio")
    try:
        await asyncio.to_thread(trio.start)
        sandbox = await stage.sandbox()
        proxy = await stage.proxy(sandbox.url, **on(trio.url, journal=str(stage.folder / "journal")))

        await _charged_once_over_a_loss(sandbox, proxy, lose=trio.primary.kill, mend=lambda: None)
    finally:
        trio.stop()


def _node_of(trio: ClusterTrio, key: str) -> Server:
    """The node that serves the key's slot."""
    with contextlib.closing(trio.nodes[0].client()) as client:
        slot = int(client.execute_command("CLUSTER KEYSLOT", key))
    return trio.nodes[0 if slot < 5461 else 1 if slot < 10923 else 2]


@pytest.mark.slow
async def test_cluster_node_lost_refuses_unsent_and_charges_nothing_twice(stage: Stage) -> None:
    trio = ClusterTrio(stage.folder / "trio")
    for node in trio.nodes:
        node.options += ["--appendonly", "yes", "--appendfsync", "always"]
    try:
        await asyncio.to_thread(trio.start)
        node = _node_of(trio, "{default/test}")
        sandbox = await stage.sandbox()
        proxy = await stage.proxy(sandbox.url, **on(trio.url, journal=str(stage.folder / "journal")))

        await _charged_once_over_a_loss(sandbox, proxy, lose=node.kill, mend=lambda: _back(node))
    finally:
        trio.stop()


async def test_cluster_that_is_not_there_is_told_in_one_line(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """redis-py has a kind of its own for this, which is none of its errors."""
    monkeypatch.setattr(redis, "OPEN_S", 0.5)
    sandbox = await stage.sandbox()
    with pytest.raises(StoreUnavailable, match=r"Redis Cluster: opening the ledger: .* Check store\.url"):
        await stage.proxy(sandbox.url, **on("redis+cluster://127.0.0.1:1,127.0.0.1:2"))


def _back(node: Server) -> None:
    """Started again, and part of a whole cluster."""
    node.start()
    node.wait_until(lambda client: client.execute_command("CLUSTER INFO")["cluster_state"] == "ok")
