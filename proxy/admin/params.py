"""Query parameters and JSON members, read strictly: what is wrong is named, and what is allowed (A2)."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from datetime import UTC, datetime

from aiohttp import web

from proxy.admin.refusals import Refused
from proxy.core.bodies import Mistake, read_json
from proxy.core.cards import holds_card_number
from proxy.core.model import Knowledge
from proxy.ports import Query

LIMIT_MAX = 1_000
WAIT_MS_MAX = 60_000
BY_MAX = 100
NOTE_MAX = 2_000
MS_DIGITS = range(12, 15)  # of an instant from 1973 on; a year or a count of seconds has fewer
_DURATION = re.compile(r"([0-9]{1,6})(ms|s|m)")
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000}
_FILTERS = frozenset({"knowledge", "subject", "key", "route", "since", "until", "order", "limit", "cursor"})


def wrong(field: str, expected: str, found: str) -> Refused:
    told = found if len(found) <= 60 else f"{found[:60]}..."
    return Refused(400, "invalid_request", f"{field}: expected {expected}, found {told!r}", field=field)


def only(given: Collection[str], allowed: Collection[str]) -> None:
    """Raises: Refused for the first name that is not allowed."""
    for name in given:
        if name not in allowed:
            listed = ", ".join(sorted(allowed)) or "none"
            raise Refused(
                400, "invalid_request", f"{name[:60]}: no such parameter; allowed: {listed}", field=name[:60]
            )


def query_of(request: web.Request, *, routes: Collection[str]) -> Query:
    """The list that a `GET /operations` asks for. Raises: Refused."""
    given = request.query
    only(given.keys(), _FILTERS)
    for name in _FILTERS:
        if len(given.getall(name, [])) > 1:
            raise wrong(name, "one value", f"{len(given.getall(name))} values")
        if given.get(name) == "":  # a script whose variable was empty must not take all for some
            raise wrong(name, "a value, or no such parameter", "")
    knowledge = _one_of(given, "knowledge", [word.value for word in Knowledge])
    route = _one_of(given, "route", routes)
    order = _one_of(given, "order", ("newest", "oldest"))
    since_ms, until_ms = _instant(given, "since"), _instant(given, "until")
    if since_ms is not None and until_ms is not None and until_ms < since_ms:
        raise wrong("until", "a time that is not before since", given["until"])  # not an empty export (O5)
    return Query(
        knowledge=knowledge,
        subject=given.get("subject"),
        key=given.get("key"),
        route=route,
        since_ms=since_ms,
        until_ms=until_ms,
        oldest_first=order == "oldest",
        limit=_limit(given),
        cursor=given.get("cursor"),
    )


def _one_of(given: Mapping[str, str], name: str, words: Collection[str]) -> str | None:
    value = given.get(name)
    if value is None:
        return None
    if value not in words:
        raise wrong(name, f"one of {', '.join(words)}", value)
    return value


def _limit(given: Mapping[str, str]) -> int:
    value = given.get("limit", "50")
    if not value.isascii() or not value.isdecimal() or not 1 <= len(value) <= 4:
        raise wrong("limit", f"a number from 1 to {LIMIT_MAX}", value)
    if not 1 <= int(value) <= LIMIT_MAX:
        raise wrong("limit", f"a number from 1 to {LIMIT_MAX}", value)
    return int(value)


def _instant(given: Mapping[str, str], name: str) -> int | None:
    """`2026-11-29T20:00:00Z`, or milliseconds since the Unix epoch."""
    value = given.get(name)
    if value is None:
        return None
    if value.isascii() and value.isdecimal() and len(value) in MS_DIGITS:
        return int(value)
    try:
        when = datetime.fromisoformat(value)
    except ValueError:
        expected = "a time such as 2026-11-29T20:00:00Z, or milliseconds since 1970"
        raise wrong(name, expected, value) from None
    if when.tzinfo is None:
        raise wrong(name, "a time with its zone, such as 2026-11-29T20:00:00Z", value)
    return int(when.astimezone(UTC).timestamp() * 1000)


def wait_ms(request: web.Request) -> int:
    """`?wait=30s` in milliseconds, 0 without it. Raises: Refused."""
    only(request.query.keys(), {"wait"})
    given = request.query.getall("wait", [])
    if not given:
        return 0
    value = ", ".join(given)
    found = _DURATION.fullmatch(value)
    span = int(found[1]) * _UNIT_MS[found[2]] if found else -1
    if not 0 <= span <= WAIT_MS_MAX:
        raise wrong("wait", f"a time from 0s to {WAIT_MS_MAX // 1000}s, such as 30s", value)
    return span


async def json_object(request: web.Request) -> dict[str, object]:
    """The body as a JSON object. Raises: Refused; the type is asked for since no form of a page can send it."""
    if request.content_type != "application/json":
        raise Refused(415, "unsupported_media_type", "send the body as Content-Type: application/json")
    body = read_json(await request.read() or b"{}")
    if isinstance(body, Mistake):
        raise Refused(400, "invalid_request", f"{body.place} {body.what}", field=body.place)
    if not isinstance(body, dict):
        raise Refused(400, "invalid_request", "the body must be a JSON object", field="body")
    return dict(body)


def line_of(body: Mapping[str, object], name: str, *, length_max: int, several_lines: bool = False) -> str:
    """A text that a person wrote for the ledger. Raises: Refused; a card number in it is refused too (D4)."""
    value = body.get(name)
    expected = f"a text of 1 to {length_max} characters"
    if not isinstance(value, str):
        raise wrong(name, expected, "nothing" if value is None else type(value).__name__)
    text = value.strip()
    if not 1 <= len(text) <= length_max:
        raise wrong(name, expected, f"{len(text)} characters")
    allowed = "\n\t" if several_lines else ""
    if any(not char.isprintable() and char not in allowed for char in text):
        raise wrong(name, "printable characters only", "others")
    if holds_card_number(text):
        raise Refused(
            400, "invalid_request", f"{name}: holds what looks like a card number; leave it out", field=name
        )
    return text
