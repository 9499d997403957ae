"""Reserve: the one atomic step that decides whether a call may lead (architecture section 4, step 3).

The lock is the lease on the record (owner, fence, until): lock and ledger can't disagree.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from proxy.core import states
from proxy.core.fingerprint import differing
from proxy.core.keys import key_for, operation_id
from proxy.core.messages import (
    Blocked,
    Claim,
    Conflicting,
    KeyExpired,
    Recorded,
    Reserved,
    RunEnded,
    Running,
    SeqKey,
    Withdrawn,
)
from proxy.core.model import (
    UNRESOLVED,
    Attempt,
    Fence,
    Guard,
    Key,
    Knowledge,
    Now,
    Operation,
    OperationId,
    Owner,
    Scope,
    State,
    StoredAnswer,
    Subject,
)
from proxy.core.states import Move
from proxy.core.tables import (
    ATTEMPTS_KEPT,
    Tables,
    baseline_of,
    holds_subject,
    is_failure,
    listed,
    scheduled,
    seen_now,
    things_of,
)

SEQ_MAX = 10_000  # submissions on one subject; payhub allows 3
KEY_EXPIRY_MARGIN_MS = 3_600_000  # P9: retention less one hour
SET_BACK_MS = 60_000  # by more than this no two views of the store's clock differ: it was set back

ReserveAnswer = Reserved | Running | Recorded | RunEnded | Conflicting | Blocked | KeyExpired


def find(
    tables: Tables, claim: Claim, arrived: Now | None = None, now: Now | None = None
) -> tuple[int | None, Key, OperationId, Operation | None]:
    """The number, key, id and record that the claim means, `now`, of a call that came when it `arrived`.

    Fills `{seq}` in: one more than the last submission that failed and whose failure was given (K3), before the
    call arrived: one that a slow host or store held up repeats what its caller has since heard the end of.
    """
    if not isinstance(claim.key, SeqKey):
        identity = operation_id(claim.scope, claim.method, claim.path, claim.key)
        return None, claim.key, identity, tables.operation(claim.scope, identity)
    subject = tables.subject(claim.scope, claim.subject) if claim.subject else None
    guard = subject.guards.get(claim.route.name) if subject else None
    seq = guard.seq if guard else 1
    while True:
        key = key_for(claim.key, seq)
        identity = operation_id(claim.scope, claim.method, claim.path, key)
        found = tables.operation(claim.scope, identity)
        failed_before = (
            found is not None and is_failure(claim.route, found) and _was_given(found, arrived, now)
        )
        if not failed_before or seq >= SEQ_MAX:
            return seq, key, identity, found
        seq += 1


def _was_given(failed: Operation, arrived: Now | None, now: Now | None) -> bool:
    """Whether its failure was given to a caller, and the call that arrived then is another submission (K3).

    Not told by a clock that was set back since: every call would be answered with it until that has caught up.
    """
    if arrived is None or now is None or arrived.epoch != failed.delivered_epoch:
        return failed.failure_delivered
    was_set_back = now.lease_ms < failed.delivered_ms - SET_BACK_MS
    return failed.failure_delivered and (was_set_back or arrived.lease_ms >= failed.delivered_ms)


class ReserveOperation(Struct, frozen=True):
    """Claim an operation and record its next attempt, or say why not (P2, P4, P5, P9, U1, K3).

    Args: arrived: when the call came, by the store's clocks; None counts as after every run.
    """

    claim: Claim
    owner: Owner
    lease_ms: int
    arrived: Now | None = None
    name: str = "reserve"

    @property
    def scope(self) -> Scope:
        return self.claim.scope

    def apply(self, tables: Tables, now: Now) -> ReserveAnswer:
        claim = self.claim
        subject = tables.subject(claim.scope, claim.subject) if claim.subject else None
        seq, key, identity, found = find(tables, claim, self.arrived, now)
        found = seen_now(found, now)
        if found is not None and found.owner == self.owner and found.state is State.IN_FLIGHT:
            return Reserved(found)  # a reserve whose reply was lost, asked again by its owner
        if found is not None:
            refusal = self._judge(found, now, seq)
            if refusal is not None:
                return refusal
        blocked = self._blocked(tables, now, subject, identity)
        if blocked is not None:
            return blocked
        operation = self.claimed(found, now, identity=identity, key=key, seq=seq, subject=subject)
        states.check(found.state if found else None, Move.RESERVE, State.IN_FLIGHT)
        if found is not None:
            unlist(tables, now, found, less=operation)
        tables.put(operation)
        self.hold(tables, now, operation)
        return Reserved(operation)

    def _judge(self, found: Operation, now: Now, seq: int | None) -> ReserveAnswer | None:
        """What the record itself says about this call; None: it may be claimed."""
        claim = self.claim
        differ = differing(found.fingerprint, claim.fingerprints)
        if differ and not (found.state is State.NOT_EXECUTED and found.released):
            return Conflicting(found, differ)
        if found.state is State.IN_FLIGHT:
            return Running(found)
        route = claim.route
        expired = (
            route.key_expires
            and now.wall_ms - found.first_attempt_ms > route.retention_ms - KEY_EXPIRY_MARGIN_MS
        )
        if expired and (found.by_hand is None or found.state is State.NOT_EXECUTED):
            return KeyExpired(found)
        if found.state in (State.EXECUTED, State.PENDING) or found.knowledge == "pending":
            counted = seq is not None or found.seq is not None
            due = counted and is_failure(route, found) and not _was_given(found, self.arrived, now)
            answer = found.answer
            if answer is not None and not due and self._came_during_the_run(found, answer):
                return RunEnded(found, answer)
            return Recorded(found, failure_is_due=due)
        return None

    def _came_during_the_run(self, found: Operation, answer: StoredAnswer) -> bool:
        """Whether the call was here before the leader's run ended, and only its claim came late (P4).

        A far or busy store makes that likely. Such a call is a follower, not a later repeat: forwarded, it would
        be a second hit for concurrent calls.
        """
        return (
            self.arrived is not None
            and found.settled_by == "answer"  # of a run's own end, which gave its lease back at that instant
            and self.arrived.epoch == found.lease_epoch
            and self.arrived.lease_ms < found.lease_until_ms
            and answer.body is not None
            and answer.knowledge in (Knowledge.EXECUTED, Knowledge.PENDING)
        )

    def _blocked(
        self, tables: Tables, now: Now, subject: Subject | None, identity: OperationId
    ) -> Blocked | None:
        claim = self.claim
        rule = claim.route.guard
        if not rule.on:
            return None
        twin = tables.subject(claim.scope, claim.twin) if claim.twin and rule.twin_rejects else None
        for row, is_twin in ((subject, False), (twin, True)):
            guard = row.guards.get(claim.route.name) if row else None
            for name in (guard.holder, *guard.also) if guard else ():
                if name is None or name == identity:
                    continue
                holder = seen_now(tables.operation(claim.scope, name), now)
                if holder is not None and self._is_held_by(holder, is_twin=is_twin):
                    return Blocked(holder, is_twin)
        return None

    def _is_held_by(self, holder: Operation, *, is_twin: bool) -> bool:
        if is_twin:
            return holder.state in UNRESOLVED and holder.knowledge == "unknown"
        return holds_subject(self.claim.route, holder)

    def claimed(
        self,
        found: Operation | None,
        now: Now,
        *,
        identity: OperationId,
        key: Key,
        seq: int | None,
        subject: Subject | None,
    ) -> Operation:
        """The record with this call's lease on it and its attempt in it."""
        known = found or self._unclaimed(now, identity=identity, key=key, seq=seq)
        if known.state is State.NOT_EXECUTED and known.released:
            known = self._rebound(known)
        fence, count = Fence(known.fence + 1), known.attempt_count + 1
        attempt = Attempt(n=count, fence=fence, begun_ms=now.wall_ms, request_id=self.claim.request_id)
        return replace(
            known,
            state=State.IN_FLIGHT,
            prior=found.state if found else None,
            fence=fence,
            owner=self.owner,
            lease_until_ms=now.lease_ms + self.lease_ms,
            lease_epoch=now.epoch,
            updated_ms=now.wall_ms,
            by_hand=None,
            settled_by=None,
            settled_ms=None,
            baseline=known.baseline if known.doubt else baseline_of(subject),
            attempts=(*known.attempts[1 - ATTEMPTS_KEPT :], attempt),
            attempt_count=count,
            lookups=replace(known.lookups, misses=0),
        )

    def _unclaimed(self, now: Now, *, identity: OperationId, key: Key, seq: int | None) -> Operation:
        """A new submission, before its first attempt."""
        claim, route = self.claim, self.claim.route
        return Operation(
            id=identity,
            scope=claim.scope,
            route=route.name,
            method=claim.method,
            path=claim.path,
            key=key,
            kind=route.object.kind,
            acts_on_existing=route.acts_on_existing,
            tracked=route.tracked,
            number_is_unique=route.guard.platform_is_unique,
            polled=route.polled_while_pending,
            key_injected=claim.key_injected,
            seq=seq,
            fingerprint=claim.fingerprints[0],
            state=State.NOT_EXECUTED,
            fence=Fence(0),
            created_ms=now.wall_ms,
            updated_ms=now.wall_ms,
            subject=claim.subject,
            twin=claim.twin,
            handles=claim.handles,
            resource_id=claim.resource_id,
            amount=claim.amount,
            currency=claim.currency,
            first_attempt_ms=now.wall_ms,
        )

    def _rebound(self, known: Operation) -> Operation:
        """A released key comes again, perhaps with other parameters: the record is of those now (P7)."""
        claim = self.claim
        return replace(
            known,
            fingerprint=claim.fingerprints[0],
            amount=claim.amount,
            currency=claim.currency,
            subject=claim.subject,
            twin=claim.twin,
            handles=claim.handles,
            resource_id=claim.resource_id,
            version=None,
            newest=None,
        )

    def hold(self, tables: Tables, now: Now, operation: Operation, *, beside: bool = False) -> None:
        """Make the operation findable by its things and, where the guard is on, their holder.

        Args: beside: earlier holders were not asked, and go on holding (D3).
        """
        claim = self.claim
        for handle in things_of(operation):
            row = tables.subject(claim.scope, handle) or Subject(
                scope=claim.scope, handle=handle, updated_ms=now.wall_ms
            )
            guards = row.guards
            if handle in (operation.subject, operation.twin) and (claim.route.guard.on or operation.seq):
                before = guards.get(claim.route.name) or Guard()
                holder = operation.id if claim.route.guard.on else before.holder
                earlier = dict.fromkeys(one for one in (before.holder, *before.also) if one)
                also = tuple(one for one in earlier if beside and one != operation.id)
                guard = Guard(holder=holder, seq=max(before.seq, operation.seq or 1), also=also)
                guards = {**guards, claim.route.name: guard}
            if guards != row.guards or operation.id not in row.operations:
                tables.put_subject(
                    replace(
                        row,
                        guards=guards,
                        operations=listed(tables, row, operation.id),
                        updated_ms=now.wall_ms,
                    )
                )


