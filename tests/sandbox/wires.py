"""A raw-socket client: it shows how a connection really ended, which no HTTP library would."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

PATIENCE_S = 60.0
"""How long to wait for what must come, on a machine that may be busy."""

SILENCE_S = 0.1
"""How long without a byte counts as silence, where silence is what must come."""


@dataclass(frozen=True, slots=True)
class Ending:
    """What came, and how it ended: `closed` by FIN, `reset` by RST, or `silent`."""

    data: bytes
    how: str

    @property
    def status(self) -> int:
        return int(self.data.split(b" ", 2)[1])

    @property
    def head(self) -> bytes:
        return self.data.partition(b"\r\n\r\n")[0].lower()

    @property
    def body(self) -> bytes:
        return self.data.partition(b"\r\n\r\n")[2]


class Wire:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def to(cls, url: str) -> Self:
        parts = urlsplit(url)
        return cls(*await asyncio.open_connection(parts.hostname, parts.port))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.transport.abort()

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def ending(self, *, silence_s: float = PATIENCE_S) -> Ending:
        """Read until the connection ends, or nothing comes for so long."""
        data = b""
        while True:
            try:
                async with asyncio.timeout(silence_s):
                    chunk = await self.reader.read(65536)
            except TimeoutError:
                return Ending(data, "silent")
            except ConnectionResetError:
                return Ending(data, "reset")
            if not chunk:
                return Ending(data, "closed")
            data += chunk


def post(path: str, body: object = None, *, key: str = "K", close: bool = True, more: str = "") -> bytes:
    """A whole request; `close` asks for the connection's end, so that `ending` needn't wait for silence."""
    sent = b"" if body is None else json.dumps(body).encode()
    connection = "Connection: close\r\n" if close else ""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: sandbox.test\r\nAuthorization: Bearer sk_test_A\r\n"
        f"Content-Type: application/json\r\nIdempotency-Key: {key}\r\n{connection}{more}"
        f"Content-Length: {len(sent)}\r\n\r\n"
    )
    return head.encode() + sent


def payment(order: str, *, key: str = "K", close: bool = True) -> bytes:
    body = {"merchant_order_no": order, "amount": 10_000, "currency": "USD"}
    return post("/v1/payments", body, key=key, close=close)


async def until(holds: Callable[[], bool | Awaitable[bool]]) -> None:
    """Wait for something that happens on its own; the test fails if it doesn't."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            held = holds()
            if held if isinstance(held, bool) else await held:
                return
            await asyncio.sleep(0.001)


async def play(url: str, request: bytes, *, silence_s: float = PATIENCE_S) -> Ending:
    """One request on a connection of its own."""
    async with await Wire.to(url) as wire:
        wire.send(request)
        return await wire.ending(silence_s=silence_s)
