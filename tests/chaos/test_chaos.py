"""A short chaos run in the suite: everything starts, breaks, comes to rest, and the audit finds nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.run import Plan, play
from tests.chaos.settings import Variant

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

SECONDS = 25.0
CALLS_MIN = 100


@pytest.mark.parametrize(
    "variant",
    [
        pytest.param(Variant(), id="one-host"),
        pytest.param(Variant(store="redis", careless=True), id="redis-and-a-bank-without-order-uniqueness"),
        pytest.param(Variant(store="cluster", forward=True, tls=True), id="cluster-forwarding-tls"),
    ],
)
async def test_short_chaos_keeps_every_promise(tmp_path: Path, variant: Variant) -> None:
    plan = Plan(seconds=SECONDS, seed=11, variant=variant)

    report = await play(plan, tmp_path)

    told = "\n".join(report.lines())
    assert report.violations == [], told
    assert report.settle_s is not None, told
    assert len(report.logs.calls) > CALLS_MIN, told
    assert len(report.logs.bank.entries) > 0, told
