"""The world of a chaos run: real sidecars on one store, a real platform, lines between them that can go bad."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from random import Random  # noqa: TID251 -- seeded: the same seed plans the same faults
from typing import Any, Final

from tests.chaos.failover import DURABLE, FailoverPair
from tests.chaos.lines import Line
from tests.chaos.logs import Arrival, Bank, Entry, Stored
from tests.chaos.sidecars import Sidecar
from tests.e2e.callers import Told, call
from tests.stores.redis_server import Server

ROOT: Final = Path(__file__).resolve().parents[2]
SECRET: Final = "whsec_chaos"
STORE_MIB: Final = 512
PAGE: Final = 200

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


@dataclass(slots=True)
class World:
    """Everything that runs. `lines_up` lead to the platform, `lines_store` to Redis, one for each sidecar."""

    folder: Path
    chance: Random
    platform: asyncio.subprocess.Process
    platform_address: str
    sidecars: list[Sidecar] = field(default_factory=list)
    lines_up: list[Line] = field(default_factory=list)
    lines_store: list[Line] = field(default_factory=list)
    redis: Server | None = None
    pair: FailoverPair | None = None
    store_folder: Path | None = None  # of an embedded store, on a small disk of its own where that can be had
    clocks: list[Path] = field(default_factory=list)
    incidents: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def lines(self) -> list[Line]:
        return [*self.lines_up, *self.lines_store]

    async def ask(self, path: str, *, method: str = "GET", body: bytes = b"") -> Told | None:
        """An answer of any sidecar's admin listener; None where none is up."""
        for sidecar in self.chance.sample(self.sidecars, len(self.sidecars)):
            told = await asked(sidecar.admin, path, method=method, body=body)
            if told is not None and told.status == 200:
                return told
        return None

    async def state_of(self, key: str) -> tuple[str, str] | None:
        """State and knowledge of the operation with this key, as the ledger has it now."""
        told = await self.ask(f"/operations?key={key}")
        rows = told.json["operations"] if told is not None else []
        return (rows[0]["state"], rows[0]["knowledge"]) if rows else None

    async def operations(self) -> list[Stored] | None:
        """The whole ledger; None while it can't be read."""
        found: list[Stored] = []
        cursor = ""
        while True:
            told = await self.ask(f"/operations?limit={PAGE}{cursor}")
            if told is None:
                return None
            found += [stored_of(row) for row in told.json["operations"]]
            if told.json["cursor"] is None:
                return found
            cursor = f"&cursor={told.json['cursor']}"

    async def fault(self, rules: list[dict[str, Any]]) -> None:
        """Arm faults at the platform, past the lines."""
        await asked(self.platform_address, "/_sandbox/faults", method="POST", body=json.dumps(rules).encode())

    async def forgive(self) -> None:
        await asked(self.platform_address, "/_sandbox/faults", method="DELETE")

    async def close_platform(self) -> Bank:
        """End the platform; its log."""
        if self.platform.returncode is None:
            self.platform.send_signal(signal.SIGTERM)
        await asyncio.wait_for(self.platform.wait(), 60)
        return bank_of(json.loads((self.folder / "bank.json").read_text(encoding="utf-8")))


