"""`safepost demo --drill`: a shop at work while one thing after the other breaks, and what became of its money."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from proxy.app import App
from proxy.clock import SystemClock
from proxy.config import Settings, settings_of
from proxy.drill.callers import CALLERS, Shop, open_shop
from proxy.drill.phases import PHASES, UNANSWERED, Audience, Nobody, Phase, Theatre
from proxy.drill.stage import Shelf, Way, server_program
from proxy.sandbox import Sandbox

__all__ = ["PHASES", "Audience", "Phase", "PhaseResult", "play"]

CREDENTIAL = "sk_test_drill"
CERTAIN_MS = 60_000
LOOK_S = 0.5
STEP_S = 0.02

CONFIGURATION = """
listen: 127.0.0.1:0
admin: {admin}
platform: payhub
environment: test
upstream: {{url: "{upstream}", authorization: "Bearer {credential}"}}
store: {{url: "{store}", lease: 5s, timeout: 3s{journal}}}
wait_timeout: 10s
# A minute of the platform's contract is a second here, so that a drill takes minutes. What a healthy call must
# keep to is wide all the same: no phase may end otherwise because the machine is busy.
retry: {{attempts: {attempts}, attempt_timeout: 3s, base: 50ms, cap: 200ms, jitter_max: 20ms, deadline: 12s}}
breaker: {{failures: 8, window: 2s, open_for: 1s}}
lookups:
  enabled: {lookups}
  schedule: [2s, 4s, 6s, 8s]
  then_every: 2s
  until: 10m
  min_interval: 1s
  lag: 500ms
  rate: 20/s
log: {{level: error, format: text}}
"""


@dataclass(frozen=True, slots=True)
class PhaseResult:
    """How one phase went. Times are the wall clock's; `rested_ms` is when the calm after it ended."""

    phase: Phase
    began_ms: int
    ended_ms: int
    rested_ms: int
    told: Counter[str]
    charges: int


async def play(
    *,
    console: Console | None = None,
    admin: str = "127.0.0.1:0",
    server: str | None = None,
    told: Callable[[PhaseResult], None] | None = None,
    audience: Audience | None = None,
) -> int:
    """Play every phase and print what callers were told, what was charged, and which alerts belong to it.

    Args: admin: where the metrics are served meanwhile. server: a Redis or Valkey program; None looks for one, and
        without any the ledger is a file and its loss is left out. told: given each phase's result as it ends.
        audience: who sees the alerts; None for nobody, then phases take their usual times.
    Returns: 0 only if no order was charged twice, every charge is known, and nothing is in doubt at the end.
    """
    console = console or Console(soft_wrap=False)
    program = server or server_program()
    async with _theatre(program, admin, audience or Nobody()) as (theatre, app):
        url = app.admin.url if app.admin else ""
        console.print(f"[dim]platform {theatre.sandbox.url}, metrics {url}/metrics[/dim]")
        if program is None:
            console.print("no redis-server or valkey-server here: the ledger is a file, and is not lost")
        results = await _perform(theatre, console, told or _unwatched)
        wrong = await _wrong_in_the_end(theatre, url)
    _print(console, results)
    for line in wrong:
        console.print(f"[red]{escape(line)}[/red]")
    if not wrong:
        paid = len(theatre.shop.paid)
        console.print(f"{paid} orders paid, each charged once; nothing is in doubt.")
    return 1 if wrong else 0


@asynccontextmanager
async def _theatre(program: str | None, admin: str, audience: Audience) -> AsyncIterator[tuple[Theatre, App]]:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="safepost-drill-")))
        sandbox = await Sandbox.start("127.0.0.1", 0)
        stack.push_async_callback(sandbox.close)
        host, _, port = sandbox.url.removeprefix("http://").rpartition(":")
        way = await Way(host, int(port)).open()
        stack.push_async_callback(way.cut)
        shelf = None
        if program is not None:
            shelf = await Shelf(program, folder / "redis").start()
            stack.push_async_callback(shelf.kill)
        written = partial(
            CONFIGURATION.format,
            admin=admin,
            upstream=way.url,
            credential=CREDENTIAL,
            store=shelf.url if shelf else f"sqlite:{folder}/drill.db",
            journal=f", journal: {folder}/unresolved.journal" if shelf else "",
        )

        def settings(*, attempts: int = 1, lookups: bool = True) -> Settings:
            text = written(attempts=attempts, lookups=str(lookups).lower())
            return settings_of(text, file=str(folder / "drill.yaml"))

        app = await App.start(settings())
        stack.push_async_callback(app.stop)

        async def configure(*, attempts: int = 1, lookups: bool = True) -> None:
            await app.reload(settings(attempts=attempts, lookups=lookups))

        async def written_down() -> None:
            async with asyncio.timeout(CERTAIN_MS / 1000):
                while _is_at_work(app):  # noqa: ASYNC110 -- the end of a sidecar's work sets no event
                    await asyncio.sleep(STEP_S)

        shop = await stack.enter_async_context(open_shop(f"http://{app.urls[0]}", CREDENTIAL))
        yield Theatre(sandbox, way, shop, shelf, audience, configure, written_down), app


