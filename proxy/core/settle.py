"""The verbs of a run: record its next attempt, hold its lease, write how it ended (architecture section 3).

Doubt is sticky: the flag about all earlier attempts is written with each attempt before it leaves, and only
evidence ends it. A definite answer of the platform is true whoever brings it; all else needs the fence.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from proxy.core import states
from proxy.core.evidence import absorbed, disagreement, disputes, link, newer_than, older_than, remember
from proxy.core.messages import (
    AttemptNote,
    AttemptRecorded,
    Settled,
    SettleRefused,
    Superseded,
)
from proxy.core.model import (
    Attempt,
    Baseline,
    Entry,
    EntryKind,
    Knowledge,
    Now,
    Operation,
    Outcome,
    Scope,
    Seen,
    State,
    StoredAnswer,
)
from proxy.core.states import Move
from proxy.core.tables import ATTEMPTS_KEPT, Tables, anew, baseline_of, scheduled, told

ABSENCE_CONFIRMED_BY = frozenset({400, 404, 422})
"""Answers that prove to an attempt begun after absence was believed that nothing happened (U3). Not 401, 403, 429
or 503: those come before the platform looks the key up."""


def with_end(operation: Operation, note: AttemptNote) -> Operation:
    """The operation with its newest attempt's end written in, and doubt where it ended so."""
    in_doubt = note.outcome is Outcome.IN_DOUBT
    ended = (_with_outcome(last, note) for last in operation.attempts[-1:])
    return replace(
        operation,
        attempts=(*operation.attempts[:-1], *ended),
        doubt=operation.doubt or in_doubt,
        doubt_since_absent=operation.doubt_since_absent or in_doubt,
        last_attempt_end_ms=note.ended_ms,
    )


def _with_outcome(attempt: Attempt, note: AttemptNote) -> Attempt:
    ended = replace(attempt, ended_ms=note.ended_ms, outcome=note.outcome, status=note.status)
    return replace(ended, code=note.code, detail=note.detail)


def _ended_now(operation: Operation, now: Now) -> Operation:
    """The attempt's end by the store's clocks, which lookups are counted from (U8, D2), not by its own host's.

    It is written a moment after it happened, never before: no lookup counts too soon. The lease is given back at
    that instant, which is the attempt's end by the clock that nobody steps.
    """
    return replace(
        operation, last_attempt_end_ms=now.wall_ms, lease_until_ms=now.lease_ms, lease_epoch=now.epoch
    )


def absence_holds(operation: Operation, note: AttemptNote | None) -> bool:
    """U3: absent was believed, and an attempt begun after it was refused, with none since in doubt."""
    return (
        operation.absent_at_attempt is not None
        and operation.attempt_count > operation.absent_at_attempt
        and not operation.doubt_since_absent
        and note is not None
        and note.status in ABSENCE_CONFIRMED_BY
    )


def leads(operation: Operation, current: Operation) -> bool:
    """Whether the run still holds the record. Owners count too: a store that lost data counts fences anew."""
    return (
        current.state is State.IN_FLIGHT
        and current.fence == operation.fence
        and current.owner == operation.owner
    )


def _with_its_end(current: Operation, mine: Operation, note: AttemptNote | None) -> Operation:
    """The record as it stands, with the end of the run's own attempt, which it still has as on the wire."""
    last = mine.attempts[-1] if mine.attempts else None
    if note is None or last is None or last.ended_ms is not None or last not in current.attempts:
        return current
    ended = _with_outcome(last, note)
    return replace(current, attempts=tuple(ended if one == last else one for one in current.attempts))


def _left(tables: Tables, mine: Operation, note: AttemptNote | None, current: Operation) -> Operation:
    """What stands where evidence was quicker than a run; how its attempt ended is part of the story still."""
    is_same_run = current.fence == mine.fence and current.owner in (None, mine.owner)
    told_of = _with_its_end(current, mine, note) if is_same_run else current
    if told_of is not current:
        tables.put(told_of)
    return told_of


