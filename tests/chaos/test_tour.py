"""The tour's total says what all slices came to, and forgives none that failed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.chaos.settings import STORES
from tests.chaos.tour import VARIANTS, Slice, summary

CLEAN = Slice("sqlite", 1, 60.0, 100, 20, 5, {"sidecar killed": 3}, 1)


def test_total_adds_up_what_the_slices_did() -> None:
    other = replace(CLEAN, name="redis", calls=50, disasters={"sidecar killed": 1, "disk full": 2})

    told = "\n".join(summary([CLEAN, other]))

    assert "120 s of chaos in 2 runs" in told
    assert "calls     150" in told
    assert "40 charges, 10 refunds" in told
    assert "6: sidecar killed 4, disk full 2" in told
    assert "2 looked up" in told
    assert "0 violations" in told
    assert "failed" not in told


def test_slice_with_a_violation_or_without_an_end_is_named() -> None:
    broken = replace(CLEAN, name="redis", violations=("an order charged twice",))
    hung = replace(CLEAN, name="cluster", trouble="did not end in time")

    told = summary([CLEAN, broken, hung])[-1]

    assert "1 violations; failed: redis; cluster" in told
    assert [one.is_clean for one in (CLEAN, broken, hung)] == [True, False, False]


def test_slice_is_read_as_it_was_written(tmp_path: Path) -> None:
    one = replace(CLEAN, violations=("this", "that"))

    one.write(tmp_path / "slice.json")

    assert Slice.read(tmp_path / "slice.json") == one


def test_tour_meets_every_store_and_every_kind_of_world() -> None:
    assert {one.store for one in VARIANTS} == set(STORES)
    for kind in ("careless", "forward", "tls"):
        assert any(getattr(one, kind) for one in VARIANTS), kind
