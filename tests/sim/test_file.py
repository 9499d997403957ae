"""Seeds over real SQLite files: the same stories, and the store's own breakages caught."""

from __future__ import annotations

import pytest

from tests.sim.soak import Bounds, soak
from tests.sim.story import play


@pytest.mark.parametrize("seed", range(12))
def test_seed_tells_the_same_story_over_a_file_as_in_memory(seed: int) -> None:
    in_memory: list[str] = []
    on_file: list[str] = []
    play(seed, told=in_memory)
    play(seed, told=on_file, on_file=True)
    assert on_file == in_memory


def test_soak_plays_the_same_seeds_whatever_the_number_of_processes() -> None:
    bounds = Bounds(seeds=120, operations=900)
    (*_, alone) = soak(0, bounds, store="memory", jobs=1)
    (*_, shared) = soak(0, bounds, store="memory", jobs=2)
    assert alone.broken is shared.broken is None
    assert alone.coverage == shared.coverage
    assert alone.coverage.operations >= 900
    assert alone.coverage.seeds >= 120


def test_mixed_soak_plays_some_seeds_over_files() -> None:
    (*_, state) = soak(0, Bounds(seeds=100), store="mixed", jobs=1)
    assert state.coverage.on_file == 2
