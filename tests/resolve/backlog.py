"""After an outage: thousands of unknown operations, two sidecars on one ledger, and a platform that counts.

    python -m tests.resolve.backlog [COUNT] [sqlite|redis]

prints how the backlog went down: how often each object was asked for and how close together, the rate that
each sidecar kept, their memory. Times are scaled: an interval of 1 s stands for the contract's 10 s.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from aiohttp import web

from proxy.clock import SystemClock
from proxy.core.model import Handle, Lookups, Operation, Scope, Subject, replace
from proxy.ports import Query, Store
from proxy.stores import make_store
from tests.contract.values import PutRows, operation
from tests.e2e.processes import Process
from tests.e2e.stage import configuration
from tests.stores.redis_server import Server

SCOPE = Scope("default", "test")
INTERVAL_MS = 1_000  # for the contract's 10 s
RATE_EACH = 100  # a second, of one sidecar; the contract's 5
LOOKED_AT_S = 0.25
AGE_MS = 2_000  # of the oldest when the sidecars begin: every first point has passed


@dataclass
class Platform:
    """Answers lookups by order number: one of four payments is still processing when first asked for."""

    asked: list[tuple[float, str, str]] = field(default_factory=list)
    times: Counter[str] = field(default_factory=Counter)
    url: str = ""

    async def answer(self, request: web.Request) -> web.Response:
        parts = urlsplit(str(request.rel_url))
        number = (parse_qs(parts.query).get("merchant_order_no") or [""])[0] or parts.path.rpartition("pay_")[
            2
        ]
        sidecar = request.headers["Authorization"]
        self.asked.append((asyncio.get_running_loop().time(), number, sidecar))
        self.times[number] += 1
        is_done = self.times[number] > 1 or int(number[1:]) % 4 != 0
        shown = {
            "id": f"pay_{number}",
            "status": "succeeded" if is_done else "processing",
            "merchant_order_no": number,
            "version": self.times[number],
        }
        return web.json_response(shown if "pay_" in parts.path else {"data": [shown]})

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        app = web.Application()
        app.router.add_get("/v1/payments", self.answer)
        app.router.add_get("/v1/payments/{id}", self.answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield
        finally:
            await runner.cleanup()


@dataclass(frozen=True, slots=True)
class Figures:
    """What was measured. Rates are lookups in any one second, of one sidecar; memory is RSS in MiB."""

    count: int
    settled: int
    asked: int
    took_s: float
    closest_s: float
    rates_max: dict[str, int]
    newest_waited_s: float
    memory: dict[str, tuple[float, float]]

    def __str__(self) -> str:
        memory = ", ".join(
            f"{name} {first:.1f} to {last:.1f} MiB" for name, (first, last) in self.memory.items()
        )
        return (
            f"{self.count} unknown operations, {self.settled} settled "
            f"by {self.asked} lookups in {self.took_s:.1f} s\n"
            f"one object at least {self.closest_s:.3f} s apart (interval {INTERVAL_MS / 1000:.0f} s)\n"
            f"in any one second: {self.rates_max} (rate {RATE_EACH}/s each)\n"
            f"a payment that fell into doubt in the midst of it was settled after {self.newest_waited_s:.1f} s\n"
            f"memory: {memory}"
        )


async def measure(folder: Path, *, store_url: str, count: int, within_s: float) -> Figures:
    """Put `count` unknown operations into a ledger, start two sidecars on it, and wait for the last one's end."""
    clock = SystemClock()
    store = make_store(store_url, clock=clock, timeout_ms=5_000)
    await store.open()
    platform = Platform()
    sidecars: list[Process] = []
    try:
        async with platform.serving():
            await _fill(store, [f"N{n}" for n in range(count)], at_ms=clock.wall_ms() - AGE_MS)
            for name in ("a", "b"):
                config = folder / f"{name}.yaml"
                config.write_text(_configuration(platform.url, store_url, name), encoding="utf-8")
                sidecars.append(await Process.start(config))
            return await _watched(store, platform, sidecars, count=count, within_s=within_s)
    finally:
        for sidecar in sidecars:
            await sidecar.kill()
        await store.close()


