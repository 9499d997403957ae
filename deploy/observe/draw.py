"""Pictures of the dashboards from a real Prometheus' answers, for the papers. Drawn here, not by Grafana."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from deploy.observe.boards import Panel, panels
from deploy.observe.server import Prometheus, Series

COLUMN, LINE = 56, 30  # pixels of one unit of Grafana's grid
HEAD = 52
PAD = 10
LEGEND_LINE = 14
LEGEND_LINES_MAX = 4
FONT = 'font-family="DejaVu Sans, Verdana, sans-serif" font-size="11"'
CHARACTER = 6.1  # of the legend's font

COLORS = {"green": "#2f9e44", "blue": "#1c7ed6", "orange": "#e8590c", "red": "#e03131"}
PALETTE = (
    "#2f9e44",
    "#1c7ed6",
    "#e8590c",
    "#e03131",
    "#9c36b5",
    "#0c8599",
    "#f08c00",
    "#495057",
    "#66a80f",
    "#c2255c",
    "#3b5bdb",
    "#a5673f",
)

Line = tuple[str, str, Sequence[tuple[float, float]]]
"""A series to draw: its name, its colour, its points."""


@dataclass(frozen=True, slots=True)
class Frame:
    """Where a graph's points go: pixels for times and values."""

    left: int
    right: int
    top: int
    bottom: int
    from_s: float
    to_s: float
    most: float

    def place(self, at_s: float, value: float) -> tuple[float, float]:
        along = (at_s - self.from_s) / (self.to_s - self.from_s)
        return (
            self.left + (self.right - self.left) * along,
            self.bottom - (self.bottom - self.top) * value / self.most,
        )


