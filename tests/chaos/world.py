"""The world of a chaos run: real sidecars on one store, a real platform, lines between them that can go bad."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import sqlite3
import ssl
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from random import Random  # noqa: TID251 -- seeded: the same seed plans the same faults
from typing import Any, Final

from tests.chaos.disk import Disk, small_disk
from tests.chaos.failover import DURABLE, FailoverCluster, FailoverPair, Fleet
from tests.chaos.journal import wall_ms
from tests.chaos.lines import Line
from tests.chaos.logs import Arrival, Bank, Entry, Stored, Trouble
from tests.chaos.settings import ROOT, Variant, faketime_environ, forget_clocks, settings_of
from tests.chaos.sidecars import Sidecar
from tests.chaos.tls import NAME, Stranger
from tests.e2e.callers import Told, call
from tests.e2e.certificates import Authority
from tests.stores.redis_server import Server, free_port

SECRET: Final = "whsec_chaos"
PAGE: Final = 200
OWED: Final = re.compile(rb"^safepost_owed_writes(?:\{[^}]*\})? (\S+)$", re.M)
TAG: Final = "default/test"  # the scope that all of a run's operations are in
FLEETS: Final[dict[str, Callable[[Path], Fleet]]] = {
    "sentinel": FailoverPair,
    "cluster": lambda folder: FailoverCluster(folder, tag=TAG),
}


@dataclass(slots=True)
class World:
    """Everything that runs.

    Args: lines_up, lines_store: lead to the platform and to Redis, one for each sidecar. fleet: a Redis that
        fails over. disk: under the embedded store, or under the journals of Redis. stranger: in the platform's
        place, where that speaks TLS. troubles: when the store may have been away for some sidecar.
    """

    folder: Path
    chance: Random
    platform: asyncio.subprocess.Process
    platform_address: str
    sidecars: list[Sidecar] = field(default_factory=list)
    lines_up: list[Line] = field(default_factory=list)
    lines_store: list[Line] = field(default_factory=list)
    redis: Server | None = None
    fleet: Fleet | None = None
    disk: Disk | None = None
    stranger: Stranger | None = None
    clocks: list[Path] = field(default_factory=list)
    incidents: list[str] = field(default_factory=list)
    disasters: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    troubles: list[Trouble] = field(default_factory=list)

    @contextlib.contextmanager
    def trouble(self, what: str) -> Iterator[None]:
        """In this block the store may be away for some sidecar."""
        began_ms = wall_ms()
        try:
            yield
        finally:
            self.troubles.append(Trouble(began_ms, wall_ms(), what))

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

    async def owed(self) -> float | None:
        """Writes that sidecars have in memory alone until the store takes them; None where one does not say."""
        total = 0.0
        for sidecar in self.sidecars:
            told = await asked(sidecar.admin, "/metrics")
            found = OWED.search(told.body) if told is not None else None
            if found is None:
                return None
            total += float(found[1])
        return total

    def ledger_faults(self) -> list[str]:
        """What SQLite's own check finds in the embedded store's file, once nobody has it open."""
        file = self.disk.folder / "ledger.db" if self.disk is not None else None
        if file is None or not file.exists():
            return []
        with contextlib.closing(sqlite3.connect(file)) as ledger:
            found = [str(row[0]) for row in ledger.execute("PRAGMA integrity_check(5)")]
        return [f"the ledger's file: {fault}" for fault in found if fault != "ok"]

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


@asynccontextmanager
async def world(folder: Path, chance: Random, variant: Variant) -> AsyncIterator[World]:
    """A running world; everything in it ends with the block."""
    async with AsyncExitStack() as stack:
        stack.callback(forget_clocks)
        ports = [(free_port(), free_port()) for _ in range(variant.sidecars)]
        events = free_port()
        authority = Authority(folder) if variant.tls else None
        if authority is not None:
            authority.server(NAME)
        certificate = folder / f"{NAME}.pem" if authority is not None else None
        platform, address, reached = await _platform(folder, events, variant, certificate)
        stack.push_async_callback(_ended, platform)
        made = World(folder, chance, platform, address)
        made.disk = stack.enter_context(small_disk(folder / "disk"))
        made.counts["disk of its own"] = int(made.disk.is_own)
        await _start_store(made, stack, variant.store)
        settings = settings_of(variant, folder)
        settings["upstream"] = {"authorization": "sk_test_A", "connect_timeout": "500ms"}
        if authority is not None:
            settings["upstream"]["tls"] = {"ca_file": str(authority.ca_file)}
            made.stranger = await Stranger.open(_nobodys_certificate(folder / "stranger"))
            stack.push_async_callback(made.stranger.close)
        for n, (port, admin) in enumerate(ports):
            own = {"listen": f"127.0.0.1:{port}", "admin": f"127.0.0.1:{admin}"}
            await _add_sidecar(made, stack, n, {**settings, **own}, reached)
        made.sidecars[-1].settings["workers"] = variant.workers
        made.sidecars[0].settings["events"] = {"listen": f"127.0.0.1:{events}", "secret": SECRET}
        for sidecar in made.sidecars:
            sidecar.write()
            stack.push_async_callback(sidecar.close)
            await sidecar.open()
        yield made


async def _start_store(made: World, stack: AsyncExitStack, store: str) -> None:
    if store == "redis":
        made.redis = Server(made.folder / "r", *DURABLE)
        stack.callback(made.redis.kill)
        await asyncio.to_thread(made.redis.start)
    elif store in FLEETS:
        made.fleet = FLEETS[store](made.folder / "r")
        stack.callback(made.fleet.stop)
        await asyncio.to_thread(made.fleet.start)


def _nobodys_certificate(folder: Path) -> ssl.SSLContext:
    """For the platform's name, by an authority that nobody trusts."""
    folder.mkdir()
    return Authority(folder).server(NAME)