def _is_at_work(app: App) -> bool:
    return any(one.driver.runs or len(one.driver.owed) for one in app.generations)


def _unwatched(_: PhaseResult) -> None:
    """Nobody asked to be told."""


async def _perform(
    theatre: Theatre, console: Console, told: Callable[[PhaseResult], None]
) -> list[PhaseResult]:
    shop, clock = theatre.shop, SystemClock()
    results: list[PhaseResult] = []

    async def phases() -> None:
        try:
            for phase in PHASES:
                if phase.needs_shelf and theatre.shelf is None:
                    continue
                console.print(f"[bold]{phase.name}[/bold]: {phase.tells}")
                before, charges = shop.told.copy(), len(theatre.sandbox.ledger.of("charge"))
                began_ms = clock.wall_ms()
                await phase.play(theatre)
                ended_ms = clock.wall_ms()
                await theatre.audience.until_calm(usual_s=phase.rest_s)
                results.append(
                    PhaseResult(
                        phase,
                        began_ms,
                        ended_ms,
                        clock.wall_ms(),
                        shop.told - before,
                        len(theatre.sandbox.ledger.of("charge")) - charges,
                    )
                )
                told(results[-1])
        finally:
            shop.is_open = False

    await asyncio.gather(phases(), *(shop.serve() for _ in range(CALLERS)))
    return results


async def _wrong_in_the_end(theatre: Theatre, admin_url: str) -> list[str]:
    """Doubt ends by itself, when the lookups have been made: what is wrong once nothing is, or time is over."""
    clock = SystemClock()
    ends_ms = clock.monotonic_ms() + CERTAIN_MS
    while True:
        wrong = await _wrong(theatre, admin_url)
        if not wrong or clock.monotonic_ms() > ends_ms:
            return wrong
        await asyncio.sleep(LOOK_S)


async def _wrong(theatre: Theatre, admin_url: str) -> list[str]:
    """What must not be: two charges of one order, a charge that nobody knows of, doubt that is left."""
    shop = theatre.shop
    charges = Counter(entry.order for entry in theatre.sandbox.ledger.of("charge"))
    found = [f"{order}: charged {n} times" for order, n in charges.items() if n > 1]
    found += [f"{order}: told paid, not charged" for order in sorted(shop.paid) if not charges[order]]
    unknown = await _operations(shop, f"{admin_url}/operations?knowledge=unknown")
    found += [f"{one['id']}: still unknown" for one in unknown]
    for order in sorted(order for order in charges if order.startswith(UNANSWERED)):
        known = await _operations(shop, f"{admin_url}/operations?key=payment.create:{order}:1")
        if [one["knowledge"] for one in known] != ["executed"]:
            found.append(f"{order}: charged, and the ledger does not know")
    return found


async def _operations(shop: Shop, url: str) -> list[dict[str, object]]:
    async with shop.session.get(url) as answer:
        rows: list[dict[str, object]] = json.loads(await answer.read())["operations"]
    return rows


def _print(console: Console, results: list[PhaseResult]) -> None:
    table = Table(show_lines=True, expand=False)
    for name in ("phase", "callers were told", "charges", "alerts that belong to it"):
        table.add_column(name, overflow="fold", justify="right" if name == "charges" else "left")
    table.columns[0].max_width = 20
    table.columns[-1].min_width = max(len(name) for result in results for name in result.phase.alerts)
    for result in results:
        told = "\n".join(f"{n} {escape(what)}" for what, n in result.told.most_common())
        alerts = "\n".join(sorted(result.phase.alerts)) or "none"
        table.add_row(f"[bold]{result.phase.name}[/bold]", told, str(result.charges), alerts)
    console.print(table)
