"""The guard: one guarded call from its claim to its reply, as a pure state machine (architecture section 1).

`Guard.step(event, now_ms) -> Step(command, facts)`. Exactly one command is outstanding, so that two sends at
once are impossible by construction; a crash is "forget the guard, keep the store". The guard never says
`not_executed` unless the ledger shows that no attempt of the operation was ever in doubt (H8).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from proxy.core import answers
from proxy.core.answers import Voice
from proxy.core.classify import Classifier, Verdict
from proxy.core.ending import STATE_OF, as_answered, ending, new_conflict
from proxy.core.evidence import disputes
from proxy.core.fingerprint import differing
from proxy.core.http import Answered, NotSentReason
from proxy.core.messages import (
    AttemptEnded,
    AttemptFinished,
    AttemptNote,
    AttemptRecorded,
    BecameKnown,
    BecameUnknown,
    Began,
    Blocked,
    Claim,
    Collapsed,
    ConflictFound,
    Conflicting,
    Event,
    Fact,
    GuardBlocked,
    KeyExpired,
    LeaseTakenOver,
    LedgerDisagreed,
    RecordAttempt,
    Recorded,
    Repeat,
    Replayed,
    Reply,
    Reserve,
    Reserved,
    RetryPlanned,
    RetryRefused,
    RunEnded,
    RunGone,
    Running,
    Send,
    SentUnrecorded,
    SeqKey,
    Settle,
    Settled,
    SettleRefused,
    Sleep,
    Step,
    StoreFailed,
    Superseded,
    Update,
    Wait,
    WaitTimedOut,
    Withdraw,
    Withdrawn,
    Woke,
)
from proxy.core.model import (
    DEFINITE,
    EntryKind,
    Key,
    Knowledge,
    Operation,
    OperationId,
    Outcome,
    State,
    replace,
)
from proxy.core.retry import plan_retry
from proxy.core.rules import OnFailure
from proxy.core.settle import leads, with_end

FIRST_START_MS = 5_000
"""For a first attempt to find a connection: longer than connecting takes, and the pool's wait for a free one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardPolicy:
    """What the configuration says of all guarded calls."""

    wait_timeout_ms: int
    store_retry_after_ms: int = 1_000


class ProtocolError(Exception):
    """An event that is no answer to the outstanding command: a bug in the driver."""


