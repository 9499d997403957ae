"""A short chaos run in the suite: everything starts, breaks, comes to rest, and the audit finds nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.run import Plan, play
from tests.chaos.settings import Variant

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

SECONDS = 25.0
CALLS_MIN = 100


@pytest.mark.parametrize(
    ("store", "careless"),
    [
        pytest.param("sqlite", False, id="one-host"),
        pytest.param("redis", True, id="redis-and-a-bank-without-order-uniqueness"),
    ],
)
async def test_short_chaos_keeps_every_promise(tmp_path: Path, store: str, careless: bool) -> None:
    plan = Plan(seconds=SECONDS, seed=11, variant=Variant(store=store, careless=careless))

    report = await play(plan, tmp_path)

    told = "\n".join(report.lines())
    assert report.violations == [], told
    assert report.settle_s is not None, told
    assert len(report.logs.calls) > CALLS_MIN, told
    assert len(report.logs.bank.entries) > 0, told
