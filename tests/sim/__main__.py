"""`python -m tests.sim`: play seeds, replay one with its story, hunt mutants, walk small worlds."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from tests.sim.exhaust import explore
from tests.sim.minimise import minimised
from tests.sim.mutants import MUTANTS, SEEDS_MAX, hunt
from tests.sim.soak import STORES, Bounds, Soak, is_on_file, soak
from tests.sim.story import play

KEPT = Path(__file__).with_name("seeds.txt")
LINES_SHOWN = 40
SEEDS_BETWEEN_LINES = 10_000
SEEDS_FOR_ALL = 50_000
"""A soak of so many seeds that takes not every transition of the table is blind somewhere, and fails."""


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def kept_seeds() -> list[tuple[int, str]]:
    """Each seed that ever failed or that takes a rare way, with its line of story."""
    lines = (line.strip() for line in KEPT.read_text(encoding="utf-8").splitlines())
    pairs = (line.partition(":") for line in lines if line and not line.startswith("#"))
    return [(int(seed), story.strip()) for seed, _, story in pairs]


def failed(seed: int, *, on_file: bool) -> None:
    """Tell of a failure: what broke, the last of its story, how to see all of it."""
    told: list[str] = []
    small = minimised(seed, on_file=on_file)
    try:
        play(seed, told=told, without=small, on_file=on_file)
        broken = "it held when it was played again: something outside of the seed has a say"
    except Exception as error:  # noqa: BLE001 -- whatever it was, it is being reported
        broken = f"{type(error).__name__}: {error}"
    say(f"\nBROKEN {broken}")
    for line in told[-LINES_SHOWN:]:
        say(f"  {line}")
    without = f" --without {','.join(sorted(small))}" if small else ""
    store = " --store sqlite" if on_file else ""
    say(f"replay: python -m tests.sim --seed {seed} --trace{store}{without}")
    say(f"keep it: {seed}: one line of its story, in {KEPT.name}")


def trace(seed: int, without: frozenset[str], *, on_file: bool) -> int:
    told: list[str] = []
    try:
        outcome = play(seed, told=told, without=without, on_file=on_file)
    except Exception as error:  # noqa: BLE001 -- the story so far is what is asked for
        say("\n".join(told))
        say(f"BROKEN {type(error).__name__}: {error}")
        return 1
    say("\n".join(told))
    say(
        f"seed {seed}: {outcome.calls} calls, {outcome.operations} operations, {outcome.effects} effects: all held"
    )
    return 0


def soaked(first: int, bounds: Bounds, *, store: str, jobs: int) -> int:
    """Play seeds until the bounds are met; stop at the first failure."""
    state = Soak()
    for state in soak(first, bounds, store=store, jobs=jobs):
        done = state.coverage
        if done.seeds % SEEDS_BETWEEN_LINES == 0:
            say(f"{done.seeds} seeds, {done.operations} operations, {state.spent_s:.0f} s")
    for line in state.coverage.report():
        say(line)
    done, spent_s = state.coverage, state.spent_s
    say(
        f"from seed {first}, {jobs} processes, {spent_s:.1f} s: {done.operations / spent_s:.0f} operations/s, "
        f"{done.calls / spent_s:.0f} calls/s"
    )
    if state.broken is not None:
        failed(state.broken, on_file=is_on_file(state.broken, store))
        return 1
    say("0 violations")
    return 1 if done.missing and done.seeds >= SEEDS_FOR_ALL else 0


def mutants() -> int:
    escaped = 0
    for one in MUTANTS:
        caught = hunt(one)
        escaped += caught is None
        how = f"{caught[0]:>5} seeds  {caught[1][:100]}" if caught else f"ESCAPED {SEEDS_MAX} seeds"
        say(f"{one.name:<40} {how}")
    say(f"{len(MUTANTS) - escaped} of {len(MUTANTS)} mutants caught")
    return 1 if escaped else 0


def walk(faults: int, stories: int | None, jobs: int) -> int:
    began = time.monotonic()
    done = explore(faults=faults, thorough=True, stories_max=stories, jobs=jobs)
    say(f"at most {faults} faults: {done.report()}; {time.monotonic() - began:.1f} s")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seed", type=int, help="play this seed only, or begin with it")
    parser.add_argument("--trace", action="store_true", help="print the whole story of --seed")
    parser.add_argument("--without", default="", help="faults to leave out: wire:late,store:down")
    parser.add_argument("--seeds", type=int, help="how many seeds; with --operations: at least so many")
    parser.add_argument("--operations", type=int, help="go on until so many operations were played")
    parser.add_argument("--minutes", type=float, help="how long to go on")
    parser.add_argument("--store", choices=STORES, default="mixed", help="mixed: SQLite for one seed in 50")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes; default: cores")
    parser.add_argument("--mutants", action="store_true", help="hunt every mutant")
    parser.add_argument("--walk", type=int, metavar="FAULTS", help="every story of small worlds")
    parser.add_argument("--stories", type=int, help="with --walk: at most so many from each beginning")
    given = parser.parse_args()
    if given.mutants:
        return mutants()
    if given.walk is not None:
        return walk(given.walk, given.stories, given.jobs)
    if given.trace:
        without = frozenset(filter(None, given.without.split(",")))
        return trace(given.seed or 0, without, on_file=given.store == "sqlite")
    is_bound = given.seeds or given.operations or given.minutes
    bounds = Bounds(given.seeds if is_bound else SEEDS_BETWEEN_LINES, given.operations, given.minutes)
    return soaked(given.seed or 0, bounds, store=given.store, jobs=given.jobs)


if __name__ == "__main__":
    sys.exit(main())
