"""Resolution: when an unknown or pending operation is looked up, and what each result means (U2, U3, U8).

The schedule counts from the operation's first attempt. Points already past are made up by one lookup at once. A
miss is evidence of nothing by itself; three in a row, far enough apart and begun long enough after the last
attempt ended, make `absent`, and even that is not proof: the knowledge stays `unknown`.
"""

from __future__ import annotations

from dataclasses import dataclass

from proxy.core import states
from proxy.core.evidence import Change, absorbed, operations_on, remember_at
from proxy.core.model import (
    EntryKind,
    Fence,
    Handle,
    Now,
    Operation,
    OperationId,
    Owner,
    Scope,
    Seen,
    State,
    Subject,
    replace,
)
from proxy.core.states import Move
from proxy.core.tables import Tables, lapsed, seen_now, told

DAILY_MS = 86_400_000  # U3: one lookup a day in manual review
LOOKED_UP = frozenset({State.UNKNOWN, State.ABSENT, State.PENDING, State.MANUAL_REVIEW, State.IN_FLIGHT})


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupPolicy:
    """Section 3's `lookups`. `schedule_ms` are points after the first attempt, ascending."""

    schedule_ms: tuple[int, ...]
    then_every_ms: int
    until_ms: int
    min_interval_ms: int
    lag_ms: int
    misses: int


