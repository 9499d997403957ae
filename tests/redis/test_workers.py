"""`workers: N` on Redis: one port, one ledger, one page of counts (M1)."""

from __future__ import annotations

import asyncio
import re
import signal

import pytest

from proxy.core.model import State
from tests.e2e.callers import payment
from tests.e2e.processes import Process
from tests.e2e.stage import Stage, until
from tests.redis.crowd import patient, with_store
from tests.stores.redis_server import Server

pytestmark = pytest.mark.slow

CALLS = 60


async def _counted(sidecar: Process, name: str) -> float:
    page = (await sidecar.ask("/metrics")).body.decode()
    return sum(map(float, re.findall(rf"(?m)^safepost_{name}(?:\{{.*\}})? (.*)$", page)))


async def test_workers_on_redis_share_key_ledger_and_counts(stage: Stage, server: Server) -> None:
    sandbox = await stage.sandbox()
    sandbox.add_fault({"fault": "delay", "seconds": 1.0})
    sidecar = await stage.process(sandbox.url, workers=3, **with_store(server.url))

    told = await asyncio.gather(*(patient(sidecar.address, payment()) for _ in range(CALLS)))
    others = [payment(f"K-{n}", order=f"O-{n}") for n in range(CALLS)]
    rest = await asyncio.gather(*(patient(sidecar.address, raw) for raw in others))

    assert {(one.status, one.body) for one in told} == {(201, told[0].body)}
    assert {one.status for one in rest} == {201}
    assert len(sandbox.ledger.charges()) == len(sandbox.requests.seen) == 1 + CALLS

    async def added_up() -> bool:
        return await _counted(sidecar, "requests_total") == 2 * CALLS

    await until(added_up)
    assert await _counted(sidecar, "attempts_total") == 1 + CALLS
    assert {found["state"] for found in await sidecar.operations()} == {State.EXECUTED}
    sidecar.signal(signal.SIGTERM)
    assert await sidecar.ended() == 0
