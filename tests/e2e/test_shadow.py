"""Shadow mode (C9): everything passes untouched, and what the guard would have done is counted."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from aiohttp import ClientSession

from proxy import presets
from tests.e2e.callers import payment, post, request
from tests.e2e.platforms import ok, page, refuses
from tests.e2e.stage import Proxy, Stage, until
from tests.wire.peers import Hold, RawCaller, Script


async def _findings(proxy: Proxy) -> dict[str, float]:
    """What `observed_total` counts by finding, zeros left out."""
    assert proxy.app.admin is not None
    async with ClientSession() as session, session.get(f"{proxy.app.admin.url}/metrics") as answer:
        lines = [line for line in (await answer.text()).splitlines() if "observed_total{" in line]
    counts: dict[str, float] = {}
    for line in lines:
        name, value = line.split('finding="')[1].split('"')[0], float(line.rsplit(" ", 1)[1])
        counts[name] = counts.get(name, 0) + value
    return {name: value for name, value in counts.items() if value}


async def test_calls_pass_untouched_and_nothing_is_recorded(stage: Stage) -> None:
    platform = await stage.platform(ok())
    proxy = await stage.proxy(
        platform.url, mode="observe", routes={"create_payment": {"key": {"mode": "inject"}}}
    )

    told = await proxy.call(payment(None))

    assert (told.status, told.knowledge) == (201, None)
    assert platform.received[0].header(b"idempotency-key") == []
    assert platform.received[0].header(b"x-request-id") == []
    assert await proxy.operations() == ()
    assert await _findings(proxy) == {"missing_key": 1}


@pytest.mark.parametrize("own", [(), (("X-Request-Id", "r-1"),)], ids=["made", "given"])
async def test_a_finding_and_its_call_carry_one_request_id(
    stage: Stage, own: tuple[tuple[str, str], ...]
) -> None:
    """C9, H7: whoever mends the service finds the call that the finding is about."""
    platform = await stage.platform(ok())
    process = await stage.process(platform.url, mode="observe", log={"level": "info"})

    await process.call(payment(None, 10_000, *own))

    finding = json.loads(await process.line('"observed"'))
    call = json.loads(await process.line('"call"'))
    assert finding["request_id"] == call["request_id"] != ""
    assert not own or call["request_id"] == "r-1"


async def test_a_failure_is_neither_retried_nor_changed(stage: Stage) -> None:
    platform = await stage.platform(page(502))
    proxy = await stage.proxy(platform.url, mode="observe")

    told = await proxy.call(payment("K"))

    assert (told.status, len(platform.received)) == (502, 1)


async def test_a_new_key_after_doubt_is_told_as_the_mistake_that_pays_twice(stage: Stage) -> None:
    platform = await stage.platform(page(502))
    proxy = await stage.proxy(platform.url, mode="observe")

    await proxy.call(payment("K1"))
    told = await proxy.call(payment("K2"))

    assert told.status == 502
    assert await _findings(proxy) == {"new_key_after_doubt": 1}


async def test_a_new_key_after_a_refusal_is_right(stage: Stage) -> None:
    platform = await stage.platform(refuses(422, "invalid_amount"))
    proxy = await stage.proxy(platform.url, mode="observe")

    await proxy.call(payment("K1"))
    await proxy.call(payment("K2", 500))

    assert await _findings(proxy) == {}


async def test_one_key_with_two_amounts_and_a_bad_body_are_told(stage: Stage) -> None:
    platform = await stage.platform(ok())
    proxy = await stage.proxy(platform.url, mode="observe")

    await proxy.call(payment("K"))
    await proxy.call(payment("K", 12_000))
    await proxy.call(request("POST", "/v1/payments", b'{"amount":1,"amount":2}', key="K9"))

    assert len(platform.received) == 3
    assert await _findings(proxy) == {"conflict": 1, "invalid_call": 1}


async def test_a_body_over_the_limit_passes_and_is_not_judged(stage: Stage) -> None:
    platform = await stage.platform(ok())
    proxy = await stage.proxy(platform.url, mode="observe", limits={"body": "1KiB"})

    told = await proxy.call(payment(None, padding="x" * 4_000))

    assert told.status == 201
    assert await _findings(proxy) == {}


async def test_a_new_key_of_a_caller_that_gave_up_is_told_although_the_answer_came(stage: Stage) -> None:
    """C9: whoever has closed its connection read no answer, and for it the result is open."""
    go = asyncio.Event()
    platform = await stage.platform(ok())
    platform.plan(Script(Hold(go), *ok().steps))
    proxy = await stage.proxy(platform.url, mode="observe")
    async with await RawCaller.dial(proxy.address) as caller:
        await caller.send(payment("K1"))
        await platform.got(1)
        caller.reset()
    go.set()
    await until(lambda: not proxy.app.now.under_way)

    await proxy.call(payment("K2"))

    assert await _findings(proxy) == {"new_key_after_doubt": 1}


@pytest.mark.parametrize(
    ("mode", "call"),
    [("observe", payment("K")), ("guard", post("/v1/reports", {}))],
    ids=["observed", "unguarded"],
)
async def test_what_is_no_read_is_given_more_time_than_a_read(
    stage: Stage, tmp_path: Path, mode: str, call: bytes
) -> None:
    """C9, R4: the read policy's limit is for reads; a write cut by it would be in doubt through Safepost alone."""
    limit = "attempt_timeout: {value: 10s"
    assert limit in presets.text("payhub")
    own = tmp_path / "own.yaml"
    own.write_text(presets.text("payhub").replace(limit, "attempt_timeout: {value: 100ms"), encoding="utf-8")
    go = asyncio.Event()
    platform = await stage.platform(ok())
    platform.plan(Script(Hold(go), *ok().steps))
    proxy = await stage.proxy(platform.url, mode=mode, platform=str(own))

    told = asyncio.create_task(proxy.call(call))
    await platform.got(1)
    asyncio.get_running_loop().call_later(0.5, go.set)

    assert (await told).status == 201
