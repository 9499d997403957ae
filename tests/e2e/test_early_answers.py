"""W1 across processes: answered early on one host, the repeat attaches to the call on another one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.callers import Told, payment
from tests.e2e.platforms import ok, thing
from tests.e2e.processes import Process
from tests.e2e.stage import Stage, until
from tests.stores.redis_server import Server
from tests.wire.peers import Hold, RawPlatform, Script

pytestmark = pytest.mark.slow

PATIENT: dict[str, Any] = {"retry": {"attempts": 1, "attempt_timeout": "20s", "deadline": "60s"}}


@pytest.fixture(params=["sqlite", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Where both processes keep their ledger."""
    if request.param == "sqlite":
        yield {"url": f"sqlite:{tmp_path}/ledger.db"}
        return
    server = Server(tmp_path / "redis", "--maxmemory-policy", "noeviction").start()
    yield {"url": server.url}
    server.stop()


async def _held(stage: Stage) -> tuple[RawPlatform, asyncio.Event]:
    """A platform that answers when it is let."""
    go = asyncio.Event()
    platform = await stage.platform(ok(200))
    platform.plan(Script(Hold(go), *ok(201).steps))
    return platform, go


async def _two(stage: Stage, url: str, **given: Any) -> tuple[Process, Process]:
    first = await stage.process(url, name="a", **PATIENT | given)
    return first, await stage.process(url, name="b", **PATIENT | given)


def _early(told: Told) -> str:
    """The operation of an early answer, which tells where to ask and when to come again."""
    assert (told.status, told.code, told.knowledge) == (504, "result_unknown", "unknown")
    assert told.header("retry-after") is not None
    location = told.header("location")
    assert location is not None
    return location.rpartition("/")[2]


async def _in_flight(process: Process, count: int) -> bool:
    page = (await process.ask("/metrics")).body.decode()
    return f'safepost_in_flight{{route="create_payment"}} {count}.0' in page


async def test_repeat_on_another_host_gets_the_one_answer(stage: Stage, store: dict[str, Any]) -> None:
    platform, go = await _held(stage)
    first, second = await _two(stage, platform.url, store=store, answer_within="300ms")
    identity = _early(await first.call(payment()))
    repeat = asyncio.create_task(second.call(payment("K", 10_000, ("Prefer", "wait=9"))))
    assert _early(await repeat) == identity, "the smaller wait wins on the other host, too"

    asking = asyncio.create_task(second.ask(f"/operations/{identity}?wait=9s"))
    go.set()
    story = (await asking).json
    again = await second.call(payment())

    assert (story["knowledge"], story["status"]) == ("executed", "succeeded")
    assert (again.status, again.json["id"], again.knowledge) == (200, "pay_t1", "executed")
    assert [seen.method for seen in platform.received].count(b"POST") == 2, (
        "the call, and P6's forwarded repeat"
    )


async def test_repeat_attaches_while_the_call_goes_on(stage: Stage, store: dict[str, Any]) -> None:
    platform, go = await _held(stage)
    first, second = await _two(stage, platform.url, store=store)
    _early(await first.call(payment("K", 10_000, ("Prefer", "wait=1"))))
    attached = [asyncio.create_task(second.call(payment())) for _ in range(5)]
    await until(lambda: _in_flight(second, len(attached)))
    go.set()

    told = await asyncio.gather(*attached)

    assert {(one.status, one.body, one.knowledge) for one in told} == {(201, thing(), "executed")}
    assert all(one.replayed for one in told)
    assert platform.hits == 1
