"""The drill against a real Prometheus: exactly the expected alerts fire and clear, and no panel is empty."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from deploy.observe import second
from deploy.observe.__main__ import drawn, redis_server
from deploy.observe.boards import empty_panels
from deploy.observe.judge import unexpected
from deploy.observe.server import Prometheus, program
from deploy.observe.watch import Watch
from proxy import drill
from proxy.clock import SystemClock
from proxy.drill.stage import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


async def test_drill_makes_the_expected_alerts_fire_and_clear(tmp_path: Path) -> None:
    if program() is None:
        pytest.skip("no prometheus on this machine; Debian: apt-get install prometheus")
    clock, told = SystemClock(), io.StringIO()
    results: list[drill.PhaseResult] = []
    admin = f"127.0.0.1:{free_port()}"
    prometheus = Prometheus(tmp_path, targets=(admin,))
    try:
        await prometheus.start()
        began_ms = clock.wall_ms()
        code = await drill.play(
            console=Console(file=told, width=160),
            admin=admin,
            server=redis_server(),
            told=results.append,
            audience=Watch(prometheus),
        )
        ended_ms = clock.wall_ms()
        firings = await prometheus.alerts(from_ms=began_ms, to_ms=ended_ms)
        empty = await empty_panels(prometheus, from_ms=began_ms, to_ms=ended_ms)
        pictures = await drawn(prometheus, results)
    finally:
        await prometheus.stop()

    assert unexpected(results, firings) == [], firings
    assert empty == []
    assert code == 0, told.getvalue()
    assert [result.phase.name for result in results] == [phase.name for phase in drill.PHASES]
    assert all(result.charges for result in results)
    for text in pictures.values():
        assert text.count("<path") > 20


async def test_second_act_makes_the_expected_alerts_fire_and_clear(tmp_path: Path) -> None:
    if program() is None:
        pytest.skip("no prometheus on this machine; Debian: apt-get install prometheus")

    results, firings = await second.play(
        tmp_path, Console(file=io.StringIO(), width=160), server=redis_server()
    )

    assert unexpected(results, firings) == [], firings
    assert [result.phase for result in results] == list(second.acts())
