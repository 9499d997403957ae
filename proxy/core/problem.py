"""The errors that Safepost makes itself: what happened, what it means for the money, what to do next (E1-E3)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One answer of our own, before it takes the platform's error shape.

    `field` names the place of a mistake; `last_answer` the platform's refusal after doubt (R8 c).
    """

    status: int
    code: str
    message: str
    field: str | None = None
    retryable: bool = False
    retry_after_ms: int | None = None
    related_resource_id: str | None = None
    idempotency_key: str | None = None
    operation: str | None = None
    last_answer: tuple[tuple[str, str | int], ...] = ()
    fields: tuple[str, ...] = ()
