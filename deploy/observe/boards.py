"""The dashboards' panels as questions to a Prometheus, with Grafana's variables filled in."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.observe.server import ROOT, Prometheus, Series

FOLDER = ROOT / "dashboards"
RATE_INTERVAL = "4s"
"""What Grafana takes for a scrape every second: four of them."""

FILLED = {"$__rate_interval": RATE_INTERVAL, "$job": ".*", "$instance": ".*", "$stores": "max"}


@dataclass(frozen=True, slots=True)
class Ask:
    """One question of a panel."""

    expression: str
    legend: str

    @property
    def filled(self) -> str:
        return filled(self.expression)

    def named(self, labels: Mapping[str, str]) -> str:
        """The legend for a series, as Grafana fills it in."""
        return re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda m: labels.get(m[1], ""), self.legend)


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel with its place in Grafana's grid of 24 columns."""

    board: str
    kind: str
    title: str
    place: Mapping[str, int]
    defaults: Mapping[str, Any]
    asks: Sequence[Ask]

    @property
    def name(self) -> str:
        return f"{self.board}: {self.title}"


def files() -> list[Path]:
    return sorted(FOLDER.glob("*.json"))


def filled(expression: str, values: Mapping[str, str] = FILLED) -> str:
    for name, value in values.items():
        expression = expression.replace(name, value)
    return expression


def panels(file: Path) -> Iterator[Panel]:
    """Every panel of a dashboard's file, rows included: they ask nothing."""
    board = json.loads(file.read_text(encoding="utf-8"))
    for one in board["panels"]:
        yield Panel(
            board=file.stem,
            kind=one["type"],
            title=one["title"],
            place=one["gridPos"],
            defaults=one.get("fieldConfig", {}).get("defaults", {}),
            asks=[Ask(target["expr"], target["legendFormat"]) for target in one.get("targets", ())],
        )


def is_empty(found: Sequence[Series]) -> bool:
    """Whether there is nothing to draw: no series, or no number in any."""
    return not any(math.isfinite(value) for series in found for _, value in series.samples)


async def empty_panels(prometheus: Prometheus, *, from_ms: int, to_ms: int) -> list[str]:
    """The questions that a real Prometheus has no answer to, of any panel."""
    found: list[str] = []
    for panel in (panel for file in files() for panel in panels(file)):
        for ask in panel.asks:
            answer = await prometheus.over(ask.filled, from_ms=from_ms, to_ms=to_ms)
            found += [f"{panel.name}: {ask.filled}"] if is_empty(answer) else []
    return found
