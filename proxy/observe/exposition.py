"""The metrics as a page: the text format, or OpenMetrics with exemplars for a scraper that asks for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from prometheus_client.core import Metric as Family
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.exposition import generate_latest as as_text
from prometheus_client.openmetrics.exposition import generate_latest as as_open_metrics
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.samples import Exemplar

from proxy.observe.catalogue import METRICS, PREFIX, Kind, Metric
from proxy.observe.cells import Labels, Series

OPEN_METRICS = "application/openmetrics-text"
OPEN_METRICS_TYPE = f"{OPEN_METRICS}; version=1.0.0; charset=utf-8"
TEXT_TYPE = CONTENT_TYPE_PLAIN_0_0_4


@dataclass(frozen=True, slots=True)
class Trace:
    """The trace of one call that a bucket counted: the way from a graph to a request."""

    trace_id: str
    seconds: float
    wall_ms: int


Traces = dict[tuple[str, Labels, int], Trace]
"""By metric, label values and number of the bucket."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All series at one instant. Made on the loop, rendered beside it: a page takes some milliseconds."""

    series: Series
    traces: Traces

    def collect(self) -> Iterator[Family]:
        by_name: dict[str, list[tuple[Labels, tuple[float, ...]]]] = {}
        for (name, labels), cells in self.series.items():
            by_name.setdefault(name, []).append((labels, cells))
        for name, rows in by_name.items():
            yield self._family(METRICS[name], rows)
        yield from _PROCESS.collect()

    def _family(self, metric: Metric, rows: list[tuple[Labels, tuple[float, ...]]]) -> Family:
        name = PREFIX + metric.name
        family = Family(name.removesuffix("_total"), metric.help, metric.kind.value)
        for labels, cells in rows:
            named = dict(zip(metric.labels, labels, strict=True))
            if metric.kind is Kind.HISTOGRAM:
                self._buckets(family, metric, labels, cells)
            else:
                family.add_sample(name, named, cells[0])
        return family

    def _buckets(self, family: Family, metric: Metric, labels: Labels, cells: tuple[float, ...]) -> None:
        name = PREFIX + metric.name
        named = dict(zip(metric.labels, labels, strict=True))
        count = 0.0
        for number, bound in enumerate((*map(str, metric.bounds), "+Inf")):
            count += cells[number]
            trace = self.traces.get((metric.name, labels, number))
            exemplar = (
                Exemplar({"trace_id": trace.trace_id}, trace.seconds, trace.wall_ms / 1000) if trace else None
            )
            family.add_sample(f"{name}_bucket", {**named, "le": bound}, count, exemplar=exemplar)
        family.add_sample(f"{name}_count", named, count)
        family.add_sample(f"{name}_sum", named, cells[-1])


_PROCESS = ProcessCollector(namespace="safepost", registry=None)


def wants_open_metrics(accept: str) -> bool:
    """Whether the scraper named OpenMetrics among what it accepts."""
    return any(_media(one) == OPEN_METRICS for one in accept.split(","))


def _media(accepted: str) -> str:
    return accepted.partition(";")[0].strip().lower()


def page(snapshot: Snapshot, accept: str) -> tuple[str, bytes]:
    """The content type and the page."""
    if wants_open_metrics(accept):
        body: bytes = as_open_metrics(snapshot)  # type: ignore[no-untyped-call]  # the library has no types here
        return OPEN_METRICS_TYPE, body
    return TEXT_TYPE, as_text(snapshot)


def names_on(families: Iterable[Family]) -> frozenset[str]:
    """The names of all samples: what a dashboard may ask for."""
    return frozenset(sample.name for family in families for sample in family.samples)