async def _watched(
    store: Store, platform: Platform, sidecars: list[Process], *, count: int, within_s: float
) -> Figures:
    loop = asyncio.get_running_loop()
    began = loop.time()
    newest, newest_began, newest_waited = f"N{count * 4 + 1}", 0.0, 0.0
    memory: dict[str, list[float]] = defaultdict(list)
    async with asyncio.timeout(within_s):
        while open_now := await _open(store):
            for sidecar in sidecars:
                memory[sidecar.config.stem].append(_rss_mib(sidecar.pid))
            if not newest_began and open_now < count * 3 // 4:
                newest_began = loop.time()
                await _fill(store, [newest], at_ms=SystemClock().wall_ms() - AGE_MS)
            if newest_began and not newest_waited and platform.times[newest]:
                newest_waited = loop.time() - newest_began
            await asyncio.sleep(LOOKED_AT_S)
    took = loop.time() - began
    everything = await _states(store)
    return Figures(
        count=count + 1,
        settled=everything["executed"],
        asked=len(platform.asked),
        took_s=took,
        closest_s=_closest_s(platform),
        rates_max=_rates_max(platform),
        newest_waited_s=newest_waited,
        memory={name: (_early(seen), seen[-1]) for name, seen in memory.items()},
    )


def _early(seen: list[float]) -> float:
    """After the first pages were worked on: what start-up takes is no leak."""
    return seen[len(seen) // 5]


async def _fill(store: Store, names: list[str], *, at_ms: int) -> None:
    async def put(name: str) -> None:
        due = _due(name, at_ms=at_ms)
        handle = Handle(f"order:{name}")
        subject = Subject(scope=SCOPE, handle=handle, updated_ms=at_ms, operations=(due.id,))
        await store.transact(PutRows((due, subject)))

    for some in _batches(names, 500):
        await asyncio.gather(*(put(name) for name in some))


def _batches(names: list[str], size: int) -> list[list[str]]:
    return [names[at : at + size] for at in range(0, len(names), size)]


def _due(name: str, *, at_ms: int) -> Operation:
    return replace(
        operation(name, scope=SCOPE, at_ms=at_ms),
        unknown_since_ms=at_ms,
        last_attempt_end_ms=at_ms,
        lookups=Lookups(next_ms=at_ms),
        number_is_unique=True,
        kind="payment",
    )


def _configuration(url: str, store_url: str, name: str) -> str:
    lookups = {
        "enabled": True,
        "schedule": ["1s"],
        "then_every": "1s",  # as dense as the interval lets it be
        "min_interval": f"{INTERVAL_MS}ms",
        "lag": "6s",
        "rate": f"{RATE_EACH}/s",
    }
    return configuration(
        {
            "upstream": {"url": url, "authorization": f"Bearer sk_test_{name}"},
            "store": {"url": store_url, "timeout": "5s"},
            "lookups": lookups,
        }
    )


async def _open(store: Store) -> int:
    return sum(one.count for one in await store.holdings())


async def _states(store: Store) -> Counter[str]:
    found: Counter[str] = Counter()
    cursor: str | None = None
    while True:
        page = await store.find(Query(limit=500, cursor=cursor))
        found.update(one.state.value for one in page.operations)
        cursor = page.cursor
        if cursor is None:
            return found


def _closest_s(platform: Platform) -> float:
    times: dict[str, list[float]] = defaultdict(list)
    for at, number, _ in platform.asked:
        times[number].append(at)
    gaps = [b - a for one in times.values() for a, b in itertools.pairwise(one)]
    return min(gaps, default=float("inf"))


def _rates_max(platform: Platform) -> dict[str, int]:
    """The most lookups of each sidecar in any window of one second."""
    most: dict[str, int] = {}
    for sidecar in sorted({one for _, _, one in platform.asked}):
        times = [at for at, _, one in platform.asked if one == sidecar]
        first = 0
        for last, at in enumerate(times):
            while at - times[first] > 1.0:
                first += 1
            most[sidecar] = max(most.get(sidecar, 0), last - first + 1)
    return most


def _rss_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096 / 2**20


async def main(count: int, kind: str) -> Figures:
    with tempfile.TemporaryDirectory(prefix="safepost-backlog-") as name:
        folder = Path(name)
        server = Server(folder / "redis").start() if kind == "redis" else None
        try:
            url = server.url if server else f"sqlite:{folder}/ledger.db"
            return await measure(folder, store_url=url, count=count, within_s=60 + count / 50)
        finally:
            if server is not None:
                server.stop()


if __name__ == "__main__":
    given = sys.argv[1:]
    told = asyncio.run(main(int(given[0]) if given else 10_000, given[1] if len(given) > 1 else "sqlite"))
    sys.stdout.write(f"{told}\n")
