"""Durations, sizes and rates as people write them (F3)."""

from __future__ import annotations

import re

_DURATION_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SIZE_BYTES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_DURATION = re.compile(r"([0-9]{1,12})(ms|s|m|h|d)")
_SIZE = re.compile(r"([0-9]{1,12})(B|KiB|MiB|GiB)")
_RATE = re.compile(r"([0-9]{1,6})/(s|m|h)")


def duration_ms(text: str) -> int | None:
    """`250ms`, `20s`, `5m`, `4h`, `7d` in milliseconds; None for anything else."""
    found = _DURATION.fullmatch(text)
    return int(found[1]) * _DURATION_MS[found[2]] if found else None


def size_bytes(text: str) -> int | None:
    """`512B`, `64KiB`, `1MiB`, `1GiB` in bytes; None for anything else."""
    found = _SIZE.fullmatch(text)
    return int(found[1]) * _SIZE_BYTES[found[2]] if found else None


def rate(text: str) -> tuple[int, int] | None:
    """`5/s`, `30/m`, `100/h` as (number, per how many milliseconds); None for anything else."""
    found = _RATE.fullmatch(text)
    return (int(found[1]), _DURATION_MS[found[2]]) if found else None


def shown_duration(ms: int) -> str:
    """The shortest exact form: 120000 is `2m`."""
    unit = next(name for name in ("d", "h", "m", "s", "ms") if ms % _DURATION_MS[name] == 0)
    return f"{ms // _DURATION_MS[unit]}{unit}" if ms else "0s"


def shown_size(size: int) -> str:
    """The shortest exact form: 1048576 is `1MiB`."""
    unit = next(name for name in ("GiB", "MiB", "KiB", "B") if size % _SIZE_BYTES[name] == 0)
    return f"{size // _SIZE_BYTES[unit]}{unit}" if size else "0B"
