"""Request heads: what is refused, and what of it travels on (contract H1, H4, H5, H9).

An own scanner instead of httptools, which takes what must be refused here: two Host fields, absolute targets,
`Transfer-Encoding: gzip, chunked`, HTTP/0.9, blanks around the target (docs/decisions/0007).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from proxy.core.http import RequestHead
from proxy.wire.fields import (
    HEADER_COUNT_MAX,
    HOP_BY_HOP,
    BadFields,
    is_ours,
    list_members,
    names_ours,
    scan_fields,
)

HEAD_BYTES_MAX = 65_536
TARGET_BYTES_MAX = 16_384
METHOD_BYTES_MAX = 32

_LINE = re.compile(rb"([A-Z][A-Z0-9_\-]{0,31}) ([\x21-\x7e]++) HTTP/1\.([01])\r\n")
# What a platform's own decoding could turn into a dot segment: slashes raw, encoded or reversed around it,
# dots raw or encoded, and a path parameter behind it ("..;x", which servlet containers strip).
_DOT_SEGMENT = re.compile(
    rb"(?:^|[/\\]|%2f|%5c)(?:\.|%2e){1,2}(?=[/\\;]|%2f|%5c|%3b|$)",
    re.IGNORECASE,
)
_HOST = re.compile(rb"(?:[A-Za-z0-9\-._~!$&'()*+,;=%]*+|\[[0-9A-Fa-f:.]++\])(?::[0-9]{0,5})?")
_LENGTH = re.compile(rb"[0-9]{1,18}")
_STARTS_REQUEST = re.compile(rb"[!-~]|\r\n?")

_SPECIAL = HOP_BY_HOP | {b"host", b"content-length", b"expect"}


class HeadRefused(Exception):
    """A request that is answered by the wire itself, and its connection closed.

    Args: field: the header to blame, if it is one.
    """

    def __init__(self, status: int, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.field = field


@dataclass(slots=True)
class ParsedHead:
    """A request head that is fit to be looked at.

    `head.headers` are the end-to-end fields only: no Host, no framing, no `Safepost-*`.
    `body_length` is None for chunked, 0 without a body.
    """

    head: RequestHead
    body_length: int | None
    has_body_framing: bool
    keep_alive: bool
    expects_continue: bool


@dataclass(frozen=True, slots=True)
class HeadLimits:
    """Sizes past which a head is refused: 431, for the target 414."""

    head_bytes_max: int = HEAD_BYTES_MAX
    target_bytes_max: int = TARGET_BYTES_MAX
    header_count_max: int = HEADER_COUNT_MAX


def head_end(data: bytes, scanned: int, limits: HeadLimits) -> int:
    """Where the head at the start of `data` ends, just past its empty line; -1 while it is incomplete.

    Args: scanned: how much of `data` earlier calls have seen.
    Raises: HeadRefused as soon as the bytes can't become a head, so that no sender waits for a time limit.
    """
    end = data.find(b"\r\n\r\n", max(0, scanned - 3))
    if 0 <= end <= limits.head_bytes_max - 4:
        return end + 4
    if end >= 0 or len(data) > limits.head_bytes_max:
        if data.find(b"\r\n", 0, limits.target_bytes_max + METHOD_BYTES_MAX + 12) < 0:
            raise _target_too_long(limits)
        raise HeadRefused(431, f"the request's headers are larger than {limits.head_bytes_max} bytes")
    if not _STARTS_REQUEST.match(data):
        spoken = "TLS" if data[:1] == b"\x16" else "something that is not HTTP"
        raise HeadRefused(400, f"the connection speaks {spoken} to a plain HTTP/1.1 port")
    if data.count(b"\n", scanned) != data.count(b"\r\n", max(0, scanned - 1)):
        raise HeadRefused(400, "the request's head holds a bare LF")
    line_max = limits.target_bytes_max + METHOD_BYTES_MAX + 12
    if len(data) > line_max and data.find(b"\r\n", 0, line_max) < 0:
        raise _target_too_long(limits)
    return -1


def _target_too_long(limits: HeadLimits) -> HeadRefused:
    return HeadRefused(414, f"the request's target is longer than {limits.target_bytes_max} bytes")


def parse_request_head(raw: bytes, limits: HeadLimits, protected: frozenset[bytes]) -> ParsedHead:
    """The head `raw`, which ends in its empty line.

    Args: protected: lower-case names that `Connection` must not name (the key's header, H9).
    Raises: HeadRefused.
    """
    line = _LINE.match(raw)
    if line is None:
        raise _line_refused(raw)
    method, target, minor = line.groups()
    check_target(method, target, limits)
    try:
        fields = scan_fields(raw, line.end(), len(raw) - 4)
        if len(fields) > limits.header_count_max:
            raise HeadRefused(431, f"the request has more than {limits.header_count_max} header lines")
        kept: list[tuple[bytes, bytes]] = []
        special: list[tuple[bytes, bytes]] = []
        may_be_ours = names_ours(raw)
        for field in fields:
            low = field[0].lower()
            if low in _SPECIAL:
                special.append((low, field[1]))
            elif not may_be_ours or not is_ours(low):
                kept.append(field)
        return _framed(method, target, minor == b"1", special, kept, protected)
    except BadFields as bad:
        raise HeadRefused(400, str(bad), bad.field) from bad


def check_target(method: bytes, target: bytes, limits: HeadLimits) -> None:
    """Refuse every target that is not a plain path on this one platform (H4, H9).

    Raises: HeadRefused.
    """
    if len(target) > limits.target_bytes_max:
        raise _target_too_long(limits)
    if method == b"CONNECT":
        raise HeadRefused(400, "CONNECT is not served: this is no open proxy")
    if target[0] != 0x2F:
        if target == b"*" and method == b"OPTIONS":
            return
        raise HeadRefused(400, "the request's target must be a path (/...), not a URL, an authority or *")
    if b"#" in target:
        raise HeadRefused(400, "the request's target holds a fragment (#)")
    path = target.partition(b"?")[0]
    if (b"." in path or b"%" in path) and _DOT_SEGMENT.search(path):
        raise HeadRefused(400, "the request's path holds a dot segment (. or .., also encoded)")
    if b"\\" in path:
        raise HeadRefused(400, "the request's path holds a backslash")


def _line_refused(raw: bytes) -> HeadRefused:
    line = raw.partition(b"\r\n")[0]
    if raw.startswith(b"PRI * HTTP/2.0\r\n"):
        return HeadRefused(400, "HTTP/2 is not served here; speak HTTP/1.1")
    if b"\n" in line or b"\r" in line or b"\0" in line:
        return HeadRefused(400, "the request line holds a bare CR, LF or NUL")
    parts = line.split(b" ")
    if len(parts) != 3:
        return HeadRefused(400, "the request line must be: METHOD, one blank, target, one blank, HTTP/1.1")
    if not re.fullmatch(rb"[A-Z][A-Z0-9_\-]{0,31}", parts[0]):
        return HeadRefused(400, "the method must be upper-case letters, at most 32 bytes")
    if not re.fullmatch(rb"[\x21-\x7e]+", parts[1]):
        return HeadRefused(400, "the request's target holds a control or non-ASCII byte; percent-encode it")
    return HeadRefused(400, "the protocol version must be HTTP/1.1 or HTTP/1.0")


def _framed(
    method: bytes,
    target: bytes,
    is_11: bool,
    special: list[tuple[bytes, bytes]],
    kept: list[tuple[bytes, bytes]],
    protected: frozenset[bytes],
) -> ParsedHead:
    lengths: list[bytes] = []
    codings: list[bytes] = []
    hosts: list[bytes] = []
    options: list[bytes] = []
    expects_continue = False
    for name, value in special:
        if name == b"host":
            hosts.append(value)
        elif name == b"content-length":
            lengths.append(value)
        elif name == b"connection":
            options += list_members(value)
        elif name == b"transfer-encoding":
            codings.append(value)
        elif name == b"expect" and is_11:
            if value.lower() != b"100-continue":
                raise HeadRefused(417, "the only expectation met here is 100-continue", "Expect")
            expects_continue = True
    _check_host(hosts, is_11)
    body_length = _body_length(lengths, codings, is_11)
    named: set[bytes] = set(options)
    if not named.isdisjoint(protected):
        lost = next(option for option in options if option in protected).decode("ascii")
        raise HeadRefused(400, f"Connection must not name {lost}: it would be lost on the way", "Connection")
    if named - _HARMLESS_OPTIONS:
        kept = [field for field in kept if field[0].lower() not in named]
    return ParsedHead(
        RequestHead(method, target, tuple(kept), 1 if is_11 else 0),
        body_length,
        bool(lengths or codings),
        is_11 and b"close" not in named,
        expects_continue,
    )


_HARMLESS_OPTIONS = frozenset((b"close", b"keep-alive", b"upgrade", b"http2-settings", b"te"))


def _check_host(hosts: list[bytes], is_11: bool) -> None:
    if len(hosts) != 1:
        if hosts or is_11:
            found = "none" if not hosts else str(len(hosts))
            raise HeadRefused(400, f"a request needs exactly one Host header, found {found}", "Host")
    elif not _HOST.fullmatch(hosts[0]):
        raise HeadRefused(400, "the Host header is not host or host:port", "Host")


def _body_length(lengths: list[bytes], codings: list[bytes], is_11: bool) -> int | None:
    if codings:
        if lengths:
            raise HeadRefused(400, "both Transfer-Encoding and Content-Length are set", "Transfer-Encoding")
        if not is_11:
            raise HeadRefused(400, "HTTP/1.0 has no Transfer-Encoding", "Transfer-Encoding")
        if len(codings) > 1 or codings[0].lower() != b"chunked":
            raise HeadRefused(400, "the only transfer coding taken is chunked, once", "Transfer-Encoding")
        return None
    if not lengths:
        return 0
    if len(lengths) > 1:
        raise HeadRefused(400, "Content-Length is set more than once", "Content-Length")
    if not _LENGTH.fullmatch(lengths[0]):
        raise HeadRefused(400, "Content-Length must be decimal digits only", "Content-Length")
    return int(lengths[0])
