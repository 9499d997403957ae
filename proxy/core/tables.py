"""What every verb of the ledger shares: the rows it reads and puts, and the small truths about them.

A verb is a frozen value with `apply(tables, now)`. The store runs it inside one transaction, or against a
snapshot whose revisions it compares when it writes; either way the step is atomic, and running it again from
the start is harmless, since it does nothing but read and put rows. The logic of money stands in `core` once,
for SQLite, for Redis and for the simulator's reference store alike (docs/decisions/0008).
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from msgspec.structs import replace

from proxy.core import states
from proxy.core.model import (
    UNRESOLVED,
    Baseline,
    Entry,
    EntryKind,
    Fence,
    Guard,
    Handle,
    Lookups,
    Now,
    Operation,
    OperationId,
    Scope,
    State,
    Subject,
)
from proxy.core.rules import Route
from proxy.core.states import Move

ATTEMPTS_KEPT = 40
ENTRIES_KEPT = 80
OPERATIONS_KEPT = 100  # of one subject; unresolved ones are never dropped from the list

Answer_co = TypeVar("Answer_co", covariant=True)


class Tables(Protocol):
    """The rows that a verb may read and put, within one scope and one atomic step."""

    def operation(self, scope: Scope, operation: OperationId) -> Operation | None: ...

    def put(self, operation: Operation) -> None: ...

    def drop(self, operation: Operation) -> None: ...

    def subject(self, scope: Scope, handle: Handle) -> Subject | None: ...

    def put_subject(self, subject: Subject) -> None: ...


class Verb(Protocol[Answer_co]):
    """One atomic step. `name` labels the store's metrics."""

    @property
    def name(self) -> str: ...

    @property
    def scope(self) -> Scope: ...

    def apply(self, tables: Tables, now: Now) -> Answer_co: ...


def told(operation: Operation, now: Now, kind: EntryKind, text: str, *, by: str = "") -> tuple[Entry, ...]:
    """The operation's story with one more line; the oldest lines go first where it grows too long."""
    return (*operation.history[1 - ENTRIES_KEPT :], Entry(at_ms=now.wall_ms, kind=kind, text=text, by=by))


def lapsed(operation: Operation, now: Now) -> Operation:
    """An in-flight operation whose lease is over: what was on the wire is now doubt (P5, U6)."""
    states.check(operation.state, Move.LAPSE, State.UNKNOWN)
    return replace(
        operation,
        state=State.UNKNOWN,
        doubt=True,
        doubt_since_absent=True,
        fence=Fence(operation.fence + 1),
        owner=None,
        unknown_since_ms=operation.unknown_since_ms or now.wall_ms,
        last_attempt_end_ms=now.wall_ms,
        lease_until_ms=now.lease_ms,
        lease_epoch=now.epoch,
        updated_ms=now.wall_ms,
        lookups=scheduled(operation, State.UNKNOWN, now),
        history=told(
            operation, now, EntryKind.LEASE_LOST, "the leader's lease ended; its attempt is in doubt"
        ),
    )


def scheduled(operation: Operation, state: State, now: Now) -> Lookups:
    """The operation's lookups once it is in `state`: due, unless nothing is left to ask (U2).

    Points of the schedule already past are made up by one lookup at once. What is final, no money, or an accepted
    refund is not asked for.
    """
    lookups = operation.lookups
    final = state in (State.EXECUTED, State.NOT_EXECUTED)
    if final or not operation.tracked or (state is State.PENDING and not operation.polled):
        return replace(lookups, next_ms=None)
    return replace(lookups, next_ms=lookups.next_ms if lookups.next_ms is not None else now.wall_ms)


def seen_now(operation: Operation | None, now: Now) -> Operation | None:
    """The operation as it is at this instant: a lease that is over counts at once."""
    if operation is not None and operation.state is State.IN_FLIGHT and operation.lease_is_over(now):
        return lapsed(operation, now)
    return operation


def is_failure(route: Route, operation: Operation) -> bool:
    """Definitely failed: executed with a failure status, by the platform or by hand (K3)."""
    return operation.state is State.EXECUTED and route.object.fails(operation.status)


def holds_subject(route: Route, operation: Operation) -> bool:
    """Whether another key on this operation's subject must not be sent (U1)."""
    if operation.state in UNRESOLVED and not (operation.state is State.PENDING or operation.accepted):
        return True
    if operation.state is State.IN_FLIGHT:
        return True
    if route.guard.platform_is_unique or operation.state is State.NOT_EXECUTED:
        return False
    return not is_failure(route, operation)


def things_of(operation: Operation) -> tuple[Handle, ...]:
    """Every thing whose row lists the operation or names it as its holder."""
    named = (*operation.handles, operation.subject, operation.twin)
    return tuple(dict.fromkeys(handle for handle in named if handle is not None))


def listed(tables: Tables, row: Subject, operation: OperationId) -> tuple[OperationId, ...]:
    """The subject's operations with one more; the oldest resolved ones go where there are too many."""
    if operation in row.operations:
        return row.operations
    kept = (*row.operations, operation)
    if len(kept) <= OPERATIONS_KEPT:
        return kept
    return tuple(one for one in kept if one == operation or _unresolved(tables, row.scope, one))


def _unresolved(tables: Tables, scope: Scope, operation: OperationId) -> bool:
    found = tables.operation(scope, operation)
    return found is not None and found.is_unresolved


def baseline_of(subject: Subject | None) -> Baseline:
    """What is known of the resource now, against which later evidence has to be newer (U3)."""
    if subject is None or subject.latest is None:
        return Baseline()
    seen = subject.latest
    return Baseline(seen.version, seen.attempt_count, seen.failure_attempt_id)


def anew(tables: Tables, now: Now, operation: Operation) -> Operation:
    """The store lost the record; the run writes it whole, with its doubt and its place on its things (D6)."""
    for handle in things_of(operation):
        row = tables.subject(operation.scope, handle) or Subject(
            scope=operation.scope, handle=handle, updated_ms=now.wall_ms
        )
        guard = row.guards.get(operation.route) or Guard()
        holder = guard.holder or operation.id
        guards = {**row.guards, operation.route: Guard(holder=holder, seq=max(guard.seq, operation.seq or 1))}
        tables.put_subject(replace(row, guards=guards, operations=listed(tables, row, operation.id)))
    text = "the store had lost this record; it was written anew by its run"
    return replace(operation, history=told(operation, now, EntryKind.WRITTEN_ANEW, text))
