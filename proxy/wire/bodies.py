"""Message bodies: strict decoders without I/O, and the intake through which a body reaches its reader.

Framing is RFC 9112 sections 6 and 7, taken literally: a chunk-size line is hex digits, optional extensions
and CRLF. Whatever could be read in two ways raises `BadBody`; nothing is repaired.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable
from typing import Protocol

from proxy.core.http import Headers, without
from proxy.ports import BodyTooLarge
from proxy.wire.fields import BadFields, end_to_end, scan_fields

READ_BUFFER_BYTES = 65_536
"""How much of a streamed body is held for a slow reader: one usual read of the loop's transports."""

_SMALL_BYTES = 4_096
"""Pieces below this are joined, so that a body sent in crumbs does not cost many times its size."""

_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;[\t\x20-\x7e\x80-\xff]*)?\r\n")
_CHUNK_LINE_BEGUN = re.compile(rb"[0-9A-Fa-f]{1,15}[ \t;\r]|[0-9A-Fa-f]{0,15}\Z")
_CHUNK_LINE_BYTES_MAX = 1_024
_EXTENSION_BYTES_MAX = 16_384
_TRAILER_BYTES_MAX = 16_384


class BadBody(Exception):
    """Body framing that must not be guessed about."""


class BodyDecoder(Protocol):
    """Takes a body's framing off, whatever way its bytes were cut on the wire."""

    @property
    def is_whole(self) -> bool:
        """Whether the body's last byte was taken."""
        ...

    @property
    def trailers(self) -> Headers: ...

    def feed(self, wire: bytes) -> tuple[list[bytes], bytes]:
        """Decoded pieces, and the bytes past the body's end (kept back by the caller).

        Raises: BadBody.
        """
        ...


class LengthDecoder:
    """A body of a declared length."""

    __slots__ = ("_left", "trailers")

    def __init__(self, length: int) -> None:
        self._left = length
        self.trailers: Headers = ()

    @property
    def is_whole(self) -> bool:
        return self._left == 0

    def feed(self, wire: bytes) -> tuple[list[bytes], bytes]:
        size = len(wire)
        if size <= self._left:
            self._left -= size
            return ([wire] if wire else []), b""
        left, self._left = self._left, 0
        return ([wire[:left]] if left else []), wire[left:]


class CloseDecoder:
    """A body that ends with the connection (answers only)."""

    __slots__ = ("is_whole", "trailers")

    def __init__(self) -> None:
        self.is_whole = False
        self.trailers: Headers = ()

    def feed(self, wire: bytes) -> tuple[list[bytes], bytes]:
        return ([wire] if wire else []), b""


class ChunkedDecoder:
    """A chunked body. Extensions are dropped; trailers are kept apart from the headers (O-39)."""

    __slots__ = ("_extensions", "_held", "_left", "_step", "is_whole", "trailers")

    def __init__(self) -> None:
        self.is_whole = False
        self.trailers: Headers = ()
        self._held = b""
        self._left = 0
        self._extensions = 0
        self._step: Callable[[bytes, int, list[bytes]], int] = self._size_line

    def feed(self, wire: bytes) -> tuple[list[bytes], bytes]:
        if self._held:
            wire = self._held + wire
            self._held = b""
        pieces: list[bytes] = []
        at = 0
        while not self.is_whole:
            step = self._step
            now = step(wire, at, pieces)
            if now == at and step == self._step:
                self._held = wire[at:]
                return pieces, b""
            at = now
        return pieces, wire[at:]

    def _size_line(self, wire: bytes, at: int, _pieces: list[bytes]) -> int:
        end = wire.find(b"\r\n", at, at + _CHUNK_LINE_BYTES_MAX)
        if end < 0:
            if len(wire) - at >= _CHUNK_LINE_BYTES_MAX:
                raise BadBody("a chunk-size line is too long")
            if wire.find(b"\n", at) >= 0 or not re.match(
                rb"[0-9A-Fa-f]{1,15}[ \t;\r]|[0-9A-Fa-f]{0,15}\Z", wire[at:]
            ):
                raise BadBody("a chunk-size line is malformed")
            return at
        line = _CHUNK_LINE.fullmatch(wire, at, end + 2)
        if line is None:
            raise BadBody("a chunk-size line is malformed")
        self._extensions += end - line.end(1)
        if self._extensions > _EXTENSION_BYTES_MAX:
            raise BadBody("the chunk extensions are too long")
        self._left = int(line[1], 16)
        self._step = self._chunk if self._left else self._trailer
        return end + 2

    def _chunk(self, wire: bytes, at: int, pieces: list[bytes]) -> int:
        piece = wire[at : at + self._left]
        if piece:
            pieces.append(piece)
            self._left -= len(piece)
        if not self._left:
            self._step = self._chunk_end
        return at + len(piece)

    def _chunk_end(self, wire: bytes, at: int, _pieces: list[bytes]) -> int:
        ending = wire[at : at + 2]
        if ending == b"\r\n":
            self._step = self._size_line
            return at + 2
        if ending not in (b"", b"\r"):
            raise BadBody("a chunk does not end where its size says")
        return at

    def _trailer(self, wire: bytes, at: int, _pieces: list[bytes]) -> int:
        if wire.startswith(b"\r\n", at):
            self.is_whole = True
            return at + 2
        end = wire.find(b"\r\n\r\n", at, at + _TRAILER_BYTES_MAX)
        if end < 0:
            if len(wire) - at >= _TRAILER_BYTES_MAX:
                raise BadBody("the trailers are too long")
            if wire.count(b"\n", at) != wire.count(b"\r\n", at):
                raise BadBody("the trailers hold a bare LF")
            return at
        try:
            fields = scan_fields(b"\r\n" + wire[at : end + 2], 2, end + 2 - at)
        except BadFields as bad:
            raise BadBody(f"bad trailers: {bad}") from bad
        self.trailers = without(tuple(end_to_end(fields, frozenset())), *_NEVER_TRAILERS)
        self.is_whole = True
        return end + 4


