"""Both ends of the data plane in memory: no sockets, no waiting, thousands of conversations a second.

The product's own classes run unchanged; only the transports beneath them, which the loop would make, are these.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from proxy.core.http import NotSent
from proxy.wire.caller import CallerConnection, ListenerLimits
from proxy.wire.connect import Connector, Origin, system_look_up
from proxy.wire.link import Link
from proxy.wire.listener import Listener
from proxy.wire.pool import LinkPool, PoolLimits
from proxy.wire.sockets import Endpoint
from proxy.wire.upstream import HttpUpstream
from tests.wire.conftest import through
from tests.wire.strict import Message, read_requests

_P = TypeVar("_P", bound=asyncio.Protocol)
TURNS_MAX = 200
"""Turns of the loop in which a conversation has to come to rest."""


class Wire(asyncio.Transport):
    """A transport that keeps what is written to it."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, protocol: asyncio.Protocol, sock: socket.socket
    ) -> None:
        super().__init__()
        self._loop = loop
        self._protocol = protocol
        self._sock = sock
        self.log = bytearray()
        self.is_reading_paused = False
        self.is_ended = False
        """FIN or RST went out."""
        self._is_closing = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"socket": self._sock, "peername": ("memory", 0)}.get(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing is ever left in the buffer."""

    def get_write_buffer_size(self) -> int:
        return 0

    def can_write_eof(self) -> bool:
        return True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._is_closing and not self.is_ended:
            self.log += data

    def write_eof(self) -> None:
        self.is_ended = True

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        self.is_reading_paused = True

    def resume_reading(self) -> None:
        self.is_reading_paused = False

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = self.is_ended = True
            self._loop.call_soon(self._protocol.connection_lost, None)

    def abort(self) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class Planned:
    """What the platform says to one request: in these pieces, then perhaps its FIN.

    `is_early`: as soon as it has the head (O-25).
    """

    pieces: tuple[bytes, ...]
    ends: bool = False
    is_early: bool = False

    @property
    def data(self) -> bytes:
        return b"".join(self.pieces)


@dataclass(slots=True)
class Seen:
    """A request at the platform, and what was said to it; `message` is None until it is whole."""

    method: bytes
    plan: Planned
    message: Message | None = None


class PlatformWire(Wire):
    """The platform behind one connection: answers each request with the next plan."""

    def __init__(self, loop: asyncio.AbstractEventLoop, link: Link, sock: socket.socket, ends: Ends) -> None:
        super().__init__(loop, link, sock)
        self._ends = ends
        self.answered: list[Seen] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        super().write(data)
        requests, _ = read_requests(bytes(self.log))
        for at, request in enumerate(requests):
            if at == len(self.answered):
                self._answer(request.start.split(b" ")[0])
            self.answered[at].message = request
        begun = bytes(self.log[sum(request.size for request in requests) :])
        if len(self.answered) == len(requests) and b"\r\n\r\n" in begun and self._ends.next_is_early:
            self._answer(begun.split(b" ")[0])

    def _answer(self, method: bytes) -> None:
        plan = self._ends.next_plan()
        seen = Seen(method, plan)
        self.answered.append(seen)
        self._ends.seen.append(seen)
        for piece in plan.pieces:
            self._loop.call_soon(self._deliver, piece)
        if plan.ends:
            self._loop.call_soon(self._finish)

    def _deliver(self, piece: bytes) -> None:
        if not self._is_closing:
            self._protocol.data_received(piece)

    def _finish(self) -> None:
        if not self._is_closing and not self._protocol.eof_received():
            self.close()


class MemoryConnector(Connector):
    """Opens connections to the platform in memory."""

    def __init__(self, ends: Ends) -> None:
        origin = Origin.parse("http://platform.test")
        super().__init__(origin, context=None, timeout_ms=1_000, dns_ttl_ms=1_000, look_up=system_look_up)
        self._ends = ends

    async def open(self, protocol: Callable[[], _P]) -> _P | NotSent:
        link = protocol()
        assert isinstance(link, Link)
        wire = PlatformWire(asyncio.get_running_loop(), link, self._ends.sock, self._ends)
        self._ends.platforms.append(wire)
        link.connection_made(wire)
        return link


class Ends:
    """One conversation: a caller's connection, the product, and as many platform connections as it opens."""

    def __init__(self, sock: socket.socket, plans: Sequence[Planned]) -> None:
        self.sock = sock
        self.platforms: list[PlatformWire] = []
        self.seen: list[Seen] = []
        """Requests at the platform, in the order in which they were answered."""
        self.errors: list[BaseException] = []
        self._plans = list(plans)
        upstream = HttpUpstream("http://platform.test", monotonic_ms=lambda: 0, on_error=self.errors.append)
        upstream.pool = LinkPool(MemoryConnector(self), PoolLimits())
        self._upstream = upstream
        self._listener = Listener(
            Endpoint(),
            through(upstream),
            ListenerLimits(),
            refusal=_refusal,
            on_error=self.errors.append,
            protected=frozenset((b"idempotency-key",)),
        )
        self._loop = asyncio.get_running_loop()
        connection = CallerConnection(self._listener)
        self.caller = Wire(self._loop, connection, sock)
        self._connection = connection
        connection.connection_made(self.caller)

    @property
    def next_is_early(self) -> bool:
        return bool(self._plans) and self._plans[0].is_early

    def next_plan(self) -> Planned:
        return self._plans.pop(0) if self._plans else Planned((b"HTTP/1.1 204 No Content\r\n\r\n",))

    async def say(self, parts: Sequence[bytes], *, hangs_up: bool, pauses: bool) -> None:
        """Send the caller's bytes, piece by piece, as long as they are read; then its FIN."""
        for part in parts:
            await self._settled(until=lambda: not pauses and not self.caller.is_reading_paused)
            if self.caller.is_closing() or self.caller.is_reading_paused:
                break
            self._connection.data_received(part)
        await self._settled(until=lambda: False)
        if hangs_up and not self.caller.is_closing() and not self._connection.eof_received():
            self.caller.close()
        await self._settled(until=lambda: False)

    async def _settled(self, *, until: Callable[[], bool]) -> None:
        quiet = 0
        for _ in range(TURNS_MAX):
            before = self._progress()
            await asyncio.sleep(0)
            if until():
                return
            quiet = quiet + 1 if self._progress() == before else 0
            if quiet > 6:
                return

    def _progress(self) -> tuple[int, ...]:
        return (len(self.caller.log), *(len(platform.log) for platform in self.platforms))

    async def close(self) -> None:
        self.caller.close()
        await self._listener.close(grace_ms=0)
        await self._upstream.close()
        for platform in self.platforms:
            platform.close()
        await asyncio.sleep(0)


def _refusal(status: int, code: str, _message: str, _field: str | None) -> Any:
    from proxy.core.http import Response

    return Response(status, ((b"Refused", code.encode()),), b"refused")
