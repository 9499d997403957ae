"""The pool of upstream connections: capped, with a bounded queue; a call that gave up keeps no slot."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from proxy.core.http import NotSent, NotSentReason
from proxy.wire.connect import Connector
from proxy.wire.link import Link


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """Sizes and times of the pool (H10)."""

    connections_max: int = 1_000
    waiting_max: int = 10_000
    """Calls that may queue for a connection; as many as the listener has connections."""
    wait_ms: int = 5_000
    idle_ms: int = 4_000
    """Below the 5 s after which common servers (Node) close an idle connection: so it is we who close."""
    age_ms_max: int = 60_000
    """After this a connection is not used again, so that a change of the platform's address is followed."""


_CLOSED = NotSent(NotSentReason.POOL_TIMEOUT, "the pool of connections is closed")


class LinkPool:
    """Hands out connections, newest idle one first. A slot is one connection: opening, busy or idle."""

    def __init__(self, connector: Connector, limits: PoolLimits) -> None:
        self._connector = connector
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._idle: dict[Link, None] = {}
        self._slots = 0
        self._waiting: dict[asyncio.Future[Link | NotSent | None], None] = {}
        self._is_closed = False

    @property
    def connections_open(self) -> int:
        """Opening, busy and idle ones together."""
        return self._slots

    @property
    def connections_idle(self) -> int:
        return len(self._idle)

    def take_idle(self) -> Link | None:
        """An idle connection that the kernel says is still good."""
        while self._idle:
            link, _ = self._idle.popitem()
            if link.is_fit and not self._is_old(link):
                return link
            self.discard(link)
        return None

    async def take(self, *, fresh: bool) -> Link | NotSent:
        """A connection, once there is one; `fresh` never takes one that was used before."""
        if self._is_closed:
            return _CLOSED
        if not fresh and (link := self.take_idle()) is not None:
            return link
        if self._slots >= self._limits.connections_max and self._idle:
            self._evict_oldest_idle()
        if self._slots < self._limits.connections_max:
            self._slots += 1
            return await self._opened()
        return await self._queued(fresh=fresh)

    async def _opened(self) -> Link | NotSent:
        """A new connection in a slot that is already taken; the slot is given on if it fails."""
        link: Link | NotSent | None = None
        try:
            link = await self._connector.open(self._new_link)
        finally:
            if not isinstance(link, Link):
                self._give_slot_on()
        if isinstance(link, Link) and not link.is_fit:
            self.discard(link)
            return NotSent(NotSentReason.CONNECTION_LOST, "the platform closed the connection at once")
        return link

    def _new_link(self) -> Link:
        return Link(self._loop, self._lost)

    async def _queued(self, *, fresh: bool) -> Link | NotSent:
        if len(self._waiting) >= self._limits.waiting_max:
            return NotSent(NotSentReason.POOL_TIMEOUT, "too many calls wait for a connection")
        turn: asyncio.Future[Link | NotSent | None] = self._loop.create_future()
        self._waiting[turn] = None
        try:
            async with asyncio.timeout(self._limits.wait_ms / 1000):
                link = await turn
        except TimeoutError:
            self._refuse_turn(turn)
            return NotSent(NotSentReason.POOL_TIMEOUT, f"no free connection within {self._limits.wait_ms} ms")
        except asyncio.CancelledError:
            self._refuse_turn(turn)
            raise
        if isinstance(link, NotSent):
            return link
        if link is not None and not fresh and link.is_fit:
            return link
        if link is not None:
            link.abort()
        return await self._opened()

    def _refuse_turn(self, turn: asyncio.Future[Link | NotSent | None]) -> None:
        """Give on what was handed to a call that has just given up (O-35)."""
        self._waiting.pop(turn, None)
        if not turn.done() or turn.cancelled():
            turn.cancel()
            return
        link = turn.result()
        if link is None:
            self._give_slot_on()
        elif isinstance(link, Link):
            self.give_back(link)

    def give_back(self, link: Link) -> None:
        """Take in a connection that can carry another exchange; an old one is closed."""
        if self._is_closed or link.is_lost or self._is_old(link):
            self.discard(link)
            return
        if (turn := self._next_turn()) is not None:
            turn.set_result(link)
            return
        self._idle[link] = None
        link.rest(self._limits.idle_ms)

    def discard(self, link: Link) -> None:
        """Close a connection and give its slot on."""
        link.abort()
        self._give_slot_on()

    def _give_slot_on(self) -> None:
        if (turn := self._next_turn()) is not None:
            turn.set_result(None)
        else:
            self._slots -= 1

    def _next_turn(self) -> asyncio.Future[Link | NotSent | None] | None:
        """The call that has waited longest; one that gave up in this turn of the loop is passed over."""
        while self._waiting:
            turn = next(iter(self._waiting))
            del self._waiting[turn]
            if not turn.done():
                return turn
        return None

    def _evict_oldest_idle(self) -> None:
        oldest = next(iter(self._idle))
        del self._idle[oldest]
        self.discard(oldest)

    def _lost(self, link: Link) -> None:
        """An idle connection ended; a busy one is given up by its call."""
        if link in self._idle:
            del self._idle[link]
            self._give_slot_on()

    def _is_old(self, link: Link) -> bool:
        return (self._loop.time() - link.born_at) * 1000 > self._limits.age_ms_max

    def close(self) -> None:
        """Close idle connections; busy ones end with their exchanges, and no new work is taken."""
        self._is_closed = True
        for turn in self._waiting:
            if not turn.done():
                turn.set_result(_CLOSED)
        self._waiting.clear()
        while self._idle:
            link, _ = self._idle.popitem()
            self.discard(link)
