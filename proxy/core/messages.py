"""What the driver tells the guard (events), what the guard orders (commands), and what happened (facts).

Exactly one command is outstanding per call; when it is `Reply`, the call is over. Each event reaches the guard
with the monotonic instant of its happening (`Guard.step(event, now_ms)`); instants named `until_ms` and
`not_after_ms` are of that clock, never the wall clock.
"""

from __future__ import annotations

from msgspec import Struct

from proxy.core.http import Response, WireResult
from proxy.core.model import (
    Fence,
    Fingerprint,
    Handle,
    Key,
    Knowledge,
    Operation,
    OperationId,
    Outcome,
    Scope,
    Seen,
    State,
    StoredAnswer,
)
from proxy.core.rules import Route


class SeqKey(Struct, frozen=True):
    """An injected key whose `{seq}` only the store can fill in (K3): `before` + number + `after`."""

    before: str
    after: str
    length_max: int = 255


class Claim(Struct, frozen=True, kw_only=True):
    """One call, understood: who it is about and what identifies it. Holds no body and no credential.

    `fingerprints` holds one for each secret that records may have been made with, the current one first.
    """

    scope: Scope
    route: Route
    method: str
    path: str
    key: Key | SeqKey
    key_injected: bool
    fingerprints: tuple[Fingerprint, ...]
    subject: Handle | None = None
    twin: Handle | None = None
    handles: tuple[Handle, ...] = ()
    resource_id: str | None = None
    amount: int | None = None
    currency: str | None = None
    request_id: str = ""


# --- events -------------------------------------------------------------------------------------------------


class Began(Struct, frozen=True):
    """The call was understood and is about to be claimed."""

    claim: Claim


class Reserved(Struct, frozen=True):
    """The store made this call the leader; attempt `operation.attempt_count` is recorded."""

    operation: Operation


class Running(Struct, frozen=True):
    """Another call leads a run of the same key and fingerprint."""

    operation: Operation


class Recorded(Struct, frozen=True):
    """The operation is executed or pending: there is nothing to claim."""

    operation: Operation
    failure_is_due: bool  # K3: a definite failure that no caller was given yet


class Conflicting(Struct, frozen=True):
    """The key is bound to other business fields (P2). Names them, never their values."""

    operation: Operation
    fields: tuple[str, ...]


class Blocked(Struct, frozen=True):
    """Another key's operation holds the subject (U1); `twin`: a same-amount refund does."""

    holder: Operation
    twin: bool


class KeyExpired(Struct, frozen=True):
    """The platform may have forgotten the key; nothing may be sent for it (P9)."""

    operation: Operation


class StoreFailed(Struct, frozen=True):
    """The store did not do the outstanding step, or did not say that it did.

    `lease_held`: no other call can have taken the operation over meanwhile, so what this run knows still holds.
    `may_forward`: what is sent without the store can be kept in memory until it is back (D3).
    """

    detail: str
    lease_held: bool = True
    may_forward: bool = True


class AttemptEnded(Struct, frozen=True):
    """What came of a `Send` or a `Repeat`. `wall_ms` is the instant of its end, for HTTP dates and the record.

    `secret` is the credential that the call brought, empty for none: an answer that repeats it is not kept (D4).
    `is_shared`: another call sent it, and counts it (P6).
    """

    result: WireResult
    wall_ms: int
    secret: bytes = b""
    is_shared: bool = False


class Woke(Struct, frozen=True):
    """The wait is over and another attempt may start."""


class RetryRefused(Struct, frozen=True):
    """The retry budget, the breaker or a drain allows no further attempt (R7, O3)."""

    reason: str  # budget | breaker | drain
    retry_after_ms: int | None = None


class AttemptRecorded(Struct, frozen=True):
    """The next attempt is durable and may be sent."""

    operation: Operation


class Superseded(Struct, frozen=True):
    """The run may start no attempt: its fence is old, or evidence settled the operation meanwhile (U4)."""

    operation: Operation


