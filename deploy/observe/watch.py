"""Who sees alerts fire and clear: a drill goes by that and no clock, so that a busy machine plays it as well."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from deploy.observe.server import Prometheus
from proxy.clock import SystemClock

LOOK_S = 0.5
FIRED_S_MAX = 90.0
"""For the slowest alert: a window of 15 minutes and 5 minutes' `for`, both squeezed, on a machine that crawls."""
CALM_S_MAX = 120.0
QUIET_MS = 3_000
"""So long nothing may have fired: what still fires at the end of a phase did not clear."""


class Watch:
    """Asks a Prometheus. Implements `proxy.drill.Audience`."""

    def __init__(self, prometheus: Prometheus) -> None:
        self._prometheus = prometheus
        self._clock = SystemClock()
        self._calm_since_ms = self._clock.wall_ms()

    async def until_fired(self, alerts: frozenset[str], *, usual_s: float = 0.0) -> None:
        async def have_fired() -> bool:
            now_ms = self._clock.wall_ms()
            firings = await self._prometheus.alerts(from_ms=self._calm_since_ms, to_ms=now_ms)
            return alerts <= {firing.name for firing in firings}

        await until(have_fired, within_s=FIRED_S_MAX)

    async def until_calm(self, *, usual_s: float = 0.0) -> None:
        async def is_calm() -> bool:
            now_ms = self._clock.wall_ms()
            if await self._prometheus.instant('ALERTS{alertname=~"Safepost.*"}'):
                return False
            return not await self._prometheus.alerts(from_ms=now_ms - QUIET_MS, to_ms=now_ms)

        await until(is_calm, within_s=CALM_S_MAX)
        self._calm_since_ms = self._clock.wall_ms()


async def until(holds: Callable[[], Awaitable[bool]], *, within_s: float) -> bool:
    """Ask until it is so, from outside, where no event tells. False: it was not, in time."""
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + within_s
    while not await holds():
        if loop.time() > ends_s:
            return False
        await asyncio.sleep(LOOK_S)
    return True
