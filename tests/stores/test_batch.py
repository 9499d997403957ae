"""Groups, time limits, callers that go away: the batcher over an engine that the test holds."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from proxy.core.model import Handle
from proxy.ports import StoreUnavailable
from proxy.stores.batch import GROUP_MAX, Batcher, Done, Job, Outcome
from tests.contract.values import ReadRow, operation
from tests.core.payhub import SCOPE

VERB = ReadRow(SCOPE, operation("K").id, Handle("order:K"))


class HeldEngine:
    """Keeps each group until the test lets it go."""

    def __init__(self) -> None:
        self.groups: list[tuple[Sequence[Job], Done]] = []

    def start(self, group: Sequence[Job], done: Done) -> None:
        self.groups.append((group, done))

    def begin(self, n: int = 0) -> list[Job]:
        """As an engine does that has its lock: claim what still has time."""
        return [job for job in self.groups[n][0] if job.begin()]

    def finish(self, n: int = 0, *, error: Exception | None = None) -> None:
        group, done = self.groups.pop(n)
        done([Outcome(job, answer=(None, None), error=error) for job in group if job.is_claimed], True)


async def turn() -> None:
    """Let the event loop's tick end."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)


@pytest.fixture
def engine() -> HeldEngine:
    return HeldEngine()


def batcher(engine: HeldEngine, *, timeout_ms: int = 5_000, lanes: int = 1) -> Batcher:
    return Batcher(engine, timeout_ms=timeout_ms, name="test", lanes=lanes)


async def test_verbs_of_one_tick_are_one_group(engine: HeldEngine) -> None:
    batch = batcher(engine)
    runs = [asyncio.ensure_future(batch.run(VERB)) for _ in range(7)]
    await turn()
    assert [len(group) for group, _ in engine.groups] == [7]
    engine.begin()
    engine.finish()
    assert len(await asyncio.gather(*runs)) == 7


async def test_verbs_that_arrive_while_a_group_runs_are_the_next_one(engine: HeldEngine) -> None:
    batch = batcher(engine)
    first = asyncio.ensure_future(batch.run(VERB))
    await turn()
    later = [asyncio.ensure_future(batch.run(VERB)) for _ in range(3)]
    await turn()
    assert len(engine.groups) == 1
    engine.begin()
    engine.finish()
    await first
    await turn()
    assert [len(group) for group, _ in engine.groups] == [3]
    engine.begin()
    engine.finish()
    await asyncio.gather(*later)


async def test_lanes_let_groups_overlap(engine: HeldEngine) -> None:
    batch = batcher(engine, lanes=2)
    first = asyncio.ensure_future(batch.run(VERB))
    await turn()
    second = asyncio.ensure_future(batch.run(VERB))
    await turn()
    assert len(engine.groups) == 2
    engine.begin(1)
    engine.finish(1)
    await second
    assert not first.done()
    engine.begin()
    engine.finish()
    await first


async def test_group_has_a_largest_size(engine: HeldEngine) -> None:
    batch = batcher(engine)
    runs = [asyncio.ensure_future(batch.run(VERB)) for _ in range(GROUP_MAX + 1)]
    await turn()
    assert len(engine.groups[0][0]) == GROUP_MAX
    for _ in range(2):
        engine.begin()
        engine.finish()
    await asyncio.gather(*runs)


async def test_verb_not_begun_in_time_never_happened(engine: HeldEngine) -> None:
    batch = batcher(engine, timeout_ms=20)
    run = asyncio.ensure_future(batch.run(VERB))
    with pytest.raises(StoreUnavailable, match="nothing was written") as raised:
        await run
    assert not raised.value.may_have_happened
    assert engine.begin() == []
    engine.finish()


async def test_verb_begun_and_not_ended_in_time_may_have_happened(engine: HeldEngine) -> None:
    batch = batcher(engine, timeout_ms=500)
    run = asyncio.ensure_future(batch.run(VERB))
    await turn()
    engine.begin()
    with pytest.raises(StoreUnavailable, match="may be durable") as raised:
        await run
    assert raised.value.may_have_happened
    engine.finish()


async def test_verb_waiting_behind_a_stuck_group_is_dropped_unapplied(engine: HeldEngine) -> None:
    batch = batcher(engine, timeout_ms=500)
    stuck = asyncio.ensure_future(batch.run(VERB))
    await turn()
    engine.begin()
    behind = asyncio.ensure_future(batch.run(VERB))
    ends = await asyncio.gather(stuck, behind, return_exceptions=True)
    assert [getattr(end, "may_have_happened", None) for end in ends] == [True, False]
    engine.finish()
    await turn()
    assert engine.groups == []
    fresh = asyncio.ensure_future(batch.run(VERB))
    await turn()
    assert len(engine.begin()) == 1
    engine.finish()
    await fresh


async def test_error_of_one_outcome_is_its_own(engine: HeldEngine) -> None:
    batch = batcher(engine)
    run = asyncio.ensure_future(batch.run(VERB))
    await turn()
    engine.begin()
    engine.finish(error=ArithmeticError("bug"))
    with pytest.raises(ArithmeticError):
        await run


async def test_close_waits_for_what_is_on_its_way(engine: HeldEngine) -> None:
    batch = batcher(engine)
    run = asyncio.ensure_future(batch.run(VERB))
    await turn()
    closing = asyncio.ensure_future(batch.close())
    await turn()
    assert not closing.done()
    engine.begin()
    engine.finish()
    await closing
    await run
    with pytest.raises(StoreUnavailable, match="closed"):
        await batch.run(VERB)
