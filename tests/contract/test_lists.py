"""Lists, gauges and forgetting: over every store."""

from __future__ import annotations

from typing import Protocol, cast

import pytest

from proxy.core.model import Guard, Handle, Lookups, Now, Operation, Scope, State, Subject, replace
from proxy.ports import Holdings, Query, Store
from proxy.stores.paging import CursorError
from proxy.stores.purging import SUBJECT_EXTRA_MS, ClockTrust, Reading
from tests.contract.conftest import House
from tests.contract.values import START_MS, PutRows, ReadRow, lead, operation
from tests.core.payhub import SCOPE

SECOND_MS = 1_000
HOUR_MS = 3_600 * SECOND_MS
DAY_MS = 24 * HOUR_MS
OTHER = Scope("another", "live")


async def put(store: Store, *rows: Operation | Subject) -> None:
    """Rows of several scopes, each in a step of its own scope."""
    for scope in dict.fromkeys(row.scope for row in rows):
        await store.transact(PutRows(tuple(row for row in rows if row.scope == scope)))


async def pages(store: Store, query: Query) -> list[Operation]:
    """Everything the query lists, page after page."""
    found: list[Operation] = []
    while True:
        page = await store.find(query)
        assert len(page.operations) <= query.limit
        found.extend(page.operations)
        if page.cursor is None:
            return found
        query = replace(query, cursor=page.cursor)


