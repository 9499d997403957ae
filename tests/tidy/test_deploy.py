"""deploy/: every file is read, and what it names exists in the product."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from aiohttp import ClientSession

from proxy.app import App
from proxy.config import Settings, load_settings, settings_of
from proxy.config.units import duration_ms
from proxy.core.rules import KeyMode
from tests.tidy.tree import ROOT

DEPLOY: Final = ROOT / "deploy"
COMPOSE: Final = DEPLOY / "compose"
UNIT: Final = DEPLOY / "systemd" / "safepost.service"
DRAIN_MARGIN_MS: Final = 5_000
PROBES: Final = ("startupProbe", "livenessProbe", "readinessProbe")


def _compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((COMPOSE / "compose.yaml").read_text())
    return loaded


def _kubernetes() -> dict[str, Any]:
    documents = yaml.safe_load_all((DEPLOY / "kubernetes" / "sidecar.yaml").read_text())
    return {document["kind"]: document for document in documents}


def _sidecar() -> dict[str, Any]:
    spec = _kubernetes()["Deployment"]["spec"]["template"]["spec"]
    found: dict[str, Any] = next(c for c in spec["initContainers"] if c["name"] == "safepost")
    return found


@pytest.fixture
def in_kubernetes(monkeypatch: pytest.MonkeyPatch) -> Settings:
    """The manifest's configuration, with its environment from the manifest's Secret."""
    objects = _kubernetes()
    for name, value in objects["Secret"]["stringData"].items():
        monkeypatch.setenv(name, value)
    return settings_of(objects["ConfigMap"]["data"]["config.yaml"], file="sidecar.yaml")


@pytest.fixture
def in_compose(monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("SAFEPOST_ADMIN_TOKEN", "token-of-a-test")
    return load_settings(COMPOSE / "safepost.yaml")


@pytest.mark.parametrize(
    "file", sorted(DEPLOY.rglob("*.y*ml")), ids=lambda file: file.relative_to(DEPLOY).as_posix()
)
def test_yaml_file_parses(file: Path) -> None:
    assert list(yaml.safe_load_all(file.read_text()))


# --- Kubernetes ---------------------------------------------------------------------------------------------


def test_sidecar_is_a_native_one_that_runs_the_mounted_configuration() -> None:
    sidecar = _sidecar()
    mounts = {mount["mountPath"]: mount["name"] for mount in sidecar["volumeMounts"]}
    command, option, file = sidecar["args"]

    assert sidecar["restartPolicy"] == "Always"
    assert (command, option) == ("run", "-c")
    assert mounts[str(Path(file).parent)] == "safepost-config"
    assert Path(file).name in _kubernetes()["ConfigMap"]["data"]


def test_volumes_and_mounts_of_the_pod_fit() -> None:
    spec = _kubernetes()["Deployment"]["spec"]["template"]["spec"]

    assert {v["name"] for v in spec["volumes"]} == {m["name"] for m in _sidecar()["volumeMounts"]}


def test_journal_is_on_a_volume_that_may_be_written(in_kubernetes: Settings) -> None:
    folder = str(Path(in_kubernetes.store.journal or "").parent)
    mount = next(m for m in _sidecar()["volumeMounts"] if m["mountPath"] == folder)

    assert not mount.get("readOnly")


def test_probes_ask_the_admin_listener_and_never_the_store(in_kubernetes: Settings) -> None:
    sidecar = _sidecar()
    port = next(p["containerPort"] for p in sidecar["ports"] if p["name"] == "admin")
    asked = {name: sidecar[name]["httpGet"] for name in PROBES}

    assert port == in_kubernetes.admin.port
    assert in_kubernetes.admin.host == "0.0.0.0", "the kubelet comes from outside the pod"  # noqa: S104 -- read, not bound
    assert {probe["port"] for probe in asked.values()} == {"admin"}
    assert [asked[name]["path"] for name in PROBES] == ["/readyz", "/healthz", "/readyz"]


def test_calls_are_taken_from_inside_the_pod_only(in_kubernetes: Settings) -> None:
    address = in_kubernetes.listen[0].address
    shop = _kubernetes()["Deployment"]["spec"]["template"]["spec"]["containers"][0]

    assert address.is_private
    assert shop["env"][0]["value"] == f"http://{address}"


def test_several_replicas_share_one_store(in_kubernetes: Settings) -> None:
    assert _kubernetes()["Deployment"]["spec"]["replicas"] > 1
    assert in_kubernetes.store.url.startswith("redis")


def test_pod_has_time_to_drain(in_kubernetes: Settings) -> None:
    grace_s = _kubernetes()["Deployment"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]

    assert grace_s * 1000 >= in_kubernetes.drain_timeout_ms + DRAIN_MARGIN_MS


def test_sidecar_runs_as_the_image_s_user_without_privileges() -> None:
    context = _sidecar()["securityContext"]
    user = re.search(r"^USER (\d+):(\d+)$", (ROOT / "Dockerfile").read_text(), re.M)

    assert user is not None
    assert (context["runAsUser"], context["runAsGroup"]) == (int(user[1]), int(user[2]))
    assert context["runAsNonRoot"]
    assert context["readOnlyRootFilesystem"]
    assert not context["allowPrivilegeEscalation"]
    assert context["capabilities"] == {"drop": ["ALL"]}


async def test_probes_and_the_image_s_health_check_are_answered_without_the_token(tmp_path: Path) -> None:
    """Neither the kubelet nor the image's own check can bring one."""
    text = (
        "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nadmin_token: token-of-a-test\nplatform: payhub\n"
        f"upstream: {{url: 'http://127.0.0.1:1'}}\nstore: {{url: 'sqlite:{tmp_path}/ledger.db'}}\n"
        "log: {level: error}\n"
    )
    health = re.search(r"'GET', '(/\w+)'", (ROOT / "Dockerfile").read_text())
    assert health is not None
    paths = {health[1], *(_sidecar()[name]["httpGet"]["path"] for name in PROBES)}
    app = await App.start(settings_of(text, file="probes.yaml"))
    try:
        assert app.admin is not None
        async with ClientSession(app.admin.url) as session:
            answers = {path: (await session.get(path)).status for path in paths}
            protected = (await session.get("/operations")).status
    finally:
        await app.stop()

    assert answers == dict.fromkeys(paths, 200)
    assert protected == 401


