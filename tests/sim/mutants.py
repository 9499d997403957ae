"""Deliberate breakages of core and store: "nothing found" means nothing until the simulator finds each of these.

A mutant replaces one function, method or constant while its seeds are played. It is caught when a promise breaks
or the core itself notices an impossible move; `hunt` says after how many seeds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from proxy import owed
from proxy.core import admit, answers, classify, ending, evidence, guard, reserve, resolve, settle, tables
from proxy.core.guard import ProtocolError
from proxy.core.http import Answered, NotSent
from proxy.core.keys import operation_id
from proxy.core.messages import (
    AttemptRecorded,
    Recorded,
    Reserved,
    RetryPlanned,
    Running,
    Send,
    Settle,
    Step,
    Withdrawn,
)
from proxy.core.model import (
    Fence,
    Fingerprint,
    Knowledge,
    Now,
    Operation,
    Outcome,
    Seen,
    State,
    replace,
)
from proxy.core.states import ImpossibleMoveError
from proxy.stores import memory, purging, rows, sqlite_rows
from tests.sim import wire
from tests.sim.story import play
from tests.sim.world import Violation

SEEDS_MAX = 5_000
"""A mutant that needs more is too well hidden: the world's weights are then to be changed."""

Undo = Callable[[], None]


def swap(owner: object, name: str, value: object) -> Undo:
    """Put `value` in the place of an attribute."""
    before = vars(owner)[name] if isinstance(owner, type) else getattr(owner, name)
    setattr(owner, name, value)
    return lambda: setattr(owner, name, before)


def everywhere(original: object, value: object) -> Undo:
    """Put `value` in the place of a function in every module of the package that imported it."""
    undos = [
        swap(module, name, value)
        for label, module in tuple(sys.modules.items())
        if label.startswith("proxy.")
        for name, found in tuple(vars(module).items())
        if found is original
    ]

    def undo() -> None:
        for one in undos:
            one()

    return undo


@dataclass(frozen=True)
class Mutant:
    """One breakage: its name, what it would do to money, and how it is made.

    `on_file`: of the SQLite store, so that only seeds over files can see it.
    """

    name: str
    harm: str
    make: Callable[[], Undo]
    on_file: bool = False


MUTANTS: list[Mutant] = []


def mutant(harm: str, *, on_file: bool = False) -> Callable[[Callable[[], Undo]], Callable[[], Undo]]:
    """Register a breakage under its function's name."""

    def register(make: Callable[[], Undo]) -> Callable[[], Undo]:
        MUTANTS.append(Mutant(make.__name__, harm, make, on_file))
        return make

    return register


@contextmanager
def broken(one: Mutant) -> Iterator[None]:
    undo = one.make()
    try:
        yield
    finally:
        undo()


def hunt(one: Mutant, *, seeds_max: int = SEEDS_MAX) -> tuple[int, str] | None:
    """How many seeds it took to catch the mutant, and by what; None if it got away.

    Raises: whatever else a breakage runs into, such as a signature that has changed: nobody has caught it then.
    """
    with broken(one):
        for seed in range(seeds_max):
            try:
                play(seed, on_file=one.on_file)
            except (Violation, ImpossibleMoveError, ProtocolError) as error:
                return seed + 1, f"{type(error).__name__}: {error}".splitlines()[0]
    return None


# --- leases and fences --------------------------------------------------------------------------------------


@mutant("a dead leader's payment is free again, for any key")
def expired_lease_made_free() -> Undo:
    def freed(operation: Operation | None, now: Now) -> Operation | None:
        if operation is not None and operation.state is State.IN_FLIGHT and operation.lease_is_over(now):
            return replace(operation, state=State.NOT_EXECUTED, owner=None)
        return operation

    return everywhere(tables.seen_now, freed)


@mutant("what a dead leader had sent is forgotten")
def lapse_without_doubt() -> Undo:
    original = tables.lapsed
    return everywhere(
        original, lambda operation, now: replace(original(operation, now), doubt=operation.doubt)
    )