class RecordNextAttempt(Struct, frozen=True):
    """The attempt before ended as `ended`; make the next one durable before it leaves (R1)."""

    operation: Operation
    ended: AttemptNote
    lease_ms: int
    request_id: str = ""
    name: str = "record_attempt"

    @property
    def scope(self) -> Scope:
        return self.operation.scope

    def apply(self, tables: Tables, now: Now) -> AttemptRecorded | Superseded:
        current = tables.operation(self.scope, self.operation.id)
        if current is None:
            states.check(None, Move.RECORD_ATTEMPT, State.IN_FLIGHT)
            current = anew(tables, now, self.operation)
        elif not leads(self.operation, current):
            return Superseded(_left(tables, self.operation, self.ended, current))
        states.check(current.state, Move.RECORD_ATTEMPT, State.IN_FLIGHT)
        ended = _ended_now(with_end(current, self.ended), now)
        n = ended.attempt_count + 1
        attempt = Attempt(n=n, fence=ended.fence, begun_ms=now.wall_ms, request_id=self.request_id)
        recorded = replace(
            ended,
            attempts=(*ended.attempts[1 - ATTEMPTS_KEPT :], attempt),
            attempt_count=n,
            lease_until_ms=now.lease_ms + self.lease_ms,
            lease_epoch=now.epoch,
            updated_ms=now.wall_ms,
        )
        tables.put(recorded)
        return AttemptRecorded(recorded)


class RenewLease(Struct, frozen=True):
    """Hold the lease while the run works (P5). None: renewed; else the record as it now is."""

    operation: Operation
    lease_ms: int
    name: str = "renew"

    @property
    def scope(self) -> Scope:
        return self.operation.scope

    def apply(self, tables: Tables, now: Now) -> Operation | None:
        current = tables.operation(self.scope, self.operation.id) or anew(tables, now, self.operation)
        if not leads(self.operation, current):
            return current
        tables.put(replace(current, lease_until_ms=now.lease_ms + self.lease_ms, lease_epoch=now.epoch))
        return None


