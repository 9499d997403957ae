"""HTTP values as they travel: raw bytes, never decoded and re-encoded (contract H1).

Header names and values are the bytes of the wire, in their order, with their case and their duplicates.
What a network does is a value (`WireResult`), never an exception. The split between `NotSent` and
`MaybeSent` is exact (R2): only who writes the bytes knows whether one left.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

Headers = tuple[tuple[bytes, bytes], ...]


class RequestHead(Struct, frozen=True):
    """The head of a call as the merchant service sent it; `target` is the raw request-target."""

    method: bytes
    target: bytes
    headers: Headers
    http_minor: int = 1


class WireRequest(Struct, frozen=True):
    """One attempt's bytes, whole: what goes to the platform, framing headers aside.

    `headers` are end-to-end headers only. The wire adds `Host`, `Content-Length` and `Via`.
    """

    method: bytes
    target: bytes
    headers: Headers
    body: bytes


class Response(Struct, frozen=True):
    """A whole HTTP answer, end-to-end headers only (no framing, no hop-by-hop fields)."""

    status: int
    headers: Headers
    body: bytes
    reason: bytes = b""


class NotSentReason(StrEnum):
    """Why no byte of the request left this process."""

    DNS = "dns"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"
    CONNECT_TIMEOUT = "connect_timeout"
    TLS = "tls"
    CERTIFICATE = "certificate"  # never retried (R4): configuration or attack
    POOL_TIMEOUT = "pool_timeout"  # no free upstream connection in time
    TOO_LATE = "too_late"  # `not_after` had passed at the last moment before the first byte
    CONNECTION_LOST = "connection_lost"  # a pooled connection found dead before the first byte
    RESOURCES = "resources"  # no file descriptor or no local port
    BREAKER_OPEN = "breaker_open"


class MaybeSentReason(StrEnum):
    """How an attempt ended after at least one byte of it left."""

    RESET = "reset"
    EOF = "eof"
    TIMEOUT = "timeout"
    GARBAGE = "garbage"  # not an HTTP answer, or framing that must not be guessed about
    TRUNCATED = "truncated"  # a final head, then fewer body bytes than it promised
    TOO_LARGE = "too_large"  # an answer beyond our limits; cut, so not a whole answer
    GIVEN_UP = "given_up"  # the process had to end before the attempt did (O3)


class Phase(StrEnum):
    """How far an attempt had come when it ended."""

    SENDING = "sending"
    WAITING = "waiting"  # every byte left, no final head yet
    READING = "reading"  # the final head came, the body did not end


class Answered(Struct, frozen=True):
    """A whole, well-framed final response."""

    response: Response


class NotSent(Struct, frozen=True):
    """No byte of the request left: it is certain that the platform did not act."""

    reason: NotSentReason
    detail: str = ""
    retry_after_ms: int | None = None


class MaybeSent(Struct, frozen=True):
    """At least one byte left and no whole answer came: the platform may have acted.

    `status` is that of a final head that was read before the body broke.
    """

    reason: MaybeSentReason
    phase: Phase
    detail: str = ""
    status: int | None = None


WireResult = Answered | NotSent | MaybeSent


def values(headers: Headers, name: bytes) -> list[bytes]:
    """Each value of the field `name` (lower case), in order, blanks around it stripped."""
    size = len(name)
    # Lengths are compared first, since most fields differ in them and a call looks a dozen names up.
    return [value.strip(b" \t") for field, value in headers if len(field) == size and field.lower() == name]


def first(headers: Headers, name: bytes) -> bytes | None:
    """The first value of the field `name` (lower case), or None where it is absent."""
    size = len(name)
    for field, value in headers:
        if len(field) == size and field.lower() == name:
            return value.strip(b" \t")
    return None


def without(headers: Headers, *names: bytes) -> Headers:
    """`headers` less every field whose lower-case name is in `names`."""
    return tuple([field for field in headers if field[0].lower() not in names])