@mutant("a leader that lost its lease goes on sending")
def attempt_without_fence() -> Undo:
    original = settle.RecordNextAttempt.apply

    def apply(self: settle.RecordNextAttempt, store: Any, now: Now) -> object:
        current = store.operation(self.scope, self.operation.id)
        if current is None or current.state is not State.IN_FLIGHT:
            return original(self, store, now)
        mine = replace(current, fence=self.operation.fence, owner=self.operation.owner)
        store.put(mine)
        return original(self, store, now)

    return swap(settle.RecordNextAttempt, "apply", apply)


@mutant("a zombie says not executed of another run's payment")
def settle_without_fence() -> Undo:
    return swap(settle, "leads", lambda operation, current: current.state is State.IN_FLIGHT)


@mutant("two calls lead at once")
def running_taken_for_free() -> Undo:
    original = reserve.ReserveOperation.apply

    def apply(self: reserve.ReserveOperation, store: Any, now: Now) -> object:
        found = original(self, store, now)
        return Reserved(found.operation) if isinstance(found, Running) else found

    return swap(reserve.ReserveOperation, "apply", apply)


@mutant("bytes leave after the lease is over")
def no_last_moment_check() -> Undo:
    original = wire.Wire.send

    def send(
        self: wire.Wire, request: Any, key: str, not_after_ms: int | None, *args: Any, **named: Any
    ) -> None:
        original(self, request, key, None, *args, **named)

    return swap(wire.Wire, "send", send)


@mutant("a stepped clock ends living leases")
def lease_on_the_wall_clock() -> Undo:
    def now(self: memory.MemoryLedger) -> Now:
        wall_ms = self.clock.wall_ms()
        return Now(wall_ms, self.clock.boot_id(), wall_ms)

    return swap(memory.MemoryLedger, "now", now)


@mutant("a process that slept forwards what it read before")
def repeat_without_a_latest_start() -> Undo:
    original = guard.Guard._repeat

    def repeat(self: guard.Guard, *args: Any) -> Any:
        return replace(original(self, *args), not_after_ms=10**15)

    return swap(guard.Guard, "_repeat", repeat)


@mutant("crashed calls are never noticed")
def lapse_unnoticed() -> Undo:
    return swap(resolve.NoticeLapse, "apply", lambda self, store, now: None)


# --- doubt --------------------------------------------------------------------------------------------------


@mutant("a refusal after a time-out is told as not executed")
def doubt_not_sticky() -> Undo:
    original = settle.with_end

    def with_end(operation: Operation, note: Any) -> Operation:
        return replace(original(operation, note), doubt=note.outcome is Outcome.IN_DOUBT)

    return everywhere(original, with_end)


@mutant("time-outs leave no doubt")
def doubt_never_written() -> Undo:
    original = settle.with_end

    def with_end(operation: Operation, note: Any) -> Operation:
        return replace(original(operation, note), doubt=operation.doubt)

    return everywhere(original, with_end)


@mutant("any refusal ends doubt")
def refusal_proves_absence() -> Undo:
    return everywhere(
        settle.absence_holds, lambda operation, note: note is not None and note.status is not None
    )


@mutant("a withdrawn claim takes earlier doubt with it")
def withdraw_drops_the_record() -> Undo:
    def apply(self: reserve.WithdrawClaim, store: Any, now: Now) -> Withdrawn:
        found = reserve.find(store, self.claim)[3]
        if found is not None and found.owner == self.owner and found.state is State.IN_FLIGHT:
            store.drop(found)
            found = None
        return Withdrawn(found)

    return swap(reserve.WithdrawClaim, "apply", apply)


@mutant("a run under way does not learn of what was sent without the store")
def admit_ignores_a_run() -> Undo:
    return swap(admit.AdmitUnrecorded, "_doubted", lambda self, store, now, running: running)


@mutant("what was sent without the store is forgotten")
def admit_forgets() -> Undo:
    def apply(self: admit.AdmitUnrecorded, store: Any, now: Now) -> Operation | None:
        identity = operation_id(self.scope, self.claim.method, self.claim.path, self.key)
        found: Operation | None = store.operation(self.scope, identity)
        return found

    return swap(admit.AdmitUnrecorded, "apply", apply)


