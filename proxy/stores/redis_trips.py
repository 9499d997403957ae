"""One verb's way to a commit over Redis: what it read, what it writes, and how that is packed for the script."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from proxy.core.model import Handle, Now, Operation, OperationId, Scope, State, Subject
from proxy.ports import StoreUnavailable
from proxy.stores.batch import Job, Outcome
from proxy.stores.redis_rows import (
    ABSENT,
    Argument,
    Names,
    Versioned,
    Write,
    ended_writes,
    operation_drops,
    operation_writes,
    subject_drops,
    subject_writes,
)
from proxy.stores.rows import Changes, VerbTables

ROWS_CACHED = 8_192


class RowCache:
    """Rows as last seen. A stale one costs a second round trip, nothing else: the script compares revisions.

    Kept are the rows that a run's next verb wants; an ended operation goes, since it may hold a large answer.
    """

    def __init__(self) -> None:
        self._rows: dict[str, Versioned] = {}

    def get(self, key: str) -> Versioned | None:
        return self._rows.get(key)

    def put(self, key: str, row: Versioned) -> None:
        self._rows.pop(key, None)
        if row.value is not None:
            self._rows[key] = row

    def settle(self, key: str, revision: bytes) -> None:
        """A commit of this revision is through: keep the row only if it is worth it."""
        row = self._rows.get(key)
        if row is None or row.revision != revision:
            return
        if isinstance(row.value, Operation) and row.value.state is not State.IN_FLIGHT:
            del self._rows[key]
        while len(self._rows) > ROWS_CACHED:
            del self._rows[next(iter(self._rows))]

    def forget(self, key: str, revision: bytes) -> None:
        row = self._rows.get(key)
        if row is not None and row.revision == revision:
            del self._rows[key]

    def clear(self) -> None:
        self._rows.clear()


@dataclass(slots=True)
class Trip:
    """One verb on its way to a commit."""

    job: Job
    names: Names
    revision: bytes
    reads: dict[str, Versioned] = field(default_factory=dict)
    changes: Changes = field(default_factory=Changes)
    answer: object = None
    error: Exception | None = None
    snapshot: dict[str, Versioned] = field(default_factory=dict)
    may_be_written: bool = False
    writes: tuple[Write, ...] = ()
    _seen: Callable[[str], Versioned | None] = field(default=lambda key: None)

    def fetch_operation(self, scope: Scope, operation: OperationId) -> Operation | None:
        value = self._read(self.names.operation(operation))
        return value if isinstance(value, Operation) else None

    def fetch_subject(self, scope: Scope, handle: Handle) -> Subject | None:
        value = self._read(self.names.subject(handle))
        return value if isinstance(value, Subject) else None

    def _read(self, key: str) -> Operation | Subject | None:
        row = self.reads.get(key)
        if row is None:
            row = self._seen(key) or Versioned(ABSENT, None)
            self.reads[key] = row
        return row.value

    def apply(self, now: Now, seen: Callable[[str], Versioned | None]) -> None:
        """Run the verb from its start. What it raises is an answer too, once its reads are confirmed."""
        self._seen = seen
        self.reads = {}
        self.answer = self.error = None
        tables = VerbTables(self)
        try:
            self.answer = self.job.verb.apply(tables, now)
            self.changes = tables.changes
            self.writes = tuple(
                self._writes()
            )  # here, so that a row that can't be written fails its verb alone
        except Exception as error:  # noqa: BLE001  # raised again where the verb's caller awaits it
            self.error = error
            self.changes = Changes()
            self.writes = ()

    @property
    def is_confirmed(self) -> bool:
        """The verb wrote nothing and read only what one instant's snapshot holds."""
        return not self.changes and self.reads.keys() <= self.snapshot.keys()

    def _writes(self) -> Iterator[Write]:
        names, revision = self.names, self.revision
        for identity, after in self.changes.operations.items():
            read = self.reads.get(names.operation(identity))
            before = read.value if read is not None and isinstance(read.value, Operation) else None
            if after is not None:
                yield from operation_writes(
                    names, after, before=before, is_known=read is not None, revision=revision
                )
            else:
                yield from operation_drops(names, self.changes.dropped[identity])
            yield from ended_writes(identity, before, after)
        for (_, handle), subject in self.changes.subjects.items():
            if subject is not None:
                yield from subject_writes(names, subject, revision=revision)
            else:
                yield from subject_drops(names, handle)

    def written(self) -> Iterator[tuple[str, Versioned]]:
        """The rows as they are once the commit is through."""
        for identity, operation in self.changes.operations.items():
            yield self.names.operation(identity), Versioned(self.revision if operation else ABSENT, operation)
        for (_, handle), subject in self.changes.subjects.items():
            yield self.names.subject(handle), Versioned(self.revision if subject else ABSENT, subject)

    def outcome(self) -> Outcome:
        return Outcome(self.job, answer=self.answer, error=self.error, changed=dict(self.changes.operations))

    def failed(self, error: StoreUnavailable) -> Outcome:
        return Outcome(self.job, error=error)


def pack_steps(trips: Sequence[Trip]) -> tuple[list[str], list[bytes]]:
    """The keys and the arguments of the script."""
    keys: dict[str, int] = {}
    blobs: list[bytes] = []

    def number(key: str | None) -> int:
        return 0 if key is None else keys.setdefault(key, len(keys) + 1)

    def texts(arguments: tuple[Argument, ...]) -> Iterator[str | int]:
        """Numbers as text, for Lua would round them; bytes as the place of an argument of their own."""
        for argument in arguments:
            if isinstance(argument, bytes):
                blobs.append(argument)
                yield len(blobs) + 1
            else:
                yield str(argument)

    steps = [
        (
            [(number(key), row.revision.decode()) for key, row in trip.reads.items()],
            [(command, number(key), *texts(arguments)) for command, key, arguments in trip.writes],
        )
        for trip in trips
    ]
    return list(keys), [msgspec.msgpack.encode(steps), *blobs]
