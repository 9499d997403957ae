"""What the platform keeps and shows: payments, refunds, checkout sessions, and its answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

Json = dict[str, object]

FINAL_PAYMENT_STATUSES = frozenset({"succeeded", "failed", "canceled", "expired"})
CLOSED_PAYMENT_STATUSES = frozenset({"succeeded", "canceled", "expired"})
RESOLUTIONS = frozenset({"known", "needs_query", "manual_review"})
FINAL_REFUND_STATUSES = frozenset({"succeeded", "failed"})


class Clock(Protocol):
    """The part of `ports.Clock` that the sandbox needs."""

    def monotonic_ms(self) -> int: ...

    def wall_ms(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Tenant:
    """Whose objects these are: nothing is shared between two merchants, nor between test and live."""

    merchant: str
    environment: str


@dataclass(frozen=True, slots=True)
class Card:
    """All that is kept of a card: never the number, the code or the holder."""

    last4: str | None
    declines: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """What the platform says to one request."""

    status: int
    body: Json | None
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Terms:
    """The platform's numbers, from its contract; tests shorten them.

    Args: attempts_max: tries per payment, card swaps included. payment_valid_s and session_valid_s: until
        `expires_at`; the contract names no figure, these are assumptions.
    """

    attempts_max: int = 3
    payment_valid_s: float = 24 * 3600
    session_valid_s: float = 1800


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the bank behind the platform takes one request.

    Args: accepts: not decided yet; 202. declines: refused whatever the card. authenticates: the payer must
        act first (`requires_action`). first_status: what an accepted refund shows. final_status and
        final_after_s: what an accepted request becomes, and when; None leaves it to `settle_*`.
        lag_s: how long lookups go on showing the state from before.
    """

    accepts: bool = False
    declines: bool = False
    authenticates: bool = False
    first_status: str = "processing"
    final_status: str | None = None
    final_after_s: float | None = None
    lag_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Order:
    """One request to act: whose, under which key, with which fields, on which payment."""

    tenant: Tenant
    key: str
    body: Mapping[str, object]
    payment_id: str = ""
    outcome: Outcome = field(default_factory=Outcome)


def instant(wall_ms: int) -> str:
    """An RFC 3339 instant in UTC, to the millisecond."""
    return datetime.fromtimestamp(wall_ms / 1000, tz=UTC).isoformat(timespec="milliseconds")


@dataclass(frozen=True, slots=True)
class Lag:
    """Until `until_ms` (monotonic) lookups show `before`: the object as it was, or None for not there yet."""

    until_ms: int
    before: Json | None


@dataclass(slots=True)
class Attempt:
    """One try to move a payment's money. It is unfinished until the bank said yes or no."""

    id: str
    key: str
    last4: str | None
    is_finished: bool = False


@dataclass(slots=True)
class Payment:
    """One order's payment. `version` grows with each change that anybody can see."""

    id: str
    tenant: Tenant
    order: str
    amount: int
    currency: str
    created_ms: int
    expires_ms: int
    status: str = "requires_action"
    resolution: str = "known"
    version: int = 0
    attempts: list[Attempt] = field(default_factory=list)
    failure: Json | None = None
    next_action: Json | None = None
    cancel_key: str | None = None
    refunded: int = 0
    updated_ms: int = 0
    lag: Lag | None = None

    @property
    def has_open_attempt(self) -> bool:
        return bool(self.attempts) and not self.attempts[-1].is_finished

    def view(self) -> Json:
        return {
            "id": self.id,
            "object": "payment",
            "merchant_order_no": self.order,
            "amount": self.amount,
            "currency": self.currency,
            "status": self.status,
            "resolution_status": self.resolution,
            "version": self.version,
            "attempt_count": len(self.attempts),
            "failure": self.failure,
            "next_action": self.next_action,
            "amount_refunded": self.refunded,
            "created_at": instant(self.created_ms),
            "updated_at": instant(self.updated_ms),
            "expires_at": instant(self.expires_ms),
        }


@dataclass(slots=True)
class Refund:
    """One refund of a payment, or of a part of it."""

    id: str
    tenant: Tenant
    number: str
    payment_id: str
    order: str
    amount: int
    currency: str
    key: str
    created_ms: int
    status: str = "processing"
    resolution: str = "known"
    version: int = 0
    failure: Json | None = None
    updated_ms: int = 0
    lag: Lag | None = None

    def view(self) -> Json:
        return {
            "id": self.id,
            "object": "refund",
            "merchant_refund_no": self.number,
            "payment_id": self.payment_id,
            "amount": self.amount,
            "currency": self.currency,
            "status": self.status,
            "resolution_status": self.resolution,
            "version": self.version,
            "failure": self.failure,
            "created_at": instant(self.created_ms),
            "updated_at": instant(self.updated_ms),
        }


@dataclass(frozen=True, slots=True)
class Session:
    """A hosted page on which a payer pays. Several may stand for one payment; none is money."""

    id: str
    payment: Payment
    url: str
    created_ms: int
    expires_ms: int

    def view(self) -> Json:
        return {
            "id": self.id,
            "object": "checkout_session",
            "payment_id": self.payment.id,
            "merchant_order_no": self.payment.order,
            "amount": self.payment.amount,
            "currency": self.payment.currency,
            "url": self.url,
            "created_at": instant(self.created_ms),
            "expires_at": instant(self.expires_ms),
        }