@mutant("a key is claimed before what was sent without the store for its order is written")
def unrecorded_not_written_first() -> Undo:
    return swap(owed, "_asked_for", lambda claim: ())


@mutant("what is on the wire without the store is no doubt to its own host until it has ended")
def unrecorded_known_once_it_ended() -> Undo:
    return swap(owed.OwedWrites, "sends", lambda self, doubt: -1)


@mutant("a follower is told as not executed what its own host sent without the store")
def follower_asks_its_host_nothing() -> Undo:
    return swap(owed.OwedWrites, "knows_more", lambda self, claim: False)


# --- attempts and answers -----------------------------------------------------------------------------------


def _verdicts(change: Callable[[Any, Any], Any]) -> Undo:
    original = classify.Classifier.classify

    def changed(self: classify.Classifier, result: Any, **named: Any) -> Any:
        return change(result, original(self, result, **named))

    return swap(classify.Classifier, "classify", changed)


@mutant("a read time-out counts as never sent")
def timeout_counts_as_not_sent() -> Undo:
    def change(result: Any, verdict: Any) -> Any:
        lost = not isinstance(result, Answered | NotSent)
        return replace(verdict, outcome=Outcome.NOT_SENT) if lost else verdict

    return _verdicts(change)


@mutant("a 5xx counts as not executed")
def server_error_counts_as_not_executed() -> Undo:
    def change(result: Any, verdict: Any) -> Any:
        is_5xx = isinstance(result, Answered) and result.response.status >= 500
        return replace(verdict, outcome=Outcome.NOT_EXECUTED) if is_5xx else verdict

    return _verdicts(change)


@mutant("a captive portal's page counts as a payment")
def any_200_counts_as_executed() -> Undo:
    def change(result: Any, verdict: Any) -> Any:
        ok = isinstance(result, Answered) and result.response.status == 200
        return replace(verdict, outcome=Outcome.EXECUTED) if ok and verdict.seen is None else verdict

    return _verdicts(change)


@mutant("a retry leaves before it is recorded")
def send_before_recording() -> Undo:
    def woke(self: Any) -> Step:
        return Step(Send(self.operation.attempt_count, self.operation.key, 6_000, None))

    return swap(guard.Guard, "_woke", woke)


@mutant("a key that the platform still holds is released")
def refusal_always_releases() -> Undo:
    original = ending.ending

    def ends(*args: Any, **named: Any) -> Settle:
        settled = original(*args, **named)
        return replace(settled, released=settled.state is State.NOT_EXECUTED)

    return everywhere(original, ends)


@mutant("another amount goes out under an old key")
def fingerprint_ignored() -> Undo:
    def none(record: Fingerprint, calls: tuple[Fingerprint, ...]) -> tuple[str, ...]:
        return ()

    return swap(reserve, "differing", none)


@mutant("a settled operation is relabelled by its own repeat")
def repeat_always_updates() -> Undo:
    undo_newest = swap(settle, "older_than", lambda seen, newest: False)
    undo_voice = swap(answers, "older_than", lambda seen, newest: False)

    def undo() -> None:
        undo_newest()
        undo_voice()

    return undo


@mutant("a follower is told not executed though a later run executed")
def follower_told_an_old_run() -> Undo:
    def ended(self: Any, event: Any, now_ms: int) -> Step:
        return Step(self._voice.run_ended(event.operation, event.answer))

    return swap(guard.Guard, "_run_ended", ended)


@mutant("a store that failed at the end makes the caller hear not executed")
def store_failure_taken_for_safe() -> Undo:
    original = guard.Guard._store_failed

    def failed(self: Any, event: Any, now_ms: int) -> Step:
        step = original(self, event, now_ms)
        marks = getattr(step.command, "marks", None)
        if marks is None or marks.knowledge is not Knowledge.UNKNOWN:
            return step
        told = replace(marks, knowledge=Knowledge.NOT_EXECUTED)
        return Step(replace(step.command, marks=told), step.facts)

    return swap(guard.Guard, "_store_failed", failed)


