"""Counting: facts' words become label values, label values become cells. The hot path of every call."""

from __future__ import annotations

from bisect import bisect_left

from proxy.core.rules import Platform
from proxy.observe.catalogue import (
    ATTEMPT_S,
    CERTAINTY_S,
    MERGED_BY,
    METHODS,
    METRICS,
    NOT_ASKED,
    OTHER,
    OVERHEAD_S,
    REQUEST_S,
    STORE_S,
    STORE_STEPS,
    WAIT_S,
    WORDS,
    codes_of,
    known_series,
    statuses_of,
)
from proxy.observe.cells import Book, Labels, Series, total
from proxy.observe.exposition import Trace, Traces

_HTTP = "http_"


class Counts:
    """The cells of one process, by what is counted. A label that is not known is `other`."""

    def __init__(self, book: Book, platform: Platform) -> None:
        self._book = book
        self._cells = book.cells
        self._at: dict[tuple[str, Labels], int] = {}
        self._requests: dict[tuple[str, str, int, str], int] = {}
        self._calls: dict[str, tuple[int, int]] = {}
        self._attempts: dict[tuple[str, str], tuple[int, int]] = {}
        self._ends: dict[tuple[str, str, int | None], int] = {}
        self._steps: dict[str, tuple[int, int]] = {}
        self._traces: Traces = {}
        self._routes: frozenset[str] = frozenset()
        self._statuses: dict[str, frozenset[str]] = {}
        self._reasons: frozenset[str] = frozenset()
        for (
            name,
            labels,
        ), cells in book.series().items():  # of a worker before it: its gauges are ours to end
            self._at[name, labels] = book.open(name, labels, width=len(cells))
        self.know(platform)

    def know(self, platform: Platform) -> None:
        """Open the series of a platform's routes, also after a reload; what was counted stays."""
        self._routes = self._routes | {route.name for route in platform.routes}
        self._statuses |= {route.name: statuses_of(route) for route in platform.routes}
        self._reasons = self._reasons | WORDS | codes_of(platform)
        for name, labels in known_series(platform):
            self._cell(name, labels)
        for step in STORE_STEPS:
            self._steps[step] = self._step_cells(step)

    def _cell(self, name: str, labels: Labels) -> int:
        place = self._at.get((name, labels))
        if place is None:
            place = self._book.open(name, labels, width=METRICS[name].width)
            self._at[name, labels] = place
        return place

    def add(self, name: str, *labels: str, by: float = 1.0) -> None:
        """Count something that is not counted for every call."""
        self._cells[self._cell(name, labels)] += by

    def set(self, name: str, *labels: str, to: float) -> None:
        self._cells[self._cell(name, labels)] = to

    def begin(self, wall_ms: int) -> None:
        """Say since when is counted, unless a worker before it has."""
        at = self._cell("counts_start_time_seconds", ())
        self._cells[at] = self._cells[at] or wall_ms / 1e3

    def end(self, gauge: str) -> None:
        """Set all series of a gauge to 0."""
        for name, labels in self._at:
            if name == gauge:
                self.set(name, *labels, to=0.0)

    def route(self, name: str) -> str:
        return name if name in self._routes else OTHER

    # --- every call -----------------------------------------------------------------------------------------

    def request(
        self, *, route: str, method: str, status: int, knowledge: str, duration_us: int, overhead_us: int
    ) -> int:
        """One call; the number of the duration's bucket."""
        cells = self._cells
        at = self._requests.get((route, method, status, knowledge))
        if at is None:
            at = self._request_cell(route, method, status, knowledge)
        cells[at] += 1.0
        places = self._calls.get(route)
        if places is None:
            places = self._call_cells(route)
        first, second = places
        duration_s, overhead_s = duration_us / 1e6, overhead_us / 1e6
        bucket = bisect_left(REQUEST_S, duration_s)
        cells[first + bucket] += 1.0
        cells[first + _REQUEST_SUM] += duration_s
        cells[second + bisect_left(OVERHEAD_S, overhead_s)] += 1.0
        cells[second + _OVERHEAD_SUM] += overhead_s
        return bucket

    def attempt(self, *, route: str, outcome: str, duration_us: int | None) -> None:
        """One attempt. `duration_us` None: it never began, such as behind an open breaker."""
        cells = self._cells
        places = self._attempts.get((route, outcome))
        if places is None:
            places = self._attempt_cells(route, outcome)
        counted, timed = places
        cells[counted] += 1.0
        if duration_us is not None:
            seconds = duration_us / 1e6
            cells[timed + bisect_left(ATTEMPT_S, seconds)] += 1.0
            cells[timed + _ATTEMPT_SUM] += seconds

    def ended(self, *, route: str, reason: str, status: int | None) -> None:
        """What one attempt ended with. A code that the preset does not name counts by its status."""
        at = self._ends.get((route, reason, status))
        if at is None:
            word = self._reason(reason, status)
            at = self._cell("attempt_ends_total", (self.route(route), word))
            if word == reason and route in self._routes:
                self._ends[route, reason, status] = at
        self._cells[at] += 1.0

    def store_step(self, step: str, duration_us: int, *, is_done: bool) -> None:
        timed, failed = self._steps.get(step) or self._steps[OTHER]
        seconds = duration_us / 1e6
        cells = self._cells
        cells[timed + bisect_left(STORE_S, seconds)] += 1.0
        cells[timed + _STORE_SUM] += seconds
        if not is_done:
            cells[failed] += 1.0

    # --- now and then ---------------------------------------------------------------------------------------

    def waited(self, waited_us: int) -> None:
        self._time("lease_wait_seconds", (), WAIT_S, waited_us / 1e6)

    def settled(self, *, route: str, status: str | None, by: str, after_ms: int) -> None:
        name = self.route(route)
        word = status or OTHER
        word = word if word in self._statuses.get(name, frozenset()) else OTHER
        self.add("settled_total", name, word, by)
        self._time("time_to_certainty_seconds", (name,), CERTAINTY_S, max(0, after_ms) / 1e3)

    def retry(self, *, route: str, reason: str, status: int | None, wait_ms: int) -> None:
        """A retry planned."""
        name = self.route(route)
        self.add("retries_total", name, self._reason(reason, status))
        self._time("retry_wait_seconds", (name,), WAIT_S, wait_ms / 1e3)

    def traced(self, *, route: str, bucket: int, trace: Trace) -> None:
        """Remember the last trace of a duration's bucket, for OpenMetrics' exemplars."""
        self._traces["request_duration_seconds", (self.route(route),), bucket] = trace

    # --- reading --------------------------------------------------------------------------------------------

    def set_gauges(self, values: dict[tuple[str, Labels], float]) -> None:
        """Write the gauges down. A series that has no value any more, such as a currency, is 0."""
        for name, labels in self._at:
            if METRICS[name].kind == "gauge" and (name, labels) not in values and name not in NOT_ASKED:
                self.set(name, *labels, to=0.0)
        for (name, labels), value in values.items():
            self.set(name, *labels, to=value)

    def series(self, others: list[Series]) -> Series:
        own = self._book.series()
        return total([own, *others], MERGED_BY) if others else own

    @property
    def traces(self) -> Traces:
        return dict(self._traces)

    def _reason(self, reason: str, status: int | None) -> str:
        """A code that the preset does not name counts by the status it came with."""
        word = reason if reason in self._reasons or _is_http(reason) else OTHER
        if word == OTHER and status is not None and 100 <= status <= 599:
            return f"{_HTTP}{status}"
        return word

    # --- cells of what is new -------------------------------------------------------------------------------

    def _time(self, name: str, labels: Labels, bounds: tuple[float, ...], seconds: float) -> None:
        at = self._cell(name, labels)
        self._cells[at + bisect_left(bounds, seconds)] += 1.0
        self._cells[at + len(bounds) + 1] += seconds

    def _request_cell(self, route: str, method: str, status: int, knowledge: str) -> int:
        labels = (
            self.route(route),
            method if method in METHODS else OTHER,
            str(status) if 100 <= status <= 599 else "0",
            knowledge,
        )
        at = self._cell("requests_total", labels)
        if method in METHODS and route in self._routes | {OTHER} and 0 <= status <= 599:
            self._requests[route, method, status, knowledge] = at
        return at

    def _call_cells(self, route: str) -> tuple[int, int]:
        name = self.route(route)
        places = self._cell("request_duration_seconds", (name,)), self._cell("overhead_seconds", (name,))
        if name == route:
            self._calls[route] = places
        return places

    def _attempt_cells(self, route: str, outcome: str) -> tuple[int, int]:
        name = self.route(route)
        labels = (name, outcome)
        places = self._cell("attempts_total", labels), self._cell("attempt_duration_seconds", labels)
        if name == route:
            self._attempts[route, outcome] = places
        return places

    def _step_cells(self, step: str) -> tuple[int, int]:
        return self._cell("store_duration_seconds", (step,)), self._cell("store_errors_total", (step,))


def _is_http(reason: str) -> bool:
    number = reason.removeprefix(_HTTP)
    return number != reason and len(number) == 3 and number.isdecimal() and "100" <= number <= "599"


_REQUEST_SUM = len(REQUEST_S) + 1
_OVERHEAD_SUM = len(OVERHEAD_S) + 1
_ATTEMPT_SUM = len(ATTEMPT_S) + 1
_STORE_SUM = len(STORE_S) + 1
