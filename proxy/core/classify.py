"""What an attempt's end means, as the platform's preset reads it (R3, R4, R8, R9).

One status means many things: rows are told apart by status, code, header, and by who made the body. A 2xx
without the platform's object, or a 5xx in HTML, came from something in between, and is in doubt.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Container, Mapping
from typing import assert_never

from msgspec import Struct

from proxy.core.bodies import Json, Mistake, Number, at, read_json, whole_text
from proxy.core.cards import holds_card, holds_card_number
from proxy.core.http import (
    Answered,
    Headers,
    MaybeSent,
    NotSent,
    NotSentReason,
    Response,
    WireResult,
    first,
    values,
)
from proxy.core.model import DEFINITE, Outcome, Seen, replace
from proxy.core.redact import repeats
from proxy.core.retry import retry_after_ms
from proxy.core.rules import ObjectRule, OutcomeRule, Path, Platform, Route, Shape

DECODED_BYTES_MAX = 1 << 20
"""Of an answer that is read: far above a payment, and a bound for compressed ones."""

Decoder = Callable[[bytes, int], bytes | None]
"""Decodes a body up to a number of bytes; None where it is broken or larger."""

_NEVER_RETRIED_IN_DOUBT = frozenset({*range(300, 400), 501, 505})  # nor a 409 whose code is not listed (R4)
_PACES = frozenset({429, 503})  # whose Retry-After replaces the computed wait (R6)
_CODE = re.compile(r"[A-Za-z0-9_.:-]{1,64}")


class Verdict(Struct, frozen=True, kw_only=True):
    """What one attempt's end means.

    `retry`: another attempt may be made (R4). `passes`: in doubt, but the caller may get this answer as it
    is (R8 b). `code`: the platform's error code. `detail`: one of few words for what ended it, for logs and
    metrics; `cause`: the wire's own account of it, for people. `seen`: the platform's object of an executed or
    pending answer. `retry_after_ms`: what an answer that settles nothing asks to wait; `paces`: our own next
    attempt waits as long (R6), and not the caller alone (R8 c). `related_id`: what resource an error names.
    `means`: the object status that an executed answer without an object stands for. `withheld`: it repeats the
    call's own credential (D4).
    """

    outcome: Outcome
    retry: bool
    detail: str
    cause: str = ""
    passes: bool = False
    code: str | None = None
    seen: Seen | None = None
    retry_after_ms: int | None = None
    paces: bool = False
    related_id: str | None = None
    means: str | None = None
    withheld: bool = False


class _Reading(Struct, frozen=True):
    """An answer's body, read. `is_final` is None where it is not the platform's object. `code`: for the rows."""

    body: bytes | None
    value: Json
    code: str | None
    is_final: bool | None


class Classifier:
    """Reads the ends of one route's attempts.

    Args: decoders: by content coding; a body in any other coding is read as nothing, so a 2xx in it stays in
        doubt. None means those of the standard library (`DECODERS`), which has no Brotli.
    """

    def __init__(
        self, route: Route, platform: Platform, decoders: Mapping[str, Decoder] | None = None
    ) -> None:
        self._route = route
        self._platform = platform
        self._decoders = DECODERS if decoders is None else decoders
        self._rules: dict[int, tuple[OutcomeRule, ...]] = {}
        for rule in route.outcomes:
            for status in rule.statuses:
                self._rules[status] = (*self._rules.get(status, ()), rule)

    def classify(
        self, result: WireResult, *, after_doubt: bool, received_wall_ms: int, secret: bytes = b""
    ) -> Verdict:
        """What the end of an attempt means.

        Args: after_doubt: an earlier attempt of the operation was in doubt. secret: see `AttemptEnded`.
        """
        if isinstance(result, NotSent):
            return Verdict(
                outcome=Outcome.NOT_SENT,
                retry=result.reason not in (NotSentReason.CERTIFICATE, NotSentReason.BREAKER_OPEN),
                detail=result.reason,
                cause=result.detail,
                retry_after_ms=result.retry_after_ms,
            )
        if isinstance(result, MaybeSent):
            return Verdict(outcome=Outcome.IN_DOUBT, retry=True, detail=result.reason, cause=result.detail)
        return self._answered(
            result, after_doubt=after_doubt, received_wall_ms=received_wall_ms, secret=secret
        )

    def _answered(
        self, result: Answered, *, after_doubt: bool, received_wall_ms: int, secret: bytes
    ) -> Verdict:
        response = result.response
        reading = self._read(response)
        withheld = bool(secret) and repeats(response, reading.body, secret)
        rule = self._rule(response, reading, after_doubt=after_doubt)
        outcome = Outcome.IN_DOUBT if rule is None else rule.outcome
        asked_ms = None
        if outcome not in DEFINITE:
            asked_ms = retry_after_ms(response.headers, received_wall_ms=received_wall_ms)
        return Verdict(
            outcome=outcome,
            retry=self._retries(response, outcome, rule),
            detail=f"http_{response.status}",
            passes=outcome is Outcome.IN_DOUBT and _passes(response.status, rule, after_doubt=after_doubt),
            code=_fit_code(_text(reading.value, self._platform.error_code), secret),
            seen=self._seen(reading, received_wall_ms, withheld) if outcome in DEFINITE else None,
            retry_after_ms=asked_ms,
            paces=response.status in _PACES,
            related_id=_text(reading.value, self._platform.error_related_id),
            means=None if rule is None else rule.means,
            withheld=withheld,
        )

    def _seen(self, reading: _Reading, seen_ms: int, withheld: bool) -> Seen | None:
        if reading.body is None or reading.is_final is None:
            return None
        seen = read_object(
            reading.body,
            reading.value,
            self._route.object,
            source="answer",
            seen_ms=seen_ms,
            card_fields=self._platform.card_fields,
        )
        return replace(seen, body=None) if withheld and seen is not None else seen

    def _read(self, response: Response) -> _Reading:
        body = plain_body(response, self._decoders)
        value: Json = None
        if body:
            read = read_json(body)
            value = None if isinstance(read, Mistake) else read
        code = _code(value, self._platform.error_code)
        return _Reading(body, value, code, _finality(value, self._route.object))

    def _rule(self, response: Response, reading: _Reading, *, after_doubt: bool) -> OutcomeRule | None:
        for rule in self._rules.get(response.status, ()):
            if (
                (rule.codes is None or reading.code in rule.codes)
                and (rule.after_doubt is None or rule.after_doubt is after_doubt)
                and (rule.statuses_final is None or rule.statuses_final is reading.is_final)
                and _has_shape(rule.shape, response, reading)
                and (rule.header is None or _has_header(response.headers, *rule.header))
            ):
                return rule
        return None

    def _retries(self, response: Response, outcome: Outcome, rule: OutcomeRule | None) -> bool:
        """R4, and the platform's own hint before it (R9), which never repeats what is settled or refused."""
        if outcome not in (Outcome.NOT_EXECUTED, Outcome.IN_DOUBT):
            return False
        name = self._platform.should_retry_header
        hint = None if name is None else first(response.headers, name.lower())
        if hint is not None and hint.lower() in (b"true", b"false"):
            return hint.lower() == b"true"
        if rule is not None and rule.retry is not None:
            return rule.retry
        if outcome is Outcome.NOT_EXECUTED:
            return True
        is_listed = rule is not None and rule.codes is not None
        return response.status not in _NEVER_RETRIED_IN_DOUBT and (response.status != 409 or is_listed)