@pytest.mark.parametrize("oldest_first", [False, True])
@pytest.mark.parametrize("limit", [1, 3, 50])
async def test_find_all_pages_in_order_without_gap_or_double(
    store: Store, limit: int, oldest_first: bool
) -> None:
    rows = [
        operation(f"K-{n}", scope=SCOPE if n % 3 else OTHER, at_ms=START_MS + n // 4)  # four share an instant
        for n in range(14)
    ]
    await put(store, *rows)
    found = await pages(store, Query(limit=limit, oldest_first=oldest_first))
    expected = sorted(rows, key=lambda row: (row.created_ms, row.id), reverse=not oldest_first)
    assert found == expected


async def test_find_by_each_member(store: Store) -> None:
    one = replace(operation("K-1", state=State.EXECUTED), route="create_refund")
    two = operation("K-2", state=State.MANUAL_REVIEW, at_ms=START_MS + 10)
    three = operation("K-3", state=State.PENDING, at_ms=START_MS + 20)
    four = replace(operation("K-4", state=State.MANUAL_REVIEW, at_ms=START_MS + 30), accepted=True)
    five = operation("K-5", state=State.NOT_EXECUTED, at_ms=START_MS + 40)
    await put(store, one, two, three, four, five)
    assert await pages(store, Query(knowledge="executed")) == [one]
    assert await pages(store, Query(knowledge="unknown")) == [two]
    assert await pages(store, Query(knowledge="pending")) == [four, three]
    assert await pages(store, Query(knowledge="not_executed")) == [five]
    assert await pages(store, Query(route="create_refund")) == [one]
    assert await pages(store, Query(key="K-3")) == [three]
    assert await pages(store, Query(key="K-3", knowledge="unknown")) == []
    assert await pages(store, Query(since_ms=START_MS + 10, until_ms=START_MS + 30)) == [three, two]


async def test_find_by_key_of_several_scopes(store: Store) -> None:
    here, there = operation("K-1"), operation("K-1", scope=OTHER, at_ms=START_MS + 1)
    await put(store, here, there, operation("K-10"))
    assert await pages(store, Query(key="K-1")) == [there, here]


async def test_find_by_subject_lists_what_the_subject_knows(store: Store) -> None:
    one, two = operation("K-1"), operation("K-2", at_ms=START_MS + 1)
    payment = Handle("payment:pay_1")
    thing = Subject(scope=SCOPE, handle=payment, updated_ms=1, operations=(one.id, two.id))
    await put(store, one, two, operation("K-3"), thing)
    assert await pages(store, Query(subject=payment)) == [two, one]
    assert await pages(store, Query(subject=payment, limit=1)) == [two, one]
    assert await pages(store, Query(subject="payment:pay_2")) == []


@pytest.mark.parametrize("limit", [1, 50])
async def test_find_due_in_the_order_of_their_instants(store: Store, limit: int) -> None:
    due = [
        replace(operation(f"K-{n}", at_ms=START_MS - n), lookups=Lookups(next_ms=START_MS + n))
        for n in range(4)
    ]
    settled_one = replace(operation("K-9", state=State.EXECUTED), lookups=Lookups(next_ms=START_MS))
    await put(store, *due, settled_one, operation("K-8"))
    found = await pages(store, Query(due_before_ms=START_MS + 2, oldest_first=True, limit=limit))
    assert found == due[:3]


async def test_find_lapsed_is_in_flight_with_its_lease_over(house: House, store: Store) -> None:
    over = await lead(store, "K-1", lease_ms=60)
    earlier_boot = replace(operation("K-3", state=State.IN_FLIGHT), lease_until_ms=2**60)
    await put(store, earlier_boot)
    house.clock.advance(100)
    alive = await lead(store, "K-2")
    await store.wait(over, timeout_ms=3_000)
    found = await pages(store, Query(lapsed=True, oldest_first=True))
    assert sorted(one.id for one in found) == sorted([over.id, earlier_boot.id])
    assert alive.id not in {one.id for one in found}


async def test_find_lapsed_and_due(store: Store) -> None:
    base = operation("K-1", state=State.IN_FLIGHT)
    due = replace(base, lookups=Lookups(next_ms=START_MS))
    later = replace(operation("K-2", state=State.IN_FLIGHT), lookups=Lookups(next_ms=START_MS + 9))
    await put(store, due, later, operation("K-3", state=State.IN_FLIGHT))
    assert await pages(store, Query(lapsed=True, due_before_ms=START_MS)) == [due]


async def test_find_leaves_indexes_true_when_a_row_changes(store: Store) -> None:
    one = replace(operation("K-1"), lookups=Lookups(next_ms=START_MS))
    await put(store, one)
    done = replace(one, state=State.EXECUTED, lookups=Lookups())
    await put(store, done)
    assert await pages(store, Query(knowledge="unknown")) == []
    assert await pages(store, Query(due_before_ms=START_MS)) == []
    assert await pages(store, Query(knowledge="executed")) == [done]
    assert await store.holdings() == ()


async def test_find_foreign_cursor_is_refused(store: Store) -> None:
    for cursor in ("%%%", "bm90aGluZw==", "x"):
        with pytest.raises(CursorError):
            await store.find(Query(cursor=cursor))


async def test_holdings_count_what_is_open(house: House, store: Store) -> None:
    unknown = [
        replace(operation(f"K-{n}"), amount=10 * n, unknown_since_ms=START_MS - n) for n in range(1, 4)
    ]
    dollars = replace(operation("K-4"), currency="USD", amount=7)
    pending = replace(operation("K-5", state=State.PENDING), amount=5, route="create_refund")
    session = replace(operation("K-6"), tracked=False, route="create_checkout_session", amount=99)
    at_work = await lead(store, "K-7")
    retried = replace(await lead(store, "K-8"), doubt=True, amount=1, currency="EUR")
    done = operation("K-9", state=State.EXECUTED)
    await put(store, *unknown, dollars, pending, session, retried, done)
    held = {(one.route, one.currency): one for one in await store.holdings()}
    assert at_work.state is State.IN_FLIGHT
    assert len(held) == 5
    assert held["create_payment", "CNY"] == Holdings(
        route="create_payment",
        knowledge="unknown",
        currency="CNY",
        count=3,
        amount=60,
        oldest_ms=START_MS - 3,
    )
    assert held["create_payment", "USD"].amount == 7
    assert held["create_payment", "EUR"].count == 1
    assert held["create_refund", "CNY"].knowledge == "pending"
    assert held["create_checkout_session", "CNY"].amount == 0


class Forgetting(Protocol):
    """What the stores have besides the port, for these tests."""

    trust: ClockTrust

    def now(self) -> Now: ...


def hour_has_passed(house: House, store: Store) -> int:
    """Let the store find that the clocks agreed an hour ago, without living through it; its wall clock."""
    forgetting = cast(Forgetting, store)
    wall_ms = forgetting.now().wall_ms
    forgetting.trust.first = Reading(house.clock.id, house.clock.boot - HOUR_MS, wall_ms - HOUR_MS)
    return wall_ms


async def test_purge_drops_old_resolved_records_and_unlists_them(house: House, store: Store) -> None:
    wall = hour_has_passed(house, store)
    old_ms = wall - 8 * DAY_MS - SECOND_MS  # a server's time is an estimate, and may be corrected meanwhile
    old = replace(operation("K-1", state=State.EXECUTED), updated_ms=old_ms)
    thing = Subject(
        scope=SCOPE,
        handle=Handle("order:K-1"),
        updated_ms=old_ms,
        operations=(old.id,),
        guards={"create_payment": Guard(holder=old.id, seq=2)},
    )
    young = replace(operation("K-2", state=State.EXECUTED), updated_ms=wall - 7 * DAY_MS)
    unresolved = replace(operation("K-3"), updated_ms=wall - 99 * DAY_MS)
    pending = replace(operation("K-4", state=State.PENDING), updated_ms=wall - 99 * DAY_MS)
    session = replace(operation("K-5"), updated_ms=wall - 9 * DAY_MS, tracked=False)
    other_route = replace(operation("K-6", state=State.EXECUTED), route="odd", updated_ms=wall - 99 * DAY_MS)
    await put(store, old, thing, young, unresolved, pending, session, other_route)
    assert await store.purge(record_ms={"create_payment": 8 * DAY_MS}) == 2
    left = await pages(store, Query())
    assert {row.key for row in left} == {"K-2", "K-3", "K-4", "K-6"}
    gone, kept = await store.transact(ReadRow(SCOPE, old.id, thing.handle))
    assert gone is None
    assert kept is not None
    assert kept.operations == ()
    assert kept.guards["create_payment"] == Guard(holder=None, seq=2)


async def test_purge_forgets_a_subject_thirty_days_after_its_records(house: House, store: Store) -> None:
    wall = hour_has_passed(house, store)
    over = wall - 8 * DAY_MS - SUBJECT_EXTRA_MS
    old = Subject(scope=SCOPE, handle=Handle("order:1"), updated_ms=over - HOUR_MS)
    young = Subject(scope=SCOPE, handle=Handle("order:2"), updated_ms=over + HOUR_MS)
    busy = Subject(
        scope=SCOPE, handle=Handle("order:3"), updated_ms=over - HOUR_MS, operations=(operation("K-1").id,)
    )
    await put(store, old, young, busy)
    await store.purge(record_ms={"create_payment": 8 * DAY_MS})
    rows = [
        (await store.transact(ReadRow(SCOPE, operation("K-1").id, row.handle)))[1]
        for row in (old, young, busy)
    ]
    assert rows == [None, young, busy]


async def test_purge_of_many_is_done_in_slices(house: House, store: Store) -> None:
    wall = hour_has_passed(house, store)
    rows = [
        replace(operation(f"K-{n}", state=State.EXECUTED), updated_ms=wall - 9 * DAY_MS - n // 50)
        for n in range(250)
    ]
    await put(store, *rows)
    assert await store.purge(record_ms={"create_payment": 8 * DAY_MS}) == 250
    assert await pages(store, Query()) == []


async def test_purge_before_the_clocks_agreed_for_an_hour_drops_nothing(house: House, store: Store) -> None:
    """O-65: a wall clock that was just set decides nothing."""
    old = replace(operation("K-1", state=State.EXECUTED), updated_ms=1)
    await put(store, old)
    assert await store.purge(record_ms={"create_payment": 8 * DAY_MS}) == 0
    house.clock.wall += 2 * HOUR_MS
    house.clock.boot += 60_000
    assert await store.purge(record_ms={"create_payment": 8 * DAY_MS}) == 0
    assert await store.load(old.id) == old
