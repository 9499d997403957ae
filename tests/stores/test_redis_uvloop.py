"""Redis on the product's own event loop, whose transports fail in words of their own."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from random import Random  # noqa: TID251 -- seeded
from typing import Any

import pytest

from proxy import loops
from proxy.clock import SystemClock
from proxy.core.messages import Reserved
from proxy.ports import Query, StoreUnavailable
from proxy.stores.redis import RedisStore
from proxy.stores.redis_trouble import trouble_of
from tests.chaos.lines import Line
from tests.contract.values import reserve
from tests.stores.redis_server import Server

PATIENCE_S = 60
ROUNDS = 60
VERBS = 8


def test_severed_connections_are_an_unavailable_store_and_nothing_else(tmp_path: Path) -> None:
    """A closed uvloop transport raises RuntimeError, which ended background tasks and held the batcher's lane."""
    server = Server(tmp_path / "server").start()
    try:
        errors, faults, ends_well = loops.run(asyncio.wait_for(_severed(server), PATIENCE_S))
    finally:
        server.stop()

    assert {type(error) for error in errors} == {StoreUnavailable}
    assert faults == []
    assert ends_well


@pytest.mark.parametrize(
    "error", [RuntimeError("closed"), AttributeError("writelines"), ConnectionResetError()]
)
def test_lost_connection_may_have_carried_the_command(error: Exception) -> None:
    """redis-py fails with AttributeError where another task drops the connection that it is about to use."""
    trouble = trouble_of(error, was_sent=True)

    assert (trouble.is_passing, trouble.was_sent) == (True, True)


async def _severed(server: Server) -> tuple[list[BaseException], list[dict[str, Any]], bool]:
    """Verbs and reads while their connections are reset under them; what they raised, and if it works after."""
    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    line = await Line.open(f"127.0.0.1:{server.port}", Random(1))
    store = RedisStore(f"redis://{line.address}/0", clock=SystemClock(), timeout_ms=1_000)
    await store.open()
    errors: list[BaseException] = []
    led = await store.transact(reserve("K", "a:0", lease_ms=600_000))
    assert isinstance(led, Reserved)
    waits = [asyncio.ensure_future(store.wait(led.operation, timeout_ms=600_000))]
    try:
        for n in range(ROUNDS):
            waits.append(asyncio.ensure_future(store.wait(led.operation, timeout_ms=100)))
            verbs = [reserve(f"K{n}-{v}", "a:1") for v in range(VERBS)]
            work: list[asyncio.Future[object]] = [
                asyncio.ensure_future(store.transact(verb)) for verb in verbs
            ]
            work += [asyncio.ensure_future(store.find(Query())) for _ in range(VERBS)]
            await asyncio.sleep(line.chance.uniform(0.0, 0.004))
            line.sever()
            ended = await asyncio.gather(*work, return_exceptions=True)
            errors += [one for one in ended if isinstance(one, BaseException)]
        page = await store.find(Query())
        return errors, faults, len(page.operations) > 0
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
        await store.close()
        await line.close()
        gc.collect()  # tells of tasks whose errors nobody took
