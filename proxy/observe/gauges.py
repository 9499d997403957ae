"""The gauges: what is true at the moment of a scrape, asked of those who know it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sized
from dataclasses import dataclass, field, replace
from typing import Protocol

from proxy.core.budget import Breaker, BreakerState, RetryBudget
from proxy.core.model import Knowledge
from proxy.core.rules import Platform
from proxy.observe.catalogue import OTHER
from proxy.ports import Clock, Holdings, StoreReport
from proxy.run import Run

_CURRENCY = re.compile(r"[A-Z]{3}")
_BREAKER = {BreakerState.CLOSED: 0.0, BreakerState.HALF_OPEN: 1.0, BreakerState.OPEN: 2.0}

Values = dict[tuple[str, tuple[str, ...]], float]

TOLD_BY_STORE = frozenset(
    {"unknown_operations", "pending_operations", "unknown_amount", "oldest_unknown_seconds"}
)
"""What no process knows by itself. Until its store has said it, it is absent: a 0 would end an alert."""


class Drives(Protocol):
    """What is asked of a driver."""

    @property
    def runs(self) -> Mapping[int, Run]: ...
    @property
    def owed(self) -> Sized: ...
    @property
    def is_draining(self) -> bool: ...
    @property
    def budget(self) -> RetryBudget | None: ...
    @property
    def breaker(self) -> Breaker | None: ...


class Resolves(Protocol):
    """What is asked of a resolver."""

    @property
    def backlog(self) -> int: ...
    @property
    def backlog_ends_in_ms(self) -> int: ...


@dataclass(slots=True)
class Gauges:
    """Who is asked. `holdings` is what the store last said; the application asks it every few seconds.

    None: it has said nothing yet. `store_ahead_ms`: of this host's clock, as ages are told by the store's (D2).
    """

    platform: Platform
    clock: Clock
    drivers: list[Drives] = field(default_factory=list)
    resolver: Resolves | None = None
    holdings: tuple[Holdings, ...] | None = None
    store_ahead_ms: int = 0
    report: StoreReport | None = None
    is_store_up: bool = True

    def values(self) -> Values:
        routes = [route.name for route in self.platform.routes]
        found: Values = {} if self.holdings is None else self._of_holdings(self.holdings, routes)
        found["store_up", ()] = float(self.is_store_up)
        found["store_warnings", ()] = float(len(self.report.warnings)) if self.report else 0.0
        found["lookups_backlog", ()] = float(self.resolver.backlog) if self.resolver else 0.0
        ends_ms = self.resolver.backlog_ends_in_ms if self.resolver else 0
        found["lookups_backlog_seconds", ()] = ends_ms / 1000
        found |= self._of_drivers(routes)
        return found

    def store_warned(self, warnings: tuple[str, ...] | None) -> None:
        """The settings of the store that could lose claims are these now; None: as before (D5)."""
        if warnings is not None and self.report is not None:
            self.report = replace(self.report, warnings=warnings)

    def watch(self, driver: Drives, resolver: Resolves) -> None:
        """Ask these from now on; a driver before them counts for as long as it has work (O4)."""
        self.resolver = resolver
        self.drivers = [driver, *(one for one in self.drivers if one is not driver)]

    def _of_drivers(self, routes: Collection[str]) -> Values:
        """Breaker and budget are the current driver's; what is owed to the store is all drivers' together."""
        drivers = self.drivers = [*self.drivers[:1], *(d for d in self.drivers[1:] if d.runs)]
        counts = Counter(run.claim.route.name for driver in drivers for run in driver.runs.values())
        found: Values = {("in_flight", (name,)): float(counts[name]) for name in routes}
        found["owed_writes", ()] = float(len(drivers[0].owed)) if drivers else 0.0
        found["draining", ()] = float(any(driver.is_draining for driver in drivers))
        breaker = drivers[0].breaker if drivers else None
        found["breaker_state", ()] = _BREAKER[breaker.state] if breaker else 0.0
        budget = drivers[0].budget if drivers else None
        left = float(budget.remaining(self.clock.monotonic_ms())) if budget else float("inf")
        found["retry_budget_remaining", ()] = left
        return found

    def _of_holdings(self, holdings: Collection[Holdings], routes: Collection[str]) -> Values:
        unknown = dict.fromkeys(routes, 0.0)
        pending = dict.fromkeys(routes, 0.0)
        amounts = {OTHER: 0.0}
        oldest_ms: int | None = None
        for held in holdings:
            counts = unknown if held.knowledge == Knowledge.UNKNOWN else pending
            name = held.route if held.route in counts else OTHER
            counts[name] = counts.get(name, 0.0) + held.count
            if held.knowledge == Knowledge.UNKNOWN:
                currency = held.currency if _CURRENCY.fullmatch(held.currency) else OTHER
                amounts[currency] = amounts.get(currency, 0.0) + held.amount
                oldest_ms = held.oldest_ms if oldest_ms is None else min(oldest_ms, held.oldest_ms)
        found: Values = {("unknown_operations", (name,)): count for name, count in unknown.items()}
        found |= {("pending_operations", (name,)): count for name, count in pending.items()}
        found |= {("unknown_amount", (currency,)): amount for currency, amount in amounts.items()}
        now_ms = self.clock.wall_ms() + self.store_ahead_ms
        age_ms = 0 if oldest_ms is None else max(0, now_ms - oldest_ms)
        found["oldest_unknown_seconds", ()] = age_ms / 1000
        return found
