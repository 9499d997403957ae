"""The ledger's values: what is known of each business submission, and how surely.

An `Operation` is one submission; a `Subject` is everything known of one business thing (an order, a
payment, a refund) that operations act on. Both are frozen: a verb makes a new one. Times named `*_ms`
are wall-clock milliseconds since the Unix epoch unless the name says `lease`: leases are measured with the
store's own clock (`Now.lease_ms`), which does not step (contract D1, D2).

They are msgspec structs and not dataclasses: a payment makes a dozen copies of its record, and the store
encodes it, so that a tenfold cheaper copy is a quarter of a call's time (docs/decisions/0013).
"""

from __future__ import annotations

import dataclasses
from enum import StrEnum
from typing import NewType, TypeVar

from msgspec import Struct, field, structs

Value = TypeVar("Value")


def replace(value: Value, **changes: object) -> Value:
    """A copy of a frozen value with some members changed; for the ledger's values a tenth of the usual price.

    The verbs copy nothing but those, and call `msgspec.structs.replace` itself.
    """
    if isinstance(value, Struct):
        return structs.replace(value, **changes)
    return dataclasses.replace(value, **changes)  # type: ignore[type-var]  # what is no Struct is a dataclass


Key = NewType("Key", str)
OperationId = NewType("OperationId", str)
Fence = NewType("Fence", int)
Owner = NewType("Owner", str)
Handle = NewType("Handle", str)
"""Names a business thing within a scope: `order:ORDER-1`, `payment:pay_1`, `refund:R-1`."""


class Knowledge(StrEnum):
    """What is known of an operation's effect (contract section 1)."""

    EXECUTED = "executed"
    PENDING = "pending"
    NOT_EXECUTED = "not_executed"
    UNKNOWN = "unknown"


class State(StrEnum):
    """The finer states of an operation (architecture section 3)."""

    IN_FLIGHT = "in_flight"
    EXECUTED = "executed"
    PENDING = "pending"
    NOT_EXECUTED = "not_executed"
    UNKNOWN = "unknown"
    ABSENT = "absent"
    MANUAL_REVIEW = "manual_review"


class Outcome(StrEnum):
    """How one attempt ended, as the preset reads it (R2, R3)."""

    EXECUTED = "executed"
    PENDING = "pending"
    RELEASED = "released"
    REFUSED = "refused"
    NOT_EXECUTED = "not_executed"
    NOT_SENT = "not_sent"
    IN_DOUBT = "in_doubt"


UNRESOLVED = frozenset({State.IN_FLIGHT, State.UNKNOWN, State.ABSENT, State.MANUAL_REVIEW, State.PENDING})
DEFINITE = frozenset({Outcome.EXECUTED, Outcome.PENDING})
PROVES_NOTHING_AFTER_DOUBT = frozenset(
    {Outcome.RELEASED, Outcome.REFUSED, Outcome.NOT_EXECUTED, Outcome.NOT_SENT}
)


class Scope(Struct, frozen=True, omit_defaults=True):
    """Whose operation it is; API-key rotation does not change it (K6)."""

    merchant: str
    environment: str

    @property
    def tag(self) -> str:
        return f"{self.merchant}/{self.environment}"


class Now(Struct, frozen=True, omit_defaults=True):
    """The time at the store, in its two clocks. `epoch` names what `lease_ms` counts from."""

    lease_ms: int
    epoch: str
    wall_ms: int


class Fingerprint(Struct, frozen=True, omit_defaults=True):
    """Keyed digests of the safe business fields, one each, so that a conflict can name the field (P1)."""

    secret_id: str
    preset: str
    fields: dict[str, str]


