"""Log lines on their way out: a bounded queue and one writer thread, so that a full pipe never stops the loop.

Lines that find the queue full are dropped and counted. Lines are whole or absent, never cut.
"""

from __future__ import annotations

import os
import select
import threading
from collections import deque

LINES_MAX = 20_000  # about 8 MB of JSON lines: a second of full load
CHUNK_BYTES = 65_536  # one write; what a pipe holds by default on Linux
NEWLINE = ord("\n")
GATHER_S = 0.005
"""How long the writer waits for more lines before it writes: a wake-up for each would cost the loop more."""


class LineWriter:
    """Writes lines to a file descriptor that it does not own.

    `dropped` counts the lines that were lost: the queue or the disk was full, or the reader is gone.
    """

    def __init__(self, fd: int, *, lines_max: int = LINES_MAX) -> None:
        self._fd = fd
        self._lines_max = lines_max
        self._lines: deque[bytes] = deque()
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._awake = False
        self._broken = False
        self._rest = b""  # of a line that a full disk cut
        self._thread: threading.Thread | None = None
        self.dropped = 0

    def put(self, line: bytes) -> None:
        """Queue one line, its newline included. Never waits. Called from one thread only."""
        if self._broken or len(self._lines) >= self._lines_max:
            self.dropped += 1
            return
        self._lines.append(line)
        if not self._awake:
            self._awake = True
            if self._thread is None:
                self._start()
            self._wake.set()

    def close(self, *, timeout_s: float = 1.0) -> None:
        """Write what is queued, for at most `timeout_s`; a reader that is stuck does not hold the exit up."""
        self._closing.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._write_all, name="log lines", daemon=True)
        self._thread.start()

    def _write_all(self) -> None:
        while True:
            self._wake.wait()
            self._closing.wait(GATHER_S)
            self._wake.clear()
            self._awake = False  # before the queue is emptied: a line put after that sets the event again
            while self._lines and not self._broken:
                self._write(self._chunk())
            if self._closing.is_set() and not self._lines:
                return
            if self._broken:
                self.dropped += len(self._lines)
                self._lines.clear()

    def _chunk(self) -> bytes:
        parts: list[bytes] = []
        size = 0
        while self._lines and size < CHUNK_BYTES:
            line = self._lines.popleft()
            parts.append(line)
            size += len(line)
        return b"".join(parts)

    def _write(self, chunk: bytes) -> None:
        view = memoryview(self._rest + chunk)
        begun = bool(self._rest)
        while view:
            try:
                written = os.write(self._fd, view)
            except BlockingIOError:
                select.select([], [self._fd], [], 1.0)
            except BrokenPipeError:
                self._broken = True  # the reader is gone: what follows is counted as dropped
                self.dropped += bytes(view).count(b"\n")
                return
            except OSError:
                self._drop(bytes(view), begun=begun)
                return
            else:
                begun = view[written - 1] != NEWLINE
                view = view[written:]
        self._rest = b""

    def _drop(self, left: bytes, *, begun: bool) -> None:
        """The disk is full, or fails: later lines may find room again, after the end of one that was `begun`."""
        end = left.index(b"\n") + 1 if begun else 0
        self._rest = left[:end]
        self.dropped += left.count(b"\n", end)
