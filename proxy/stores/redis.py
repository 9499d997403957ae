"""The store for several hosts: Redis or Valkey, one server, Sentinel or Cluster (contract D2, D5, D6)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from proxy.core.model import Now, Operation, OperationId
from proxy.core.tables import Verb
from proxy.ports import Clock, Holdings, Page, Query, StoreReport, StoreUnavailable
from proxy.stores import purging, secret
from proxy.stores.batch import Batcher
from proxy.stores.journal import Journal, PutBack
from proxy.stores.notices import Notice, NoticeKind, Notify, damage, unheard
from proxy.stores.purging import ClockTrust, PurgeOperations, PurgeSubjects
from proxy.stores.redis_engine import RedisEngine, ServerTime
from proxy.stores.redis_find import Finder
from proxy.stores.redis_guardian import Guardian
from proxy.stores.redis_link import Link
from proxy.stores.redis_listener import Listener
from proxy.stores.redis_rows import Names, names_of, tag_of
from proxy.stores.redis_settings import Settings, read_settings, warnings_of
from proxy.stores.redis_trouble import Trouble
from proxy.stores.waiters import WaitHub

Answer = TypeVar("Answer")
Result = TypeVar("Result")

REFILL_SLICE = 200
OPEN_S = 8.0  # a start may wait longer than a verb may
OPEN_PAUSE_S = 0.25
LANES = 2  # groups on their way at once: more would be smaller, and the client library costs by the group


class RedisStore:
    """`ports.Store` over Redis. Opened in the process and event loop that use it.

    Args: timeout_ms: per verb, reconnecting included.
        configured: the fingerprint secret of the configuration; None: one is made once and kept in the store.
        journal: a local file of unresolved operations, to put back those that the store loses (D6).
        notify: hears when the store lost data, goes away or comes back.
    """

    def __init__(
        self,
        url: str,
        *,
        clock: Clock,
        timeout_ms: int,
        configured: bytes | None = None,
        journal: Path | None = None,
        notify: Notify = unheard,
    ) -> None:
        self._link = Link(url, timeout_ms=timeout_ms)
        self._journal_path = journal
        self._journal: Journal | None = None
        self._notify = notify
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._configured = configured
        self._time = ServerTime(clock)
        self._engine = RedisEngine(self._link, self._time)
        self._finder = Finder(self._link)
        self._hub = WaitHub(self._load_many, self.now, watched=self._watched)
        self._listener = Listener(self._link, self._hub.poke)
        self._batcher: Batcher | None = None
        self._guardian = Guardian(
            self._link,
            self._time,
            forget=self._forget,
            refill=self._refill,
            check=self._check_settings,
            notify=notify,
        )
        self._warnings: tuple[str, ...] = ()
        self._histories: frozenset[str] = frozenset()
        self._damaged = 0  # records that a list had to leave out, at most
        self.trust = ClockTrust()

    async def open(self) -> StoreReport:
        where = self._link.where
        settings = await self._reach()
        self._warnings = warnings_of(settings, where)
        self._histories = frozenset(one.history for one in settings)
        self._batcher = Batcher(
            self._engine, timeout_ms=self._timeout_ms, name=where, lanes=LANES, changed=self._changed
        )
        if self._journal_path is not None:
            self._journal = Journal(self._journal_path, failed=self._journal_failed)
            try:
                await self._journal.open()
                await self._refill_at_start()
            except StoreUnavailable:
                await self.close()
                raise
        self._guardian.watch()
        version = f"{settings[0].name} {settings[0].version or 'of unknown version'}"
        return StoreReport("redis", f"{where} ({version}): guards every host that uses it", self._warnings)

    async def _reach(self) -> Sequence[Settings]:
        """Wait for a server that is just starting too; one that refuses for good ends the start at once.

        Raises: StoreUnavailable.
        """
        trouble: Exception | None = None
        is_reached = False
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + OPEN_S
        try:
            async with asyncio.timeout_at(ends_at):
                while trouble is None or (isinstance(trouble, Trouble) and trouble.is_passing):
                    try:
                        settings = await read_settings(self._link)
                        await self._guardian.begin(has_secret=self._configured is not None)
                        is_reached = True
                        return settings
                    except Trouble as error:
                        trouble = error
                    if loop.time() >= ends_at:  # redis-py can swallow a cancellation that meets it at work
                        break
                    await asyncio.sleep(OPEN_PAUSE_S)
        except TimeoutError as error:
            trouble = trouble or error
        finally:
            if not is_reached:
                await self._link.close()
        why = str(trouble) or f"no answer within {OPEN_S:g} s"
        raise StoreUnavailable(
            f"{self._link.where}: opening the ledger: {why}. No call was sent without a record. Check store.url "
            "and that the server runs."
        ) from trouble

    async def close(self) -> None:
        if self._batcher is None:
            return
        batcher, self._batcher = self._batcher, None
        await self._guardian.close()
        await batcher.close()
        await self._engine.close()
        await self._hub.close()
        await self._listener.close()
        await self._link.close()
        if self._journal is not None:
            await self._journal.close()

    async def transact(self, verb: Verb[Answer]) -> Answer:
        if self._batcher is None:
            raise StoreUnavailable(f"{self._link.where}: the ledger is not open; nothing was written")
        return await self._batcher.run(verb)

    async def load(self, operation: OperationId) -> Operation | None:
        return await self._read(self._finder.load(operation), "load")

    async def find(self, query: Query) -> Page:
        page = await self._read(self._finder.find(query, self.now()), "find")
        if len(self._finder.unreadable) > self._damaged:
            self._damaged = len(self._finder.unreadable)
            self._notify(Notice(NoticeKind.DAMAGED, self._damage(), self.warnings()))
        return page

    def _damage(self) -> str:
        then = (
            "Run the newest release that uses this store; if they can't be read then, compare these payments with "
            "the platform"
        )
        return damage(self._link.where, self._damaged, then=then)

    async def count_due(self, *, before_ms: int) -> int:
        return await self._read(self._finder.count_due(before_ms), "count_due")

    async def wait(self, operation: Operation, *, timeout_ms: int) -> Operation | None:
        return await self._hub.wait(operation, timeout_ms=timeout_ms)

    async def holdings(self) -> tuple[Holdings, ...]:
        return await self._read(self._finder.holdings(self.now()), "holdings")

    async def purge(self, *, record_ms: dict[str, int]) -> int:
        """The server's clock is the wall clock here, and it has to agree with this machine's boot clock."""
        now = self.now()
        reading = Now(lease_ms=self._clock.boot_ms(), epoch=self._clock.boot_id(), wall_ms=now.wall_ms)
        await self._refill()  # before anything is forgotten: what others settled leaves the journal
        if not self.trust.read(reading):
            return 0
        dropped = 0
        before_ms = purging.subjects_before_ms(now, record_ms)
        for names in await self._read(self._finder.scopes(), "purge"):
            for route, kept_ms in record_ms.items():
                dropped += await self._purge_route(
                    names, route, before_ms=now.wall_ms - kept_ms, record_ms=record_ms
                )
            await self._purge_subjects(names, before_ms)
            if dropped >= purging.DROPPED_MAX:
                break
        return dropped

    async def ping(self) -> None:
        """The store answers, takes writes, and still has its marker."""
        await self._read(self._guardian.look(), "ping")

    def secrets(self) -> tuple[secret.Secret, ...]:
        return secret.in_order(self._configured, self._guardian.kept_secrets())

    def warnings(self) -> tuple[str, ...]:
        damage = (self._damage(),) if self._damaged else ()
        return (*self._warnings, *self._guardian.warnings(), *damage)

    def now(self) -> Now:
        return self._time.now()

    async def _purge_route(
        self, names: Names, route: str, *, before_ms: int, record_ms: dict[str, int]
    ) -> int:
        dropped, skip = 0, 0
        while dropped < purging.DROPPED_MAX:
            listing = self._finder.purgeable(names, route, before_ms, skip=skip, limit=purging.SLICE)
            operations, looked = await self._read(listing, "purge")
            gone = 0
            for scope, identities in purging.by_scope(operations):
                gone += await self.transact(PurgeOperations(scope, identities, record_ms))
            dropped += gone
            skip += looked - gone
            if looked < purging.SLICE:
                break
        return dropped

    async def _purge_subjects(self, names: Names, before_ms: int) -> None:
        listing = self._finder.empty_subjects(names, before_ms, limit=purging.DROPPED_MAX // 10)
        for scope, subjects in purging.subjects_by_scope(await self._read(listing, "purge")):
            await self.transact(PurgeSubjects(scope, subjects, before_ms))

    def _forget(self) -> None:
        self._engine.forget()
        self._finder.forget()

    async def _refill_at_start(self) -> None:
        """No call is taken before: a payment in doubt would not hold back another key for its order (U1).

        Raises: StoreUnavailable.
        """
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + OPEN_S
        while not await self._refill():
            if loop.time() > ends_at:
                raise StoreUnavailable(
                    f"{self._link.where}: opening the ledger: what {self._journal_path} holds could not be put "
                    f"back within {OPEN_S:g} s, and no call is taken before. No call was sent without a record. "
                    "Start again once the server answers in time."
                )
            await asyncio.sleep(OPEN_PAUSE_S)

    async def _refill(self) -> bool:
        """Put back what the store has lost of the journal's operations; forget those that are settled (D6).

        Returns: whether all of it is there now.
        """
        if self._journal is None or self._batcher is None:
            return True
        lost, is_whole = 0, True
        held = self._journal.operations()
        try:
            for start in range(0, len(held), REFILL_SLICE):
                part = held[start : start + REFILL_SLICE]
                present = await self._load_many(part)
                for operation in part:
                    if operation.id in present:
                        self._journal.note(operation.id, present[operation.id])
                    elif operation.id not in self._finder.unreadable:
                        lost += await self.transact(PutBack(operation))
        except StoreUnavailable as error:
            is_whole = False
            self._notify(Notice(NoticeKind.AWAY, f"{error}; what the journal holds is put back later"))
        if lost:
            text = f"{self._link.where}: {lost} unresolved operations that it had lost were put back"
            self._notify(Notice(NoticeKind.PUT_BACK, text))
        return is_whole

    async def _check_settings(self) -> bool:
        """Somebody may have set them otherwise, or another server took over (D5).

        Returns: whether one did, or was started again, so that its last writes may be lost (D6).
        Raises: Trouble.
        """
        settings = await read_settings(self._link)
        warnings, before = warnings_of(settings, self._link.where), self._warnings
        if warnings != before:
            self._warnings = warnings
            new = [text for text in warnings if text not in before]
            gone = [f"no longer so: {text}" for text in before if text not in warnings]
            self._notify(Notice(NoticeKind.SETTINGS, "; ".join([*new, *gone]), self.warnings()))
        seen, self._histories = self._histories, frozenset(one.history for one in settings)
        return not self._histories <= seen

    def _journal_failed(self, trouble: str | None) -> None:
        if trouble is not None:
            text = f"{trouble}. Payments go on; a Redis that loses its data now can't be put right from here"
            self._notify(Notice(NoticeKind.JOURNAL_FAILING, text))
        else:
            self._notify(Notice(NoticeKind.JOURNAL_WRITTEN, f"{self._journal_path}: written again"))

    def _changed(self, operation: OperationId, record: Operation | None) -> None:
        self._hub.changed(operation, record)
        if self._journal is not None:
            self._journal.note(operation, record)

    def _watched(self, operation: Operation, wanted: bool) -> None:
        self._listener.watch(operation.id, wanted)

    async def _load_many(self, operations: Sequence[Operation]) -> dict[OperationId, Operation]:
        located = [(operation.id, names_of(tag_of(operation.scope))) for operation in operations]
        found = await self._read(self._finder.operations(located), "wait")
        return {operation.id: operation for operation in found}

    async def _read(self, reading: Coroutine[Any, Any, Result], doing: str) -> Result:
        """A read within the time limit."""
        if self._batcher is None:
            reading.close()
            raise StoreUnavailable(f"{self._link.where}: the ledger is not open")
        try:
            async with asyncio.timeout(self._timeout_ms / 1000):
                return await reading
        except TimeoutError as error:
            raise StoreUnavailable(
                f"{self._link.where}: {doing} got no answer within {self._timeout_ms} ms"
            ) from error
        except Trouble as trouble:
            raise trouble.as_failure(f"{self._link.where}: {doing}", may_have_happened=False) from trouble
