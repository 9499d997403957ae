"""Two hundred calls of one key over four sidecars are one hit, also where the leader is killed (P4, P5)."""

from __future__ import annotations

import asyncio
import contextlib
import io

import pytest
from rich.console import Console

from proxy.demo import play
from tests.e2e.stage import Stage
from tests.redis.crowd import house, killed_leader_round, one_key_round
from tests.redis.lines import SlowLine
from tests.stores.redis_server import Server

pytestmark = pytest.mark.slow

DELAY_S = 0.05
CALLERS = 200
ROUNDS = 3  # fifty with `python -m tests.redis`


async def test_s1_to_s13_hold_with_two_sidecars_on_one_redis(server: Server) -> None:
    """What `safepost demo --store redis://...` plays: calls alternate between the sidecars."""
    shown = io.StringIO()

    code = await play(store=server.url, console=Console(file=shown, width=120))

    assert "2 sidecars on one store" in shown.getvalue()
    assert "13 of 13 scenarios hold." in shown.getvalue()
    assert code == 0


async def test_two_hundred_calls_over_four_sidecars_are_one_hit(stage: Stage, server: Server) -> None:
    platform = await stage.platform()
    async with SlowLine(server.port, DELAY_S) as line:
        sidecars = await house(stage, platform.url, line.url, count=4)
        for n in range(ROUNDS):
            ended = await one_key_round(platform, sidecars, f"O-{n}", callers=CALLERS)

            assert ended.has_one_answer(hits=1, lost=0), ended
        await asyncio.gather(*(one.kill() for one in sidecars))


async def test_killed_leader_is_replaced_with_the_same_key_by_one_of_many(
    stage: Stage, server: Server
) -> None:
    platform = await stage.platform()
    async with SlowLine(server.port, DELAY_S) as line, contextlib.AsyncExitStack() as stack:
        sidecars = await house(stage, platform.url, line.url, count=4)
        for one in sidecars:
            stack.push_async_callback(one.kill)

        ended = await killed_leader_round(platform, sidecars, "O-1", callers=CALLERS)

        led_by_the_dead = -(-(CALLERS - 1) // 4)
        assert ended.has_one_answer(hits=2, lost=led_by_the_dead), ended
