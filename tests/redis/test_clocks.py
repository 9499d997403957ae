"""A host whose clock is wrong, on a Redis that others share: ages and waits go by the server's time (D2)."""

from __future__ import annotations

import json
from datetime import datetime

import pytest
from aiohttp import ClientSession

from proxy.clock import SystemClock
from proxy.sandbox.webhooks import SIGNATURE_HEADER, signature
from tests.e2e.callers import payment
from tests.e2e.platforms import ok, page, thing
from tests.e2e.stage import LOOKUPS, Stage
from tests.stores.redis_server import Server

DAY_S = 86_400
DAYS_MS = 2 * DAY_S * 1000


class WrongClock(SystemClock):
    """A wall clock that nobody set."""

    def __init__(self, ahead_ms: int) -> None:
        super().__init__()
        self._ahead_ms = ahead_ms

    def wall_ms(self) -> int:
        return super().wall_ms() + self._ahead_ms


@pytest.mark.parametrize("ahead_ms", [DAYS_MS, -DAYS_MS], ids=["ahead", "behind"])
async def test_age_of_the_unknown_is_told_by_the_server_s_clock(
    stage: Stage, server: Server, ahead_ms: int
) -> None:
    """Two days ahead, an alert would say that money has been in doubt for two days; behind, none ever would."""
    platform = await stage.platform(page(502))
    proxy = await stage.proxy(
        platform.url,
        clock=WrongClock(ahead_ms),
        retry={"attempts": 1},
        lookups={**LOOKUPS, "schedule": ["1h"], "min_interval": "20s"},
        store={"url": server.url},
    )
    told = await proxy.call(payment())
    await proxy.app._refresh_holdings()
    assert proxy.app.admin is not None
    url = proxy.app.admin.url

    async with ClientSession() as session:
        metrics = await (await session.get(f"{url}/metrics")).text()
        operation = await (await session.get(f"{url}/operations/{told.operation}")).json()
        held = await (await session.get(f"{url}/holdings")).json()
        look = f"{url}/operations/{told.operation}/lookup"
        await session.post(look, json={})
        async with session.post(look, json={}) as refused:
            wait_s = int(refused.headers["Retry-After"])

    (age,) = [line for line in metrics.splitlines() if line.startswith("safepost_oldest_unknown_seconds ")]
    assert float(age.split()[1]) < 60
    assert operation["open_ms"] < 60_000
    assert held["unknown"]["oldest_ms"] < 60_000
    assert 0 < wait_s <= 20


@pytest.mark.parametrize("ahead_ms", [DAYS_MS, -DAYS_MS], ids=["ahead", "behind"])
async def test_attempts_and_events_are_dated_by_the_server_s_clock(
    stage: Stage, server: Server, ahead_ms: int
) -> None:
    """D2: else the story says of an attempt that it took two days, and this host refuses each event as too old."""
    platform = await stage.platform(ok(202, status="processing"))
    proxy = await stage.proxy(
        platform.url,
        clock=WrongClock(ahead_ms),
        store={"url": server.url},
        events={"secret": "0123456789abcdef"},
    )
    told = await proxy.call(payment())
    begun_s = SystemClock().wall_ms() // 1000
    assert proxy.app.admin is not None
    url = proxy.app.admin.url
    paid = json.loads(thing(version=9))
    event = json.dumps({"id": "evt_1", "type": "payment.succeeded", "data": {"object": paid}}).encode()
    signed = {SIGNATURE_HEADER: signature("0123456789abcdef", event, unix_s=begun_s)}

    async with ClientSession() as session:
        async with session.post(f"{url}/events", data=event, headers=signed) as taken:
            assert (taken.status, (await taken.json())["verdict"]) == (200, "applied")
        story = await (await session.get(f"{url}/operations/{told.operation}")).json()

    (attempt,) = story["attempts"]
    assert attempt["duration_ms"] < DAY_S * 1000
    for instant in (attempt["begun"], attempt["ended"], story["answer"]["ended"], story["newest"]["seen"]):
        assert abs(datetime.fromisoformat(instant).timestamp() - begun_s) < DAY_S
