"""How many connections the limit of open files holds (H10)."""

from __future__ import annotations

import resource

import pytest

from proxy.wire import descriptors


@pytest.mark.parametrize(
    ("limit", "upstream", "fits"),
    [
        (20_000, 1_000, 10_000),
        (11_048, 1_000, 10_000),
        (11_047, 1_000, 9_999),
        (1_024, 1_000, 488),
        (1_024, 100, 876),
        (64, 1_000, 8),
        (48, 1_000, 1),
        (8, 1_000, 1),
    ],
)
def test_callers_leave_descriptors_for_the_platform_and_the_store(
    limit: int, upstream: int, fits: int
) -> None:
    assert descriptors.callers_max(10_000, upstream=upstream, limit=limit) == fits


def test_limit_is_raised_as_far_as_it_may() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        assert descriptors.allowed() == 256
        assert descriptors.allow_all() == descriptors.allowed() > 256
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
