"""What the product exports, as expressions may ask for it: names, labels, label values."""

from __future__ import annotations

from functools import cache
from typing import Any

import promql_parser

from proxy.config import settings_of
from proxy.observe.catalogue import METRICS, PREFIX, Kind, known_series

NOT_OURS = frozenset({"up", "ALERTS"})
PROCESS = frozenset({"safepost_process_cpu_seconds_total", "safepost_process_resident_memory_bytes"})
OF_PROMETHEUS = frozenset({"job", "instance", "le", "alertname", "alertstate", "__name__"})


@cache
def labels_of(name: str) -> frozenset[str] | None:
    """The labels of an exported series, Prometheus' own included; None for what is not exported."""
    if name in NOT_OURS | PROCESS:
        return OF_PROMETHEUS
    for metric in METRICS.values():
        full = PREFIX + metric.name
        names = {full}
        if metric.kind is Kind.HISTOGRAM:
            names = {f"{full}_bucket", f"{full}_sum", f"{full}_count"}
        if name in names:
            return frozenset(metric.labels) | OF_PROMETHEUS
    return None


@cache
def values_of(name: str, label: str) -> frozenset[str]:
    """The values of a label that exist from the start, whatever the platform."""
    base = name.removeprefix(PREFIX)
    metric = METRICS.get(base) or METRICS.get(base.rsplit("_", 1)[0])
    if metric is None:
        return frozenset()
    at = metric.labels.index(label)
    text = "upstream: {url: https://example.test}\nplatform: payhub\n"
    platform = settings_of(text, file="config.yaml").platform
    return frozenset(labels[at] for found, labels in known_series(platform) if found == metric.name)


def selectors(expression: str) -> list[Any]:
    """Every vector selector of an expression, which must be PromQL."""
    found: list[Any] = []
    _walk(promql_parser.parse(expression), found)
    return found


def _walk(node: Any, found: list[Any]) -> None:
    if isinstance(node, promql_parser.VectorSelector):
        found.append(node)
    elif isinstance(node, promql_parser.MatrixSelector):
        found.append(node.vector_selector)
    elif isinstance(node, promql_parser.BinaryExpr):
        _walk(node.lhs, found)
        _walk(node.rhs, found)
    elif isinstance(node, promql_parser.Call):
        for argument in node.args:
            _walk(argument, found)
    elif not isinstance(node, promql_parser.NumberLiteral | promql_parser.StringLiteral):
        _walk(node.expr, found)


def wrong_in(expression: str) -> list[str]:
    """Names, labels and label values that the product does not export."""
    wrong = []
    for selector in selectors(expression):
        labels = labels_of(selector.name)
        if labels is None:
            wrong.append(f"{selector.name} is not exported")
            continue
        for matcher in selector.matchers.matchers:
            if matcher.name not in labels:
                wrong.append(f"{selector.name} has no label {matcher.name}")
            elif matcher.name not in OF_PROMETHEUS and matcher.op == promql_parser.MatchOp.Equal:
                known = values_of(selector.name, matcher.name)
                if matcher.value not in known:
                    wrong.append(f"{selector.name}: {matcher.name} is never {matcher.value!r}")
    return wrong
