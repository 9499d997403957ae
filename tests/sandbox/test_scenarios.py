"""The scenario player: it must pass what keeps the promise and name what breaks it."""

from __future__ import annotations

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from proxy.sandbox import Sandbox
from proxy.sandbox.play import ScenarioResult, play_all
from proxy.sandbox.scenarios import SCENARIOS

from .sidecars import running


def broken(results: list[ScenarioResult]) -> set[str]:
    return {result.name for result in results if result.verdict == "broken"}


async def test_scenarios_hold_through_a_sidecar_that_keeps_the_promise(sandbox: Sandbox) -> None:
    async with running(sandbox.url) as url:
        results = await play_all([url], sandbox)
    assert [failure for result in results for failure in result.failures] == []
    assert [result.name for result in results] == [f"S{number}" for number in range(1, 14)]
    counts = {result.name: (result.charges, result.refunds, result.cancels) for result in results}
    assert counts == {f"S{n}": (1, 0, 0) for n in range(1, 14)} | {"S11": (1, 1, 0), "S12": (0, 0, 1)}
    first = next(result for result in results if result.name == "S1")
    key = "payment.create:ORDER-S1-001:1"
    assert first.wire == [
        f"POST /v1/payments  {key} -> executed, no answer",
        f"POST /v1/payments  {key} -> 200",
        f"POST /v1/payments  {key} -> 200",
    ]
    refund = next(result for result in results if result.name == "S11")
    assert refund.wire[-1] == "GET /v1/refunds?merchant_refund_no=REFUND-S11-001 -> 200"


async def test_second_run_on_one_sandbox_has_numbers_of_its_own(sandbox: Sandbox) -> None:
    quick = [scenario for scenario in SCENARIOS if scenario.name in ("S3", "S4", "S9")]
    async with running(sandbox.url) as url:
        for run in ("001", "002"):
            results = await play_all([url], sandbox, run=run, scenarios=quick)
            assert broken(results) == set()


@pytest.mark.parametrize(
    ("flaw", "found"),
    [
        ("new key for a retry", {"S1", "S11", "S10"}),
        ("no retry", {"S1", "S2", "S10", "S11"}),
        ("deaf to Retry-After", {"S10"}),
        ("no conflict check", {"S3"}),
        ("no collapsing", {"S5"}),
        ("work ends with the caller", {"S7"}),
        ("tells executed", {"S2", "S8", "S12", "S13"}),
    ],
)
async def test_flaw_of_a_sidecar_breaks_the_scenarios_about_it(
    sandbox: Sandbox, flaw: str, found: set[str]
) -> None:
    scenarios = [s for s in SCENARIOS if s.name in found | {"S4", "S9"}]
    async with running(sandbox.url, flaw) as url:
        results = await play_all([url], sandbox, scenarios=scenarios)
    assert broken(results) == found
    assert all(result.failures for result in results if result.name in found)


async def test_scenarios_without_a_proxy_are_broken_not_errors(sandbox: Sandbox) -> None:
    quick = [scenario for scenario in SCENARIOS if scenario.name == "S3"]
    (through_none,) = await play_all([sandbox.url], sandbox, scenarios=quick)
    assert through_none.verdict == "broken"
    assert "Safepost-Knowledge" in " ".join(through_none.failures)
    (to_nobody,) = await play_all(["http://127.0.0.1:1"], sandbox, run="002", scenarios=quick)
    assert "ClientConnectorError" in to_nobody.failures[0]


@pytest.mark.parametrize(("told", "verdict"), [("executed", "holds"), ("unknown", "broken")])
async def test_ledger_of_the_proxy_is_compared_with_what_callers_were_told(
    sandbox: Sandbox, told: str, verdict: str
) -> None:
    async def operation(_: web.Request) -> web.Response:
        return web.json_response({"knowledge": told})

    app = web.Application()
    app.router.add_get("/operations/{id}", operation)
    quick = [scenario for scenario in SCENARIOS if scenario.name == "S3"]
    async with running(sandbox.url) as url, TestServer(app, host="127.0.0.1") as admin:
        (result,) = await play_all(
            [url], sandbox, admin_urls=[str(admin.make_url("")).rstrip("/")], scenarios=quick
        )
    assert result.verdict == verdict
