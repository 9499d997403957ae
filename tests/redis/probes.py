"""A Redis that is away while payments are under way: what the probes and the callers are told (O-55)."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass

from tests.e2e.callers import Told, payment
from tests.e2e.platforms import ok
from tests.e2e.processes import Process
from tests.e2e.stage import PATIENCE_S, Stage, until
from tests.redis.crowd import SHARED, patient
from tests.stores.redis_server import Server
from tests.wire.peers import Hold, Script

CALLS = 5
STORE = {"timeout": "800ms", "lease": "2s"}
PATHS = ("/healthz", "/readyz", "/readyz?for=payments")


@dataclass(frozen=True, slots=True)
class Away:
    """What was seen while the server was away, and afterwards."""

    probes: Counter[tuple[int, ...]]
    """The statuses of `PATHS`, once a second, while it was away."""
    fit_again_s: float
    told: tuple[Told, ...]
    states: tuple[str, ...]
    is_same_process: bool


async def away(stage: Stage, server: Server, *, away_s: int, answer_s: int) -> Away:
    """Stop the server for so long while the platform works on five payments, for `answer_s` each."""
    go = asyncio.Event()
    platform = await stage.platform()
    platform.plan(*(Script(Hold(go), *ok().steps) for _ in range(CALLS)))
    sidecar = await stage.process(platform.url, **SHARED | {"store": {"url": server.url, **STORE}})
    calls = [
        asyncio.create_task(patient(sidecar.address, payment(f"K-{n}", order=f"O-{n}"))) for n in range(CALLS)
    ]
    await platform.got(CALLS)
    server.kill()
    probes: Counter[tuple[int, ...]] = Counter()
    for second in range(away_s):
        if second == answer_s:
            go.set()
        probes[tuple([(await sidecar.ask(path)).status for path in PATHS])] += 1
        await asyncio.sleep(1)
    told = await asyncio.gather(*calls)
    await asyncio.to_thread(server.start)
    fit_again_s = await _fit_again(sidecar)

    async def recorded() -> bool:
        return await _states(sidecar) == ("executed",) * CALLS

    await until(recorded)
    is_same = sidecar.process.returncode is None
    return Away(probes, fit_again_s, tuple(told), await _states(sidecar), is_same)


async def _fit_again(sidecar: Process) -> float:
    loop = asyncio.get_running_loop()
    began = loop.time()

    async def fit() -> bool:
        return (await sidecar.ask(PATHS[-1])).status == 200

    await until(fit, within_s=PATIENCE_S)
    return loop.time() - began


async def _states(sidecar: Process) -> tuple[str, ...]:
    return tuple(found["state"] for found in await sidecar.operations())
