"""The wait for another process's run, between its notifications and the poll (D2)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from proxy.core.model import Now, Operation, OperationId, State
from proxy.stores import waiters
from proxy.stores.waiters import WaitHub
from tests.contract.values import START_MS, operation

NOW = Now(lease_ms=0, epoch="boot", wall_ms=START_MS)
RUNNING = replace(operation("K-1", state=State.IN_FLIGHT), lease_epoch="boot", lease_until_ms=3_600_000)
ENDED = operation("K-1", state=State.EXECUTED)


@dataclass(slots=True)
class Elsewhere:
    """The run ends, and says so, while it is read for the first time, too late for that reply."""

    hub: WaitHub | None = None
    looks: list[Sequence[Operation]] = field(default_factory=list)

    async def load(self, operations: Sequence[Operation]) -> dict[OperationId, Operation]:
        self.looks.append(operations)
        if len(self.looks) > 1:
            return {ENDED.id: ENDED}
        assert self.hub is not None
        self.hub.poke(RUNNING.id)
        return {RUNNING.id: RUNNING}


async def test_notification_that_comes_during_a_look_is_followed_by_another_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waiters, "POLL_MS_FIRST", 3_600_000)
    monkeypatch.setattr(waiters, "POLL_MS_MAX", 3_600_000)
    elsewhere = Elsewhere()
    hub = elsewhere.hub = WaitHub(elsewhere.load, lambda: NOW)
    try:
        async with asyncio.timeout(30):
            assert await hub.wait(RUNNING, timeout_ms=3_600_000) == ENDED
    finally:
        await hub.close()
