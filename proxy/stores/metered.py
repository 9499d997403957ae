"""Measures a store from outside: how long each step takes, and which ones fail (M1)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from proxy.core.model import Now, Operation, OperationId
from proxy.core.tables import Verb
from proxy.ports import Clock, Holdings, Page, Query, Store, StoreReport, StoreUnavailable

Answer = TypeVar("Answer")
Heard = Callable[[str, int, bool, str], None]
"""Told (step, microseconds, whether it was done, why not)."""


class MeteredStore:
    """A store that tells how its steps went. Implements `ports.Store`."""

    def __init__(self, store: Store, clock: Clock, heard: Heard) -> None:
        self._store = store
        self._clock = clock
        self._heard = heard

    async def open(self) -> StoreReport:
        return await self._store.open()

    async def close(self) -> None:
        await self._store.close()

    async def transact(self, verb: Verb[Answer]) -> Answer:
        return await self._timed(verb.name, self._store.transact(verb))

    async def load(self, operation: OperationId) -> Operation | None:
        return await self._timed("load", self._store.load(operation))

    async def find(self, query: Query) -> Page:
        return await self._timed("find", self._store.find(query))

    async def count_due(self, *, before_ms: int) -> int:
        return await self._timed("count_due", self._store.count_due(before_ms=before_ms))

    async def wait(self, operation: Operation, *, timeout_ms: int) -> Operation | None:
        return await self._store.wait(operation, timeout_ms=timeout_ms)

    async def holdings(self) -> tuple[Holdings, ...]:
        return await self._timed("holdings", self._store.holdings())

    async def purge(self, *, record_ms: dict[str, int]) -> int:
        return await self._timed("purge", self._store.purge(record_ms=record_ms))

    async def ping(self) -> None:
        await self._timed("ping", self._store.ping())

    def now(self) -> Now:
        return self._store.now()

    def warnings(self) -> tuple[str, ...]:
        return self._store.warnings()

    def secrets(self) -> tuple[tuple[str, bytes], ...]:
        return self._store.secrets()

    async def _timed(self, step: str, doing: Awaitable[Answer]) -> Answer:
        started_us = self._clock.monotonic_us()
        try:
            answer = await doing
        except StoreUnavailable as error:
            self._heard(step, self._clock.monotonic_us() - started_us, False, str(error))
            raise
        self._heard(step, self._clock.monotonic_us() - started_us, True, "")
        return answer
