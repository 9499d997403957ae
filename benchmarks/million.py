"""A ledger of a million payments in Redis: memory, claims, start-up, and what is scanned.

`python -m benchmarks.million --records 1000000` starts a private Valkey (append-only file, one sync a second),
fills it through the store's own verbs (a payment is claimed and settled; one in a thousand is left in doubt), and
measures the same things on the empty ledger and on the full one. A claim's time is that of one caller alone, with
nothing else on its way; both ledgers are measured in one run, so that their ratio holds on any machine.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import uvloop

from proxy.clock import SystemClock
from proxy.core.messages import AttemptNote, Reserved
from proxy.core.model import Outcome, State
from proxy.core.settle import SettleRun
from proxy.ports import Query
from proxy.stores.redis import RedisStore
from tests.contract.values import lead, reserve, settled
from tests.stores.redis_server import Server

AT_ONCE = 512
IN_DOUBT_ONE_IN = 1_000
PROBES = 400
LEASE_MS = 600_000
SCANNING = ("keys", "scan", "sscan", "hscan", "zscan", "hgetall", "zrange", "lrange", "sort")
"""Not `smembers`: it reads the list of scopes (merchant and environment), which no payment lengthens."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What one state of the ledger costs."""

    records: int
    memory_bytes: int
    claim_ms: tuple[float, float]  # median, 99th of a hundred
    settle_ms: tuple[float, float]
    open_ms: float
    page_ms: float
    holdings_ms: float
    due_ms: float
    scans: dict[str, int]


async def opened(server: Server) -> RedisStore:
    store = RedisStore(server.url, clock=SystemClock(), timeout_ms=30_000)
    await store.open()
    return store


async def pay(store: RedisStore, name: str, *, in_doubt: bool) -> None:
    answer = await store.transact(reserve(name, lease_ms=LEASE_MS))
    assert isinstance(answer, Reserved)
    end = settled(answer.operation, 1)
    if in_doubt:
        lost = AttemptNote(Outcome.IN_DOUBT, None, None, "timed out", 1)
        end = SettleRun(answer.operation, State.UNKNOWN, lost, None, None)
    await store.transact(end)


async def fill(store: RedisStore, records: int) -> float:
    """Returns: payments a second."""
    numbers = iter(range(records))
    began = time.perf_counter()

    async def payer() -> None:
        for n in numbers:
            await pay(store, f"ORDER-{n:09d}", in_doubt=n % IN_DOUBT_ONE_IN == 0)

    await asyncio.gather(*(payer() for _ in range(AT_ONCE)))
    return records / (time.perf_counter() - began)


async def timed_ms(doing: Callable[[], Awaitable[object]]) -> float:
    began = time.perf_counter()
    await doing()
    return (time.perf_counter() - began) * 1000


def spread(times: list[float]) -> tuple[float, float]:
    return statistics.median(times), statistics.quantiles(times, n=100)[-1]


async def measure(server: Server, client: Any, *, records: int, tag: str) -> Figures:
    client.config_resetstat()
    store = RedisStore(server.url, clock=SystemClock(), timeout_ms=30_000)
    open_ms = await timed_ms(store.open)
    memory = int(client.info("memory")["used_memory"])
    claims, settles = [], []
    for n in range(PROBES):
        began = time.perf_counter()
        leading = await lead(store, f"{tag}-{n}", lease_ms=LEASE_MS)
        claims.append((time.perf_counter() - began) * 1000)
        settles.append(await timed_ms(partial(store.transact, settled(leading, 1))))
    now_ms = store.now().wall_ms
    figures = Figures(
        records=records,
        memory_bytes=memory,
        claim_ms=spread(claims),
        settle_ms=spread(settles),
        open_ms=open_ms,
        page_ms=await timed_ms(lambda: store.find(Query(knowledge="unknown", oldest_first=True, limit=50))),
        holdings_ms=await timed_ms(store.holdings),
        due_ms=await timed_ms(lambda: store.count_due(before_ms=now_ms)),
        scans=scans_of(client),
    )
    await store.close()
    return figures


def scans_of(client: Any) -> dict[str, int]:
    """How often a command ran that looks at more than it was asked for."""
    stats = client.info("commandstats")
    return {name: stats[f"cmdstat_{name}"]["calls"] for name in SCANNING if f"cmdstat_{name}" in stats}


def table(empty: Figures, full: Figures) -> str:
    each = (full.memory_bytes - empty.memory_bytes) / full.records
    rows = [("", f"{empty.records:,} records", f"{full.records:,} records")]
    rows += [
        (f"{name}, {what}", f"{before[at]:.2f} ms", f"{after[at]:.2f} ms")
        for name, before, after in (
            ("claim", empty.claim_ms, full.claim_ms),
            ("settle", empty.settle_ms, full.settle_ms),
        )
        for at, what in enumerate(("median", "p99"))
    ]
    rows += [
        (name, f"{getattr(empty, field):.1f} ms", f"{getattr(full, field):.1f} ms")
        for name, field in (
            ("open the store", "open_ms"),
            ("first page of the unknown", "page_ms"),
            ("gauges of money in doubt", "holdings_ms"),
            ("count of due lookups", "due_ms"),
        )
    ]
    rows.append(("commands that scan", str(empty.scans or "none"), str(full.scans or "none")))
    lines = [f"{name:<28} {before:>18} {after:>20}" for name, before, after in rows]
    return "\n".join([*lines, f"memory of a payment: {each:,.0f} bytes"])


async def run(records: int) -> None:
    with tempfile.TemporaryDirectory(prefix="safepost-million-") as folder:
        server = Server(
            Path(folder) / "r", "--appendonly", "yes", "--auto-aof-rewrite-percentage", "0"
        ).start()
        try:
            with closing(server.client()) as client:
                empty = await measure(server, client, records=0, tag="EMPTY")
                store = await opened(server)
                rate = await fill(store, records)
                await store.close()
                full = await measure(server, client, records=records, tag="FULL")
                print(table(empty, full))
                print(f"filled at {rate:,.0f} payments a second (claim and settle)")
                began = time.perf_counter()
                server.kill()
                server.start()
                print(f"the server itself, killed: back after {time.perf_counter() - began:.1f} s")
        finally:
            server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.million", description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    uvloop.run(run(parser.parse_args().records))


if __name__ == "__main__":
    main()
