"""What a preset file may hold: one platform's rules as data, each number with its source (F4).

A number is written `{value: 7d, source: "where it says so", read: 2026-11-29}`; a table of outcomes names its
source once, and a row may name its own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

from proxy.config.rules import Choice, DottedPath, Duration, Flag, Kind, Number, Schema, Text, Unfit, Whole
from proxy.config.sections import HeaderName, HeaderNameOrNone, Section, setting
from proxy.core.model import Outcome
from proxy.core.rules import ErrorShape, Jitter, Replay, Shape, StatusRule


class NextStep(StrEnum):
    """What may follow a lookup that settles nothing (U9). Only the list sweep runs by itself."""

    SAME_KEY_REPEAT = "same_key_repeat"
    UNDO_BY_KEY = "undo_by_key"
    LIST_SWEEP = "list_sweep"
    PERSON = "person"


_SOURCE_MIN = 3  # characters: a dash or a dot is no source


@dataclass(frozen=True, kw_only=True)
class Sourced(Kind):
    """A number with its source and the date on which that was read."""

    kind: Kind

    def expected(self) -> str:
        source = f"TEXT of {_SOURCE_MIN} characters or more"
        return f"{{value: {self.kind.expected()}, source: {source}, read: YYYY-MM-DD}}"

    def read(self, value: object) -> object:
        if not isinstance(value, dict):
            raise Unfit
        for name in sorted(set(value) ^ {"value", "source", "read"}):
            raise Unfit(at=name)
        if not _is_source(value["source"]):
            raise Unfit(at="source")
        if not _is_date(value["read"]):
            raise Unfit(at="read")
        try:
            return self.kind.read(value["value"])
        except Unfit:
            raise Unfit(at="value") from None

    def schema(self) -> Schema:
        return {
            "type": "object",
            "properties": {
                "value": self.kind.schema(),
                "source": {"type": "string"},
                "read": {"type": "string", "format": "date"},
            },
            "required": ["value", "source", "read"],
            "additionalProperties": False,
        }


def _is_source(value: object) -> bool:
    return isinstance(value, str) and len(value.strip()) >= _SOURCE_MIN


def _is_date(value: object) -> bool:
    if not isinstance(value, str):
        return False
    try:
        date.fromisoformat(value)
    except ValueError:
        return False
    return True


class ReadDate(Kind):
    def expected(self) -> str:
        return "a date, YYYY-MM-DD"

    def read(self, value: object) -> str:
        if not _is_date(value):
            raise Unfit
        return str(value)

    def schema(self) -> Schema:
        return {"type": "string", "format": "date"}


@dataclass(frozen=True, kw_only=True)
class Statuses(Kind):
    """HTTP statuses: `409`, `2xx`, `400-499`, or a list of such."""

    def expected(self) -> str:
        return "HTTP statuses such as 409, 2xx, 500-599 or a list of them"

    def read(self, value: object) -> frozenset[int]:
        items = value if isinstance(value, list) else [value]
        found: set[int] = set()
        for item in items:
            found |= self._of(item)
        if not found:
            raise Unfit
        return frozenset(found)

    def _of(self, item: object) -> set[int]:
        text = str(item) if isinstance(item, int | str) and not isinstance(item, bool) else ""
        if re.fullmatch(r"[1-5]xx", text):
            return set(range(int(text[0]) * 100, int(text[0]) * 100 + 100))
        span = re.fullmatch(r"([1-5][0-9]{2})(?:-([1-5][0-9]{2}))?", text)
        if span is None or int(span[2] or span[1]) < int(span[1]):
            raise Unfit
        return set(range(int(span[1]), int(span[2] or span[1]) + 1))

    def schema(self) -> Schema:
        one = {"type": ["integer", "string"]}
        return {"anyOf": [one, {"type": "array", "items": one}]}


class StatusMeaning(Kind):
    """What an object's status means for the operation: `open`, `final` or `failure`."""

    def expected(self) -> str:
        return "open (not final), final, or failure (final, nothing happened)"

    def read(self, value: object) -> StatusRule:
        if value not in ("open", "final", "failure"):
            raise Unfit
        return StatusRule(is_final=value != "open", is_failure=value == "failure")

    def schema(self) -> Schema:
        return {"enum": ["open", "final", "failure"]}


