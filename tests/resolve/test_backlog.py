"""After an outage: the backlog of two sidecars goes down at the polite rate, and nothing is asked for twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.resolve.backlog import INTERVAL_MS, RATE_EACH, Figures, measure
from tests.stores.redis_server import Server

pytestmark = pytest.mark.slow

COUNT = 300
GROWTH_MIB_MAX = 16  # also over ten thousand operations
BY_THE_WAY = 0.05  # the platform hears of a lookup a moment after it was begun, sooner or later than the last


@pytest.fixture(params=["sqlite", "redis"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:{tmp_path}/ledger.db"
        return
    server = Server(tmp_path / "redis").start()
    yield server.url
    server.stop()


def judge(figures: Figures) -> None:
    assert figures.settled == figures.count
    assert figures.closest_s >= INTERVAL_MS / 1000 * (1 - BY_THE_WAY), figures
    assert len(figures.rates_max) == 2, "both sidecars work on it"
    assert max(figures.rates_max.values()) <= RATE_EACH * (1 + BY_THE_WAY) + 1, figures
    assert figures.newest_waited_s < 15, figures
    assert all(last - first < GROWTH_MIB_MAX for first, last in figures.memory.values()), figures


async def test_backlog_is_settled_politely(store_url: str, tmp_path: Path) -> None:
    """`make backlog` plays it with ten thousand."""
    judge(await measure(tmp_path, store_url=store_url, count=COUNT, within_s=240))
