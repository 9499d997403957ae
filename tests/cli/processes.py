"""The command as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PATIENCE_S = 120
SAFEPOST = (sys.executable, "-m", "proxy")
ENVIRON = {**os.environ, "PYTHONUNBUFFERED": "1"}


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environ = {**ENVIRON, "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.run(
        [*SAFEPOST, *arguments],
        cwd=cwd,
        env=environ,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def started(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    environ = {**ENVIRON, "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.Popen(
        [*SAFEPOST, *arguments],
        cwd=cwd,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
