"""Parts that every dashboard is made of, as Grafana's JSON wants them.

Written against the classic dashboard model (schema version 41), which Grafana 11 and later import as it is. The
data source is a variable in every place that names one (O-62), and every rate asks for `$__rate_interval`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

SCHEMA_VERSION = 41
WIDTH = 24  # of Grafana's grid

SELECTED = 'job=~"$job",instance=~"$instance"'
"""What every expression selects: the processes that the dashboard's variables name."""

DATA_SOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}
OK, NOTICE, WARN, BAD = "green", "blue", "orange", "red"

Steps = Sequence[tuple[float | None, str]]
CALM: Steps = ((None, OK),)


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel before it has a place. `asks`: pairs of expression and legend."""

    kind: str
    title: str
    tells: str
    unit: str
    asks: Sequence[tuple[str, str]]
    steps: Steps
    runbook: str | None = None
    width: int = 8
    height: int = 8
    stacked: bool = False
    words: Sequence[tuple[int, str, str]] = ()

    def json(self, number: int, x: int, y: int) -> Json:
        made: Json = {
            "id": number,
            "type": self.kind,
            "title": self.title,
            "description": self.tells,
            "datasource": DATA_SOURCE,
            "gridPos": {"h": self.height, "w": self.width, "x": x, "y": y},
            "fieldConfig": {"defaults": self._defaults(), "overrides": []},
            "options": _OPTIONS[self.kind],
            "targets": [self._target(at, *ask) for at, ask in enumerate(self.asks)],
        }
        if self.runbook:
            url = "${runbooks}/" + f"{self.runbook}.md"
            tells = "What it means for the money, and what to do first"
            made["links"] = [_link(f"Runbook: {self.runbook}", url, tells)]
        return made

    def _defaults(self) -> Json:
        made: Json = {
            "unit": self.unit,
            "min": 0,
            "thresholds": {
                "mode": "absolute",
                "steps": [{"color": color, "value": value} for value, color in self.steps],
            },
            "color": {"mode": "thresholds" if self.kind != "timeseries" else "palette-classic"},
        }
        if self.kind == "stat":
            made["noValue"] = "–"
        if self.words:
            named = {str(value): {"text": text, "color": color} for value, text, color in self.words}
            made["mappings"] = [{"type": "value", "options": named}]
        if self.kind == "timeseries":
            made["custom"] = {
                "drawStyle": "line",
                "lineWidth": 1,
                "fillOpacity": 30 if self.stacked else 8,
                "showPoints": "never",
                "spanNulls": False,
                "stacking": {"mode": "normal" if self.stacked else "none", "group": "A"},
                "thresholdsStyle": {"mode": "line" if len(self.steps) > 1 else "off"},
            }
        return made

    def _target(self, at: int, expression: str, legend: str) -> Json:
        is_series = self.kind == "timeseries"
        return {
            "refId": chr(ord("A") + at),
            "datasource": DATA_SOURCE,
            "editorMode": "code",
            "expr": expression,
            "legendFormat": legend,
            "range": is_series,
            "instant": not is_series,
        }


_REDUCED: Json = {"calcs": ["lastNotNull"], "fields": "", "values": False}
_OPTIONS: dict[str, Json] = {
    "timeseries": {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "stat": {
        "reduceOptions": _REDUCED,
        "colorMode": "value",
        "graphMode": "none",
        "justifyMode": "auto",
        "textMode": "auto",
        "orientation": "auto",
        "wideLayout": True,
    },
    "bargauge": {
        "reduceOptions": _REDUCED,
        "displayMode": "basic",
        "orientation": "horizontal",
        "valueMode": "color",
        "showUnfilled": True,
        "minVizHeight": 12,
        "minVizWidth": 8,
        "sizing": "auto",
        "namePlacement": "auto",
        "maxVizHeight": 300,
    },
}


@dataclass(frozen=True, slots=True)
class Row:
    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True, slots=True)
class Board:
    """One dashboard."""

    uid: str
    title: str
    tells: str
    rows: Sequence[Row]
    tags: Sequence[str] = field(default=("safepost",))

    def json(self) -> Json:
        return {
            "uid": self.uid,
            "title": self.title,
            "description": self.tells,
            "tags": list(self.tags),
            "schemaVersion": SCHEMA_VERSION,
            "version": 1,
            "editable": True,
            "graphTooltip": 1,
            "timezone": "browser",
            "refresh": "30s",
            "time": {"from": "now-1h", "to": "now"},
            "templating": {"list": _variables()},
            "annotations": {"list": [_alerts()]},
            "links": _links(),
            "panels": self._panels(),
        }

    def _panels(self) -> list[Json]:
        found: list[Json] = []
        y = 0
        for row in self.rows:
            place = {"h": 1, "w": WIDTH, "x": 0, "y": y}
            heading = {"type": "row", "title": row.title, "collapsed": False, "panels": []}
            found.append({"id": len(found) + 1, "gridPos": place, **heading})
            y += 1
            x = tallest = 0
            for panel in row.panels:
                if x + panel.width > WIDTH:
                    x, y, tallest = 0, y + tallest, 0
                found.append(panel.json(len(found) + 1, x, y))
                x, tallest = x + panel.width, max(tallest, panel.height)
            y += tallest
        return found


def _variables() -> list[Json]:
    stores = [("share one store", "max"), ("have a store each", "sum")]
    return [
        {
            "name": "datasource",
            "label": "Data source",
            "type": "datasource",
            "query": "prometheus",
            "hide": 0,
        },
        _labels("job", "Job", "label_values(safepost_build_info, job)"),
        _labels("instance", "Instance", 'label_values(safepost_build_info{job=~"$job"}, instance)'),
        {
            "name": "stores",
            "label": "Instances",
            "description": "Instances on one Redis all tell of the same operations; with a file each, they don't.",
            "type": "custom",
            "query": ",".join(f"{text} : {value}" for text, value in stores),
            "options": [{"text": text, "value": value, "selected": value == "max"} for text, value in stores],
            "current": {"text": stores[0][0], "value": "max", "selected": True},
        },
        {
            "name": "runbooks",
            "label": "Runbooks at",
            "description": "Where your copy of docs/runbooks is served; the links of panels begin with it.",
            "type": "textbox",
            "query": RUNBOOKS,
            "current": {"text": RUNBOOKS, "value": RUNBOOKS, "selected": True},
        },
    ]


RUNBOOKS = "https://docs.example/safepost/runbooks"


def _labels(name: str, label: str, query: str) -> Json:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": DATA_SOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "current": {"text": ["All"], "value": ["$__all"], "selected": True},
    }


def _alerts() -> Json:
    """Firing alerts as marks over every graph."""
    return {
        "name": "Alerts",
        "datasource": DATA_SOURCE,
        "enable": True,
        "iconColor": "red",
        "target": {
            "refId": "Anno",
            "expr": 'ALERTS{alertname=~"Safepost.*",alertstate="firing"}',
            "interval": "30s",
        },
        "titleFormat": "{{alertname}}",
    }


def _links() -> list[Json]:
    tells = "What each alert means for the money, and the first three actions"
    others = _link("Safepost", "", "The other dashboards of Safepost")
    others |= {"type": "dashboards", "tags": ["safepost"], "includeVars": True, "keepTime": True}
    return [{**others, "targetBlank": False}, _link("Runbooks", "${runbooks}/README.md", tells)]


def _link(title: str, url: str, tells: str) -> Json:
    return {
        "title": title,
        "type": "link",
        "url": url,
        "tooltip": tells,
        "icon": "external link",
        "tags": [],
        "asDropdown": False,
        "includeVars": False,
        "keepTime": False,
        "targetBlank": True,
    }


# --- expressions ------------------------------------------------------------------------------------------------


def of(metric: str, *matchers: str) -> str:
    """The series of a metric that the dashboard's variables select."""
    return f"safepost_{metric}{{{','.join((SELECTED, *matchers))}}}"


