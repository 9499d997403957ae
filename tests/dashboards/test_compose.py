"""deploy/compose: what can be known of it without an engine. Read by a parser of the Compose specification that is
not ours, and its parts fit each other and the dashboards."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from compose_spec import PyCompose

from tests.tidy.tree import ROOT

COMPOSE = ROOT / "deploy" / "compose"
FILE = COMPOSE / "compose.yaml"
GRAFANA = COMPOSE / "grafana"
PROVISIONING = "/etc/grafana/provisioning"


def _read(file: Path) -> Any:
    return yaml.safe_load(file.read_text(encoding="utf-8"))


def _mounts(service: str) -> dict[str, Path]:
    """What is mounted where: the place inside to the place in this repository."""
    volumes = _read(FILE)["services"][service]["volumes"]
    pairs = (volume.split(":")[:2] for volume in volumes if volume.startswith("."))
    return {inner: (COMPOSE / outer).resolve() for outer, inner in pairs}


def _boards() -> list[dict[str, Any]]:
    return [json.loads(file.read_text(encoding="utf-8")) for file in (ROOT / "dashboards").glob("*.json")]


def test_file_is_compose() -> None:
    """Anchors are YAML's and are resolved before, as every Compose does."""
    found = PyCompose.from_yaml(yaml.safe_dump(_read(FILE)))

    assert set(found.service_names()) == {*_read(FILE)["services"]}


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("condition: service_healthy", "condition: service_fine"),
        ("restart: unless-stopped", "restrt: unless-stopped"),
        ("stop_grace_period: 35s", "stop_grace_period: soon"),
    ],
)
def test_parser_finds_mistakes(right: str, wrong: str) -> None:
    text = FILE.read_text(encoding="utf-8")
    assert right in text

    with pytest.raises(ValueError, match="services"):
        PyCompose.from_yaml(yaml.safe_dump(yaml.safe_load(text.replace(right, wrong))))


def test_images_of_others_are_pinned_to_one_version() -> None:
    services = _read(FILE)["services"].values()
    images = {service["image"] for service in services if "build" not in service}

    assert len(images) == 3
    assert [image for image in images if not re.search(r":v?\d+\.\d+\.\d+(-\w+)?$", image)] == []


def test_grafana_finds_what_is_provisioned() -> None:
    mounts = _mounts("grafana")
    provider = _read(GRAFANA / "dashboards" / "safepost.yaml")["providers"][0]

    assert mounts[f"{PROVISIONING}/datasources"] == GRAFANA / "datasources"
    assert mounts[f"{PROVISIONING}/dashboards"] == GRAFANA / "dashboards"
    assert mounts[provider["options"]["path"]] == ROOT / "dashboards"


def test_dashboards_fit_the_provisioned_data_source() -> None:
    """They name none: each asks for one of a type, and this is the default one of that type."""
    (source,) = _read(GRAFANA / "datasources" / "prometheus.yaml")["datasources"]
    prometheus = _read(FILE)["services"]["prometheus"]
    port = prometheus["ports"][0].rpartition(":")[2]
    asked = {
        v["query"] for board in _boards() for v in board["templating"]["list"] if v["type"] == "datasource"
    }

    assert source["isDefault"]
    assert asked == {source["type"]}
    assert source["url"] == f"http://prometheus:{port}"


def test_dashboards_have_uids_of_their_own_and_link_to_none_that_is_missing() -> None:
    boards = _boards()
    uids = [board["uid"] for board in boards]
    linked = re.findall(r"/d/([\w-]+)", json.dumps(boards))

    assert len(boards) == 3
    assert len(set(uids)) == len(uids)
    assert set(linked) <= set(uids)


def test_prometheus_configuration_is_valid_with_the_rules_that_are_mounted(tmp_path: Path) -> None:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("no promtool on this machine; Debian: apt-get install prometheus")
    mounts = _mounts("prometheus")
    text = (COMPOSE / "prometheus.yml").read_text(encoding="utf-8")
    (tmp_path / "token").write_text("token-of-a-test")
    for inner, outer in (*mounts.items(), ("/run/secrets/admin_token", tmp_path / "token")):
        text = text.replace(inner, str(outer))
    (tmp_path / "prometheus.yml").write_text(text)

    checked = subprocess.run(
        [found, "check", "config", str(tmp_path / "prometheus.yml")],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip

    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "21 rules found" in checked.stdout
