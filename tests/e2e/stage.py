"""The whole product on free ports, with a store of its own and short waits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy.app import App
from proxy.clock import SystemClock
from proxy.config import settings_of
from proxy.core.model import Operation
from proxy.ports import Query
from proxy.sandbox import Sandbox
from proxy.sandbox import Settings as SandboxSettings
from tests.e2e.callers import Told, call
from tests.e2e.processes import Process
from tests.wire.peers import RawPlatform, Script

PATIENCE_S = 60.0

DEFAULTS: dict[str, Any] = {
    "listen": "127.0.0.1:0",
    "admin": "127.0.0.1:0",
    "platform": "payhub",
    "environment": "test",
    "upstream": {"url": "http://127.0.0.1:1", "authorization": "sk_test_A", "connect_timeout": "5s"},
    "store": {"lease": "6s", "timeout": "5s"},
    "wait_timeout": "15s",
    "retry": {
        "attempts": 3,
        "attempt_timeout": "1500ms",
        "base": "20ms",
        "cap": "100ms",
        "jitter_max": "5ms",
        "deadline": "20s",
        "budget": {"enabled": False},
    },
    "breaker": {"enabled": False},
    "lookups": {"enabled": False},
    "drain_timeout": "3s",
    "log": {"level": "warning", "format": "json"},
}
"""Short waits, so that a test takes milliseconds, and limits that a busy machine keeps; what a test is about, it
sets itself."""

LOOKUPS: dict[str, Any] = {
    "enabled": True,
    "schedule": ["100ms", "300ms", "600ms"],
    "then_every": "400ms",
    "min_interval": "100ms",
    "lag": "50ms",
    "rate": "100/s",
}


def configuration(overrides: Mapping[str, Any]) -> str:
    """The configuration's text: `DEFAULTS` with the overrides laid over, mapping by mapping."""
    return str(yaml.safe_dump(_laid_over(DEFAULTS, overrides)))


def _laid_over(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(under)
    for name, value in over.items():
        below = merged.get(name)
        both = isinstance(value, dict) and isinstance(below, dict)
        merged[name] = _laid_over(below, value) if both and below is not None else value
    return merged


class MovedClock(SystemClock):
    """The machine's clocks, later by what the test says: days pass without waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead_ms = 0

    def advance(self, *, days: float) -> None:
        self.ahead_ms += round(days * 86_400_000)

    def boot_ms(self) -> int:
        return super().boot_ms() + self.ahead_ms

    def wall_ms(self) -> int:
        return super().wall_ms() + self.ahead_ms


class Proxy:
    """A running App in this process."""

    def __init__(self, app: App) -> None:
        self.app = app

    @property
    def address(self) -> str:
        return self.app.urls[0]

    async def call(self, raw: bytes) -> Told:
        return await call(self.address, raw)

    async def purge(self) -> int:
        """What the hourly task does."""
        routes = self.app.now.settings.platform.routes
        return await self.app.store.purge(record_ms={route.name: route.record_ms for route in routes})

    async def operations(self, **wanted: Any) -> tuple[Operation, ...]:
        """What the ledger holds."""
        page = await self.app.store.find(Query(limit=500, **wanted))
        return page.operations

    async def operation(self, key: str = "K") -> Operation:
        """The one operation with this key."""
        found = await self.operations(key=key)
        assert len(found) == 1, [one.id for one in found]
        return found[0]

    async def until(self, key: str, holds: Callable[[Operation], bool]) -> Operation:
        """Wait until the ledger says so."""
        found: list[Operation] = []

        async def look() -> bool:
            found[:] = await self.operations(key=key)
            return bool(found) and holds(found[0])

        await until(look)
        return found[0]


class Stage:
    """What a test puts on: platforms, proxies; all of it is closed when the test ends."""

    def __init__(self, stack: AsyncExitStack, folder: Path) -> None:
        self._stack = stack
        self.folder = folder
        self.loop_faults: list[dict[str, Any]] = []

    def caught(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.loop_faults.append(context)

    async def platform(self, usual: Script | None = None, **options: Any) -> RawPlatform:
        """A scripted platform on a raw socket."""
        return await self._stack.enter_async_context(RawPlatform(usual, **options))

    async def sandbox(self, **settings: Any) -> Sandbox:
        sandbox = await Sandbox.start(settings=SandboxSettings(**settings))
        self._stack.push_async_callback(sandbox.close)
        return sandbox

    def text(self, url: str, **overrides: Any) -> str:
        """A configuration for a proxy in front of `url`."""
        given = _laid_over(
            {"upstream": {"url": url}, "store": {"url": f"sqlite:{self.folder}/ledger.db"}}, overrides
        )
        return configuration(given)

    async def proxy(self, url: str, *, clock: SystemClock | None = None, **overrides: Any) -> Proxy:
        """The product in this process, in front of `url`."""
        settings = settings_of(self.text(url, **overrides), file=str(self.folder / "config.yaml"))
        with pytest.MonkeyPatch.context() as patch:
            if clock is not None:
                patch.setattr("proxy.app.SystemClock", lambda: clock)
            app = await App.start(settings)
        self._stack.push_async_callback(app.stop)
        return Proxy(app)

    async def process(
        self,
        url: str,
        *,
        name: str = "config",
        environ: Mapping[str, str] | None = None,
        before: tuple[str, ...] = (),
        until_up: bool = True,
        **overrides: Any,
    ) -> Process:
        """The product as a process of its own; a second one with another `name` shares the store."""
        config = self.folder / f"{name}.yaml"
        config.write_text(self.text(url, **overrides), encoding="utf-8")
        started = await Process.start(config, environ=environ, before=before, until_up=until_up)
        self._stack.push_async_callback(started.kill)
        return started


async def until(holds: Callable[[], bool | Awaitable[bool]], *, within_s: float = PATIENCE_S) -> None:
    """Wait for what happens on its own; the test fails if it doesn't."""
    async with asyncio.timeout(within_s):
        while True:
            held = holds()
            if held if isinstance(held, bool) else await held:
                return
            await asyncio.sleep(0.005)
