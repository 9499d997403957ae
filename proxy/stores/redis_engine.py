"""Verbs over Redis: run against the rows as last seen, committed if they are still so, else run again.

A verb runs here, against cached or supposedly absent rows; the script checks every row that it read and writes,
or returns the rows as they are, all from one instant. So a fresh claim and a settle cost one round trip each,
and a verb that on the true rows writes nothing needs no second one. Verbs of one group see each other's writes,
as the script does; all verbs of a scope go in one command.

A commit whose reply was lost is sent again: either the rows are still as expected, then it did not happen and
does now; or one of them carries this commit's own revision, then it did.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets as chance
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from importlib.resources import files
from typing import Any

from redis.exceptions import NoScriptError

from proxy.core.model import Now, Scope
from proxy.ports import Clock, StoreUnavailable
from proxy.stores.batch import Done, Job, Outcome
from proxy.stores.redis_link import Link
from proxy.stores.redis_rows import (
    EPOCH,
    SCOPES,
    Argument,
    Names,
    Versioned,
    names_of,
    operation_in,
    split,
    subject_in,
    tag_of,
)
from proxy.stores.redis_trips import RowCache, Trip, pack_steps
from proxy.stores.redis_trouble import Trouble

SCRIPT = files("proxy.stores").joinpath("commit.lua").read_text(encoding="utf-8")
SCRIPT_SHA = hashlib.sha1(SCRIPT.encode(), usedforsecurity=False).hexdigest()
STAMP_BYTES = 8  # with the count, the 16 characters that commit.lua expects
BACKOFF_S_FIRST = 0.02
BACKOFF_S_MAX = 0.25
GIVE_UP_S = 0.03  # before the verb's time is up, so that its failure can say what is known


class ServerTime:
    """The server's clock as known here: a little behind, never ahead, so that no lease is cut short (D2).

    Each reply holds the server's time as it was some moment before; the newest certain value goes on with this
    process's monotonic clock. It goes back only where the server's own clock did.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._server_ms = 0
        self._received_ms = 0

    def asked_ms(self) -> int:
        """To be taken before the server is asked, for `sample`."""
        return self._clock.monotonic_ms()

    def sample(self, seconds: int, microseconds: int, *, asked_ms: int) -> None:
        """A reply has just come that holds the server's time, from somewhere between the question and now."""
        received_ms = self._clock.monotonic_ms()
        server_ms = seconds * 1_000 + microseconds // 1_000
        latest_ms = server_ms + received_ms - asked_ms
        if not server_ms <= self._now_ms() <= latest_ms:
            self._server_ms, self._received_ms = server_ms, received_ms

    def now(self) -> Now:
        at_ms = self._now_ms()
        return Now(lease_ms=at_ms, epoch=EPOCH, wall_ms=at_ms)

    def _now_ms(self) -> int:
        return self._server_ms + self._clock.monotonic_ms() - self._received_ms


