"""Every store of the scheme table under one suite: how to open one, and another one over the same rows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from proxy.ports import Store
from proxy.stores import SCHEMES, make_store
from tests.contract.values import HandClock

TIMEOUT_MS = 5_000


class House:
    """One ledger, and as many open stores over it as a test wants: each stands for a process."""

    def __init__(self, scheme: str, url: str) -> None:
        self.scheme = scheme
        self.url = url
        self.clock = HandClock()
        self.is_durable = scheme != "memory"
        self.has_own_clock = "redis" in scheme or scheme == "unix"
        self._open: list[Store] = []

    async def enter(self, *, secret: bytes | None = None) -> Store:
        """Another process opens the ledger."""
        if not self.is_durable and self._open:
            return self._open[0]
        store = make_store(self.url, clock=self.clock, timeout_ms=TIMEOUT_MS, secret=secret)
        await store.open()
        self._open.append(store)
        return store

    async def leave(self, store: Store) -> None:
        self._open.remove(store)
        await store.close()

    async def close(self) -> None:
        while self._open:
            await self.leave(self._open[-1])


UrlMaker = Callable[[pytest.FixtureRequest, Path], str]


def _sqlite_url(request: pytest.FixtureRequest, directory: Path) -> str:
    return f"sqlite:{directory / 'ledger.db'}"


def _memory_url(request: pytest.FixtureRequest, directory: Path) -> str:
    return "memory:"


URLS: dict[str, UrlMaker] = {"sqlite": _sqlite_url, "memory": _memory_url}


@pytest.fixture(params=list(SCHEMES))
async def house(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[House]:
    house = House(request.param, URLS[request.param](request, tmp_path))
    yield house
    await house.close()


@pytest.fixture
async def store(house: House) -> Store:
    return await house.enter()
