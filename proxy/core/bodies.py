"""Bodies as values: JSON read strictly, forms, and all that is neither. The bytes are never altered.

JSON is read by RFC 8259, and more strictly where two readers could differ, since the platform may be the
other one (P3): duplicate member names, NaN and Infinity, bytes that are not UTF-8 and nesting beyond
`DEPTH_MAX` are refused. A byte order mark in front is skipped (section 8.1 allows it). An escaped lone
surrogate is grammatical and kept as it is: a text cut inside an emoji must not stop a payment.
Numbers stay literals.
"""

from __future__ import annotations

import json
import re
from enum import StrEnum
from json import JSONDecodeError
from typing import NoReturn, TypeAlias
from urllib.parse import unquote_to_bytes

from msgspec import Struct

from proxy.core.http import Headers, values
from proxy.core.rules import Path

DEPTH_MAX = 64
"""Containers inside one another; far above what a payment needs, far below what a recursive reader bears."""

_PLAIN_DIGITS_MAX = 40  # a number's text is written out up to here, and as digits and exponent beyond
_EXPONENT_DIGITS_MAX = 4_000  # int() refuses more than 4,300 digits


class Number(Struct, frozen=True):
    """A JSON number by its literal: exact, whatever its size."""

    literal: str

    @property
    def canonical(self) -> str:
        """The same text for the same value: `1`, `1.0` and `10e-1` are `1e0`. No float, no big integer.

        An exponent of more than 4,000 digits is compared as it is written.
        """
        literal = self.literal
        if literal.isdigit():
            digits = literal.rstrip("0")
            return f"{digits}e{len(literal) - len(digits)}" if digits else "0"
        sign = "-" if literal.startswith("-") else ""
        mantissa, _, power = literal.lower().removeprefix("-").partition("e")
        whole, _, fraction = mantissa.partition(".")
        digits = (whole + fraction).lstrip("0")
        if not digits:
            return "0"
        if len(power) > _EXPONENT_DIGITS_MAX:
            return f"x{literal}"
        stripped = digits.rstrip("0")
        exponent = int(power or "0") - len(fraction) + len(digits) - len(stripped)
        return f"{sign}{stripped}e{exponent}"

    @property
    def text(self) -> str:
        """The value as people write it, one text a value: `10000`, `12.5`; digits and exponent where long."""
        canonical = self.canonical
        digits, _, power = canonical.partition("e")
        if not power or canonical.startswith("x") or len(power) > 3:
            return canonical
        exponent, sign = int(power), "-" if digits.startswith("-") else ""
        digits = digits.removeprefix("-")
        if max(len(digits), len(digits) + exponent, -exponent) > _PLAIN_DIGITS_MAX:
            return canonical
        if exponent >= 0:
            return sign + digits + "0" * exponent
        digits = digits.rjust(1 - exponent, "0")
        return f"{sign}{digits[:exponent]}.{digits[exponent:]}"

    @property
    def integer(self) -> int | None:
        """The value where it is an integer below 2**63 in size (what every store holds), else None."""
        if self.literal.isdigit() and len(self.literal) < 19:
            return int(self.literal)
        text = self.text
        if not text.removeprefix("-").isdigit():
            return None
        value = int(text)
        return value if -(2**63) < value < 2**63 else None


Json: TypeAlias = "bool | str | Number | list[Json] | dict[str, Json] | None"


class BodyKind(StrEnum):
    """What a body was read as."""

    JSON = "json"
    FORM = "form"
    EMPTY = "empty"
    OPAQUE = "opaque"


class Parsed(Struct, frozen=True):
    """A body that was read: `root` is {} for an empty or opaque one, `raw` the bytes of an opaque one."""

    kind: BodyKind
    root: Json
    raw: bytes = b""


class Mistake(Struct, frozen=True):
    """Why a body is no JSON that may be trusted: `place` is a JSON pointer, or `body` where none can be told.

    `is_syntax` tells what is not JSON at all from JSON that two readers could read differently. `what` names
    places and member names, never a value.
    """

    place: str
    what: str
    is_syntax: bool = False


