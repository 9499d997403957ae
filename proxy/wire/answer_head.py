"""Writing answers: heads and framing towards the caller."""

from __future__ import annotations

import json
from collections.abc import Callable
from http import HTTPStatus

from proxy.core.http import Headers, Response
from proxy.wire.fields import ANSWER_FRAMING, HOP_BY_HOP, lines, sealed

Refusal = Callable[[int, str, str, str | None], Response]
"""Makes the wire's own refusals: (status, code, message, field) -> an answer in the platform's shape."""

_STANDARD_REASONS = {status.value: status.phrase.encode("ascii") for status in HTTPStatus}
_CLOSE = b"Connection: close"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"


def refusal_in_payhub_shape(status: int, code: str, message: str, field: str | None) -> Response:
    """A refusal for listeners that were given no shape of their own."""
    error: dict[str, object] = {"code": code, "message": message, "retryable": status >= 500}
    if field is not None:
        error["field"] = field
    again = ((b"Retry-After", b"1"),) if status >= 500 else ()
    return Response(
        status,
        ((b"Content-Type", b"application/json"), (b"Cache-Control", b"no-store"), *again),
        json.dumps({"error": error}, ensure_ascii=False).encode(),
    )


def is_bodyless(method: bytes, status: int) -> bool:
    """Whether an answer ends with its head, whatever its headers say (RFC 9112 section 6.3)."""
    return method == b"HEAD" or status in (204, 304) or status < 200


def whole_answer(response: Response, *, method: bytes, closing: bool) -> bytes:
    """`response` as it goes to the caller: one framing, by Content-Length."""
    body = response.body
    if is_bodyless(method, response.status):
        body = b""
        # A HEAD or 304 may say how long the GET's body would be (O-27); a 204 must not.
        head_lines = lines(response.headers, dropped=ANSWER_FRAMING if response.status == 204 else HOP_BY_HOP)
        if method == b"HEAD" and response.body and not _has_length(response.headers):
            head_lines.append(b"Content-Length: %d" % len(response.body))
    else:
        head_lines = lines(response.headers, dropped=ANSWER_FRAMING)
        head_lines.append(b"Content-Length: %d" % len(body))
    return _head(response.status, response.reason, head_lines, closing) + body


def streamed_head(
    status: int,
    reason: bytes,
    headers: Headers,
    *,
    body_length: int | None,
    bodyless: bool,
    closing: bool,
    is_11: bool,
) -> bytes:
    """The head of an answer whose body comes in pieces; chunked where its length is not known."""
    if bodyless:
        head_lines = lines(headers, dropped=ANSWER_FRAMING if status == 204 else HOP_BY_HOP)
    else:
        head_lines = lines(headers, dropped=ANSWER_FRAMING)
        if body_length is not None:
            head_lines.append(b"Content-Length: %d" % body_length)
        elif is_11:
            head_lines.append(b"Transfer-Encoding: chunked")
    return _head(status, reason, head_lines, closing)


def interim_head(status: int, headers: Headers) -> bytes:
    """A 1xx answer."""
    return _head(status, b"", lines(headers, dropped=ANSWER_FRAMING), closing=False)


def framed_chunk(piece: bytes) -> bytes:
    """`piece` in chunked framing; it must not be empty, since that would end the body."""
    return b"%x\r\n%b\r\n" % (len(piece), piece)


def last_chunk(trailers: Headers) -> bytes:
    """The end of a chunked body."""
    if not trailers:
        return LAST_CHUNK
    return sealed([b"0", *lines(trailers, dropped=ANSWER_FRAMING)])


def _head(status: int, reason: bytes, head_lines: list[bytes], closing: bool) -> bytes:
    if closing:
        head_lines.append(_CLOSE)
    start = b"HTTP/1.1 %d %b" % (status, reason or _STANDARD_REASONS.get(status, b""))
    return sealed([start, *head_lines])


def _has_length(headers: Headers) -> bool:
    return any(name.lower() == b"content-length" for name, _ in headers)
