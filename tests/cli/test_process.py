"""The command as a process: exit codes, pipes and signals, help that is quick (C8)."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.processes import PATIENCE_S, run, started


@pytest.mark.parametrize(
    "arguments",
    [["nonsense"], ["check", "-c", "nothing.yaml"], ["check", "--nonsense"], ["check", "-c", "."]],
)
def test_mistake_leaves_one_line_on_standard_error_and_exit_2(arguments: list[str], tmp_path: Path) -> None:
    ended = run(*arguments, cwd=tmp_path)
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert len(ended.stderr.splitlines()) == 1


def test_help_imports_nothing_heavy(tmp_path: Path) -> None:
    """So that it is quick on any machine: the parts that cost are pydantic, aiohttp and redis."""
    code = (
        "import sys, proxy.cli; proxy.cli.main(['--help']); "
        "print(sorted({'pydantic', 'aiohttp', 'redis', 'yaml', 'uvloop', 'asyncio'} & set(sys.modules)))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert ended.stdout.splitlines()[-1] in ("[]", "['asyncio']")


def test_reader_that_leaves_early_is_no_traceback(tmp_path: Path) -> None:
    with started("presets", "payhub", cwd=tmp_path) as process:
        assert process.stdout is not None
        process.stdout.close()
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert errors == ""
    assert process.returncode in (0, 1)


def test_process_without_standard_output_is_no_traceback(tmp_path: Path) -> None:
    """Started with it closed, as some supervisors do: it still works, and tells its mistakes."""
    command = f"exec {sys.executable} -m proxy sandbox --listen 127.0.0.1:99999 >&-"
    ended = subprocess.run(
        ["/bin/sh", "-c", command],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_sandbox_ends_quietly_on_a_signal(number: signal.Signals, tmp_path: Path) -> None:
    with started("sandbox", "--listen", "127.0.0.1:0", cwd=tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("sandbox listening on http://127.0.0.1:")
        process.send_signal(number)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, errors) == (0, "")


def test_port_in_use_is_one_line_and_exit_1(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ended = run("sandbox", "--listen", f"127.0.0.1:{taken.getsockname()[1]}", cwd=tmp_path)
    assert ended.returncode == 1
    assert len(ended.stderr.splitlines()) == 1
    assert "address already in use" in ended.stderr
