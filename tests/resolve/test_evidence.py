"""What lookups, events and sweeps do to one another: order, staleness, one process, a polite rate (U2-U4, U8)."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from proxy.clock import SystemClock
from proxy.core.evidence import ApplyEvidence
from proxy.core.http import WireResult
from proxy.core.messages import AttemptNote, BecameKnown, Reserved
from proxy.core.model import Baseline, Handle, Operation, Outcome, Seen, State, replace
from proxy.core.settle import SettleRun
from tests.contract.values import START_MS, HandClock, operation, reserve
from tests.core.payhub import SCOPE
from tests.resolve.stage import EMPTY, HOUR, MINUTE, SECOND, Fleet, due, listed, payment, says

DAY = 24 * HOUR


class Running(SystemClock):
    """The stage's wall and boot clocks, and a monotonic one that runs."""

    def __init__(self, hand: HandClock) -> None:
        super().__init__()
        self._hand = hand

    def wall_ms(self) -> int:
        return self._hand.wall

    def boot_ms(self) -> int:
        return self._hand.boot

    def boot_id(self) -> str:
        return self._hand.id


PAYMENT = Handle("payment:pay_1")


def shown(status: str, version: int, *, attempt_count: int | None = None, source: str = "event") -> Seen:
    return Seen(
        status=status,
        is_final=status in ("succeeded", "failed", "canceled", "expired"),
        is_failure=status == "failed",
        source=source,
        seen_ms=START_MS,
        resource_id="pay_1",
        version=version,
        attempt_count=attempt_count,
    )


def refund(name: str, fleet: Fleet) -> Operation:
    """One that the platform accepted: not polled, swept."""
    number = Handle(f"refund:{name}")
    return replace(
        operation(name, state=State.PENDING),
        route="create_refund",
        path="/v1/refunds",
        subject=number,
        handles=(number, Handle(f"refund:ref_{name}")),
        kind="refund",
        resource_id=f"ref_{name}",
        accepted=True,
        polled=False,
        updated_ms=fleet.clock.wall,
    )


def confirm(fleet: Fleet, baseline: Baseline) -> Operation:
    """In doubt, on a payment of which this much was known when it was claimed."""
    return replace(
        due(operation("C"), fleet.clock),
        route="confirm_payment",
        path="/v1/payments/pay_1/confirm",
        subject=PAYMENT,
        handles=(PAYMENT,),
        kind="payment",
        resource_id="pay_1",
        acts_on_existing=True,
        baseline=baseline,
    )


# --- the daily sweep (U2) -------------------------------------------------------------------------------------


async def test_sweep_is_one_list_of_one_process_and_settles_what_left_it() -> None:
    def answer(target: str) -> WireResult:
        if target == "/v1/refunds?status=processing":
            return listed({"id": "ref_OPEN", "status": "processing", "merchant_refund_no": "OPEN"})
        return says(
            200, {"id": "ref_DONE", "status": "succeeded", "merchant_refund_no": "DONE", "version": 4}
        )

    fleet = Fleet(answer, hosts=3)
    for name in ("OPEN", "DONE"):
        await fleet.put(refund(name, fleet))

    found = [await resolver.sweep() for resolver in fleet.resolvers]

    assert found == [1, 0, 0]
    assert [target for _, target in fleet.platform.at] == [
        "/v1/refunds?status=processing",
        "/v1/refunds/ref_DONE",
    ]
    assert (await fleet.now(refund("DONE", fleet))).state is State.EXECUTED
    assert (await fleet.now(refund("OPEN", fleet))).state is State.PENDING
    fleet.clock.advance(DAY)
    assert [await resolver.sweep() for resolver in fleet.resolvers] == [0, 0, 0]
    assert len(fleet.platform.at) == 3


@pytest.mark.parametrize("answer", [says(500, {}), says(200, {"items": []})], ids=["500", "no list"])
async def test_sweep_without_its_list_proves_nothing(answer: WireResult) -> None:
    fleet = Fleet(lambda _target: answer)
    await fleet.put(refund("R", fleet))

    assert await fleet.resolvers[0].sweep() == 0
    assert (await fleet.now(refund("R", fleet))).state is State.PENDING


async def test_accepted_refund_is_never_polled_nor_given_to_a_person() -> None:
    fleet = Fleet()
    await fleet.put(refund("R", fleet))

    await fleet.run(for_ms=3 * DAY, step_ms=HOUR)

    assert fleet.platform.at == []
    assert fleet.people == []
    assert (await fleet.now(refund("R", fleet))).state is State.PENDING