class RedisEngine:
    """The engine behind the batcher."""

    def __init__(self, link: Link, time: ServerTime) -> None:
        self._link = link
        self._time = time
        self._cache = RowCache()
        self._scopes: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._stamp = chance.token_urlsafe(STAMP_BYTES)
        self._count = 0

    def start(self, group: Sequence[Job], done: Done) -> None:
        self._spawn(self._run([job for job in group if job.begin()], done))

    async def close(self) -> None:
        """Wait for what is still on its way; each has its time limit."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def forget(self) -> None:
        """The store lost data: nothing seen of it before holds."""
        self._cache.clear()
        self._scopes.clear()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _trip(self, job: Job) -> Trip:
        return Trip(job, names_of(tag_of(job.verb.scope)), self._revision())

    def _revision(self) -> bytes:
        """Unique over all processes and all time: a stamp of chance, 11 characters, and 5 that count."""
        self._count += 1
        if self._count >= 16**5:
            self._stamp, self._count = chance.token_urlsafe(STAMP_BYTES), 1
        return f"{self._stamp}{self._count:05x}".encode()

    async def _run(self, jobs: list[Job], done: Done) -> None:
        """The group's way. A bug of ours on it fails the group, and neither its lane nor those behind it."""
        lane_is_held = True

        def deliver(outcomes: Sequence[Outcome]) -> None:
            nonlocal lane_is_held
            is_held, lane_is_held = lane_is_held, False
            done(outcomes, is_held)

        try:
            for job in jobs:
                job.has_left = False
            await self._travel([self._trip(job) for job in jobs], deliver)
        except Exception as error:  # noqa: BLE001  # raised again where each verb's caller awaits it
            text = f"{self._link.where}: {type(error).__name__}: {error}"
            deliver(
                [
                    Outcome(job, error=StoreUnavailable(text, may_have_happened=job.has_left))
                    for job in jobs
                    if not job.future.done()
                ]
            )

    async def _travel(self, trips: list[Trip], deliver: Callable[[Sequence[Outcome]], None]) -> None:
        """Round after round until each verb is committed, answered or out of time."""
        backoff_s = BACKOFF_S_FIRST
        now = self._time.now()
        for trip in trips:
            self._prepare(trip, now)
        while True:
            outcomes, trips, trouble = await self._round(trips)
            deliver(outcomes)
            if trouble is not None and trips:
                await asyncio.sleep(min(backoff_s, *(self._left_s(trip) for trip in trips)))
                backoff_s = min(backoff_s * 2, BACKOFF_S_MAX)
                late = [trip for trip in trips if self._left_s(trip) <= 0]
                deliver([self._gave_up(trip, trouble) for trip in late])
                trips = [trip for trip in trips if trip not in late]
            if not trips:
                return

    async def _round(self, trips: list[Trip]) -> tuple[list[Outcome], list[Trip], Trouble | None]:
        """One round trip for each scope; what ended, what has to go again, and the trouble that there was."""
        by_names: dict[Names, list[Trip]] = {}
        for trip in trips:
            by_names.setdefault(trip.names, []).append(trip)
        replies = await asyncio.gather(*(self._commit(names, group) for names, group in by_names.items()))
        outcomes: list[Outcome] = []
        again: list[Trip] = []
        found: Trouble | None = None
        for group, reply in zip(by_names.values(), replies, strict=True):
            if isinstance(reply, Trouble):
                found = reply
                self._after_trouble(group, reply, outcomes, again)
            else:
                self._after_reply(group, reply, outcomes, again)
        now = self._time.now()
        for trip in again:
            self._prepare(trip, now)
        return outcomes, again, found

    def _prepare(self, trip: Trip, now: Now) -> None:
        if not trip.may_be_written:  # else the very same commit goes again, until its fate is known
            trip.apply(now, self._cache.get)
        for key, row in trip.written():
            self._cache.put(key, row)

    async def _commit(self, names: Names, group: list[Trip]) -> list[Any] | Trouble:
        """The results of the group's trips. Those whose time was up before anything left are taken out of it."""

        def make(command: str, script: str) -> tuple[Argument, ...]:
            group[:] = [trip for trip in group if not trip.job.future.done() or trip.may_be_written]
            for trip in group:
                trip.job.has_left = True
            keys, arguments = pack_steps(group)
            return (command, script, len(keys), *keys, *arguments)

        asked_ms = self._time.asked_ms()
        try:
            await self._know_scope(names, group[0].job.verb.scope)
            try:
                reply = await self._link.commit(partial(make, "EVALSHA", SCRIPT_SHA))
            except NoScriptError:
                reply = await self._link.commit(partial(make, "EVAL", SCRIPT))
        except Trouble as trouble:
            return trouble
        self._time.sample(int(reply[0]), int(reply[1]), asked_ms=asked_ms)
        results: list[Any] = reply[2]
        return results

    async def _know_scope(self, names: Names, scope: Scope) -> None:
        """A scope is listed before its first row is written, so that no list ever misses one."""
        if names.base not in self._scopes:
            await self._link.run("SADD", SCOPES, tag_of(scope))
            self._scopes.add(names.base)

    def _after_reply(
        self, group: Sequence[Trip], results: list[Any], outcomes: list[Outcome], again: list[Trip]
    ) -> None:
        for trip, result in zip(group, results, strict=True):
            if result == 1:
                for key, row in trip.written():
                    self._cache.settle(key, row.revision)
                outcomes.append(trip.outcome())
                continue
            for key, row in trip.written():
                self._cache.forget(key, row.revision)
            try:
                self._take_snapshot(trip, result)
            except StoreUnavailable as error:
                outcomes.append(trip.failed(error))
                continue
            if trip.may_be_written:
                outcomes.append(self._fate(trip))
                continue
            trip.apply(self._time.now(), trip.snapshot.get)
            if trip.is_confirmed:
                outcomes.append(trip.outcome())
            elif self._left_s(trip) <= 0:
                text = f"{self._link.where}: others kept changing the same rows; nothing was written"
                outcomes.append(trip.failed(StoreUnavailable(text)))
            else:
                trip.revision = self._revision()
                again.append(trip)

    def _take_snapshot(self, trip: Trip, stored: list[bytes | None]) -> None:
        """The rows that the verb read, as they all were at one instant."""
        trip.snapshot = {}
        for key, one in zip(trip.reads, stored, strict=True):
            is_operation = key.startswith(f"{trip.names.base}o:")
            value = operation_in(one) if is_operation else subject_in(one)
            trip.snapshot[key] = Versioned(split(one)[0], value)
            self._cache.put(key, trip.snapshot[key])

    def _fate(self, trip: Trip) -> Outcome:
        """What became of a commit whose reply was lost, now that the rows are known not to be as before it."""
        own = {key for key, row in trip.written() if row.revision == trip.revision}
        if any(trip.snapshot[key].revision == trip.revision for key in own & trip.snapshot.keys()):
            return trip.outcome()
        return trip.failed(
            StoreUnavailable(
                f"{self._link.where}: the reply to {trip.job.verb.name} was lost and the record has changed since",
                may_have_happened=True,
            )
        )

    def _after_trouble(
        self, group: Sequence[Trip], trouble: Trouble, outcomes: list[Outcome], again: list[Trip]
    ) -> None:
        self._scopes.clear()  # the next connection may be to another server, which has not heard of them
        for trip in group:
            for key, row in trip.written():
                self._cache.forget(key, row.revision)
            if trouble.was_sent and trip.changes:
                trip.may_be_written = True
            elif not trip.may_be_written:
                trip.job.has_left = False
            if trouble.is_passing and self._left_s(trip) > 0:
                again.append(trip)
            else:
                outcomes.append(self._gave_up(trip, trouble))

    def _gave_up(self, trip: Trip, trouble: Trouble) -> Outcome:
        return trip.failed(trouble.as_failure(self._link.where, may_have_happened=trip.may_be_written))

    def _left_s(self, trip: Trip) -> float:
        """How long the verb may still take; nobody waits for one whose caller has its answer."""
        if trip.job.future.done():
            return 0.0
        return trip.job.deadline - GIVE_UP_S - asyncio.get_running_loop().time()
