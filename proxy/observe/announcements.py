"""What operators and consoles are told as it happens (U7, A2): a ring of numbered announcements.

A reader that comes back names the last number it saw and gets what it missed, as far as the ring reaches.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

KEPT = 1_000
READERS_MAX = 200


@dataclass(frozen=True, slots=True)
class Announcement:
    """`data` holds only what may be shown: no body, no card, no credential."""

    id: int
    at_ms: int
    kind: str
    data: dict[str, object]


class TooManyReaders(Exception):
    """More streams are open than one process serves."""


@dataclass(slots=True)
class Announcements:
    """The ring. Numbers start at `first` so that those of a process before it are lower."""

    first: int = 1
    _ring: deque[Announcement] = field(default_factory=lambda: deque(maxlen=KEPT))
    _next: int = 0
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _readers: int = 0
    _is_closed: bool = False

    def __post_init__(self) -> None:
        self._next = self.first

    def announce(self, kind: str, data: dict[str, object], *, at_ms: int) -> None:
        self._ring.append(Announcement(self._next, at_ms, kind, data))
        self._next += 1
        news, self._news = self._news, asyncio.Event()
        news.set()

    def since(self, last: int | None) -> tuple[list[Announcement], bool]:
        """What came after `last`, and whether the ring still holds all of it."""
        if last is None:
            return [], True
        oldest = self._ring[0].id if self._ring else self._next
        whole = oldest - 1 <= last < self._next
        return [one for one in self._ring if one.id > last or not whole], whole

    @property
    def last_id(self) -> int:
        return self._next - 1

    @property
    def is_full(self) -> bool:
        """Whether no further stream is served."""
        return self._readers >= READERS_MAX

    async def changed(self, *, timeout_s: float) -> bool:
        """Wait for the next announcement; False when the time is up or the process ends."""
        if self._is_closed:
            return False
        news = self._news
        try:
            async with asyncio.timeout(timeout_s):
                await news.wait()
        except TimeoutError:
            return False
        return not self._is_closed

    async def read(self, last: int | None, *, beat_s: float) -> AsyncIterator[Announcement | None]:
        """Announcements after `last` (None: from now on), as they come; None as a sign of life between.

        Raises: TooManyReaders.
        """
        if self._readers >= READERS_MAX:
            raise TooManyReaders
        self._readers += 1
        try:
            seen = self.last_id if last is None else last
            while not self._is_closed:
                found, _ = self.since(seen)
                for one in found:
                    seen = one.id
                    yield one
                if not found and not await self.changed(timeout_s=beat_s):
                    yield None
        finally:
            self._readers -= 1

    def close(self) -> None:
        """End every reader."""
        self._is_closed = True
        self._news.set()