def next_point_ms(policy: LookupPolicy, operation: Operation, now_ms: int) -> int:
    """The next instant of the schedule after now; never sooner than `min_interval` (U2)."""
    start = operation.first_attempt_ms
    soonest = now_ms + policy.min_interval_ms
    if operation.state is State.MANUAL_REVIEW or now_ms >= start + policy.until_ms:
        return now_ms + DAILY_MS
    for point in policy.schedule_ms:
        if start + point >= soonest:
            return start + point
    last = start + (policy.schedule_ms[-1] if policy.schedule_ms else 0)
    steps = max(1, -(-(soonest - last) // policy.then_every_ms))
    return last + steps * policy.then_every_ms


def first_point_ms(policy: LookupPolicy, operation: Operation, now_ms: int) -> int:
    """When an operation that has just become due is looked up first: a point still to come, or at once."""
    start = operation.first_attempt_ms
    last = operation.lookups.last_ms or start
    passed = [start + point for point in policy.schedule_ms if last < start + point <= now_ms]
    if passed:
        return now_ms
    return next_point_ms(policy, operation, now_ms - policy.min_interval_ms)


@dataclass(frozen=True, slots=True)
class Found:
    """The platform showed the resource."""

    seen: Seen
    handles: tuple[Handle, ...]


@dataclass(frozen=True, slots=True)
class Missed:
    """The documented empty answer (U8)."""


@dataclass(frozen=True, slots=True)
class LookupFailed:
    """Everything else: counted, alerted, and no evidence."""

    reason: str


LookupResult = Found | Missed | LookupFailed


@dataclass(frozen=True, slots=True)
class LookupTask:
    """One lookup to make. `fences`: the operations it is for, each with its fence when the lookup began.

    `begun_ms` is the wall clock's, `begun_lease_ms` that of the leases, in `epoch`.
    """

    scope: Scope
    handle: Handle
    operation: Operation
    begun_ms: int
    begun_lease_ms: int
    epoch: str
    fences: tuple[tuple[OperationId, Fence], ...]


@dataclass(frozen=True, slots=True)
class NotNow:
    """Looked up too recently, or by someone else at this moment, or no longer due."""

    next_ms: int | None


@dataclass(frozen=True, slots=True)
class TakeLookup:
    """Take the right to look this operation's object up: one process of the fleet, `min_interval` apart (U2).

    `forced`: a person or a hint asks; still never closer than `min_interval`.
    """

    scope: Scope
    operation: OperationId
    owner: Owner
    policy: LookupPolicy
    lease_ms: int
    forced: bool = False
    name: str = "take_lookup"

    def apply(self, tables: Tables, now: Now) -> LookupTask | NotNow:
        operation = seen_now(tables.operation(self.scope, self.operation), now)
        if operation is None or not operation.handles or not operation.tracked:
            return NotNow(None)
        if operation.state not in LOOKED_UP:
            return NotNow(None)
        lookups = operation.lookups
        if not self.forced and lookups.done == 0 and lookups.last_ms is None:
            lookups = replace(lookups, next_ms=first_point_ms(self.policy, operation, now.wall_ms))
        due = self.forced or (lookups.next_ms is not None and lookups.next_ms <= now.wall_ms)
        # A record from the future: the wall clock stepped back, and its schedule would stand still (U2).
        due = due or operation.updated_ms > now.wall_ms + self.policy.min_interval_ms
        rows = _rows(tables, now, operation)
        busy = max((_free_in_ms(row, now) for row in rows), default=0)
        if not due or busy > 0:
            # What a person or a hint asks for is made as soon as it may be; an event is not sent again (U4).
            free_ms = now.wall_ms + busy
            next_ms = free_ms if self.forced else max(lookups.next_ms or 0, free_ms)
            tables.put(replace(operation, lookups=replace(lookups, next_ms=next_ms)))
            return NotNow(next_ms)
        for row in rows:
            tables.put_subject(
                replace(
                    row,
                    lookup_owner=self.owner,
                    lookup_until_ms=now.lease_ms + self.lease_ms,
                    lookup_epoch=now.epoch,
                    looked_up_ms=now.wall_ms,
                )
            )
        tables.put(replace(operation, lookups=lookups))
        fences = []
        # The operation itself also where its things lost their lists (D6): it would be asked for without end.
        for identity in dict.fromkeys((operation.id, *operations_on(tables, self.scope, operation.handles))):
            other = seen_now(tables.operation(self.scope, identity), now)
            if other is not None and other.tracked and other.state in LOOKED_UP:
                fences.append((other.id, other.fence))
        return LookupTask(
            self.scope, rows[0].handle, operation, now.wall_ms, now.lease_ms, now.epoch, tuple(fences)
        )


def _rows(tables: Tables, now: Now, operation: Operation) -> tuple[Subject, ...]:
    """The object's rows, the one by id first: operations on one payment share one lookup."""
    handles = dict.fromkeys(reversed(operation.handles))
    for handle in tuple(handles):
        row = tables.subject(operation.scope, handle)
        if row is not None and row.alias is not None:
            handles[row.alias] = None
    found = (tables.subject(operation.scope, handle) for handle in handles)
    rows = tuple(row for row in found if row is not None)
    return rows or (Subject(scope=operation.scope, handle=operation.handles[0], updated_ms=now.wall_ms),)


def _free_in_ms(row: Subject, now: Now) -> int:
    """How long until the object may be looked up. The lease clock holds, so that a stepped clock does not."""
    return max(0, row.lookup_until_ms - now.lease_ms) if row.lookup_epoch == now.epoch else 0


@dataclass(frozen=True, slots=True)
class EndLookup:
    """Write what a lookup showed to every operation it was for."""

    task: LookupTask
    result: LookupResult
    policy: LookupPolicy
    name: str = "end_lookup"

    @property
    def scope(self) -> Scope:
        return self.task.scope

    def apply(self, tables: Tables, now: Now) -> tuple[Change, ...]:
        for row in _rows(tables, now, self.task.operation):
            tables.put_subject(
                replace(
                    row,
                    lookup_owner=None,
                    lookup_until_ms=now.lease_ms + self.policy.min_interval_ms,
                    lookup_epoch=now.epoch,
                )
            )
        changes = []
        for identity, fence in self.task.fences:
            operation = seen_now(tables.operation(self.scope, identity), now)
            if operation is None or operation.state not in LOOKED_UP:
                continue
            change = self._one(tables, now, operation, fence)
            if change is not None:
                changes.append(change)
        if isinstance(self.result, Found):
            for handle in self.result.handles:
                remember_at(tables, now, self.scope, handle, self.result.seen)
        return tuple(changes)

    def _one(self, tables: Tables, now: Now, operation: Operation, fence: Fence) -> Change | None:
        before = operation.state
        change: Change | None = None
        is_current = fence == operation.fence or not operation.acts_on_existing
        if isinstance(self.result, Found) and is_current:  # U8: older than the run is none of its doing
            change = absorbed(tables, now, operation, self.result.seen)
        operation = change.operation if change else operation
        if operation.state not in LOOKED_UP:
            return change
        missed = isinstance(self.result, Missed) or (isinstance(self.result, Found) and change is None)
        noted = self._noted(operation, now, missed=missed and fence == operation.fence)
        noted = self._overdue(noted, now)
        tables.put(noted)
        if change is None and noted.state is before:
            return None
        return Change(noted, before, change.conflict if change else None)

    def _noted(self, operation: Operation, now: Now, *, missed: bool) -> Operation:
        """One more lookup on the operation's schedule; a miss counts only by U8."""
        lookups = replace(operation.lookups, done=operation.lookups.done + 1, last_ms=now.wall_ms)
        next_ms = next_point_ms(self.policy, operation, now.wall_ms)
        text = "looked up: " + _words(self.result)
        history = operation.history if isinstance(self.result, Found) else ()
        if not isinstance(self.result, Found):
            history = told(operation, now, EntryKind.LOOKUP, text)
        counts = (
            missed
            and operation.state in (State.UNKNOWN, State.MANUAL_REVIEW)
            and not operation.accepted
            and self._lag_is_over(operation)
        )
        if counts:
            lookups = replace(lookups, misses=lookups.misses + 1)
            if lookups.misses < self.policy.misses:
                next_ms = now.wall_ms + self.policy.min_interval_ms
        elif isinstance(self.result, Found) and not missed:
            lookups = replace(lookups, misses=0)
        asked_again = operation.state is not State.PENDING or operation.polled
        noted = replace(
            operation,
            lookups=replace(lookups, next_ms=next_ms if asked_again else None),
            history=history,
            updated_ms=now.wall_ms,
        )
        if lookups.misses >= self.policy.misses and noted.state in (State.UNKNOWN, State.MANUAL_REVIEW):
            return self._absent(noted, now)
        return noted

    def _lag_is_over(self, operation: Operation) -> bool:
        """U8: whether the lookup began late enough after the end of the last attempt.

        By the clock that nobody steps; after another boot there is only the wall clock.
        """
        if operation.last_attempt_end_ms is None:
            return False
        if operation.lease_epoch == self.task.epoch:
            return self.task.begun_lease_ms >= operation.lease_until_ms + self.policy.lag_ms
        return self.task.begun_ms >= operation.last_attempt_end_ms + self.policy.lag_ms

    def _absent(self, operation: Operation, now: Now) -> Operation:
        states.check(operation.state, Move.MISSES, State.ABSENT)
        text = (
            f"{self.policy.misses} misses in a row: absent, which is not proof; only the same key may be sent"
        )
        return replace(
            operation,
            state=State.ABSENT,
            absent_at_attempt=operation.attempt_count,
            doubt_since_absent=False,
            lookups=replace(operation.lookups, misses=0),
            history=told(operation, now, EntryKind.ABSENT, text),
        )

    def _overdue(self, operation: Operation, now: Now) -> Operation:
        """From 24 h on: a person should look; never turned into "failed" by time (U3)."""
        over = now.wall_ms >= operation.first_attempt_ms + self.policy.until_ms
        if not over or operation.state not in (State.UNKNOWN, State.ABSENT, State.PENDING):
            return operation
        states.check(operation.state, Move.OVERDUE, State.MANUAL_REVIEW)
        text = "the lookup schedule is over: a person should look; one lookup a day goes on"
        return replace(
            operation,
            state=State.MANUAL_REVIEW,
            lookups=replace(operation.lookups, next_ms=now.wall_ms + DAILY_MS),
            history=told(operation, now, EntryKind.MANUAL_REVIEW, text),
        )


def _words(result: LookupResult) -> str:
    if isinstance(result, Found):
        return f"{result.seen.status}"
    if isinstance(result, Missed):
        return "no record"
    return f"failed ({result.reason})"


@dataclass(frozen=True, slots=True)
class PutOffLookup:
    """There is no way to ask about this operation now (no credential, no such route): come back later (U8)."""

    scope: Scope
    operation: OperationId
    until_ms: int
    name: str = "put_off"

    def apply(self, tables: Tables, now: Now) -> None:
        current = tables.operation(self.scope, self.operation)
        if current is not None and current.lookups.next_ms is not None:
            tables.put(replace(current, lookups=replace(current.lookups, next_ms=self.until_ms)))


@dataclass(frozen=True, slots=True)
class TakeSweep:
    """Take the right to this day's sweep of one list of the platform: one process of the fleet (U2)."""

    scope: Scope
    target: str
    name: str = "take_sweep"

    def apply(self, tables: Tables, now: Now) -> bool:
        handle = Handle(f"sweep:{self.target}")
        row = tables.subject(self.scope, handle)
        before_ms = row.looked_up_ms if row else None
        # A clock that stepped back makes the sweep due: once too often is harmless.
        if before_ms is not None and 0 <= now.wall_ms - before_ms < DAILY_MS:
            return False
        swept = row or Subject(scope=self.scope, handle=handle, updated_ms=now.wall_ms)
        tables.put_subject(replace(swept, looked_up_ms=now.wall_ms, updated_ms=now.wall_ms))
        return True


@dataclass(frozen=True, slots=True)
class NoticeLapse:
    """An in-flight operation whose lease is over becomes unknown, so that lookups begin (U6)."""

    scope: Scope
    operation: OperationId
    name: str = "lapse"

    def apply(self, tables: Tables, now: Now) -> Operation | None:
        current = tables.operation(self.scope, self.operation)
        if current is None or current.state is not State.IN_FLIGHT or not current.lease_is_over(now):
            return None
        noticed = lapsed(current, now)
        tables.put(noticed)
        return noticed
