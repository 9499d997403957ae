"""`python -m tests.redis --rounds 50 --kills 10`: the crowd's rounds in full, with their figures."""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

from tests.e2e.processes import Process
from tests.e2e.stage import Stage
from tests.redis.crowd import Round, house, killed_leader_round, one_key_round
from tests.redis.lines import SlowLine
from tests.redis.probes import away
from tests.stores.redis_server import Server
from tests.wire.peers import RawPlatform

SIDECARS = 4
FIT_AGAIN_S = 10.0  # O-55


def main() -> int:
    """Returns: 0 if every round was one hit (two where the leader was killed) and one answer for all."""
    parser = argparse.ArgumentParser(prog="python -m tests.redis", description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--kills", type=int, default=10, help="rounds in which the leader is killed")
    parser.add_argument("--callers", type=int, default=200)
    parser.add_argument("--delay-ms", type=int, default=50, help="of each command of Redis")
    parser.add_argument("--away", type=int, default=0, help="and Redis away for so many seconds (O-55)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="safepost-redis-") as folder:
        return asyncio.run(_play(given, Path(folder)))


async def _play(given: argparse.Namespace, folder: Path) -> int:
    server = Server(folder / "server", "--appendonly", "yes", "--appendfsync", "always").start()
    try:
        async with AsyncExitStack() as stack, SlowLine(server.port, given.delay_ms / 1000) as line:
            stage = Stage(stack, folder)
            platform = await stage.platform()
            sidecars = await house(stage, platform.url, line.url, count=SIDECARS)
            stack.push_async_callback(_end, sidecars)
            whole = await _rounds(given, platform, sidecars)
            killed = await _kills(given, platform, sidecars)
            lives = not given.away or await _away(stage, server, given.away)
    finally:
        server.stop()
    return 0 if whole and killed and lives else 1


async def _away(stage: Stage, server: Server, seconds: int) -> bool:
    seen = await away(stage, server, away_s=seconds, answer_s=10)
    told = {(one.status, one.knowledge) for one in seen.told}
    sys.stdout.write(
        f"away for {seconds} s: liveness, readiness, fit for payments {dict(seen.probes)}; told {told}; "
        f"fit again after {seen.fit_again_s:.2f} s; recorded as {set(seen.states)}\n"
    )
    is_right = seen.is_same_process and set(seen.states) == {"executed"} and told == {(201, "executed")}
    return is_right and set(seen.probes) == {(200, 200, 503)} and seen.fit_again_s < FIT_AGAIN_S


async def _rounds(given: argparse.Namespace, platform: RawPlatform, sidecars: list[Process]) -> bool:
    ended: list[bool] = []
    took: list[float] = []
    loop = asyncio.get_running_loop()
    for n in range(given.rounds):
        began = loop.time()
        found = await one_key_round(platform, sidecars, f"O-{n}", callers=given.callers)
        took.append(loop.time() - began)
        ended.append(_told(f"round {n}", found, hits=1, lost=0))
    median_s = statistics.median(took) if took else 0.0
    sys.stdout.write(
        f"{sum(ended)} of {len(ended)} rounds: one hit, {given.callers} equal answers (median {median_s:.2f} s)\n"
    )
    return all(ended)


async def _kills(given: argparse.Namespace, platform: RawPlatform, sidecars: list[Process]) -> bool:
    ended: list[bool] = []
    lost = -(-(given.callers - 1) // SIDECARS)
    for n in range(given.kills):
        found = await killed_leader_round(platform, sidecars, f"X-{n}", callers=given.callers)
        ended.append(_told(f"kill {n}", found, hits=2, lost=lost))
        sidecars[0] = await Process.start(sidecars[0].config)
    sys.stdout.write(f"{sum(ended)} of {len(ended)} kills: taken over once, one answer for all who live\n")
    return all(ended)


def _told(name: str, found: Round, *, hits: int, lost: int) -> bool:
    if found.has_one_answer(hits=hits, lost=lost):
        return True
    statuses = sorted({(one.status, one.code) for one in found.told}, key=str)
    sys.stdout.write(f"{name}: {found.hits} hits, {found.lost} lost, keys {found.keys}, told {statuses}\n")
    return False


async def _end(sidecars: list[Process]) -> None:
    await asyncio.gather(*(one.kill() for one in sidecars))


if __name__ == "__main__":
    sys.exit(main())
