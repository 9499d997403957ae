"""The embedded store: one SQLite file on this host, for one or several processes (contract D1).

Durable claims are made cheap by group commit (`batch.py`, docs/decisions/0005). Leases are measured with the
boot clock, so that no step of the wall clock ends or prolongs one (O-65).
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from proxy.core.model import Now, Operation, OperationId, Subject
from proxy.core.tables import Verb
from proxy.ports import Clock, Holdings, Page, Query, RowUnreadable, StoreReport, StoreUnavailable
from proxy.stores import purging, secret
from proxy.stores.batch import Batcher
from proxy.stores.codec import Row, unpack_operation, unpack_subject
from proxy.stores.notices import Notice, NoticeKind, Notify, damage, unheard
from proxy.stores.paging import Place, limit_of, page_of, place_of
from proxy.stores.purging import ClockTrust, PurgeOperations, PurgeSubjects, Reading
from proxy.stores.sqlite_file import (
    DAMAGED,
    OPENING,
    SQL,
    connect,
    explain,
    file_system_of,
    open_ledger,
    path_warnings,
)
from proxy.stores.sqlite_writer import Worker, Writer
from proxy.stores.waiters import WaitHub

Answer = TypeVar("Answer")
Result = TypeVar("Result")

OPEN_MS = 8_000  # O-58 wants a refusal within 10 s
FIRST = Place(-1, "")
LAST = Place(2**62, "\U0010ffff")


class SqliteStore:
    """`ports.Store` over a file. Made before or after a fork, opened after it.

    Args: timeout_ms: per verb, locks of other processes included.
        configured: the fingerprint secret of the configuration; None: one is made once and kept in the file.
        notify: hears what happens to the file while it is in use.
    """

    def __init__(
        self,
        path: Path,
        *,
        clock: Clock,
        timeout_ms: int,
        configured: bytes | None = None,
        notify: Notify = unheard,
    ) -> None:
        self.path = path
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._configured = configured
        self._notify = notify
        self._secrets: tuple[secret.Secret, ...] = ()
        self._writer: Writer | None = None
        self._batcher: Batcher | None = None
        self._reader: Worker | None = None
        self._reading: sqlite3.Connection | None = None
        self._hub = WaitHub(self._load_many, self.now)
        self.trust = ClockTrust()
        self._warnings: tuple[str, ...] = ()
        self._damaged = 0  # records that a list had to leave out, at most

    async def open(self) -> StoreReport:
        writer = Writer(self.path, self._clock, notify=self._notify)
        self._writer = writer
        self._reader = Worker("safepost-reader")
        try:
            notes = await writer.worker.call(lambda: self._open_for_writing(writer))
            self._reading = await self._reader.call(lambda: connect(self.path, read_only=True))
        except sqlite3.Error as error:
            await self.close()
            raise explain(error, self.path, OPENING) from error
        except StoreUnavailable:
            await self.close()
            raise
        self._batcher = Batcher(
            writer, timeout_ms=self._timeout_ms, name=str(self.path), changed=self._hub.changed
        )
        kind = file_system_of(self.path.parent) or "unknown"
        detail = (
            f"{self.path} (SQLite {sqlite3.sqlite_version}, WAL, synchronous=FULL, {kind}): guards this host"
        )
        self._warnings = (*path_warnings(self.path.parent), *notes)
        return StoreReport("sqlite", detail, self._warnings)

    def _open_for_writing(self, writer: Writer) -> tuple[str, ...]:
        opened = open_ledger(self.path, self._clock, patience_ms=OPEN_MS)
        writer.attach(opened.connection)
        self._secrets = self._keep_secret(writer, opened.connection)
        row = opened.connection.execute(SQL["get_meta"], {"name": "clock"}).fetchone()
        if row is not None:
            self.trust.first = msgspec.json.decode(row[0], type=Reading)
        return opened.notes

    def _keep_secret(self, writer: Writer, connection: sqlite3.Connection) -> tuple[secret.Secret, ...]:
        """The store's own secret, made once; the configured one is never written (D4)."""
        row = connection.execute(SQL["get_meta"], {"name": "secret"}).fetchone()
        if row is None and self._configured is None:
            row = writer.alone(_make_secret, patience_ms=OPEN_MS)
        return secret.in_order(self._configured, (row[0],) if row is not None else ())

    async def close(self) -> None:
        if self._batcher is not None:
            await self._batcher.close()
            self._batcher = None
        await self._hub.close()
        reader, self._reader = self._reader, None
        if reader is not None:
            reading, self._reading = self._reading, None
            if reading is not None:
                await reader.call(reading.close)
            await reader.stop()
        writer, self._writer = self._writer, None
        if writer is not None:
            await writer.worker.call(writer.detach)
            await writer.worker.stop()

    async def transact(self, verb: Verb[Answer]) -> Answer:
        if self._batcher is None:
            raise StoreUnavailable(f"{self.path}: the ledger is not open; nothing was written")
        return await self._batcher.run(verb)

    async def load(self, operation: OperationId) -> Operation | None:
        def step(reading: sqlite3.Connection) -> Operation | None:
            row = reading.execute(SQL["get_operation"], (operation,)).fetchone()
            return unpack_operation(row[0]) if row is not None else None

        return await self._read(step, "load")

    async def find(self, query: Query) -> Page:
        now = self.now()
        page, damaged = await self._read(lambda reading: _find(reading, query, now), "find")
        if damaged > self._damaged:
            self._damaged = damaged
            self._notify(Notice(NoticeKind.DAMAGED, self._damage(), self.warnings()))
        return page

    def _damage(self) -> str:
        return damage(self.path, self._damaged, then=DAMAGED.then)

    async def count_due(self, *, before_ms: int) -> int:
        def step(reading: sqlite3.Connection) -> int:
            count: int = reading.execute(SQL["count_due"], (before_ms,)).fetchone()[0]
            return count

        return await self._read(step, "count_due")

    async def wait(self, operation: Operation, *, timeout_ms: int) -> Operation | None:
        return await self._hub.wait(operation, timeout_ms=timeout_ms)

    async def holdings(self) -> tuple[Holdings, ...]:
        now = self.now()
        clock = {"epoch": now.epoch, "lease_ms": now.lease_ms}
        rows = await self._read(
            lambda reading: reading.execute(SQL["holdings"], clock).fetchall(), "holdings"
        )
        return tuple(
            Holdings(
                route=route,
                knowledge=knowledge,
                currency=currency,
                count=count,
                amount=amount,
                oldest_ms=oldest,
            )
            for route, knowledge, currency, count, amount, oldest in rows
        )

    async def purge(self, *, record_ms: dict[str, int]) -> int:
        now = self.now()
        if not await self._wall_is_trusted(now):
            return 0
        dropped = 0
        for route, kept_ms in record_ms.items():
            after = FIRST
            while dropped < purging.DROPPED_MAX:
                slice_, is_last = await self._purgeable(route, now.wall_ms - kept_ms, after)
                for scope, identities in purging.by_scope(slice_):
                    dropped += await self.transact(PurgeOperations(scope, identities, record_ms))
                if is_last or not slice_:
                    break
                after = Place(slice_[-1].updated_ms, slice_[-1].id)
        before_ms = purging.subjects_before_ms(now, record_ms)
        for scope, subjects in purging.subjects_by_scope(await self._empty_subjects(before_ms)):
            await self.transact(PurgeSubjects(scope, subjects, before_ms))
        return dropped

    async def ping(self) -> None:
        """The disk is written too: readiness for payments means that a claim can be made durable."""
        await self._with_writer(lambda writer: writer.touch(patience_ms=self._timeout_ms), "ping")

    def secrets(self) -> tuple[secret.Secret, ...]:
        return self._secrets

    def warnings(self) -> tuple[str, ...]:
        found = [*self._warnings]
        if self._damaged:
            found.append(self._damage())
        if self._writer is not None and self._writer.is_starved:
            found.append(
                f"{self.path}: a long reader keeps the log from being emptied; it grows until it leaves"
            )
        return tuple(found)

    def now(self) -> Now:
        return Now(lease_ms=self._clock.boot_ms(), epoch=self._clock.boot_id(), wall_ms=self._clock.wall_ms())

    async def _load_many(self, operations: Sequence[Operation]) -> dict[OperationId, Operation]:
        def step(reading: sqlite3.Connection) -> dict[OperationId, Operation]:
            found: dict[OperationId, Operation] = {}
            for operation in operations:
                row = reading.execute(SQL["get_operation"], (operation.id,)).fetchone()
                if row is not None:
                    found[operation.id] = unpack_operation(row[0])
            return found

        return await self._read(step, "wait")

    async def _wall_is_trusted(self, now: Now) -> bool:
        """The reading before is kept in the file, so that a restart doesn't begin the hour anew (D1)."""
        before = self.trust.first
        trusted = self.trust.read(now)
        if self.trust.first != before:
            await self._write(partial(_keep_reading, reading=self.trust.first), "purge")
        return trusted

    async def _purgeable(self, route: str, before_ms: int, after: Place) -> tuple[list[Operation], bool]:
        """A slice of what may be dropped, and whether it is the last one."""
        values = {
            "route": route,
            "before_ms": before_ms,
            "at_ms": after.at_ms,
            "id": after.id,
            "limit": purging.SLICE,
        }

        def step(reading: sqlite3.Connection) -> tuple[list[Operation], bool]:
            docs = reading.execute(SQL["purgeable"], values).fetchall()
            return _readable(docs, unpack_operation), len(docs) < purging.SLICE

        return await self._read(step, "purge")

    async def _empty_subjects(self, before_ms: int) -> list[Subject]:
        values = {"before_ms": before_ms, "limit": purging.DROPPED_MAX // 10}

        def step(reading: sqlite3.Connection) -> list[Subject]:
            return _readable(reading.execute(SQL["empty_subjects"], values), unpack_subject)

        return await self._read(step, "purge")

    async def _read(self, step: Callable[[sqlite3.Connection], Result], doing: str) -> Result:
        reading = self._reading
        if self._reader is None or reading is None:
            raise StoreUnavailable(f"{self.path}: the ledger is not open")
        try:
            async with asyncio.timeout(self._timeout_ms / 1000):
                return await self._reader.call(lambda: step(reading))
        except TimeoutError as error:
            reading.interrupt()
            raise StoreUnavailable(f"{self.path}: {doing} took over {self._timeout_ms} ms") from error
        except sqlite3.Error as error:
            raise explain(error, self.path, f"reading the ledger ({doing})") from error

    async def _write(self, step: Callable[[sqlite3.Connection], Result], doing: str) -> Result:
        """A step outside the ledger's rows, in a transaction of its own."""
        return await self._with_writer(lambda writer: writer.alone(step, patience_ms=self._timeout_ms), doing)

    async def _with_writer(self, step: Callable[[Writer], Result], doing: str) -> Result:
        writer = self._writer
        if writer is None:
            raise StoreUnavailable(f"{self.path}: the ledger is not open")
        try:
            async with asyncio.timeout(self._timeout_ms / 1000):
                return await writer.worker.call(lambda: step(writer))
        except TimeoutError as error:
            raise StoreUnavailable(f"{self.path}: {doing} took over {self._timeout_ms} ms") from error
        except sqlite3.Error as error:
            raise explain(error, self.path, f"writing the ledger ({doing})") from error


def _keep_reading(writing: sqlite3.Connection, *, reading: Reading | None) -> None:
    writing.execute(SQL["put_meta"], {"name": "clock", "value": msgspec.json.encode(reading)})


def _make_secret(writing: sqlite3.Connection) -> tuple[bytes]:
    """Unless another process was first."""
    row: tuple[bytes] | None = writing.execute(SQL["get_meta"], {"name": "secret"}).fetchone()
    if row is None:
        row = (secret.made(),)
        writing.execute(SQL["put_meta"], {"name": "secret", "value": row[0]})
    return row


def _find(reading: sqlite3.Connection, query: Query, now: Now) -> tuple[Page, int]:
    """The page by whichever index narrows most; the rest of the query is matched row by row.

    Also how many records could not be read and were left out: one of them must not keep all others from being
    listed and looked up. Where a subject or a key was asked for, it is the answer. Raises: RowUnreadable.
    """
    if query.subject is not None or query.key is not None:
        if query.subject is not None:
            docs = _docs_of_subject(reading, query.subject)
        else:
            docs = reading.execute(SQL["find_by_key"], {"key": query.key}).fetchall()
        return page_of(query, (unpack_operation(doc) for (doc,) in docs), now), 0
    damaged = 0
    while True:
        docs = reading.execute(SQL[_listing(query)], _values(query, now, beside=damaged)).fetchall()
        found = _readable(docs, unpack_operation)
        if len(docs) - len(found) == damaged:
            return page_of(query, found, now), damaged
        damaged = len(docs) - len(found)


def _readable(docs: Iterable[tuple[bytes]], unpack: Callable[[bytes], Row]) -> list[Row]:
    """What can be read of them."""
    found = []
    for (doc,) in docs:
        with suppress(RowUnreadable):
            found.append(unpack(doc))
    return found


def _docs_of_subject(reading: sqlite3.Connection, handle: str) -> list[tuple[bytes]]:
    identities: dict[OperationId, None] = {}
    for (doc,) in reading.execute(SQL["get_subjects"], (handle,)):
        identities.update(dict.fromkeys(unpack_subject(doc).operations))
    rows = (reading.execute(SQL["get_operation"], (identity,)).fetchone() for identity in identities)
    return [row for row in rows if row is not None]


def _listing(query: Query) -> str:
    if query.lapsed:
        by = "find_lapsed"
    elif query.due_before_ms is not None:
        by = "find_due"
    elif query.knowledge in ("unknown", "pending"):
        by = "find_unresolved"
    else:
        by = "find"
    return f"{by}_{'oldest' if query.oldest_first else 'newest'}"


def _values(query: Query, now: Now, *, beside: int) -> dict[str, str | int | None]:
    """The statement's values. Args: beside: so many rows more than a page takes."""
    start = FIRST if query.oldest_first else LAST
    both = query.lapsed and query.due_before_ms is not None  # the few that are both are ordered afterwards
    after = place_of(query.cursor) if query.cursor and not both else start
    return {
        "at_ms": after.at_ms,
        "id": after.id,
        "since_ms": query.since_ms if query.since_ms is not None else -1,
        "until_ms": query.until_ms if query.until_ms is not None else LAST.at_ms,
        "route": query.route,
        "knowledge": query.knowledge,
        "due_before_ms": query.due_before_ms,
        "epoch": now.epoch,
        "lease_ms": now.lease_ms,
        "limit": -1 if both else limit_of(query) + 1 + beside,
    }
