"""Finding the platform: names with several addresses, families that refuse, names that change (O-34, O-41)."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from proxy.core.http import Answered, NotSent, NotSentReason, WireRequest
from proxy.wire import connect
from proxy.wire.connect import Address, Connector, Origin
from proxy.wire.tls import FreshContext, TlsFiles, client_context

from .conftest import Bench
from .peers import RawPlatform

GET = WireRequest(b"GET", b"/", (), b"")


class Names:
    """A resolver whose answers a test sets."""

    def __init__(self, *answers: Address) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def look_up(self, _host: str, _port: int) -> list[Address]:
        self.asked += 1
        return self.answers


def v4(address: str, port: int) -> Address:
    return socket.AF_INET, (address, port)


def v6(address: str, port: int) -> Address:
    return socket.AF_INET6, (address, port, 0, 0)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("v6_first", [True, False])
async def test_platform_on_one_family_is_found(
    bench: Bench, host: str, v6_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second family is tried at once after a refusal: what it would wait else is longer than the attempt."""
    monkeypatch.setattr(connect, "STAGGER_S", 600.0)
    platform = await bench.platform(host=host)
    both = [v6("::1", platform.port), v4("127.0.0.1", platform.port)]
    names = Names(*(both if v6_first else both[::-1]))
    upstream = bench.upstream(f"http://dual.test:{platform.port}", look_up=names.look_up)
    assert isinstance(await upstream.send(GET, timeout_ms=5_000), Answered)
    assert platform.hits == 1
    assert platform.received[0].header(b"host") == [b"dual.test:%d" % platform.port]


async def test_address_that_hangs_does_not_hold_the_next_one_up(bench: Bench) -> None:
    """RFC 8305: the second address is tried after a quarter of a second."""
    platform = await bench.platform()
    names = Names(v4("127.0.0.2", platform.port), v4("127.0.0.1", platform.port))
    with ExitStack() as stack:
        full = stack.enter_context(socket.socket())
        full.bind(("127.0.0.2", platform.port))
        full.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.2", platform.port))
        upstream = bench.upstream(f"http://dual.test:{platform.port}", look_up=names.look_up)
        assert isinstance(await upstream.send(GET, timeout_ms=5_000), Answered)


async def test_every_address_refusing_is_not_sent(bench: Bench) -> None:
    names = Names(v6("::1", 9), v4("127.0.0.1", 9), v4("127.0.0.2", 9))
    result = await bench.upstream("http://dual.test:9", look_up=names.look_up).send(GET, timeout_ms=5_000)
    assert isinstance(result, NotSent)
    assert result.reason is NotSentReason.REFUSED


async def test_name_without_an_address_is_not_sent(bench: Bench) -> None:
    result = await bench.upstream("http://dual.test:9", look_up=Names().look_up).send(GET, timeout_ms=5_000)
    assert isinstance(result, NotSent)
    assert result.reason is NotSentReason.DNS


async def test_name_that_takes_too_long_is_not_sent(bench: Bench) -> None:
    async def never(_host: str, _port: int) -> list[Address]:
        await asyncio.Event().wait()
        return []

    upstream = bench.upstream("http://dual.test:9", look_up=never, connect_timeout_ms=20)
    result = await upstream.send(GET, timeout_ms=5_000)
    assert isinstance(result, NotSent)
    assert result.reason is NotSentReason.CONNECT_TIMEOUT


async def test_name_is_looked_up_once_for_many_connections(bench: Bench) -> None:
    platform = await bench.platform()
    names = Names(v4("127.0.0.1", platform.port))
    upstream = bench.upstream(f"http://dual.test:{platform.port}", look_up=names.look_up)
    for _ in range(5):
        assert isinstance(await upstream.send(GET, timeout_ms=5_000, fresh=True), Answered)
    assert names.asked == 1


async def test_name_is_looked_up_again_after_a_refusal(bench: Bench) -> None:
    """A platform that moved is found at once, not when the old answer has run out."""
    platform = await bench.platform()
    names = Names(v4("127.0.0.3", platform.port))
    upstream = bench.upstream(f"http://dual.test:{platform.port}", look_up=names.look_up)
    assert isinstance(await upstream.send(GET, timeout_ms=5_000), NotSent)
    names.answers = [v4("127.0.0.1", platform.port)]
    assert isinstance(await upstream.send(GET, timeout_ms=5_000), Answered)
    assert names.asked == 2


async def test_host_of_the_caller_is_never_dialled(bench: Bench) -> None:
    platform = await bench.platform()
    async with RawPlatform() as evil:
        request = WireRequest(b"GET", b"/http://127.0.0.1:6379/", ((b"Host", evil.url[7:].encode()),), b"")
        assert isinstance(await bench.upstream(platform.url).send(request, timeout_ms=5_000), Answered)
        assert evil.streams == []
    assert platform.received[0].target == b"/http://127.0.0.1:6379/"


@pytest.mark.parametrize(
    ("url", "host", "base"),
    [
        ("http://a.test", b"a.test", b""),
        ("http://A.test:80/", b"a.test", b""),
        ("http://a.test:8080/x/y/", b"a.test:8080", b"/x/y"),
        ("https://a.test", b"a.test", b""),
        ("https://a.test:80/%2F", b"a.test:80", b"/%2F"),
        ("http://[::1]:9000", b"[::1]:9000", b""),
    ],
)
def test_url_gives_host_and_base_path(url: str, host: bytes, base: bytes) -> None:
    origin = Origin.parse(url)
    assert (origin.host_header, origin.base_path) == (host, base)


async def test_descriptor_of_a_connection_that_broke_under_tls_is_closed_once() -> None:
    """uvloop closed it and left the socket object behind, which later closed what had its number by then."""
    origin = Origin.parse("https://127.0.0.1:1")
    faults: list[BaseException] = []
    context = FreshContext(TlsFiles(), client_context, on_error=faults.append)
    connector = Connector(
        origin, context=context, timeout_ms=5_000, dns_ttl_ms=1_000, look_up=connect.system_look_up
    )
    near, far = _connected_pair()
    number = near.fileno()
    reset(far)

    broken = await connector._started(asyncio.get_running_loop(), near, asyncio.Protocol)

    assert isinstance(broken, NotSent)
    assert broken.reason is NotSentReason.TLS
    await asyncio.sleep(0)  # asyncio's own loop closes it in its next round
    with open_file_of(number) as file:
        near.close()
        del near
        gc.collect()
        os.fstat(file)


def _connected_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        near.setblocking(False)
        return near, server.accept()[0]


def reset(sock: socket.socket) -> None:
    """Close it so that its peer sees a reset."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


@contextmanager
def open_file_of(number: int) -> Iterator[int]:
    """Another file that has the descriptor's number now."""
    other = os.open(os.devnull, os.O_RDONLY)
    if other != number:
        os.dup2(other, number)
        os.close(other)
    try:
        yield number
    finally:
        os.close(number)
