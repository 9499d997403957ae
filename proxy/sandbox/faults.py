"""Which armed fault meets which request.

Three families can meet in one request: the *outcome* (how the bank takes it), *extras* (delays, lag, an early
hint), and one *ending* (what becomes of the answer). Within the outcome and the ending the oldest armed rule
wins and is used up; the next one waits for the next request.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from proxy.sandbox.objects import Outcome
from proxy.sandbox.platform import Call, Work
from proxy.sandbox.rules import EXTRAS, OUTCOMES, Fault, FaultRule, read_directives

RULES_SHOWN_MAX: Final = 1000
"""From here on used-up rules are forgotten: each one is compared with each request."""


@dataclass(slots=True)
class ArmedRule:
    """A rule and how often it was used."""

    id: int
    rule: FaultRule
    seen: int = 0
    used: int = 0

    @property
    def is_spent(self) -> bool:
        return self.rule.times is not None and self.used >= self.rule.times

    def take(self) -> bool:
        """Count one matching request; True if the rule hits it."""
        if self.is_spent:
            return False
        self.seen += 1
        if self.seen <= self.rule.skip:
            return False
        self.used += 1
        return True


@dataclass(frozen=True, slots=True)
class Plan:
    """What will happen to one request."""

    ending: FaultRule | None = None
    work: Work = field(default_factory=Work)
    answer_late_s: float = 0.0
    early_hints: bool = False


@dataclass(frozen=True, slots=True)
class Subject:
    """What rules are matched against: the call, and the business numbers behind it."""

    call: Call
    order: str | None
    refund: str | None


class FaultPlan:
    """The armed rules."""

    def __init__(self) -> None:
        self._armed: list[ArmedRule] = []
        self._read: set[str] = set()
        self._count = 0

    @property
    def armed(self) -> tuple[ArmedRule, ...]:
        return tuple(self._armed)

    def add(self, rule: FaultRule) -> int:
        """Arm a rule; its number is for `remove`."""
        self._count += 1
        if len(self._armed) >= RULES_SHOWN_MAX:
            self._armed = [armed for armed in self._armed if not armed.is_spent]
        self._armed.append(ArmedRule(self._count, rule))
        return self._count

    def remove(self, rule_id: int) -> None:
        self._armed = [armed for armed in self._armed if armed.id != rule_id]

    def reset(self) -> None:
        self._armed.clear()
        self._read.clear()

    def take_before_read(self, method: str, path: str) -> FaultRule | None:
        """The `before_read` rule for a request of which only the first line is known."""
        for armed in self._armed:
            rule = armed.rule
            if rule.fault is Fault.BEFORE_READ and _fits_line(rule, method, path) and armed.take():
                return rule
        return None

    def take(self, subject: Subject) -> Plan:
        """What happens to this request. Rules that hit it are used up by one."""
        self._read_directives(subject)
        ending: FaultRule | None = None
        outcome: FaultRule | None = None
        extras: list[FaultRule] = []
        for armed in self._armed:
            rule = armed.rule
            if rule.fault is Fault.BEFORE_READ or not _fits(rule, subject):
                continue
            if rule.fault in EXTRAS:
                if armed.take():
                    extras.append(rule)
            elif rule.fault in OUTCOMES:
                if outcome is None and armed.take():
                    outcome = rule
            elif ending is None and armed.take():
                ending = rule
        return _plan(ending, outcome, extras)

    def _read_directives(self, subject: Subject) -> None:
        body = subject.call.body or {}
        if subject.call.method != "POST":
            return
        for name, creates in (
            ("merchant_order_no", ("create_payment", "create_checkout_session")),
            ("merchant_refund_no", ("create_refund",)),
        ):
            number = body.get(name)
            if not isinstance(number, str) or "~" not in number or number in self._read:
                continue
            self._read.add(number)
            for rule in read_directives(number, is_refund=creates == ("create_refund",)):
                self.add(rule)


def _plan(ending: FaultRule | None, outcome: FaultRule | None, extras: Iterable[FaultRule]) -> Plan:
    lag_s = delay_s = late_s = 0.0
    hints = False
    for rule in extras:
        seconds = rule.seconds or 0.0
        if rule.fault is Fault.LOOKUP_LAG:
            lag_s += seconds
        elif rule.fault is Fault.EARLY_HINTS:
            hints = True
        elif rule.executes:
            late_s += seconds
        else:
            delay_s += seconds
    taken = Outcome(lag_s=lag_s)
    if outcome is not None:
        taken = Outcome(
            accepts=outcome.fault is Fault.ACCEPT_202,
            declines=outcome.fault is Fault.DECLINE,
            authenticates=outcome.fault is Fault.REQUIRES_ACTION,
            first_status=outcome.first_status,
            final_status=outcome.final_status,
            final_after_s=outcome.final_after_s,
            lag_s=lag_s,
        )
    return Plan(ending, Work(taken, delay_s), late_s, hints)


def _fits_line(rule: FaultRule, method: str, path: str) -> bool:
    match = rule.match
    wanted = match.method or ("GET" if rule.fault is Fault.LOOKUP_STATUS else "POST")
    return wanted in ("*", method) and (match.path is None or _like(match.path, path))


def _fits(rule: FaultRule, subject: Subject) -> bool:
    match, call = rule.match, subject.call
    return _fits_line(rule, call.method, call.path) and all(
        wanted is None or (found is not None and _like(wanted, found))
        for wanted, found in (
            (match.route, call.route),
            (match.order, subject.order),
            (match.refund, subject.refund),
            (match.key, call.key),
        )
    )


def _like(pattern: str, value: str) -> bool:
    """Whether `value` fits a pattern with `*` and `{name}`; everything else in it is literal."""
    if "*" not in pattern and "{" not in pattern:
        return pattern == value
    parts = re.split(r"(\*|\{[^{}/]*\})", pattern)
    expression = "".join(".*" if p == "*" else "[^/]+" if p[:1] == "{" else re.escape(p) for p in parts)
    return re.fullmatch(expression, value, re.DOTALL) is not None
