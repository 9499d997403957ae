"""Writes docs/metrics.md from the catalogue: `python -m tests.observe.metrics_page`."""

from __future__ import annotations

from pathlib import Path

from proxy.observe.catalogue import METRICS, PREFIX, Kind, Metric

FILE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"

_HEAD = """# Metrics

`GET /metrics` on the admin listener. Plain text, or OpenMetrics for a scraper that asks for it: then each bucket
of `safepost_request_duration_seconds` carries the trace of the last call that fell into it.

Known series exist at 0 from the start. Labels hold few words only: names of the platform's routes and `other`,
methods, statuses from 100 to 599 (0: the caller was gone), the product's own words. No key, id, order number or
path.

With several workers any scrape holds everyone's counts. How their values meet stands in the last column.

Written by `python -m tests.observe.metrics_page`; a test compares it with the product.

| metric | kind | labels | what it tells | workers |
| --- | --- | --- | --- | --- |
"""

_TAIL = """
Memory, CPU time, open files and the start of the process have prometheus-client's usual names behind the prefix;
they are those of the worker that was scraped.

## Words

| label | words |
| --- | --- |
| `knowledge` | executed, pending, not_executed, unknown; empty: nothing was read of it |
| `outcome` | executed, pending, released, refused, not_executed, not_sent, in_doubt |
| `reason` | what ended an attempt: the wire's word, `http_STATUS`, or a code that the preset names |
| `by` | answer, late_answer, lookup, event, person |
| `result` | of a lookup: found, missed, failed |
| `cause` | why a call did not reach the platform again: collapsed, replayed, guard, twin |
| `verdict` | of a platform's event: applied, kept, hint, ignored, refused, failed |

Rules of Prometheus and dashboards of Grafana that use them are in `dashboards/`.
"""


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels) or "–"
    meets = {"sum": "sum", "max": "highest", "min": "lowest"}[metric.merged_by]
    workers = meets if metric.kind is Kind.GAUGE else "sum"
    return f"| `{PREFIX}{metric.name}` | {metric.kind} | {labels} | {metric.help} | {workers} |\n"


def text() -> str:
    return _HEAD + "".join(_row(metric) for metric in METRICS.values()) + _TAIL


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
