"""A second opinion on HTTP/1.1: RFC 9112 read literally, byte by byte, sharing no code with the product.

It takes nothing that could be read in two ways, so that whatever the product lets pass has to be here too, and
has to mean the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

_DIGITS = b"0123456789"
_HEX = b"0123456789abcdefABCDEF"
_ALPHA = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_TCHAR = frozenset(_ALPHA + _DIGITS + b"!#$%&'*+-.^_`|~")
_FIXED_HOPS = frozenset(
    b"connection keep-alive proxy-connection proxy-authenticate proxy-authorization "
    b"proxy-authentication-info te trailer transfer-encoding upgrade http2-settings".split()
)
_FRAMING = frozenset((b"host", b"content-length", b"expect"))


class End(Enum):
    """How a stream of messages ended."""

    CLEAN = "between two messages, or after the last one that this connection may carry"
    CUT = "inside a message"
    BAD = "at something that is no message"


@dataclass(frozen=True, slots=True)
class Message:
    """One message; `start` is its request line or status line without the line end, `size` its bytes."""

    start: bytes
    fields: tuple[tuple[bytes, bytes], ...]
    body: bytes
    size: int
    framing: str = "none"
    """none, length, chunked or close."""

    @property
    def end_to_end(self) -> list[tuple[bytes, bytes]]:
        """Fields that are not for one hop only, names in lower case, in their order."""
        named = {
            one.strip(b" \t").lower()
            for name, value in self.fields
            if name.lower() == b"connection"
            for one in value.split(b",")
        }
        dropped = _FIXED_HOPS | _FRAMING | named
        return [
            (low, value)
            for name, value in self.fields
            if (low := name.lower()) not in dropped and not low.startswith(b"safepost-")
        ]


class _Bad(Exception):
    """No message."""


class _Cut(Exception):
    """The bytes end too early."""


class _Reader:
    def __init__(self, data: bytes, at: int) -> None:
        self.data = data
        self.at = at

    def line(self) -> bytes:
        """Up to CRLF. A CR or LF of its own is no line end and no content."""
        for at in range(self.at, len(self.data)):
            byte = self.data[at]
            if byte == 0x0A:
                raise _Bad
            if byte == 0x0D:
                if at + 1 == len(self.data):
                    raise _Cut
                if self.data[at + 1] != 0x0A:
                    raise _Bad
                line = self.data[self.at : at]
                self.at = at + 2
                return line
        raise _Cut

    def take(self, size: int) -> bytes:
        if len(self.data) - self.at < size:
            raise _Cut
        taken = self.data[self.at : self.at + size]
        self.at += size
        return taken

    def fields(self) -> tuple[tuple[bytes, bytes], ...]:
        found = []
        while line := self.line():
            name, colon, value = line.partition(b":")
            if not colon or not name or any(byte not in _TCHAR for byte in name):
                raise _Bad
            if any((byte < 0x20 and byte != 0x09) or byte == 0x7F for byte in value):
                raise _Bad
            found.append((name, value.strip(b" \t")))
        return tuple(found)

    def chunks(self) -> bytes:
        body = b""
        while True:
            digits, mark, extension = self.line().partition(b";")
            digits = digits.rstrip(b" \t") if mark else digits
            if not digits or any(byte not in _HEX for byte in digits) or len(digits) > 15:
                raise _Bad
            if any((byte < 0x20 and byte != 0x09) or byte == 0x7F for byte in extension):
                raise _Bad
            size = int(digits, 16)
            if not size:
                self.fields()
                return body
            body += self.take(size)
            if self.take(2) != b"\r\n":
                raise _Bad


def _values(fields: tuple[tuple[bytes, bytes], ...], wanted: bytes) -> list[bytes]:
    return [value for name, value in fields if name.lower() == wanted]


def _one_length(values: list[bytes]) -> int:
    if not values[0] or any(byte not in _DIGITS for byte in values[0]) or len(set(values)) > 1:
        raise _Bad
    return int(values[0])


def _request(reader: _Reader) -> tuple[Message, bool]:
    """A request, and whether another one may follow it."""
    began = reader.at
    line = reader.line()
    if not line:
        line = reader.line()
    parts = line.split(b" ")
    if len(parts) != 3 or not parts[0] or any(byte not in _TCHAR for byte in parts[0]):
        raise _Bad
    if parts[2] not in (b"HTTP/1.1", b"HTTP/1.0") or not parts[1]:
        raise _Bad
    if any(not 0x21 <= byte <= 0x7E for byte in parts[1]):
        raise _Bad
    is_11 = parts[2] == b"HTTP/1.1"
    fields = reader.fields()
    if len(_values(fields, b"host")) != 1 and (is_11 or _values(fields, b"host")):
        raise _Bad
    codings, lengths = _values(fields, b"transfer-encoding"), _values(fields, b"content-length")
    framing = "none"
    body = b""
    if codings:
        if lengths or not is_11 or len(codings) != 1 or codings[0].lower() != b"chunked":
            raise _Bad
        body, framing = reader.chunks(), "chunked"
    elif lengths:
        body, framing = reader.take(_one_length(lengths)), "length"
    options = b",".join(_values(fields, b"connection")).lower().split(b",")
    goes_on = is_11 and b"close" not in [option.strip(b" \t") for option in options]
    return Message(line, fields, body, reader.at - began, framing), goes_on


def read_requests(data: bytes) -> tuple[list[Message], End]:
    """The requests that `data` holds from its beginning, and how it ends."""
    found: list[Message] = []
    reader = _Reader(data, 0)
    while reader.at < len(data):
        try:
            message, goes_on = _request(reader)
        except _Bad:
            return found, End.BAD
        except _Cut:
            return found, End.CUT
        found.append(message)
        if not goes_on:
            break
    return found, End.CLEAN


def _status(line: bytes) -> int:
    version, _, rest = line.partition(b" ")
    digits, _, reason = rest.partition(b" ")
    if version not in (b"HTTP/1.1", b"HTTP/1.0") or len(digits) != 3:
        raise _Bad
    if any(byte not in _DIGITS for byte in digits) or digits[:1] in (b"0", b""):
        raise _Bad
    if any((byte < 0x20 and byte != 0x09) or byte == 0x7F for byte in reason):
        raise _Bad
    return int(digits)


def _answer(reader: _Reader, method: bytes, *, at_end: bool) -> Message:
    began = reader.at
    line = reader.line()
    status = _status(line)
    fields = reader.fields()
    codings, lengths = _values(fields, b"transfer-encoding"), _values(fields, b"content-length")
    body, framing = b"", "none"
    if status < 200 or status in (204, 304) or method == b"HEAD":
        return Message(line, fields, b"", reader.at - began)
    if codings:
        if lengths or len(codings) != 1 or codings[0].lower() != b"chunked" or line[:8] != b"HTTP/1.1":
            raise _Bad
        body, framing = reader.chunks(), "chunked"
    elif lengths:
        body, framing = reader.take(_one_length(lengths)), "length"
    elif at_end:
        body, framing = reader.take(len(reader.data) - reader.at), "close"
    else:
        raise _Cut
    return Message(line, fields, body, reader.at - began, framing)


def read_answers(data: bytes, methods: list[bytes], *, at_end: bool) -> tuple[list[Message], End]:
    """The final answers in `data` to requests of these methods; interim ones are passed over.

    Args: at_end: the connection ended with `data`, which is what ends a body without a length.
    """
    found: list[Message] = []
    reader = _Reader(data, 0)
    while reader.at < len(data):
        method = methods[len(found)] if len(found) < len(methods) else b"GET"
        try:
            message = _answer(reader, method, at_end=at_end)
        except _Bad:
            return found, End.BAD
        except _Cut:
            return found, End.CUT
        if not message.start.startswith((b"HTTP/1.1 1", b"HTTP/1.0 1")):
            found.append(message)
    return found, End.CLEAN
