"""The one thread that writes the ledger's file: a group of verbs, one transaction, one fsync.

SQLite's calls block, so they are made here and never in the event loop. Other processes may write the same
file: a group takes the write lock first (`BEGIN IMMEDIATE`, never an upgrade, O-56) and waits for it as long
as one of its verbs has time left.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from proxy.core.model import Handle, Now, Operation, OperationId, Scope, State, Subject
from proxy.ports import Clock, StoreUnavailable
from proxy.stores.batch import Done, Job, Outcome
from proxy.stores.codec import pack, unpack_operation, unpack_subject
from proxy.stores.notices import Notice, NoticeKind, Notify
from proxy.stores.rows import Changes, SubjectKey, VerbTables, due_ms, is_purgeable, money_of, oldest_ms
from proxy.stores.sqlite_file import JOURNAL_BYTES_KEPT, SQL, explain, is_busy, wal_of

Result = TypeVar("Result")
Parameters = tuple[str | int | bytes | None, ...]

IDLE_S = 2.0  # how often a file at rest is looked at
CHECKPOINT_ROWS = 2_000  # rows put between two checkpoints: some 8 MiB of log
STARVED_BYTES = 64 * 1024 * 1024  # O-57
ROWS_CACHED = 4_096


class Worker:
    """A thread that makes blocking calls one after another, for an event loop that awaits them.

    Args: idle: called in the thread whenever nothing was asked of it for `IDLE_S`.
    """

    def __init__(self, name: str, *, idle: Callable[[], None] | None = None) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._idle = idle
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def post(self, task: Callable[[], None]) -> None:
        """Run the task in the thread; it has to deliver its own result, also its failure."""
        self._tasks.put(task)

    def call(self, step: Callable[[], Result]) -> asyncio.Future[Result]:
        """Run the step in the thread; its result, or what it raised, in the event loop."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()

        def deliver(result: Result | None, error: Exception | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(result)  # type: ignore[arg-type]  # None only where the step returns it
            else:
                future.set_exception(error)

        def task() -> None:
            try:
                result = step()
            except Exception as error:  # noqa: BLE001  # raised again where the call is awaited
                loop.call_soon_threadsafe(deliver, None, error)
            else:
                loop.call_soon_threadsafe(deliver, result, None)

        self.post(task)
        return future

    async def stop(self) -> None:
        """End the thread after what was asked of it so far."""
        self._tasks.put(None)
        await asyncio.to_thread(self._thread.join)

    def _work(self) -> None:
        while True:
            try:
                task = self._tasks.get(timeout=IDLE_S)
            except queue.Empty:
                if self._idle is not None:
                    self._idle()
                continue
            if task is None:
                return
            task()


def operation_row(operation: Operation) -> Parameters:
    """The parameters of `put_operation`."""
    return (
        operation.id,
        operation.scope.tag,
        operation.route,
        operation.key,
        operation.subject,
        operation.state.value,
        operation.knowledge.value,
        operation.created_ms,
        operation.updated_ms,
        due_ms(operation),
        oldest_ms(operation),
        operation.lease_until_ms,
        operation.lease_epoch,
        money_of(operation),
        operation.currency or "",
        int(operation.is_unresolved),
        int(operation.doubt),
        int(is_purgeable(operation)),
        pack(operation),
    )


def subject_row(subject: Subject) -> Parameters:
    """The parameters of `put_subject`."""
    listed = len(subject.operations)
    return (subject.handle, subject.scope.tag, subject.updated_ms, listed, pack(subject))


class FileRows:
    """The rows of one transaction, with what earlier ones left: valid while nobody else wrote the file.

    Only rows that the next verb of a run will want are kept: operations in flight, and subjects.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._version = -1
        self._operations: dict[OperationId, Operation] = {}
        self._subjects: dict[SubjectKey, Subject] = {}
        self._clear()

    def _clear(self) -> None:
        self.pending = Changes()
        self._operation_rows: dict[OperationId, Parameters | None] = {}
        self._subject_rows: dict[SubjectKey, Parameters | None] = {}

    def begin(self) -> None:
        """A transaction has begun: forget what another process may have changed since the last one."""
        self._clear()
        version: int = self._connection.execute("PRAGMA data_version").fetchone()[0]
        if version != self._version:
            self.forget()
            self._version = version

    def forget(self) -> None:
        self._operations.clear()
        self._subjects.clear()

    def fetch_operation(self, scope: Scope, operation: OperationId) -> Operation | None:
        if operation in self.pending.operations:
            return self.pending.operations[operation]
        known = self._operations.get(operation)
        if known is not None:
            return known
        row = self._connection.execute(SQL["get_operation"], (operation,)).fetchone()
        return unpack_operation(row[0]) if row is not None else None

    def fetch_subject(self, scope: Scope, handle: Handle) -> Subject | None:
        name = (scope, handle)
        if name in self.pending.subjects:
            return self.pending.subjects[name]
        known = self._subjects.get(name)
        if known is not None:
            return known
        row = self._connection.execute(SQL["get_subject"], (handle, scope.tag)).fetchone()
        return unpack_subject(row[0]) if row is not None else None

    def stage(self, changes: Changes) -> None:
        """Take a verb's changes into the transaction. What can't be written raises, and nothing of it is taken."""
        operations = {
            identity: operation_row(row) if row is not None else None
            for identity, row in changes.operations.items()
        }
        subjects = {
            name: subject_row(row) if row is not None else None for name, row in changes.subjects.items()
        }
        self._operation_rows.update(operations)
        self._subject_rows.update(subjects)
        self.pending.operations.update(changes.operations)
        self.pending.subjects.update(changes.subjects)

    def write(self) -> int:
        """Write the group's changes; the number of rows."""
        run, operations, subjects = self._connection.executemany, self._operation_rows, self._subject_rows
        puts = [row for row in operations.values() if row is not None]
        run(SQL["put_operation"], puts)
        if len(puts) < len(operations):
            run(SQL["drop_operation"], [(identity,) for identity, row in operations.items() if row is None])
        puts = [row for row in subjects.values() if row is not None]
        run(SQL["put_subject"], puts)
        if len(puts) < len(subjects):
            gone = [(handle, scope.tag) for (scope, handle), row in subjects.items() if row is None]
            run(SQL["drop_subject"], gone)
        return len(operations) + len(subjects)

    def keep(self) -> None:
        """The transaction is durable: remember what the next one will want."""
        for identity, operation in self.pending.operations.items():
            if operation is not None and operation.state is State.IN_FLIGHT:
                self._operations[identity] = operation
            else:
                self._operations.pop(identity, None)
        for name, subject in self.pending.subjects.items():
            if subject is not None:
                self._subjects[name] = subject
            else:
                self._subjects.pop(name, None)
        while len(self._operations) > ROWS_CACHED:
            del self._operations[next(iter(self._operations))]
        while len(self._subjects) > ROWS_CACHED:
            del self._subjects[next(iter(self._subjects))]
        self._clear()


class Writer:
    """The engine behind the batcher. `connection` belongs to the worker's thread."""

    def __init__(self, path: Path, clock: Clock, *, notify: Notify) -> None:
        self._path = path
        self._clock = clock
        self._notify = notify
        self._loop = asyncio.get_running_loop()
        self._connection: sqlite3.Connection | None = None
        self._rows: FileRows | None = None
        self._rows_since_checkpoint = 0
        self.is_starved = False
        self.worker = Worker("safepost-ledger", idle=lambda: self.tidy(idle=True))

    def attach(self, connection: sqlite3.Connection) -> None:
        """In the worker's thread: write through this connection from now on."""
        self._connection = connection
        self._rows = FileRows(connection)

    def start(self, group: Sequence[Job], done: Done) -> None:
        self.worker.post(lambda: self._run(group, done))

    def now(self) -> Now:
        return Now(lease_ms=self._clock.boot_ms(), epoch=self._clock.boot_id(), wall_ms=self._clock.wall_ms())

    def _run(self, group: Sequence[Job], done: Done) -> None:
        begun: list[Job] = []
        outcomes: list[Outcome] = []
        try:
            outcomes = self._transact(group, begun)
        except sqlite3.Error as error:
            outcomes = self._failed(group, begun, explain(error, self._path, "writing the ledger"))
        except StoreUnavailable as error:
            outcomes = self._failed(group, begun, error)
        except Exception as error:  # noqa: BLE001  # a bug of ours fails this group, not the thread
            text = f"{self._path}: writing the ledger: {type(error).__name__}: {error}; nothing was written"
            outcomes = self._failed(group, begun, StoreUnavailable(text))
        finally:
            self._loop.call_soon_threadsafe(done, outcomes, True)
        if self._rows_since_checkpoint >= CHECKPOINT_ROWS:
            self.tidy()

    def _transact(self, group: Sequence[Job], begun: list[Job]) -> list[Outcome]:
        connection, rows = self._connection, self._rows
        if connection is None or rows is None:
            raise StoreUnavailable(f"{self._path}: the ledger is not open; nothing was written")
        if not _lock(connection, lambda: all(job.is_claimed for job in group)):
            return []
        committed = False
        try:
            begun.extend(job for job in group if job.begin())
            rows.begin()
            now = self.now()
            outcomes = [_apply(job, rows, now) for job in begun]
            self._rows_since_checkpoint += rows.write()
            connection.execute("COMMIT")
            committed = True
            rows.keep()
            return outcomes
        finally:
            if not committed:
                rows.forget()
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    def alone(self, step: Callable[[sqlite3.Connection], Result], *, patience_ms: int) -> Result:
        """In the worker's thread: a step in a transaction of its own, beside the ledger's rows.

        Raises: sqlite3.Error, also where another process holds the lock for longer than `patience_ms`.
        """
        connection = self._connection
        if connection is None:
            raise StoreUnavailable(f"{self._path}: the ledger is not open; nothing was written")
        until_ms = self._clock.monotonic_ms() + patience_ms
        if not _lock(connection, lambda: self._clock.monotonic_ms() >= until_ms):
            raise StoreUnavailable(
                f"{self._path}: another process holds the write lock for over {patience_ms} ms; nothing was "
                "written. Look for a shell, backup or other tool with the file open"
            )
        try:
            result = step(connection)
            connection.execute("COMMIT")
            return result
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")

    def _failed(self, group: Sequence[Job], begun: list[Job], error: StoreUnavailable) -> list[Outcome]:
        """The transaction came to nothing, and so did each verb of it."""
        begun.extend(job for job in group if job.begin())
        return [Outcome(job, error=_copy(error)) for job in begun]

    def tidy(self, *, idle: bool = False) -> None:
        """Move the log into the file, so that it starts over instead of growing (O-57).

        While verbs come in, only what can be had without waiting, unless the log has grown large although
        nobody reads: other processes then add to it as fast as it is moved, and have to stand still for once.
        """
        connection = self._connection
        if connection is None:
            return
        self._rows_since_checkpoint = 0
        try:
            frames, moved = _checkpoint(connection, "PASSIVE")
            page_bytes: int = connection.execute("PRAGMA page_size").fetchone()[0]
            is_large = frames * page_bytes > JOURNAL_BYTES_KEPT
            if idle and wal_of(self._path).stat().st_size > JOURNAL_BYTES_KEPT:
                frames, moved = _checkpoint(connection, "TRUNCATE")
            elif is_large and not self.is_starved:
                frames, moved = _checkpoint(connection, "RESTART")
        except (sqlite3.Error, OSError):
            return  # the next commit meets the same trouble and reports it
        held = max(frames - moved, 0) * page_bytes
        if held > STARVED_BYTES and not self.is_starved:
            self.is_starved = True
            self._tell(
                NoticeKind.WAL_STARVED,
                f"{wal_of(self._path)}: {held // 2**20} MiB of log can't be moved into the ledger while "
                "another process reads from it; no payment is at risk until the disk is full. Look for a "
                "shell, backup or report that holds a transaction open, and end it.",
            )
        elif self.is_starved and held < JOURNAL_BYTES_KEPT:
            self.is_starved = False
            self._tell(
                NoticeKind.WAL_EMPTIED, f"{wal_of(self._path)}: the log is moved into the ledger again"
            )

    def _tell(self, kind: NoticeKind, text: str) -> None:
        self._loop.call_soon_threadsafe(self._notify, Notice(kind, text))

    def detach(self) -> None:
        """In the worker's thread: leave the file whole, its log empty, and let go of it."""
        connection, self._connection, self._rows = self._connection, None, None
        if connection is None:
            return
        try:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        finally:
            connection.close()


def _checkpoint(connection: sqlite3.Connection, mode: str) -> tuple[int, int]:
    """Frames in the log, and how many of them are in the ledger now."""
    _, frames, moved = connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
    return frames, moved


def _lock(connection: sqlite3.Connection, is_too_late: Callable[[], bool]) -> bool:
    """Take the write lock; False when it was too late first."""
    while True:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
            if is_too_late():
                return False
        else:
            return True


def _apply(job: Job, rows: FileRows, now: Now) -> Outcome:
    """One verb of the group. What it raises is its own: the others go on, and it leaves nothing."""
    tables = VerbTables(rows)
    try:
        answer = job.verb.apply(tables, now)
        rows.stage(tables.changes)
    except sqlite3.Error:
        raise
    except Exception as error:  # noqa: BLE001  # raised again where the verb's caller awaits it
        return Outcome(job, error=error)
    return Outcome(job, answer=answer, changed=tables.changes.operations)


def _copy(error: StoreUnavailable) -> StoreUnavailable:
    """One exception each: raising a shared one would join the callers' tracebacks."""
    return StoreUnavailable(str(error), may_have_happened=error.may_have_happened)
