"""Redis stores that a test opened, and a way to their servers beside them."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from proxy.clock import SystemClock
from proxy.stores.notices import Notice, NoticeKind
from proxy.stores.redis import RedisStore
from tests.stores.redis_server import Server

CLOCK = SystemClock()


class Stores:
    """Stores that are closed at the end, and what they had to tell."""

    def __init__(self) -> None:
        self.notices: list[Notice] = []
        self._open: list[RedisStore] = []

    async def open(self, url: str, *, timeout_ms: int = 2_000, journal: Path | None = None) -> RedisStore:
        store = RedisStore(
            url, clock=CLOCK, timeout_ms=timeout_ms, journal=journal, notify=self.notices.append
        )
        await store.open()
        self._open.append(store)
        return store

    async def close(self, store: RedisStore) -> None:
        self._open.remove(store)
        await store.close()

    async def close_all(self) -> None:
        while self._open:
            await self.close(self._open[-1])

    def kinds(self) -> list[NoticeKind]:
        return [notice.kind for notice in self.notices]


def outside(server: Server, *command: str | bytes) -> Any:
    """A command by somebody else."""
    with contextlib.closing(server.client()) as client:
        return client.execute_command(*command)
