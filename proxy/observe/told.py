"""What of a call or an operation is told in a log line or an announcement: an allow-list, masked."""

from __future__ import annotations

import re
import traceback
from pathlib import Path

from proxy.core.http import Headers
from proxy.core.messages import AttemptFinished, CallEnded
from proxy.core.model import Operation
from proxy.observe.logs import AttemptLine, CallLine, Value, cut, masked
from proxy.run import Run

_TRACE_ID = re.compile(rb"[0-9a-f]{32}")


def of_run(run: Run | None) -> dict[str, Value]:
    if run is None:
        return {}
    return {"request_id": masked(run.request_id), "trace_id": trace_of(run.request.headers)}


def key_of(run: Run | None) -> dict[str, Value]:
    """The key that a call brought; a `{seq}` key that the ledger has not filled in is none yet."""
    return {"key": masked(run.claim.key)} if run is not None and isinstance(run.claim.key, str) else {}


def trace_of(headers: Headers) -> str:
    """The trace that `traceparent` names (W3C Trace Context), empty without one."""
    for name, value in headers:
        if len(name) == 11 and name.lower() == b"traceparent":
            parts = value.split(b"-")
            is_trace = len(parts) >= 4 and _TRACE_ID.fullmatch(parts[1])
            return parts[1].decode("ascii") if is_trace else ""
    return ""


def of_fault(error: BaseException) -> dict[str, Value]:
    """What of an error and where it came from; its text only where it is our own: others' may hold a caller's."""
    frames = traceback.extract_tb(error.__traceback__)
    where = " < ".join(f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in reversed(frames[-12:]))
    text = str(error) if type(error).__module__.startswith("proxy.") else ""
    return {"error": type(error).__name__, "text": cut(text), "where": where}


def call_line(fact: CallEnded) -> CallLine:
    return CallLine(
        request_id=masked(fact.request_id),
        trace_id=fact.trace_id,
        operation=fact.operation,
        route=fact.route,
        key=masked(fact.key) if fact.key else None,
        status=fact.status,
        method=cut(fact.method),
        knowledge=fact.knowledge.value if fact.knowledge else "",
        code=fact.code,
        attempts=fact.attempts,
        replayed=fact.replayed,
        duration_ms=fact.duration_us / 1000,
        overhead_ms=fact.overhead_us / 1000,
    )


def attempt_line(fact: AttemptFinished, run: Run | None, duration_us: int | None) -> AttemptLine:
    return AttemptLine(
        request_id=masked(run.request_id) if run is not None else "",
        trace_id=trace_of(run.request.headers) if run is not None else "",
        operation=fact.operation,
        route=fact.route,
        key=masked(fact.key) if fact.key else None,
        status=fact.status,
        attempt=fact.n,
        outcome=fact.outcome.value,
        reason=fact.reason,
        cause=cut(fact.cause),
        duration_ms=None if duration_us is None else duration_us / 1000,
    )


def of_operation(operation: Operation) -> dict[str, Value]:
    return {
        "operation": operation.id,
        "route": operation.route,
        "key": masked(operation.key),
        "subject": masked(operation.subject) if operation.subject else None,
        "state": operation.state.value,
        "knowledge": operation.knowledge.value,
        "status": operation.status,
        "attempts": operation.attempt_count,
        "amount": operation.amount,
        "currency": operation.currency,
    }


def announced(operation: Operation) -> dict[str, object]:
    return {name: value for name, value in of_operation(operation).items() if value is not None}