# --- Compose ------------------------------------------------------------------------------------------------


def test_instances_mount_the_configuration_that_they_run() -> None:
    services = _compose()["services"]
    for name in ("safepost-a", "safepost-b"):
        mounts = dict(volume.split(":")[:2] for volume in services[name]["volumes"])
        assert mounts["./safepost.yaml"] == services[name]["command"][-1]


def test_published_ports_are_loopback_and_lead_to_the_listeners(in_compose: Settings) -> None:
    services = _compose()["services"]
    published = [port for service in services.values() for port in service.get("ports", ())]
    inner = {int(port.rpartition(":")[2]) for port in services["safepost-a"]["ports"]}

    assert all(port.startswith("127.0.0.1:") for port in published)
    assert inner == {in_compose.listen[0].address.port, in_compose.admin.port}


def test_configuration_names_services_that_exist(in_compose: Settings) -> None:
    services = _compose()["services"]
    sandbox_port = services["sandbox"]["command"][-1].rpartition(":")[2]

    assert str(in_compose.upstream.url) == f"http://sandbox:{sandbox_port}"
    assert in_compose.store.url.split("//")[1].split(":")[0] in services


def test_redis_keeps_every_claim() -> None:
    command = " ".join(_compose()["services"]["redis"]["command"])

    assert "--appendonly yes" in command
    assert "--maxmemory-policy noeviction" in command


def test_prometheus_scrapes_every_instance_with_the_token(in_compose: Settings) -> None:
    scrape = yaml.safe_load((COMPOSE / "prometheus.yml").read_text())["scrape_configs"][0]
    secret = Path(scrape["authorization"]["credentials_file"])
    compose = _compose()

    assert set(scrape["static_configs"][0]["targets"]) == {
        f"{name}:{in_compose.admin.port}" for name in compose["services"] if name.startswith("safepost-")
    }
    assert scrape.get("metrics_path", "/metrics") == "/metrics"
    assert secret.name in compose["services"]["prometheus"]["secrets"]
    assert compose["secrets"][secret.name]["environment"] == "SAFEPOST_ADMIN_TOKEN"


def test_mounted_host_files_exist() -> None:
    mounted = [
        volume.split(":")[0]
        for service in _compose()["services"].values()
        for volume in service.get("volumes", ())
        if volume.startswith(".")
    ]

    assert [name for name in mounted if not (COMPOSE / name).exists()] == []


def test_instances_have_time_to_drain(in_compose: Settings) -> None:
    grace = _compose()["services"]["safepost-a"]["stop_grace_period"]

    assert (duration_ms(grace) or 0) >= in_compose.drain_timeout_ms + DRAIN_MARGIN_MS


def test_calls_without_a_key_work_as_the_header_of_the_file_shows(in_compose: Settings) -> None:
    create = next(route for route in in_compose.platform.routes if route.name == "create_payment")

    assert create.key.mode is KeyMode.INJECT


# --- systemd ------------------------------------------------------------------------------------------------


def _unit() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in UNIT.read_text().splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


def test_unit_checks_what_it_runs_and_reloads_by_hangup() -> None:
    unit = _unit()
    checked, started = unit["ExecStartPre"][0].split(), unit["ExecStart"][0].split()

    assert (checked[1], started[1]) == ("check", "run")
    assert checked[2:] == started[2:]
    assert unit["ExecReload"] == ["/bin/kill -HUP $MAINPID"]


def test_unit_has_time_to_drain_and_makes_no_core_dump() -> None:
    unit = _unit()
    drain_ms = load_settings(ROOT / "config.yaml").drain_timeout_ms

    assert (duration_ms(unit["TimeoutStopSec"][0]) or 0) >= drain_ms + DRAIN_MARGIN_MS
    assert unit["LimitCORE"] == ["0"]


def test_unit_is_understood_by_systemd(tmp_path: Path) -> None:
    """`systemd-analyze verify` asks for the programs, too: a stand-in takes the place of ours."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("no systemd on this machine; the other tests of the unit have run")
    program = tmp_path / "safepost"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/safepost/bin/safepost", str(program)))

    verified = subprocess.run(
        [analyze, "verify", "--man=no", str(unit)], capture_output=True, text=True, timeout=30, check=False
    )

    assert (verified.returncode, verified.stderr) == (0, "")