class Settled(Struct, frozen=True):
    """The settle was written; `operation` is the record as it now is."""

    operation: Operation


class SettleRefused(Struct, frozen=True):
    """The store kept what it had: the fence is old, or the ledger knows better (P5)."""

    operation: Operation


class Withdrawn(Struct, frozen=True):
    """The claim was taken back unused; `operation` is the record as before it, None if there was none."""

    operation: Operation | None


class RunEnded(Struct, frozen=True):
    """The run that this follower waited for ended; `answer` is what its leader's caller got."""

    operation: Operation
    answer: StoredAnswer


class RunGone(Struct, frozen=True):
    """The run that this follower waited for left no answer (dead leader, other fence): judge again (P4)."""


class WaitTimedOut(Struct, frozen=True):
    """`wait_timeout` passed and the run still goes on."""

    operation: Operation


Event = (
    Began
    | Reserved
    | Running
    | Recorded
    | Conflicting
    | Blocked
    | KeyExpired
    | StoreFailed
    | AttemptEnded
    | Woke
    | RetryRefused
    | AttemptRecorded
    | Superseded
    | Settled
    | SettleRefused
    | Withdrawn
    | RunEnded
    | RunGone
    | WaitTimedOut
)


# --- commands -----------------------------------------------------------------------------------------------


class Reserve(Struct, frozen=True):
    """Claim the operation and record its next attempt, in one durable step."""

    claim: Claim


class Send(Struct, frozen=True):
    """Send attempt `n`. No first byte after `not_after_ms`. `key` goes out in the key header."""

    n: int
    key: Key
    timeout_ms: int
    not_after_ms: int | None


class Repeat(Struct, frozen=True):
    """Forward once, without lease or retry: a repeat of what is recorded (P6), or the store is down (D3).

    No first byte after `not_after_ms`: what the ledger said, or could not say, is old news by then. Concurrent
    repeats with the same `share` in one process share one attempt; None shares with nobody, and the
    attempt is kept in memory until the store can hold it.
    """

    key: Key
    timeout_ms: int
    share: OperationId | None
    not_after_ms: int


class Sleep(Struct, frozen=True):
    """Wait until the instant, then ask the budget and the breaker for one more attempt."""

    until_ms: int
    reason: str


class AttemptNote(Struct, frozen=True):
    """How an attempt ended, for the record."""

    outcome: Outcome
    status: int | None
    code: str | None
    detail: str
    ended_ms: int


class RecordAttempt(Struct, frozen=True):
    """Record that the attempt before ended as `ended` and that the next one begins."""

    operation: Operation
    ended: AttemptNote


class Settle(Struct, frozen=True):
    """Write how the run ended. `seen` is the platform's object where one was answered."""

    operation: Operation
    state: State
    ended: AttemptNote | None
    answer: StoredAnswer | None
    seen: Seen | None
    released: bool = False


class Update(Struct, frozen=True):
    """Write what a forwarded repeat showed: a definite answer that is not older than the record (P6)."""

    operation: Operation
    state: State
    ended: AttemptNote
    answer: StoredAnswer
    seen: Seen
    is_shared: bool


class Withdraw(Struct, frozen=True):
    """Take back a claim that sent nothing."""

    operation: Operation


class Wait(Struct, frozen=True):
    """Wait for the end of the run with this fence, at most until the instant."""

    operation: Operation
    until_ms: int


class Marks(Struct, frozen=True):
    """What H8 says about the answer. None leaves the header out."""

    knowledge: Knowledge | None = None
    attempts: int | None = None
    operation: OperationId | None = None
    key: Key | None = None
    replayed: bool = False


class Reply(Struct, frozen=True):
    """The caller's answer; the call is over.

    `confirm_delivery`: when the last byte is written to an open connection, tell the store that the failure of
    this operation was given to a caller (K3). `location`: the operation's address goes into `Location` (W1).
    `look_up`: ask the platform about this operation soon (P9).
    """

    answer: Response
    marks: Marks
    confirm_delivery: Operation | None = None
    location: OperationId | None = None
    look_up: Operation | None = None