class Guard:
    """One call. Not thread-safe and never shared; holds no body and no credential."""

    __slots__ = (
        "_attempts",
        "_classifier",
        "_deadline_ms",
        "_ended",
        "_last_answer",
        "_lost",
        "_policy",
        "_recording",
        "_stale_ms",
        "_unrecorded",
        "_verdict",
        "_voice",
        "_wait_until_ms",
        "_withdrawing",
        "claim",
        "operation",
    )

    def __init__(self, claim: Claim, *, policy: GuardPolicy, classifier: Classifier, voice: Voice) -> None:
        self.claim = claim
        self.operation: Operation | None = None
        self._policy = policy
        self._classifier = classifier
        self._voice = voice
        self._attempts = 0  # of this call
        self._deadline_ms = 0
        self._ended: AttemptNote | None = None
        self._verdict: Verdict | None = None
        self._last_answer: Answered | None = None
        self._lost = False
        self._recording = False
        self._stale_ms: int | None = None  # from when on the platform may not take the call's signature (F5)
        self._unrecorded = False
        self._wait_until_ms: int | None = None
        self._withdrawing = False

    def lease_lost(self) -> None:
        """The lease is gone: finish this attempt, start no other (architecture section 5)."""
        self._lost = True

    def early_answer(self) -> Reply:
        """What the caller is told when its patience ends before the call does (W1). The call goes on.

        A claim that is being taken back is not named: its address would lead nowhere.
        """
        return self._voice.patience_ended(None if self._withdrawing else self.operation)

    def step(self, event: Event, now_ms: int) -> Step:  # noqa: C901 -- one arm for each event
        """What to do after `event`, which happened at the monotonic instant `now_ms`."""
        match event:
            case Began():
                window_ms = self._voice.platform.signature_window_ms
                self._stale_ms = None if window_ms is None else now_ms + window_ms
                return Step(Reserve(self.claim))
            case Reserved(operation):
                return self._reserved(operation, now_ms)
            case Running(operation):
                return self._follow(operation, now_ms)
            case Recorded():
                return self._recorded(event, now_ms)
            case Conflicting(operation, fields):
                reply = self._voice.conflict(operation, fields)
                return Step(reply, (ConflictFound(self.claim.route.name, fields),))
            case Blocked(holder, twin):
                return Step(self._voice.blocked(holder, twin=twin), (GuardBlocked(self._route, twin),))
            case KeyExpired(operation):
                return Step(self._voice.key_expired(operation))
            case AttemptEnded():
                return self._attempt_ended(event, now_ms)
            case Woke():
                return self._woke()
            case RetryRefused():
                return self._finish(retry_after_ms=event.retry_after_ms)
            case AttemptRecorded(operation):
                self._recording, self.operation = False, operation
                return self._send(now_ms)
            case Superseded(operation):
                return self._overtaken(operation, now_ms)
            case Settled(operation):
                return self._settled(operation)
            case SettleRefused(operation):
                return self._settle_refused(operation, now_ms)
            case Withdrawn(operation):
                return self._withdrawn(operation)
            case RunEnded():
                return self._run_ended(event, now_ms)
            case RunGone():
                return Step(Reserve(self._bound()))
            case WaitTimedOut(operation):
                return Step(self._voice.in_progress(operation), (Collapsed(self._route),))
            case StoreFailed():
                return self._store_failed(event, now_ms)
            case _:
                assert_never(event)

    @property
    def _route(self) -> str:
        return self.claim.route.name

    @property
    def _record(self) -> Operation:
        if self.operation is None:
            raise ProtocolError("an event of a run that has no record")
        return self.operation

    # --- claiming, following, repeating ---------------------------------------------------------------------

    def _reserved(self, operation: Operation, now_ms: int) -> Step:
        self.operation = operation
        self._lost = False
        self._deadline_ms = now_ms + self.claim.route.retry.deadline_ms
        facts: tuple[Fact, ...] = ()
        told = operation.history[-1].kind if operation.history else None
        if operation.prior is State.UNKNOWN and told is EntryKind.LEASE_LOST:
            facts = (LeaseTakenOver(operation.id, self._route),)
        step = self._send(now_ms)
        return Step(step.command, facts)

    def _send(self, now_ms: int) -> Step:
        self._attempts += 1
        retry = self.claim.route.retry
        # R5: the deadline holds whole attempts; one that could not end in time is not started. The first is what
        # the call is for: it may connect in peace even where the deadline is no longer than one attempt.
        timeout_ms = min(retry.attempt_timeout_ms, retry.deadline_ms)
        leisure_ms = FIRST_START_MS if self._attempts == 1 else 0
        not_after = max(now_ms + leisure_ms, self._deadline_ms - timeout_ms)
        record = self._record
        return Step(Send(record.attempt_count, record.key, timeout_ms, self._while_fresh(not_after)))

    def _while_fresh(self, at_ms: int) -> int:
        return at_ms if self._stale_ms is None else min(at_ms, self._stale_ms)

    def _follow(self, operation: Operation, now_ms: int) -> Step:
        self.operation = operation
        if self._wait_until_ms is None:
            self._wait_until_ms = now_ms + self._policy.wait_timeout_ms
        if now_ms >= self._wait_until_ms:
            return Step(self._voice.in_progress(operation), (Collapsed(self._route),))
        return Step(Wait(operation, self._wait_until_ms))

    def _run_ended(self, event: RunEnded, now_ms: int) -> Step:
        """What the leader's caller got (P4), unless the ledger has come to know more of it since (H8)."""
        operation, told = event.operation, event.answer.knowledge
        if event.answer.body is None and event.answer.outcome in DEFINITE:
            return Step(Reserve(self._bound()))  # D4: withheld; judged again, it is forwarded
        same = not differing(operation.fingerprint, self.claim.fingerprints)
        if not same and event.answer.fence == operation.fence:
            return Step(Reserve(self._bound()))  # the run found was taken back, and fences began anew (P2)
        is_known = operation.knowledge in (Knowledge.EXECUTED, Knowledge.PENDING)
        overtaken = operation.knowledge is not told if told is Knowledge.NOT_EXECUTED else is_known
        if overtaken and same and told in (Knowledge.NOT_EXECUTED, Knowledge.UNKNOWN):
            step = self._overtaken(operation, now_ms)
            return Step(step.command, (Collapsed(self._route), *step.facts))
        return Step(self._voice.run_ended(operation, event.answer), (Collapsed(self._route),))

    def _bound(self) -> Claim:
        """The call as the one submission that it was found to be: it never becomes the next one (K3)."""
        return self.claim if self.operation is None else replace(self.claim, key=self.operation.key)

    def _recorded(self, event: Recorded, now_ms: int) -> Step:
        operation = event.operation
        self.operation = operation
        if operation.by_hand is not None:
            return Step(self._voice.settled_by_hand(operation))
        known = self._voice.recorded_answer(operation)
        only_evidence = operation.acts_on_existing and operation.settled_by in ("lookup", "event")
        if known is not None and (event.failure_is_due or only_evidence):
            return Step(known, (Replayed(self._route),))
        if known is not None and answers.replays_stored(self.claim.route, operation):
            return Step(known, (Replayed(self._route),))
        if only_evidence:
            return Step(self._voice.nothing_to_show(operation, None))
        return Step(self._repeat(operation.key, operation.id, now_ms))

    def _repeat(self, key: Key, share: OperationId | None, now_ms: int) -> Repeat:
        """No lease is held meanwhile, so a process that slept must not go by what it read before (C5, P9)."""
        not_after = self._while_fresh(now_ms + FIRST_START_MS)
        return Repeat(key, self.claim.route.retry.attempt_timeout_ms, share, not_after)

    # --- attempts -------------------------------------------------------------------------------------------

    def _attempt_ended(self, event: AttemptEnded, now_ms: int) -> Step:
        leading = self.operation is not None and self.operation.state is State.IN_FLIGHT
        doubt = self._unrecorded or (leading and self._record.doubt)
        verdict = self._classifier.classify(
            event.result, after_doubt=doubt, received_wall_ms=event.wall_ms, secret=event.secret
        )
        status = event.result.response.status if isinstance(event.result, Answered) else None
        note = AttemptNote(verdict.outcome, status, verdict.code, verdict.detail, event.wall_ms)
        self._verdict, self._ended = verdict, note
        if isinstance(event.result, Answered):
            self._last_answer = event.result
        if not leading:
            return self._repeat_ended(event, verdict, note)
        fact = self._finished(verdict, note, self._record.attempt_count)
        step = self._decide(event, verdict, note, now_ms)
        return Step(step.command, (fact, *step.facts))

    def _finished(self, verdict: Verdict, note: AttemptNote, n: int) -> AttemptFinished:
        operation = self.operation
        return AttemptFinished(
            operation.id if operation else None,
            self._route,
            operation.key if operation else self._voice.given_key() or Key(""),
            n,
            verdict.outcome,
            verdict.code or verdict.detail,
            note.status,
            verdict.cause,
        )

    def _decide(self, event: AttemptEnded, verdict: Verdict, note: AttemptNote, now_ms: int) -> Step:
        record = self._record
        if verdict.outcome in DEFINITE and isinstance(event.result, Answered):
            return Step(
                Settle(
                    operation=record,
                    state=STATE_OF[verdict.outcome],
                    ended=note,
                    answer=self._voice.stored(record, event.result.response, verdict, note),
                    seen=self._voice.shown(verdict, event.result.response, event.wall_ms),
                )
            )
        if _is_breaker(verdict) and self._attempts == 1:
            self._withdrawing = record.prior is None and not record.doubt
            return Step(Withdraw(record))
        retry = self.claim.route.retry
        if verdict.retry and self._attempts < retry.attempts and not self._lost:
            until_ms = plan_retry(
                retry,
                record.key,
                self._attempts,
                retry_after_ms=verdict.retry_after_ms if verdict.paces else None,
                now_ms=now_ms,
                deadline_ms=self._deadline_ms,
            )
            if until_ms is not None and self._while_fresh(until_ms) == until_ms:
                reason = verdict.code or verdict.detail
                planned = RetryPlanned(
                    self._route, record.id, self._attempts + 1, reason, max(0, until_ms - now_ms)
                )
                return Step(Sleep(until_ms, reason), (planned,))
        return self._finish()

    def _woke(self) -> Step:
        if self._lost or self._ended is None:
            return self._finish()
        self._recording = True
        return Step(RecordAttempt(self._record, self._ended))

    def _finish(self, *, retry_after_ms: int | None = None) -> Step:
        """R8: the attempts end without a definite answer."""
        return Step(self._settle_command(retry_after_ms=retry_after_ms))

    def _settle_command(self, *, retry_after_ms: int | None) -> Settle:
        record, note, verdict = self._record, self._ended, self._verdict
        if note is None or verdict is None:
            raise ProtocolError("a run ended before its first attempt did")
        return ending(
            self._voice, record, note, verdict, last=self._last_answer, retry_after_ms=retry_after_ms
        )

    # --- how a run's writes end -----------------------------------------------------------------------------

    def _settled(self, operation: Operation) -> Step:
        before, self.operation = self.operation, operation
        facts: list[Fact] = []
        if operation.state is State.UNKNOWN:
            facts.append(BecameUnknown(operation))
        elif operation.state is State.EXECUTED and (before is None or before.is_unresolved):
            facts.append(BecameKnown(operation, operation.settled_by or "answer"))
        return Step(self._own_answer(operation), (*facts, *new_conflict(before, operation)))

    def _own_answer(self, operation: Operation) -> Reply:
        """The caller gets what its own last attempt brought, unless the ledger knows better (U4)."""
        own = self._brought(operation)
        if own is not None:
            return own
        if operation.state in (State.EXECUTED, State.PENDING):
            return self._voice.recorded_answer(operation) or self._voice.nothing_to_show(operation, None)
        if operation.answer is None:
            return self._voice.in_doubt(operation)
        brought = self._last_answer.response if self._last_answer else None
        return self._voice.ended(operation, operation.answer, brought)

    def _brought(self, operation: Operation) -> Reply | None:
        """The definite answer of this call's own attempt; the ledger's object where that is newer (U4)."""
        last, verdict = self._last_answer, self._verdict
        if last is None or verdict is None or verdict.outcome not in DEFINITE:
            return None
        if operation.by_hand is not None:  # settled since by a person who knew all that the answer tells (C5)
            return None
        if self._is_overtaken(operation, last, verdict):
            return self._voice.recorded_answer(operation) or self._voice.nothing_to_show(operation, None)
        return self._voice.live(operation, last.response)

    def _is_overtaken(self, operation: Operation, last: Answered, verdict: Verdict) -> bool:
        """Whether the ledger knows better than this call's own answer (U4): "declined" is no news of a success."""
        own = self._voice.shown(verdict, last.response, 0)
        if own is None:
            return verdict.outcome is Outcome.PENDING and operation.state is State.EXECUTED
        return answers.is_older(own, operation) or disputes(own, operation)

    def _settle_refused(self, operation: Operation, now_ms: int) -> Step:
        before = self._record
        fact = LedgerDisagreed(operation.id, self._route, operation.fence)
        if leads(before, operation):  # with a doubt that this run did not know of: it ends by that
            self.operation = operation
            step = self._finish()
        else:
            step = self._overtaken(operation, now_ms)
        return Step(step.command, (fact, *new_conflict(before, operation), *step.facts))

    def _overtaken(self, operation: Operation, now_ms: int) -> Step:
        """The ledger moved on without this run: its truth is the caller's (P5, U4)."""
        self._recording, self.operation = False, operation
        own = self._brought(operation)
        if own is not None:
            return Step(own)
        if operation.by_hand is not None:
            return Step(self._voice.settled_by_hand(operation))
        if operation.state is State.IN_FLIGHT:
            return self._follow(operation, now_ms)
        known = self._voice.recorded_answer(operation)
        if known is not None and operation.state in (State.EXECUTED, State.PENDING):
            return Step(known, (Replayed(self._route),))
        return Step(self._voice.in_doubt(operation))

    def _withdrawn(self, operation: Operation | None) -> Step:
        self.operation = operation
        verdict = self._verdict
        retry_after_ms = verdict.retry_after_ms if verdict else None
        return Step(self._voice.not_sent(operation, verdict, retry_after_ms))

    # --- repeats and the store that is down -----------------------------------------------------------------

    def _repeat_ended(self, event: AttemptEnded, verdict: Verdict, note: AttemptNote) -> Step:
        operation = self.operation
        n = 1 if operation is None else operation.attempt_count + 1
        facts = () if event.is_shared else (self._finished(verdict, note, n),)
        if operation is None:
            return Step(self._voice.unrecorded(self._last_answer, verdict, note), facts)
        response = event.result.response if isinstance(event.result, Answered) else None
        if response is not None and 200 <= response.status < 300 and verdict.outcome in DEFINITE:
            seen = self._voice.storable(verdict.seen, response)
            if seen is not None and not answers.is_older(seen, operation):
                stored = self._voice.stored(operation, response, verdict, note)
                state = STATE_OF[verdict.outcome]
                return Step(Update(operation, state, note, stored, seen, event.is_shared), facts)
        known = self._voice.recorded_answer(operation)
        if known is not None:
            return Step(known, (*facts, Replayed(self._route)))
        return Step(self._voice.nothing_to_show(operation, note), facts)

    def _store_failed(self, event: StoreFailed, now_ms: int) -> Step:
        if self.operation is None or self.operation.state is not State.IN_FLIGHT:
            return self._store_failed_outside_a_run(event, now_ms)
        verdict, note = self._verdict, self._ended
        if self._recording:  # no further attempt starts; how the last one ended is owed to the ledger (D3)
            self._recording = False
            return self._finish()
        if verdict is None or note is None:  # following, or withdrawing
            return Step(self._voice.store_unavailable(self._policy.store_retry_after_ms))
        if verdict.outcome in DEFINITE and self._last_answer is not None:
            told = as_answered(self.operation, verdict)
            return Step(self._voice.live(told, self._last_answer.response))
        if _is_breaker(verdict):
            return Step(self._voice.store_unavailable(self._policy.store_retry_after_ms))
        settle = self._settle_command(retry_after_ms=None)
        ended = with_end(self.operation, note)
        brought = self._last_answer.response if self._last_answer else None
        # Where calls are forwarded without the store, another one may have sent the same key meanwhile (D3).
        alone = event.lease_held and not self._lost and self.claim.route.on_failure is OnFailure.REJECT
        if settle.state is State.NOT_EXECUTED and alone and settle.answer is not None:
            told = replace(ended, state=State.NOT_EXECUTED)
            return Step(self._voice.ended(told, settle.answer, brought))
        told = replace(ended, state=State.UNKNOWN, doubt=True)
        if settle.state is State.UNKNOWN and settle.answer is not None:
            return Step(self._voice.ended(told, settle.answer, brought), (BecameUnknown(told),))
        return Step(self._voice.in_doubt(told), (BecameUnknown(told),))

    def _store_failed_outside_a_run(self, event: StoreFailed, now_ms: int) -> Step:
        route = self.claim.route
        if self.operation is not None and self._last_answer is not None and self._verdict is not None:
            told = as_answered(self.operation, self._verdict)  # an update that failed
            return Step(self._voice.live(told, self._last_answer.response))
        forwards = self.operation is None and route.on_failure is OnFailure.FORWARD and not self._unrecorded
        if forwards and event.may_forward and not isinstance(self.claim.key, SeqKey):
            self._unrecorded = True
            return Step(self._repeat(self.claim.key, None, now_ms), (SentUnrecorded(self._route),))
        return Step(self._voice.store_unavailable(self._policy.store_retry_after_ms))


def _is_breaker(verdict: Verdict) -> bool:
    return verdict.detail == NotSentReason.BREAKER_OPEN