class Attempt(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request sent upstream. `ended_ms` is None while it is on the wire, or lost with its process."""

    n: int
    fence: Fence
    begun_ms: int
    request_id: str = ""
    ended_ms: int | None = None
    outcome: Outcome | None = None
    status: int | None = None
    code: str | None = None
    detail: str = ""


class Seen(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an answer, a lookup or an event showed of a resource (U3, U4).

    `body` is the object as JSON bytes, None where it may not be stored (D4).
    """

    status: str
    is_final: bool
    is_failure: bool
    source: str  # answer | lookup | event | person
    seen_ms: int
    resource_id: str | None = None
    version: int | None = None
    attempt_count: int | None = None
    failure_attempt_id: str | None = None
    resolution_status: str | None = None
    body: bytes | None = None


class StoredAnswer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the last ended run gave its caller; followers and `replay: stored` get the same (P4, P6).

    `body` is None where it was withheld (D4); its repeats are forwarded. `from_platform` is False for an
    answer that Safepost made itself.
    """

    fence: Fence
    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes | None
    ended_ms: int
    from_platform: bool
    knowledge: Knowledge
    reason: bytes = b""
    outcome: Outcome | None = None


class Baseline(Struct, frozen=True, omit_defaults=True):
    """What was known of the resource when the operation was claimed (U3)."""

    version: int | None = None
    attempt_count: int | None = None
    failure_attempt_id: str | None = None


class Lookups(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where an operation stands on the lookup schedule (U2, U8)."""

    next_ms: int | None = None
    done: int = 0
    misses: int = 0
    last_ms: int | None = None


class EntryKind(StrEnum):
    """What a line of an operation's story tells."""

    DOUBT = "doubt"
    LEASE_LOST = "lease_lost"
    LOOKUP = "lookup"
    EVENT = "event"
    LATE_ANSWER = "late_answer"
    ABSENT = "absent"
    MANUAL_REVIEW = "manual_review"
    SETTLED = "settled"
    BY_HAND = "by_hand"
    OUTCOME_CONFLICT = "outcome_conflict"
    WRITTEN_ANEW = "written_anew"
    ANSWERED_EARLY = "answered_early"


class Entry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of an operation's story besides its attempts."""

    at_ms: int
    kind: EntryKind
    text: str
    by: str = ""


class Operation(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One business submission and all that is known of it. Never holds a request body (D4)."""

    id: OperationId
    scope: Scope
    route: str
    method: str
    path: str
    key: Key
    fingerprint: Fingerprint
    state: State
    fence: Fence
    created_ms: int
    updated_ms: int
    kind: str = ""  # prefix of the handle by resource id: `payment`, `refund_id`
    acts_on_existing: bool = False  # confirm, cancel: the resource had a state before (U3)
    tracked: bool = True  # looked up and counted as money (U2)
    number_is_unique: bool = True  # one subject has one resource; else several may share its number (U1)
    polled: bool = True  # looked up while pending too; accepted refunds are only swept (U2)
    key_injected: bool = False
    seq: int | None = None
    subject: Handle | None = None
    twin: Handle | None = None
    handles: tuple[Handle, ...] = ()
    resource_id: str | None = None
    amount: int | None = None
    currency: str | None = None
    status: str | None = None
    resolution_status: str | None = None
    version: int | None = None
    doubt: bool = False
    accepted: bool = False
    released: bool = False
    owner: Owner | None = None
    lease_until_ms: int = 0
    lease_epoch: str = ""
    prior: State | None = None
    absent_at_attempt: int | None = None
    doubt_since_absent: bool = False
    attempts: tuple[Attempt, ...] = ()
    attempt_count: int = 0
    first_attempt_ms: int = 0
    last_attempt_end_ms: int | None = None
    answer: StoredAnswer | None = None
    answer_before: StoredAnswer | None = None  # of the run before, for its followers (P4)
    newest: Seen | None = None
    baseline: Baseline = Baseline()
    lookups: Lookups = Lookups()
    by_hand: str | None = None  # the status that a person gave it (C5); None unless settled so
    settled_by: str | None = None
    failure_delivered: bool = False
    delivered_ms: int = 0  # when that was, by the leases' clock, in `delivered_epoch`
    delivered_epoch: str = ""
    unknown_since_ms: int | None = None
    settled_ms: int | None = None
    history: tuple[Entry, ...] = ()

    @property
    def knowledge(self) -> Knowledge:
        return _KNOWLEDGE.get(self.state) or (Knowledge.PENDING if self.accepted else Knowledge.UNKNOWN)

    @property
    def is_unresolved(self) -> bool:
        return self.state in UNRESOLVED

    def lease_is_over(self, now: Now) -> bool:
        """Another epoch (another boot) means that the leader is gone (D1)."""
        return self.lease_epoch != now.epoch or self.lease_until_ms <= now.lease_ms


_KNOWLEDGE = {
    State.EXECUTED: Knowledge.EXECUTED,
    State.PENDING: Knowledge.PENDING,
    State.NOT_EXECUTED: Knowledge.NOT_EXECUTED,
    State.IN_FLIGHT: Knowledge.UNKNOWN,
    State.UNKNOWN: Knowledge.UNKNOWN,
    State.ABSENT: Knowledge.UNKNOWN,
}


class Guard(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who holds a subject on one route, and the number of its last submission (U1, K3).

    `also`: earlier holders that were open when another key was sent without the store (D3).
    """

    holder: OperationId | None = None
    seq: int = 1
    also: tuple[OperationId, ...] = ()


class Subject(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything known of one business thing within a scope.

    `guards` is by route. `latest` is the newest evidence seen of the resource, kept also for operations
    that arrive later (U4). `looked_up_ms` and the lookup lease hold the fleet to one lookup at a time,
    `min_interval` apart (U2).
    """

    scope: Scope
    handle: Handle
    updated_ms: int
    operations: tuple[OperationId, ...] = ()
    guards: dict[str, Guard] = field(default_factory=dict)
    alias: Handle | None = None
    latest: Seen | None = None
    looked_up_ms: int | None = None
    lookup_owner: Owner | None = None
    lookup_until_ms: int = 0
    lookup_epoch: str = ""
