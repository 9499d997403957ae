"""The resolver: looks unknown and pending operations up until evidence ends the doubt (U2, U3, U6, U8).

It asks the platform on the schedule, politely: by its own rate, one lookup of an object at a time in the
whole fleet, no bursts after an outage, and the newest payments are not starved by a backlog.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace

from proxy.core.evidence import Change
from proxy.core.http import WireRequest
from proxy.core.lookups import listed_ids, lookup_target, read_lookup
from proxy.core.messages import BecameKnown, BecameUnknown, Fact, LookupMade, OutcomeConflict, Reply
from proxy.core.model import Operation, OperationId, Owner, Scope, State
from proxy.core.resolve import (
    EndLookup,
    Found,
    LookupFailed,
    LookupPolicy,
    LookupTask,
    Missed,
    NoticeLapse,
    NotNow,
    TakeLookup,
    TakeSweep,
)
from proxy.core.rules import Platform, Route
from proxy.ports import Clock, Query, Store, StoreUnavailable, Upstream

PASS_MS = 500  # between two looks at what is due; the schedule's steps are 10 s and more
PAGE = 50
LOOKUP_LEASE_MARGIN_MS = 5_000
STORE_DOWN_MS = 2_000
SWEEP_CHECK_MS = 600_000  # how often it is asked whether this day's sweep was made


@dataclass(slots=True)
class Resolver:
    """One process's share of the fleet's lookups."""

    store: Store
    upstream: Upstream
    clock: Clock
    platform: Platform
    policy: LookupPolicy
    rate_count: int
    rate_per_ms: int
    is_enabled: bool
    authorization: Callable[[Scope], bytes | None]
    tell: Callable[[Fact], None]
    needs_person: Callable[[Operation], None]
    instance: str
    backlog: int = 0
    _next_slot_ms: int = 0
    _hints: dict[OperationId, Operation] = field(default_factory=dict)
    _turn: bool = False

    def hint(self, reply: Reply) -> None:
        """Something suggests a look at this operation soon, within the schedule's limits (P9, U4)."""
        if reply.look_up is not None:
            self.hint_at(reply.look_up)

    def hint_at(self, operation: Operation) -> None:
        if len(self._hints) < 1_000:
            self._hints[operation.id] = operation

    async def run(self) -> None:
        """Resolve for the process's life."""
        swept_ms = self.clock.monotonic_ms()
        while True:
            try:
                busy = await self.step()
                if self.is_enabled and self.clock.monotonic_ms() - swept_ms > SWEEP_CHECK_MS:
                    swept_ms = self.clock.monotonic_ms()
                    await self.sweep()
            except StoreUnavailable:
                await asyncio.sleep(STORE_DOWN_MS / 1000)
                continue
            if not busy:
                await asyncio.sleep(PASS_MS / 1000)

    async def step(self) -> bool:
        """One pass: notice dead leaders, then look one page of due operations up. True while more is due."""
        await self._notice_lapsed()
        if not self.is_enabled:
            return False
        for operation in tuple(self._hints.values()):
            self._hints.pop(operation.id, None)
            await self.look_up(operation, forced=True)
        self._turn = not self._turn
        page = await self.store.find(
            Query(due_before_ms=self.clock.wall_ms(), oldest_first=self._turn, limit=PAGE)
        )
        for operation in page.operations:
            await self.look_up(operation)
        return len(page.operations) == PAGE

    async def _notice_lapsed(self) -> None:
        page = await self.store.find(Query(lapsed=True, limit=PAGE))
        for operation in page.operations:
            noticed = await self.store.transact(NoticeLapse(operation.scope, operation.id))
            if noticed is not None and noticed.state is State.UNKNOWN:
                self.tell(BecameUnknown(noticed))

    async def sweep(self) -> int:
        """Once a day: which accepted operations that are not polled has the platform finished (U2)?

        Those that no list of unfinished ones shows any more are looked up. Returns how many were.
        """
        found = 0
        for route in self.platform.routes:
            lists = [target for target in self.platform.sweeps if _same_list(target, route)]
            if route.polled_while_pending or not lists:
                continue
            pending = [one async for one in self._pending_on(route)]
            for scope in {operation.scope for operation in pending}:
                unfinished = await self._unfinished(scope, route, lists)
                if unfinished is None:
                    continue
                for operation in pending:
                    if operation.scope == scope and operation.resource_id not in unfinished:
                        await self.look_up(operation, forced=True)
                        found += 1
        return found

    async def _pending_on(self, route: Route) -> AsyncIterator[Operation]:
        query = Query(knowledge="pending", route=route.name, oldest_first=True, limit=PAGE)
        while True:
            page = await self.store.find(query)
            for operation in page.operations:
                yield operation
            if page.cursor is None:
                return
            query = replace(query, cursor=page.cursor)

    async def _unfinished(self, scope: Scope, route: Route, lists: list[str]) -> frozenset[str] | None:
        """The ids on the platform's lists; None: not this process's turn, or a list could not be had."""
        credential = self.authorization(scope)
        if credential is None or route.lookup is None:
            return None
        if not await self.store.transact(TakeSweep(scope, lists[0])):
            return None
        ids: frozenset[str] = frozenset()
        for target in lists:
            await self._slot()
            request = _read(target.encode("ascii"), credential)
            answered = await self.upstream.send(request, timeout_ms=route.lookup.timeout_ms)
            some = listed_ids(answered, route)
            if some is None:
                self.tell(LookupMade(route.name, "failed", "no list"))
                return None
            ids |= some
        return ids

    async def look_up(self, operation: Operation, *, forced: bool = False) -> NotNow | tuple[Change, ...]:
        """Look one operation's object up, if it is due and nobody else does."""
        route = self._route(operation)
        if route is None or route.lookup is None or not operation.tracked:
            return NotNow(None)
        credential = self.authorization(operation.scope)
        if credential is None:
            return NotNow(None)
        owner = Owner(self.instance)
        lease_ms = route.lookup.timeout_ms + LOOKUP_LEASE_MARGIN_MS
        await self._slot()
        taken = await self.store.transact(
            TakeLookup(operation.scope, operation.id, owner, self.policy, lease_ms, forced)
        )
        if isinstance(taken, NotNow):
            self._next_slot_ms = 0
            return taken
        return await self._ask(taken, route, credential)

    async def _ask(self, task: LookupTask, route: Route, credential: bytes) -> tuple[Change, ...]:
        rule = route.lookup
        target = lookup_target(task.operation, route)
        result: Found | Missed | LookupFailed
        if rule is None or target is None:
            result = LookupFailed("no way to ask")
        else:
            request = _read(target, credential)
            answered = await self.upstream.send(request, timeout_ms=rule.timeout_ms)
            result = read_lookup(answered, task.operation, route, self.platform, seen_ms=self.clock.wall_ms())
        changes = await self.store.transact(EndLookup(task, result, self.policy))
        reason = result.reason if isinstance(result, LookupFailed) else ""
        self.tell(LookupMade(route.name, _WORDS[type(result)], reason))
        self.announce(changes)
        return changes

    def announce(self, changes: tuple[Change, ...]) -> None:
        """Settlements are facts (U7)."""
        for change in changes:
            if change.became_known:
                self.tell(BecameKnown(change.operation, change.operation.settled_by or "lookup"))
            elif change.operation.state is State.MANUAL_REVIEW is not change.before:
                self.needs_person(change.operation)
            if change.conflict is not None:
                self.tell(OutcomeConflict(change.operation, change.conflict))

    async def _slot(self) -> None:
        """Keep to the rate: lookups stand in line, evenly spaced (U8)."""
        now_ms = self.clock.monotonic_ms()
        gap_ms = max(1, self.rate_per_ms // self.rate_count)
        wait_ms = self._next_slot_ms - now_ms
        if wait_ms > 0:
            await asyncio.sleep(wait_ms / 1000)
        self._next_slot_ms = max(now_ms, self._next_slot_ms) + gap_ms

    def _route(self, operation: Operation) -> Route | None:
        return next((route for route in self.platform.routes if route.name == operation.route), None)


def _read(target: bytes, credential: bytes) -> WireRequest:
    headers = ((b"Authorization", credential), (b"Accept", b"application/json"))
    return WireRequest(b"GET", target, headers, b"")


def _same_list(target: str, route: Route) -> bool:
    """Whether a list is of the resources that this route makes: the path that they are asked for by number at."""
    by_number = route.lookup.by_number if route.lookup else None
    return by_number is not None and target.partition("?")[0] == by_number.partition("?")[0]


_WORDS: dict[type[Found | Missed | LookupFailed], str] = {
    Found: "found",
    Missed: "missed",
    LookupFailed: "failed",
}
