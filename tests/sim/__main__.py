"""`python -m tests.sim`: play seeds, replay one with its story, hunt mutants, walk small worlds."""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.sim.coverage import Coverage
from tests.sim.exhaust import explore
from tests.sim.minimise import minimised
from tests.sim.mutants import MUTANTS, SEEDS_MAX, hunt
from tests.sim.story import play

KEPT = Path(__file__).with_name("seeds.txt")
LINES_SHOWN = 40


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def kept_seeds() -> list[tuple[int, str]]:
    """Each seed that ever failed or that takes a rare way, with its line of story."""
    lines = (line.strip() for line in KEPT.read_text(encoding="utf-8").splitlines())
    pairs = (line.partition(":") for line in lines if line and not line.startswith("#"))
    return [(int(seed), story.strip()) for seed, _, story in pairs]


def failed(seed: int, error: BaseException) -> None:
    """Tell of a failure: what broke, the last of its story, how to see all of it."""
    told: list[str] = []
    small = minimised(seed)
    say(f"\nBROKEN {error}")
    try:
        play(seed, told=told, without=small)
    except Exception as again:  # noqa: BLE001 -- whatever it was, it is being reported
        told.append(f"{type(again).__name__}: {again}")
    for line in told[-LINES_SHOWN:]:
        say(f"  {line}")
    without = f" --without {','.join(sorted(small))}" if small else ""
    say(f"replay: python -m tests.sim --seed {seed} --trace{without}")
    say(f"keep it: {seed}: one line of its story, in {KEPT.name}")


def trace(seed: int, without: frozenset[str]) -> int:
    told: list[str] = []
    try:
        outcome = play(seed, told=told, without=without)
    except Exception as error:  # noqa: BLE001 -- the story so far is what is asked for
        say("\n".join(told))
        say(f"BROKEN {type(error).__name__}: {error}")
        return 1
    say("\n".join(told))
    say(
        f"seed {seed}: {outcome.calls} calls, {outcome.operations} operations, {outcome.effects} effects: all held"
    )
    return 0


def soak(first: int, count: int | None, minutes: float | None) -> int:
    """Play seeds for a number or a time; stop at the first failure."""
    coverage = Coverage()
    until = None if minutes is None else time.monotonic() + minutes * 60
    began = time.monotonic()
    numbers: Iterator[int] = itertools.count(first) if count is None else iter(range(first, first + count))
    for seed in numbers:
        try:
            coverage.add(play(seed))
        except Exception as error:  # noqa: BLE001 -- any exception here is a finding
            failed(seed, error)
            return 1
        if until is not None and time.monotonic() >= until:
            break
        if coverage.seeds % 5_000 == 0:
            say(f"{coverage.seeds} seeds, {coverage.operations} operations, {time.monotonic() - began:.0f} s")
    spent = time.monotonic() - began
    for line in coverage.report():
        say(line)
    say(
        f"{spent:.1f} s, {coverage.operations / spent:.0f} operations/s, {coverage.calls / spent:.0f} calls/s"
    )
    return 1 if coverage.missing and coverage.seeds >= 50_000 else 0


def mutants() -> int:
    escaped = 0
    for one in MUTANTS:
        caught = hunt(one)
        escaped += caught is None
        how = f"{caught[0]:>5} seeds  {caught[1][:100]}" if caught else f"ESCAPED {SEEDS_MAX} seeds"
        say(f"{one.name:<40} {how}")
    say(f"{len(MUTANTS) - escaped} of {len(MUTANTS)} mutants caught")
    return 1 if escaped else 0


def walk(faults: int, stories: int | None) -> int:
    began = time.monotonic()
    done = explore(faults=faults, thorough=True, stories_max=stories)
    say(f"at most {faults} faults: {done.report()}; {time.monotonic() - began:.1f} s")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seed", type=int, help="play this seed only, or begin with it")
    parser.add_argument("--trace", action="store_true", help="print the whole story of --seed")
    parser.add_argument("--without", default="", help="faults to leave out: wire:late,store:down")
    parser.add_argument("--seeds", type=int, help="how many seeds")
    parser.add_argument("--minutes", type=float, help="how long to go on")
    parser.add_argument("--mutants", action="store_true", help="hunt every mutant")
    parser.add_argument("--walk", type=int, metavar="FAULTS", help="every story of small worlds")
    parser.add_argument("--stories", type=int, help="with --walk: at most so many")
    given = parser.parse_args()
    if given.mutants:
        return mutants()
    if given.walk is not None:
        return walk(given.walk, given.stories)
    if given.trace:
        return trace(given.seed or 0, frozenset(filter(None, given.without.split(","))))
    count = given.seeds if given.seeds or given.minutes else 10_000
    return soak(given.seed or 0, count, given.minutes)


if __name__ == "__main__":
    sys.exit(main())