async def _add_sidecar(
    made: World, stack: AsyncExitStack, n: int, settings: dict[str, Any], reached: str
) -> None:
    """Args: settings: its own. reached: where the line leads that is its way to the platform."""
    up = await Line.open(reached, made.chance)
    stack.push_async_callback(up.close)
    made.lines_up.append(up)
    url = f"https://{NAME}:{up.port}" if made.stranger is not None else f"http://{up.address}"
    settings["upstream"] = {**settings["upstream"], "url": url}
    store = dict(settings["store"])
    assert made.disk is not None
    if made.redis is None and made.fleet is None:
        store["url"] = f"sqlite:{made.disk.folder}/ledger.db"
    else:
        store["journal"] = str(made.disk.folder / f"journal-{n}")
    if made.redis is not None:
        line = await Line.open(f"127.0.0.1:{made.redis.port}", made.chance)
        stack.push_async_callback(line.close)
        made.lines_store.append(line)
        store["url"] = f"redis://{line.address}/0"
    elif made.fleet is not None:
        store["url"] = made.fleet.url
    settings["store"] = store
    clock = made.folder / f"clock-{n}"
    environ = faketime_environ(clock) if n else {}
    if environ:
        made.clocks.append(clock)
    name = f"sidecar-{n}"
    made.sidecars.append(Sidecar(name, made.folder, settings, environ, made.incidents, made.counts))


async def _platform(
    folder: Path, events: int, variant: Variant, certificate: Path | None
) -> tuple[asyncio.subprocess.Process, str, str]:
    """The platform, where it takes orders from the run, and where sidecars reach it."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.chaos.platform"),
        *("--dump", str(folder / "bank.json"), "--secret", SECRET),
        *("--webhook", f"http://127.0.0.1:{events}/events"),
        *(("--careless",) if variant.careless else ()),
        *(("--certificate", str(certificate)) if certificate is not None else ()),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    line = await asyncio.wait_for(process.stdout.readline(), 20)
    address, _, reached = line.decode().strip().rpartition("http://")[2].partition(" and ")
    return process, address, reached


async def _ended(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
        await process.wait()
