"""The resolver: looks unknown and pending operations up until evidence ends the doubt (U2, U3, U6, U8).

It asks the platform on the schedule, politely: by its own rate, one lookup of an object at a time in the
whole fleet, no bursts after an outage, and the newest payments are not starved by a backlog.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace

from proxy.core.evidence import Change
from proxy.core.http import MaybeSentReason, WireRequest
from proxy.core.lookups import listed_ids, lookup_target, read_lookup
from proxy.core.messages import BecameKnown, BecameUnknown, Fact, LookupMade, OutcomeConflict, Reply
from proxy.core.model import Operation, OperationId, Owner, Scope, State
from proxy.core.redact import secret_of
from proxy.core.resolve import (
    EndLookup,
    Found,
    LookupFailed,
    LookupPolicy,
    LookupTask,
    Missed,
    NoticeLapse,
    NotNow,
    PutOffLookup,
    TakeLookup,
    TakeSweep,
)
from proxy.core.rules import Platform, Route
from proxy.ports import Clock, Query, Store, StoreUnavailable, Upstream

PASS_MS = 500  # between two looks at what is due; the schedule's steps are 10 s and more
PAGE = 50
LOOKUP_LEASE_MARGIN_MS = 5_000
AT_ONCE_MAX = 25
"""Lookups that wait for the platform at a time: at 5/s half of them may hang for 10 s and hold nobody up."""
PUT_OFF_MS = 3_600_000  # what nobody can ask for now is looked at again after an hour
OTHERS_TURN_MS = 600_000
"""What this process can't ask for another host may have the credential for: at 5/s it gets through 3,000 in that
time. What is still due then would only stand in everyone's way."""
CLOCK_NOISE_MS = 1_000
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
    _line: asyncio.Lock = field(default_factory=asyncio.Lock)
    _asking: set[asyncio.Task[object]] = field(default_factory=set)
    _hints: dict[OperationId, Operation] = field(default_factory=dict)
    _turn: bool = False
    _onward: str | None = None
    _seen_wall_ms: int = 0
    _seen_boot_ms: int = 0

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
        try:
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
        finally:
            asking, self._asking = self._asking, set()
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)

    async def count_backlog(self) -> None:
        """Before the first pass does: what waits is never said to be nothing. Raises: StoreUnavailable."""
        if self.is_enabled:
            self.backlog = await self.store.count_due(before_ms=self._wall_ms())

    async def step(self) -> bool:
        """One pass: notice dead leaders, then look one page of due operations up. True while more is due.

        An answer that is slow to come holds the next pass up for `PASS_MS`, and no longer.
        """
        await self._notice_lapsed()
        if not self.is_enabled:
            return False
        hinted, self._hints = tuple(self._hints.values()), {}
        self._turn = not self._turn
        if self._seen_wall_ms == 0:
            await self._learn_the_time()
        due_before_ms = self._wall_ms() + self._stepped_back_ms()
        cursor = self._onward if self._turn else None
        query = Query(due_before_ms=due_before_ms, oldest_first=self._turn, limit=PAGE, cursor=cursor)
        page = await self.store.find(query)
        is_full = len(page.operations) == PAGE
        is_whole = cursor is None and not is_full
        self.backlog = (
            len(page.operations) if is_whole else await self.store.count_due(before_ms=due_before_ms)
        )
        wanted = [(one, True) for one in hinted] + [(one, False) for one in page.operations]
        made = await self._look_up_all(wanted)
        if self._turn and made == 0:
            self._onward = page.cursor  # what only others can ask for must not hide what is behind it
        # A page of what others look up, or put off, is no progress: going on at once would spin.
        return made > 0 and is_full

    @property
    def backlog_ends_in_ms(self) -> int:
        """How long the backlog takes at this process's own rate; other hosts shorten it."""
        return self.backlog * self._gap_ms

    def _wall_ms(self) -> int:
        """The time that the schedule goes by: the store's, which all hosts share where there are several."""
        return self.store.now().wall_ms

    async def _look_up_all(self, wanted: list[tuple[Operation, bool]]) -> int:
        """Ask one after the other, by the rate; a few may wait for the platform at a time. How many are asked for.

        Each object is asked for once: its operations share the lookup (U2). Raises: StoreUnavailable, and what
        went wrong since the last pass.
        """
        made = 0
        for operation, forced in wanted:
            if len(self._asking) >= AT_ONCE_MAX:
                await asyncio.wait(self._asking, return_when=asyncio.FIRST_COMPLETED)
            self._take_ended()
            taken = await self._take(operation, forced=forced)
            if not isinstance(taken, NotNow):
                made += 1
                self._asking.add(asyncio.create_task(self._ask(*taken), name="lookup"))
        if self._asking:
            await asyncio.wait(self._asking, timeout=PASS_MS / 1000)
        self._take_ended()
        return made

    def _take_ended(self) -> None:
        """Raises: what one of them raised; a bug sooner than the store's being away."""
        ended = [task for task in self._asking if task.done()]
        self._asking.difference_update(ended)
        errors = [error for task in ended if (error := task.exception()) is not None]
        if errors:
            raise min(errors, key=lambda error: isinstance(error, StoreUnavailable))

    async def _learn_the_time(self) -> None:
        """The ledger's newest record tells whether the clock went back before this process began."""
        page = await self.store.find(Query(limit=1))
        written = [max(one.updated_ms, one.lookups.last_ms or 0) for one in page.operations]
        self._seen_wall_ms = max(self._wall_ms(), *written, 1)
        self._seen_boot_ms = self.clock.boot_ms()

    def _stepped_back_ms(self) -> int:
        """By how much the wall clock went back, as far as it has not caught up.

        What was due by the old time stays due; the clock that never steps says how much of it has passed (U2).
        """
        latest_ms = self._seen_wall_ms + (self.clock.boot_ms() - self._seen_boot_ms)
        wall_ms = self._wall_ms()
        if wall_ms >= latest_ms - CLOCK_NOISE_MS:
            self._seen_wall_ms, self._seen_boot_ms = wall_ms, self.clock.boot_ms()
            return 0
        return latest_ms - wall_ms

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
            async with self._line:
                await self._slot()
                self._spend_slot()
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
        taken = await self._take(operation, forced=forced)
        return taken if isinstance(taken, NotNow) else await self._ask(*taken)

    async def _take(self, operation: Operation, *, forced: bool) -> NotNow | tuple[LookupTask, Route, bytes]:
        """The right to ask for it, with its route and the credential; not before it is its turn by the rate."""
        route = self._route(operation)
        credential = self.authorization(operation.scope)
        if route is None or route.lookup is None or not operation.tracked or credential is None:
            now_ms, next_ms = self._wall_ms(), operation.lookups.next_ms
            if next_ms is not None and next_ms <= now_ms - OTHERS_TURN_MS:
                await self.store.transact(PutOffLookup(operation.scope, operation.id, now_ms + PUT_OFF_MS))
            return NotNow(None)
        # A process that dies while it asks must not let another one ask again within the interval.
        margin_ms = max(LOOKUP_LEASE_MARGIN_MS, self.policy.min_interval_ms)
        verb = TakeLookup(
            operation.scope,
            operation.id,
            Owner(self.instance),
            self.policy,
            route.lookup.timeout_ms + margin_ms,
            forced,
        )
        async with self._line:
            await self._slot()
            taken = await self.store.transact(verb)
            if isinstance(taken, NotNow):
                return taken  # another one of the fleet was quicker: that costs nothing of the rate
            self._spend_slot()
        return taken, route, credential

    async def _ask(self, task: LookupTask, route: Route, credential: bytes) -> tuple[Change, ...]:
        rule = route.lookup
        target = lookup_target(task.operation, route)
        result: Found | Missed | LookupFailed
        if rule is None or target is None:
            result = LookupFailed("no way to ask")
        else:
            request = _read(target, credential)
            answered = await self.upstream.send(request, timeout_ms=rule.timeout_ms)
            result = read_lookup(
                answered,
                task.operation,
                route,
                self.platform,
                seen_ms=self._wall_ms(),
                secret=secret_of(credential),
            )
        changes = await self.store.transact(EndLookup(task, result, self.policy))
        reason = result.reason if isinstance(result, LookupFailed) else ""
        self.tell(LookupMade(route.name, _WORDS[type(result)], reason, _is_after_cut(task.operation)))
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
        """Keep to the rate: lookups stand in line, evenly spaced (U8). Called with `_line` held."""
        left_ms = self._next_slot_ms - self.clock.monotonic_ms()
        if left_ms > 0:
            await asyncio.sleep(left_ms / 1000)

    def _spend_slot(self) -> None:
        self._next_slot_ms = max(self.clock.monotonic_ms(), self._next_slot_ms) + self._gap_ms

    @property
    def _gap_ms(self) -> int:
        return max(1, self.rate_per_ms // self.rate_count)

    def _route(self, operation: Operation) -> Route | None:
        return next((route for route in self.platform.routes if route.name == operation.route), None)


def _is_after_cut(operation: Operation) -> bool:
    """Whether a drain cut its last attempt short, and nobody has asked about it since (O3)."""
    last = operation.attempts[-1].detail if operation.attempts else ""
    return last == MaybeSentReason.GIVEN_UP and operation.lookups.done == 0


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