# --- subjects, counting, age --------------------------------------------------------------------------------


@mutant("a new key after a time-out passes")
def guard_ignores_subject() -> Undo:
    return swap(reserve.ReserveOperation, "_blocked", lambda self, *args: None)


@mutant("a second refund number after a time-out passes")
def guard_ignores_twins() -> Undo:
    original = reserve.ReserveOperation._blocked

    def blocked(self: Any, *args: Any) -> Any:
        found = original(self, *args)
        return None if found is not None and found.twin else found

    return swap(reserve.ReserveOperation, "_blocked", blocked)


@mutant("absent frees the order for another key")
def absent_frees_the_subject() -> Undo:
    original = tables.holds_subject

    def holds(route: Any, operation: Operation) -> bool:
        return operation.state is not State.ABSENT and original(route, operation)

    return everywhere(original, holds)


@mutant("a lost answer becomes a new submission")
def seq_grows_before_delivery() -> Undo:
    original = reserve.find

    def find(store: Any, *args: Any) -> Any:
        known: dict[Any, Operation] = store._rows.operations
        before = dict(known)
        for identity, one in before.items():
            known[identity] = replace(one, failure_delivered=True)
        try:
            return original(store, *args)
        finally:
            known.update(before)

    return everywhere(original, find)


@mutant("a call that slept becomes a new submission once another was told of the decline")
def held_up_call_counts_as_new() -> Undo:
    return swap(reserve, "_was_given", lambda failed, *_: failed.failure_delivered)


@mutant("result_unknown counts as having told the decline")
def any_reply_counts_as_delivery() -> Undo:
    original = answers.Voice._reply

    def reply(self: Any, *args: Any, **named: Any) -> Any:
        return original(self, *args, **{**named, "shows_result": True})

    return swap(answers.Voice, "_reply", reply)


@mutant("a key is sent after the platform forgot it")
def key_expiry_ignored() -> Undo:
    return swap(reserve, "KEY_EXPIRY_MARGIN_MS", -(10**15))


@mutant("unresolved operations are dropped with age")
def unresolved_purged() -> Undo:
    undo_rows = swap(rows, "is_purgeable", lambda operation: True)
    undo_purging = swap(purging, "is_purgeable", lambda operation: True)

    def undo() -> None:
        undo_rows()
        undo_purging()

    return undo


# --- evidence -----------------------------------------------------------------------------------------------


@mutant("old and reordered events win")
def version_ignored() -> Undo:
    return everywhere(evidence.newer_than, lambda seen, operation: True)


@mutant("card A's decline is told of card B")
def confirm_settled_by_the_state_before() -> Undo:
    return everywhere(evidence.tells_of, lambda operation, seen: True)


@mutant("the first payment's decline settles the second key's charge")
def evidence_of_another_resource() -> Undo:
    return everywhere(evidence._is_anothers, lambda store, operation, seen: False)


@mutant("another key's payment makes this key's refusal executed")
def evidence_that_another_explains() -> Undo:
    return everywhere(evidence._another_explains, lambda store, operation: False)


@mutant("a checkout session settles its order's payment")
def session_taken_for_its_payment() -> Undo:
    def remember(store: Any, now: Now, operation: Operation, seen: Seen) -> None:
        for handle in operation.handles:
            evidence.remember_at(store, now, operation.scope, handle, seen)

    return everywhere(evidence.remember, remember)


@mutant("one empty answer is absence")
def absent_believed_at_once() -> Undo:
    original = resolve.EndLookup._noted

    def noted(self: Any, operation: Operation, now: Now, *, missed: bool) -> Operation:
        hasty = replace(self, policy=replace(self.policy, misses=1, lag_ms=0))
        return original(hasty, operation, now, missed=missed)

    return swap(resolve.EndLookup, "_noted", noted)