# --- versions (U4): whichever way it came ----------------------------------------------------------------


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
async def test_any_order_of_lookups_and_events_ends_alike(order: tuple[int, ...]) -> None:
    """Version 1 processing, 2 failed on one card, 3 succeeded: each once by a lookup and twice by an event."""
    steps = [("processing", 1), ("failed", 2), ("succeeded", 3)]
    answers: list[WireResult] = [EMPTY]
    fleet = Fleet(lambda _target: answers[-1])
    one = replace(due(operation("O"), fleet.clock), kind="payment", resource_id="pay_1")
    await fleet.put(replace(one, handles=(*one.handles, PAYMENT)))

    for at in order:
        status, version = steps[at]
        for _ in range(2):
            await fleet.store.transact(ApplyEvidence(SCOPE, (PAYMENT,), shown(status, version)))
        answers.append(says(200, {**payment("O", status, version=version), "id": "pay_1"}))
        fleet.clock.advance(MINUTE)
        await fleet.resolvers[0].look_up(await fleet.now(one), forced=True)

    now = await fleet.now(one)
    assert (now.state, now.status, now.version) == (State.EXECUTED, "succeeded", 3)


# --- the resource is not the operation (U3) -------------------------------------------------------------------


async def test_failure_known_before_is_three_misses_and_the_next_attempts_settles() -> None:
    answers = [says(200, {**payment("1", "failed", version=2, attempt_count=1)})]
    fleet = Fleet(lambda _target: answers[-1])
    one = confirm(fleet, Baseline(version=2, attempt_count=1))
    await fleet.put(one)

    await fleet.run(for_ms=3 * MINUTE)
    assert (await fleet.now(one)).state is State.ABSENT

    answers.append(says(200, {**payment("1", "failed", version=3, attempt_count=2)}))
    await fleet.run(for_ms=5 * MINUTE)
    now = await fleet.now(one)
    assert (now.state, now.status) == (State.EXECUTED, "failed")


async def test_failure_with_nothing_known_before_is_no_evidence() -> None:
    fleet = Fleet(lambda _target: says(200, payment("1", "failed", version=2, attempt_count=1)))
    one = confirm(fleet, Baseline())
    await fleet.put(one)

    await fleet.run(for_ms=MINUTE)

    assert (await fleet.now(one)).state is State.UNKNOWN
    assert not any(isinstance(fact, BecameKnown) for fact in fleet.facts)


# --- staleness (U8) -------------------------------------------------------------------------------------------


async def test_empty_answer_from_before_a_new_attempt_counts_for_nothing() -> None:
    """A lookup hangs; meanwhile the caller repeats its key, and that attempt ends in doubt, too."""
    fleet = Fleet()
    one = due(operation("O"), fleet.clock)
    await fleet.put(one)
    repeated: list[State] = []

    async def asked(*_: object, **__: object) -> WireResult:
        if not repeated and fleet.clock.wall > START_MS + MINUTE:
            taken = await fleet.store.transact(reserve("O", "another host"))
            assert isinstance(taken, Reserved)
            repeated.append(taken.operation.state)
            doubt = AttemptNote(Outcome.IN_DOUBT, None, None, "timeout", fleet.clock.wall)
            await fleet.store.transact(SettleRun(taken.operation, State.UNKNOWN, doubt, None, None))
        return EMPTY

    fleet.platform.send = asked  # type: ignore[method-assign]  # the caller comes while the platform is asked
    await fleet.run(for_ms=2 * MINUTE + 5 * SECOND)

    now = await fleet.now(one)
    assert repeated == [State.IN_FLIGHT]
    assert now.fence > one.fence
    assert now.lookups.misses == 0


# --- the rate (U8) --------------------------------------------------------------------------------------------


async def test_rate_holds_for_each_process_whatever_is_due() -> None:
    """Real time, briefly: forty due operations, fifty lookups a second."""
    fleet = Fleet(lambda _target: EMPTY)
    clock = SystemClock()
    times: list[int] = []

    async def asked(*_: object, **__: object) -> WireResult:
        times.append(clock.monotonic_ms())
        return EMPTY

    fleet.platform.send = asked  # type: ignore[method-assign]  # asked in real time
    for n in range(40):
        await fleet.put(due(operation(f"N{n}"), fleet.clock))
    fleet.clock.advance(11 * SECOND)
    resolver = fleet.resolvers[0]
    resolver.rate_count = 50
    resolver.clock = Running(fleet.clock)

    await asyncio.wait_for(resolver.step(), 5)

    assert len(times) == 40
    assert times[-1] - times[0] >= 39 * 20 - 20
