"""Dashboards against Grafana's own published types. A wrong type is found; a misspelt key may not be."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from deploy.observe.boards import files
from tests.tidy.tree import ROOT

PACKAGES = ("@grafana/schema@13.2.3", "typescript@5.9.3")
CACHE = ROOT / ".venv" / "grafana-types"
INSTALL_S = 110

HEAD = """import type { Dashboard } from '@grafana/schema';
type Plain<T> = T extends string ? `${T}` : T extends (infer U)[] ? Plain<U>[]
  : T extends object ? { [K in keyof T]: Plain<T[K]> } : T;
"""
"""JSON has the values of TypeScript's enums, never their names."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def workshop() -> Path:
    """A folder with the types and the compiler, filled once."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("no npm on this machine: the dashboards' types are not checked")
    CACHE.mkdir(parents=True, exist_ok=True)
    if not (CACHE / "node_modules" / ".bin" / "tsc").exists():
        (CACHE / "package.json").write_text('{"private": true}')
        try:
            installed = subprocess.run(
                [npm, "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", *PACKAGES],
                cwd=CACHE,
                capture_output=True,
                text=True,
                timeout=INSTALL_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            pytest.skip("npm did not answer in time: the dashboards' types are not checked")
        if installed.returncode:
            pytest.skip(f"npm could not install the types: {installed.stderr.strip()[-200:]}")
    return CACHE


def _compiled(workshop: Path, name: str, board: dict[str, Any]) -> str:
    """The compiler's complaints."""
    source = workshop / f"{name}.ts"
    for annotation in board["annotations"]["list"]:
        annotation.pop("titleFormat")  # these are the data source's own, which the general type leaves out
        annotation["target"] = {"refId": annotation["target"]["refId"]}
    source.write_text(
        f"{HEAD}const board: Plain<Partial<Dashboard>> = {json.dumps(board)};\nexport default board;\n"
    )
    options = ["--noEmit", "--strict", "--skipLibCheck", "--module", "node16", "--moduleResolution", "node16"]
    done = subprocess.run(
        [str(workshop / "node_modules" / ".bin" / "tsc"), *options, str(source)],
        cwd=workshop,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    return done.stdout if done.returncode else ""


@pytest.mark.parametrize("file", files(), ids=lambda file: file.stem)
def test_dashboard_is_of_grafana_s_type(file: Path, workshop: Path) -> None:
    assert _compiled(workshop, file.stem, json.loads(file.read_text(encoding="utf-8"))) == ""


def test_wrong_type_is_found(workshop: Path) -> None:
    board = json.loads(files()[0].read_text(encoding="utf-8"))
    board["panels"][1]["gridPos"]["w"] = "8"

    assert "not assignable" in _compiled(workshop, "wrong", board)
