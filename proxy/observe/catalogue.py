"""Every metric that the product has, and the label values that exist from the start (M1, O-59, O-61).

A label value is always one of few words: route names and `other`, methods of a fixed list and `other`,
statuses from 100 to 599 and 0, the product's own words. No key, id, number of an order or raw path.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from proxy.core.http import MaybeSentReason, NotSentReason
from proxy.core.model import Outcome
from proxy.core.rules import Platform, Route
from proxy.core.shadow import Finding

PREFIX = "safepost_"
OTHER = "other"

OVERHEAD_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
ATTEMPT_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 60.0)
REQUEST_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
WAIT_S = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 60.0)
STORE_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0)
CERTAINTY_S = (0.1, 0.5, 1.0, 5.0, 15.0, 30.0, 60.0, 300.0, 900.0, 3_600.0, 14_400.0, 86_400.0)


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. `name` is without the prefix, as in contract M1; `merged_by` says how workers' values meet."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()
    merged_by: str = "sum"

    @property
    def width(self) -> int:
        """Cells of one series: a histogram has its buckets, the one without a bound, and the sum."""
        return len(self.bounds) + 2 if self.kind is Kind.HISTOGRAM else 1


def _counter(name: str, help: str, *labels: str) -> Metric:  # noqa: A002 -- the exposition format's own word
    return Metric(name, Kind.COUNTER, help, labels)


def _gauge(name: str, help: str, *labels: str, merged_by: str = "max") -> Metric:  # noqa: A002 -- as above
    return Metric(name, Kind.GAUGE, help, labels, merged_by=merged_by)


def _times(name: str, help: str, bounds: tuple[float, ...], *labels: str) -> Metric:  # noqa: A002 -- as above
    return Metric(name, Kind.HISTOGRAM, help, labels, bounds)


_ALL = (
    _counter(
        "requests_total",
        "Calls answered, by what was known of the operation's effect (empty: nothing was read of it). Status 0: "
        "the caller was gone.",
        "route",
        "method",
        "status",
        "knowledge",
    ),
    _times("request_duration_seconds", "From a call's head to its answer's last byte.", REQUEST_S, "route"),
    _times(
        "overhead_seconds",
        "Of a call: the time not spent waiting for the platform, another call or a back-off.",
        OVERHEAD_S,
        "route",
    ),
    _counter("attempts_total", "Attempts sent to the platform, by how they ended.", "route", "outcome"),
    _times(
        "attempt_duration_seconds",
        "From an attempt's start, connecting included, to its end.",
        ATTEMPT_S,
        "route",
        "outcome",
    ),
    _counter(
        "attempt_ends_total",
        "Attempts, by the wire's word, the platform's code, or http_ and the status that ended them.",
        "route",
        "reason",
    ),
    _counter("retries_total", "Further attempts planned, by what ended the one before.", "route", "reason"),
    _times(
        "retry_wait_seconds",
        "Waits planned before retries: back-offs, or what Retry-After asked.",
        WAIT_S,
        "route",
    ),
    _counter("unknown_results_total", "Calls that ended without knowing whether money moved.", "route"),
    _gauge("unknown_operations", "Operations whose effect is unknown now.", "route"),
    _gauge("pending_operations", "Operations accepted by the platform and not final now.", "route"),
    _gauge("oldest_unknown_seconds", "Age of the oldest operation whose effect is unknown; 0 for none."),
    _gauge("unknown_amount", "Money at risk now, in minor units.", "currency"),
    _counter("collapsed_total", "Concurrent same-key calls answered with another call's run.", "route"),
    _counter("replayed_total", "Later same-key calls answered from the ledger.", "route"),
    _counter("conflicts_total", "Calls refused: their key is bound to other business fields.", "route"),
    _counter("guard_blocked_total", "Calls refused: another key's operation holds the subject.", "route"),
    _counter("observed_total", "Shadow mode: what the guard would have had to say.", "route", "finding"),
    _counter("duplicates_prevented_total", "Calls that did not reach the platform a second time.", "cause"),
    _gauge("in_flight", "Guarded calls under way.", "route", merged_by="sum"),
    _times("lease_wait_seconds", "How long calls waited for another call's run of the same key.", WAIT_S),
    _counter("lease_takeovers_total", "Operations of dead leaders taken over with the same key.", "route"),
    _counter("ledger_disagreements_total", "Writes refused: the ledger had moved on.", "route"),
    _counter("lookups_total", "Questions to the platform about unclear results.", "route", "result"),
    _counter("settled_total", "Operations that became known, and by what.", "route", "status", "by"),
    _times(
        "time_to_certainty_seconds",
        "From an operation's first attempt to knowing its effect.",
        CERTAINTY_S,
        "route",
    ),
    _counter("outcome_conflicts_total", "Evidence against evidence, or against a person.", "route"),
    _counter("manual_reviews_total", "Operations handed to a person: the lookups' time was over.", "route"),
    _counter("events_total", "The platform's events received, by what became of them.", "verdict"),
    _counter("sent_unrecorded_total", "Calls forwarded while the store was down.", "route"),
    _counter("sensitive_keys_total", "Keys or subjects like a card number or e-mail.", "route", "what"),
    _counter("store_errors_total", "Steps that the store did not do.", "operation"),
    _times("store_duration_seconds", "How long the store's steps took.", STORE_S, "operation"),
    _counter("store_notices_total", "What happened to the store while in use.", "kind"),
    _gauge("store_up", "1 while the store answers.", merged_by="min"),
    _gauge("store_warnings", "Settings of the store that are legal but could lose claims."),
    _gauge("owed_writes", "Writes that wait for the store to return.", merged_by="sum"),
    _gauge("lookups_backlog", "Lookups that are due and wait for their turn.", merged_by="max"),
    _gauge("lookups_backlog_seconds", "How long that takes at one process's own rate.", merged_by="max"),
    _gauge("breaker_state", "The platform's circuit breaker: 0 closed, 1 one trial on its way, 2 open."),
    _gauge("retry_budget_remaining", "Retries that could start now; +Inf without a budget.", merged_by="min"),
    _gauge("draining", "1 while the process takes no new calls."),
    _counter(
        "drain_cut_short_total",
        "Calls that a drain cut short, counted when they are first looked up: their process is gone.",
    ),
    _counter("config_reloads_total", "Reloads asked for, by what became of them.", "result"),
    _counter("internal_faults_total", "Exceptions that nobody expected: bugs of ours."),
    _counter("announcements_lost_total", "Announcements that did not reach the worker with the console."),
    _counter(
        "log_lines_dropped_total", "Log lines dropped: their reader was too slow or gone, or the disk full."
    ),
    _gauge(
        "counts_start_time_seconds",
        "When the counters began at 0 (Unix time). A worker that takes a dead one's place counts on.",
    ),
    _gauge(
        "build_info",
        "1: this product, these platform rules and this configuration run; 0: they did, before a reload.",
        "version",
        "platform",
        "platform_version",
        "config",
    ),
)

METRICS: dict[str, Metric] = {metric.name: metric for metric in _ALL}
NOT_ASKED = frozenset({"build_info", "counts_start_time_seconds"})
"""Gauges that change by what happens; the others are asked for at a scrape."""
MERGED_BY = {metric.name: metric.merged_by for metric in _ALL}

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"})
OUTCOMES = tuple(outcome.value for outcome in Outcome)
WORDS = frozenset(
    {*(reason.value for reason in NotSentReason), *(reason.value for reason in MaybeSentReason)}
)
STORE_STEPS = (
    "reserve",
    "withdraw",
    "admit",
    "record_attempt",
    "renew",
    "settle",
    "update",
    "deliver",
    "answered_early",
    "evidence",
    "by_hand",
    "take_lookup",
    "put_off",
    "take_sweep",
    "end_lookup",
    "lapse",
    "purge",
    "find",
    "count_due",
    "load",
    "holdings",
    "ping",
    OTHER,
)
CAUSES = ("collapsed", "replayed", "guard", "twin")
LOOKUP_RESULTS = ("found", "missed", "failed")
SETTLERS = ("answer", "lookup", "event", "late_answer", "person")
VERDICTS = ("applied", "kept", "hint", "ignored", "refused", "failed")
NOTICES = (
    *("wal_starved", "wal_emptied", "lost_data", "put_back", "journal_failing", "journal_written"),
    *("settings", "away", "back", "damaged"),
)

_COMMON_ANSWERS = (
    ("200", "executed"),
    ("201", "executed"),
    ("402", "executed"),
    ("409", "executed"),
    ("200", "pending"),
    ("201", "pending"),
    ("202", "pending"),
    ("400", "not_executed"),
    ("401", "not_executed"),
    ("403", "not_executed"),
    ("404", "not_executed"),
    ("422", "not_executed"),
    ("429", "not_executed"),
    ("503", "not_executed"),
    ("409", "unknown"),
    ("500", "unknown"),
    ("502", "unknown"),
    ("503", "unknown"),
    ("504", "unknown"),
    ("400", ""),
    ("409", ""),
    ("413", ""),
    ("415", ""),
    ("503", ""),
)
_COMMON_REASONS = ("http_408", "http_425", "http_429", "http_500", "http_502", "http_503", "http_504", OTHER)
_COMMON_ENDS = ("200", "201", "202", "400", "401", "402", "403", "404", "409", "422")


def statuses_of(route: Route) -> frozenset[str]:
    """The object statuses that may be a label: the preset's, and what a person may say."""
    return frozenset({*route.object.statuses, "absent", OTHER})


