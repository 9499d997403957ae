"""The one thread that writes the ledger's file: a group of verbs, one transaction, one fsync.

SQLite's calls block, so they are made here and never in the event loop. Other processes may write the same
file: a group takes the write lock first (`BEGIN IMMEDIATE`, never an upgrade, O-56) and waits for it as long
as one of its verbs has time left.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from proxy.core.model import Now
from proxy.ports import Clock, StoreUnavailable
from proxy.stores.batch import Done, Job, Outcome
from proxy.stores.notices import Notice, NoticeKind, Notify
from proxy.stores.rows import VerbTables
from proxy.stores.sqlite_file import JOURNAL_BYTES_KEPT, SQL, OpenedFiles, connect, explain, is_busy, wal_of
from proxy.stores.sqlite_rows import FileRows

Result = TypeVar("Result")

IDLE_S = 2.0  # how often a file at rest is looked at
CHECKPOINT_ROWS = 2_000  # rows put between two checkpoints: some 8 MiB of log
STARVED_BYTES = 64 * 1024 * 1024  # O-57
READERS_MS = 50  # how long a log that has grown waits for those who read it, with the write lock held


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


class Writer:
    """The engine behind the batcher. `connection` belongs to the worker's thread."""

    def __init__(self, path: Path, clock: Clock, *, notify: Notify) -> None:
        self._path = path
        self._clock = clock
        self._notify = notify
        self._loop = asyncio.get_running_loop()
        self._connection: sqlite3.Connection | None = None
        self._mover: sqlite3.Connection | None = None  # moves the log while `_connection` has the write lock
        self._rows: FileRows | None = None
        self._files = OpenedFiles(path)
        self._rows_since_checkpoint = 0
        self.is_starved = False
        self.worker = Worker("safepost-ledger", idle=self.tidy)

    def attach(self, connection: sqlite3.Connection) -> None:
        """In the worker's thread: write through this connection from now on.

        What a crash left in the log is moved first. A sync that failed before it leaves a commit in the system's
        memory alone, where it counts as written: no later sync puts it on the disk, and a log with such a gap is
        lost from there on in a power cut.
        """
        self._connection = connection
        self._mover = connect(self._path)
        self._rows = FileRows(connection)
        self._files.check()
        self.tidy()

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
            while not rows.supposed_rightly():
                outcomes = [_apply(job, rows, now) for job in begun]
            self._rows_since_checkpoint += rows.write()
            self._files.check()
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
            self._files.check()
            connection.execute("COMMIT")
            return result
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")

    def _failed(self, group: Sequence[Job], begun: list[Job], error: StoreUnavailable) -> list[Outcome]:
        """The transaction came to nothing, and so did each verb of it."""
        begun.extend(job for job in group if job.begin())
        return [Outcome(job, error=_copy(error)) for job in begun]

    def touch(self, *, patience_ms: int, readers_ms: int = 0) -> None:
        """In the worker's thread: a commit that changes nothing of the ledger's.

        Args: readers_ms: how long before it the write lock is held.
        Raises: sqlite3.Error; StoreUnavailable.
        """
        value = self._clock.wall_ms().to_bytes(8, "big")

        def step(writing: sqlite3.Connection) -> None:
            _wait(readers_ms)
            writing.execute(SQL["put_meta"], {"name": "ping", "value": value})

        self.alone(step, patience_ms=patience_ms)

    def tidy(self) -> None:
        """Move the log into the file; the next commit then starts it over, unless somebody reads it (O-57).

        Readers that overlap would keep it from both for ever. Once it has grown, those who are there are waited
        for, twice: until nobody needs it as it was, and until nobody reads it, since who comes then reads the
        file.

        The write lock is held meanwhile. In SQLite before 3.51.3 a commit that starts the log over just as a
        checkpoint begins can make it count frames as moved that were not, and what they hold is lost: claims that
        were committed (docs/decisions/0014).
        """
        connection, mover = self._connection, self._mover
        if connection is None or mover is None or self._files.are_anothers:
            return  # what a deleted log held may be moved yet, as long as nobody else has begun a new one
        try:
            if not _lock(connection, lambda: True):
                return  # another process writes; the next group, or the next idle moment, tries again
            self._rows_since_checkpoint = 0  # even if it fails: on a full disk each group would try again
            try:
                if not self.is_starved and self._overgrown_bytes():
                    _wait(READERS_MS)
                _, frames, moved = mover.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            finally:
                connection.execute("ROLLBACK")
            page_bytes: int = connection.execute("PRAGMA page_size").fetchone()[0]
            held = max(frames - moved, 0) * page_bytes
            if not held and self._overgrown_bytes():
                self.touch(patience_ms=0, readers_ms=READERS_MS)  # also cuts it to `journal_size_limit`
                held = self._overgrown_bytes()
        except (sqlite3.Error, OSError, StoreUnavailable):
            return  # the next commit meets the same trouble and reports it
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

    def _overgrown_bytes(self) -> int:
        """What the log has that should be cut off. Raises: OSError."""
        return max(wal_of(self._path).stat().st_size - JOURNAL_BYTES_KEPT, 0)

    def _tell(self, kind: NoticeKind, text: str) -> None:
        self._loop.call_soon_threadsafe(self._notify, Notice(kind, text))

    def detach(self) -> None:
        """In the worker's thread: let go of the file. Who is the last to do so leaves it whole, without a log.

        Not on a full or broken disk: all that was committed is in the log, and the next start takes it from there.
        Not where a file is another's: the log that SQLite would move, and drop by its name, is another's too.
        """
        with contextlib.ExitStack() as last:
            if self._files.are_anothers:
                with contextlib.suppress(sqlite3.Error):
                    last.enter_context(_only_reading(self._path))
            for connection in (self._mover, self._connection):
                if connection is not None:
                    connection.close()
        self._mover = self._connection = self._rows = None


@contextlib.contextmanager
def _only_reading(path: Path) -> Iterator[None]:
    """Have the file open in a way that can't write it. Who is the last to close it, and can't, moves no log."""
    uri = f"{path.resolve().as_uri()}?mode=ro"
    with contextlib.closing(sqlite3.connect(uri, uri=True)) as connection:
        with contextlib.suppress(sqlite3.Error):  # the other's log may not fit; the lock is held by then
            connection.execute("SELECT COUNT(*) FROM sqlite_schema").fetchone()
        yield


def _wait(duration_ms: int) -> None:
    """With the write lock held: new readers only come to what is committed now."""
    if duration_ms:
        threading.Event().wait(duration_ms / 1000)


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
