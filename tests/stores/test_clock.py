"""The machine's clocks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from proxy.clock import SystemClock


def test_clocks_go_forward_together() -> None:
    clock = SystemClock()
    before = (clock.monotonic_ms(), clock.boot_ms(), clock.wall_ms())
    after = (clock.monotonic_ms(), clock.boot_ms(), clock.wall_ms())
    assert all(0 <= late - early < 1_000 for early, late in zip(before, after, strict=True))
    assert clock.monotonic_us() // 1_000 - after[0] < 1_000


def test_p5_deadlines_run_on_while_the_machine_is_suspended() -> None:
    """As leases do. A time namespace has the boot's clock a day ahead, as after a day's suspend."""
    asked = (
        "import time, proxy.clock as ours; print(ours.SystemClock().monotonic_ms() / 1000 - time.monotonic())"
    )
    suspended = ["unshare", "--time", "--boottime", "86400", "--", sys.executable, "-c", asked]
    ended = subprocess.run(suspended, check=False, capture_output=True, text=True, timeout=60)
    if "unshare failed" in ended.stderr:
        pytest.skip(f"no time namespace here: {ended.stderr.strip()}")
    assert float(ended.stdout) == pytest.approx(86_400, abs=60)


def test_boot_id_is_the_same_for_two_processes() -> None:
    assert SystemClock().boot_id() == SystemClock().boot_id()


@pytest.mark.parametrize(
    ("boot_id", "stat", "expected"),
    [
        ("11-22\n", "btime 5\n", "11-22"),
        (None, "cpu 1 2\nbtime 1700000000\nprocesses 9\n", "booted-1700000000"),
    ],
)
def test_boot_id_comes_from_the_kernel_or_the_boot_time(
    tmp_path: Path, boot_id: str | None, stat: str, expected: str
) -> None:
    if boot_id is not None:
        (tmp_path / "boot_id").write_text(boot_id)
    (tmp_path / "stat").write_text(stat)
    clock = SystemClock(boot_id_file=tmp_path / "boot_id", boot_time_file=tmp_path / "stat")
    assert clock.boot_id() == expected


def test_boot_id_without_any_source_is_the_machine(tmp_path: Path) -> None:
    clock = SystemClock(boot_id_file=tmp_path / "none", boot_time_file=tmp_path / "none")
    assert clock.boot_id().startswith("host-")
