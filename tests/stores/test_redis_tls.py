"""Redis over TLS with an authority of its own: each form of it, and what is told when it fails (D1)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.clock import SystemClock
from proxy.ports import Query, StoreUnavailable
from proxy.stores import redis
from proxy.stores.redis import RedisStore
from proxy.stores.redis_listener import HELLO
from proxy.stores.redis_trouble import Trouble
from tests.contract.values import lead
from tests.stores.redis_server import Server, certificate, redis_binary

CLOCK = SystemClock()


class TlsHost:
    """Where servers take nothing but TLS, of one authority."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.crt, self.key = certificate(directory / "own")
        self.servers: list[Server] = []

    def server(self, *options: str, asks_clients: bool = False) -> Server:
        server = Server(self.directory / f"server{len(self.servers)}", binary=redis_binary())
        server.options += ["--port", "0", "--tls-port", str(server.port), *options]
        server.options += ["--tls-auth-clients", "yes" if asks_clients else "no", "--tls-replication", "yes"]
        server.options += ["--tls-cert-file", str(self.crt), "--tls-key-file", str(self.key)]
        server.options += ["--tls-ca-cert-file", str(self.crt)]
        self.servers.append(server)
        return server


@pytest.fixture
def tls(tmp_path: Path) -> Iterator[TlsHost]:
    host = TlsHost(tmp_path)
    yield host
    for server in host.servers:
        server.stop()


async def _serves(url: str, at: Server) -> None:
    """Claims are made and kept, and ends of runs are listened for."""
    store = RedisStore(url, clock=CLOCK, timeout_ms=10_000)
    await store.open()
    try:
        leading = await lead(store, "K-1", lease_ms=60_000)
        assert await store.load(leading.id) == leading
        assert await store.wait(leading, timeout_ms=1) == leading
        at.wait_until(lambda client: HELLO.encode() in client.execute_command("PUBSUB CHANNELS"))
    finally:
        await store.close()


async def _left(server: Server) -> None:
    """Farewells are said, and the sockets closed, while the loop runs."""
    await asyncio.to_thread(
        server.wait_until, lambda client: not [c for c in client.client_list() if c["name"] == "safepost"]
    )
    for _ in range(10):
        await asyncio.sleep(0)


async def test_listener_at_a_cluster_speaks_tls_where_the_url_says_so(tls: TlsHost) -> None:
    """It spoke plainly, and would have shown the password to whoever listened (F2)."""
    node = tls.server("--cluster-enabled", "yes", "--tls-cluster", "yes").start()
    with contextlib.closing(node.client()) as client:
        client.execute_command("CLUSTER ADDSLOTSRANGE", "0", "16383")
    node.wait_until(lambda client: client.execute_command("CLUSTER INFO")["cluster_state"] == "ok")
    await _serves(f"redis+cluster://127.0.0.1:{node.port}?tls=true&ssl_ca_certs={tls.crt}", node)


async def test_sentinels_are_asked_over_tls_where_the_url_says_so(tls: TlsHost) -> None:
    primary = tls.server().start()
    sentinel = tls.server("--sentinel")
    sentinel.directory.mkdir(parents=True)
    sentinel.file = sentinel.directory / "sentinel.conf"
    sentinel.file.write_text(f"sentinel monitor pay 127.0.0.1 {primary.port} 1\n")
    sentinel.start()
    address = f"redis+sentinel://127.0.0.1:{sentinel.port}/pay/0?tls=true&ssl_ca_certs={tls.crt}"
    await _serves(address, primary)


async def test_client_certificate_is_shown_where_the_server_asks_for_one(tls: TlsHost) -> None:
    server = tls.server(asks_clients=True).start()
    url = f"rediss://127.0.0.1:{server.port}/0?ssl_ca_certs={tls.crt}"
    await _serves(f"{url}&ssl_certfile={tls.crt}&ssl_keyfile={tls.key}", server)
    with pytest.raises(StoreUnavailable, match=r"TLS fails|lost or refused: Connection reset"):
        await RedisStore(url, clock=CLOCK, timeout_ms=1_000).open()


@pytest.mark.parametrize("form", ["rediss://127.0.0.1:{}/0?", "redis+cluster://127.0.0.1:{}?tls=true&"])
async def test_certificate_of_another_authority_is_told_as_that(tls: TlsHost, form: str) -> None:
    server = tls.server().start()
    stranger, _ = certificate(tls.directory / "other")
    url = f"{form.format(server.port)}ssl_ca_certs={stranger}"
    with pytest.raises(StoreUnavailable, match=r"certificate does not verify \(ssl_ca_certs\): self-signed"):
        await RedisStore(url, clock=CLOCK, timeout_ms=1_000).open()


async def test_file_that_is_not_there_is_told_as_that(tls: TlsHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis, "OPEN_S", 0.5)
    server = tls.server().start()
    url = f"rediss://127.0.0.1:{server.port}/0?ssl_ca_certs={tls.directory / 'none.crt'}"
    with pytest.raises(StoreUnavailable, match="No such file"):
        await RedisStore(url, clock=CLOCK, timeout_ms=1_000).open()


async def test_frozen_server_owes_a_farewell_that_nobody_waits_for(tls: TlsHost) -> None:
    """redis-py raised what it waited for in vain: out of `close`, before the journal's, and past the guardian."""
    server = tls.server().start()
    store = RedisStore(
        f"rediss://127.0.0.1:{server.port}/0?ssl_ca_certs={tls.crt}", clock=CLOCK, timeout_ms=500
    )
    await store.open()
    await asyncio.gather(*(store.find(Query()) for _ in range(4)))
    server.freeze()
    try:
        with pytest.raises(Trouble):
            await store._link.run("GET", "safepost:marker")
        await store.close()
    finally:
        server.thaw()
    await _left(server)


async def test_store_of_a_frozen_server_closes(tls: TlsHost) -> None:
    server = tls.server().start()
    store = RedisStore(
        f"rediss://127.0.0.1:{server.port}/0?ssl_ca_certs={tls.crt}", clock=CLOCK, timeout_ms=500
    )
    await store.open()
    server.freeze()
    try:
        await store.close()
    finally:
        server.thaw()
    await _left(server)
