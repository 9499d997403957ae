"""The ledger's rows inside one transaction, read and written many at a time.

Each call of SQLite gives Python's lock away and has to win it back from the event loop, which costs more than
what most statements do. So a row that is not in memory is at first supposed to be absent, as that of a new
payment is; when the group's verbs have been applied, all such rows are looked up by one statement, and if one
of them was there after all, the verbs are applied again. That is harmless, since a verb only reads and puts
rows (docs/decisions/0008). Rows are written by statements of up to `ROWS_AT_ONCE`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from itertools import chain

from proxy.core.model import Handle, Operation, OperationId, Scope, State, Subject
from proxy.ports import RowUnreadable
from proxy.stores.codec import Row, pack, unpack_operation, unpack_subject
from proxy.stores.rows import Changes, SubjectKey, due_ms, is_purgeable, money_of, oldest_ms
from proxy.stores.sqlite_file import SQL, for_rows

Parameters = tuple[str | int | bytes | None, ...]

ROWS_CACHED = 4_096
ROWS_AT_ONCE = 64  # a power of two; a statement may have 32,766 parameters, an operation has 19
ROUNDS_MAX = 3  # of supposing; a verb that walks from row to row is then let read one by one


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
        self._begin_anew()
        self._clear()

    def _begin_anew(self) -> None:
        self._rounds = 0
        self._read_operations: dict[OperationId, Operation | RowUnreadable | None] = {}
        self._read_subjects: dict[SubjectKey, Subject | RowUnreadable | None] = {}

    def _clear(self) -> None:
        self.pending = Changes()
        self._operation_rows: dict[OperationId, Parameters | None] = {}
        self._subject_rows: dict[SubjectKey, Parameters | None] = {}
        self._supposed_operations: set[OperationId] = set()
        self._supposed_subjects: set[SubjectKey] = set()

    def begin(self) -> None:
        """A transaction has begun: forget what another process may have changed since the last one."""
        self._begin_anew()
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
        if operation not in self._read_operations:
            if self._rounds < ROUNDS_MAX:
                self._supposed_operations.add(operation)
                return None
            self._look_operations_up({operation})
        row = self._read_operations[operation]
        if isinstance(row, RowUnreadable):
            raise row
        return row

    def fetch_subject(self, scope: Scope, handle: Handle) -> Subject | None:
        name = (scope, handle)
        if name in self.pending.subjects:
            return self.pending.subjects[name]
        known = self._subjects.get(name)
        if known is not None:
            return known
        if name not in self._read_subjects:
            if self._rounds < ROUNDS_MAX:
                self._supposed_subjects.add(name)
                return None
            self._look_subjects_up({name})
        row = self._read_subjects[name]
        if isinstance(row, RowUnreadable):
            raise row
        return row

    def supposed_rightly(self) -> bool:
        """Whether every row that the verbs took for absent is; if not, nothing is staged and all apply again."""
        operations, subjects = self._supposed_operations, self._supposed_subjects
        found = bool(operations) and self._look_operations_up(operations)
        found |= bool(subjects) and self._look_subjects_up(subjects)
        if found:
            self._rounds += 1
            self._clear()
        return not found

    def _look_operations_up(self, wanted: set[OperationId]) -> bool:
        """Read the rows; whether there was one."""
        self._read_operations.update(dict.fromkeys(wanted))
        is_there = False
        for names in _portions([(identity,) for identity in wanted]):
            for identity, doc in self._connection.execute(*_many("get_operation_rows", names)):
                self._read_operations[identity] = _read(doc, unpack_operation)
                is_there = True
        return is_there

    def _look_subjects_up(self, wanted: set[SubjectKey]) -> bool:
        """Read the rows; whether there was one."""
        self._read_subjects.update(dict.fromkeys(wanted))
        names = {(handle, scope.tag): (scope, handle) for scope, handle in wanted}
        is_there = False
        for portion in _portions([*names]):
            for handle, tag, doc in self._connection.execute(*_many("get_subject_rows", portion)):
                self._read_subjects[names[handle, tag]] = _read(doc, unpack_subject)
                is_there = True
        return is_there

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
        self._put("put_operation", puts)
        if len(puts) < len(operations):
            run(SQL["drop_operation"], [(identity,) for identity, row in operations.items() if row is None])
        puts = [row for row in subjects.values() if row is not None]
        self._put("put_subject", puts)
        if len(puts) < len(subjects):
            gone = [(handle, scope.tag) for (scope, handle), row in subjects.items() if row is None]
            run(SQL["drop_subject"], gone)
        return len(operations) + len(subjects)

    def _put(self, name: str, rows: list[Parameters]) -> None:
        for portion in _portions(rows):
            self._connection.execute(*_many(name, portion))

    def keep(self) -> None:
        """The transaction is durable: remember what the next one will want."""
        for identity, operation in self.pending.operations.items():
            if operation is not None and operation.state is State.IN_FLIGHT:
                self._operations[identity] = operation
            else:
                self._operations.pop(identity, None)
        for name, subject in self.pending.subjects.items():
            self._subjects.pop(name, None)  # so that the row in use comes last, and those in front go first
            if subject is not None:
                self._subjects[name] = subject
        while len(self._operations) > ROWS_CACHED:
            del self._operations[next(iter(self._operations))]
        while len(self._subjects) > ROWS_CACHED:
            del self._subjects[next(iter(self._subjects))]
        self._clear()


def _portions(rows: Sequence[Parameters]) -> Iterator[Sequence[Parameters]]:
    """The rows in few portions whose sizes are powers of two, so that there are few different statements."""
    at, size = 0, ROWS_AT_ONCE
    while at < len(rows):
        while size > len(rows) - at:
            size //= 2
        yield rows[at : at + size]
        at += size


def _many(name: str, rows: Sequence[Parameters]) -> tuple[str, Parameters]:
    return for_rows(name, len(rows)), tuple(chain.from_iterable(rows))


def _read(doc: bytes, unpack: Callable[[bytes], Row]) -> Row | RowUnreadable:
    """The row, or why it can't be read, which only those who need it are told."""
    try:
        return unpack(doc)
    except RowUnreadable as unreadable:
        return unreadable
