"""The loops beside the calls survive a bug that they meet: doubt is looked up, money is counted all the same."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest

from proxy.core.model import State
from proxy.ports import Page, Query, StoreUnavailable
from tests.e2e.callers import payment
from tests.e2e.platforms import ok, says, thing
from tests.e2e.processes import Process
from tests.e2e.stage import LOOKUPS, Stage, until
from tests.wire.peers import Hang, Hold, Script


class Stumbling:
    """A real store that raises what no store may raise, or `error`, once for each verb named."""

    def __init__(self, store: Any, *verbs: str, error: Exception | None = None) -> None:
        self._store = store
        self._left = list(verbs)
        self._error = error

    def __getattr__(self, name: str) -> Any:
        if name in self._left:
            self._left.remove(name)
            raise self._error or KeyError(name)
        return getattr(self._store, name)

    @property
    def has_stumbled(self) -> bool:
        return not self._left


async def test_doubt_is_looked_up_after_the_resolver_met_a_bug(stage: Stage) -> None:
    platform = await stage.platform(says(200, b'{"data":[' + thing(version=1) + b"]}"))
    platform.plan(Script(Hang()))
    proxy = await stage.proxy(platform.url, lookups=LOOKUPS, retry={"attempts": 1})
    stumbling = Stumbling(proxy.app.store, "find")
    proxy.app.now.resolver.store = stumbling

    await proxy.call(payment())

    operation = await proxy.until("K", lambda one: one.state is State.EXECUTED)
    assert operation.settled_by == "lookup"
    assert stumbling.has_stumbled


async def test_store_that_fails_during_lookups_is_no_fault_of_the_process(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform = await stage.platform(says(200, b'{"data":[' + thing(version=1) + b"]}"))
    platform.plan(Script(Hang()))
    proxy = await stage.proxy(platform.url, lookups=LOOKUPS, retry={"attempts": 1})
    faults: list[BaseException] = []
    monkeypatch.setattr(proxy.app.observer, "fault", faults.append)
    resolver = proxy.app.now.resolver
    await proxy.call(payment())
    resolver.store = Stumbling(proxy.app.store, "transact", error=StoreUnavailable("away for a moment"))

    operation = await proxy.until("K", lambda one: one.state is State.EXECUTED)

    assert operation.settled_by == "lookup"
    assert resolver.store.has_stumbled
    assert faults == []


class Swallowing:
    """A real store whose `find` swallows the first cancellation, as redis-py does where it meets a connect."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.asked = asyncio.Event()
        self.has_swallowed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def find(self, query: Query) -> Page:
        self.asked.set()
        if not self.has_swallowed:
            try:
                await asyncio.sleep(3_600)
            except asyncio.CancelledError:
                self.has_swallowed = True
        found: Page = await self._store.find(query)
        return found


async def test_stop_ends_a_loop_that_swallowed_its_cancellation(stage: Stage) -> None:
    """A drain waited for the resolver without end, and the process went on holding its admin port and its lock."""
    platform = await stage.platform(Script(Hang()))
    proxy = await stage.proxy(platform.url, lookups=LOOKUPS)
    swallowing = Swallowing(proxy.app.store)
    proxy.app.now.resolver.store = swallowing
    await asyncio.wait_for(swallowing.asked.wait(), 5)

    await asyncio.wait_for(proxy.app.stop(), 5)

    assert swallowing.has_swallowed


async def test_reload_leaves_one_resolver_also_where_the_old_one_clings(stage: Stage) -> None:
    platform = await stage.platform(Script(Hang()))
    proxy = await stage.proxy(platform.url, lookups=LOOKUPS)
    swallowing = Swallowing(proxy.app.store)
    proxy.app.now.resolver.store = swallowing
    await asyncio.wait_for(swallowing.asked.wait(), 5)

    await asyncio.wait_for(proxy.app.reload(proxy.app.now.settings), 5)

    resolvers = [task for task in asyncio.all_tasks() if task.get_name() == "resolver"]
    assert swallowing.has_swallowed
    assert len(resolvers) == 1


async def test_reload_asked_for_in_a_drain_is_left_undone(stage: Stage) -> None:
    """O3: a new generation would take calls again, and nobody would wait for their end."""
    go = asyncio.Event()
    platform = await stage.platform(Script(Hold(go), *ok().steps))
    process = await stage.process(platform.url, retry={"attempt_timeout": "5s"}, log={"level": "info"})
    call = asyncio.create_task(process.call(payment()))
    await platform.got(1)

    process.signal(signal.SIGTERM)
    process.signal(signal.SIGHUP)

    await until(lambda: _is_draining(process))
    go.set()
    assert (await call).status == 201
    assert await process.ended() == 0
    assert not any("reloaded" in line for line in process.said)


async def _is_draining(process: Process) -> bool:
    return (await process.ask("/readyz")).status == 503


async def test_holdings_are_counted_after_their_loop_met_a_bug(stage: Stage) -> None:
    platform = await stage.platform(Script(Hang()))
    proxy = await stage.proxy(platform.url, retry={"attempts": 1})
    stumbling = Stumbling(proxy.app.store, "holdings")
    proxy.app.store = stumbling

    await proxy.call(payment())

    await until(lambda: any(held.count for held in proxy.app.observer.holdings or ()), within_s=8)
    assert stumbling.has_stumbled
