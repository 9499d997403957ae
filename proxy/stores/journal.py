"""A local file of the unresolved operations that this sidecar saw, for a Redis that lost its data (D6).

Appended to as operations change, read at start. Each of several workers has a file of its own, held by a lock;
what a worker that is gone left behind is adopted by whoever starts next.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from proxy.core.model import EntryKind, Guard, Handle, Now, Operation, OperationId, Scope, Subject, replace
from proxy.core.tables import Tables, listed, told
from proxy.ports import StoreUnavailable
from proxy.stores.codec import RowUnreadable, pack, unpack_operation
from proxy.stores.sqlite_writer import Worker

SLOTS = 64  # workers of one host
REWRITE_BYTES = 4 * 1024 * 1024  # a file below this is never worth rewriting
REWRITE_RATIO = 4
_HEAD = struct.Struct("<IHI")  # CRC-32 of id and document, length of the id, length of the document


@dataclass(frozen=True, slots=True)
class PutBack:
    """Write an operation that the store has lost, with its subjects; True where it was lost."""

    operation: Operation
    name: str = "put_back"

    @property
    def scope(self) -> Scope:
        return self.operation.scope

    def apply(self, tables: Tables, now: Now) -> bool:
        lost = self.operation
        if tables.operation(self.scope, lost.id) is not None:
            return False
        text = "the store had lost this record; it was put back from a sidecar's journal"
        tables.put(replace(lost, history=told(lost, now, EntryKind.WRITTEN_ANEW, text)))
        for handle in dict.fromkeys((*lost.handles, lost.subject, lost.twin)):
            if handle is not None:
                self._list(tables, now, handle)
        return True

    def _list(self, tables: Tables, now: Now, handle: Handle) -> None:
        """The guard's holder too: whether the guard is on is asked where it is used (U1)."""
        lost = self.operation
        row = tables.subject(self.scope, handle) or Subject(
            scope=self.scope, handle=handle, updated_ms=now.wall_ms
        )
        guards = row.guards
        if handle in (lost.subject, lost.twin):
            before = guards.get(lost.route) or Guard()
            guard = Guard(holder=before.holder or lost.id, seq=max(before.seq, lost.seq or 1))
            guards = {**guards, lost.route: guard}
        operations = listed(tables, row, lost.id)
        tables.put_subject(replace(row, guards=guards, operations=operations, updated_ms=now.wall_ms))


def _frame(operation: OperationId, doc: bytes) -> bytes:
    name = operation.encode()
    return _HEAD.pack(zlib.crc32(name + doc), len(name), len(doc)) + name + doc


def _frames(content: bytes) -> Iterator[tuple[OperationId, bytes]]:
    """The whole frames; a torn or damaged one ends the file, as after a power cut."""
    at = 0
    while at + _HEAD.size <= len(content):
        checksum, name_bytes, doc_bytes = _HEAD.unpack_from(content, at)
        start = at + _HEAD.size
        at = start + name_bytes + doc_bytes
        if at > len(content) or zlib.crc32(content[start:at]) != checksum:
            return
        yield OperationId(content[start : start + name_bytes].decode()), content[start + name_bytes : at]