def codes_of(platform: Platform) -> frozenset[str]:
    """The platform's error codes that its preset names: few words, unlike whatever an answer may hold."""
    named = (rule.codes for route in platform.routes for rule in route.outcomes)
    return frozenset(code for codes in named if codes for code in codes)


def known_series(platform: Platform) -> list[tuple[str, tuple[str, ...]]]:
    """The series that exist at 0 from the start, as (metric, label values)."""
    found: list[tuple[str, tuple[str, ...]]] = []
    for metric in METRICS.values():
        if metric.labels == ("route",):
            found += [(metric.name, (route.name,)) for route in platform.routes]
        elif not metric.labels:
            found.append((metric.name, ()))
    for name in ("request_duration_seconds", "overhead_seconds"):
        found.append((name, (OTHER,)))
    found.append(("requests_total", (OTHER, "GET", "200", "")))
    retried = (*sorted(WORDS | codes_of(platform)), *_COMMON_REASONS)
    ended = (*retried, *(f"http_{status}" for status in _COMMON_ENDS))
    for route in platform.routes:
        found += [("requests_total", (route.name, route.method, *pair)) for pair in _COMMON_ANSWERS]
        for outcome in OUTCOMES:
            found.append(("attempts_total", (route.name, outcome)))
            found.append(("attempt_duration_seconds", (route.name, outcome)))
        found += [("retries_total", (route.name, reason)) for reason in retried]
        found += [("attempt_ends_total", (route.name, reason)) for reason in ended]
        found += [("lookups_total", (route.name, result)) for result in LOOKUP_RESULTS]
        found += [("sensitive_keys_total", (route.name, what)) for what in ("card", "email")]
        found += [("observed_total", (route.name, finding)) for finding in Finding]
        found += [
            ("settled_total", (route.name, status, by))
            for status in sorted(statuses_of(route))
            for by in SETTLERS
            if (status == "absent") <= (by == "person")
        ]
    for name, words in (
        ("duplicates_prevented_total", CAUSES),
        ("events_total", VERDICTS),
        ("store_errors_total", STORE_STEPS),
        ("store_duration_seconds", STORE_STEPS),
        ("store_notices_total", NOTICES),
        ("config_reloads_total", ("applied", "refused")),
        ("unknown_amount", (OTHER,)),
    ):
        found += [(name, (word,)) for word in words]
    return found
