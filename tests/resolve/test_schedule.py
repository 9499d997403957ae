"""When the platform is asked: the contract's schedule, politely, by one of the fleet (U2, U3, U8)."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from proxy import resolver as resolver_module
from proxy.core.http import MaybeSent, MaybeSentReason, Phase, WireRequest, WireResult
from proxy.core.messages import BecameKnown, BecameUnknown, LookupMade
from proxy.core.model import Handle, Knowledge, Owner, State, replace
from proxy.core.resolve import TakeLookup
from proxy.ports import Query
from tests.contract.values import LEASE_MS, START_MS, HandClock, operation
from tests.resolve.stage import EMPTY, HOUR, MINUTE, POLICY, SECOND, Fleet, due, listed, payment, says

DAY = 24 * HOUR
POINTS = [10 * SECOND, 30 * SECOND, 2 * MINUTE, 5 * MINUTE, 15 * MINUTE, HOUR]
LATER = [HOUR + n * 4 * HOUR for n in range(1, 6)]


def processing(_target: str) -> WireResult:
    return listed(payment("O", "processing", version=1))


async def test_pending_payment_is_asked_for_on_the_contracts_schedule_and_then_daily() -> None:
    fleet = Fleet(processing)
    one = due(operation("O", state=State.UNKNOWN), fleet.clock)
    await fleet.put(one)

    await fleet.run(for_ms=HOUR + SECOND)
    await fleet.run(for_ms=3 * DAY, step_ms=MINUTE)

    asked = fleet.asked_after(START_MS)
    assert asked[: len(POINTS)] == POINTS
    assert len(asked) >= len(POINTS) + len(LATER)
    for got, wanted in zip(asked[len(POINTS) :], LATER, strict=False):
        assert wanted <= got <= wanted + MINUTE
    days = [at for at in asked if at > DAY]
    assert [round((b - a) / DAY, 2) for a, b in itertools.pairwise(days)] == [1.0] * (len(days) - 1)
    assert (await fleet.now(one)).knowledge is Knowledge.PENDING


async def test_no_object_is_asked_for_twice_within_ten_seconds_whatever_asks() -> None:
    fleet = Fleet(lambda _target: EMPTY, hosts=2)
    one = due(operation("O"), fleet.clock)
    await fleet.put(one)

    for _ in range(300):
        fleet.clock.advance(SECOND)
        for resolver in fleet.resolvers:
            resolver.hint_at(one)
            await resolver.step()

    asked = fleet.asked_after(START_MS)
    gaps = [b - a for a, b in itertools.pairwise(asked)]
    assert len(asked) > 20
    assert min(gaps) >= 10 * SECOND


async def test_points_already_past_are_made_up_by_one_lookup() -> None:
    fleet = Fleet(lambda _target: says(503, {"error": {"code": "temporarily_unavailable"}}))
    one = operation("O")
    await fleet.put(one)
    fleet.clock.advance(116 * SECOND)
    await fleet.put(due(one, fleet.clock))

    await fleet.run(for_ms=6 * MINUTE)

    # The point at 2 min would be 3 s after the one made up: it is left out.
    assert fleet.asked_after(START_MS) == [117 * SECOND, 5 * MINUTE]


async def test_create_and_confirm_of_one_payment_share_one_lookup() -> None:
    fleet = Fleet(lambda _target: says(200, payment("1", "succeeded", version=2)))
    handle = Handle("payment:pay_1")
    for name in ("create", "confirm"):
        one = due(operation(name), fleet.clock)
        await fleet.put(replace(one, handles=(handle,), resource_id="pay_1", kind="payment"))

    await fleet.run(for_ms=MINUTE)

    assert [target for _, target in fleet.platform.at] == ["/v1/payments/pay_1"]
    known = [fact for fact in fleet.facts if isinstance(fact, BecameKnown)]
    assert len(known) == 2


async def test_one_process_of_the_fleet_asks() -> None:
    fleet = Fleet(processing, hosts=3)
    await fleet.put(due(operation("O"), fleet.clock))

    await fleet.run(for_ms=HOUR + SECOND)

    assert fleet.asked_after(START_MS) == POINTS


async def test_a_restart_changes_nothing() -> None:
    fleet = Fleet(processing)
    await fleet.put(due(operation("O"), fleet.clock))

    for _ in range(HOUR // MINUTE):
        await fleet.run(for_ms=MINUTE)
        fleet.resolvers = [fleet.resolver("another")]

    assert fleet.asked_after(START_MS) == POINTS


async def test_a_clock_that_jumps_forward_makes_one_lookup_up() -> None:
    fleet = Fleet(processing)
    await fleet.put(due(operation("O"), fleet.clock))
    await fleet.run(for_ms=31 * SECOND)

    fleet.clock.wall += 2 * HOUR
    await fleet.run(for_ms=MINUTE)

    assert len(fleet.platform.at) == 3


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_clock_that_steps_back_does_not_stop_the_lookups(restarts: bool) -> None:
    fleet = Fleet(processing)
    one = due(operation("O"), fleet.clock)
    await fleet.put(one)
    await fleet.run(for_ms=31 * SECOND)
    before = len(fleet.platform.at)

    fleet.clock.wall -= 2 * HOUR
    if restarts:
        fleet.resolvers = [fleet.resolver("another")]
    await fleet.run(for_ms=10 * MINUTE)

    assert len(fleet.platform.at) > before


async def test_absent_is_believed_after_three_misses_past_the_lag_and_stays_unknown() -> None:
    fleet = Fleet(lambda _target: EMPTY)
    one = due(operation("O"), fleet.clock)
    await fleet.put(one)

    await fleet.run(for_ms=2 * MINUTE + 15 * SECOND)
    assert (await fleet.now(one)).state is State.UNKNOWN
    await fleet.run(for_ms=10 * SECOND)

    now = await fleet.now(one)
    assert (now.state, now.knowledge) == (State.ABSENT, Knowledge.UNKNOWN)
    assert fleet.asked_after(START_MS) == [
        *(10 * SECOND, 30 * SECOND),  # within the lag of 60 s: no evidence
        *(2 * MINUTE, 2 * MINUTE + 10 * SECOND, 2 * MINUTE + 20 * SECOND),
    ]


@pytest.mark.parametrize(
    "answer",
    [
        says(401, {"error": {"code": "unauthorized"}}),
        says(403, {"error": {"code": "forbidden"}}),
        says(404, {"error": {"code": "not_found"}}),
        says(429, {"error": {"code": "rate_limited"}}),
        says(500, {"error": {"code": "internal_error"}}),
        says(200, {"data": [payment("ANOTHER")]}),
        says(200, {"data": [payment("O"), payment("O")]}),
        says(200, {"items": []}),
        says(200, []),
        MaybeSent(MaybeSentReason.TIMEOUT, Phase.WAITING),
    ],
    ids=["401", "403", "404", "429", "500", "another", "two", "no list", "bare list", "time-out"],
)
async def test_what_is_no_documented_answer_is_no_evidence(answer: WireResult) -> None:
    fleet = Fleet(lambda _target: answer)
    one = due(operation("O"), fleet.clock)
    await fleet.put(one)

    await fleet.run(for_ms=20 * MINUTE)

    assert (await fleet.now(one)).state is State.UNKNOWN
    results = {fact.result for fact in fleet.facts if isinstance(fact, LookupMade)}
    assert results == {"failed"}


async def test_from_a_day_on_a_person_is_asked_and_nothing_is_called_failed() -> None:
    fleet = Fleet(lambda _target: says(500, {"error": {"code": "internal_error"}}))
    one = due(operation("O"), fleet.clock)
    await fleet.put(one)

    await fleet.run(for_ms=DAY + 5 * HOUR, step_ms=MINUTE)

    now = await fleet.now(one)
    assert (now.state, now.knowledge) == (State.MANUAL_REVIEW, Knowledge.UNKNOWN)
    assert [alerted.id for alerted in fleet.people] == [one.id]


async def test_the_platforms_answer_settles_it_after_a_day_too() -> None:
    answers = [says(500, {"error": {"code": "internal_error"}})]
    fleet = Fleet(lambda _target: answers[-1])
    one = due(operation("O"), fleet.clock)
    await fleet.put(one)
    await fleet.run(for_ms=DAY + 5 * HOUR, step_ms=MINUTE)

    answers.append(listed(payment("O", "succeeded", version=7)))
    await fleet.run(for_ms=DAY, step_ms=MINUTE)

    now = await fleet.now(one)
    assert (now.state, now.status, now.settled_by) == (State.EXECUTED, "succeeded", "lookup")


async def test_a_scope_without_credential_is_not_asked_for_and_starves_nobody() -> None:
    fleet = Fleet(processing)
    fleet.credential = None
    for number in range(120):
        await fleet.put(due(operation(f"N{number}"), fleet.clock))

    fleet.clock.advance(11 * MINUTE)
    for _ in range(3):
        await fleet.resolvers[0].step()

    assert fleet.platform.at == []
    assert await fleet.store.count_due(before_ms=fleet.clock.wall) == 0


async def test_a_host_without_the_credential_leaves_the_lookup_to_one_that_has_it() -> None:
    """U8: in a fleet with a merchant for each sidecar, the others put its lookups off by an hour."""
    fleet = Fleet(processing, hosts=2)
    fleet.resolvers[0].authorization = lambda _scope: None
    one = due(operation("O"), fleet.clock)
    await fleet.put(one)

    await fleet.run(for_ms=10 * SECOND)

    assert len(fleet.platform.at) == 1


async def test_what_no_host_has_the_credential_for_hides_nothing_meanwhile() -> None:
    """U8: pages of the oldest and the newest alone would be full of it for as long as it is left to others."""
    fleet = Fleet(processing)
    fleet.resolvers[0].authorization = lambda scope: None if scope.merchant == "other" else b"Bearer x"
    for number in range(241):
        one = due(operation(f"N{number:03}"), fleet.clock)
        await fleet.put(one if number == 120 else replace(one, scope=replace(one.scope, merchant="other")))
        fleet.clock.advance(1)

    await fleet.run(for_ms=30 * SECOND)

    assert {target for _at, target in fleet.platform.at} == {"/v1/payments?merchant_order_no=N120"}


async def test_a_dead_leaders_operation_becomes_unknown_and_is_looked_up() -> None:
    fleet = Fleet(lambda _target: listed(payment("O", "succeeded", version=1)))
    one = replace(operation("O", state=State.IN_FLIGHT), lease_epoch="boot-0", tracked=True)
    await fleet.put(one)

    await fleet.run(for_ms=30 * SECOND)

    assert any(isinstance(fact, BecameUnknown) for fact in fleet.facts)
    assert (await fleet.now(one)).state is State.EXECUTED


async def test_the_backlog_is_told_with_its_end() -> None:
    fleet = Fleet(processing)
    for number in range(200):
        await fleet.put(due(operation(f"N{number}"), fleet.clock))
    fleet.clock.advance(11 * SECOND)

    await fleet.resolvers[0].step()

    assert fleet.resolvers[0].backlog == 200
    assert fleet.resolvers[0].backlog_ends_in_ms == 200


async def test_the_backlog_is_known_before_the_first_pass() -> None:
    """M1: the first scrape of a start with a thousand unknowns said 0."""
    fleet = Fleet(processing)
    for number in range(200):
        await fleet.put(due(operation(f"N{number}"), fleet.clock))
    fleet.clock.advance(11 * SECOND)

    await fleet.resolvers[0].count_backlog()

    assert fleet.resolvers[0].backlog == 200
    assert fleet.platform.at == []


async def test_an_answer_that_does_not_come_holds_no_other_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """U2: the next page waited for it, for up to ten seconds; nor is its own object asked for meanwhile."""
    monkeypatch.setattr(resolver_module, "PASS_MS", 20)
    fleet = Fleet(processing)
    go = asyncio.Event()
    asked: list[str] = []

    async def send(request: WireRequest, **_options: object) -> WireResult:
        target = request.target.decode()
        asked.append(target)
        if target.endswith("N7"):
            await go.wait()
        return processing(target)

    fleet.platform.send = send  # type: ignore[method-assign]  # one answer is held back
    for number in range(70):
        await fleet.put(due(operation(f"N{number}"), fleet.clock))
    fleet.clock.advance(11 * SECOND)
    host = fleet.resolvers[0]
    while await host.step():
        pass
    await host.step()
    assert len(asked) == len(set(asked)) == 70

    go.set()
    await host.step()
    assert host._asking == set()
    assert (await fleet.now(operation("N7"))).lookups.done == 1


async def test_what_a_lookup_met_with_is_told_by_the_pass_that_finds_it_ended() -> None:
    fleet = Fleet(processing)

    async def send(*_: object, **__: object) -> WireResult:
        raise LookupError("a bug")

    fleet.platform.send = send  # type: ignore[method-assign]  # a bug of ours
    await fleet.put(due(operation("O"), fleet.clock))
    fleet.clock.advance(11 * SECOND)

    with pytest.raises(LookupError, match="a bug"):
        await fleet.resolvers[0].step()


async def test_the_newest_are_not_starved_by_a_backlog() -> None:
    fleet = Fleet(processing)
    for number in range(400):
        await fleet.put(due(operation(f"OLD{number}", at_ms=START_MS - HOUR), fleet.clock))
    fleet.clock.advance(11 * SECOND)
    await fleet.put(due(operation("NEW", at_ms=fleet.clock.wall - 10 * SECOND), fleet.clock))

    for _ in range(2):
        await fleet.resolvers[0].step()

    assert any("NEW" in target for _, target in fleet.platform.at)


async def test_a_host_whose_clock_is_ahead_of_the_stores_asks_nothing_early_and_does_not_spin() -> None:
    fleet = Fleet(processing)
    for number in range(120):
        await fleet.put(due(operation(f"N{number}"), fleet.clock))
    fleet.clock.advance(11 * SECOND)
    host = fleet.resolvers[0]
    while await host.step():
        pass
    asked = len(fleet.platform.at)
    ahead = HandClock()
    ahead.advance(2 * HOUR)
    host.clock = ahead

    assert await host.step() is False
    assert len(fleet.platform.at) == asked


async def test_a_page_of_what_another_host_looks_up_is_no_progress() -> None:
    fleet = Fleet(processing, hosts=2)
    one, other = fleet.resolvers
    for number in range(60):
        await fleet.put(due(operation(f"N{number}"), fleet.clock))
    fleet.clock.advance(11 * SECOND)
    for operation_ in (await fleet.store.find(Query(limit=100))).operations:
        await fleet.store.transact(
            TakeLookup(operation_.scope, operation_.id, Owner("elsewhere"), POLICY, LEASE_MS)
        )

    assert await one.step() is False
    assert await other.step() is False
    assert fleet.platform.at == []
