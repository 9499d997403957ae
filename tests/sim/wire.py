"""The network between a sidecar and the bank: what an attempt's end looks like, and what the bank got of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from proxy.core.http import (
    Answered,
    MaybeSent,
    MaybeSentReason,
    NotSent,
    NotSentReason,
    Phase,
    Response,
    WireResult,
)
from tests.sim.bank import Bank, refusal
from tests.sim.checks import Checks
from tests.sim.platforms import ATTEMPT_TIMEOUT_MS, JSON_TYPE, LATE_MS_MAX, Request
from tests.sim.world import Kind, World

HTML = ((b"Content-Type", b"text/html"),)
GATEWAY = Response(502, HTML, b"<html>bad gateway</html>")
TIMED_OUT = MaybeSent(MaybeSentReason.TIMEOUT, Phase.WAITING)
RESET = MaybeSent(MaybeSentReason.RESET, Phase.WAITING)

BEFORE: dict[str, WireResult] = {
    "reset_before": RESET,
    "html_before": Answered(GATEWAY),
    "error_before": Answered(refusal(500, "internal_error")),
    "busy": Answered(refusal(429, "rate_limited")),
    "unavailable": Answered(
        Response(503, (*JSON_TYPE, (b"Retry-After", b"1")), refusal(503, "temporarily_unavailable").body)
    ),
    "portal": Answered(Response(200, HTML, b"<html>log in</html>")),
    "redirect": Answered(Response(302, ((b"Location", b"/login"),), b"")),
    "turned_away": Answered(refusal(401, "unauthorized")),
    "in_progress": Answered(refusal(409, "operation_in_progress")),
}
"""What answers before the bank has seen anything."""

AFTER: dict[str, WireResult] = {
    "reset_after": RESET,
    "truncated": MaybeSent(MaybeSentReason.TRUNCATED, Phase.READING, status=200),
    "garbage": MaybeSent(MaybeSentReason.GARBAGE, Phase.WAITING),
    "html_after": Answered(GATEWAY),
    "error_after": Answered(refusal(500, "internal_error")),
    "lying_429": Answered(refusal(429, "rate_limited")),
}
"""What comes instead of the bank's answer."""


@dataclass
class Wire:
    """Carries requests to the bank. `under_way`: requests that may still reach it, by key."""

    world: World
    bank: Bank
    checks: Checks
    under_way: dict[str, int]

    def send(
        self,
        request: Request,
        key: str,
        not_after_ms: int | None,
        ended: Callable[[WireResult], None],
        *,
        leaves: Callable[[], None] = lambda: None,
    ) -> None:
        """One attempt, its last-moment check included. `leaves`: its first byte is about to."""
        world, chance = self.world, self.world.chance
        if not_after_ms is not None and world.now_ms > not_after_ms:
            world.after(0, lambda: ended(NotSent(NotSentReason.TOO_LATE)))
            return
        leaves()
        fault = world.fault("wire")
        begun = world.steps
        travel_ms = (
            chance.between(400, 5_000)
            if chance.hits(500 if world.kind is Kind.FORWARDING else 100)
            else chance.between(5, 400)
        )
        if fault == "refused":
            world.after(5, lambda: ended(NotSent(NotSentReason.REFUSED)))
        elif fault in BEFORE:
            world.after(travel_ms, lambda: ended(BEFORE[fault]))
        elif fault == "lost":
            world.after(ATTEMPT_TIMEOUT_MS, lambda: ended(TIMED_OUT))
        elif fault == "late":
            hung_ms = ATTEMPT_TIMEOUT_MS + chance.between(1, LATE_MS_MAX)
            world.after(ATTEMPT_TIMEOUT_MS, lambda: ended(TIMED_OUT))
            self._arrives(hung_ms, request, key, begun, None)
        elif fault == "answer_lost":
            self._arrives(travel_ms, request, key, begun, None)
            world.after(ATTEMPT_TIMEOUT_MS, lambda: ended(TIMED_OUT))
        elif fault in AFTER:
            if fault == "lying_429":
                self.checks.liars.add((request.kind, request.thing, key))
            self._arrives(travel_ms, request, key, begun, lambda _: ended(AFTER[fault]))
        elif fault == "stale" and request.kind in ("create", "refund"):
            self._arrives(travel_ms, request, key, begun, lambda r: ended(Answered(self.bank.before(r))))
        elif fault == "slow_answer":
            slow_ms = chance.between(ATTEMPT_TIMEOUT_MS // 2, ATTEMPT_TIMEOUT_MS - 500)
            self._arrives(
                travel_ms, request, key, begun, lambda r: world.after(slow_ms, lambda: ended(Answered(r)))
            )
        else:
            self._arrives(
                travel_ms, request, key, begun, lambda r: world.after(travel_ms, lambda: ended(Answered(r)))
            )

    def _arrives(
        self,
        delay_ms: int,
        request: Request,
        key: str,
        begun: int,
        then: Callable[[Response], None] | None,
    ) -> None:
        self.under_way[key] = self.under_way.get(key, 0) + 1

        def arrived() -> None:
            self.under_way[key] -= 1
            response = self.bank.receive(request, key, begun)
            if self.world.tracing:
                self.world.note(f"BANK got {request.kind} {request.thing} key={key} -> {response.status}")
            if then is not None:
                then(response)

        self.world.after(delay_ms, arrived)
