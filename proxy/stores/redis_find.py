"""Lists over Redis: every scope has its own indexes; a list is merged from them.

A page looks at no more than `LOOK_MAX` candidates; where a rare match hides among many, pages are short and the
cursor goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import islice

from proxy.core.model import Handle, Now, Operation, OperationId, Subject
from proxy.ports import Holdings, Page, Query, RowUnreadable
from proxy.stores.paging import Place, cursor_of, limit_of, matches, page_of, place_of
from proxy.stores.redis_link import Link
from proxy.stores.redis_rows import SCOPES, Argument, Held, Names, held_in, names_of, operation_in, subject_in

LOOK_MAX = 2_000
UNREADABLE_MAX = 10_000
Located = tuple[Place, Names]


class Finder:
    """Reads the ledger's lists through the link. Raises Trouble, and RowUnreadable for what was asked for by name.

    A list leaves out what can't be read: one such record must not keep all others from being listed and looked up.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self.unreadable: set[OperationId] = set()
        self._homes: dict[OperationId, Names] = {}

    def forget(self) -> None:
        """The store lost data: what was seen where no longer holds."""
        self._homes.clear()

    async def scopes(self) -> list[Names]:
        """Every scope that ever wrote."""
        tags: set[bytes] = (await self._link.read([("SMEMBERS", SCOPES)]))[0]
        return [names_of(tag.decode()) for tag in sorted(tags)]

    async def load(self, operation: OperationId) -> Operation | None:
        """By id alone: in the scope that had it last time, else asked of all."""
        home = self._homes.get(operation)
        scopes = [home] if home is not None else await self.scopes()
        rows = await self._link.read([("GET", names.operation(operation)) for names in scopes])
        for names, stored in zip(scopes, rows, strict=True):
            if stored is not None:
                self._homes[operation] = names
                while len(self._homes) > LOOK_MAX:
                    del self._homes[next(iter(self._homes))]
                return operation_in(stored)
        return None

    async def operations(self, located: Sequence[tuple[OperationId, Names]]) -> list[Operation]:
        """Those of them that are there and can be read, in order."""
        rows = await self._link.read([("GET", names.operation(identity)) for identity, names in located])
        found: list[Operation] = []
        for (identity, _), stored in zip(located, rows, strict=True):
            self.unreadable.discard(identity)
            try:
                operation = operation_in(stored)
            except RowUnreadable:
                if len(self.unreadable) < UNREADABLE_MAX:
                    self.unreadable.add(identity)
                continue
            if operation is not None:
                found.append(operation)
        return found

    async def _named(self, located: Sequence[tuple[OperationId, Names]]) -> list[Operation]:
        """Those of them that are there, in order."""
        rows = await self._link.read([("GET", names.operation(identity)) for identity, names in located])
        found = (operation_in(stored) for stored in rows)
        return [operation for operation in found if operation is not None]

    async def find(self, query: Query, now: Now) -> Page:
        scopes = await self.scopes()
        if query.subject is not None:
            return page_of(query, await self._of_subject(scopes, Handle(query.subject)), now)
        if query.key is not None:
            return page_of(query, await self._of_key(scopes, query.key), now)
        if query.lapsed:
            ranges: list[tuple[Argument, ...]] = [
                ("ZRANGEBYSCORE", names.index("flight"), "-inf", now.lease_ms) for names in scopes
            ]
            return page_of(query, await self._of_ranges(scopes, ranges), now)
        return await self._by_index(query, scopes, now)

    async def _of_subject(self, scopes: Sequence[Names], handle: Handle) -> list[Operation]:
        rows = await self._link.read([("GET", names.subject(handle)) for names in scopes])
        located: list[tuple[OperationId, Names]] = []
        for names, stored in zip(scopes, rows, strict=True):
            subject = subject_in(stored)
            if subject is not None:
                located.extend((identity, names) for identity in subject.operations)
        return await self._named(located)

    async def _of_key(self, scopes: Sequence[Names], key: str) -> list[Operation]:
        low, high = f"[{key}\0", f"[{key}\0\x7f"
        ranges = await self._link.read([("ZRANGEBYLEX", names.index("keys"), low, high) for names in scopes])
        located = [
            (OperationId(member.decode().rpartition("\0")[2]), names)
            for names, members in zip(scopes, ranges, strict=True)
            for member in members
        ]
        return await self._named(located)

    async def _of_ranges(
        self, scopes: Sequence[Names], ranges: Sequence[tuple[Argument, ...]]
    ) -> list[Operation]:
        answers = await self._link.read(ranges)
        located = [
            (OperationId(member.decode()), names)
            for names, members in zip(scopes, answers, strict=True)
            for member in members
        ]
        return await self.operations(located)

    async def _by_index(self, query: Query, scopes: Sequence[Names], now: Now) -> Page:
        """Walk the merged index from the cursor on until the page is full or enough was looked at."""
        limit = limit_of(query)
        place = place_of(query.cursor) if query.cursor else None
        found: list[tuple[Place, Operation]] = []
        looked, is_end = 0, False
        while len(found) <= limit and not is_end and looked < LOOK_MAX:
            step = limit + 1
            located = await self._next(query, scopes, place, step)
            operations = await self.operations([(OperationId(at.id), names) for at, names in located])
            by_id = {operation.id: operation for operation in operations}
            for at, _ in located:
                operation = by_id.get(OperationId(at.id))
                if operation is not None and matches(query, operation, now):
                    found.append((at, operation))
            if located:
                place = located[-1][0]
            looked += len(located)
            is_end = len(located) < step
        shown = found[:limit]
        if len(found) > limit:
            cursor: str | None = cursor_of(shown[-1][0])
        else:
            cursor = None if is_end or place is None else cursor_of(place)
        return Page(tuple(operation for _, operation in shown), cursor)

    async def _next(
        self, query: Query, scopes: Sequence[Names], after: Place | None, count: int
    ) -> list[Located]:
        """The next so many of the index, merged over the scopes."""
        index = _index_of(query)
        commands: list[tuple[Argument, ...]] = []
        for names in scopes:
            commands.extend(_ranges(names.index(index), query, after, count))
        answers = await self._link.read(commands)
        merged: list[Located] = []
        for n, names in enumerate(scopes):
            for pairs in answers[2 * n : 2 * n + 2]:
                members = islice(pairs, 0, None, 2)
                scores = islice(pairs, 1, None, 2)
                merged.extend(
                    (Place(int(float(score)), member.decode()), names)
                    for member, score in zip(members, scores, strict=True)
                )
        if after is not None:
            merged = [one for one in merged if (one[0] > after if query.oldest_first else one[0] < after)]
        merged.sort(key=lambda one: one[0], reverse=not query.oldest_first)
        return merged[:count]

    async def count_due(self, before_ms: int) -> int:
        scopes = await self.scopes()
        counts = await self._link.read(
            [("ZCOUNT", names.index("due"), "-inf", before_ms) for names in scopes]
        )
        return sum(map(int, counts))

    async def holdings(self, now: Now) -> tuple[Holdings, ...]:
        scopes = await self.scopes()
        answers = await self._link.read([("HVALS", names.index("held")) for names in scopes])
        groups: dict[tuple[str, str, str], list[Held]] = {}
        for values in answers:
            for held in map(held_in, values):
                if held.counts(now):
                    groups.setdefault((held.route, held.knowledge, held.currency), []).append(held)
        return tuple(
            Holdings(
                route=route,
                knowledge=knowledge,
                currency=currency,
                count=len(group),
                amount=sum(held.amount for held in group),
                oldest_ms=min(held.oldest_ms for held in group),
            )
            for (route, knowledge, currency), group in sorted(groups.items())
        )

    async def purgeable(
        self, names: Names, route: str, before_ms: int, *, skip: int, limit: int
    ) -> tuple[list[Operation], int]:
        """Records of one scope and route that were last changed before that instant, oldest first.

        Also how many of the index were looked at.
        """
        index = names.index(f"purge:{route}")
        (members,) = await self._link.read(
            [("ZRANGEBYSCORE", index, "-inf", before_ms, "LIMIT", skip, limit)]
        )
        located = [(OperationId(member.decode()), names) for member in members]
        return await self.operations(located), len(located)

    async def empty_subjects(self, names: Names, before_ms: int, *, limit: int) -> list[Subject]:
        (members,) = await self._link.read(
            [("ZRANGEBYSCORE", names.index("empty"), "-inf", f"({before_ms}", "LIMIT", 0, limit)]
        )
        handles = [Handle(member.decode()) for member in members]
        rows = await self._link.read([("GET", names.subject(handle)) for handle in handles])
        found: list[Subject] = []
        for stored in rows:
            with suppress(RowUnreadable):
                subject = subject_in(stored)
                if subject is not None:
                    found.append(subject)
        return found


def _index_of(query: Query) -> str:
    if query.due_before_ms is not None:
        return "due"
    return "unresolved" if query.knowledge in ("unknown", "pending") else "created"


def _ranges(key: str, query: Query, after: Place | None, count: int) -> tuple[tuple[Argument, ...], ...]:
    """Two ranges: the rest of the cursor's own instant, and what lies beyond it."""
    low: Argument = "-inf"
    high: Argument = "+inf" if query.due_before_ms is None else query.due_before_ms
    if query.due_before_ms is None:
        low = low if query.since_ms is None else query.since_ms
        high = high if query.until_ms is None else f"({query.until_ms}"
    command = "ZRANGEBYSCORE" if query.oldest_first else "ZREVRANGEBYSCORE"
    same: tuple[Argument, ...] = ("ZRANGEBYSCORE", key, 1, 0, "WITHSCORES")  # nothing
    if after is not None:
        same = ("ZRANGEBYSCORE", key, after.at_ms, after.at_ms, "WITHSCORES")
        low, high = (f"({after.at_ms}", high) if query.oldest_first else (low, f"({after.at_ms}")
    bounds = (low, high) if query.oldest_first else (high, low)
    return (same, (command, key, *bounds, "WITHSCORES", "LIMIT", 0, count))
