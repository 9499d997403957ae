"""Making a failing seed's story smaller: the faults that it can do without are left out, one after the other."""

from __future__ import annotations

from tests.sim.story import faults_of, play

TRIES_MAX = 200


def minimised(seed: int, *, on_file: bool = False) -> frozenset[str]:
    """The faults of the seed's plan that are not needed for its failure; empty where it does not fail."""
    if not _fails(seed, frozenset(), on_file=on_file):
        return frozenset()
    without: frozenset[str] = frozenset()
    for name in faults_of(seed)[:TRIES_MAX]:
        tried = without | {name}
        if _fails(seed, tried, on_file=on_file):
            without = tried
    return without


def _fails(seed: int, without: frozenset[str], *, on_file: bool) -> bool:
    try:
        play(seed, without=without, on_file=on_file)
    except Exception:  # noqa: BLE001 -- whatever it fails with, it fails
        return True
    return False
