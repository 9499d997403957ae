"""Waiting for a run to end: woken by this process, by others, by the lease, or by nobody (P4, P5, O-49)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from proxy.core.model import Fence, Owner, State, replace
from proxy.core.reserve import WithdrawClaim
from proxy.ports import Store
from proxy.stores import waiters
from tests.contract.conftest import House
from tests.contract.values import START_MS, PutRows, claim, lead, settled

SOON_S = 30.0
"""On a machine that may be busy; a waiter that missed the end would sleep to its limit of ten minutes."""


async def soon(waiting: Awaitable[object]) -> object:
    async with asyncio.timeout(SOON_S):
        return await waiting


def test_waiter_that_hears_nothing_looks_again_within_a_second() -> None:
    """O-49: no waiter learns of the end later than a second after it, whatever was lost on the way."""
    assert waiters.POLL_MS_FIRST <= waiters.POLL_MS_MAX < 1_000


async def test_wait_settled_run_returns_at_once(store: Store) -> None:
    leading = await lead(store, "K-1")
    await store.transact(settled(leading, START_MS))
    record = await soon(store.wait(leading, timeout_ms=600_000))
    assert record == await store.load(leading.id)


async def test_wait_wakes_when_this_process_settles(store: Store) -> None:
    leading = await lead(store, "K-1")
    waiting = asyncio.ensure_future(store.wait(leading, timeout_ms=600_000))
    await asyncio.sleep(0)
    await store.transact(settled(leading, START_MS))
    assert await soon(waiting) == await store.load(leading.id)


async def test_wait_wakes_when_another_process_settles(house: House, store: Store) -> None:
    another = await house.enter()
    leading = await lead(store, "K-1")
    waiting = asyncio.ensure_future(another.wait(leading, timeout_ms=600_000))
    await asyncio.sleep(0)
    await store.transact(settled(leading, START_MS))
    assert await soon(waiting) == await store.load(leading.id)


@pytest.mark.parametrize("turns", [0, 1, 2, 5, 20])
async def test_wait_begun_around_the_settle_misses_nothing(house: House, store: Store, turns: int) -> None:
    """O-49: the run ends between 'it runs' and 'I listen'."""
    another = await house.enter()
    leading = await lead(store, "K-1")
    settling = asyncio.ensure_future(store.transact(settled(leading, START_MS)))
    for _ in range(turns):
        await asyncio.sleep(0)
    record = await soon(another.wait(leading, timeout_ms=600_000))
    await settling
    assert record == await store.load(leading.id)


async def test_wait_hundreds_of_one_run_all_wake(house: House, store: Store) -> None:
    another = await house.enter()
    leading = await lead(store, "K-1")
    waits = [
        asyncio.ensure_future(side.wait(leading, timeout_ms=600_000))
        for side in (store, another)
        for _ in range(150)
    ]
    await asyncio.sleep(0)
    await store.transact(settled(leading, START_MS))
    records = await soon(asyncio.gather(*waits))
    assert records == [await store.load(leading.id)] * 300


async def test_wait_ends_with_the_lease(house: House, store: Store) -> None:
    leading = await lead(store, "K-1", lease_ms=100)
    house.clock.advance(150)
    record = await soon(store.wait(leading, timeout_ms=600_000))
    assert record == leading


async def test_wait_withdrawn_claim_is_none(store: Store) -> None:
    leading = await lead(store, "K-1")
    waiting = asyncio.ensure_future(store.wait(leading, timeout_ms=600_000))
    await asyncio.sleep(0)
    await store.transact(WithdrawClaim(claim("K-1"), Owner("me")))
    assert await soon(waiting) is None


async def test_wait_another_fence_ends(store: Store) -> None:
    leading = await lead(store, "K-1")
    waiting = asyncio.ensure_future(store.wait(leading, timeout_ms=600_000))
    await asyncio.sleep(0)
    taken = replace(leading, fence=Fence(leading.fence + 1))
    await store.transact(PutRows((taken,)))
    assert await soon(waiting) == taken


async def test_wait_time_up_returns_the_run_as_it_is(store: Store) -> None:
    leading = await lead(store, "K-1")
    record = await soon(store.wait(leading, timeout_ms=60))
    assert record is not None
    assert isinstance(record, type(leading))
    assert record.state is State.IN_FLIGHT


async def test_wait_cancelled_leaves_the_others_waiting(store: Store) -> None:
    leading = await lead(store, "K-1")
    gone, stays = (asyncio.ensure_future(store.wait(leading, timeout_ms=600_000)) for _ in range(2))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    await store.transact(settled(leading, START_MS))
    assert await soon(stays) == await store.load(leading.id)
