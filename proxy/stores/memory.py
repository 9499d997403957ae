"""The reference store: what the durable ones must do, over dictionaries. For the simulator and for tests.

`MemoryLedger` is the whole of it without asyncio, so that a simulated world can step it; `MemoryStore` gives
the same ledger the shape of the port.
"""

from __future__ import annotations

import secrets as chance
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from proxy.core.model import Handle, Now, Operation, OperationId, Scope, Subject
from proxy.core.tables import Verb
from proxy.ports import Clock, Holdings, Page, Query, StoreReport
from proxy.stores.paging import page_of
from proxy.stores.purging import (
    ClockTrust,
    PurgeOperations,
    PurgeSubjects,
    by_scope,
    is_old,
    subjects_before_ms,
    subjects_by_scope,
)
from proxy.stores.rows import VerbTables, due_ms, is_held, money_of, oldest_ms
from proxy.stores.secret import Secret, secret_id
from proxy.stores.waiters import WaitHub

Answer = TypeVar("Answer")
Hook = Callable[[Verb[Any]], None]


def no_fault(verb: Verb[Any]) -> None:
    """The hook of a store that works."""


class MemoryLedger:
    """The ledger's rows and steps. Not durable, not thread-safe.

    `before` and `after` are called around each step and may raise StoreUnavailable: `before` fails it without
    effect, `after` loses the reply of a step that happened.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.operations: dict[OperationId, Operation] = {}
        self.subjects: dict[tuple[Scope, Handle], Subject] = {}
        self.before: Hook = no_fault
        self.after: Hook = no_fault
        self.changed: Callable[[OperationId, Operation | None], None] | None = None
        self.trust = ClockTrust()

    def now(self) -> Now:
        return Now(lease_ms=self.clock.boot_ms(), epoch=self.clock.boot_id(), wall_ms=self.clock.wall_ms())

    def fetch_operation(self, scope: Scope, operation: OperationId) -> Operation | None:
        return self.operations.get(operation)

    def fetch_subject(self, scope: Scope, handle: Handle) -> Subject | None:
        return self.subjects.get((scope, handle))

    def run(self, verb: Verb[Answer]) -> Answer:
        """The verb as one atomic step."""
        self.before(verb)
        tables = VerbTables(self)
        answer = verb.apply(tables, self.now())
        for identity, operation in tables.changes.operations.items():
            if operation is None:
                self.operations.pop(identity, None)
            else:
                self.operations[identity] = operation
            if self.changed is not None:
                self.changed(identity, operation)
        for name, subject in tables.changes.subjects.items():
            if subject is None:
                self.subjects.pop(name, None)
            else:
                self.subjects[name] = subject
        self.after(verb)
        return answer

    def load(self, operation: OperationId) -> Operation | None:
        return self.operations.get(operation)

    def find(self, query: Query) -> Page:
        candidates: Iterable[Operation] = self.operations.values()
        if query.subject is not None:
            rows = [row for (_, handle), row in self.subjects.items() if handle == query.subject]
            listed = dict.fromkeys(identity for row in rows for identity in row.operations)
            candidates = [self.operations[identity] for identity in listed if identity in self.operations]
        return page_of(query, candidates, self.now())

    def holdings(self) -> tuple[Holdings, ...]:
        now = self.now()
        groups: dict[tuple[str, str, str], list[Operation]] = {}
        for operation in self.operations.values():
            if is_held(operation, now):
                name = (operation.route, operation.knowledge.value, operation.currency or "")
                groups.setdefault(name, []).append(operation)
        return tuple(
            Holdings(
                route=route,
                knowledge=knowledge,
                currency=currency,
                count=len(group),
                amount=sum(money_of(one) for one in group),
                oldest_ms=min(oldest_ms(one) for one in group),
            )
            for (route, knowledge, currency), group in sorted(groups.items())
        )

    def purge(self, *, record_ms: dict[str, int]) -> int:
        now = self.now()
        if not self.trust.read(now):
            return 0
        old = [
            operation
            for operation in self.operations.values()
            if operation.route in record_ms and is_old(operation, now, record_ms=record_ms[operation.route])
        ]
        dropped = sum(self.run(PurgeOperations(scope, ids, record_ms)) for scope, ids in by_scope(old))
        before_ms = subjects_before_ms(now, record_ms)
        empty = [row for row in self.subjects.values() if not row.operations and row.updated_ms < before_ms]
        for scope, rows in subjects_by_scope(empty):
            self.run(PurgeSubjects(scope, rows, before_ms))
        return dropped


class MemoryStore:
    """`ports.Store` over a `MemoryLedger`."""

    def __init__(self, clock: Clock, *, secret: bytes | None = None) -> None:
        self.ledger = MemoryLedger(clock)
        self._secret = secret if secret is not None else chance.token_bytes(32)
        self._hub = WaitHub(self._load_many, self.ledger.now)
        self.ledger.changed = self._hub.changed

    @property
    def trust(self) -> ClockTrust:
        return self.ledger.trust

    def now(self) -> Now:
        return self.ledger.now()

    async def open(self) -> StoreReport:
        return StoreReport("memory", "in this process only", self.warnings())

    async def close(self) -> None:
        await self._hub.close()

    async def transact(self, verb: Verb[Answer]) -> Answer:
        return self.ledger.run(verb)

    async def load(self, operation: OperationId) -> Operation | None:
        return self.ledger.load(operation)

    async def find(self, query: Query) -> Page:
        return self.ledger.find(query)

    async def count_due(self, *, before_ms: int) -> int:
        due = (due_ms(operation) for operation in self.ledger.operations.values())
        return sum(instant is not None and instant <= before_ms for instant in due)

    async def wait(self, operation: Operation, *, timeout_ms: int) -> Operation | None:
        return await self._hub.wait(operation, timeout_ms=timeout_ms)

    async def holdings(self) -> tuple[Holdings, ...]:
        return self.ledger.holdings()

    async def purge(self, *, record_ms: dict[str, int]) -> int:
        return self.ledger.purge(record_ms=record_ms)

    async def ping(self) -> None:
        """Memory always answers."""

    def warnings(self) -> tuple[str, ...]:
        return ("nothing of the ledger outlives this process",)

    def secrets(self) -> tuple[Secret, ...]:
        return ((secret_id(self._secret), self._secret),)

    async def _load_many(self, operations: Sequence[Operation]) -> dict[OperationId, Operation]:
        found = ((one.id, self.ledger.load(one.id)) for one in operations)
        return {identity: operation for identity, operation in found if operation is not None}
