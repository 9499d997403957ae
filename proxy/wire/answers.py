"""Reading the platform's answers, without I/O: heads, interim answers, framing, trailers.

What must not be guessed about (chunked together with a length, two lengths, an unknown coding, a bare LF) is
garbage: the platform acted or not, nobody can say (R2, O-23).
"""

from __future__ import annotations

import re

from proxy.core.http import Headers
from proxy.wire.answer_head import is_bodyless
from proxy.wire.bodies import BadBody, BodyDecoder, ChunkedDecoder, CloseDecoder, LengthDecoder
from proxy.wire.fields import (
    ANSWER_FRAMING,
    PSEUDONYM,
    BadFields,
    end_to_end,
    is_ours,
    list_members,
    scan_fields,
)

_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: ([\t\x20-\x7e\x80-\xff]*+))?\r\n")
_BEGINS = b"HTTP/1."
_LENGTH = re.compile(rb"[0-9]{1,18}")
_INTERIM_MAX = 32
"""Interim answers before the final one; more than any server sends, fewer than a flood."""

_VIA_11 = (b"Via", b"1.1 " + PSEUDONYM)
_VIA_10 = (b"Via", b"1.0 " + PSEUDONYM)
_NO_NAMES: frozenset[bytes] = frozenset()
_USUAL_OPTIONS = frozenset((b"close", b"keep-alive"))


class BadAnswer(Exception):
    """Bytes that are no HTTP answer, or one that must not be guessed about."""


class AnswerTooLarge(Exception):
    """A head past our limit."""


