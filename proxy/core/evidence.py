"""Evidence: what an answer, a lookup, an event or a person shows, and what it settles (contract U3, U4, C5).

A lookup or an event tells of the *resource*; whether it tells of the *operation* is a question of its own. A
create made its resource, so that any state of it proves the create. Confirm and cancel act on something that
had a state before: only what is newer than the baseline taken at the claim can be their effect.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from proxy.core import states
from proxy.core.keys import handle as handle_by_id
from proxy.core.model import (
    UNRESOLVED,
    Baseline,
    EntryKind,
    Handle,
    Now,
    Operation,
    OperationId,
    Scope,
    Seen,
    State,
    Subject,
)
from proxy.core.states import Move
from proxy.core.tables import Tables, listed, scheduled, seen_now, told

ABSENT = "absent"
"""What a person says of an operation that surely never happened (C5)."""


def older_than(seen: Seen, newest: Seen | None) -> bool:
    """Whether `seen` must not replace `newest`: a lower version, or none where there is one."""
    if newest is None or newest.version is None:
        return False
    return seen.version is None or seen.version < newest.version


def newer_than(seen: Seen, operation: Operation) -> bool:
    """A version higher than the operation's, or any where none is recorded (state table)."""
    if operation.version is None:
        return True
    return seen.version is not None and seen.version > operation.version


def disputes(seen: Seen, operation: Operation) -> bool:
    """Whether it says another status of the version that is recorded, which then stands (state table).

    Without versions nothing tells which of the two is the newer: a success is not undone, since whoever heard
    "failed" of it would pay once more.
    """
    if seen.version != operation.version or seen.status == operation.status:
        return False
    return seen.version is not None or (_is_success(operation) and (seen.is_failure or not seen.is_final))


def _is_success(operation: Operation) -> bool:
    newest = operation.newest
    known = newest is not None and newest.is_final and not newest.is_failure
    return known and operation.state is State.EXECUTED and operation.by_hand is None


def tells_of(operation: Operation, seen: Seen) -> bool:
    """Whether this state of the resource is an effect of this operation, or comes after it (U3)."""
    if not operation.acts_on_existing:
        return True
    base = operation.baseline
    if operation.accepted:
        known = operation.version if operation.version is not None else base.version
        if known is None:
            return not _may_be_old_failure(base, seen)
        return seen.version is not None and seen.version > known
    if seen.is_final and not seen.is_failure:
        return True
    if base.version is not None and seen.version is not None and seen.version <= base.version:
        return False  # a late copy of what was known already: its failure is an older one, not another one
    counted_before, counts_now = base.attempt_count, seen.attempt_count
    if counted_before is not None and counts_now is not None and counts_now > counted_before:
        return True
    failed_before, fails_now = base.failure_attempt_id, seen.failure_attempt_id
    return failed_before is not None and fails_now is not None and failed_before != fails_now


def _may_be_old_failure(base: Baseline, seen: Seen) -> bool:
    """Whether it is the failure that was known at the claim, where no version tells, or may be an earlier one.

    An event may come late, and its version says nothing where none is known to be older; a lookup shows what is.
    """
    same = base.failure_attempt_id is not None and base.failure_attempt_id == seen.failure_attempt_id
    before, now = base.attempt_count, seen.attempt_count
    no_more = before is not None and now is not None and now <= before
    unheard_of = before is None and seen.version is not None and seen.source == "event"
    return seen.is_failure and (same or no_more or unheard_of)


def link(tables: Tables, now: Now, operation: Operation) -> Operation:
    """Make the operation findable by its resource's id, once that is known."""
    if operation.resource_id is None or not operation.kind:
        return operation
    handle = handle_by_id(operation.kind, operation.resource_id)
    if handle in operation.handles:
        return operation
    row = _row(tables, now, operation.scope, handle)
    alias = row.alias or operation.subject
    tables.put_subject(replace(row, operations=listed(tables, row, operation.id), alias=alias))
    if operation.subject is not None and operation.tracked:
        number = _row(tables, now, operation.scope, operation.subject)
        tables.put_subject(replace(number, alias=handle))
    return replace(operation, handles=(*operation.handles, handle))


