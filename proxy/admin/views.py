"""An operation as JSON: the stable shape that the API, the command line, the console and exports share.

It holds no request body (none is stored), no answer's body, no digest of a field, no credential; keys and
subjects that look like a card number or an e-mail address are masked. Times are RFC 3339 in UTC.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from proxy.core.http import first
from proxy.core.keys import masked
from proxy.core.model import Attempt, Entry, Knowledge, Operation, Seen, State, StoredAnswer
from proxy.core.rules import Platform
from proxy.ports import Holdings

View = dict[str, object]

_STEPS = {
    "same_key_repeat": "The caller may send the same request again with the same key; no other key, no other "
    "order number.",
    "undo_by_key": "The platform can undo by key; a person may ask for it.",
    "list_sweep": "Safepost compares it with the platform's list once a day.",
    "person": "If it stays unclear, ask the platform's support, then resolve it by hand.",
}


def time_of(ms: int | None) -> str | None:
    """Wall-clock milliseconds as RFC 3339 in UTC; None stays None."""
    if ms is None:
        return None
    text = datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
    return text.removesuffix("+00:00") + "Z"


def shown(text: str | None) -> str | None:
    """`text`, or what it seems to be where that must not be shown (K5)."""
    return masked(text) if text else text


def is_settled(operation: Operation) -> bool:
    """Whether its effect is known for good: what a long poll waits for."""
    return operation.state in (State.EXECUTED, State.NOT_EXECUTED)


def summary_json(operation: Operation, *, now_ms: int) -> View:
    """One row of a list."""
    since_ms = operation.unknown_since_ms or operation.first_attempt_ms or operation.created_ms
    return {
        "id": operation.id,
        "merchant": operation.scope.merchant,
        "environment": operation.scope.environment,
        "route": operation.route,
        "method": operation.method,
        "path": shown(operation.path),
        "key": shown(operation.key),
        "key_injected": operation.key_injected,
        "seq": operation.seq,
        "subject": shown(operation.subject),
        "resource_id": shown(operation.resource_id),
        "amount": operation.amount,
        "currency": operation.currency,
        "state": operation.state.value,
        "knowledge": operation.knowledge.value,
        "is_settled": is_settled(operation),
        "needs_person": operation.state is State.MANUAL_REVIEW,
        "status": operation.status,
        "resolution_status": operation.resolution_status,
        "doubt": operation.doubt,
        "attempt_count": operation.attempt_count,
        "created": time_of(operation.created_ms),
        "updated": time_of(operation.updated_ms),
        "settled": time_of(operation.settled_ms),
        "settled_by": operation.settled_by,
        "unknown_since": time_of(operation.unknown_since_ms),
        "next_lookup": time_of(operation.lookups.next_ms) if operation.is_unresolved else None,
        "open_ms": max(0, now_ms - since_ms) if operation.is_unresolved else None,
    }


def operation_json(operation: Operation, *, now_ms: int, platform: Platform) -> View:
    """The whole story of one operation."""
    return {
        **summary_json(operation, now_ms=now_ms),
        "version": operation.version,
        "first_attempt": time_of(operation.first_attempt_ms or None),
        "last_attempt_end": time_of(operation.last_attempt_end_ms),
        "settled_by_hand": operation.by_hand,
        "failure_delivered": operation.failure_delivered,
        "attempts": [_attempt(one) for one in operation.attempts],
        "history": [_entry(one) for one in operation.history],
        "lookups": {
            "done": operation.lookups.done,
            "misses": operation.lookups.misses,
            "last": time_of(operation.lookups.last_ms),
            "next": time_of(operation.lookups.next_ms) if operation.is_unresolved else None,
        },
        "newest": _seen(operation.newest),
        "answer": _answer(operation.answer),
        "identity": {
            "handles": [shown(handle) for handle in operation.handles],
            "compared_fields": sorted(operation.fingerprint.fields),
            "preset": operation.fingerprint.preset,
        },
        "next_steps": _next_steps(operation, platform),
    }


def _attempt(attempt: Attempt) -> View:
    lasted_ms = None if attempt.ended_ms is None else max(0, attempt.ended_ms - attempt.begun_ms)
    return {
        "n": attempt.n,
        "fence": attempt.fence,
        "begun": time_of(attempt.begun_ms),
        "ended": time_of(attempt.ended_ms),
        "duration_ms": lasted_ms,
        "outcome": attempt.outcome.value if attempt.outcome else None,
        "status": attempt.status,
        "code": attempt.code,
        "detail": attempt.detail,
        "request_id": shown(attempt.request_id),
    }


def _entry(entry: Entry) -> View:
    return {
        "at": time_of(entry.at_ms),
        "kind": entry.kind.value,
        "text": shown(entry.text),
        "by": entry.by or None,
    }


def _seen(seen: Seen | None) -> View | None:
    if seen is None:
        return None
    return {
        "status": seen.status,
        "is_final": seen.is_final,
        "is_failure": seen.is_failure,
        "source": seen.source,
        "seen": time_of(seen.seen_ms),
        "resource_id": shown(seen.resource_id),
        "version": seen.version,
        "attempt_count": seen.attempt_count,
        "resolution_status": seen.resolution_status,
    }


def _answer(answer: StoredAnswer | None) -> View | None:
    """What the last run gave its caller: its size and type, never its body."""
    if answer is None:
        return None
    kind = first(answer.headers, b"content-type")
    return {
        "status": answer.status,
        "content_type": kind.decode("latin-1") if kind else None,
        "body_bytes": None if answer.body is None else len(answer.body),
        "ended": time_of(answer.ended_ms),
        "from_platform": answer.from_platform,
        "knowledge": answer.knowledge.value,
    }


def _next_steps(operation: Operation, platform: Platform) -> list[View]:
    """What happens by itself, and what a caller or a person may do (U9)."""
    if is_settled(operation):
        return []
    if operation.state is State.IN_FLIGHT:
        return [_step("wait", "A call is under way; its answer, or the end of its lease, comes next.")]
    steps: list[View] = []
    if operation.lookups.next_ms is not None:
        what = "Safepost asks the platform about it again."
        steps.append(_step("lookup", what, at_ms=operation.lookups.next_ms))
    for name in platform.next_steps:
        if name == "list_sweep" and operation.state is not State.PENDING:
            continue
        if name == "same_key_repeat" and operation.knowledge is Knowledge.PENDING:
            continue
        steps.append(_step(name, _STEPS.get(name, name)))
    return steps


def _step(name: str, text: str, *, at_ms: int | None = None) -> View:
    return {"step": name, "text": text, "at": time_of(at_ms)}


def holdings_json(held: Iterable[Holdings], *, now_ms: int) -> View:
    """The money that is not settled: what the console and the gauges show."""
    rows = list(held)
    return {
        "unknown": _total(rows, Knowledge.UNKNOWN, now_ms),
        "pending": _total(rows, Knowledge.PENDING, now_ms),
        "by_route": [
            {
                "route": one.route,
                "knowledge": one.knowledge,
                "currency": one.currency or None,
                "count": one.count,
                "amount": one.amount,
                "oldest": time_of(one.oldest_ms),
            }
            for one in rows
        ],
    }


def _total(rows: list[Holdings], knowledge: Knowledge, now_ms: int) -> View:
    of_it = [one for one in rows if one.knowledge == knowledge]
    amounts: dict[str, int] = {}
    for one in of_it:
        if one.currency:
            amounts[one.currency] = amounts.get(one.currency, 0) + one.amount
    oldest_ms = min((one.oldest_ms for one in of_it), default=None)
    return {
        "count": sum(one.count for one in of_it),
        "amounts": amounts,
        "oldest": time_of(oldest_ms),
        "oldest_ms": None if oldest_ms is None else max(0, now_ms - oldest_ms),
    }
