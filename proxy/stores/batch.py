"""Group commit: verbs that arrive in one tick, or while the last group runs, go to the engine as one.

A commit costs the same whether it carries one verb or a hundred (one fsync, one round trip), so under load
the price of durability is shared. Each verb has its own time limit: one that has not begun by then is
dropped and never applied; one that has begun may be durable although nobody waited for the reply.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from proxy.core.model import Operation, OperationId
from proxy.core.tables import Verb
from proxy.ports import StoreUnavailable

Answer = TypeVar("Answer")

GROUP_MAX = 512  # bounds how long the first verb of a group waits for the last


class Job:
    """One verb on its way to the engine."""

    __slots__ = ("_begun", "deadline", "future", "has_left", "verb")

    def __init__(self, verb: Verb[Any], future: asyncio.Future[Any], deadline: float) -> None:
        self.verb = verb
        self.future = future
        self.deadline = deadline
        self.has_left = True  # an engine that sends only later says so before it sends
        self._begun = threading.Lock()

    def begin(self) -> bool:
        """Claim the job, once: the engine does to apply it, the time limit to drop it. Thread-safe."""
        return self._begun.acquire(blocking=False)

    @property
    def is_claimed(self) -> bool:
        return self._begun.locked()


class Outcome:
    """What came of a job: its answer or its error, and the rows it changed."""

    __slots__ = ("answer", "changed", "error", "job")

    def __init__(
        self,
        job: Job,
        *,
        answer: object = None,
        error: Exception | None = None,
        changed: dict[OperationId, Operation | None] | None = None,
    ) -> None:
        self.job = job
        self.answer = answer
        self.error = error
        self.changed = changed


Done = Callable[[Sequence[Outcome], bool], None]
"""Takes outcomes, and whether the group's lane is free for the next group: true exactly once a group."""
Changed = Callable[[OperationId, Operation | None], None]


class Engine(Protocol):
    """Applies groups, off the event loop's back."""

    def start(self, group: Sequence[Job], done: Done) -> None:
        """Apply the group and call `done` in the event loop with each job begun, in one part or several."""
        ...


class Batcher:
    """Gathers verbs into groups. One per store and event loop.

    Args: timeout_ms: per verb, from its arrival (`store.timeout`).
        lanes: groups that may be at the engine at once.
        name: how messages call the store.
        changed: told of each operation that a group changed, before the callers are.
    """

    def __init__(
        self, engine: Engine, *, timeout_ms: int, name: str, lanes: int = 1, changed: Changed | None = None
    ) -> None:
        self._engine = engine
        self._timeout_ms = timeout_ms
        self._name = name
        self._lanes = lanes
        self._changed = changed
        self._pending: list[Job] = []
        self._running = 0
        self._waiting: deque[Job] = deque()  # all unfinished jobs, in the order of their deadlines
        self._flush_is_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False

    async def run(self, verb: Verb[Answer]) -> Answer:
        """The verb's answer, once it is durable.

        Raises: StoreUnavailable, and whatever the verb itself raises.
        """
        if self._closed:
            raise StoreUnavailable(f"{self._name}: the store is closed; nothing was written")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        job = Job(verb, future, loop.time() + self._timeout_ms / 1000)
        self._pending.append(job)
        self._waiting.append(job)
        self._idle.clear()
        if self._timer is None:
            self._timer = loop.call_at(job.deadline, self._expire)
        self._flush_soon(loop)
        return await future

    async def close(self) -> None:
        """Refuse new verbs and wait for those that are on their way."""
        self._closed = True
        await self._idle.wait()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _flush_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._flush_is_due and self._running < self._lanes:
            self._flush_is_due = True
            loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_is_due = False
        while self._pending and self._running < self._lanes:
            group = [job for job in self._pending[:GROUP_MAX] if not job.is_claimed]
            del self._pending[:GROUP_MAX]
            if group:
                self._running += 1
                self._engine.start(group, self._finished)
        self._rest_if_idle()

    def _finished(self, outcomes: Sequence[Outcome], lane_is_free: bool) -> None:
        self._running -= lane_is_free
        if self._changed is not None:
            for outcome in outcomes:
                for operation, record in (outcome.changed or {}).items():
                    self._changed(operation, record)
        for outcome in outcomes:
            future = outcome.job.future
            if future.done():
                continue  # its caller went away, or its time was up
            if outcome.error is None:
                future.set_result(outcome.answer)
            else:
                future.set_exception(outcome.error)
        while self._waiting and self._waiting[0].future.done():
            self._waiting.popleft()
        self._flush()

    def _rest_if_idle(self) -> None:
        if not self._pending and not self._running:
            self._idle.set()

    def _expire(self) -> None:
        """Fail the verbs whose time is up; look again when the next one's is."""
        loop = asyncio.get_running_loop()
        self._timer = None
        while self._waiting:
            job = self._waiting[0]
            if not job.future.done():
                if job.deadline > loop.time():
                    break
                job.future.set_exception(self._too_late(job))
            self._waiting.popleft()
        if self._waiting:
            self._timer = loop.call_at(self._waiting[0].deadline, self._expire)

    def _too_late(self, job: Job) -> StoreUnavailable:
        if job.begin() or not job.has_left:
            return StoreUnavailable(
                f"{self._name}: {job.verb.name} could not begin within {self._timeout_ms} ms and was dropped; "
                "nothing was written"
            )
        return StoreUnavailable(
            f"{self._name}: {job.verb.name} did not end within {self._timeout_ms} ms; it may be durable all "
            "the same and is read back",
            may_have_happened=True,
        )
