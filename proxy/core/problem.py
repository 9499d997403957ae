"""The errors that Safepost makes itself: what happened, what it means for the money, what to do next (E1-E3).

A message may name keys, operations, headers and fields; it never holds the value of a business field.
"""

from __future__ import annotations

import json

from msgspec import Struct

from proxy.core.fingerprint import ALL_FIELDS, WHOLE_BODY
from proxy.core.http import Headers, Response
from proxy.core.model import EntryKind, Key, Knowledge, Operation, OperationId, State
from proxy.core.rules import ErrorShape


class Problem(Struct, frozen=True, kw_only=True):
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


_REASONS = {
    400: b"Bad Request",
    409: b"Conflict",
    413: b"Content Too Large",
    415: b"Unsupported Media Type",
    503: b"Service Unavailable",
    504: b"Gateway Timeout",
}

_SAME_KEY = "Retry with the same key; do not change the key or the order number."


def render(problem: Problem, shape: ErrorShape) -> Response:
    """The answer as HTTP, in the preset's error shape (E1). Members without a value are left out."""
    members = _members(problem)
    if shape is ErrorShape.ENVELOPE:
        media, members = b"application/json", {"error": members}
    else:
        media, members = b"application/problem+json", _problem_details(problem) | members
    headers: Headers = ((b"Content-Type", media), (b"Cache-Control", b"no-store"))
    if problem.retry_after_ms is not None:
        headers += ((b"Retry-After", b"%d" % -(-problem.retry_after_ms // 1000)),)
    text = json.dumps(members, separators=(",", ":"))
    return Response(problem.status, headers, text.encode(), _REASONS.get(problem.status, b""))


def _members(problem: Problem) -> dict[str, object]:
    members: dict[str, object] = {
        "code": problem.code,
        "message": problem.message,
        "field": problem.field,
        "retryable": problem.retryable,
        "related_resource_id": problem.related_resource_id,
        "idempotency_key": problem.idempotency_key,
        "operation": problem.operation,
        "fields": list(problem.fields) or None,
        "last_answer": dict(problem.last_answer) or None,
    }
    return {name: value for name, value in members.items() if value is not None}


def _problem_details(problem: Problem) -> dict[str, object]:
    """The members that RFC 9457 defines; the type is a name, not an address to be fetched."""
    return {
        "type": f"urn:safepost:{problem.code}",
        "title": problem.code.replace("_", " ").capitalize(),
        "status": problem.status,
        "detail": problem.message,
    }


def invalid_request(message: str, *, field: str | None) -> Problem:
    """400 for a call that can't be sent as it is."""
    return Problem(status=400, code="invalid_request", message=message, field=field)


def key_missing(header: str) -> Problem:
    return invalid_request(
        f"The {header} header is missing, so nothing was sent and no money moved. Make a key from the order,"
        " store it, and send the request with it.",
        field=header,
    )


def key_invalid(header: str, *, what: str) -> Problem:
    """`what` completes the sentence "the header ..."."""
    return invalid_request(
        f"The {header} header {what}, so nothing was sent and no money moved. Send one value of 1 to 255"
        " visible"
        " ASCII characters.",
        field=header,
    )


def key_sensitive(header: str, *, what: str) -> Problem:
    """K5 with `key.sensitive: reject`. `what` is `card` or `email`."""
    thing = {"card": "a card number", "email": "an e-mail address"}[what]
    return invalid_request(
        f"The key or the order number looks like it holds {thing}, so nothing was sent and no money moved."
        " Make"
        " keys from order numbers without personal data.",
        field=header,
    )


def field_missing(field: str) -> Problem:
    """A call without a key, and without the field that its key would be made from (K2)."""
    return invalid_request(
        f"The key is made from {field}, which is missing, empty or no single value, so nothing was sent and"
        " no"
        " money moved. Fix the field, or send a key.",
        field=field,
    )


def body_invalid(place: str, *, what: str) -> Problem:
    """P3. `what` completes the sentence that begins with the place."""
    return invalid_request(
        f"The request's JSON can't be trusted: {place} {what}. Nothing was sent and no money moved. Fix the"
        " body.",
        field=place,
    )


def body_missing() -> Problem:
    return invalid_request(
        "The request has no body, so nothing was sent and no money moved. Send the business fields.",
        field="body",
    )


def body_too_large(bytes_max: int) -> Problem:
    return Problem(
        status=413,
        code="body_too_large",
        message=f"The request's body is larger than {bytes_max} bytes, so nothing was sent and no money"
        " moved."
        " Send a smaller body, or raise limits.body.",
    )


def unsupported_encoding(encoding: str) -> Problem:
    """A guarded body has to be read, and is never decoded (H3)."""
    return Problem(
        status=415,
        code="unsupported_encoding",
        message=f"The request's body is encoded as {encoding}, so it could not be checked: nothing was sent"
        " and no"
        " money moved. Send it without Content-Encoding.",
        field="Content-Encoding",
    )


def idempotency_conflict(recorded: Operation, fields: tuple[str, ...]) -> Problem:
    """P2: names the fields that differ, never their values."""
    named = ", ".join("the body" if name in (ALL_FIELDS, WHOLE_BODY) else name for name in fields)
    return Problem(
        status=409,
        code="idempotency_conflict",
        message=f"This key belongs to a submission with other values in {named}. Nothing was sent and the earlier"
        " submission stays as it is. Fix how keys are made; do not send the key with other values.",
        fields=fields,
        idempotency_key=recorded.key,
        operation=recorded.id,
        related_resource_id=recorded.resource_id,
    )


def operation_in_progress(running: Operation, *, retry_after_ms: int) -> Problem:
    """P4: the run of this very key still goes on."""
    return Problem(
        status=409,
        code="operation_in_progress",
        message="A call with this key is in progress: its money may move. Nothing was sent for this one."
        f" {_SAME_KEY}",
        retryable=True,
        retry_after_ms=retry_after_ms,
        idempotency_key=running.key,
        operation=running.id,
        related_resource_id=running.resource_id,
    )


def subject_held(holder: Operation, *, twin: bool, retry_after_ms: int) -> Problem:
    """U1: another key's operation holds the subject; the answer names the key to use instead.

    Args: twin: what holds it is a refund of the same amount under another refund number.
    """
    is_running = holder.state is State.IN_FLIGHT
    thing = (
        "refund of the same amount on this payment" if twin else "submission for the same order or payment"
    )
    return Problem(
        status=409,
        code="operation_in_progress" if is_running else "result_unknown",
        message=f"Another {thing} {_HELD_BY[holder.knowledge]}. This call was not sent, so that the money"
        " can't"
        " move twice. Repeat the submission named here with its own key, or wait for its result.",
        retryable=True,
        retry_after_ms=retry_after_ms,
        idempotency_key=holder.key,
        operation=holder.id,
        related_resource_id=holder.resource_id,
    )


_HELD_BY = {
    Knowledge.UNKNOWN: "has no certain result yet; its money may have moved",
    Knowledge.PENDING: "was accepted and is not final; its money may move",
    Knowledge.EXECUTED: "has been executed",
    Knowledge.NOT_EXECUTED: "is being settled",
}


def key_expired(recorded: Operation) -> Problem:
    """P9: the platform may have forgotten the key and would take it for a new submission."""
    return Problem(
        status=409,
        code="key_expired",
        message="This key is older than the platform remembers, and sending it again could execute a"
        " second time."
        " Nothing was sent; what is known of the first submission stays. Ask for its state, and use a new key"
        " only for a new submission.",
        idempotency_key=recorded.key,
        operation=recorded.id,
        related_resource_id=recorded.resource_id,
    )


def settled_by_hand(recorded: Operation) -> Problem:
    """C5: a person settled it; it is never sent again."""
    notes = [entry for entry in recorded.history if entry.kind is EntryKind.BY_HAND]
    said = f" by {notes[-1].by}: {notes[-1].text.removeprefix(f'{recorded.by_hand}: ')}" if notes else ""
    return Problem(
        status=409,
        code="settled_by_hand",
        message=f"This submission was settled as {recorded.by_hand}{said}. Nothing was sent, and it never"
        " is again."
        " Use a new key only for a new submission.",
        idempotency_key=recorded.key,
        operation=recorded.id,
        related_resource_id=recorded.resource_id,
    )


def result_unknown(
    *,
    key: Key | None,
    operation: OperationId | None,
    retry_after_ms: int,
    last_answer: tuple[tuple[str, str | int], ...] = (),
    related_resource_id: str | None = None,
    is_looked_up: bool = True,
) -> Problem:
    """R8 (c), W1: the platform may have acted. `is_looked_up`: the platform is asked what became of it (U2)."""
    then = (
        "Safepost goes on finding out."
        if is_looked_up
        else "Safepost does not look it up: a repeat, an event or a person settles it."
    )
    return Problem(
        status=504,
        code="result_unknown",
        message=f"The result is unknown: the money may have moved.{_said_of(last_answer)} {_SAME_KEY} {then}",
        retryable=True,
        retry_after_ms=retry_after_ms,
        related_resource_id=related_resource_id,
        idempotency_key=key,
        operation=operation,
        last_answer=last_answer,
    )


def _said_of(last_answer: tuple[tuple[str, str | int], ...]) -> str:
    """What an answer that settled nothing was; a client that reads it takes none of them for a result."""
    status = dict(last_answer).get("status")
    if not isinstance(status, int):
        return ""
    if status < 300:
        return f" The last answer, {status}, held no result of the platform's."
    if status < 400:
        return f" The last answer, {status}, was no result; no redirect is followed."
    if status < 500:
        return " The last attempt was refused, which proves nothing about an earlier one."
    return f" The last answer, {status}, proves nothing about an earlier attempt."


def last_answer(status: int, code: str | None) -> tuple[tuple[str, str | int], ...]:
    """`Problem.last_answer` for the platform's refusal after doubt."""
    return (("status", status),) if code is None else (("status", status), ("code", code))


def store_unavailable(*, key: Key | None, retry_after_ms: int) -> Problem:
    """D3: the ledger can't be written, so nothing may be sent."""
    return Problem(
        status=503,
        code="store_unavailable",
        message="The ledger can't be reached, so this call sent nothing. An earlier call with the same key"
        " may have"
        f" moved money. {_SAME_KEY}",
        retryable=True,
        retry_after_ms=retry_after_ms,
        idempotency_key=key,
    )


def upstream_unavailable(
    *, key: Key | None, operation: OperationId | None, retry_after_ms: int, why: str
) -> Problem:
    """R7, R8 (a): no attempt reached the platform. `why` completes "the platform was not reached: ..."."""
    return Problem(
        status=503,
        code="upstream_unavailable",
        message=f"The platform was not reached: {why}. Nothing was executed for this submission: no money"
        " moved."
        " Retry with the same key.",
        retryable=True,
        retry_after_ms=retry_after_ms,
        idempotency_key=key,
        operation=operation,
    )


def read_failed(*, retry_after_ms: int, why: str) -> Problem:
    """A call that only asks, and got no answer: that tells nothing of the payment that it asked about."""
    return Problem(
        status=503,
        code="upstream_unavailable",
        message=f"No answer came from the platform: {why}. This call only asked, so it moved nothing; what it"
        " asked about is as unknown as before. Ask again.",
        retryable=True,
        retry_after_ms=retry_after_ms,
    )


def unguarded_unknown(*, has_key: bool, is_idempotent: bool, retry_after_ms: int) -> Problem:
    """A call on no guarded route that may have reached the platform: nobody repeats it, nobody finds out (R4).

    Args: has_key: it brought the platform's key. is_idempotent: PUT or DELETE (RFC 9110 section 9.2.2).
    """
    may_repeat = has_key or is_idempotent
    advice = "Retry with the same key." if has_key else "It may be sent again as it was."
    return Problem(
        status=504,
        code="result_unknown",
        message="The result is unknown: the platform may have acted on this call. It was not a guarded one,"
        " so Safepost keeps no record of it and does not find out. "
        + (advice if may_repeat else "Ask the platform for the state first: sent again, it may act twice."),
        retryable=may_repeat,
        retry_after_ms=retry_after_ms if may_repeat else None,
    )


def draining(*, retry_after_ms: int) -> Problem:
    """O3: the process is about to end and takes no new call."""
    return Problem(
        status=503,
        code="draining",
        message=f"This instance is shutting down and sent nothing for this call. {_SAME_KEY}",
        retryable=True,
        retry_after_ms=retry_after_ms,
    )


NEAR_MISS = (
    "The path is not one of the guarded ones, but some servers would take it for one (a doubled or last"
    " slash, "
    "an encoded slash, other case, parameters after a semicolon, an encoding of an encoding,"
    " a suffix). Nothing was sent and no money moved."
    " Send the "
    "path exactly as the platform documents it."
)
"""Why a call near a guarded route is refused: past the guard, it could move money twice."""
