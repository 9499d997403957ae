"""A guarded call under way, as the driver holds it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from proxy.core.guard import Guard
from proxy.core.http import Headers, WireRequest, first, without
from proxy.core.messages import Claim
from proxy.core.model import Key, Now, Owner, State
from proxy.core.redact import secret_of


@dataclass(slots=True)
class Run:
    """A guarded call under way: its guard, its lease, the time that was not ours.

    `away_us` is time spent waiting for the platform or in back-off (M1, overhead). `lease_until_ms` is the
    monotonic instant until which nobody else can have taken the operation over.
    """

    guard: Guard
    claim: Claim
    request: WireRequest
    owner: Owner
    request_id: str
    task: asyncio.Task[object] | None
    arrived: Now | None = None  # by the store's clocks; None until it is first asked
    lease_until_ms: int = 0
    renewed_ms: int = 0
    away_us: int = 0
    attempt_us: int = 0  # the last attempt's duration

    @property
    def is_leading(self) -> bool:
        """Whether this call holds the lease of an operation in flight."""
        operation = self.guard.operation
        return operation is not None and operation.state is State.IN_FLIGHT and operation.owner == self.owner

    @property
    def secret(self) -> bytes:
        """The credential that the platform gets with the call, without its scheme; empty for none (D4)."""
        return secret_of(first(self.request.headers, b"authorization") or b"")

    def keyed(self, key: Key) -> WireRequest:
        """The request with the key in its place: as the caller sent it, or added where missing (H1)."""
        if not self.claim.key_injected:
            return self.request
        rule = self.claim.route.key
        value = key.encode("ascii")
        if rule.unquote:  # the platform takes a structured-field string (RFC 8941 section 3.3.3)
            value = b'"%b"' % value.replace(b"\\", b"\\\\").replace(b'"', b'\\"')
        headers: Headers = (*without(self.request.headers, rule.header.lower()), (rule.header, value))
        return WireRequest(self.request.method, self.request.target, headers, self.request.body)
