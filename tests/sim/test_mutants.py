"""The simulator is worth what it catches: each deliberate breakage, within its number of seeds."""

from __future__ import annotations

import pytest

from tests.sim.mutants import MUTANTS, SEEDS_MAX, Mutant, broken, hunt

EASY = ("doubt_never_written", "send_before_recording", "guard_ignores_subject", "fingerprint_ignored")


def test_there_are_enough_mutants_and_each_says_its_harm() -> None:
    assert len(MUTANTS) >= 25
    assert all(one.harm for one in MUTANTS)
    assert len({one.name for one in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("one", MUTANTS, ids=lambda one: one.name)
def test_mutant_finds_what_it_breaks(one: Mutant) -> None:
    """What was renamed is broken no more; the hunts that would show it are slow."""
    with broken(one):
        pass


@pytest.mark.parametrize("one", [one for one in MUTANTS if one.name in EASY], ids=lambda one: one.name)
def test_plain_mutant_is_caught_at_once(one: Mutant) -> None:
    assert hunt(one, seeds_max=200) is not None


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("one", MUTANTS, ids=lambda one: one.name)
def test_mutant_is_caught(one: Mutant) -> None:
    caught = hunt(one)
    assert caught is not None, f"{one.harm}: not seen in {SEEDS_MAX} seeds"
