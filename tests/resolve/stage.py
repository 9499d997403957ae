"""The resolver over the reference store, with a clock moved by hand and a platform that is asked."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from proxy.core.http import Answered, Headers, MaybeSent, Response, WireRequest, WireResult
from proxy.core.messages import Fact
from proxy.core.model import Handle, Now, Operation, OperationId, Scope
from proxy.core.resolve import LookupPolicy
from proxy.core.tables import Tables
from proxy.resolver import Resolver
from proxy.stores.memory import MemoryStore
from tests.contract.values import HandClock
from tests.core.payhub import PAYHUB, SCOPE

SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000
POLICY = LookupPolicy(
    schedule_ms=(10 * SECOND, 30 * SECOND, 2 * MINUTE, 5 * MINUTE, 15 * MINUTE, HOUR),
    then_every_ms=4 * HOUR,
    until_ms=24 * HOUR,
    min_interval_ms=10 * SECOND,
    lag_ms=60 * SECOND,
    misses=3,
)
JSON: Headers = ((b"Content-Type", b"application/json"),)

Says = Callable[[str], WireResult]


def says(status: int, value: object) -> WireResult:
    return Answered(Response(status, JSON, json.dumps(value).encode()))


def listed(*things: dict[str, Any]) -> WireResult:
    return says(200, {"data": list(things)})


def payment(number: str, status: str = "succeeded", **more: Any) -> dict[str, Any]:
    return {"id": f"pay_{number}", "status": status, "merchant_order_no": number, **more}


EMPTY = listed()


@dataclass
class Asked:
    """A platform that notes when it was asked what, and answers as told."""

    clock: HandClock
    answer: Says
    at: list[tuple[int, str]] = field(default_factory=list)

    async def send(self, request: WireRequest, **_options: object) -> WireResult:
        target = request.target.decode()
        self.at.append((self.clock.wall, target))
        return self.answer(target)


@dataclass(frozen=True, slots=True)
class PutOperation:
    """Put a record as it is, findable by its things."""

    operation: Operation
    name: str = "put"

    @property
    def scope(self) -> Scope:
        return self.operation.scope

    def apply(self, tables: Tables, now: Now) -> None:
        from proxy.core.model import Subject

        tables.put(self.operation)
        for handle in self.operation.handles:
            row = tables.subject(self.scope, handle) or Subject(
                scope=self.scope, handle=handle, updated_ms=now.wall_ms
            )
            known = dict.fromkeys((*row.operations, self.operation.id))
            tables.put_subject(
                Subject(scope=row.scope, handle=handle, updated_ms=now.wall_ms, operations=tuple(known))
            )


class Fleet:
    """So many resolvers on one store and one platform."""

    def __init__(self, answer: Says = lambda _target: EMPTY, *, hosts: int = 1, enabled: bool = True) -> None:
        self.clock = HandClock()
        self.platform = Asked(self.clock, answer)
        self.store = MemoryStore(self.clock)
        self.facts: list[Fact] = []
        self.people: list[Operation] = []
        self.credential: bytes | None = b"Bearer x"
        self.resolvers = [self.resolver(f"host-{n}", enabled=enabled) for n in range(hosts)]

    def resolver(self, name: str, *, enabled: bool = True) -> Resolver:
        return Resolver(
            store=self.store,
            upstream=self.platform,  # type: ignore[arg-type]  # only `send` is asked of it
            clock=self.clock,
            platform=replace(PAYHUB, sweeps=("/v1/refunds?status=processing",)),
            policy=POLICY,
            rate_count=1_000,
            rate_per_ms=1_000,
            is_enabled=enabled,
            authorization=lambda _scope: self.credential,
            tell=self.facts.append,
            needs_person=self.people.append,
            instance=name,
        )

    async def put(self, operation: Operation) -> None:
        await self.store.transact(PutOperation(operation))

    async def run(self, *, for_ms: int, step_ms: int = SECOND) -> None:
        """Let time pass, every host looking at each step."""
        ends = self.clock.boot + for_ms
        while self.clock.boot < ends:
            self.clock.advance(min(step_ms, ends - self.clock.boot))
            for resolver in self.resolvers:
                await resolver.step()

    async def now(self, operation: Operation) -> Operation:
        found = await self.store.load(OperationId(operation.id))
        assert found is not None
        return found

    def asked_after(self, start_ms: int) -> list[int]:
        """When it was asked, in milliseconds after that instant."""
        return [at - start_ms for at, _target in self.platform.at]


def due(operation: Operation, clock: HandClock) -> Operation:
    """An operation whose call has just ended in doubt."""
    from proxy.core.model import Lookups
    from proxy.core.model import replace as changed

    return changed(
        operation,
        unknown_since_ms=clock.wall,
        last_attempt_end_ms=clock.wall,
        updated_ms=clock.wall,
        lookups=Lookups(next_ms=clock.wall),
    )


__all__ = ["EMPTY", "HOUR", "MINUTE", "POLICY", "SCOPE", "SECOND", "Fleet", "Handle", "MaybeSent"]
