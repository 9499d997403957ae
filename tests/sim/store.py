"""The store as a sidecar meets it: the reference ledger behind time, faults and notices.

A verb is one atomic step of `MemoryLedger`; what can go wrong is around it: no answer and no effect (`down`), an
effect without an answer (`lost_reply`), an effect after the caller has given up (`slow`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from proxy.core.model import Now, Operation, OperationId, Scope, State, Subject
from proxy.core.tables import Tables, Verb
from proxy.stores.rows import VerbTables
from tests.sim.file import SimLedger
from tests.sim.rows import Rows
from tests.sim.world import World

TIMEOUT_MS = 2_000
NOTICE_MS_MAX = 300  # a notification that was lost is made up by a poll


@dataclass(frozen=True, slots=True)
class Unavailable:
    """The store did not do a step, or did not say so."""

    may_have_happened: bool


Answered = Callable[[object], None]


@dataclass(eq=False, slots=True)
class Waiter:
    """A follower that waits for the end of the run with this fence."""

    operation: Operation
    until_ms: int
    woken: Callable[[Operation | None], None]
    is_done: bool = False


@dataclass(frozen=True, slots=True)
class Lose:
    """The store forgets a record and things, as a failover does (D6)."""

    scope: Scope
    operation: Operation
    things: tuple[Subject, ...]
    name: str = "lose"

    def apply(self, tables: Tables, now: Now) -> None:
        assert isinstance(tables, VerbTables)
        tables.drop(self.operation)
        for row in self.things:
            tables.drop_subject(row)


@dataclass
class SimStore:
    """One store that all sidecars share."""

    world: World
    rows: Rows
    ledger: SimLedger
    waiters: dict[OperationId, list[Waiter]] = field(default_factory=dict)
    down_until_ms: int = 0
    flaky_permille: int = 0  # steps that fail by themselves, besides the plan's faults
    wrote: Callable[[Operation | None, Operation], None] = lambda before, after: None
    _was: dict[OperationId, Operation] = field(default_factory=dict)
    _verb: Verb[object] | None = None

    def __post_init__(self) -> None:
        self.ledger.changed = self._changed
        self.ledger.before = self._begins

    def ask(
        self,
        verb: Verb[object],
        answered: Answered,
        *,
        begins: Callable[[], None] | None = None,
        looked: Callable[[], None] | None = None,
    ) -> None:
        """One step; `answered` is given its result or `Unavailable`.

        Args: begins: called before the step, if it comes to it; looked: after it, if it is not late.
        """
        world = self.world
        fault = "down" if world.now_ms < self.down_until_ms else world.fault("store")
        if self.flaky_permille and not world.calm and world.chance.hits(self.flaky_permille):
            fault = "down"
        if fault == "outage":
            self.goes_down()
            fault = "down"
        if fault == "down":
            self.ledger.refuses(verb)
            world.after(world.chance.between(1, TIMEOUT_MS), lambda: answered(Unavailable(False)))
            return
        if fault == "slow":
            world.after(TIMEOUT_MS, lambda: answered(Unavailable(True)))
            world.after(TIMEOUT_MS + world.chance.between(1, 15_000), lambda: self._late(verb, begins))
            return
        if begins is not None:
            begins()
        result = self.do(verb)
        if looked is not None:
            looked()
        if fault == "lost_reply":
            world.after(TIMEOUT_MS, lambda: answered(Unavailable(True)))
        else:
            world.after(1 + world.chance.below(4), lambda: answered(result))

    def goes_down(self) -> None:
        """Nothing is done for a while."""
        if not self.world.calm:
            self.down_until_ms = self.world.now_ms + self.world.chance.between(500, 30_000)

    def _late(self, verb: Verb[object], begins: Callable[[], None] | None) -> None:
        if begins is not None:
            begins()
        self.do(verb)

    def do(self, verb: Verb[object]) -> object:
        """The step itself."""
        result = self.ledger.run(verb)
        if self.world.tracing:
            self.world.note(f"store {verb.name} -> {_short(result)}")
        return result

    def _begins(self, verb: Verb[object]) -> None:
        self._verb = verb

    def _changed(self, identity: OperationId, operation: Operation | None) -> None:
        assert self._verb is not None
        before = self._was.get(identity)
        if isinstance(self._verb, Lose):
            del self._was[identity]
            return
        wrong = self.rows.wrote(self._verb, before, operation, self.world.boot_ms(), self.world.boot_id())
        if wrong:
            raise self.world.broken(f"{before.key if before else identity}: {wrong}")
        if operation is None:
            del self._was[identity]
        else:
            self._was[identity] = operation
            self.wrote(before, operation)
        for waiter in tuple(self.waiters.get(identity, ())):
            if operation is None or self._is_over(operation, waiter):
                delay_ms = self.world.chance.below(NOTICE_MS_MAX)
                self.world.after(delay_ms, partial(self._wake, waiter))

    def lose(self, identity: OperationId) -> None:
        """A failover forgot one record, and its things with it (D6)."""
        record = self.ledger.operations[identity]
        things = tuple(row for row in self.ledger.subjects.values() if identity in row.operations)
        self.ledger.run(Lose(record.scope, record, things))

    # --- following --------------------------------------------------------------------------------------------

    def wait(self, operation: Operation, until_ms: int, woken: Callable[[Operation | None], None]) -> Waiter:
        waiter = Waiter(operation, until_ms, woken)
        self.waiters.setdefault(operation.id, []).append(waiter)
        self._look(waiter)
        return waiter

    def _look(self, waiter: Waiter) -> None:
        """Look now, and again when the lease or the patience ends."""
        if waiter.is_done:
            return
        now = self.ledger.operations.get(waiter.operation.id)
        left_ms = waiter.until_ms - self.world.now_ms
        if now is None or self._is_over(now, waiter) or left_ms <= 0:
            self._wake(waiter)
            return
        lease_ms = now.lease_until_ms - self.world.boot_ms()
        self.world.after(max(1, min(left_ms, lease_ms)), lambda: self._look(waiter))

    def _is_over(self, operation: Operation, waiter: Waiter) -> bool:
        return (
            operation.fence != waiter.operation.fence
            or operation.state is not State.IN_FLIGHT
            or operation.lease_is_over(self.ledger.now())
        )

    def _wake(self, waiter: Waiter) -> None:
        if waiter.is_done:
            return
        self.leave(waiter)
        waiter.woken(self.ledger.operations.get(waiter.operation.id))

    def leave(self, waiter: Waiter) -> None:
        waiter.is_done = True
        mine = self.waiters.get(waiter.operation.id, [])
        if waiter in mine:
            mine.remove(waiter)
        if not mine:
            self.waiters.pop(waiter.operation.id, None)


def _short(result: object) -> str:
    operation = getattr(result, "operation", result)
    if isinstance(operation, Operation):
        return (
            f"{type(result).__name__} {operation.key} {operation.state} fence {operation.fence}"
            f" attempts {operation.attempt_count}{' doubt' if operation.doubt else ''}"
        )
    return type(result).__name__