class Journal:
    """The file, and what it holds. Written by a thread of its own, never by the event loop.

    Args: path: of the first worker's file; others get a number at its end.
        failed: told once when the file can't be written, and again when it can.
    """

    def __init__(self, path: Path, *, failed: Callable[[str | None], None]) -> None:
        self._path = path
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._worker = Worker("safepost-journal", idle=self._sync)
        self._file: BinaryIO | None = None
        self._held: dict[OperationId, Operation] = {}
        self._pending: list[tuple[OperationId, Operation | None]] = []
        self._docs: dict[OperationId, int] = {}  # of the writing thread: document sizes, for the rewrite
        self._is_dirty = False
        self._is_failing = False

    async def open(self) -> None:
        """Take a file, read what it and the files of workers that are gone hold.

        Raises: StoreUnavailable.
        """
        self._held = await self._worker.call(self._take_file)

    def operations(self) -> tuple[Operation, ...]:
        """The unresolved operations that this sidecar knows of."""
        return tuple(self._held.values())

    def note(self, operation: OperationId, record: Operation | None) -> None:
        """The operation changed; None: it is gone. Written at the end of the event loop's tick."""
        kept = record if record is not None and record.is_unresolved else None
        if kept is not None:
            self._held[operation] = kept
        elif self._held.pop(operation, None) is None:
            return
        if not self._pending:
            self._loop.call_soon(self._flush)
        self._pending.append((operation, kept))

    async def close(self) -> None:
        self._flush()
        await self._worker.call(self._leave_file)
        await self._worker.stop()

    def _flush(self) -> None:
        changes, self._pending = self._pending, []
        if changes:
            self._worker.post(lambda: self._append(changes))

    def _take_file(self) -> dict[OperationId, Operation]:
        held: dict[OperationId, Operation] = {}
        for n in range(SLOTS):
            path = self._path if n == 0 else self._path.with_name(f"{self._path.name}.{n + 1}")
            if self._file is not None and not path.exists():
                continue
            file = self._lock(path)
            if file is None:
                continue
            held.update(_operations_of(file.read()))
            if self._file is None:
                self._file, self._path = file, path
            else:
                path.unlink()
                file.close()
        if self._file is None:
            raise StoreUnavailable(f"{self._path}: store.journal: {SLOTS} other workers hold it; set another")
        self._rewrite(held)
        return held

    def _lock(self, path: Path) -> BinaryIO | None:
        """The file, open and ours; None where another worker has it."""
        try:
            file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "r+b")
        except OSError as error:
            raise StoreUnavailable(f"{path}: store.journal: can't be opened: {error.strerror}") from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            return None
        return file

    def _rewrite(self, held: dict[OperationId, Operation]) -> None:
        """In the file's own place, since its lock goes with it: what is held is in Redis, too."""
        file = self._file
        if file is None:
            return
        frames = [_frame(identity, pack(operation)) for identity, operation in held.items()]
        self._docs = {identity: len(frame) for identity, frame in zip(held, frames, strict=True)}
        file.truncate(0)
        file.write(b"".join(frames))
        file.flush()
        os.fsync(file.fileno())

    def _append(self, changes: list[tuple[OperationId, Operation | None]]) -> None:
        file = self._file
        if file is None:
            return
        frames: list[bytes] = []
        for identity, operation in changes:
            frame = _frame(identity, pack(operation) if operation is not None else b"")
            frames.append(frame)
            if operation is not None:
                self._docs[identity] = len(frame)
            else:
                self._docs.pop(identity, None)
        try:
            file.write(b"".join(frames))
            file.flush()
            self._is_dirty = True
            if file.tell() > max(REWRITE_BYTES, REWRITE_RATIO * sum(self._docs.values())):
                file.seek(0)
                self._rewrite(_operations_of(file.read()))
        except OSError as error:
            self._tell(f"{self._path}: store.journal: can't be written: {error.strerror}")
        else:
            self._tell(None)

    def _sync(self) -> None:
        if self._is_dirty and self._file is not None:
            self._is_dirty = False
            with suppress(OSError):  # the next append meets the same trouble and reports it
                os.fsync(self._file.fileno())

    def _tell(self, trouble: str | None) -> None:
        if (trouble is not None) != self._is_failing:
            self._is_failing = trouble is not None
            self._loop.call_soon_threadsafe(self._failed, trouble)

    def _leave_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with file:
                os.fsync(file.fileno())


def _operations_of(content: bytes) -> dict[OperationId, Operation]:
    """What the file holds in the end. A record that can't be read is left out: the others still help."""
    docs: dict[OperationId, bytes] = {}
    for identity, doc in _frames(content):
        if doc:
            docs[identity] = doc
        else:
            docs.pop(identity, None)
    held: dict[OperationId, Operation] = {}
    for identity, doc in docs.items():
        with suppress(RowUnreadable):
            held[identity] = unpack_operation(doc)
    return held
