"""What operators are told of money: counted, logged and announced in one place (U7)."""

from __future__ import annotations

from dataclasses import dataclass

from proxy.core.model import Operation
from proxy.observe.counts import Counts
from proxy.observe.logs import Level, Log, Value, cut
from proxy.observe.news import News
from proxy.observe.told import announced, of_operation, of_run
from proxy.ports import Clock
from proxy.run import Run


@dataclass(frozen=True, slots=True)
class MoneyTold:
    """One method for each turn that an operation's story takes."""

    counts: Counts
    log: Log
    news: News
    clock: Clock

    def became_unknown(self, operation: Operation, run: Run | None) -> None:
        self.counts.add("unknown_results_total", self.counts.route(operation.route))
        self.log.line(Level.WARNING, "became_unknown", {**of_run(run), **of_operation(operation)})
        self.news.announce("became_unknown", announced(operation))

    def became_known(self, operation: Operation, by: str, run: Run | None) -> None:
        """Settled. What an answer settles at once is an everyday thing, and is not announced."""
        settled_ms = operation.settled_ms or self.clock.wall_ms()
        begun_ms = operation.first_attempt_ms or operation.created_ms
        status = operation.status or operation.by_hand
        self.counts.settled(route=operation.route, status=status, by=by, after_ms=settled_ms - begun_ms)
        level = Level.DEBUG if by == "answer" and not operation.doubt else Level.INFO
        if level is Level.DEBUG and level < self.log.level:
            return  # so it is with nearly every payment: no line is made that nobody reads
        self.log.line(level, "became_known", {**of_run(run), **of_operation(operation), "by": by})
        if level is Level.INFO:
            self.news.announce("became_known", {**announced(operation), "by": by})

    def outcome_conflict(self, operation: Operation, text: str) -> None:
        self.counts.add("outcome_conflicts_total", self.counts.route(operation.route))
        told: dict[str, Value] = {**of_operation(operation), "text": cut(text)}
        self.log.line(Level.ERROR, "outcome_conflict", told)
        self.news.announce("outcome_conflict", {**announced(operation), "text": cut(text)})

    def needs_person(self, operation: Operation) -> None:
        """The lookups' time is over (U3). A pending payment whose state the platform knows is no alert."""
        quiet = operation.accepted and operation.resolution_status == "known"
        if not quiet:
            self.counts.add("manual_reviews_total", self.counts.route(operation.route))
        self.log.line(Level.INFO if quiet else Level.ERROR, "manual_review", of_operation(operation))
        self.news.announce("manual_review", announced(operation))
