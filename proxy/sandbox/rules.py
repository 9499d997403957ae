"""Faults by phase: what goes wrong with which request, how often.

A rule matches requests and does one thing to them. Rules come through `Sandbox.add_fault`, through
`POST /_sandbox/faults`, or inside a business number:

    ORDER-1~timeout_after           the first create executes and is never answered
    ORDER-2~503x2                   two creates get 503 temporarily_unavailable, the third goes through
    ORDER-3~202:failed:0.5          accepted, then failed half a second later
    ORDER-4~decline~reset_after     declined, and the answer is lost by a reset
    ORDER-5~confirm.500_after       the first confirm of that order's payment executes and says 500
    ORDER-6~429:2                   429 with Retry-After: 2, then the create goes through
    R-1~close_after                 the first refund with this number executes, then the connection closes

A directive is `~[ROUTE.]NAME[xTIMES][:ARGUMENT...]`. ROUTE is create (the default), checkout, confirm,
cancel, refund or lookup; TIMES a number or `always`. NAME is a fault's name, `timeout_before` or
`timeout_after` for the hangs, `202[:FINAL_STATUS[:SECONDS]]`, `lag:SECONDS`, `delay:SECONDS`, `hints`, or
another status: `500` (not executed), `500_after` (executed), `503:2` (with Retry-After). What isn't a
directive is left alone: the `~` may simply be part of the number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Final

from proxy.sandbox.objects import FINAL_PAYMENT_STATUSES
from proxy.sandbox.refusals import RefusedError

HANG_S_MAX: Final = 600.0
"""A hang ends after this long even if the client stays: nothing in a test waits for ever."""


class Fault(StrEnum):
    """What a rule does. The phase is in the name: before or after the platform executed the request."""

    BEFORE_READ = "before_read"  # the connection ends as the request's first bytes arrive, unread
    RESET_BEFORE = "reset_before"
    CLOSE_BEFORE = "close_before"
    HANG_BEFORE = "hang_before"
    RESET_AFTER = "reset_after"
    CLOSE_AFTER = "close_after"
    HANG_AFTER = "hang_after"
    TRUNCATE = "truncate"  # the head, half of the body, then the end of the connection
    GARBAGE = "garbage"  # bytes that aren't HTTP
    STATUS = "status"
    LOOKUP_STATUS = "lookup_status"  # a status for lookups only
    ACCEPT_202 = "accept_202"
    DECLINE = "decline"
    REQUIRES_ACTION = "requires_action"
    DELAY = "delay"
    LOOKUP_LAG = "lookup_lag"
    EARLY_HINTS = "early_hints"


OUTCOMES: Final = frozenset({Fault.ACCEPT_202, Fault.DECLINE, Fault.REQUIRES_ACTION})
EXTRAS: Final = frozenset({Fault.DELAY, Fault.LOOKUP_LAG, Fault.EARLY_HINTS})
NEVER_EXECUTED: Final = frozenset(
    {Fault.BEFORE_READ, Fault.RESET_BEFORE, Fault.CLOSE_BEFORE, Fault.HANG_BEFORE}
)
EXECUTED_UNLESS_SAID: Final = frozenset(
    {Fault.RESET_AFTER, Fault.CLOSE_AFTER, Fault.HANG_AFTER, Fault.TRUNCATE, Fault.GARBAGE}
)


@dataclass(frozen=True, slots=True)
class Match:
    """Which requests a rule is for; None matches any. `*` in a value stands for any characters.

    Args: method: None means POST (GET for `lookup_status`); `*` any. path: exact, or with `{name}` for one
        segment, or with `*`. route: as in `platform.ROUTES`. order: the order number behind the request, also
        for confirm, cancel, refund and lookups. refund: the merchant refund number. key: the idempotency key.
    """

    method: str | None = None
    path: str | None = None
    route: str | None = None
    order: str | None = None
    refund: str | None = None
    key: str | None = None


@dataclass(frozen=True, slots=True)
class FaultRule:
    """One fault for the requests that match.

    Args: times: how many requests it hits; None for always. skip: how many matching requests pass first.
        status, code, message, headers, html: the answer of `status` and `lookup_status`; `html` makes it a
        page as a gateway between would send. executed: whether the platform acts before the fault; None
        leaves it to the kind. With `delay` it means: act at once, answer late. reset: end by a reset (or,
        with false, by a close) where a kind could do either: `before_read`, `truncate`, `garbage`.
        first_status, final_status, final_after_s: of `accept_202` and `requires_action`. seconds: of `delay`,
        `lookup_lag` and the hangs.
    """

    fault: Fault
    match: Match = field(default_factory=Match)
    times: int | None = 1
    skip: int = 0
    status: int = 500
    code: str | None = None
    message: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    html: bool = False
    executed: bool | None = None
    reset: bool | None = None
    first_status: str = "processing"
    final_status: str | None = None
    final_after_s: float | None = None
    seconds: float | None = None

    @property
    def executes(self) -> bool:
        if self.fault in NEVER_EXECUTED:
            return False
        if self.executed is not None:
            return self.executed
        return self.fault in EXECUTED_UNLESS_SAID


ROUTES_OF_DIRECTIVES: Final = {
    "create": Match(route="create_payment"),
    "checkout": Match(route="create_checkout_session"),
    "confirm": Match(route="confirm_payment"),
    "cancel": Match(route="cancel_payment"),
    "refund": Match(route="create_refund"),
    "lookup": Match(method="GET"),
}

SHORT_NAMES: Final = {
    "timeout_before": Fault.HANG_BEFORE,
    "timeout_after": Fault.HANG_AFTER,
    "lag": Fault.LOOKUP_LAG,
    "hints": Fault.EARLY_HINTS,
}

_DIRECTIVE = re.compile(
    r"(?:(?P<route>create|checkout|confirm|cancel|refund|lookup)\.)?"
    r"(?P<name>[a-z_]+?|[2-5][0-9]{2}(?:_after|_before)?)"
    r"(?:x(?P<times>[0-9]{1,4}|always))?"
    r"(?P<arguments>(?::[^:]*)*)"
)


def read_directives(number: str, *, is_refund: bool = False) -> Iterator[FaultRule]:
    """The rules inside a business number, in their order."""
    for part in number.split("~")[1:]:
        found = _DIRECTIVE.fullmatch(part)
        if found is None:
            continue
        route = ROUTES_OF_DIRECTIVES[found["route"] or ("refund" if is_refund else "create")]
        numbers = {"refund": number} if is_refund else {"order": number}
        match = replace(route, **numbers)
        times = None if found["times"] == "always" else int(found["times"] or 1)
        rule = _named(found["name"], found["arguments"].split(":")[1:])
        if rule is not None:
            yield replace(rule, match=match, times=times)


def _named(name: str, arguments: list[str]) -> FaultRule | None:
    first = arguments[0] if arguments else None
    if name == "202":
        after = _seconds(arguments[1]) if len(arguments) > 1 else None
        status = first if first in FINAL_PAYMENT_STATUSES else None
        return FaultRule(Fault.ACCEPT_202, final_status=status, final_after_s=after)
    if name[0].isdigit():
        headers = {"Retry-After": first} if first else {}
        return FaultRule(
            Fault.STATUS, status=int(name[:3]), executed=name.endswith("_after"), headers=headers
        )
    fault = SHORT_NAMES.get(name) or (Fault(name) if name in _DIRECTIVE_FAULTS else None)
    if fault is None:
        return None
    return FaultRule(fault, seconds=_seconds(first) if first else None)


_DIRECTIVE_FAULTS = frozenset(Fault) - {Fault.BEFORE_READ, Fault.STATUS, Fault.LOOKUP_STATUS}


def _seconds(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def read_rule(given: object) -> FaultRule:
    """A rule from its JSON; the brief form `{"status": 429}` stands for `{"fault": "status", "status": 429}`.

    Raises: RefusedError, a 422 that names the member.
    """
    if not isinstance(given, dict):
        raise _wrong("rule", "expected an object", given)
    members = dict(given)
    match = _read_match(members.pop("match", {}))
    times = members.pop("times", 1)
    name = members.pop("fault", "status" if "status" in members else None)
    if not isinstance(name, str) or name not in frozenset(Fault):
        raise _wrong("fault", f"expected one of {', '.join(Fault)}", name)
    if times != "always" and not _is_count(times, least=1):
        raise _wrong("times", "expected an integer from 1, or always", times)
    for member, value in members.items():
        check = _CHECKS.get(member)
        if check is None:
            raise _wrong(member, f"unknown; allowed are match, times, fault, {', '.join(_CHECKS)}", value)
        if not check[0](value):
            raise _wrong(member, f"expected {check[1]}", value)
    return FaultRule(Fault(name), match, times=None if times == "always" else times, **members)


def _read_match(given: object) -> Match:
    if not isinstance(given, dict):
        raise _wrong("match", "expected an object", given)
    allowed = [member.name for member in fields(Match)]
    for member, value in given.items():
        if member not in allowed:
            raise _wrong(f"match.{member}", f"unknown; allowed are {', '.join(allowed)}", value)
        if not isinstance(value, str):
            raise _wrong(f"match.{member}", "expected a string", value)
    return Match(**given)


def _wrong(member: str, expected: str, found: object) -> RefusedError:
    return RefusedError(422, "validation_error", f"{member}: {expected}, found {found!r}", field=member)


def _is_count(value: object, *, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_seconds(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= HANG_S_MAX


def _is_headers(value: object) -> bool:
    return isinstance(value, dict) and all(
        isinstance(name, str) and isinstance(text, str) and not _CONTROL.search(name + text)
        for name, text in value.items()
    )


_CONTROL = re.compile(r"[\x00-\x1f\x7f]")

_CHECKS: Final[Mapping[str, tuple[Callable[[object], bool], str]]] = {
    "skip": (lambda v: _is_count(v, least=0), "an integer from 0"),
    "status": (
        lambda v: _is_count(v, least=200) and isinstance(v, int) and v < 600,
        "a status from 200 to 599",
    ),
    "code": (lambda v: isinstance(v, str), "a string"),
    "message": (lambda v: isinstance(v, str), "a string"),
    "headers": (_is_headers, "an object of strings without control characters"),
    "html": (lambda v: isinstance(v, bool), "true or false"),
    "executed": (lambda v: isinstance(v, bool), "true or false"),
    "reset": (lambda v: isinstance(v, bool), "true or false"),
    "first_status": (lambda v: v in ["processing", "pending_review"], "processing or pending_review"),
    "final_status": (lambda v: v in [*FINAL_PAYMENT_STATUSES], f"one of {sorted(FINAL_PAYMENT_STATUSES)}"),
    "final_after_s": (_is_seconds, f"seconds from 0 to {HANG_S_MAX:g}"),
    "seconds": (_is_seconds, f"seconds from 0 to {HANG_S_MAX:g}"),
}
