"""Forgetting what may be forgotten: resolved records past their time, and subjects that list nothing more.

A record's age is counted from its last change, so that a result that came late is kept as long as one that
came at once. The wall clock alone decides nothing: see `ClockTrust` (contract D1, O-65).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from proxy.core import states
from proxy.core.model import Now, Operation, OperationId, Scope, State, Subject, replace
from proxy.core.states import Move
from proxy.core.tables import Tables
from proxy.stores.rows import VerbTables, is_purgeable

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
SUBJECT_EXTRA_MS = 30 * DAY_MS  # K3: the counter outlives the records by 30 days
STEP_MS_MAX = 60_000  # clocks that run apart by more than this in an hour have been set, not just slewed
SLICE = 100  # operations dropped in one step: a purge never holds the store for long
DROPPED_MAX = 10_000  # per call of purge; the next one goes on


@dataclass(frozen=True, slots=True)
class Reading:
    """The two clocks at one instant."""

    epoch: str
    lease_ms: int
    wall_ms: int


@dataclass(slots=True)
class ClockTrust:
    """Whether the wall clock may decide about dropping records.

    It may once two readings, an hour of boot time apart or more, show that it went as far as the boot clock.
    """

    first: Reading | None = None

    def read(self, now: Now) -> bool:
        """Take a reading; whether the wall clock is trusted now."""
        here = Reading(now.epoch, now.lease_ms, now.wall_ms)
        first = self.first
        if first is None or first.epoch != here.epoch or here.lease_ms < first.lease_ms:
            self.first = here
            return False
        went = here.lease_ms - first.lease_ms
        if abs((here.wall_ms - first.wall_ms) - went) > STEP_MS_MAX:
            self.first = here
            return False
        return went >= HOUR_MS


def is_old(operation: Operation, now: Now, *, record_ms: int) -> bool:
    """Whether the record's time is over, by the wall clock and, where it can tell, by the lease's clock."""
    if not is_purgeable(operation) or now.wall_ms - operation.updated_ms < record_ms:
        return False
    if operation.lease_epoch == now.epoch:
        return now.lease_ms - operation.lease_until_ms >= record_ms - HOUR_MS
    return True


@dataclass(frozen=True, slots=True)
class PurgeOperations:
    """Drop those of the operations that are still old, and take them off their subjects' lists."""

    scope: Scope
    operations: tuple[OperationId, ...]
    record_ms: dict[str, int]
    name: str = "purge"

    def apply(self, tables: Tables, now: Now) -> int:
        dropped = 0
        for identity in self.operations:
            found = tables.operation(self.scope, identity)
            if found is None or found.route not in self.record_ms:
                continue
            if not is_old(found, now, record_ms=self.record_ms[found.route]):
                continue
            if found.state in (State.EXECUTED, State.NOT_EXECUTED):
                states.check(found.state, Move.PURGE, None)
            tables.drop(found)
            self._unlist(tables, found)
            dropped += 1
        return dropped

    def _unlist(self, tables: Tables, operation: Operation) -> None:
        """`updated_ms` stays: the subject is as old as the last thing that happened to it."""
        handles = dict.fromkeys((*operation.handles, operation.subject, operation.twin))
        for handle in handles:
            row = tables.subject(self.scope, handle) if handle else None
            if row is None or operation.id not in row.operations:
                continue
            guards = {
                route: replace(guard, holder=None) if guard.holder == operation.id else guard
                for route, guard in row.guards.items()
            }
            kept = tuple(one for one in row.operations if one != operation.id)
            tables.put_subject(
                replace(
                    row, guards=guards, operations=kept, updated_ms=max(row.updated_ms, operation.updated_ms)
                )
            )


@dataclass(frozen=True, slots=True)
class PurgeSubjects:
    """Drop those of the subjects that list no operation and are old."""

    scope: Scope
    subjects: tuple[Subject, ...]
    older_than_ms: int
    name: str = "purge"

    def apply(self, tables: Tables, now: Now) -> int:
        assert isinstance(tables, VerbTables)  # noqa: S101 -- stores' own verb, run on stores' own tables
        dropped = 0
        for listed in self.subjects:
            row = tables.subject(self.scope, listed.handle)
            if row is not None and not row.operations and row.updated_ms < self.older_than_ms:
                tables.drop_subject(row)
                dropped += 1
        return dropped


def by_scope(operations: Sequence[Operation]) -> list[tuple[Scope, tuple[OperationId, ...]]]:
    """A slice of operations as what one verb each can drop."""
    ordered = sorted(operations, key=lambda one: one.scope.tag)
    return [
        (scope, tuple(one.id for one in group))
        for scope, group in groupby(ordered, key=lambda one: one.scope)
    ]


def subjects_by_scope(subjects: Sequence[Subject]) -> list[tuple[Scope, tuple[Subject, ...]]]:
    ordered = sorted(subjects, key=lambda one: one.scope.tag)
    return [(scope, tuple(group)) for scope, group in groupby(ordered, key=lambda one: one.scope)]


def subjects_before_ms(now: Now, record_ms: dict[str, int]) -> int:
    """Subjects last changed before this, and listing nothing, are forgotten (K3)."""
    return now.wall_ms - max(record_ms.values(), default=0) - SUBJECT_EXTRA_MS