@mutant("a failed lookup counts as an empty answer")
def failed_lookup_counts_as_a_miss() -> Undo:
    original = resolve.EndLookup._one

    def one(self: Any, store: Any, now: Now, operation: Operation, fence: Fence) -> Any:
        failed = isinstance(self.result, resolve.LookupFailed)
        told = replace(self, result=resolve.Missed()) if failed else self
        return original(told, store, now, operation, fence)

    return swap(resolve.EndLookup, "_one", one)


@mutant("unknown results are never looked up")
def lookups_never_due() -> Undo:
    original = tables.scheduled
    return everywhere(original, lambda *args: replace(original(*args), next_ms=None))


# --- people, facts, the store -------------------------------------------------------------------------------


@mutant("what a person settled is forwarded again")
def settled_by_hand_is_sent() -> Undo:
    original = guard.Guard._recorded

    def recorded(self: Any, event: Recorded, now_ms: int) -> Step:
        operation = replace(event.operation, by_hand=None)
        return original(self, Recorded(operation, event.failure_is_due), now_ms)

    return swap(guard.Guard, "_recorded", recorded)


@mutant("a key that a person freed stays marked as settled by hand")
def by_hand_survives_a_claim() -> Undo:
    original = reserve.ReserveOperation.claimed

    def claimed(self: Any, found: Operation | None, *args: Any, **named: Any) -> Operation:
        operation = original(self, found, *args, **named)
        return replace(operation, by_hand=found.by_hand) if found is not None else operation

    return swap(reserve.ReserveOperation, "claimed", claimed)


@mutant("a released key's first order settles its second")
def released_key_stays_on_its_old_order() -> Undo:
    original = reserve.unlist

    def unlist(*args: Any, less: Any = None) -> None:
        if less is None:
            original(*args)

    return everywhere(original, unlist)


@mutant("retries are not told")
def planned_retries_untold() -> Undo:
    original = guard.Guard.step

    def step(self: Any, event: Any, now_ms: int) -> Step:
        made = original(self, event, now_ms)
        return Step(made.command, tuple(fact for fact in made.facts if not isinstance(fact, RetryPlanned)))

    return swap(guard.Guard, "step", step)


@mutant("the store loses half of a step")
def subjects_not_written() -> Undo:
    return swap(rows.VerbTables, "put_subject", lambda self, subject: None)


@mutant("an attempt is told as recorded and is not")
def record_attempt_not_written() -> Undo:
    original = settle.RecordNextAttempt.apply

    def apply(self: settle.RecordNextAttempt, store: Any, now: Now) -> object:
        held = dict(store.changes.operations)
        found = original(self, store, now)
        if isinstance(found, AttemptRecorded):
            store.changes.operations.clear()
            store.changes.operations.update(held)
        return found

    return swap(settle.RecordNextAttempt, "apply", apply)


# --- the SQLite file: seen by the seeds that are played over one ----------------------------------------------


@mutant("a process goes by what it remembers, whatever another one wrote since", on_file=True)
def other_processes_unseen() -> Undo:
    def begin(self: sqlite_rows.FileRows) -> None:
        self._begin_anew()
        self._clear()

    return swap(sqlite_rows.FileRows, "begin", begin)


@mutant("a process remembers what a full disk did not take", on_file=True)
def rolled_back_rows_remembered() -> Undo:
    original = sqlite_rows.FileRows.forget

    def forget(self: sqlite_rows.FileRows) -> None:
        lost = dict(self.pending.subjects)
        original(self)
        self._subjects.update({name: row for name, row in lost.items() if row is not None})

    return swap(sqlite_rows.FileRows, "forget", forget)


@mutant("rows that were not read are taken for absent", on_file=True)
def supposed_rows_not_looked_up() -> Undo:
    return swap(sqlite_rows.FileRows, "supposed_rightly", lambda self: True)


@mutant("the file keeps half of a step", on_file=True)
def things_not_in_the_file() -> Undo:
    original = sqlite_rows.FileRows.stage

    def stage(self: sqlite_rows.FileRows, changes: rows.Changes) -> None:
        original(self, changes)
        self._subject_rows.clear()

    return swap(sqlite_rows.FileRows, "stage", stage)
