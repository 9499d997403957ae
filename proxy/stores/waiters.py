"""Waiting for a run to end: woken at once by changes of this process, by notification or poll for others'.

However many callers wait, there is one poll loop per store, and each round of it loads every watched
operation that is due in one go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from proxy.core.model import Now, Operation, OperationId
from proxy.ports import StoreUnavailable
from proxy.stores.rows import is_over
from proxy.stores.tasks import stop

POLL_MS_FIRST = 50
POLL_MS_MAX = 250
LEASE_MARGIN_MS = 5  # a poll just after the lease's end, not just before it

Load = Callable[[Sequence[Operation]], Awaitable[dict[OperationId, Operation]]]


@dataclass(slots=True)
class _Watch:
    """All who wait for one run (an operation at one fence)."""

    operation: Operation
    poll_ms: int
    next_at: float
    waiters: set[asyncio.Future[Operation | None]] = field(default_factory=set)


class WaitHub:
    """The store's waiters.

    Args: load: reads many operations in one round trip; those that are gone are left out.
        now: the time at the store.
        watched: told when an operation gets its first waiter and, with False, when it loses its last.
    """

    def __init__(
        self,
        load: Load,
        now: Callable[[], Now],
        *,
        watched: Callable[[Operation, bool], None] | None = None,
    ) -> None:
        self._load = load
        self._now = now
        self._watched = watched
        self._watches: dict[tuple[OperationId, int], _Watch] = {}
        self._by_id: dict[OperationId, set[int]] = {}
        self._poller: asyncio.Task[None] | None = None
        self._nudge = asyncio.Event()

    async def wait(self, operation: Operation, *, timeout_ms: int) -> Operation | None:
        """See `ports.Store.wait`."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[Operation | None] = loop.create_future()
        watch = self._join(operation, waiter, loop.time())
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await waiter
        except TimeoutError:
            return (await self._load([operation])).get(operation.id)
        finally:
            self._leave(watch, waiter)

    def changed(self, operation: OperationId, record: Operation | None) -> None:
        """This process wrote the operation: wake those whose run is over."""
        fences = self._by_id.get(operation)
        if fences is None:
            return
        now = self._now()
        for fence in tuple(fences):
            if is_over(record, fence=fence, now=now):
                self._wake(self._watches[operation, fence], record)

    def poke(self, operation: OperationId) -> None:
        """Someone else may have written the operation: look at once."""
        for fence in self._by_id.get(operation, ()):
            watch = self._watches[operation, fence]
            watch.next_at = 0.0
            watch.poll_ms = POLL_MS_FIRST
        self._nudge.set()

    async def close(self) -> None:
        """End the poll loop and whoever still waits."""
        poller, self._poller = self._poller, None
        await stop(poller)
        for watch in tuple(self._watches.values()):
            for waiter in watch.waiters:
                if not waiter.done():
                    waiter.set_exception(StoreUnavailable("the store was closed while a call waited on it"))

    def _join(self, operation: Operation, waiter: asyncio.Future[Operation | None], at: float) -> _Watch:
        name = (operation.id, operation.fence)
        watch = self._watches.get(name)
        if watch is None:
            watch = _Watch(operation, POLL_MS_FIRST, next_at=at)
            self._watches[name] = watch
            fences = self._by_id.setdefault(operation.id, set())
            fences.add(operation.fence)
            if len(fences) == 1 and self._watched is not None:
                self._watched(operation, True)
            self._nudge.set()
        watch.waiters.add(waiter)
        if self._poller is None or self._poller.done():
            self._poller = asyncio.get_running_loop().create_task(self._poll(), name="store-waiters")
        return watch

    def _leave(self, watch: _Watch, waiter: asyncio.Future[Operation | None]) -> None:
        watch.waiters.discard(waiter)
        operation = watch.operation
        if watch.waiters or self._watches.get((operation.id, operation.fence)) is not watch:
            return
        del self._watches[operation.id, operation.fence]
        fences = self._by_id[operation.id]
        fences.discard(operation.fence)
        if not fences:
            del self._by_id[operation.id]
            if self._watched is not None:
                self._watched(operation, False)

    def _wake(self, watch: _Watch, record: Operation | None) -> None:
        for waiter in watch.waiters:
            if not waiter.done():
                waiter.set_result(record)

    async def _poll(self) -> None:
        """Look at the watched operations as each comes due, until nobody waits."""
        loop = asyncio.get_running_loop()
        while self._watches:
            self._nudge.clear()
            now = loop.time()
            due = [watch for watch in self._watches.values() if watch.next_at <= now]
            if due:
                await self._look(due)
            next_at = min((watch.next_at for watch in self._watches.values()), default=0.0)
            if next_at > loop.time():
                try:
                    async with asyncio.timeout_at(next_at):
                        await self._nudge.wait()
                except TimeoutError:
                    continue

    async def _look(self, due: list[_Watch]) -> None:
        began_at = asyncio.get_running_loop().time()
        for watch in due:  # a poke makes it less again: what is being read may be older
            watch.next_at = began_at
        try:
            records = await self._load([watch.operation for watch in due])
        except StoreUnavailable:
            # A store that is away for a moment doesn't end a wait: the leader's answer may still come, and
            # when time is up `wait` reads once more and raises what it finds.
            for watch in due:
                watch.next_at = asyncio.get_running_loop().time() + POLL_MS_MAX / 1000
            return
        now = self._now()
        at = asyncio.get_running_loop().time()
        for watch in due:
            record = records.get(watch.operation.id)
            if is_over(record, fence=watch.operation.fence, now=now):
                self._wake(watch, record)
            step_ms = watch.poll_ms
            watch.poll_ms = min(watch.poll_ms * 2, POLL_MS_MAX)
            if record is not None and record.lease_epoch == now.epoch:
                step_ms = min(step_ms, max(record.lease_until_ms - now.lease_ms, 0) + LEASE_MARGIN_MS)
            if watch.next_at >= began_at:
                watch.next_at = at + step_ms / 1000
