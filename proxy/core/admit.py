"""What was sent while the store was down, written when it returns (contract D3)."""

from __future__ import annotations

from dataclasses import dataclass

from proxy.core import states
from proxy.core.evidence import link
from proxy.core.fingerprint import differing
from proxy.core.keys import operation_id
from proxy.core.messages import Claim
from proxy.core.model import (
    Attempt,
    EntryKind,
    Key,
    Knowledge,
    Now,
    Operation,
    OperationId,
    Outcome,
    Owner,
    Scope,
    Seen,
    State,
    replace,
)
from proxy.core.reserve import ReserveOperation, unlist
from proxy.core.states import Move
from proxy.core.tables import Tables, scheduled, seen_now, told


@dataclass(frozen=True, slots=True)
class AdmitUnrecorded:
    """Write what was sent while the store was down (D3): a definite answer, else doubt.

    Args: owner: of the claim that the same call may have made all the same, its reply lost.
    """

    claim: Claim
    key: Key
    outcome: Outcome
    seen: Seen | None
    sent_ms: int
    status: int | None
    owner: Owner | None = None
    name: str = "admit"

    @property
    def scope(self) -> Scope:
        return self.claim.scope

    def apply(self, tables: Tables, now: Now) -> Operation:
        identity = operation_id(self.scope, self.claim.method, self.claim.path, self.key)
        found = seen_now(tables.operation(self.scope, identity), now)
        if found is not None and self._is_written(found):
            return found
        state = _ADMITTED.get(self.outcome)
        known = found is not None and found.knowledge in (Knowledge.EXECUTED, Knowledge.PENDING)
        if found is not None and known and (found.by_hand is None or state is None):
            return found
        if found is not None and found.state is State.IN_FLIGHT and state is None:
            return self._doubted(tables, now, found)
        admitted = self._admitted(tables, now, found, identity, state or State.UNKNOWN)
        if state is not None:
            states.check(found.state if found else None, Move.SETTLE_DEFINITE, state)
        else:
            states.check(found.state if found else None, Move.RESERVE, State.IN_FLIGHT)
            states.check(State.IN_FLIGHT, Move.SETTLE_UNKNOWN, State.UNKNOWN)
        if found is not None:
            unlist(tables, now, found, less=admitted)
        linked = link(tables, now, admitted)
        tables.put(linked)
        ReserveOperation(self.claim, Owner(""), 0).hold(tables, now, linked, beside=True)
        return linked

    def _is_written(self, found: Operation) -> bool:
        """Whether this very call is there already: a write whose reply was lost, asked again."""
        sent = (self.claim.request_id, self.sent_ms, self.sent_ms, self.outcome)
        return any(
            (one.request_id, one.begun_ms, one.ended_ms, one.outcome) == sent for one in found.attempts
        )

    def _doubted(self, tables: Tables, now: Now, running: Operation) -> Operation:
        """Another run of the key is under way: it may no longer end as not executed."""
        text = "sent while the store was down as well; that attempt is in doubt"
        doubted = replace(
            running,
            doubt=True,
            doubt_since_absent=True,
            history=told(running, now, EntryKind.WRITTEN_ANEW, text),
            updated_ms=now.wall_ms,
        )
        tables.put(doubted)
        return doubted

    def _took_other_fields(self, found: Operation, state: State) -> bool:
        """Whether the platform accepted the key with other fields than recorded: it did not hold it for those.

        What went out with them had no effect, and can't have one any more: it would be a conflict (P2).
        """
        accepted = state is not State.UNKNOWN
        return accepted and bool(differing(found.fingerprint, self.claim.fingerprints))

    def _admitted(
        self, tables: Tables, now: Now, found: Operation | None, identity: OperationId, state: State
    ) -> Operation:
        subject = tables.subject(self.scope, self.claim.subject) if self.claim.subject else None
        # A run under way keeps its fence: like any evidence this ends its retries, and takes no lease from it.
        runs = found is not None and found.state is State.IN_FLIGHT
        if found is not None and (found.state is State.NOT_EXECUTED or self._took_other_fields(found, state)):
            # the platform now holds the key for what was sent
            found = replace(found, state=State.NOT_EXECUTED, released=True)
        if found is not None and runs and found.owner == self.owner:  # one attempt, claimed and sent
            found = replace(found, attempts=found.attempts[:-1], attempt_count=found.attempt_count - 1)
        claimed = ReserveOperation(self.claim, Owner(""), 0).claimed(
            found, now, identity=identity, key=self.key, seq=None, subject=subject
        )
        fence = found.fence if found is not None and runs else claimed.fence
        attempt = Attempt(
            n=claimed.attempt_count,
            fence=fence,
            begun_ms=self.sent_ms,
            ended_ms=self.sent_ms,
            request_id=self.claim.request_id,
            outcome=self.outcome,
            status=self.status,
            detail="sent while the store was down",
        )
        in_doubt = state is State.UNKNOWN
        seen = self.seen
        return replace(
            claimed,
            state=state,
            fence=fence,
            prior=None,
            owner=None,
            lease_until_ms=0,
            doubt=claimed.doubt or in_doubt,
            doubt_since_absent=claimed.doubt_since_absent or in_doubt,
            accepted=not in_doubt,
            released=claimed.released and in_doubt,
            status=seen.status if seen else None,
            version=seen.version if seen else claimed.version,
            newest=replace(seen, body=None) if seen else claimed.newest,
            resource_id=(seen.resource_id if seen else None) or claimed.resource_id,
            first_attempt_ms=min(claimed.first_attempt_ms, self.sent_ms),
            last_attempt_end_ms=self.sent_ms,
            attempts=(*claimed.attempts[:-1], attempt),
            unknown_since_ms=(claimed.unknown_since_ms or self.sent_ms) if in_doubt else None,
            settled_by="answer" if state is State.EXECUTED else None,
            settled_ms=now.wall_ms if state is State.EXECUTED else None,
            lookups=scheduled(claimed, state, now),
            history=told(
                claimed, now, EntryKind.WRITTEN_ANEW, "sent while the store was down; written since"
            ),
        )


_ADMITTED = {Outcome.EXECUTED: State.EXECUTED, Outcome.PENDING: State.PENDING}