_NEVER_TRAILERS = frozenset(
    (b"content-length", b"host", b"content-encoding", b"content-type", b"authorization")
)
"""RFC 9110 section 6.5.1: framing, routing, content format and credentials have no place behind the body."""


class Intake:
    """A body on its way from a connection to the one who reads it, holding no more than it must.

    The connection pushes; `on_room` is called when the reader has made room again after `is_full`, `on_wait`
    whenever the reader has to wait.
    """

    __slots__ = ("_failure", "_on_room", "_waiter", "bytes_max", "is_whole", "on_wait", "pieces", "size")

    def __init__(self, on_room: Callable[[], None]) -> None:
        self.on_wait: Callable[[], None] | None = None
        self.pieces: deque[bytes] = deque()
        self.size = 0
        self.bytes_max = READ_BUFFER_BYTES
        self.is_whole = False
        self._failure: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._on_room = on_room

    @property
    def is_full(self) -> bool:
        return self.size >= self.bytes_max

    def push(self, pieces: list[bytes], *, is_whole: bool) -> None:
        for piece in pieces:
            size = len(piece)
            self.size += size
            if size < _SMALL_BYTES and self.pieces and len(self.pieces[-1]) < _SMALL_BYTES:
                self.pieces[-1] += piece
            else:
                self.pieces.append(piece)
        self.is_whole = is_whole
        self._wake()

    def fail(self, failure: Exception) -> None:
        """End an unfinished body; the reader gets `failure` once it has taken what came before."""
        if not self.is_whole and self._failure is None:
            self._failure = failure
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _more(self) -> None:
        if self.on_wait is not None:
            self.on_wait()
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def take_whole(self) -> bytes | None:
        """The whole body if it is here and nothing of it was taken yet; None otherwise."""
        if not self.is_whole:
            return None
        body = self.pieces[0] if len(self.pieces) == 1 else b"".join(self.pieces)
        self.pieces.clear()
        self.size = 0
        return body

    async def read_whole(self, bytes_max: int) -> bytes:
        """The whole body. Raises: BodyTooLarge, or whatever `fail` was given."""
        self.bytes_max = bytes_max + 1
        self._on_room()
        while not self.is_whole:
            if self.size > bytes_max:
                raise BodyTooLarge
            if self._failure is not None:
                raise self._failure
            await self._more()
        if self.size > bytes_max:
            raise BodyTooLarge
        return self.take_whole() or b""

    def __aiter__(self) -> Intake:
        return self

    async def __anext__(self) -> bytes:
        while not self.pieces:
            if self.is_whole:
                raise StopAsyncIteration
            if self._failure is not None:
                raise self._failure
            await self._more()
        piece = self.pieces.popleft()
        was_full = self.is_full
        self.size -= len(piece)
        if was_full and not self.is_full:
            self._on_room()
        return piece