def _names(value: Any) -> Any:
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list) or not all(isinstance(item, str) and item for item in items):
        raise PydanticCustomError("expected", "{expected}", {"expected": "a name, or a list of names"})
    return tuple(items)


def _names_or_none(value: Any) -> Any:
    return None if value is None else _names(value)


def _with(variable: str) -> str:
    """The pattern of a path that holds this variable once, and no other."""
    return rf"/[!-z|~]*\{{{variable}\}}[!-z|~]*"


Names = Annotated[tuple[str, ...], BeforeValidator(_names)]
Line = Annotated[str, Text()]
LineOrNone = Annotated[str | None, Text(nullable=True)]
PathInto = Annotated[tuple[str, ...], DottedPath()]
FlagValue = Annotated[bool, Flag()]
FlagOrNone = Annotated[bool | None, Flag(nullable=True)]
SourcedDuration = Annotated[int, Sourced(kind=Duration())]
SourcedDurationOrNone = Annotated[int | None, Sourced(kind=Duration(), nullable=True)]
SourcedWait = Annotated[int, Sourced(kind=Duration(low="0s"))]
StatusSet = Annotated[frozenset[int], Statuses()]
PathTemplate = Annotated[str, Text(what="a path template such as /v1/payments/{id}", pattern="/[!-~]*")]
PathTemplateOrNone = Annotated[
    str | None, Text(what="a path template such as /v1/payments/{id}", pattern="/[!-~]*", nullable=True)
]
# A lookup that asks the same for each operation would settle one by the answer for another.
LookupById = Annotated[
    str | None,
    Text(what="a path with {id} in it, such as /v1/payments/{id}", pattern=_with("id"), nullable=True),
]
LookupByNumber = Annotated[
    str | None,
    Text(
        what="a path with {number} in it, such as /v1/payments?no={number}",
        pattern=_with("number"),
        nullable=True,
    ),
]
Target = Annotated[str, Text(what="a path such as /v1/refunds?status=processing", pattern="/[!-z|~]*")]


class KeyPreset(Section):
    header: HeaderName
    length_max: Annotated[int, Sourced(kind=Whole(low=1, high=1000))]
    unquote: FlagValue = False


class ErrorPreset(Section):
    shape: Annotated[ErrorShape, Choice(of=ErrorShape)]
    code: PathInto
    related_id: PathInto = setting(default="")


class RetryPreset(Section):
    attempts: Annotated[int, Sourced(kind=Whole(low=1, high=10))]
    attempt_timeout: SourcedDuration
    attempt_timeout_min: SourcedDurationOrNone = None
    base: SourcedWait
    multiplier: Annotated[float, Sourced(kind=Number(low=1, high=10))]
    cap: SourcedWait
    jitter: Annotated[Jitter, Choice(of=Jitter)]
    jitter_max: SourcedWait
    deadline: SourcedDuration


class ReadsPreset(Section):
    attempts: Annotated[int, Sourced(kind=Whole(low=1, high=10))]
    attempt_timeout: SourcedDuration
    statuses: Annotated[frozenset[int] | None, Sourced(kind=Statuses(), nullable=True)] = None


class ObjectPreset(Section):
    id: PathInto
    status: PathInto = setting(default="")
    statuses: dict[str, Annotated[StatusRule, StatusMeaning()]] = setting(default_factory=dict)
    number: PathInto = setting(default="")
    version: PathInto = setting(default="")
    attempt_count: PathInto = setting(default="")
    failure_attempt_id: PathInto = setting(default="")
    resolution_status: PathInto = setting(default="")
    any_is_executed: FlagValue = False
    numeric: FlagValue = False