def rate(metric: str, by: str, *matchers: str) -> str:
    """Events a second, by a label."""
    return f"sum by ({by}) (rate({of(metric, *matchers)}[$__rate_interval]))"


def total(metric: str, *matchers: str) -> str:
    """Events a second, all together."""
    return f"sum(rate({of(metric, *matchers)}[$__rate_interval]))"


def grown(metric: str, *matchers: str, over: str = "$__rate_interval", by: str = "") -> str:
    """How many events within a time."""
    return f"sum{f' by ({by})' if by else ''} (increase({of(metric, *matchers)}[{over}]))"


def quantile(share: float, metric: str, by: str = "", *matchers: str) -> str:
    """A quantile of a histogram's recent observations."""
    labels = f"le, {by}" if by else "le"
    found = rate(f"{metric}_bucket", labels, *matchers)
    return f"histogram_quantile({share}, {found})"


def held(metric: str, by: str = "") -> str:
    """A gauge that tells of a whole store: what instances sharing it say is the same and must not be added."""
    inner = f"sum by (job, instance{', ' + by if by else ''}) ({of(metric)})"
    return f"$stores by ({by}) ({inner})" if by else f"$stores ({inner})"


# --- panels -----------------------------------------------------------------------------------------------------


def stat(
    title: str,
    tells: str,
    ask: str,
    *,
    unit: str = "short",
    steps: Steps = CALM,
    legend: str = "",
    runbook: str | None = None,
    width: int = 4,
    words: Sequence[tuple[int, str, str]] = (),
) -> Panel:
    return Panel(
        "stat", title, tells, unit, ((ask, legend),), steps, runbook, width=width, height=4, words=words
    )


def graph(
    title: str,
    tells: str,
    *asks: tuple[str, str],
    unit: str = "short",
    steps: Steps = CALM,
    runbook: str | None = None,
    width: int = 8,
    stacked: bool = False,
) -> Panel:
    return Panel("timeseries", title, tells, unit, asks, steps, runbook, width=width, stacked=stacked)


def bars(
    title: str,
    tells: str,
    ask: str,
    *,
    legend: str,
    unit: str = "short",
    steps: Steps = CALM,
    runbook: str | None = None,
    width: int = 8,
) -> Panel:
    return Panel("bargauge", title, tells, unit, ((ask, legend),), steps, runbook, width=width)
