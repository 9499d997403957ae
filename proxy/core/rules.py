"""A platform's rules, compiled from its preset and the configuration: plain values, no code of any platform.

Durations are integer milliseconds. A `Path` is a dotted path into a JSON object, already split.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from proxy.core.model import Outcome

Path = tuple[str, ...]


class Jitter(StrEnum):
    """How a computed wait is spread (R5)."""

    ADDITIVE = "additive"
    FULL = "full"
    NONE = "none"


class KeyMode(StrEnum):
    """What a guarded route does with a call that brings no key (K2)."""

    REQUIRE = "require"
    INJECT = "inject"


class Replay(StrEnum):
    """How a later call with an executed key is answered (P6)."""

    FORWARD = "forward"
    STORED = "stored"


class OnFailure(StrEnum):
    """What happens to a call while the store is down before sending (D3)."""

    REJECT = "reject"
    FORWARD = "forward"


class ErrorShape(StrEnum):
    """The shape of the errors that Safepost makes itself (E1)."""

    ENVELOPE = "envelope"  # {"error": {...}}
    PROBLEM = "problem"  # RFC 9457 application/problem+json


class Shape(StrEnum):
    """What a body has to be for an outcome rule to hold: who produced it (architecture section 3)."""

    ANY = "any"
    OBJECT = "object"  # the platform's object: JSON with the rule table's id and status
    ERROR = "error"  # the platform's error shape
    EMPTY = "empty"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """R5. `deadline_ms` bounds attempts and waits together, from the call's first attempt."""

    attempts: int
    attempt_timeout_ms: int
    base_ms: int
    multiplier: float
    cap_ms: int
    jitter: Jitter
    jitter_max_ms: int
    deadline_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRule:
    """Where the key travels and how it is made. `header` is the name as it is emitted."""

    header: bytes
    mode: KeyMode
    template: str | None
    reject_sensitive: bool = False
    unquote: bool = False
    length_max: int = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardRule:
    """U1. `platform_is_unique`: the platform itself refuses a second effect on the subject."""

    on: bool
    platform_is_unique: bool = True
    twin_rejects: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusRule:
    """What one status of the platform's object means for the operation."""

    is_final: bool
    is_failure: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectRule:
    """Where the platform's object keeps what the ledger needs. Empty paths are not read: without one for the
    id, any JSON object is the platform's.

    `statuses` maps each listed status; an unlisted one is not final. `any_is_executed`: any 2xx object is a
    final answer (checkout sessions, R3). `numeric`: its id and status may be JSON numbers. `kind` is
    the prefix of the object's handle by id.
    """

    kind: str
    id: Path
    status: Path
    statuses: dict[str, StatusRule]
    number: Path = ()
    version: Path = ()
    attempt_count: Path = ()
    failure_attempt_id: Path = ()
    resolution_status: Path = ()
    any_is_executed: bool = False
    numeric: bool = False

    @property
    def finals(self) -> tuple[str, ...]:
        """What an operation may end as; where no status is listed, what a person may say of any platform (C5)."""
        listed = tuple(name for name, rule in self.statuses.items() if rule.is_final)
        return listed or ("succeeded", "failed", "canceled", "expired")

    def fails(self, status: str | None) -> bool:
        """Whether a final `status` is a definite failure; where no status is listed, `failed` alone is (K3)."""
        known = self.statuses.get(status or "")
        return known.is_failure if known is not None else not self.statuses and status == "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeRule:
    """One row of the outcome table; the first row that fits decides (R3).

    `codes` None fits any code, also none. `after_doubt` None fits both. `retry` None means by outcome (R4).
    `passes`: an answer in doubt that may be handed to the caller unchanged (R8 b). `means`: the object status
    that an executed answer without an object stands for (402 means `failed`).
    """

    outcome: Outcome
    statuses: frozenset[int]
    codes: frozenset[str] | None = None
    shape: Shape = Shape.ANY
    statuses_final: bool | None = None
    after_doubt: bool | None = None
    retry: bool | None = None
    passes: bool = False
    means: str | None = None
    header: tuple[bytes, bytes] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupRule:
    """How the platform is asked what it knows of a resource (U2, U8).

    Templates hold `{id}` or `{number}`, filled in percent-encoded. `list_path` leads to the list in a
    by-number answer; an empty list there is the documented empty answer. `absent_statuses` are those that
    say "no such resource" in the platform's error shape, for an id that was never confirmed.
    """

    by_id: str | None
    by_number: str | None
    list_path: Path = ()
    absent_statuses: frozenset[int] = frozenset()
    timeout_ms: int = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A method and a path template with its rules. What is not guarded streams.

    Args: fields: the safe business fields that the fingerprint covers (P1).
        subject: template of the business thing acted on, within the scope; twin: of the same-amount guard.
        acts_on_existing: confirm and cancel: the resource's state is not the operation's outcome (U3).
        tracked: unknown results are money and are looked up (U2); checkout sessions are not.
        polled_while_pending: pending ones are looked up too (payments), or only swept (refunds).
        retention_ms: how long the platform remembers a key.
        record_ms: how long the record lives after its last attempt (P9).
        key_expires: the platform has no other uniqueness: nothing is sent past retention less an hour (P9).
        left_out: lower-case names of members that a `*` in `fields` does not cover: card data (P1).
    """

    name: str
    method: str
    template: str
    key: KeyRule
    fields: tuple[str, ...]
    subject: str | None
    retry: RetryPolicy
    outcomes: tuple[OutcomeRule, ...]
    object: ObjectRule
    guard: GuardRule
    replay: Replay
    on_failure: OnFailure
    retention_ms: int
    record_ms: int
    lookup: LookupRule | None = None
    twin: str | None = None
    amount: Path = ()
    currency: Path = ()
    acts_on_existing: bool = False
    tracked: bool = True
    polled_while_pending: bool = True
    key_expires: bool = False
    body_required: bool = True
    fresh_connection: bool = False
    left_out: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPolicy:
    """Retries of GET, HEAD and OPTIONS (R4), and time limits of everything that is not guarded."""

    attempts: int
    attempt_timeout_ms: int
    statuses: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """One platform's rules as a whole. `name` and `version` go into each record's fingerprint (P1)."""

    name: str
    version: str
    routes: tuple[Route, ...]
    error_shape: ErrorShape
    error_code: Path
    error_related_id: Path
    reads: ReadPolicy
    card_fields: frozenset[str] = frozenset()
    signed: bool = False
    signature_window_ms: int | None = None
    should_retry_header: bytes | None = None
    lookup_lag_ms: int = 60_000
    next_steps: tuple[str, ...] = ()
    events: EventRule | None = None
    sweeps: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRule:
    """Where a webhook of the platform keeps the object it tells of (U4)."""

    object: Path
    kinds: dict[str, str] = field(default_factory=dict)  # prefix of the event's type -> object kind
    type: Path = ("type",)
    id: Path = ("id",)