class SettleRun(Struct, frozen=True):
    """Write how a run ended. What the table does not allow is refused, and the record is left alone (P5)."""

    operation: Operation
    state: State
    ended: AttemptNote | None
    answer: StoredAnswer | None
    seen: Seen | None
    released: bool = False
    request_id: str = ""
    name: str = "settle"

    @property
    def scope(self) -> Scope:
        return self.operation.scope

    def apply(self, tables: Tables, now: Now) -> Settled | SettleRefused:
        current = tables.operation(self.scope, self.operation.id) or anew(tables, now, self.operation)
        if self.state in (State.EXECUTED, State.PENDING):
            known = self._known_already(tables, now, current) or self._definite(tables, now, current)
            if isinstance(known, SettleRefused):
                return SettleRefused(_left(tables, self.operation, self.ended, known.operation))
            return known
        if not leads(self.operation, current):
            return SettleRefused(_left(tables, self.operation, self.ended, current))
        ended = _ended_now(with_end(current, self.ended), now) if self.ended else current
        if self.state is State.NOT_EXECUTED:
            if ended.doubt and not absence_holds(ended, self.ended):
                return SettleRefused(current)
            return self._not_executed(tables, now, ended)
        return self._unknown(tables, now, ended)

    def _ended(self, operation: Operation, now: Now) -> Operation:
        """What holds however the run ended: no lease, and its answer kept for its followers (P4)."""
        answer = replace(self.answer, fence=operation.fence) if self.answer else operation.answer
        return replace(
            operation,
            owner=None,
            prior=None,
            answer=answer,
            answer_before=operation.answer if self.answer else operation.answer_before,
            updated_ms=now.wall_ms,
        )

    def _known_already(self, tables: Tables, now: Now, current: Operation) -> Settled | SettleRefused | None:
        """What a record that the platform settled says to one more answer; None: it tells something new."""
        known = current.knowledge in (Knowledge.EXECUTED, Knowledge.PENDING)
        if not known or current.by_hand is not None:
            return None
        seen = self.seen
        if self.answer is not None and current.answer == replace(self.answer, fence=current.fence):
            return Settled(current)  # a settle whose reply was lost, asked again
        if seen is None or older_than(seen, current.newest):
            return SettleRefused(current)
        if disputes(seen, current):
            change = disagreement(tables, now, current, seen)
            return SettleRefused(change.operation if change else current)
        return None

    def _definite(self, tables: Tables, now: Now, current: Operation) -> Settled:
        seen = self.seen
        was_final = current.state is State.EXECUTED and current.by_hand is None
        states.check(current.state, Move.SETTLE_DEFINITE, self.state)
        late = not leads(self.operation, current)
        if late or self.ended is None:
            ended = _with_its_end(current, self.operation, self.ended)
        else:
            ended = _ended_now(with_end(current, self.ended), now)
        history: tuple[Entry, ...] = ended.history
        said = (seen.status if seen else "") or self.state
        if current.state is State.NOT_EXECUTED or current.by_hand not in (None, said):
            text = f"a late answer of the platform says {said}; it was held to be {_was(current)}"
            history = told(ended, now, EntryKind.OUTCOME_CONFLICT, text)
        elif late:
            text = f"a late answer of the platform: {self.state}"
            history = told(ended, now, EntryKind.LATE_ANSWER, text)
        settled = replace(
            self._ended(ended, now),
            state=self.state,
            accepted=True,
            released=False,
            by_hand=None,
            status=seen.status if seen else None,
            resolution_status=seen.resolution_status if seen else None,
            version=seen.version if seen and seen.version is not None else current.version,
            newest=seen or current.newest,
            resource_id=(seen.resource_id if seen else None) or current.resource_id,
            baseline=current.baseline if seen and seen.version is not None else _last_known(tables, current),
            settled_by="late_answer" if late else "answer",
            settled_ms=now.wall_ms if self.state is State.EXECUTED else None,
            unknown_since_ms=None,
            absent_at_attempt=None,
            failure_delivered=was_final
            and current.failure_delivered
            and seen is not None
            and seen.status == current.status,
            lookups=scheduled(current, self.state, now),
            history=history,
        )
        linked = link(tables, now, settled)
        tables.put(linked)
        if seen is not None:
            remember(tables, now, linked, seen)
        return Settled(with_kept_evidence(tables, now, linked))

    def _not_executed(self, tables: Tables, now: Now, ended: Operation) -> Settled:
        states.check(State.IN_FLIGHT, Move.SETTLE_NOT_EXECUTED, State.NOT_EXECUTED)
        settled = replace(
            self._ended(ended, now),
            state=State.NOT_EXECUTED,
            released=self.released or ended.doubt,
            doubt=False,
            doubt_since_absent=False,
            absent_at_attempt=None,
            unknown_since_ms=None,
            settled_by="answer",
            settled_ms=now.wall_ms,
            lookups=scheduled(ended, State.NOT_EXECUTED, now),
        )
        tables.put(settled)
        return Settled(settled)

    def _unknown(self, tables: Tables, now: Now, ended: Operation) -> Settled:
        states.check(State.IN_FLIGHT, Move.SETTLE_UNKNOWN, State.UNKNOWN)
        why = self.ended.detail if self.ended else "interrupted"
        text = f"the run ended without a definite answer: {why}"
        settled = replace(
            self._ended(ended, now),
            state=State.UNKNOWN,
            doubt=True,
            doubt_since_absent=ended.doubt_since_absent or self.ended is None,
            unknown_since_ms=ended.unknown_since_ms or now.wall_ms,
            lookups=replace(scheduled(ended, State.UNKNOWN, now), misses=0),
            history=told(ended, now, EntryKind.DOUBT, text),
        )
        tables.put(settled)
        return Settled(with_kept_evidence(tables, now, settled))