class WithdrawClaim(Struct, frozen=True):
    """Take back a claim that sent nothing: the record is as before it (architecture section 4, step 3).

    Found by owner token, so that it also undoes a reserve whose reply was lost. Someone else's claim, or one
    that was replaced meanwhile, is left alone.
    """

    claim: Claim
    owner: Owner
    name: str = "withdraw"

    @property
    def scope(self) -> Scope:
        return self.claim.scope

    def apply(self, tables: Tables, now: Now) -> Withdrawn:
        found = find(tables, self.claim)[3]
        if found is None or found.owner != self.owner or found.state is not State.IN_FLIGHT:
            return Withdrawn(found)
        if found.doubt and found.prior in (None, State.NOT_EXECUTED):
            return Withdrawn(self._in_doubt(tables, now, found))
        states.check(State.IN_FLIGHT, Move.WITHDRAW, found.prior)
        if found.prior is None:
            tables.drop(found)
            unlist(tables, now, found)
            return Withdrawn(None)
        before = replace(
            found,
            state=found.prior,
            prior=None,
            owner=None,
            attempts=found.attempts[:-1],
            attempt_count=found.attempt_count - 1,
            updated_ms=now.wall_ms,
        )
        tables.put(before)
        return Withdrawn(before)

    def _in_doubt(self, tables: Tables, now: Now, found: Operation) -> Operation:
        """The claim sent nothing, but the key was sent without the store meanwhile (D3)."""
        states.check(State.IN_FLIGHT, Move.SETTLE_UNKNOWN, State.UNKNOWN)
        unknown = replace(
            found,
            state=State.UNKNOWN,
            prior=None,
            owner=None,
            unknown_since_ms=now.wall_ms,
            lookups=scheduled(found, State.UNKNOWN, now),
            updated_ms=now.wall_ms,
        )
        tables.put(unknown)
        return unknown


def unlist(tables: Tables, now: Now, operation: Operation, *, less: Operation | None = None) -> None:
    """Take the operation off its things, `less` those that it has as the other one too.

    A released key may come again for another order: evidence of the first is then none of the second's.
    """
    kept = things_of(less) if less is not None else ()
    for handle in things_of(operation):
        row = tables.subject(operation.scope, handle) if handle not in kept else None
        if row is None:
            continue
        guard = row.guards.get(operation.route)
        guards = row.guards
        if guard is not None and guard.holder == operation.id:
            guards = {**guards, operation.route: replace(guard, holder=None)}
        operations = tuple(one for one in row.operations if one != operation.id)
        tables.put_subject(replace(row, guards=guards, operations=operations, updated_ms=now.wall_ms))