class _DuplicateName(ValueError):
    """An object has a member name twice."""


class _NoNumber(ValueError):
    """NaN, Infinity or -Infinity."""


def parse(body: bytes, content_type: bytes | None) -> Parsed | Mistake:
    """Read a guarded call's body (P1, P3).

    What calls itself JSON, or has no content type and starts with `{`, has to be JSON. Under any other type a
    body that starts with `{` is tried as JSON first: several clients send JSON as
    `application/x-www-form-urlencoded` because it is their default. The rest is a form or opaque, never a
    mistake.
    """
    if not body.strip(b" \t\r\n"):
        return Parsed(BodyKind.EMPTY, {})
    media = (content_type or b"").partition(b";")[0].strip().lower()
    is_json = media == b"application/json" or media.endswith(b"+json")
    if is_json or body.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
        value = read_json(body)
        if not isinstance(value, Mistake):
            return Parsed(BodyKind.JSON, value)
        if is_json or not media or not value.is_syntax:
            return value
    if media == b"application/x-www-form-urlencoded":
        return Parsed(BodyKind.FORM, _form(body))
    return Parsed(BodyKind.OPAQUE, {}, body)


def parse_headed(body: bytes, headers: Headers) -> Parsed | Mistake:
    """`parse` with the content type of `headers`; several that differ count as one that is unknown."""
    kinds = set(values(headers, b"content-type"))
    return parse(body, kinds.pop() if len(kinds) == 1 else b"*/*" if kinds else None)


def read_json(body: bytes) -> Json | Mistake:
    """One JSON text, read as the top of this file says."""
    try:
        text = body.removeprefix(b"\xef\xbb\xbf").decode()
    except UnicodeDecodeError as error:
        return Mistake("body", f"is not UTF-8 at byte {error.start}", is_syntax=True)
    if _is_too_deep(body):
        return Mistake("body", f"is nested deeper than {DEPTH_MAX} levels, or its brackets don't match")
    try:
        value: Json = _STRICT.decode(text)
    except _DuplicateName:
        return _duplicate(text)
    except (JSONDecodeError, _NoNumber) as error:
        return _not_json(error)
    return value


def get(parsed: Parsed, path: Path) -> Json:
    """The value at `path`, None where there is none (missing = null, P1)."""
    return at(parsed.root, path)


def at(value: Json, path: Path) -> Json:
    """The member of `value` that `path` leads to, None where there is none; `0` is the first item of a list."""
    for name in path:
        if isinstance(value, dict):
            value = value.get(name)
        elif isinstance(value, list) and _POSITION.fullmatch(name):
            value = value[int(name)] if int(name) < len(value) else None
        else:
            return None
    return value


_POSITION = re.compile(r"0|[1-9][0-9]{0,3}")


def whole_text(value: Json) -> str | None:
    """A text that every store, log and URL takes; None for one cut inside a character, and for what is no text."""
    if not isinstance(value, str) or (not value.isascii() and _SURROGATE.search(value)):
        return None
    return value


_SURROGATE = re.compile("[\\ud800-\\udfff]")