def _last_known(tables: Tables, operation: Operation) -> Baseline:
    """What has to be newer than an answer without a version: the resource as it was known by then (U3)."""
    thing = operation.subject if operation.acts_on_existing else None
    row = tables.subject(operation.scope, thing) if thing else None
    return operation.baseline if row is None or row.latest is None else baseline_of(row)


def with_kept_evidence(tables: Tables, now: Now, operation: Operation) -> Operation:
    """Evidence that came before the run ended (an early event, a lookup) settles what the run could not (U4)."""
    for handle in operation.handles:
        row = tables.subject(operation.scope, handle)
        kept = row.latest if row else None
        if kept is None or kept == operation.newest:  # what the run itself has just brought proves no more
            continue
        if operation.acts_on_existing and kept.version is None and (kept.is_failure or not kept.is_final):
            continue  # nothing tells it from what the resource was before: another card's failure, perhaps (U3)
        change = absorbed(tables, now, operation, kept)
        operation = change.operation if change else operation
    return operation


def _was(operation: Operation) -> str:
    return f"{operation.by_hand} by hand" if operation.by_hand else str(operation.state)


class UpdateFromRepeat(Struct, frozen=True):
    """Write what a forwarded repeat showed, unless it is older than the record (P6).

    A person may have settled it while the repeat was on its way: the platform's answer overrides that (C5).
    """

    operation: Operation
    state: State
    ended: AttemptNote
    answer: StoredAnswer
    seen: Seen
    request_id: str = ""
    is_shared: bool = False  # another call sent it, and counts it
    name: str = "update"

    @property
    def scope(self) -> Scope:
        return self.operation.scope

    def apply(self, tables: Tables, now: Now) -> Settled | SettleRefused:
        current = tables.operation(self.scope, self.operation.id)
        if current is None:
            current = anew(tables, now, self.operation)
        if older_than(self.seen, current.newest):
            return SettleRefused(current)
        if current.by_hand is not None and newer_than(self.seen, current):
            late = SettleRun(self.operation, self.state, self.ended, self.answer, self.seen)
            return late.apply(tables, now)
        if current.by_hand is not None:
            return SettleRefused(current)
        if current.state not in (State.EXECUTED, State.PENDING, State.MANUAL_REVIEW):
            return SettleRefused(current)
        if current.state is State.EXECUTED and self._says_no_more(current):
            change = disagreement(tables, now, current, self.seen)
            return SettleRefused(change.operation if change else current)
        states.check(current.state, Move.SETTLE_DEFINITE, self.state)
        count = current.attempt_count + (not self.is_shared)
        begun = Attempt(
            n=count, fence=current.fence, begun_ms=self.ended.ended_ms, request_id=self.request_id
        )
        attempt = replace(_with_outcome(begun, self.ended), detail="a repeat of what is recorded")
        attempts = (*current.attempts[1 - ATTEMPTS_KEPT :], attempt)
        was_final = current.state is State.EXECUTED
        updated = replace(
            current,
            state=self.state,
            status=self.seen.status,
            resolution_status=self.seen.resolution_status,
            version=self.seen.version if self.seen.version is not None else current.version,
            newest=self.seen,
            answer=replace(self.answer, fence=current.fence),
            attempts=current.attempts if self.is_shared else attempts,
            attempt_count=count,
            last_attempt_end_ms=now.wall_ms,
            settled_by=current.settled_by if was_final else "answer",
            settled_ms=current.settled_ms if was_final else now.wall_ms,
            lookups=scheduled(current, self.state, now),
            updated_ms=now.wall_ms,
        )
        linked = link(tables, now, updated)
        tables.put(linked)
        remember(tables, now, linked, self.seen)
        return Settled(linked)

    def _says_no_more(self, current: Operation) -> bool:
        """The version that is recorded, with something else: what is executed stays as it is (state table)."""
        is_same = self.seen.version is not None and self.seen.version == current.version
        return disputes(self.seen, current) or (is_same and self.state is not State.EXECUTED)