def read_object(
    body: bytes, value: Json, rule: ObjectRule, *, source: str, seen_ms: int, card_fields: frozenset[str]
) -> Seen | None:
    """What an answer, a lookup or an event shows of a resource; None where it is not the platform's object.

    Args: body: the object's JSON, decoded; left out of the result where it may not be stored (D4).
        source: answer, lookup or event.
    """
    is_final = _finality(value, rule)
    if is_final is None:
        return None
    status = object_text(value, rule.status, rule)
    return Seen(
        status=_fit_word(status, known=rule.statuses) or "",
        is_final=is_final,
        is_failure=rule.fails(status),
        source=source,
        seen_ms=seen_ms,
        resource_id=object_text(value, rule.id, rule),
        version=_integer(value, rule.version),
        attempt_count=_integer(value, rule.attempt_count),
        failure_attempt_id=_text(value, rule.failure_attempt_id),
        resolution_status=_fit_word(_text(value, rule.resolution_status)),
        body=None if holds_card(body, value, card_fields) else body,
    )


def _fit_word(text: str | None, known: Container[str] = ()) -> str | None:
    """What the platform says in a field of few words, if it is one: it is kept, logged and shown (D4)."""
    if text in known or (text and _CODE.fullmatch(text) and not holds_card_number(text)):
        return text
    return None


