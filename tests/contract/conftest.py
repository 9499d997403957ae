"""Every store of the scheme table under one suite: how to open one, and another one over the same rows."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from proxy.ports import Store
from proxy.stores import SCHEMES, make_store
from tests.contract.values import HandClock, LiveClock
from tests.stores.redis_server import ClusterTrio, SentinelTrio, Server, certificate, redis_binary

TIMEOUT_MS = 20_000
MEMORY = "memory"


class House:
    """One ledger, and as many open stores over it as a test wants: each stands for a process."""

    def __init__(self, scheme: str, url: str) -> None:
        self.scheme = scheme
        self.url = url
        self.clock = HandClock()
        self.is_durable = scheme != MEMORY
        self.has_own_clock = "redis" in scheme or scheme == "unix"
        self._open: list[Store] = []

    async def enter(self, *, secret: bytes | None = None) -> Store:
        """Another process opens the ledger."""
        if not self.is_durable and self._open:
            return self._open[0]
        clock = LiveClock(self.clock) if self.has_own_clock else self.clock
        store = make_store(self.url, clock=clock, timeout_ms=TIMEOUT_MS, secret=secret)
        await store.open()
        self._open.append(store)
        return store

    async def leave(self, store: Store) -> None:
        self._open.remove(store)
        await store.close()

    async def close(self) -> None:
        while self._open:
            await self.leave(self._open[-1])


@pytest.fixture(scope="session")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("valkey")).start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Debian's Redis, with TLS beside its socket; Valkey where it isn't installed."""
    directory = tmp_path_factory.mktemp("redis")
    crt, key = certificate(directory)
    server = Server(directory, binary=redis_binary())
    server.options += ["--port", "0", "--tls-port", str(server.port), "--tls-auth-clients", "no"]
    server.options += ["--tls-cert-file", str(crt), "--tls-key-file", str(key)]
    yield server.start()
    server.stop()


@pytest.fixture(scope="session")
def sentinel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SentinelTrio]:
    trio = SentinelTrio(tmp_path_factory.mktemp("sentinel"))
    try:
        yield trio.start()
    finally:
        trio.stop()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterTrio]:
    trio = ClusterTrio(tmp_path_factory.mktemp("cluster"))
    try:
        yield trio.start()
    finally:
        trio.stop()


def emptied(*servers: Server) -> None:
    for server in servers:
        with contextlib.closing(server.client()) as client:
            client.flushall()


def url_of(scheme: str, request: pytest.FixtureRequest, directory: Path) -> str:
    """An empty ledger under that scheme."""
    if scheme == "sqlite":
        return f"sqlite:{directory / 'ledger.db'}"
    if scheme == "redis+sentinel":
        trio: SentinelTrio = request.getfixturevalue("sentinel")
        emptied(trio.primary)
        return trio.url
    if scheme == "redis+cluster":
        nodes: ClusterTrio = request.getfixturevalue("cluster")
        emptied(*nodes.nodes)
        return nodes.url
    if scheme in ("unix", "rediss"):
        server: Server = request.getfixturevalue("redis")
        emptied(server)
        tls = f"rediss://127.0.0.1:{server.port}/0?ssl_ca_certs={server.directory / 'server.crt'}"
        return f"unix://{server.socket}?db=0" if scheme == "unix" else tls
    if scheme == "redis":
        plain: Server = request.getfixturevalue("valkey")
        emptied(plain)
        return plain.url
    return "memory:"


@contextlib.asynccontextmanager
async def _house(request: pytest.FixtureRequest, directory: Path) -> AsyncIterator[House]:
    house = House(request.param, url_of(request.param, request, directory))
    yield house
    await house.close()


@pytest.fixture(params=list(SCHEMES))
async def house(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[House]:
    async with _house(request, tmp_path) as opened:
        yield opened


@pytest.fixture(params=[scheme for scheme in SCHEMES if scheme != MEMORY])
async def durable(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[House]:
    """A house that outlives those who leave it: what is in memory only ends with its process."""
    async with _house(request, tmp_path) as opened:
        yield opened


@pytest.fixture
async def store(house: House) -> Store:
    return await house.enter()
