"""Many seeds on every core: chunks of them, each in some process, added up in their order.

The same bounds play the same seeds, whatever the number of processes: a chunk counts only when all before it do.
"""

from __future__ import annotations

import multiprocessing
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field

from tests.sim.coverage import Coverage
from tests.sim.story import play

CHUNK = 100
FILE_EVERY = 50
"""Of a mixed soak's seeds one in so many is played over a SQLite file, which takes some fifteen times as long."""
STORES = ("mixed", "memory", "sqlite")


@dataclass(frozen=True, slots=True)
class Bounds:
    """When a soak ends: after `seeds`, or `minutes`, or once it has both `operations` and `seeds`."""

    seeds: int | None = None
    operations: int | None = None
    minutes: float | None = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """Seeds that one process plays in a row."""

    first: int
    count: int
    store: str


@dataclass(slots=True)
class Played:
    """What came of a chunk; `broken` is the seed that broke a promise, at which it ended."""

    coverage: Coverage
    broken: int | None = None


@dataclass(slots=True)
class Soak:
    """What came of it all so far."""

    coverage: Coverage = field(default_factory=Coverage)
    broken: int | None = None
    spent_s: float = 0.0


def is_on_file(seed: int, store: str) -> bool:
    return store == "sqlite" or (store == "mixed" and seed % FILE_EVERY == 0)


def play_chunk(chunk: Chunk) -> Played:
    played = Played(Coverage())
    for seed in range(chunk.first, chunk.first + chunk.count):
        on_file = is_on_file(seed, chunk.store)
        try:
            played.coverage.add(play(seed, on_file=on_file), on_file=on_file)
        except Exception:  # noqa: BLE001 -- any exception here is a finding; it is played again to be told
            played.broken = seed
            break
    return played


def chunks(first: int, bounds: Bounds, store: str) -> Iterator[Chunk]:
    """The seeds from `first` on; without end where only time or operations bound them."""
    exact = bounds.seeds if bounds.operations is None else None
    done = 0
    while exact is None or done < exact:
        count = CHUNK if exact is None else min(CHUNK, exact - done)
        yield Chunk(first + done, count, store)
        done += count


def soak(first: int, bounds: Bounds, *, store: str, jobs: int) -> Iterator[Soak]:
    """Play until the bounds are met or a promise breaks; the state after each chunk."""
    began = time.monotonic()
    state = Soak()
    for played in _played(chunks(first, bounds, store), jobs):
        state.coverage.merge(played.coverage)
        state.broken = played.broken
        state.spent_s = time.monotonic() - began
        yield state
        if state.broken is not None or _is_enough(state, bounds):
            return


def _is_enough(state: Soak, bounds: Bounds) -> bool:
    if bounds.minutes is not None and state.spent_s >= bounds.minutes * 60:
        return True
    if bounds.operations is None:
        return False
    return state.coverage.operations >= bounds.operations and state.coverage.seeds >= (bounds.seeds or 0)


def _played(todo: Iterator[Chunk], jobs: int) -> Iterator[Played]:
    if jobs == 1:
        yield from map(play_chunk, todo)
        return
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        running: deque[Future[Played]] = deque()
        try:
            for chunk in todo:
                running.append(pool.submit(play_chunk, chunk))
                if len(running) > 2 * jobs:
                    yield running.popleft().result()
            while running:
                yield running.popleft().result()
        finally:
            for future in running:
                future.cancel()