def _fit_code(code: str | None, secret: bytes) -> str | None:
    """The platform's error code, if it is a word that may be kept and shown (D4)."""
    if not code or not _CODE.fullmatch(code) or holds_card_number(code):
        return None
    return None if secret and secret in code.encode("ascii") else code


def _finality(value: Json, rule: ObjectRule) -> bool | None:
    """Whether the platform's object is in a final status; None where `value` is not that object."""
    if not (object_text(value, rule.id, rule) if rule.id else isinstance(value, dict)):
        return None
    if rule.any_is_executed:
        return True
    status = object_text(value, rule.status, rule)
    if not status:
        return None
    known = rule.statuses.get(status)
    return known is not None and known.is_final


def _text(value: Json, path: Path) -> str | None:
    return whole_text(at(value, path)) if path else None


def object_text(value: Json, path: Path, rule: ObjectRule) -> str | None:
    """The object's id or status; as text also where it is a number, and the platform is known to write one."""
    found = at(value, path) if path else None
    return found.text if rule.numeric and isinstance(found, Number) else whole_text(found)


def _code(value: Json, path: Path) -> str | None:
    """A platform's code is a word or a number; a row names either as text."""
    found = at(value, path) if path else None
    return found.literal if isinstance(found, Number) else _text(value, path)


def _integer(value: Json, path: Path) -> int | None:
    found = at(value, path) if path else None
    return found.integer if isinstance(found, Number) else None


def _has_shape(shape: Shape, response: Response, reading: _Reading) -> bool:
    match shape:
        case Shape.ANY:
            return True
        case Shape.OBJECT:
            return reading.is_final is not None
        case Shape.ERROR:
            return reading.code is not None
        case Shape.EMPTY:
            return not response.body
        case _:
            assert_never(shape)


def _has_header(headers: Headers, name: bytes, wanted: bytes) -> bool:
    return any(value.lower() == wanted.lower() for value in values(headers, name.lower()))


def _passes(status: int, rule: OutcomeRule | None, *, after_doubt: bool) -> bool:
    """R8 (b): 5xx and 408 in doubt, what the preset lets pass, and an unlisted 409 with no doubt before"
    " it."""
    if rule is None and status == 409:
        return not after_doubt
    return status == 408 or 500 <= status <= 599 or (rule is not None and rule.passes)


def _inflated(body: bytes, bytes_max: int, *, wbits: int) -> bytes | None:
    inflater = zlib.decompressobj(wbits)
    try:
        plain = inflater.decompress(body, bytes_max)
    except zlib.error:
        return None
    return plain if inflater.eof and not inflater.unused_data else None


def _gunzipped(body: bytes, bytes_max: int) -> bytes | None:
    return _inflated(body, bytes_max, wbits=16 + zlib.MAX_WBITS)


def _deflated(body: bytes, bytes_max: int) -> bytes | None:
    """`deflate` is a zlib stream (RFC 9110 section 8.4.1.2); some servers send the bare one."""
    plain = _inflated(body, bytes_max, wbits=zlib.MAX_WBITS)
    return _inflated(body, bytes_max, wbits=-zlib.MAX_WBITS) if plain is None else plain


DECODERS: Mapping[str, Decoder] = {"gzip": _gunzipped, "x-gzip": _gunzipped, "deflate": _deflated}


def plain_body(response: Response, decoders: Mapping[str, Decoder] = DECODERS) -> bytes | None:
    """A readable copy of an answer's body (R3); None where it can't be had or is too large."""
    if len(response.body) > DECODED_BYTES_MAX:
        return None
    codings = values(response.headers, b"content-encoding")
    coding = b",".join(codings).decode("latin-1").lower()
    if coding in ("", "identity") or not response.body:
        return response.body
    decoder = decoders.get(coding)
    return None if decoder is None else decoder(response.body, DECODED_BYTES_MAX)
