"""The simulator's smoke: seeds that hold, seeds that once failed, and what the stories cover."""

from __future__ import annotations

import pytest

from tests.sim.__main__ import kept_seeds
from tests.sim.coverage import Coverage
from tests.sim.minimise import minimised
from tests.sim.mutants import MUTANTS, broken
from tests.sim.story import faults_of, play

BATCH = 100
BATCHES = 10
COVERED_MIN = 50
"""Of the table's transitions, in a smoke this small; `make soak` asks for every one."""


@pytest.mark.parametrize("first", range(0, BATCH * BATCHES, BATCH))
def test_seeds_hold_every_promise(first: int) -> None:
    for seed in range(first, first + BATCH):
        play(seed)


@pytest.mark.parametrize(("seed", "story"), kept_seeds())
def test_seed_that_once_failed_holds(seed: int, story: str) -> None:
    assert story
    play(seed)


def test_seed_is_the_same_story_each_time() -> None:
    first: list[str] = []
    again: list[str] = []
    play(7, told=first)
    play(7, told=again)
    assert first == again
    assert len(first) > 20


def test_stories_take_most_of_the_state_table() -> None:
    coverage = Coverage()
    for seed in range(1_000, 1_600):
        coverage.add(play(seed))
    assert len(coverage.taken) >= COVERED_MIN, "\n".join(coverage.report())
    assert coverage.effects > coverage.seeds
    assert {"201 executed", "504 unknown", "409 unknown", "503 unknown"} <= set(coverage.replies)


def test_failing_story_is_made_smaller_and_still_fails() -> None:
    (breakage,) = (one for one in MUTANTS if one.name == "doubt_never_written")
    with broken(breakage):
        seed = next(number for number in range(100) if _fails(number))
        without = minimised(seed)
        assert without < set(faults_of(seed))
        assert _fails(seed, without)
    assert minimised(seed) == frozenset()


def _fails(seed: int, without: frozenset[str] = frozenset()) -> bool:
    try:
        play(seed, without=without)
    except AssertionError:
        return True
    return False