Command = Reserve | Send | Repeat | Sleep | RecordAttempt | Settle | Update | Withdraw | Wait | Reply


# --- facts --------------------------------------------------------------------------------------------------


class AttemptFinished(Struct, frozen=True):
    """An attempt ended. `reason` is the wire's word for it, or the platform's error code; `cause` its account."""

    operation: OperationId | None
    route: str
    key: Key
    n: int
    outcome: Outcome
    reason: str
    status: int | None
    cause: str = ""


class RetryPlanned(Struct, frozen=True):
    route: str
    operation: OperationId
    n: int
    reason: str
    wait_ms: int


class BecameUnknown(Struct, frozen=True):
    operation: Operation


class BecameKnown(Struct, frozen=True):
    """An operation settled; `by` is answer, lookup, event, late_answer or person."""

    operation: Operation
    by: str


class Collapsed(Struct, frozen=True):
    """A concurrent same-key call was answered with another call's run."""

    route: str


class Replayed(Struct, frozen=True):
    route: str


class ConflictFound(Struct, frozen=True):
    route: str
    fields: tuple[str, ...]


class GuardBlocked(Struct, frozen=True):
    """The unknown-guard refused another key; `prevented` names what it prevented."""

    route: str
    twin: bool


class OutcomeConflict(Struct, frozen=True):
    """Two pieces of evidence disagree, or evidence overrides what was told or settled by hand."""

    operation: Operation
    text: str


class SentUnrecorded(Struct, frozen=True):
    """A call was forwarded while the store was down (D3)."""

    route: str


class LeaseTakenOver(Struct, frozen=True):
    """A dead leader's operation was taken over with the same key (P5)."""

    operation: OperationId
    route: str


class SensitiveKey(Struct, frozen=True):
    """A key or subject looks like a card number or an e-mail address (K5); `what` is card or email."""

    route: str
    what: str
    request_id: str = ""


class LedgerDisagreed(Struct, frozen=True):
    """A write was refused because the ledger had moved on (P5)."""

    operation: OperationId
    route: str
    fence: Fence


class CallEnded(Struct, frozen=True, kw_only=True):
    """A call was answered, or its caller had gone. Durations in microseconds.

    `route` is the guarded route's name, else `other`. `overhead_us` is the time not spent waiting for the
    platform, another call or a back-off. `status` 0: the caller was gone before any answer.
    """

    route: str
    method: str
    status: int
    knowledge: Knowledge | None
    duration_us: int
    overhead_us: int
    request_id: str
    trace_id: str = ""
    traceparent: str = ""  # as the caller sent it (W3C Trace Context), empty without a valid one
    operation: OperationId | None = None
    key: Key | None = None
    attempts: int = 0
    replayed: bool = False
    code: str | None = None


class Observed(Struct, frozen=True):
    """Shadow mode: what the guard would have had to say of a call (C9); `finding` is a word of `core.shadow`."""

    route: str
    finding: str
    request_id: str


class LookupMade(Struct, frozen=True):
    """The platform was asked about a resource; `result` is found, missed or failed, `reason` why it failed.

    `after_cut`: the first question about a call that a drain cut short; whoever cut it is gone.
    """

    route: str
    result: str
    reason: str = ""
    after_cut: bool = False


Fact = (
    CallEnded
    | LookupMade
    | Observed
    | AttemptFinished
    | RetryPlanned
    | BecameUnknown
    | BecameKnown
    | Collapsed
    | Replayed
    | ConflictFound
    | GuardBlocked
    | OutcomeConflict
    | SentUnrecorded
    | LeaseTakenOver
    | SensitiveKey
    | LedgerDisagreed
)


class Step(Struct, frozen=True):
    """What the guard orders next, and what its decision made true."""

    command: Command
    facts: tuple[Fact, ...] = ()
