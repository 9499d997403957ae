"""The machine's clocks, as `ports.Clock`. Nothing else in the product reads a clock."""

from __future__ import annotations

import platform
import time
from pathlib import Path

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")
BOOT_TIME_FILE = Path("/proc/stat")


class SystemClock:
    """The real time. Cheap enough to be asked for each event.

    Args: boot_id_file, boot_time_file: where Linux tells which boot this is; others for tests only.
    """

    def __init__(self, *, boot_id_file: Path = BOOT_ID_FILE, boot_time_file: Path = BOOT_TIME_FILE) -> None:
        self._boot_id = _read_boot_id(boot_id_file, boot_time_file)
        # Without a suspend-aware clock (macOS, BSD) the monotonic one is the nearest: shared by all
        # processes.
        self._boot_clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

    # All of the boot's clock: a lease runs on while the machine is suspended, at other hosts and in the file.
    # A clock that stands still meanwhile would let an attempt start under a lease that is another's now (P5).

    def monotonic_ms(self) -> int:
        return time.clock_gettime_ns(self._boot_clock) // NS_PER_MS

    def monotonic_us(self) -> int:
        return time.clock_gettime_ns(self._boot_clock) // NS_PER_US

    def boot_ms(self) -> int:
        return self.monotonic_ms()

    def wall_ms(self) -> int:
        return time.time_ns() // NS_PER_MS

    def boot_id(self) -> str:
        return self._boot_id


def _read_boot_id(boot_id_file: Path, boot_time_file: Path) -> str:
    """Which boot this is: the kernel's own id; else the second it booted in; else the machine's name.

    The last can't tell two boots apart: a lease from before a restart is then held for as long as it would
    have lasted on the new boot's clock, never cut short.
    """
    try:
        return boot_id_file.read_text().strip()
    except OSError:
        pass  # not Linux, or hidden from this container
    try:
        for line in boot_time_file.read_text().splitlines():
            if line.startswith("btime "):
                return f"booted-{line.removeprefix('btime ').strip()}"
    except OSError:
        pass
    return f"host-{platform.node() or 'unnamed'}"
