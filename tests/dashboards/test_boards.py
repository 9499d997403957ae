"""Dashboards: importable, asking for what exists, and nothing left out on a panel."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from dashboards.source.files import stale
from deploy.observe.boards import FOLDER, Panel, files, panels
from tests.dashboards.series import selectors, values_of, wrong_in
from tests.tidy.tree import ROOT

DRAWN = [panel for file in files() for panel in panels(file) if panel.kind != "row"]
ASKS = [(panel, ask.expression, ask.filled) for panel in DRAWN for ask in panel.asks]

WITHOUT_A_PAGE = {
    "overview: Alerts firing",
    "overview: Waiting for another call's run",
    "platform-health: Definite answers",
    "platform-health: Turned away",
}
"""Red is a hint there, and the panels beside them lead on."""

every_board = pytest.mark.parametrize("file", files(), ids=lambda file: file.stem)
every_panel = pytest.mark.parametrize("panel", DRAWN, ids=lambda panel: panel.name)


def _json(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def _panel_of(panel: Panel) -> dict[str, Any]:
    board = _json(FOLDER / f"{panel.board}.json")
    found: dict[str, Any] = next(
        p for p in board["panels"] if p["title"] == panel.title and p["type"] != "row"
    )
    return found


def test_there_are_three() -> None:
    assert [file.stem for file in files()] == ["money-in-doubt", "overview", "platform-health"]


def test_files_are_as_their_source_makes_them() -> None:
    assert stale() == []


@every_board
def test_data_source_is_a_variable_in_every_place(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    board = _json(file)

    assert set(re.findall(r'"uid": "(\$?[^"]+)"', text)) == {"${datasource}", board["uid"]}
    assert [v["query"] for v in board["templating"]["list"] if v["name"] == "datasource"] == ["prometheus"]


@every_board
def test_uids_titles_and_ids_are_unique(file: Path) -> None:
    boards = [_json(one) for one in files()]
    numbers = [panel["id"] for panel in _json(file)["panels"]]
    titles = [(p["type"], p["title"]) for p in _json(file)["panels"]]

    assert len({board["uid"] for board in boards}) == len({board["title"] for board in boards}) == 3
    assert len(set(numbers)) == len(numbers)
    assert len(set(titles)) == len(titles)


@every_board
def test_panels_fill_the_grid_without_overlap(file: Path) -> None:
    cells: set[tuple[int, int]] = set()
    for panel in _json(file)["panels"]:
        place = panel["gridPos"]
        covered = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & covered, panel["title"]
        assert place["x"] + place["w"] <= 24
        cells |= covered


@every_board
def test_variables_that_are_used_are_declared(file: Path) -> None:
    board = _json(file)
    declared = {variable["name"] for variable in board["templating"]["list"]}
    used = set(re.findall(r"\$\{?([a-z]\w*)", file.read_text(encoding="utf-8")))

    assert used - declared == set()


@every_panel
def test_panel_has_title_description_unit_and_thresholds(panel: Panel) -> None:
    told = _panel_of(panel)

    assert len(panel.title) > 3
    assert len(told["description"]) > 15
    assert panel.defaults["unit"]
    assert panel.defaults["thresholds"]["steps"][0]["value"] is None
    assert panel.asks


@every_panel
def test_runbook_of_a_panel_exists_in_both_languages(panel: Panel) -> None:
    for link in _panel_of(panel).get("links", ()):
        name = link["url"].removeprefix("${runbooks}/")

        assert (ROOT / "docs" / "runbooks" / name).exists(), name
        assert (ROOT / "docs" / "runbooks" / "zh-CN" / name).exists(), name


def test_panels_that_can_be_red_link_to_a_runbook() -> None:
    """A panel whose colour means trouble says what to do; shares and speeds of the platform are watched."""
    counted = [p for p in DRAWN if any(step["color"] == "red" for step in p.defaults["thresholds"]["steps"])]
    without = {panel.name for panel in counted if not _panel_of(panel).get("links")}

    assert without == WITHOUT_A_PAGE


@pytest.mark.parametrize(
    ("panel", "raw", "asked"), ASKS, ids=[f"{p.name} {i}" for i, (p, *_) in enumerate(ASKS)]
)
def test_question_is_promql_about_what_the_product_exports(panel: Panel, raw: str, asked: str) -> None:
    assert wrong_in(asked) == []
    assert "$__interval" not in raw
    for window in re.findall(r"\brate\([^}]*\}\[([^\]]+)\]", raw):
        assert window == "$__rate_interval"


def test_question_selects_the_job_and_instance_that_are_chosen() -> None:
    unselected = [
        f"{panel.name}: {selector.name}"
        for panel, _, asked in ASKS
        for selector in selectors(asked)
        if selector.name.startswith("safepost_")
        and {"job", "instance"} - {matcher.name for matcher in selector.matchers.matchers}
    ]

    assert unselected == []


@pytest.mark.parametrize(
    "expression",
    [
        "sum(safepost_atempts_total)",
        'safepost_lookups_total{outcome="failed"}',
        'safepost_lookups_total{result="refused"}',
        "rate(safepost_store_duration_seconds[5m])",
    ],
)
def test_question_about_what_does_not_exist_is_found(expression: str) -> None:
    assert wrong_in(expression) != []


def test_words_of_the_platform_panels_are_the_product_s() -> None:
    outcomes = {"executed", "pending", "released", "refused", "in_doubt", "not_sent", "not_executed"}

    assert values_of("safepost_attempts_total", "outcome") == outcomes


def test_every_metric_of_money_is_on_a_dashboard() -> None:
    """What M1 counts in money and doubt is seen somewhere."""
    asked = {selector.name for _, _, one in ASKS for selector in selectors(one)}
    wanted = {
        "safepost_unknown_operations",
        "safepost_pending_operations",
        "safepost_oldest_unknown_seconds",
        "safepost_unknown_amount",
        "safepost_unknown_results_total",
        "safepost_time_to_certainty_seconds_bucket",
        "safepost_lookups_total",
        "safepost_settled_total",
        "safepost_duplicates_prevented_total",
        "safepost_guard_blocked_total",
        "safepost_conflicts_total",
        "safepost_outcome_conflicts_total",
    }

    assert wanted - asked == set()
