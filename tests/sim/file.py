"""The world's ledger on a real disk: SQLite files, their connections, crashes and a disk that is full.

Every step goes to the reference ledger and to the real store, through one of several processes' connections.
Answers, rows and the columns that lists go by have to be the same in both after each step; the sidecars are given
the file's answer. Steps come one at a time, so that the store's threads change no story: a seed tells the same one
over either ledger.
"""

from __future__ import annotations

import asyncio
import resource
import tempfile
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from proxy.core.tables import Verb
from proxy.ports import StoreUnavailable
from proxy.stores.memory import MemoryLedger
from proxy.stores.sqlite import SqliteStore
from proxy.stores.sqlite_file import connect
from proxy.stores.sqlite_rows import operation_row, subject_row
from tests.sim.world import Chance, World

Answer = TypeVar("Answer")
Result = TypeVar("Result")

PROCESSES_MAX = 3
TIMEOUT_MS = 60_000  # a busy machine is no fault of the story's
FULL_PERMILLE = 500  # of the steps that the store does not do: it tries, and the disk takes nothing
SALT = 0x5A1E  # the file's own chances, so that its story is that of the same seed in memory


class SimLedger(MemoryLedger):
    """The reference ledger, as worlds use it."""

    def died(self) -> None:
        """A process was killed."""

    def restarts(self) -> None:
        """Every process ended in peace, and began anew."""

    def refuses(self, verb: Verb[Any]) -> None:
        """A step that the store does not do."""

    def close(self) -> None:
        """The story is over."""


class FileLedger(SimLedger):
    """The same over a file in a folder of its own."""

    def __init__(self, clock: World, folder: Path) -> None:
        super().__init__(clock)
        self._world = clock
        self._path = folder / "ledger.db"
        self._chance = Chance(clock.seed ^ SALT)
        self._loop = asyncio.new_event_loop()
        self._killed: list[SqliteStore] = []
        self._processes: list[SqliteStore] = []
        for _ in range(self._chance.between(1, PROCESSES_MAX)):
            self._processes.append(self._started())
        self._reading = connect(self._path, read_only=True)

    def _wait(self, step: Coroutine[Any, Any, Result]) -> Result:
        return self._loop.run_until_complete(step)

    def _started(self) -> SqliteStore:
        store = SqliteStore(self._path, clock=self._world, timeout_ms=TIMEOUT_MS)
        self._wait(store.open())
        return store

    # --- steps ------------------------------------------------------------------------------------------------

    def run(self, verb: Verb[Answer]) -> Answer:
        expected = super().run(verb)
        found = self._wait(self._chance.pick(self._processes).transact(verb))
        if found != expected:
            raise self._world.broken(f"{verb.name}: the file answers {found}, the reference {expected}")
        self._same(verb.name)
        return found

    def refuses(self, verb: Verb[Any]) -> None:
        """The disk is full: the step fails and leaves nothing, in the file or in the process's memory."""
        if not self._chance.hits(FULL_PERMILLE):
            return
        try:
            with _full_disk():
                self._wait(self._chance.pick(self._processes).transact(verb))
        except StoreUnavailable as error:
            if error.may_have_happened:
                raise self._world.broken(
                    f"{verb.name}: nothing was written, and is said to be: {error}"
                ) from error
        self._same(f"{verb.name} on a full disk")

    def purge(self, *, record_ms: dict[str, int]) -> int:
        """By the store's own statements. Always in one process: trust in the clock is each one's own."""
        expected = self._purged_in_memory(record_ms)
        dropped = self._wait(self._processes[0].purge(record_ms=record_ms))
        if dropped != expected:
            raise self._world.broken(f"purge: the file drops {dropped}, the reference {expected}")
        self._same("purge")
        return dropped

    def _purged_in_memory(self, record_ms: dict[str, int]) -> int:
        beside = MemoryLedger(self.clock)
        beside.operations, beside.subjects, beside.trust = self.operations, self.subjects, self.trust
        beside.before, beside.changed = self.before, self.changed
        return beside.purge(record_ms=record_ms)

    def _same(self, after: str) -> None:
        """The file, read through a connection of nobody's, holds what the reference holds."""
        rows = self._reading.execute("SELECT * FROM operations").fetchall()
        expected = sorted(operation_row(one) for one in self.operations.values())
        if sorted(rows) != expected:
            raise self._world.broken(f"{after}: the file holds other operations than the reference")
        rows = self._reading.execute("SELECT * FROM subjects").fetchall()
        if sorted(rows) != sorted(subject_row(one) for one in self.subjects.values()):
            raise self._world.broken(f"{after}: the file holds other subjects than the reference")

    # --- processes --------------------------------------------------------------------------------------------

    def died(self) -> None:
        """Its connection is left as it is, its memory is gone; another process opens the file with its log."""
        number = self._chance.below(len(self._processes))
        self._killed.append(self._processes[number])
        self._processes[number] = self._started()

    def restarts(self) -> None:
        """Every process drains and ends, and starts anew from the file alone."""
        for number, store in enumerate(self._processes):
            self._wait(store.close())
            self._processes[number] = self._started()
        self._same("a restart")

    def close(self) -> None:
        for store in (*self._processes, *self._killed):
            self._wait(store.close())
        self._reading.close()
        self._loop.close()


@contextmanager
def _full_disk() -> Iterator[None]:
    """No file of this process may grow: the kernel itself fails the write."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def ledger_for(world: World, *, on_file: bool) -> Iterator[SimLedger]:
    """The world's ledger, for as long as its story is played."""
    if not on_file:
        yield SimLedger(world)
        return
    with tempfile.TemporaryDirectory(prefix="safepost-sim-") as folder:
        ledger = FileLedger(world, Path(folder))
        try:
            yield ledger
        finally:
            ledger.close()
