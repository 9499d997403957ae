"""What the sidecars of a chaos run are configured with, and the clock that one of them lives under."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
STORES: Final = ("sqlite", "redis", "sentinel", "cluster")

SHARED: Final = Path("/dev/shm")  # noqa: S108 -- libfaketime's choice

SETTINGS: Final[dict[str, Any]] = {
    "platform": "payhub",
    "environment": "test",
    "wait_timeout": "4s",
    "retry": {
        "attempts": 2,
        "attempt_timeout": "1s",
        "base": "100ms",
        "cap": "400ms",
        "jitter_max": "50ms",
        "deadline": "5s",
    },
    "breaker": {"failures": 20, "window": "5s", "open_for": "500ms"},
    "lookups": {
        "schedule": ["1s", "2s", "4s", "8s", "15s"],
        "then_every": "10s",
        "min_interval": "500ms",
        "lag": "6s",
        "rate": "60/s",
    },
    "routes": {
        name: {"key": {"mode": "inject"}}
        for name in ("create_payment", "confirm_payment", "cancel_payment", "create_refund")
    },
    "drain_timeout": "5s",
    "log": {"level": "error", "format": "json"},
}
"""Seconds where production has minutes. `lookups.lag` is longer than any delay that the run causes at the bank:
its queries never hide an effect for longer than the preset says they may."""

STORE_SETTINGS: Final[dict[str, Any]] = {"lease": "1500ms", "timeout": "1s"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """Which world a run has.

    Args: store: one of `STORES`. workers: processes of the last sidecar. careless: a bank without order
        uniqueness, and a preset that says so. forward: calls are sent while the store is away (D3).
        tls: the platform speaks TLS, with a certificate of an authority made for the run.
    """

    store: str = "sqlite"
    sidecars: int = 3
    workers: int = 1
    careless: bool = False
    forward: bool = False
    tls: bool = False

    def __str__(self) -> str:
        said = {
            "a bank without order uniqueness": self.careless,
            "forwarding": self.forward,
            "TLS": self.tls,
        }
        return ", ".join([self.store, *(name for name, is_so in said.items() if is_so)])


def settings_of(variant: Variant, folder: Path) -> dict[str, Any]:
    """What all sidecars of the variant have in common, their store's settings without its URL."""
    settings: dict[str, Any] = {**SETTINGS, "store": dict(STORE_SETTINGS)}
    if variant.careless:
        settings["platform"] = str(_careless_preset(folder))
    if variant.forward:
        settings["store"]["on_failure"] = "forward"
        settings["log"] = {"level": "warning", "format": "json"}  # what was sent unrecorded is told there
    return settings


def _careless_preset(folder: Path) -> Path:
    """PayHub's preset for a bank that has no uniqueness of its own."""
    text = (ROOT / "proxy" / "presets" / "payhub.yaml").read_text(encoding="utf-8")
    text = text.replace("second_key_executes: false", "second_key_executes: true")
    file = folder / "careless.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def faketime_environ(file: Path) -> dict[str, str]:
    """Variables that put a process under the shifted clock of `file`; empty where libfaketime is missing."""
    for folder in (Path("/usr/lib"), Path("/usr/local/lib")):
        for library in folder.glob("**/faketime/libfaketimeMT.so.1"):
            file.write_text("+0s")
            return {
                "LD_PRELOAD": str(library),
                "FAKETIME_TIMESTAMP_FILE": str(file),
                "FAKETIME_CACHE_DURATION": "1",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
                "DONT_FAKE_MONOTONIC": "1",
            }
    return {}


def forget_clocks() -> None:
    """Remove what libfaketime left behind of processes that were killed, workers among them."""
    for left in (*SHARED.glob("faketime_shm_*"), *SHARED.glob("sem.faketime_sem_*")):
        if not Path("/proc", left.name.rpartition("_")[2]).exists():
            left.unlink(missing_ok=True)
