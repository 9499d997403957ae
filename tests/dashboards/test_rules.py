"""Alert rules: about what exists, tested by promtool, each with its pages."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import Any

import pytest
import yaml

from deploy.observe.second import ACTS
from deploy.observe.server import RULES, squeezed, squeezed_rules
from proxy.drill import PHASES
from tests.dashboards.series import wrong_in
from tests.tidy.tree import ROOT

UNIT_TESTS = RULES.with_name("safepost.rules.test.yml")
RUNBOOKS = ROOT / "docs" / "runbooks"
GROUPS: list[dict[str, Any]] = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
ALERTS: list[dict[str, Any]] = [rule for group in GROUPS for rule in group["rules"]]

every_alert = pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])


def _promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("no promtool on this machine; Debian: apt-get install prometheus")
    return subprocess.run([found, *arguments], capture_output=True, text=True, timeout=60, check=False)


def _page(rule: dict[str, Any], name: str) -> str:
    """The page's path under docs/ where no address is set."""
    found = re.search(r"\{\{ end \}\}(runbooks/\S+)$", rule["annotations"][name])
    assert found is not None
    return found[1]


def test_rules_hold_their_unit_tests() -> None:
    tested = _promtool("test", "rules", str(UNIT_TESTS))

    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_configuration_beside_one_host_is_valid() -> None:
    checked = _promtool("check", "config", str(ROOT / "deploy" / "observe" / "prometheus.yml"))

    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_unit_tests_fail_when_a_duration_changes(tmp_path: Any) -> None:
    (tmp_path / RULES.name).write_text(RULES.read_text().replace("for: 2m", "for: 9m"))
    (tmp_path / UNIT_TESTS.name).write_text(UNIT_TESTS.read_text())

    assert _promtool("test", "rules", str(tmp_path / UNIT_TESTS.name)).returncode != 0


@every_alert
def test_alert_is_seen_firing_in_a_unit_test(rule: dict[str, Any]) -> None:
    """And for each of them there is an instant at which it must not fire."""
    groups = yaml.safe_load(UNIT_TESTS.read_text(encoding="utf-8"))["tests"]
    asked = [
        test["exp_samples"] for group in groups for test in group.get("promql_expr_test", ())
        if f'alertname="{rule["alert"]}"' in test["expr"]
    ]  # fmt: skip

    assert any(asked)
    assert not all(asked)


@every_alert
def test_alert_asks_for_what_the_product_exports(rule: dict[str, Any]) -> None:
    assert wrong_in(rule["expr"]) == []


@every_alert
def test_alert_says_what_it_means_and_leads_to_its_pages(rule: dict[str, Any]) -> None:
    told = rule["annotations"]
    english, chinese = _page(rule, "runbook_url"), _page(rule, "runbook_url_zh")

    assert rule["labels"]["severity"] in ("warning", "critical")
    assert len(told["summary"]) > 20
    assert len(told["description"]) > 40
    assert chinese == english.replace("runbooks/", "runbooks/zh-CN/")
    for page in (english, chinese):
        assert f"`{rule['alert']}`" in (ROOT / "docs" / page).read_text(encoding="utf-8")


def test_every_page_belongs_to_an_alert_and_has_three_actions() -> None:
    wanted = {_page(rule, name) for rule in ALERTS for name in ("runbook_url", "runbook_url_zh")}
    pages = {p for p in RUNBOOKS.rglob("*.md") if p.name != "README.md"}

    assert {page.relative_to(ROOT / "docs").as_posix() for page in pages} == wanted
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert re.findall(r"^(\d)\. ", text, re.M) == ["1", "2", "3"], page
        assert len(re.findall(r"^## ", text, re.M)) == 4, page


@pytest.mark.parametrize("index", ["README.md", "zh-CN/README.md"])
def test_index_lists_every_alert(index: str) -> None:
    listed = re.findall(r"^\| `(\w+)` \|", (RUNBOOKS / index).read_text(encoding="utf-8"), re.M)

    assert sorted(listed) == sorted(rule["alert"] for rule in ALERTS)


def test_drill_makes_every_alert_fire_but_the_one_about_our_own_bugs() -> None:
    expected = frozenset().union(*(phase.alerts for phase in PHASES), *(act.alerts for act in ACTS))

    assert expected ^ {rule["alert"] for rule in ALERTS} == {"SafepostInternalFault"}


def test_squeezed_rules_shorten_windows_and_waits_and_no_threshold() -> None:
    rules = {
        rule["alert"]: rule
        for group in yaml.safe_load(squeezed_rules(RULES.read_text(encoding="utf-8")))["groups"]
        for rule in group["rules"]
    }

    assert squeezed("5m") == "5000ms"
    assert squeezed("time() - safepost_counts_start_time_seconds < 900").endswith(" < 15")
    assert rules["SafepostUnknownOver15Minutes"]["expr"].endswith("> 900")
    assert rules["SafepostUnknownOver15Minutes"]["for"] == "1000ms"
    assert "[15000ms:1000ms]" in rules["SafepostUnknownsGrowing"]["expr"]
