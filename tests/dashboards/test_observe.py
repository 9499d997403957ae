"""What judges the drill must itself find what is wrong."""

from __future__ import annotations

import math
import re
from collections import Counter

import pytest

from deploy.observe.boards import Ask, filled, is_empty
from deploy.observe.judge import unexpected
from deploy.observe.second import ACTS
from deploy.observe.server import Firing, Series
from proxy.drill import PHASES, PhaseResult
from tests.tidy.tree import ROOT

PHASE = next(phase for phase in PHASES if len(phase.alerts) > 1)
RESULT = PhaseResult(PHASE, began_ms=0, ended_ms=10_000, rested_ms=30_000, told=Counter(), charges=0)
RIGHT = [Firing(name, 5_000, 12_000) for name in sorted(PHASE.alerts)]


def test_expected_alerts_that_fire_and_clear_are_right() -> None:
    assert unexpected([RESULT], RIGHT) == []


@pytest.mark.parametrize(
    ("firings", "told"),
    [
        pytest.param(RIGHT[1:], "did not fire", id="one is missing"),
        pytest.param([*RIGHT, Firing("SafepostDown", 6_000, 7_000)], "SafepostDown fired", id="one too many"),
        pytest.param(
            [Firing(RIGHT[0].name, 5_000, 29_900), *RIGHT[1:]], "did not clear", id="one that stays"
        ),
        pytest.param(
            [*RIGHT, Firing(RIGHT[0].name, 31_000, 32_000)], "outside any phase", id="one that comes late"
        ),
    ],
)
def test_other_alerts_are_wrong(firings: list[Firing], told: str) -> None:
    assert [line for line in unexpected([RESULT], firings) if told in line] != []


def test_variables_and_legends_are_filled_in_as_grafana_does() -> None:
    ask = Ask("$stores by (route) (x[$__rate_interval])", "{{route}} {{ kind }}{{gone}}")

    assert ask.filled == filled(ask.expression) == "max by (route) (x[4s])"
    assert ask.named({"route": "r", "kind": "k"}) == "r k"


@pytest.mark.parametrize(
    ("values", "empty"),
    [([], True), ([math.nan], True), ([math.inf], True), ([0.0], False), ([math.nan, 1.0], False)],
)
def test_a_panel_is_empty_without_a_number(values: list[float], empty: bool) -> None:
    assert is_empty([Series({}, [(0.0, value) for value in values])]) is empty


def test_paper_names_the_drill_s_alerts_by_phase() -> None:
    text = (ROOT / "docs" / "dashboards.md").read_text(encoding="utf-8")
    rows = [set(re.findall(r"`(Safepost\w+)`", line)) for line in text.splitlines() if line.startswith("| ")]

    played = [*(phase.alerts for phase in PHASES), *(act.alerts for act in ACTS)]
    assert [alerts for alerts in played if alerts] == [row for row in rows if row]
