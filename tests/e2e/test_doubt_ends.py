"""From "we don't know" to "we know": found, looked up, settled with evidence, announced, told (U2, U3, U6, U7)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import ClientResponse, ClientSession

from proxy.sandbox import Sandbox
from tests.e2e.callers import Told, payment
from tests.e2e.processes import Process
from tests.e2e.stage import LOOKUPS, Stage, until
from tests.e2e.test_store_down import QUICK, locked

pytestmark = pytest.mark.slow

GIVEN: dict[str, Any] = {
    "retry": {"attempts": 1, "attempt_timeout": "1s"},
    "lookups": LOOKUPS | {"schedule": ["2500ms"]},
    "log": {"level": "info"},
}
PATIENT: dict[str, Any] = GIVEN | {"retry": {"attempts": 1, "attempt_timeout": "20s", "deadline": "60s"}}

Story = Callable[[Stage, Sandbox], Awaitable[Process]]


async def _in_doubt(stage: Stage, sandbox: Sandbox, fault: dict[str, Any], status: int) -> Process:
    sandbox.add_fault({**fault, "match": {"route": "create_payment"}})
    process = await stage.process(sandbox.url, **GIVEN)
    told = await process.call(payment())
    assert (told.status, told.knowledge) == (status, "unknown")
    return process


async def time_out_after_execution(stage: Stage, sandbox: Sandbox) -> Process:
    return await _in_doubt(stage, sandbox, {"fault": "hang_after"}, 504)


async def error_500_after_execution(stage: Stage, sandbox: Sandbox) -> Process:
    return await _in_doubt(stage, sandbox, {"fault": "status", "status": 500, "executed": True}, 500)


async def reset_after_execution(stage: Stage, sandbox: Sandbox) -> Process:
    return await _in_doubt(stage, sandbox, {"fault": "reset_after"}, 504)


async def crash_after_execution(stage: Stage, sandbox: Sandbox) -> Process:
    sandbox.add_fault({"fault": "hang_after", "match": {"route": "create_payment"}})
    first = await stage.process(sandbox.url, **PATIENT)
    calling = asyncio.create_task(first.call(payment()))
    await until(lambda: bool(sandbox.ledger.charges()))
    await first.kill()
    with pytest.raises((EOFError, OSError)):
        await calling
    return await stage.process(sandbox.url, **GIVEN)


async def settle_write_that_was_lost(stage: Stage, sandbox: Sandbox) -> Process:
    """The caller was told the truth; the ledger never heard of it."""
    sandbox.add_fault(
        {"fault": "delay", "seconds": 0.5, "executed": True, "match": {"route": "create_payment"}}
    )
    first = await stage.process(sandbox.url, **PATIENT | {"store": QUICK})
    calling = asyncio.create_task(first.call(payment()))
    await until(lambda: bool(sandbox.ledger.charges()))
    with locked(stage.folder):
        told = await calling
        assert (told.status, told.knowledge) == (201, "executed")
        await first.kill()
    return await stage.process(sandbox.url, **GIVEN | {"store": QUICK})


async def _settled(process: Process) -> dict[str, Any]:
    """The operation's whole story, once it is known."""
    found: list[dict[str, Any]] = []

    async def known() -> bool:
        found[:] = await process.operations()
        return [one["knowledge"] for one in found] == ["executed"]

    await until(known, within_s=60)
    story: dict[str, Any] = (await process.ask(f"/operations/{found[0]['id']}")).json
    return story


async def _next(stream: ClientResponse, kind: str | None = None) -> dict[str, Any]:
    """The stream's next event, or its next of one kind; with its id."""
    seen: dict[str, str] = {}
    async with asyncio.timeout(60):
        async for raw in stream.content:
            name, _, value = raw.decode().rstrip("\n").partition(": ")
            if name:
                seen[name] = value
            elif "event" in seen and kind in (None, seen["event"]):
                return {"id": seen.get("id"), "event": seen["event"], **json.loads(seen["data"])}
            else:
                seen = {}
    raise AssertionError("the stream ended")


async def _announced(process: Process) -> dict[str, Any]:
    """What a reader gets that saw the doubt, lost its connection, and came back with the last id it saw (U7)."""
    url = f"http://{process.admin}/events"
    async with ClientSession() as session:
        async with session.get(url, params={"last": "1"}) as stream:
            doubt = await _next(stream, "became_unknown")
        async with session.get(url, headers={"Last-Event-ID": doubt["id"]}) as stream:
            return await _next(stream)


@pytest.mark.parametrize(
    "story",
    [
        time_out_after_execution,
        error_500_after_execution,
        reset_after_execution,
        crash_after_execution,
        settle_write_that_was_lost,
    ],
    ids=lambda story: story.__name__,
)
async def test_doubt_is_found_looked_up_settled_announced_and_told(stage: Stage, story: Story) -> None:
    sandbox = await stage.sandbox()
    process = await story(stage, sandbox)

    settled = await _settled(process)

    assert (settled["status"], settled["settled_by"], settled["doubt"]) == ("succeeded", "lookup", True)
    assert settled["newest"]["source"] == "lookup"
    assert [one["kind"] for one in settled["history"]][-1] == "lookup"
    known = await _announced(process)
    assert (known["event"], known["operation"], known["by"]) == ("became_known", settled["id"], "lookup")
    line = json.loads(await process.line('"became_known"'))
    assert (line["operation"], line["by"]) == (settled["id"], "lookup")
    metrics = (await process.ask("/metrics")).body.decode()
    assert 'safepost_settled_total{by="lookup",route="create_payment",status="succeeded"} 1.0' in metrics
    told: Told = await process.call(payment())
    assert (told.status, told.json["status"], told.knowledge) == (200, "succeeded", "executed")
    assert len(sandbox.ledger.charges()) == 1