def _members(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise _DuplicateName
    return members


def _no_constant(name: str) -> NoReturn:
    raise _NoNumber(name)


_STRICT = json.JSONDecoder(
    object_pairs_hook=_members, parse_int=Number, parse_float=Number, parse_constant=_no_constant
)


def _not_json(error: JSONDecodeError | _NoNumber) -> Mistake:
    if isinstance(error, _NoNumber):
        return Mistake("body", f"is not valid JSON: {error} is no JSON number", is_syntax=True)
    where = f"line {error.lineno} column {error.colno}"
    return Mistake("body", f"is not valid JSON at {where}: {error.msg}", is_syntax=True)


class _Members(Struct, frozen=True):
    """An object with all its members, also those that share a name."""

    pairs: list[tuple[str, object]]


_KEEPING = json.JSONDecoder(object_pairs_hook=_Members, parse_constant=_no_constant, parse_int=Number)


def _duplicate(text: str) -> Mistake:
    """Where the first repeated member name is: reads again, keeping all members."""
    try:
        root: object = _KEEPING.decode(text)
    except (JSONDecodeError, _NoNumber) as error:
        return _not_json(error)
    return Mistake(_duplicate_place(root) or "body", "is a member name that occurs twice")


def _duplicate_place(value: object) -> str | None:
    if isinstance(value, _Members):
        children = value.pairs
    elif isinstance(value, list):
        children = [(str(index), child) for index, child in enumerate(value)]
    else:
        return None
    names: set[str] = set()
    for name, child in children:
        token = "/" + name.replace("~", "~0").replace("/", "~1")
        below = "" if name in names else _duplicate_place(child)
        if below is not None:
            return token + below
        names.add(name)
    return None


# Strings, whole or cut at the end of the body; possessive, so that no input makes it look twice at a byte.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_TO_ROUND = bytes.maketrans(b"[]", b"{}")
_NO_BRACKET = bytes(set(range(256)) - set(b"[]{}"))


def _is_too_deep(body: bytes) -> bool:
    """Whether containers nest deeper than `DEPTH_MAX`, told before a recursive reader sees them.

    Taking away all innermost pairs of brackets takes away one level.
    """
    if body.count(b"[") + body.count(b"{") <= DEPTH_MAX:
        return False
    brackets = _STRING.sub(b"", body).translate(_TO_ROUND, _NO_BRACKET)
    for _ in range(DEPTH_MAX):
        brackets = brackets.replace(b"{}", b"")
    return bool(brackets)


def _form(body: bytes) -> Json:
    """A form as an object: `a[b]=1` is `{"a": {"b": "1"}}`; values that share a name become a list, in order.

    All values are strings. Percent-encoded bytes that are not UTF-8 are kept as lone surrogates, which no
    UTF-8 text holds. A name that is both a value and a group is a list that ends with the group. A name whose
    brackets don't match, or nest deeper than `DEPTH_MAX`, is taken as it is written.
    """
    root = _Group()
    for pair in body.split(b"&"):
        if pair:
            name, _, value = pair.partition(b"=")
            root.add(_form_path(_form_text(name)), _form_text(value))
    return root.members()


def _form_text(encoded: bytes) -> str:
    return unquote_to_bytes(encoded.replace(b"+", b" ")).decode("utf-8", "surrogateescape")


_FORM_NAME = re.compile(r"([^\[\]]+)((?:\[[^\[\]]*\])+)")


def _form_path(name: str) -> Path:
    match = _FORM_NAME.fullmatch(name)
    if match is None:
        return (name,)
    path = (match[1], *match[2][1:-1].split("]["))
    return path if len(path) <= DEPTH_MAX else (name,)


class _Group:
    """A name of a form: its own values, and the names below it."""

    __slots__ = ("below", "own")

    def __init__(self) -> None:
        self.own: list[Json] = []
        self.below: dict[str, _Group] = {}

    def add(self, path: Path, value: str) -> None:
        group = self
        for name in path:
            group = group.below.setdefault(name, _Group())
        group.own.append(value)

    def members(self) -> Json:
        return {name: group.value() for name, group in self.below.items()}

    def value(self) -> Json:
        if not self.below:
            return self.own[0] if len(self.own) == 1 else self.own
        return [*self.own, self.members()] if self.own else self.members()


def written_json(value: Json) -> str:
    """The value as compact JSON text, numbers by the literals that they came with."""
    if isinstance(value, Number):
        return value.literal
    if isinstance(value, list):
        return f"[{','.join(written_json(item) for item in value)}]"
    if isinstance(value, dict):
        members = (f"{json.dumps(name)}:{written_json(member)}" for name, member in value.items())
        return f"{{{','.join(members)}}}"
    return json.dumps(value)
