"""One connection of the sandbox, below aiohttp: what an HTTP library would not let a fault do.

The gate passes bytes through to aiohttp's protocol. It numbers the connection, can end it by a true reset, by
a clean close, or with bytes of its own, and tells when the client has left.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import struct
from collections.abc import Callable
from typing import Final, cast

from aiohttp.web_protocol import RequestHandler

_LINGER_ZERO: Final = struct.pack("ii", 1, 0)
"""SO_LINGER on, for no time: closing then sends RST instead of FIN."""

_REQUEST_LINE = re.compile(rb"([A-Z]+) ([^ ?]+)[^ ]* HTTP/1\.[01]\r\n")

Doorman = Callable[["Gate", str, str], bool]


class Gate(asyncio.Protocol):
    """Stands between the transport and aiohttp.

    Args: doorman: asked with method and path as a request's first bytes arrive; True means that it has dealt
        with the connection, and the bytes go no further. on_made, on_lost: told of the connection's life.
    """

    def __init__(
        self,
        inner: RequestHandler,
        *,
        doorman: Doorman,
        on_made: Callable[[Gate], int],
        on_lost: Callable[[Gate], None],
    ) -> None:
        self.inner = inner
        self.number = 0
        self.gone = asyncio.Event()
        self._doorman = doorman
        self._on_made = on_made
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but its base class
        self.number = self._on_made(self)
        self.inner.connection_made(self._transport)

    def data_received(self, data: bytes) -> None:
        line = _REQUEST_LINE.match(data)
        if line is not None and self._doorman(self, line[1].decode(), line[2].decode("latin-1")):
            return
        self.inner.data_received(data)

    def eof_received(self) -> None:
        self.inner.eof_received()

    def pause_writing(self) -> None:
        self.inner.pause_writing()

    def resume_writing(self) -> None:
        self.inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone.set()
        self._on_lost(self)
        self.inner.connection_lost(exc)

    def write(self, data: bytes) -> None:
        """Send bytes past aiohttp; nothing where the client has left."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        """End the connection cleanly, once everything written has gone."""
        if self._transport is not None:
            self._transport.close()

    def reset(self) -> None:
        """End the connection by a true RST; what was written and has not left is dropped."""
        if self._transport is None or self._transport.is_closing():
            return
        sock = self._transport.get_extra_info("socket")
        # The option is the socket's, not the descriptor's; uvloop's own socket object can't set it.
        with socket.socket(fileno=os.dup(sock.fileno())) as twin:
            twin.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
        self._transport.abort()
