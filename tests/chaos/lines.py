"""A TCP line that can go bad: everything a network does to a connection. Bytes are changed only under TLS.

A line stands between two real processes. Each connection draws one flaw for its life from the line's mood:
it passes, or it is late, cut by a reset, ended in the middle of a message, or swallowed without a word, after
so many bytes of one direction. `sever` and `mend` act on the connections that already stand.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random  # noqa: TID251 -- seeded: the same seed plans the same faults
from typing import Final, Self

CHUNK_BYTES: Final = 65_536
CUT_BYTES_MAX: Final = 6_000
"""A few requests and answers long: cuts fall into heads, into bodies, and between two messages of a connection."""
DELAY_S_MAX: Final = 0.3
_LINGER_ZERO: Final = struct.pack("ii", 1, 0)  # closing then sends RST instead of FIN


class Flaw(StrEnum):
    """What is wrong with a connection. `UP` is towards the server, `DOWN` towards the client."""

    NONE = "none"
    DELAY = "delay"
    REFUSE = "refuse"  # accepted and reset before a byte passes
    RESET_UP = "reset_up"  # both ends get a reset once so many bytes went up
    RESET_DOWN = "reset_down"
    HALF_CLOSE_UP = "half_close_up"  # the server sees the end of the stream, the client nothing
    CLOSE_DOWN = "close_down"  # the client sees the end of the stream in the middle of an answer
    HOLE_UP = "hole_up"  # bytes are taken and never arrive
    HOLE_DOWN = "hole_down"
    ALTER_UP = "alter_up"  # a byte arrives as another one, which only TLS can notice
    ALTER_DOWN = "alter_down"


UPWARD: Final = frozenset({Flaw.RESET_UP, Flaw.HALF_CLOSE_UP, Flaw.HOLE_UP, Flaw.ALTER_UP})
ALTERING: Final = frozenset({Flaw.ALTER_UP, Flaw.ALTER_DOWN})
SOUND: Final[Mapping[Flaw, int]] = {Flaw.NONE: 1}


@dataclass(frozen=True, slots=True)
class Fate:
    """What was drawn for one connection. `after_bytes`: how much of the flawed direction passes first."""

    flaw: Flaw
    after_bytes: int = 0
    delay_s: float = 0.0


class Link:
    """One connection through the line: a stream on each side, pumped until one of them ends."""

    def __init__(self, fate: Fate, near: asyncio.StreamWriter, far: asyncio.StreamWriter) -> None:
        self._fate = fate
        self._near = near
        self._far = far
        self._ended: set[asyncio.StreamWriter] = set()

    async def pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_up: bool) -> None:
        """Carry one direction until its end, or until its flaw is due."""
        fate = self._fate
        is_flawed = fate.flaw not in (Flaw.NONE, Flaw.DELAY) and is_up == (fate.flaw in UPWARD)
        left = fate.after_bytes
        try:
            while chunk := await reader.read(CHUNK_BYTES):
                if fate.delay_s:
                    await asyncio.sleep(fate.delay_s)
                if is_flawed and len(chunk) > left and fate.flaw in ALTERING:
                    chunk = altered(chunk, left)
                    is_flawed = False
                elif is_flawed and len(chunk) > left:
                    if left:
                        writer.write(chunk[:left])
                    await self._spoil(writer)
                    left = 0
                    continue
                left -= len(chunk)
                writer.write(chunk)
                await writer.drain()
            self._end(writer)
        except OSError:
            self.reset()  # one side broke: the other must hear of it

    async def _spoil(self, writer: asyncio.StreamWriter) -> None:
        flaw = self._fate.flaw
        if flaw in (Flaw.RESET_UP, Flaw.RESET_DOWN):
            self.reset()
        elif flaw in (Flaw.HALF_CLOSE_UP, Flaw.CLOSE_DOWN):
            await writer.drain()
            self._end(writer)

    def _end(self, writer: asyncio.StreamWriter) -> None:
        """Say the end of one direction, once."""
        if writer not in self._ended and not writer.is_closing():
            self._ended.add(writer)
            writer.write_eof()

    def reset(self) -> None:
        """End both sides by a true RST."""
        for writer in (self._near, self._far):
            reset(writer)


def altered(chunk: bytes, at: int) -> bytes:
    return chunk[:at] + bytes((chunk[at] ^ 1,)) + chunk[at + 1 :]


def reset(writer: asyncio.StreamWriter) -> None:
    """Abort a connection so that its peer sees a reset."""
    sock = writer.get_extra_info("socket")
    if sock is None or writer.transport.is_closing():
        return
    with socket.socket(fileno=os.dup(sock.fileno())) as twin:
        twin.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
    writer.transport.abort()


@dataclass(slots=True)
class Line:
    """A listening port whose connections lead to `target`, through whatever the mood has in store.

    Args: mood: how often which flaw is drawn, as weights. counts: the flaws that were drawn so far.
    """

    target: str
    chance: Random
    mood: Mapping[Flaw, int] = field(default_factory=lambda: dict(SOUND))
    counts: Counter[str] = field(default_factory=Counter)
    port: int = 0
    _server: asyncio.Server | None = None
    _links: set[Link] = field(default_factory=set)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @classmethod
    async def open(cls, target: str, chance: Random) -> Self:
        line = cls(target, chance)
        line._server = await asyncio.start_server(line._accept, "127.0.0.1", 0)
        line.port = line._server.sockets[0].getsockname()[1]
        return line

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def mend(self) -> None:
        """From now on nothing goes wrong; what already did is ended, so that nobody hangs on it."""
        self.mood = SOUND
        self.sever()

    def sever(self) -> None:
        """Reset every connection that stands."""
        for link in tuple(self._links):
            link.reset()

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self.sever()
        await asyncio.gather(*self._tasks)

    def _draw(self) -> Fate:
        flaws = list(self.mood)
        (flaw,) = self.chance.choices(flaws, weights=[self.mood[one] for one in flaws])
        delay_s = self.chance.uniform(0.0, DELAY_S_MAX) if flaw is Flaw.DELAY else 0.0
        return Fate(flaw, self.chance.randrange(CUT_BYTES_MAX), delay_s)

    def _accept(self, near_in: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._carry(near_in, near))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry(self, near_in: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        fate = self._draw()
        if fate.flaw is not Flaw.NONE:
            self.counts[fate.flaw.value] += 1
        host, _, port = self.target.rpartition(":")
        if fate.flaw is Flaw.REFUSE:
            reset(near)
            return
        try:
            far_in, far = await asyncio.open_connection(host, int(port))
        except OSError:
            reset(near)
            return
        link = Link(fate, near, far)
        self._links.add(link)
        try:
            await asyncio.gather(link.pump(near_in, far, is_up=True), link.pump(far_in, near, is_up=False))
        finally:
            self._links.discard(link)
            near.close()
            far.close()