async def asked(address: str, path: str, *, method: str = "GET", body: bytes = b"") -> Told | None:
    """One request to a control port; None where nobody answers."""
    head = f"{method} {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n"
    try:
        return await call(address, f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    except (OSError, EOFError, TimeoutError):
        return None


def stored_of(row: dict[str, Any]) -> Stored:
    return Stored(
        id=row["id"],
        route=row["route"],
        path=row["path"],
        key=row["key"],
        subject=row["subject"] or "",
        state=row["state"],
        knowledge=row["knowledge"],
        status=row["status"],
        settled_by=row["settled_by"],
        attempts=row["attempt_count"],
        has_next_lookup=row["next_lookup"] is not None,
    )


def bank_of(dump: dict[str, Any]) -> Bank:
    def entry(row: dict[str, Any]) -> Entry:
        at_ms = round(datetime.fromisoformat(row["at"]).timestamp() * 1000)
        names = ("kind", "order", "payment", "key", "amount", "refund")
        return Entry(**{name: row[name] for name in names}, at_ms=at_ms)

    return Bank(
        entries=[entry(row) for row in dump["entries"]],
        arrivals=[Arrival(**row) for row in dump["arrivals"]],
        payments=dump["payments"],
    )


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


@contextlib.contextmanager
def small_disk(folder: Path) -> Any:
    """A disk of its own for the store, where this user may mount one; else a plain folder."""
    folder.mkdir()
    options = ["mount", "-t", "tmpfs", "-o", f"size={STORE_MIB}m", "chaos", str(folder)]
    is_mounted = (
        os.geteuid() == 0 and subprocess.run(options, check=False, capture_output=True).returncode == 0
    )
    try:
        yield is_mounted
    finally:
        if is_mounted:
            subprocess.run(["umount", "-l", str(folder)], check=False, capture_output=True)


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


@asynccontextmanager
async def world(
    folder: Path, chance: Random, *, store: str, sidecars: int, workers: int, careless: bool
) -> AsyncIterator[World]:
    """A running world; everything in it ends with the block.

    Args: store: `sqlite`, `redis` or `sentinel`. careless: a bank without order uniqueness, and a preset that
        says so.
    """
    async with AsyncExitStack() as stack:
        ports = [(free_port(), free_port()) for _ in range(sidecars)]
        events = free_port()
        platform, address = await _platform(folder, events, careless=careless)
        stack.push_async_callback(_ended, platform)
        made = World(folder, chance, platform, address)
        if store == "redis":
            made.redis = Server(folder / "r", *DURABLE)
            await asyncio.to_thread(made.redis.start)
            stack.callback(made.redis.kill)
        elif store == "sentinel":
            made.pair = FailoverPair(folder / "r")
            stack.callback(made.pair.stop)
            await asyncio.to_thread(made.pair.start)
        else:
            made.store_folder = folder / "disk"
            is_mounted = stack.enter_context(small_disk(made.store_folder))
            made.counts["disk of its own"] = int(is_mounted)
        for n, (port, admin) in enumerate(ports):
            await _add_sidecar(made, stack, n, port=port, admin=admin, careless=careless)
        made.sidecars[-1].settings["workers"] = workers
        made.sidecars[0].settings["events"] = {"listen": f"127.0.0.1:{events}", "secret": SECRET}
        for sidecar in made.sidecars:
            sidecar.write()
            stack.push_async_callback(sidecar.close)
            await sidecar.open()
        yield made


async def _add_sidecar(
    made: World, stack: AsyncExitStack, n: int, *, port: int, admin: int, careless: bool
) -> None:
    up = await Line.open(made.platform_address, made.chance)
    stack.push_async_callback(up.close)
    made.lines_up.append(up)
    settings: dict[str, Any] = {
        **SETTINGS,
        "listen": f"127.0.0.1:{port}",
        "admin": f"127.0.0.1:{admin}",
        "upstream": {
            "url": f"http://{up.address}",
            "authorization": "sk_test_A",
            "connect_timeout": "500ms",
        },
    }
    given: dict[str, Any] = {"lease": "1500ms", "timeout": "1s"}
    journal = str(made.folder / f"journal-{n}")
    if made.redis is not None:
        line = await Line.open(f"127.0.0.1:{made.redis.port}", made.chance)
        stack.push_async_callback(line.close)
        made.lines_store.append(line)
        settings["store"] = {**given, "url": f"redis://{line.address}/0", "journal": journal}
    elif made.pair is not None:
        settings["store"] = {**given, "url": made.pair.url, "journal": journal}
    else:
        settings["store"] = {**given, "url": f"sqlite:{made.store_folder}/ledger.db"}
    if careless:
        settings["platform"] = str(_careless_preset(made.folder))
    clock = made.folder / f"clock-{n}"
    environ = faketime_environ(clock) if n else {}
    if environ:
        made.clocks.append(clock)
    name = f"sidecar-{n}"
    made.sidecars.append(Sidecar(name, made.folder, settings, environ, made.incidents, made.counts))


def _careless_preset(folder: Path) -> Path:
    """PayHub's preset for a bank that has no uniqueness of its own."""
    text = (ROOT / "proxy" / "presets" / "payhub.yaml").read_text(encoding="utf-8")
    text = text.replace("second_key_executes: false", "second_key_executes: true")
    file = folder / "careless.yaml"
    file.write_text(text, encoding="utf-8")
    return file


async def _platform(folder: Path, events: int, *, careless: bool) -> tuple[asyncio.subprocess.Process, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.chaos.platform"),
        *("--dump", str(folder / "bank.json"), "--secret", SECRET),
        *("--webhook", f"http://127.0.0.1:{events}/events"),
        *(("--careless",) if careless else ()),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    line = await asyncio.wait_for(process.stdout.readline(), 20)
    return process, line.decode().strip().rpartition("http://")[2]


async def _ended(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
        await process.wait()
