"""A listener and an upstream around raw peers, closed again whatever a test does."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import pytest
import uvloop

from proxy.core.http import Response, WireRequest
from proxy.ports import CallHandler, Exchange
from proxy.wire.caller import ListenerLimits
from proxy.wire.connect import LookUp, system_look_up
from proxy.wire.listener import Listener, listen
from proxy.wire.pool import PoolLimits
from proxy.wire.sockets import Endpoint
from proxy.wire.tls import TlsFiles
from proxy.wire.upstream import HttpUpstream

from .peers import RawCaller, RawPlatform, Script


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Every test of the wire runs on both loops."""
    return {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.new_event_loop}


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class Bench:
    """What a test puts together: a platform, an upstream to it, a listener, callers."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self.errors: list[BaseException] = []
        self.loop_faults: list[dict[str, object]] = []

    async def platform(
        self, usual: Script | None = None, *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
    ) -> RawPlatform:
        return await self._stack.enter_async_context(RawPlatform(usual, host=host, tls=tls))

    def upstream(
        self,
        url: str,
        *,
        connect_timeout_ms: int = 2_000,
        pool: PoolLimits | None = None,
        tls: TlsFiles | None = None,
        response_bytes_max: int = 8 * 1024 * 1024,
        clock: Callable[[], int] = monotonic_ms,
        look_up: LookUp = system_look_up,
    ) -> HttpUpstream:
        upstream = HttpUpstream(
            url,
            monotonic_ms=clock,
            on_error=self.errors.append,
            connect_timeout_ms=connect_timeout_ms,
            pool=pool,
            tls=tls,
            response_bytes_max=response_bytes_max,
            look_up=look_up,
        )
        self._stack.push_async_callback(upstream.close)
        return upstream

    async def listener(
        self,
        handler: CallHandler,
        limits: ListenerLimits | None = None,
        *,
        address: str = "127.0.0.1:0",
        tls: TlsFiles | None = None,
    ) -> Listener:
        listener = await listen(Endpoint.parse(address, tls), handler, limits, on_error=self.errors.append)
        self._stack.push_async_callback(listener.close, grace_ms=0)
        return listener

    async def caller(self, listener: Listener) -> RawCaller:
        return await self._stack.enter_async_context(await RawCaller.dial(listener.address))

    def caught(self, _loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        self.loop_faults.append(context)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with AsyncExitStack() as stack:
        made = Bench(stack)
        asyncio.get_running_loop().set_exception_handler(made.caught)
        yield made
    assert made.loop_faults == []


def through(upstream: HttpUpstream) -> CallHandler:
    """A handler that passes every call on, streaming both ways."""

    async def pass_on(exchange: Exchange) -> None:
        head = exchange.head
        has_body = exchange.body_length != 0
        streamed = await upstream.stream(
            WireRequest(head.method, head.target, head.headers, b""),
            exchange.body_chunks() if has_body else None,
            body_length=exchange.body_length,
            sink=exchange,
            timeout_ms=5_000,
        )
        if streamed.result is None:
            return
        if streamed.head_passed:
            exchange.abort()
        else:
            await exchange.reply(Response(502, (), repr(streamed.result).encode()))

    return pass_on


def saying(body: bytes = b"hello", *headers: tuple[bytes, bytes], status: int = 200) -> CallHandler:
    """A handler that reads the body and answers the same to everyone."""

    async def say(exchange: Exchange) -> None:
        await exchange.read_body(bytes_max=1_000_000)
        await exchange.reply(Response(status, headers, body))

    return say