class AnswerReader:
    """Reads one final answer to one request; `feed` it whatever comes, cut anywhere."""

    __slots__ = (
        "_buffer",
        "_decoder",
        "_head_bytes_max",
        "_interims_seen",
        "_method",
        "_scanned",
        "body_length",
        "headers",
        "interims",
        "is_bodyless",
        "is_whole",
        "keeps_alive",
        "reason",
        "status",
    )

    def __init__(self, method: bytes, head_bytes_max: int) -> None:
        self._method = method
        self._head_bytes_max = head_bytes_max
        self._buffer = b""
        self._scanned = 0
        self._decoder: BodyDecoder | None = None
        self._interims_seen = 0
        self.interims: list[tuple[int, Headers]] = []
        """1xx answers other than 100 that wait to be passed on."""
        self.status: int | None = None
        """The final head's; None until it came."""
        self.reason = b""
        self.headers: Headers = ()
        self.body_length: int | None = None
        self.is_bodyless = False
        self.is_whole = False
        self.keeps_alive = False

    @property
    def trailers(self) -> Headers:
        return () if self._decoder is None else self._decoder.trailers

    def feed(self, data: bytes) -> list[bytes]:
        """The body pieces in `data`.

        Raises: BadAnswer, AnswerTooLarge.
        """
        decoder = self._decoder
        if decoder is None:
            if self._buffer:
                data = self._buffer + data
                self._buffer = b""
            at = self._heads(data)
            decoder = self._decoder
            if decoder is None:
                if self.is_whole:
                    self._past_the_end(data[at:])
                    return []
                self._buffer = data[at:]
                return []
            data = data[at:]
        try:
            pieces, rest = decoder.feed(data)
        except BadBody as bad:
            raise BadAnswer(str(bad)) from bad
        self.is_whole = decoder.is_whole
        if rest:
            self._past_the_end(rest)
        return pieces

    def end(self) -> bool:
        """The connection ended. True where that makes the answer whole (its body ran until close)."""
        if isinstance(self._decoder, CloseDecoder):
            self.is_whole = self._decoder.is_whole = True
        return self.is_whole

    def _past_the_end(self, rest: bytes) -> None:
        """Bytes behind an answer belong to nobody: the connection must not carry another call."""
        if rest:
            self.keeps_alive = False

    def _heads(self, data: bytes) -> int:
        """Take heads off until the final one; where the unread rest of `data` begins."""
        at = 0
        while self.status is None:
            end = data.find(b"\r\n\r\n", at + max(0, self._scanned - 3))
            if end < 0:
                self._scanned = len(data) - at
                self._check_begun(data, at)
                return at
            if end - at > self._head_bytes_max:
                raise AnswerTooLarge
            self._scanned = 0
            self._head(data[at : end + 4])
            at = end + 4
        return at

    def _check_begun(self, data: bytes, at: int) -> None:
        size = len(data) - at
        if size > self._head_bytes_max:
            raise AnswerTooLarge
        begun = data[at : at + len(_BEGINS)]
        if not _BEGINS.startswith(begun):
            raise BadAnswer("the bytes are no HTTP/1.x answer")

    def _head(self, raw: bytes) -> None:
        line = _STATUS_LINE.match(raw)
        if line is None:
            raise BadAnswer("the status line is malformed")
        status = int(line[2])
        try:
            fields = scan_fields(raw, line.end(), len(raw) - 4)
            if status < 200:
                self._interim(status, fields)
            else:
                self._final(status, line[1] == b"1", line[3] or b"", fields)
        except BadFields as bad:
            raise BadAnswer(f"the answer's head is malformed: {bad}") from bad

    def _interim(self, status: int, fields: list[tuple[bytes, bytes]]) -> None:
        if status == 101:
            raise BadAnswer("the platform switched protocols unasked")
        self._interims_seen += 1
        if self._interims_seen > _INTERIM_MAX:
            raise BadAnswer("the platform sent too many interim answers")
        if status != 100:
            named = _options([value for name, value in fields if name.lower() == b"connection"])
            self.interims.append((status, tuple(end_to_end(fields, named))))

    def _final(self, status: int, is_11: bool, reason: bytes, fields: list[tuple[bytes, bytes]]) -> None:
        lengths: list[bytes] = []
        codings: list[bytes] = []
        options: list[bytes] = []
        kept: list[tuple[bytes, bytes]] = []
        for field in fields:
            low = field[0].lower()
            if low not in ANSWER_FRAMING:
                if not is_ours(low):
                    kept.append(field)
            elif low == b"content-length":
                lengths.append(field[1])
            elif low == b"transfer-encoding":
                codings.append(field[1])
            elif low == b"connection":
                options.append(field[1])
        named = _options(options)
        self.keeps_alive = is_11 and b"close" not in named
        if named - _USUAL_OPTIONS:
            kept = end_to_end(kept, named)
        self.is_bodyless = is_bodyless(self._method, status)
        if self.is_bodyless:
            self.body_length = 0
            self.is_whole = True
            # A HEAD or 304 may say how long the GET's body would be (O-27).
            kept += [(b"Content-Length", length) for length in lengths[:1] if _LENGTH.fullmatch(length)]
        else:
            self._decoder = self._body_decoder(lengths, codings, is_11)
            self.is_whole = self._decoder.is_whole
        kept.append(_VIA_11 if is_11 else _VIA_10)
        self.headers = tuple(kept)
        self.reason = reason
        self.status = status

    def _body_decoder(self, lengths: list[bytes], codings: list[bytes], is_11: bool) -> BodyDecoder:
        if codings:
            if lengths:
                raise BadAnswer("the answer has both Transfer-Encoding and Content-Length")
            if not is_11 or len(codings) > 1 or codings[0].lower() != b"chunked":
                raise BadAnswer("the answer's transfer coding is not chunked, once, in HTTP/1.1")
            return ChunkedDecoder()
        if not lengths:
            self.keeps_alive = False
            return CloseDecoder()
        if any(length != lengths[0] for length in lengths) or not _LENGTH.fullmatch(lengths[0]):
            raise BadAnswer("the answer's Content-Length is not one number")
        self.body_length = int(lengths[0])
        return LengthDecoder(self.body_length)


def _options(values: list[bytes]) -> frozenset[bytes]:
    if not values:
        return _NO_NAMES
    return frozenset(member for value in values for member in list_members(value))