def remember(tables: Tables, now: Now, operation: Operation, seen: Seen) -> None:
    """Keep the newest state of the resource on each of its rows (U3: baselines; U4: early events).

    What is not tracked (a checkout session) is another object than the one that its number names; an answer that
    names no resource (402) tells of its own call, and nothing of the next one's.
    """
    if not operation.tracked or seen.resource_id is None:
        return
    for handle in operation.handles:
        remember_at(tables, now, operation.scope, handle, seen)


def remember_at(tables: Tables, now: Now, scope: Scope, handle: Handle, seen: Seen) -> None:
    row = _row(tables, now, scope, handle)
    if not older_than(seen, row.latest) and seen != row.latest:
        tables.put_subject(replace(row, latest=seen, updated_ms=now.wall_ms))


def _row(tables: Tables, now: Now, scope: Scope, handle: Handle) -> Subject:
    return tables.subject(scope, handle) or Subject(scope=scope, handle=handle, updated_ms=now.wall_ms)


class Change(Struct, frozen=True):
    """What a piece of evidence did to one operation. `conflict` says why people should look."""

    operation: Operation
    before: State
    conflict: str | None = None

    @property
    def became_known(self) -> bool:
        return self.before is not self.operation.state and self.operation.state is State.EXECUTED


def absorbed(tables: Tables, now: Now, operation: Operation, seen: Seen) -> Change | None:
    """Apply evidence to one operation and put it; None where it proves nothing about it."""
    if not operation.tracked:
        return None
    is_known = operation.state is State.EXECUTED and operation.by_hand is None
    if is_known and (not newer_than(seen, operation) or disputes(seen, operation)):
        return disagreement(tables, now, operation, seen)
    if not (newer_than(seen, operation) and tells_of(operation, seen)):
        return None
    if _is_anothers(tables, operation, seen):
        return None
    if operation.state is State.NOT_EXECUTED and _another_explains(tables, operation):
        return None
    state = State.EXECUTED if seen.is_final else State.PENDING
    conflict = _contradiction(operation, seen)
    states.check(operation.state, Move.EVIDENCE, state)
    kind = EntryKind.EVENT if seen.source == "event" else EntryKind.LOOKUP
    version = f" (version {seen.version})" if seen.version is not None else ""
    history = told(operation, now, kind, f"the platform says {seen.status}{version}")
    changed = replace(
        operation,
        state=state,
        accepted=True,
        released=False,
        by_hand=None,
        owner=None,
        prior=None,
        status=seen.status,
        resolution_status=seen.resolution_status,
        version=seen.version if seen.version is not None else operation.version,
        newest=seen,
        resource_id=seen.resource_id or operation.resource_id,
        settled_by=seen.source,
        settled_ms=now.wall_ms if state is State.EXECUTED else None,
        unknown_since_ms=None,
        absent_at_attempt=None,
        failure_delivered=operation.failure_delivered and operation.status == seen.status,
        lookups=replace(scheduled(operation, state, now), misses=0),
        history=history,
        updated_ms=now.wall_ms,
    )
    if conflict is not None:
        changed = replace(changed, history=told(changed, now, EntryKind.OUTCOME_CONFLICT, conflict))
    linked = link(tables, now, changed)
    tables.put(linked)
    return Change(linked, operation.state, conflict)


def _contradiction(operation: Operation, seen: Seen) -> str | None:
    """Why this evidence is an alert: it overrides a person, or what callers were told."""
    if operation.by_hand is not None and operation.by_hand != seen.status:
        return f"a person settled it as {operation.by_hand}; the platform says {seen.status}"
    if operation.state is State.NOT_EXECUTED:
        return f"it was held to be not executed; the platform says {seen.status}"
    return None


