"""What every store does alike: one verb's view of the rows, and what is indexed of a row."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from proxy.core.model import Handle, Now, Operation, OperationId, Scope, State, Subject

MONEY_MAX = 2**53  # what gauges can show exactly; a caller may send any number
SubjectKey = tuple[Scope, Handle]


class Rows(Protocol):
    """Where a view reads the rows that its verb has not put."""

    def fetch_operation(self, scope: Scope, operation: OperationId) -> Operation | None: ...

    def fetch_subject(self, scope: Scope, handle: Handle) -> Subject | None: ...


@dataclass(slots=True)
class Changes:
    """The rows that a verb put and dropped. None stands for a dropped one."""

    operations: dict[OperationId, Operation | None] = field(default_factory=dict)
    dropped: dict[OperationId, Operation] = field(default_factory=dict)
    subjects: dict[SubjectKey, Subject | None] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.operations or self.subjects)


class VerbTables:
    """`core.tables.Tables` for one verb: reads what it put, else reads through; nothing leaves before the
    end.

    A verb that raises leaves nothing, since its `changes` are then dropped with this view.
    """

    __slots__ = ("_rows", "changes")

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self.changes = Changes()

    def operation(self, scope: Scope, operation: OperationId) -> Operation | None:
        if operation in self.changes.operations:
            return self.changes.operations[operation]
        return self._rows.fetch_operation(scope, operation)

    def put(self, operation: Operation) -> None:
        self.changes.operations[operation.id] = operation

    def drop(self, operation: Operation) -> None:
        self.changes.operations[operation.id] = None
        self.changes.dropped[operation.id] = operation

    def subject(self, scope: Scope, handle: Handle) -> Subject | None:
        if (scope, handle) in self.changes.subjects:
            return self.changes.subjects[scope, handle]
        return self._rows.fetch_subject(scope, handle)

    def put_subject(self, subject: Subject) -> None:
        self.changes.subjects[subject.scope, subject.handle] = subject

    def drop_subject(self, subject: Subject) -> None:
        self.changes.subjects[subject.scope, subject.handle] = None


def is_over(operation: Operation | None, *, fence: int, now: Now) -> bool:
    """Whether the run with this fence is no longer in flight under a living lease (P4, P5)."""
    return (
        operation is None
        or operation.fence != fence
        or operation.state is not State.IN_FLIGHT
        or operation.lease_is_over(now)
    )


def is_purgeable(operation: Operation) -> bool:
    """Resolved, or unknown without being money (U2: unknown checkout sessions are dropped)."""
    if operation.state in (State.EXECUTED, State.NOT_EXECUTED):
        return True
    return not operation.tracked and operation.state is not State.IN_FLIGHT


def due_ms(operation: Operation) -> int | None:
    """When the next lookup is due; None where none is (U2)."""
    return operation.lookups.next_ms if operation.is_unresolved else None


def oldest_ms(operation: Operation) -> int:
    """Since when the result has been open, for `oldest_unknown_seconds`."""
    return operation.unknown_since_ms or operation.first_attempt_ms or operation.created_ms


def is_held(operation: Operation, now: Now) -> bool:
    """Whether the gauges count it as unresolved: a first run that is just at work does not count (M1)."""
    if not operation.is_unresolved:
        return False
    return operation.state is not State.IN_FLIGHT or operation.doubt or operation.lease_is_over(now)


def money_of(operation: Operation) -> int:
    """Minor units at risk, as far as a 64-bit column can hold them; what is not tracked is no money (U2)."""
    amount = (operation.amount or 0) if operation.tracked else 0
    return max(-MONEY_MAX, min(amount, MONEY_MAX))