@dataclass(slots=True)
class Sheet:
    """One dashboard's picture. `marks`: instants in ms with a word, drawn over every graph."""

    prometheus: Prometheus
    from_ms: int
    to_ms: int
    now_ms: int
    marks: Sequence[tuple[int, str]] = ()
    parts: list[str] = field(default_factory=list)

    async def draw(self, file: Path) -> str:
        """The picture as SVG. Panels of one number show it as it was at `now_ms`."""
        found = list(panels(file))
        bottom = max(p.place["y"] + p.place["h"] for p in found)
        width, height = 24 * COLUMN, HEAD + bottom * LINE + PAD
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" {FONT}>',
            f'<rect width="{width}" height="{height}" fill="#f1f3f5"/>',
            _text(PAD, 22, f"Safepost: {file.stem.replace('-', ' ')}", size=17, weight="bold"),
            _text(PAD, 41, self._caption(), color="#495057"),
        ]
        for panel in found:
            await self._panel(panel)
        return "\n".join([*self.parts, "</svg>", ""])

    @property
    def _step_s(self) -> float:
        return max(1.0, (self.to_ms - self.from_ms) / 1000 / 160)

    def _caption(self) -> str:
        now_s = (self.now_ms - self.from_ms) / 1000
        phases = ", ".join(f"{word} at {_clock((at - self.from_ms) / 1000)}" for at, word in self.marks)
        length = _clock((self.to_ms - self.from_ms) / 1000)
        return f"A drill of {length} min: {phases}. Numbers as at {_clock(now_s)}."

    async def _panel(self, panel: Panel) -> None:
        x, y = panel.place["x"] * COLUMN, HEAD + panel.place["y"] * LINE
        width, height = panel.place["w"] * COLUMN, panel.place["h"] * LINE
        if panel.kind == "row":
            self.parts.append(_text(x + PAD, y + 21, panel.title, size=13, weight="bold"))
            return
        self.parts.append(
            f'<rect x="{x + 3}" y="{y + 3}" width="{width - 6}" height="{height - 6}" rx="3" fill="#fff" '
            f'stroke="#ced4da"/>'
        )
        self.parts.append(_text(x + PAD, y + 19, panel.title, weight="bold"))
        if panel.kind == "timeseries":
            await self._graph(panel, x, y, width, height)
            return
        series = [
            (ask.named(one.labels), one.samples[-1][1])
            for ask in panel.asks
            for one in await self.prometheus.instant(ask.filled, self.now_ms)
        ]
        draw = self._stat if panel.kind == "stat" else self._bars
        draw(panel, sorted(series), x, y, width, height)

    def _stat(
        self, panel: Panel, values: Sequence[tuple[str, float]], x: int, y: int, width: int, height: int
    ) -> None:
        share = width / max(1, len(values))
        for at, (name, value) in enumerate(values):
            middle = x + share * (at + 0.5)
            text, color = _worded(panel, value)
            self.parts.append(
                _text(middle, y + height / 2 + 20, text, size=26, weight="bold", color=color, anchor="middle")
            )
            self.parts.append(_text(middle, y + height - 14, name, color="#495057", anchor="middle"))

    def _bars(
        self, panel: Panel, values: Sequence[tuple[str, float]], x: int, y: int, width: int, height: int
    ) -> None:
        most = max([value for _, value in values] + [1e-9])
        step = min(24.0, (height - 40) / max(1, len(values)))
        for at, (name, value) in enumerate(values):
            top = y + 34 + at * step
            text, color = _worded(panel, value)
            room = width * 0.6 - PAD - 60
            self.parts.append(
                _text(x + PAD, top + step * 0.6, name[: int(width * 0.4 / CHARACTER) - 3], color="#495057")
            )
            self.parts.append(
                f'<rect x="{x + width * 0.4:.0f}" y="{top:.1f}" width="{max(1.0, room * value / most):.1f}" '
                f'height="{step * 0.7:.1f}" fill="{color}" fill-opacity="0.6"/>'
            )
            self.parts.append(
                _text(x + width - PAD, top + step * 0.6, text, weight="bold", color=color, anchor="end")
            )

    async def _lines(self, panel: Panel) -> list[Line]:
        step_s = self._step_s
        found: list[tuple[str, Series]] = []
        for ask in panel.asks:
            answer = await self.prometheus.over(
                ask.filled, from_ms=self.from_ms, to_ms=self.to_ms, step_s=step_s
            )
            found += sorted(((ask.named(one.labels), one) for one in answer), key=lambda pair: pair[0])
        lines: list[Line] = [
            (name, PALETTE[at % len(PALETTE)], [p for p in one.samples if math.isfinite(p[1])])
            for at, (name, one) in enumerate(found)
        ]
        return [line for line in lines if line[2]]

    async def _graph(self, panel: Panel, x: int, y: int, width: int, height: int) -> None:
        lines = await self._lines(panel)
        is_stacked = panel.defaults["custom"]["stacking"]["mode"] == "normal"
        if is_stacked:
            lines = _stacked(lines)
        legend = _legend(lines, width - 2 * PAD)
        most = _ceiling(max((value for _, _, points in lines for _, value in points), default=1.0))
        frame = Frame(
            left=x + 52,
            right=x + width - 14,
            top=y + 30,
            bottom=y + height - 26 - LEGEND_LINE * len(legend),
            from_s=self.from_ms / 1000,
            to_s=self.to_ms / 1000,
            most=most,
        )
        self._axes(panel, frame)
        for _, color, points in reversed(lines):
            for stretch in _stretches(points, 1.6 * self._step_s):
                self._stretch(frame, stretch, color, is_filled=is_stacked)
        for row, entries in enumerate(legend):
            along, base = float(x + PAD), frame.bottom + 28 + row * LEGEND_LINE
            for name, color in entries:
                self.parts.append(
                    f'<rect x="{along:.0f}" y="{base - 7}" width="9" height="4" fill="{color}"/>'
                )
                self.parts.append(_text(along + 13, base, name, size=10, color="#495057"))
                along += _room(name)

    def _axes(self, panel: Panel, frame: Frame) -> None:
        for part in range(5):
            _, line = frame.place(frame.from_s, frame.most * part / 4)
            self.parts.append(f'<path d="M{frame.left} {line:.1f}H{frame.right}" stroke="#e9ecef"/>')
            label = _number(frame.most * part / 4, str(panel.defaults["unit"]))
            self.parts.append(_text(frame.left - 5, line + 4, label, size=9, color="#868e96", anchor="end"))
        for at_ms, _ in self.marks:
            mark, _ = frame.place(at_ms / 1000, 0)
            path = f"M{mark:.1f} {frame.top}V{frame.bottom}"
            self.parts.append(f'<path d="{path}" stroke="#adb5bd" stroke-dasharray="2 3"/>')
        for at_s in range(0, int(frame.to_s - frame.from_s) + 1, 30):
            tick, _ = frame.place(frame.from_s + at_s, 0)
            self.parts.append(
                _text(tick, frame.bottom + 13, _clock(at_s), size=9, color="#868e96", anchor="middle")
            )
        for threshold in panel.defaults["thresholds"]["steps"][1:]:
            if 0 < threshold["value"] <= frame.most:
                _, line = frame.place(frame.from_s, threshold["value"])
                path, color = f"M{frame.left} {line:.1f}H{frame.right}", COLORS[threshold["color"]]
                self.parts.append(f'<path d="{path}" stroke="{color}" stroke-dasharray="6 4"/>')

    def _stretch(
        self, frame: Frame, points: Sequence[tuple[float, float]], color: str, *, is_filled: bool
    ) -> None:
        placed = [frame.place(*point) for point in points]
        path = "M" + "L".join(f"{px:.0f} {py:.1f}" for px, py in placed)
        if is_filled:
            area = f"{path}L{placed[-1][0]:.0f} {frame.bottom}L{placed[0][0]:.0f} {frame.bottom}Z"
            self.parts.append(f'<path d="{area}" fill="#fff"/>')
            self.parts.append(f'<path d="{area}" fill="{color}" fill-opacity="0.35"/>')
        self.parts.append(f'<path d="{path}" fill="none" stroke="{color}" stroke-width="1.4"/>')