class LookupPreset(Section):
    by_id: LookupById = None
    by_number: LookupByNumber = None
    list: PathInto = setting(default="")
    absent_statuses: Annotated[frozenset[int] | None, Sourced(kind=Statuses(), nullable=True)] = None
    timeout: SourcedDuration


class RowPreset(Section):
    """One row of an outcome table; the first that fits decides (R3)."""

    status: StatusSet
    code: Annotated[tuple[str, ...] | None, BeforeValidator(lambda v: None if v is None else _names(v))] = (
        None
    )
    body: Annotated[Shape, Choice(of=Shape)] = setting(default="any")
    final: FlagOrNone = None
    after_doubt: FlagOrNone = None
    header: Annotated[
        str | None, Text(what="NAME: VALUE", pattern=r"[!#-'*+.^_`|~0-9A-Za-z-]+: [!-~]+", nullable=True)
    ] = None
    outcome: Annotated[Outcome, Choice(of=Outcome)]
    retry: FlagOrNone = None
    passes: FlagValue = False
    means: LineOrNone = None
    source: LineOrNone = None
    read: Annotated[str | None, ReadDate(nullable=True)] = None


class OutcomeTable(Section):
    source: Line
    read: Annotated[str, ReadDate()]
    rows: list[RowPreset]


class RoutePreset(Section):
    """A guarded route. `key_template` null: keys can't be made for it."""

    method: Annotated[str, Text(what="POST, PUT, PATCH or DELETE", pattern="POST|PUT|PATCH|DELETE")] = "POST"
    path: PathTemplateOrNone = None
    key_template: LineOrNone = None
    injectable: FlagValue = True
    fields: Annotated[tuple[str, ...], BeforeValidator(_names)] = setting(default_factory=list)
    subject: LineOrNone = None
    twin: LineOrNone = None
    amount: PathInto = setting(default="")
    currency: PathInto = setting(default="")
    object: Line
    lookup: LineOrNone = None
    outcomes: Names
    guard: FlagValue = True
    replay: Annotated[Replay, Choice(of=Replay)] = setting(default="forward")
    acts_on_existing: FlagValue = False
    tracked: FlagValue = True
    polled_while_pending: FlagValue = True
    unique_beyond_key: FlagValue
    body_required: FlagValue = True
    fresh_connection: FlagValue = False


class EventsPreset(Section):
    object: PathInto
    type: PathInto = setting(default="type")
    id: PathInto = setting(default="id")
    kinds: dict[str, Line]


class Preset(Section):
    """One platform. `own_routes`: the rules of routes that the configuration itself names."""

    name: Annotated[
        str, Text(what="a name of a-z, 0-9, - and _, at most 40 characters", pattern=r"[a-z0-9_-]{1,40}")
    ]
    version: Line
    title: Line
    key: KeyPreset
    error: ErrorPreset
    card_fields: Names = setting(default_factory=list)
    signed: FlagValue = False
    signature_window: SourcedDurationOrNone = None
    should_retry_header: HeaderNameOrNone = None
    second_key_executes: FlagValue
    retention: SourcedDuration
    lookup_lag: SourcedDuration
    lookup_interval_min: SourcedDuration
    retry: RetryPreset
    reads: ReadsPreset
    objects: dict[str, ObjectPreset]
    lookups: dict[str, LookupPreset] = setting(default_factory=dict)
    outcomes: dict[str, OutcomeTable]
    routes: dict[str, RoutePreset] = setting(default_factory=dict)
    own_routes: RoutePreset | None = None
    events: EventsPreset | None = None
    sweeps: list[Target] = setting(default_factory=list)
    next_steps: list[Annotated[NextStep, Choice(of=NextStep)]] = setting(default_factory=list)
