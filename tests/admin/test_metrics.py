"""The metrics page over HTTP (M1): true from the first scrape, clean, with traces for who asks for them."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from aiohttp import ClientSession
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as plain

from proxy.app import App
from proxy.config import settings_of
from tests.admin.conftest import Stage, staged

TRACE = "0af7651916cd43dd8448eb211c80319c"


async def test_first_scrape_after_a_start_tells_what_is_in_doubt(
    tmp_path: Path, session: ClientSession
) -> None:
    """A scrape in the first seconds said that nothing was in doubt, and ended the alerts about it."""
    made = await staged(tmp_path, session)
    try:
        await made.unknown("ORDER-1~reset_before", amount=129_900)
        await made.app.stop()
        again = await App.start(made.app.now.settings)
        try:
            assert again.admin is not None
            async with session.get(f"{again.admin.url}/metrics") as answer:
                page = await answer.text()
        finally:
            await again.stop()
    finally:
        await made.sandbox.close()

    assert 'safepost_unknown_operations{route="create_payment"} 1.0' in page
    assert 'safepost_unknown_amount{currency="USD"} 129900.0' in page


async def test_page_is_clean_for_promtool(stage: Stage) -> None:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("no promtool on this machine; Debian: apt-get install prometheus")
    await stage.unknown("ORDER-1~reset_before")
    page = (await stage.admin.get("/metrics")).text

    promtool = await asyncio.create_subprocess_exec(
        found, "check", "metrics",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    said = await promtool.communicate(page.encode())

    assert (promtool.returncode, *said) == (0, b"", b"")


async def test_scraper_that_asks_for_it_gets_traces(stage: Stage) -> None:
    traced = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
    answer = await stage.caller.send("GET", "/v1/payments/none", headers=traced)
    assert answer.status in (401, 404)

    accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
    page = (await stage.admin.get("/metrics", Accept=accept)).text

    families = {one.name: one for one in open_metrics(page)}  # type: ignore[no-untyped-call]  # the library's parser
    samples = families["safepost_request_duration_seconds"].samples
    assert [one.exemplar.labels for one in samples if one.exemplar] == [{"trace_id": TRACE}]


async def test_reload_opens_the_series_of_new_routes_and_keeps_the_old(stage: Stage) -> None:
    await stage.unknown("ORDER-1~reset_before")
    before = {family.name for family in plain((await stage.admin.get("/metrics")).text)}
    text = f"upstream: {{url: {stage.sandbox.url}}}\nplatform: generic\nroutes: {{pay: {{path: /pay}}}}\n"

    await stage.app.reload(settings_of(text, file="config.yaml"))
    page = (await stage.admin.get("/metrics")).text

    assert before <= {family.name for family in plain(page)}
    assert 'safepost_unknown_results_total{route="pay"} 0.0' in page
    assert 'safepost_unknown_results_total{route="create_payment"} 1.0' in page
