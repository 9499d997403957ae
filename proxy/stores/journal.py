"""A local file of the unresolved operations that this sidecar saw, for a Redis that lost its data (D6).

Appended to as operations change, read at start. Each of several workers has a file of its own, held by a lock;
what a worker that is gone left behind is adopted by whoever starts next.

A disk that is full or read-only costs what it did not take, and nothing more: half a write is cut off before the
next one, for its reader would stop there, and once a second everything is tried anew until the disk takes it.

A file that is mostly past is replaced by a smaller one that is on the disk before it takes its name: whenever the
process or the host ends, one of the two is there, whole.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from proxy.core.model import EntryKind, Guard, Handle, Now, Operation, OperationId, Scope, Subject, replace
from proxy.core.tables import Tables, listed, told
from proxy.ports import RowUnreadable, StoreUnavailable
from proxy.stores.codec import pack, unpack_operation
from proxy.stores.sqlite_writer import IDLE_S, Worker

SLOTS = 64  # workers of one host
REWRITE_BYTES = 4 * 1024 * 1024  # a file below this is never worth rewriting
REWRITE_RATIO = 4
RETRY_S = 1.0  # between two tries on a disk that takes nothing: each packs everything that is held
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


def _frames(content: bytes) -> Iterator[tuple[OperationId, bytes, int]]:
    """The whole frames, each with where it ends; without a damaged one, or one torn at the end by a power cut."""
    at = 0
    while at + _HEAD.size <= len(content):
        checksum, name_bytes, doc_bytes = _HEAD.unpack_from(content, at)
        start = at + _HEAD.size
        at = start + name_bytes + doc_bytes
        if at > len(content):
            return
        if zlib.crc32(content[start:at]) == checksum:
            yield (
                OperationId(content[start : start + name_bytes].decode()),
                content[start + name_bytes : at],
                at,
            )


class Journal:
    """The file, and what it holds. Written by a thread of its own, never by the event loop.

    Args: path: of the first worker's file; others get a number at its end.
        failed: told once when the file can't be written, and again when it can.
    """

    def __init__(self, path: Path, *, failed: Callable[[str | None], None]) -> None:
        self._path = path
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._worker = Worker("safepost-journal", idle=lambda: self._append(()))
        self._file: FileIO | None = None
        self._held: dict[OperationId, Operation] = {}
        self._pending: list[tuple[OperationId, Operation | None]] = []
        self._docs: dict[OperationId, int] = {}  # of the writing thread: what is in the file, and how large
        self._whole_bytes = 0  # likewise: up to here the file's frames are whole
        self._rewrite_past_bytes = 0  # likewise: below this, the last try says that it can't be replaced
        self._synced_at = self._loop.time()  # likewise
        self._is_dirty = False
        self._is_failing = False  # of the writing thread: something is not in the file
        self._retry: asyncio.TimerHandle | None = None  # of the loop: what is noted waits for it

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
        held = dict(self._held)
        await self._worker.call(lambda: self._leave_file(held))
        await self._worker.stop()
        await asyncio.sleep(0)  # the last complaint is on its way
        if self._retry is not None:
            self._retry.cancel()

    def _flush(self) -> None:
        changes, self._pending = self._pending, []
        if changes and self._retry is None:
            self._worker.post(lambda: self._append(changes))

    def _hear(self, trouble: str | None) -> None:
        """The disk failed, or takes writes again. What was noted between the two is written with all the rest."""
        self._failed(trouble)
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        if trouble is not None:
            self._retry = self._loop.call_later(RETRY_S, self._try_again)
        else:
            self._post_anew()

    def _try_again(self) -> None:
        self._retry = self._loop.call_later(RETRY_S, self._try_again)
        self._post_anew()

    def _post_anew(self) -> None:
        held = dict(self._held)
        self._worker.post(lambda: self._append_anew(held))

    def _take_file(self) -> dict[OperationId, Operation]:
        held: dict[OperationId, Operation] = {}
        try:
            for n in range(SLOTS):
                path = self._path if n == 0 else self._path.with_name(f"{self._path.name}.{n + 1}")
                if self._file is not None and not path.exists():
                    continue
                file = self._lock(path)
                if file is not None:
                    held |= self._take(file, path)
        except OSError as error:
            self._leave_file({})
            text = f"{self._path}: store.journal: can't be used: {error.strerror}"
            raise StoreUnavailable(text) from error
        if self._file is None:
            raise StoreUnavailable(f"{self._path}: store.journal: {SLOTS} other workers hold it; set another")
        return held

    def _take(self, file: FileIO, path: Path) -> dict[OperationId, Operation]:
        """Make the file ours, or what it holds where we have one: it goes only when that is written.

        Raises: OSError.
        """
        content = file.readall()
        docs = _docs_of(content)
        if self._file is None:
            self._file, self._path = file, path.resolve()  # what a link leads to is replaced, not the link
            self._whole_bytes = max((end for _, _, end in _frames(content)), default=0)
            self._docs = {identity: len(_frame(identity, doc)) for identity, doc in docs.items()}
            with suppress(OSError):  # the file may be ours and its folder not: it may be mounted alone
                _beside(self._path).unlink(missing_ok=True)
                _sync_folder(self._path)
        else:
            with file:
                self._write(docs)
                os.fsync(self._file.fileno())
                path.unlink()
        return _operations_of(docs)

    def _lock(self, path: Path) -> FileIO | None:
        """The file, open and ours; None where another worker has it."""
        while True:
            try:
                file = FileIO(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "r+")
            except OSError as error:
                raise StoreUnavailable(f"{path}: store.journal: can't be opened: {error.strerror}") from error
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                file.close()
                return None
            if _is_still(file, path):
                return file
            file.close()

    def _append(self, changes: Sequence[tuple[OperationId, Operation | None]]) -> None:
        """Ignored once something is missing in the file: everything is written anew then, these too."""
        if not self._is_failing:
            self._try(_packed(changes))

    def _append_anew(self, held: dict[OperationId, Operation]) -> None:
        """Everything as it is now, since some of it may not be in the file."""
        docs = _packed(held.items())
        try:
            self._replace(docs)
        except OSError:  # where no other file can be made this one may still take it
            self._try(dict.fromkeys(self._docs.keys() - held.keys(), b"") | docs)
        else:
            self._tell(None)

    def _try(self, docs: dict[OperationId, bytes]) -> None:
        try:
            self._write(docs)
            if self._is_dirty and self._file is not None and self._loop.time() - self._synced_at > IDLE_S:
                self._is_dirty, self._synced_at = False, self._loop.time()
                os.fsync(self._file.fileno())
        except OSError as error:
            self._tell(f"{self._path}: store.journal: can't be written: {error.strerror}")
        else:
            self._tell(None)
            self._rewrite_where_worth_it()

    def _rewrite_where_worth_it(self) -> None:
        least_bytes = max(REWRITE_BYTES, self._rewrite_past_bytes)
        if (
            self._file is None
            or self._whole_bytes <= least_bytes
            or self._whole_bytes <= REWRITE_RATIO * sum(self._docs.values())
        ):
            return
        try:
            self._file.seek(0)
            self._replace(_docs_of(self._file.readall()))
        except OSError:
            # Nothing is missing, it is only longer than need be; where the disk is full the next append says so.
            self._rewrite_past_bytes = 2 * self._whole_bytes

    def _replace(self, docs: dict[OperationId, bytes]) -> None:
        """Hold these and nothing else from now on. Locked before it has its name, so that nobody else takes it.

        Raises: OSError; unless the new file has the name, the one before goes on.
        """
        before, beside = self._file, _beside(self._path)
        if before is None:
            return
        frames = {identity: _frame(identity, doc) for identity, doc in docs.items()}
        content = b"".join(frames.values())
        beside.unlink(missing_ok=True)
        file = FileIO(os.open(beside, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600), "r+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _write_all(file, content)
            os.fsync(file.fileno())
            beside.replace(self._path)
        except OSError:
            file.close()
            with suppress(OSError):  # where it stays, the next one takes it away
                beside.unlink()
            raise
        self._file = file
        self._whole_bytes = len(content)
        self._docs = {identity: len(frame) for identity, frame in frames.items()}
        self._rewrite_past_bytes = 0
        self._is_dirty = False
        with suppress(OSError):
            before.close()
        _sync_folder(self._path)

    def _write(self, docs: dict[OperationId, bytes]) -> None:
        """Append them, all of them; an empty one is of an operation that is gone.

        Raises: OSError; the next write begins where this one did.
        """
        file = self._file
        if file is None or not docs:
            return
        frames = {identity: _frame(identity, doc) for identity, doc in docs.items()}
        if os.fstat(file.fileno()).st_size > self._whole_bytes:
            file.truncate(self._whole_bytes)
        content = b"".join(frames.values())
        _write_all(file, content)
        self._whole_bytes += len(content)
        self._is_dirty = True
        for identity, frame in frames.items():
            if docs[identity]:
                self._docs[identity] = len(frame)
            else:
                self._docs.pop(identity, None)

    def _tell(self, trouble: str | None) -> None:
        if (trouble is not None) != self._is_failing:
            self._is_failing = trouble is not None
            self._loop.call_soon_threadsafe(self._hear, trouble)

    def _leave_file(self, held: dict[OperationId, Operation]) -> None:
        if self._is_failing:
            self._append_anew(held)
        file, self._file = self._file, None
        if file is None:
            return
        try:
            with file:
                os.fsync(file.fileno())
        except OSError as error:
            self._tell(f"{self._path}: store.journal: can't be written to its end: {error.strerror}")


def _packed(changes: Iterable[tuple[OperationId, Operation | None]]) -> dict[OperationId, bytes]:
    """The documents of the operations; of one that is gone, an empty one. The last word on each counts."""
    last = dict(changes)
    return {identity: pack(one) if one is not None else b"" for identity, one in last.items()}


def _docs_of(content: bytes) -> dict[OperationId, bytes]:
    """What the file holds in the end."""
    docs: dict[OperationId, bytes] = {}
    for identity, doc, _ in _frames(content):
        if doc:
            docs[identity] = doc
        else:
            docs.pop(identity, None)
    return docs


def _operations_of(docs: dict[OperationId, bytes]) -> dict[OperationId, Operation]:
    """A record that can't be read is left out: the others still help."""
    held: dict[OperationId, Operation] = {}
    for identity, doc in docs.items():
        with suppress(RowUnreadable):
            held[identity] = unpack_operation(doc)
    return held


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.new")


def _is_still(file: FileIO, path: Path) -> bool:
    """Whether the file has its name; another worker may have replaced it, or removed it, before it was locked."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _write_all(file: FileIO, content: bytes) -> None:
    """Raises: OSError."""
    left = memoryview(content)
    while left:
        left = left[file.write(left) or 0 :]


def _sync_folder(path: Path) -> None:
    """Have the name outlive a power cut, too. Raises: OSError."""
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a file system that has no such thing
            raise
    finally:
        os.close(folder)
