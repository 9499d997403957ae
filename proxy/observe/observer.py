"""Facts become metrics, log lines and announcements: one source, so that the three can't disagree."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol, assert_never

from proxy.config.sections import LogFormat, LogLevel
from proxy.config.settings import Settings
from proxy.core.messages import (
    AttemptFinished,
    BecameKnown,
    BecameUnknown,
    CallEnded,
    Collapsed,
    ConflictFound,
    Fact,
    GuardBlocked,
    LeaseTakenOver,
    LedgerDisagreed,
    LookupMade,
    Observed,
    OutcomeConflict,
    Replayed,
    RetryPlanned,
    SensitiveKey,
    SentUnrecorded,
)
from proxy.core.model import Operation, Outcome
from proxy.observe.announcements import Announcements
from proxy.observe.cells import Book, LocalBook, SharedBook, books_in
from proxy.observe.counts import Counts
from proxy.observe.exposition import Snapshot, Trace, page
from proxy.observe.gauges import TOLD_BY_STORE, Drives, Gauges, Resolves
from proxy.observe.lines import LineWriter
from proxy.observe.logs import Level, Log, Value, cut, is_terminal, masked
from proxy.observe.money import MoneyTold
from proxy.observe.news import News, Share
from proxy.observe.told import attempt_line, call_line, key_of, of_fault, of_run
from proxy.observe.version import VERSION
from proxy.ports import Clock, Holdings, StoreReport
from proxy.run import Run

if TYPE_CHECKING:
    from proxy.observe.tracing import Tracer

STDOUT = 1
_LEVELS = {
    LogLevel.DEBUG: Level.DEBUG,
    LogLevel.INFO: Level.INFO,
    LogLevel.WARNING: Level.WARNING,
    LogLevel.ERROR: Level.ERROR,
}
_LOUD = frozenset({Outcome.IN_DOUBT})
STORE_READS = frozenset({"load", "find", "count_due", "holdings"})  # its steps that write nothing


class StoreNotice(Protocol):
    """What a store tells while it is in use: a word of its own and a text for operators."""

    @property
    def kind(self) -> str: ...
    @property
    def text(self) -> str: ...
    @property
    def warnings(self) -> tuple[str, ...] | None: ...


class Observer:
    """Everything that is seen of this process from outside.

    Args: share: None for a process of its own. log_fd: where log lines go.
    """

    version = VERSION

    def __init__(
        self, *, settings: Settings, clock: Clock, share: Share | None = None, log_fd: int = STDOUT
    ) -> None:
        self._clock = clock
        self._share = share
        self._writer = LineWriter(log_fd)
        self._dropped = 0
        is_text = settings.log_format is LogFormat.TEXT
        self.log = Log(
            self._writer,
            clock,
            level=_LEVELS[settings.log_level],
            is_text=is_text,
            is_coloured=is_text and is_terminal(log_fd),
            worker=share.worker if share else None,
        )
        book: Book = SharedBook(share.folder, worker=share.worker) if share else LocalBook()
        self.counts = Counts(book, settings.platform)
        self._news = News(clock, self.counts, share)
        self._money = MoneyTold(self.counts, self.log, self._news, clock)
        self._gauges = Gauges(settings.platform, clock)
        self._store_takes_writes = True
        self.log.successes = settings.log_successes
        self._last_status: tuple[str | None, int | None] = (None, None)
        self._tracer = _tracer(settings)
        self.counts.begin(clock.wall_ms())
        self._build(settings)
        self._share_gauges()  # a worker that still opens its store is no store that is down

    def _build(self, settings: Settings) -> None:
        platform = settings.platform
        self.counts.end("build_info")  # what ran before a reload, or a worker's death, runs no more (O4)
        self.counts.set("build_info", VERSION, platform.name, platform.version, settings.version, to=1.0)

    # --- facts ----------------------------------------------------------------------------------------------

    def fact(self, fact: Fact, run: Run | None) -> None:  # noqa: C901 -- one arm for each fact
        """Tell one fact. `run`: the call it is about, where it is about one under way."""
        match fact:
            case CallEnded():
                self._call_ended(fact)
            case AttemptFinished():
                self._attempt_finished(fact, run)
            case RetryPlanned():
                self._retry_planned(fact, run)
            case BecameUnknown(operation):
                self._money.became_unknown(operation, run)
            case BecameKnown(operation, by):
                self._money.became_known(operation, by, run)
            case OutcomeConflict(operation, text):
                self._money.outcome_conflict(operation, text)
            case Collapsed(route):
                self.counts.add("collapsed_total", self.counts.route(route))
                self.counts.add("duplicates_prevented_total", "collapsed")
                self._waited(run)
            case Replayed(route):
                self.counts.add("replayed_total", self.counts.route(route))
                self.counts.add("duplicates_prevented_total", "replayed")
            case ConflictFound(route, fields):
                self.counts.add("conflicts_total", self.counts.route(route))
                told = {"route": route, "fields": ",".join(fields), **of_run(run), **key_of(run)}
                self.log.line(Level.WARNING, "conflict", told)
            case GuardBlocked(route, twin):
                self.counts.add("guard_blocked_total", self.counts.route(route))
                self.counts.add("duplicates_prevented_total", "twin" if twin else "guard")
                told = {"route": route, "twin": twin, **of_run(run), **key_of(run)}
                self.log.line(Level.WARNING, "guard_blocked", told)
            case Observed(route, finding, request_id):
                self.counts.add("observed_total", self.counts.route(route), finding)
                told = {"request_id": masked(request_id), "route": route, "finding": finding}
                self.log.line(Level.WARNING, "observed", told)
            case LookupMade():
                self._looked_up(fact)
            case SentUnrecorded(route):
                self.counts.add("sent_unrecorded_total", self.counts.route(route))
                self.log.line(Level.WARNING, "sent_unrecorded", {"route": route, **of_run(run)})
            case LeaseTakenOver(operation_id, route):
                self.counts.add("lease_takeovers_total", self.counts.route(route))
                self._waited(run)
                told = {"operation": operation_id, "route": route, **of_run(run)}
                self.log.line(Level.WARNING, "lease_taken_over", told)
            case SensitiveKey(route, what, request_id):
                self.counts.add("sensitive_keys_total", self.counts.route(route), what)
                told = {"request_id": masked(request_id), "route": route, "what": what}
                self.log.line(Level.WARNING, "sensitive_key", told)
            case LedgerDisagreed(operation_id, route):
                self.counts.add("ledger_disagreements_total", self.counts.route(route))
                told = {"operation": operation_id, "route": route, **of_run(run)}
                self.log.line(Level.WARNING, "ledger_disagreed", told)
            case _:
                assert_never(fact)

    def _call_ended(self, fact: CallEnded) -> None:
        if self._tracer is not None:
            self._tracer.call(fact, request_id=masked(fact.request_id), wall_ms=self._clock.wall_ms())
        knowledge = fact.knowledge.value if fact.knowledge else ""
        bucket = self.counts.request(
            route=fact.route,
            method=fact.method,
            status=fact.status,
            knowledge=knowledge,
            duration_us=fact.duration_us,
            overhead_us=fact.overhead_us,
        )
        if fact.trace_id:
            trace = Trace(fact.trace_id, fact.duration_us / 1e6, self._clock.wall_ms())
            self.counts.traced(route=fact.route, bucket=bucket, trace=trace)
        level = Level.WARNING if knowledge == "unknown" or fact.status >= 500 else Level.INFO
        request_id = masked(fact.request_id)
        if level < self.log.level or self.log.leaves_out(level, request_id, fact.status, n=fact.attempts):
            return
        self.log.record(level, "call", call_line(fact))

    def _attempt_finished(self, fact: AttemptFinished, run: Run | None) -> None:
        self._last_status = (fact.operation, fact.status)
        began = run is not None and fact.reason != "breaker_open"
        duration_us = run.attempt_us if run is not None and began else None
        self.counts.attempt(route=fact.route, outcome=fact.outcome.value, duration_us=duration_us)
        self.counts.ended(route=fact.route, reason=fact.reason, status=fact.status)
        if self._tracer is not None and run is not None and duration_us is not None:
            self._tracer.attempt(
                fact,
                method=run.request.method.decode("ascii", "replace"),
                request_id=run.request_id,
                duration_us=duration_us,
                wall_ms=self._clock.wall_ms(),
            )
        level = Level.WARNING if fact.outcome in _LOUD else Level.INFO
        request_id = run.request_id if run is not None else ""
        if level < self.log.level or self.log.leaves_out(level, request_id, fact.status, n=fact.n):
            return
        self.log.record(level, "attempt", attempt_line(fact, run, duration_us))

    def _retry_planned(self, fact: RetryPlanned, run: Run | None) -> None:
        operation, status = self._last_status  # of the attempt that ended in the same step
        status = status if operation == fact.operation else None
        self.counts.retry(route=fact.route, reason=fact.reason, status=status, wait_ms=fact.wait_ms)
        told: dict[str, Value] = {
            **of_run(run),
            "operation": fact.operation,
            "route": fact.route,
            "attempt": fact.n,
            "reason": fact.reason,
            "wait_ms": fact.wait_ms,
        }
        self.log.line(Level.INFO, "retry", told)

    def _looked_up(self, fact: LookupMade) -> None:
        self.counts.add("lookups_total", self.counts.route(fact.route), fact.result)
        if fact.after_cut:
            self.counts.add("drain_cut_short_total")
        level = Level.WARNING if fact.result == "failed" else Level.INFO
        told = {"route": fact.route, "result": fact.result, "reason": cut(fact.reason)}
        self.log.line(level, "lookup", told)

    def _waited(self, run: Run | None) -> None:
        if run is not None:
            self.counts.waited(run.away_us)

    def needs_person(self, operation: Operation) -> None:
        """The lookups' time is over, and a person should look (U3)."""
        self._money.needs_person(operation)

    @property
    def announcements(self) -> Announcements:
        """What the event stream reads (A2)."""
        return self._news.ring

    def event_received(self, verdict: str, detail: str) -> None:
        """An event of the platform came (U4)."""
        self.counts.add("events_total", verdict)
        level = Level.WARNING if verdict in ("refused", "failed") else Level.INFO
        self.log.line(level, "event", {"verdict": verdict, "detail": cut(detail)})

    # --- the store ------------------------------------------------------------------------------------------

    def store_step(self, name: str, us: int, ok: bool, why: str = "") -> None:
        """A full disk is read from as before: after a write that failed, only a ping says that it is over.

        Other steps may come to nothing that is to be written: a conflict, a repeat, a lookup that is not due.
        """
        self.counts.store_step(name, us, is_done=ok)
        if name == "ping" or not (ok or name in STORE_READS):
            self._store_takes_writes = ok
        is_up = ok and self._store_takes_writes
        if is_up is not self._gauges.is_store_up:
            self._gauges.is_store_up = is_up
            self._share_gauges()
            if is_up:
                self.log.line(Level.WARNING, "store_back", {"text": "the store answers again"})
            else:
                text = "the store does not answer: guarded calls are refused or end by what is known (D3)"
                self.log.line(Level.ERROR, "store_down", {"step": name, "text": text, "cause": cut(why)})

    @property
    def is_store_up(self) -> bool:
        """As far as the last steps tell."""
        return self._gauges.is_store_up

    def store_down(self, text: str) -> None:
        """A background step could not be done; told in the log, counted where the step was measured."""
        self.log.line(Level.WARNING, "store_step_failed", {"text": cut(text)})

    def store_opened(self, report: StoreReport) -> None:
        self._gauges.report = report
        self.log.line(Level.INFO, "store_opened", {"kind": report.kind, "detail": cut(report.detail)})
        for warning in report.warnings:
            self.log.line(Level.WARNING, "store_warning", {"kind": report.kind, "text": cut(warning)})

    def store_notice(self, notice: StoreNotice) -> None:
        self.counts.add("store_notices_total", str(notice.kind))
        self._gauges.store_warned(notice.warnings)
        level = Level.ERROR if notice.kind == "lost_data" else Level.WARNING
        self.log.line(level, "store_notice", {"kind": str(notice.kind), "text": cut(notice.text)})
        self._news.announce("store", {"kind": str(notice.kind), "text": cut(notice.text)})

    @property
    def store_report(self) -> StoreReport | None:
        return self._gauges.report

    @property
    def holdings(self) -> tuple[Holdings, ...] | None:
        """The unresolved operations as the store last said; None: it has not said yet."""
        return self._gauges.holdings

    @holdings.setter
    def holdings(self, held: tuple[Holdings, ...]) -> None:
        self.holds(held, store_ahead_ms=0)

    def holds(self, held: tuple[Holdings, ...], *, store_ahead_ms: int) -> None:
        """What the store holds, by its own clock: several hosts share it, and this one's may be wrong (D2)."""
        self._gauges.holdings, self._gauges.store_ahead_ms = held, store_ahead_ms
        self._share_gauges()

    def _share_gauges(self) -> None:
        """For the worker that serves the page."""
        if self._share is not None:
            self._count_dropped()
            self.counts.set_gauges(self._gauges.values())

    def _count_dropped(self) -> None:
        """The writer's thread counts for itself: cells are the loop's alone."""
        before, self._dropped = self._dropped, self._writer.dropped
        self.counts.add("log_lines_dropped_total", by=float(self._dropped - before))

    # --- the process ----------------------------------------------------------------------------------------

    def watch(self, *, driver: Drives, resolver: Resolves) -> None:
        """Ask these for the gauges from now on, also after a reload."""
        self._gauges.watch(driver, resolver)
        self._news.listen()

    def fault(self, error: BaseException) -> None:
        """An exception that nobody expected. Where it came from, never its text: that may hold a caller's."""
        self.counts.add("internal_faults_total")
        self.log.line(Level.ERROR, "internal_fault", of_fault(error))

    def task_ended(self, task: asyncio.Task[None]) -> None:
        """A loop of the process ended; by itself it never should."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fault(error)

    def reloaded(self, settings: Settings) -> None:
        """O4: other settings are in force now."""
        self.counts.know(settings.platform)
        self._gauges.platform = settings.platform
        self.log.level = _LEVELS[settings.log_level]
        self.log.successes = settings.log_successes
        self._build(settings)
        self.counts.add("config_reloads_total", "applied")
        self.log.line(Level.INFO, "reloaded", {"config": settings.version})

    def reload_refused(self, problems: tuple[str, ...]) -> None:
        """O4: the new configuration is wrong, and the old one stays in force."""
        self.counts.add("config_reloads_total", "refused")
        self.log.line(Level.ERROR, "reload_refused", {"text": cut("; ".join(problems))})

    def reload_incomplete(self, kept: tuple[str, ...]) -> None:
        """O4: these settings keep their old values until a restart."""
        told: dict[str, Value] = {"keys": ", ".join(kept), "text": "changed in the file; needs a restart"}
        self.log.line(Level.WARNING, "reload_incomplete", told)

    def drain_cut_short(self, runs: int) -> None:
        """Logged only: no scrape comes any more. Who looks the calls up first counts them."""
        text = "the drain's time is over: what is still on the wire is unknown from now on"
        self.log.line(Level.ERROR, "drain_cut_short", {"calls": runs, "text": text})

    async def metrics(self, accept: str) -> tuple[str, bytes]:
        """The page of all metrics for what a scraper accepts: content type and body."""
        self._count_dropped()
        self.counts.set_gauges(self._gauges.values())
        others = books_in(self._share.folder, but=self._share.worker) if self._share else []
        series = self.counts.series(others)
        if self._gauges.holdings is None:
            series = {key: cells for key, cells in series.items() if key[0] not in TOLD_BY_STORE}
        snapshot = Snapshot(series, self.counts.traces)
        return await asyncio.to_thread(page, snapshot, accept)

    async def end_traces(self) -> None:
        """Export what is left, beside the loop: the collector may be slow, or gone."""
        if self._tracer is not None:
            await asyncio.to_thread(self._tracer.close)

    def close(self) -> None:
        """End the streams and write the last lines."""
        self._news.close()
        self._writer.close()


def _tracer(settings: Settings) -> Tracer | None:
    """Spans only where they are asked for: the library is an extra, and takes a while to import."""
    if settings.traces_endpoint is None:
        return None
    from proxy.observe.tracing import Tracer  # noqa: PLC0415 -- an extra

    return Tracer(
        endpoint=settings.traces_endpoint,
        service=settings.traces_service,
        server=settings.upstream.url.host,
    )
