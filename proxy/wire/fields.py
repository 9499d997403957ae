"""Header fields as bytes: the one scanner for requests, answers and trailers, and what a proxy must drop.

Strict where RFC 9112 lets a recipient be lenient: a field line is `token ":" OWS value CRLF`, nothing else.
No obs-fold, no blank before the colon, no bare CR or LF, no NUL or other control byte. What two readers could
read in two ways is not forwarded (contract H4).
"""

from __future__ import annotations

import re

from proxy.core.http import Headers

PSEUDONYM = b"safepost"
HEADER_COUNT_MAX = 256
"""Field lines in one head. Apache allows 100, Node 2000; 64 KiB of heads bound the cost in any case."""

_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]"
_FIELD = re.compile(rb"(?<=\r\n)(" + _TOKEN + rb"++):[ \t]*+([\t\x20-\x7e\x80-\xff]*+)(?:\r\n|\Z)")
_NAME = re.compile(_TOKEN + rb"++")
is_token = re.compile(_TOKEN + rb"++").fullmatch

HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-authentication-info",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"http2-settings",
    )
)
"""RFC 9110 section 7.6.1, and the older names in use. `Proxy-Status` (RFC 9209) is end-to-end and stays."""

ANSWER_FRAMING = HOP_BY_HOP | {b"content-length"}
REQUEST_FRAMING = ANSWER_FRAMING | {b"host", b"expect"}
"""What the wire writes by itself: dropped from whatever others hand it."""


class BadFields(Exception):
    """A field section that must not be guessed about; the message says which line and why."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


def scan_fields(raw: bytes, start: int, end: int) -> list[tuple[bytes, bytes]]:
    """The field lines of `raw[start:end]`, in order, blanks around the values stripped.

    Args: start: just past a CRLF. end: at the CRLF that ends the last field line, or `start` for none.
    Raises: BadFields.
    """
    if start >= end:
        return []
    found: list[tuple[bytes, bytes]] = _FIELD.findall(raw, start, end)
    # Each match starts at a line's start and holds no CR or LF: as many matches as lines means every line.
    if len(found) != raw.count(b"\r\n", start, end) + 1:
        raise _diagnosis(raw[start:end])
    if raw.find(b" \r\n", start, end + 2) >= 0 or raw.find(b"\t\r\n", start, end + 2) >= 0:
        found = [(name, value.rstrip(b" \t")) for name, value in found]
    return found


def _diagnosis(block: bytes) -> BadFields:
    for number, line in enumerate(block.split(b"\r\n"), start=1):
        if line[:1] in (b" ", b"\t"):
            return BadFields(f"header line {number} is folded over two lines")
        name, colon, value = line.partition(b":")
        if b"\n" in line or b"\r" in line:
            return BadFields(f"header line {number} holds a bare CR or LF")
        if not colon:
            return BadFields(f"header line {number} has no colon")
        if not _NAME.fullmatch(name):
            blank = name.rstrip(b" \t") != name and bool(_NAME.fullmatch(name.rstrip(b" \t")))
            fault = "a blank before its colon" if blank else "a name that is not a token"
            return BadFields(f"header line {number} has {fault}")
        if not re.fullmatch(rb"[\t\x20-\x7e\x80-\xff]*", value):
            return BadFields(f"header line {number} holds a control byte", name.decode("ascii"))
    return BadFields("the header section is malformed")


_USUAL_MEMBERS = frozenset((b"keep-alive", b"close"))
"""What nearly every Connection field holds; read without a look at its parts."""


def list_members(value: bytes) -> list[bytes]:
    """The lower-case members of a comma-separated list of tokens.

    Raises: BadFields where a member is not a token.
    """
    if value in _USUAL_MEMBERS:
        return [value]
    members = [member.strip(b" \t").lower() for member in value.split(b",")]
    members = [member for member in members if member]
    for member in members:
        if not is_token(member):
            raise BadFields("Connection names something that is not a header", "Connection")
    return members


def names_ours(raw: bytes) -> bool:
    """Whether the head `raw` may hold a `Safepost-*` field, which no outsider may set (H1)."""
    return b"safepost-" in raw.lower()


def is_ours(name: bytes) -> bool:
    """Whether the lower-case `name` belongs to the product."""
    return name.startswith(b"safepost-")


def end_to_end(fields: list[tuple[bytes, bytes]], named: frozenset[bytes]) -> list[tuple[bytes, bytes]]:
    """What of an answer's or a trailer's `fields` travels on.

    Nothing hop-by-hop, nothing of ours, no Content-Length, and no field that Connection `named`.
    """
    return [
        field
        for field in fields
        if (low := field[0].lower()) not in ANSWER_FRAMING and low not in named and not is_ours(low)
    ]


def lines(headers: Headers, *, dropped: frozenset[bytes]) -> list[bytes]:
    """`headers` as wire lines without their ends, less those whose lower-case name is in `dropped`."""
    return [b": ".join(field) for field in headers if field[0].lower() not in dropped]


def sealed(head_lines: list[bytes]) -> bytes:
    """The lines as one head with its empty line, once it is sure that there are no more than these (O-42).

    Raises: ValueError where a name or value would have smuggled a line in; nothing may then be sent.
    """
    head = b"\r\n".join(head_lines) + b"\r\n\r\n"
    ends = len(head_lines) + 1
    if head.count(b"\n") != ends or head.count(b"\r") != ends or b"\0" in head:
        raise ValueError("a header name or value holds a line break or a NUL; nothing was sent")
    return head
