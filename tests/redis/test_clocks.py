"""A host whose clock is wrong, on a Redis that others share: ages and waits go by the server's time (D2)."""

from __future__ import annotations

import pytest
from aiohttp import ClientSession

from proxy.clock import SystemClock
from tests.e2e.callers import payment
from tests.e2e.platforms import page
from tests.e2e.stage import LOOKUPS, Stage
from tests.stores.redis_server import Server

DAYS_MS = 2 * 86_400_000


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
