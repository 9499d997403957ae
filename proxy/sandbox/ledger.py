"""What really happened: each movement of money, and each request that arrived.

The ledger is what a test believes. An answer can be lost, late or wrong; an entry here is an effect.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from proxy.sandbox.objects import Json, instant

REQUESTS_MAX = 10_000
"""Remembered requests; the oldest are forgotten first, so that a long-running sandbox stays small."""

HEADERS_OF_INTEREST = (
    "content-type",
    "content-length",
    "transfer-encoding",
    "expect",
    "host",
    "via",
    "user-agent",
    "connection",
    "x-request-id",
    "traceparent",
)
"""Shown as they came. `Authorization` is not among them: it is a secret, and only its presence matters."""


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One effect in money. `card_fingerprint` is the card's last four digits and nothing more."""

    seq: int
    kind: str
    order: str
    payment: str
    key: str
    amount: int
    currency: str
    card_fingerprint: str | None
    at: str
    refund: str | None = None


class Ledger:
    """Append-only. `reset` starts a new one; nothing edits an entry."""

    def __init__(self) -> None:
        self._entries: list[LedgerEntry] = []

    @property
    def entries(self) -> tuple[LedgerEntry, ...]:
        return tuple(self._entries)

    def append(
        self,
        kind: str,
        *,
        order: str,
        payment: str,
        key: str,
        amount: int,
        currency: str,
        at_ms: int,
        last4: str | None = None,
        refund: str | None = None,
    ) -> None:
        entry = LedgerEntry(
            len(self._entries) + 1, kind, order, payment, key, amount, currency, last4, instant(at_ms), refund
        )
        self._entries.append(entry)

    def of(self, kind: str, *, order: str | None = None) -> tuple[LedgerEntry, ...]:
        """The entries of one kind (`charge`, `refund`, `cancel`), of one order or of all."""
        return tuple(e for e in self._entries if e.kind == kind and order in (None, e.order))

    def charges(self, order: str | None = None) -> tuple[LedgerEntry, ...]:
        return self.of("charge", order=order)

    def refunds(self, order: str | None = None) -> tuple[LedgerEntry, ...]:
        return self.of("refund", order=order)

    def cancels(self, order: str | None = None) -> tuple[LedgerEntry, ...]:
        return self.of("cancel", order=order)

    def reset(self) -> None:
        self._entries.clear()

    def view(self) -> list[Json]:
        return [asdict(entry) for entry in self._entries]


@dataclass(frozen=True, slots=True)
class SeenRequest:
    """One request as the platform received it.

    `answer` is what went back: a status, or the name of the fault that took its place; None while it is
    being worked on. `executed` tells whether the platform acted on it at all. `at_ms` is monotonic.
    """

    seq: int
    connection: int
    at_ms: int
    method: str
    path: str
    key: str | None
    order: str | None
    refund: str | None
    authorized: bool
    headers: Mapping[str, str]
    body_bytes: int
    body_sha256: str
    answer: str | None = None
    executed: bool = False


class RequestLog:
    """The requests that arrived, oldest first."""

    def __init__(self) -> None:
        self._count = 0
        self._seen: deque[SeenRequest] = deque(maxlen=REQUESTS_MAX)

    def __len__(self) -> int:
        return self._count

    @property
    def seen(self) -> tuple[SeenRequest, ...]:
        return tuple(self._seen)

    def arrived(
        self,
        *,
        connection: int,
        at_ms: int,
        method: str,
        path: str,
        key: str | None,
        order: str | None,
        refund: str | None,
        headers: Mapping[str, str],
        body: bytes,
    ) -> SeenRequest:
        self._count += 1
        request = SeenRequest(
            seq=self._count,
            connection=connection,
            at_ms=at_ms,
            method=method,
            path=path,
            key=key,
            order=order,
            refund=refund,
            authorized="authorization" in headers,
            headers={name: headers[name] for name in HEADERS_OF_INTEREST if name in headers},
            body_bytes=len(body),
            body_sha256=hashlib.sha256(body).hexdigest(),
        )
        self._seen.append(request)
        return request

    def answered(self, request: SeenRequest, *, answer: str, executed: bool) -> None:
        """Note how `request` ended. One that was forgotten meanwhile stays forgotten."""
        if not self._seen or request.seq < self._seen[0].seq:
            return
        index = request.seq - self._seen[0].seq
        if index < len(self._seen) and self._seen[index].seq == request.seq:
            self._seen[index] = replace(request, answer=answer, executed=executed)

    def reset(self) -> None:
        """Forget everything; numbering goes on, so that a late answer can't land on another request."""
        self._seen.clear()

    def view(self) -> list[Json]:
        return [asdict(request) for request in self._seen]
