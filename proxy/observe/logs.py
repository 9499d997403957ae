"""Log lines (M3): one flat object a line for machines, or a readable line for terminals.

Only the fields that a caller of `line` names can be in a line, and none of them is ever a body or a header.
Texts that came from outside are masked where they look like a card number or an e-mail address. Rendering is
our own: structlog with the same JSON encoder takes 6.8 us a line, this about 2 (docs/decisions/0009).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import IntEnum
from functools import lru_cache
from zlib import crc32

import msgspec

from proxy.core import keys
from proxy.observe.lines import LineWriter
from proxy.ports import Clock

Value = str | int | float | bool | None
TEXT_MAX = 1_000  # characters of one field; what is longer is cut and says so


class Level(IntEnum):
    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40


_NAMES = {level: level.name.lower() for level in Level}
_COLOURS = {Level.DEBUG: "2", Level.INFO: "32", Level.WARNING: "33", Level.ERROR: "31;1"}
_encode = msgspec.json.Encoder().encode


class Line(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A line that is written for every call or attempt, so that its shape is fixed and quick to write.

    The first four are the log's own.
    """

    time: str = ""
    level: str = ""
    event: str = ""
    worker: int | None = None
    request_id: str = ""
    trace_id: str = ""
    operation: str | None = None
    route: str = ""
    key: str | None = None
    status: int | None = None


class CallLine(Line, kw_only=True, omit_defaults=True):
    """One call (M3). `overhead_ms`: of its duration, what was not spent waiting."""

    method: str = ""
    knowledge: str = ""
    code: str | None = None
    attempts: int = 0
    replayed: bool = False
    duration_ms: float = 0.0
    overhead_ms: float = 0.0


class AttemptLine(Line, kw_only=True, omit_defaults=True):
    """One attempt (M3). `duration_ms` None: it never began."""

    attempt: int = 0
    outcome: str = ""
    reason: str = ""
    cause: str = ""
    duration_ms: float | None = None


masked = lru_cache(maxsize=4_096)(keys.masked)
"""The same few texts are in many lines."""


@dataclass(slots=True)
class Log:
    """Writes lines of at least `level`. `is_text`: for people, with colours if the descriptor is a terminal."""

    writer: LineWriter
    clock: Clock
    level: Level
    is_text: bool
    is_coloured: bool = False
    worker: int | None = None
    successes: float = 1.0
    """The share of plain successes that is written."""
    _second: int = -1
    _stamp: str = ""

    def line(self, level: Level, event: str, fields: Mapping[str, Value]) -> None:
        """Write one line. Fields that are None or empty are left out; times and levels are added."""
        if level < self.level:
            return
        time = self._time()
        if self.is_text:
            self.writer.put(self._as_text(time, level, event, fields))
            return
        told: dict[str, Value] = {"time": time, "level": _NAMES[level], "event": event}
        if self.worker is not None:
            told["worker"] = self.worker
        told |= {name: value for name, value in fields.items() if value is not None and value != ""}
        try:
            text = _encode(told)
        except UnicodeEncodeError:
            text = _encode({name: _clean(value) for name, value in told.items()})
        self.writer.put(text + b"\n")

    def record(self, level: Level, event: str, record: Line) -> None:
        """Write a line of a fixed shape. The caller has asked whether `level` is written at all."""
        if self.is_text:
            fields: dict[str, Value] = msgspec.structs.asdict(record)
            self.writer.put(self._as_text(self._time(), level, event, fields))
            return
        record.time, record.level, record.event = self._time(), _NAMES[level], event
        record.worker = self.worker
        try:
            text = _encode(record)
        except UnicodeEncodeError:
            text = _encode({name: _clean(value) for name, value in msgspec.structs.asdict(record).items()})
        self.writer.put(text + b"\n")

    def leaves_out(self, level: Level, request_id: str, status: int | None, *, n: int) -> bool:
        """Whether a line is not written because it tells of a plain success, and these are sampled.

        By the request id, so that a call's line and its attempt's go together, in every process.

        Args: n: the attempt, or how many the call has had.
        """
        if (
            self.successes >= 1
            or level is not Level.INFO
            or n > 1
            or status is None
            or not 200 <= status < 400
        ):
            return False
        return crc32(request_id.encode("utf-8", "surrogatepass")) >= self.successes * 2**32

    def _time(self) -> str:
        """RFC 3339 in UTC. The part down to the second is made once a second."""
        now_ms = self.clock.wall_ms()
        second, rest = divmod(now_ms, 1000)
        if second != self._second:
            self._second = second
            self._stamp = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        return f"{self._stamp}.{rest:03d}Z"

    def _as_text(self, time: str, level: Level, event: str, fields: Mapping[str, Value]) -> bytes:
        shown = " ".join(
            f"{name}={_word(value)}" for name, value in fields.items() if value is not None and value != ""
        )
        name = f"{level.name:<7}"
        if self.is_coloured:
            name = f"\x1b[{_COLOURS[level]}m{name}\x1b[0m"
            event = f"\x1b[1m{event}\x1b[0m"
        return f"{time[11:23]} {name} {event} {shown}\n".encode("utf-8", "backslashreplace")


def _clean(value: Value) -> Value:
    """A caller's bytes that are no UTF-8 were kept as lone surrogates; they become escapes (O-38)."""
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def _word(value: Value) -> str:
    """One word of a readable line: no text from outside can break the line or colour the terminal."""
    if not isinstance(value, str):
        return str(value)
    if value.isalnum() and value.isascii():
        return value
    shown = "".join(_shown(char) for char in value)
    return f'"{shown}"' if " " in shown or not shown else shown


def _shown(char: str) -> str:
    return f"\\{char}" if char in '"\\' else char if char.isprintable() else ascii(char)[1:-1]


def cut(text: str) -> str:
    """`text`, shortened where it is longer than a field may be."""
    return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}... ({len(text)} characters)"


def is_terminal(fd: int) -> bool:
    try:
        return os.isatty(fd) and "NO_COLOR" not in os.environ
    except OSError:
        return False