def disagreement(tables: Tables, now: Now, operation: Operation, seen: Seen) -> Change | None:
    """An equal version with another status: unchanged, and people are told (state table)."""
    if not disputes(seen, operation):
        return None
    if seen.version is None and not (seen.is_final and tells_of(operation, seen)):
        return None  # it came late: the open state before, or another card's failure
    what = "it" if seen.version is None else f"version {seen.version}"
    text = f"{what} was {operation.status}, and is {seen.status} by {seen.source}"
    if any(entry.text == text for entry in operation.history):
        return None
    noted = replace(operation, history=told(operation, now, EntryKind.OUTCOME_CONFLICT, text))
    tables.put(noted)
    return Change(noted, operation.state, text)


def _is_anothers(tables: Tables, operation: Operation, seen: Seen) -> bool:
    """Whether the resource is not the one that this operation made or acts on.

    Where one number may have several resources, the first one's decline says nothing of the second.
    """
    if seen.resource_id is None:
        return not operation.number_is_unique and any(True for _ in _others(tables, operation))
    if seen.resource_id == operation.resource_id:
        return False
    if operation.resource_id is not None:
        return True
    return not operation.number_is_unique and any(
        other.resource_id == seen.resource_id for other in _others(tables, operation)
    )


def _another_explains(tables: Tables, operation: Operation) -> bool:
    """Whether another operation on the same thing may be what the evidence tells of (state table)."""
    others = _others(tables, operation)
    return any(other.state in UNRESOLVED or other.state is State.EXECUTED for other in others)


def _others(tables: Tables, operation: Operation) -> Iterator[Operation]:
    for handle in operation.handles:
        row = tables.subject(operation.scope, handle)
        for identity in row.operations if row else ():
            other = tables.operation(operation.scope, identity)
            if other is not None and other.id != operation.id:
                yield other


def operations_on(tables: Tables, scope: Scope, handles: tuple[Handle, ...]) -> tuple[OperationId, ...]:
    """Every operation that acts on one of the things, aliases followed once."""
    found: dict[OperationId, None] = {}
    rows = [tables.subject(scope, handle) for handle in handles]
    rows += [tables.subject(scope, row.alias) for row in rows if row and row.alias]
    for row in rows:
        found.update(dict.fromkeys(row.operations if row else ()))
    return tuple(found)


class ApplyEvidence(Struct, frozen=True):
    """A lookup or a signed event showed this state of a resource: settle what it tells of, keep it for the rest.

    `handles`: the resource by id and by merchant number, as far as the evidence names them.
    """

    scope: Scope
    handles: tuple[Handle, ...]
    seen: Seen
    name: str = "evidence"

    def apply(self, tables: Tables, now: Now) -> tuple[Change, ...]:
        changes = []
        for identity in operations_on(tables, self.scope, self.handles):
            operation = seen_now(tables.operation(self.scope, identity), now)
            change = absorbed(tables, now, operation, self.seen) if operation else None
            if change is not None:
                changes.append(change)
        for handle in self.handles:
            remember_at(tables, now, self.scope, handle, self.seen)
        return tuple(changes)


class SettleByHand(Struct, frozen=True):
    """A named person settles an operation (C5). None: there is no such operation, or nothing to settle.

    Args: is_failure: whether the preset counts `status` as a definite failure (K3).
    """

    scope: Scope
    operation: OperationId
    status: str
    by: str
    note: str
    name: str = "by_hand"

    def apply(self, tables: Tables, now: Now) -> Operation | None:
        current = seen_now(tables.operation(self.scope, self.operation), now)
        if current is None or current.state not in UNRESOLVED or current.state is State.IN_FLIGHT:
            return None
        state = State.NOT_EXECUTED if self.status == ABSENT else State.EXECUTED
        states.check(current.state, Move.BY_HAND, state)
        settled = replace(
            current,
            state=state,
            status=None if self.status == ABSENT else self.status,
            by_hand=self.status,
            released=self.status == ABSENT,
            accepted=current.accepted and self.status != ABSENT,
            doubt=current.doubt and self.status != ABSENT,
            settled_by="person",
            settled_ms=now.wall_ms,
            unknown_since_ms=None,
            failure_delivered=False,
            lookups=replace(current.lookups, next_ms=None),
            history=told(current, now, EntryKind.BY_HAND, f"{self.status}: {self.note}", by=self.by),
            updated_ms=now.wall_ms,
        )
        tables.put(settled)
        return settled
