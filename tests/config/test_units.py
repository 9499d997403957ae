"""Durations, sizes and rates as people write them (F3)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.config.units import duration_ms, rate, shown_duration, shown_size, size_bytes


@pytest.mark.parametrize(
    ("text", "ms"),
    [("250ms", 250), ("20s", 20_000), ("5m", 300_000), ("4h", 14_400_000), ("7d", 604_800_000), ("0s", 0)],
)
def test_duration_of_each_unit_is_milliseconds(text: str, ms: int) -> None:
    assert duration_ms(text) == ms


@pytest.mark.parametrize(
    "text", ["", "20", "s", "-1s", "1.5s", "1 s", "1S", "1w", "1e3s", "٣s", "1s ", "1" * 13 + "s"]
)
def test_duration_in_another_form_is_none(text: str) -> None:
    assert duration_ms(text) is None


@pytest.mark.parametrize(
    ("text", "size"), [("512B", 512), ("64KiB", 65_536), ("1MiB", 1 << 20), ("1GiB", 1 << 30)]
)
def test_size_of_each_unit_is_bytes(text: str, size: int) -> None:
    assert size_bytes(text) == size


@pytest.mark.parametrize("text", ["1MB", "1K", "1", "1.5MiB", "KiB", "1 KiB", "1mib"])
def test_size_in_another_form_is_none(text: str) -> None:
    assert size_bytes(text) is None


def test_rate_is_a_number_per_unit() -> None:
    assert rate("5/s") == (5, 1_000)
    assert rate("30/m") == (30, 60_000)
    assert rate("5/d") is None
    assert rate("5") is None


@given(st.integers(0, 10**11))
def test_shown_duration_reads_back(ms: int) -> None:
    assert duration_ms(shown_duration(ms)) == ms


@given(st.integers(0, 10**11))
def test_shown_size_reads_back(size: int) -> None:
    assert size_bytes(shown_size(size)) == size
