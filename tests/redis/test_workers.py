"""`workers: N` on Redis: one port, one ledger, one page of counts (M1)."""

from __future__ import annotations

import asyncio
import re
import signal

import pytest

from proxy.core.model import State
from tests.e2e.callers import payment
from tests.e2e.platforms import ok
from tests.e2e.processes import Process
from tests.e2e.stage import Stage, until
from tests.redis.crowd import patient, with_store
from tests.stores.redis_server import Server
from tests.wire.peers import Hold, Script

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


async def test_workers_of_a_killed_parent_drain_and_leave_its_port(stage: Stage, server: Server) -> None:
    """Else they would take calls beside the process that is started in its place."""
    go = asyncio.Event()
    platform = await stage.platform()
    platform.plan(Script(Hold(go), *ok().steps))
    sidecar = await stage.process(platform.url, workers=2, **with_store(server.url))
    call = asyncio.create_task(patient(sidecar.address, payment()))
    await platform.got(1)
    sidecar.process.kill()
    go.set()

    told = await call

    async def gone() -> bool:
        try:
            await sidecar.call(payment("K-2", order="O-2"))
        except ConnectionRefusedError:
            return True
        except (OSError, EOFError):
            return False
        return False

    await until(gone, within_s=15.0)
    assert (told.status, told.knowledge) == (201, "executed")
    assert await sidecar.ended() == -signal.SIGKILL
