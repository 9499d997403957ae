"""Announcements from worker to worker: those of all workers reach the one that serves the admin listener (A2).

Datagrams on a Unix socket in the workers' folder. What can't be delivered at once is counted and dropped: the
ledger holds the truth, and a console looks at it every few seconds anyway.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path

import msgspec

DATAGRAM_BYTES_MAX = 60_000
BURST = 200  # read in one turn of the loop

Deliver = Callable[[str, dict[str, object], int], None]
"""Told (kind, data, wall-clock milliseconds)."""


class Packet(msgspec.Struct, array_like=True):
    """One announcement on its way."""

    kind: str
    data: dict[str, object]
    at_ms: int


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Packet).decode


class Relay:
    """One worker's end.

    Args: folder: the workers' own. serves: whether this worker takes in what the others announce.
    """

    def __init__(self, folder: Path, *, serves: bool, deliver: Deliver) -> None:
        self._path = folder / "announcements.sock"
        self._serves = serves
        self._deliver = deliver
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._loop: asyncio.AbstractEventLoop | None = None

    def listen(self) -> None:
        """Take in the others' announcements from now on. Needs a running loop; again is harmless."""
        if not self._serves or self._loop is not None:
            return
        self._path.unlink(missing_ok=True)
        self._socket.bind(str(self._path))
        self._path.chmod(0o600)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket, self._read)

    def send(self, kind: str, data: dict[str, object], at_ms: int) -> bool:
        """Pass one on, unless this worker serves itself. False: it was lost."""
        if self._serves:
            return True
        packet = _encode(Packet(kind, data, at_ms))
        if len(packet) > DATAGRAM_BYTES_MAX:
            return False
        try:
            self._socket.sendto(packet, str(self._path))
        except OSError:
            return False  # the serving worker is busy, or just being replaced
        return True

    def close(self) -> None:
        if self._loop is not None:
            self._loop.remove_reader(self._socket)
            self._loop = None
        self._socket.close()

    def _read(self) -> None:
        for _ in range(BURST):
            try:
                packet = self._socket.recv(DATAGRAM_BYTES_MAX)
            except BlockingIOError:
                return
            told = _decode(packet)
            self._deliver(told.kind, told.data, told.at_ms)