def _stacked(lines: Sequence[Line]) -> list[Line]:
    totals: dict[float, float] = {}
    found: list[Line] = []
    for name, color, points in lines:
        for at_s, value in points:
            totals[at_s] = totals.get(at_s, 0.0) + value
        found.append((name, color, [(at_s, totals[at_s]) for at_s, _ in points]))
    return found


def _stretches(points: Sequence[tuple[float, float]], gap_s: float) -> list[list[tuple[float, float]]]:
    """Points without a hole between them; across a hole no line is drawn."""
    found: list[list[tuple[float, float]]] = []
    for point in points:
        if found and point[0] - found[-1][-1][0] <= gap_s:
            found[-1].append(point)
        else:
            found.append([point])
    return found


def _room(name: str) -> float:
    return 26 + len(name) * CHARACTER


def _legend(lines: Sequence[Line], width: float) -> list[list[tuple[str, str]]]:
    """Names that show something in lines that fit; what does not fit is counted."""
    telling = [line for line in lines if any(value for _, value in line[2])] or list(lines[:3])
    rows: list[list[tuple[str, str]]] = [[]]
    used = 0.0
    for at, (name, color, _) in enumerate(telling):
        if used + _room(name) > width and rows[-1]:
            if len(rows) == LEGEND_LINES_MAX:
                rows[-1].append((f"and {len(telling) - at} more", "#fff"))
                return rows
            rows.append([])
            used = 0.0
        rows[-1].append((name, color))
        used += _room(name)
    return rows


def _worded(panel: Panel, value: float) -> tuple[str, str]:
    """A value's text and colour, by the panel's mappings and thresholds."""
    for mapping in panel.defaults.get("mappings", ()):
        word = mapping["options"].get(f"{value:g}")
        if word:
            return str(word["text"]), COLORS[word["color"]]
    color = COLORS["green"]
    for step in panel.defaults["thresholds"]["steps"]:
        if step["value"] is None or value >= step["value"]:
            color = COLORS[step["color"]]
    return _number(value, str(panel.defaults["unit"])), color


def _ceiling(value: float) -> float:
    """The next round number."""
    if value <= 0:
        return 1.0
    power: float = 10.0 ** math.floor(math.log10(value))
    return next(power * n for n in (1, 2, 2.5, 5, 10) if value <= power * n * 1.0001)


def _number(value: float, unit: str) -> str:
    if not math.isfinite(value):
        return "no data"
    if unit == "s":
        return _seconds(value)
    if unit == "percentunit":
        return f"{value * 100:.3g} %"
    if unit == "bytes":
        return f"{value / 2**20:.4g} MiB"
    text = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    return f"{text}{'/s' if unit in ('ops', 'reqps') else ''}"


def _seconds(value: float) -> str:
    if value == 0:
        return "0"
    if value < 0.001:
        return f"{value * 1e6:.3g} µs"
    if value < 1:
        return f"{value * 1e3:.3g} ms"
    return f"{value:.3g} s" if value < 120 else f"{value / 60:.3g} min"


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def _text(
    x: float,
    y: float,
    text: str,
    *,
    size: int = 11,
    weight: str = "normal",
    color: str = "#212529",
    anchor: str = "start",
) -> str:
    return (
        f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}" font-weight="{weight}" fill="{color}" '
        f'text-anchor="{anchor}">{escape(text)}</text>'
    )
