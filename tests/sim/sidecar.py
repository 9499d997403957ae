"""One sidecar: real guards, driven as the driver drives them, without asyncio.

A crash drops every guard and everything owed; a pause delays one command past its lease, so that a zombie wakes.
What the driver does for each command is repeated here on purpose, one method each; the rules stay the core's.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass, field
from functools import partial
from types import coroutine
from typing import cast

from proxy.core.admit import AdmitUnrecorded
from proxy.core.answers import Voice
from proxy.core.delivery import DeliverFailure, MarkAnsweredEarly
from proxy.core.guard import Guard, GuardPolicy
from proxy.core.http import Answered, NotSent, NotSentReason, WireResult
from proxy.core.messages import (
    AttemptEnded,
    Began,
    Claim,
    Command,
    Event,
    RecordAttempt,
    Repeat,
    Reply,
    Reserve,
    Reserved,
    RetryRefused,
    RunEnded,
    RunGone,
    Send,
    Settle,
    Sleep,
    StoreFailed,
    Update,
    Wait,
    WaitTimedOut,
    Withdraw,
    Woke,
)
from proxy.core.model import Key, Knowledge, Now, Operation, OperationId, Outcome, Owner, State
from proxy.core.reserve import ReserveOperation, WithdrawClaim
from proxy.core.settle import (
    RecordNextAttempt,
    RenewLease,
    SettleRun,
    UpdateFromRepeat,
)
from proxy.core.tables import Verb
from proxy.owed import OwedWrites
from proxy.ports import Store, StoreUnavailable
from tests.sim.checks import Checks, Unrecorded
from tests.sim.platforms import LEASE_MS, WAIT_MS, Request, Setting, claim_of
from tests.sim.store import SimStore, Unavailable, Waiter
from tests.sim.wire import Wire
from tests.sim.world import Kind, World

POLICY = GuardPolicy(wait_timeout_ms=WAIT_MS)
OWED_RETRY_MS = 500
SUSPENDED_MS_MAX = 400_000  # of a whole host: long enough for absence to be believed meanwhile
Answer = Callable[[Reply | None], bool]
"""Gives a reply to the caller (None: the connection broke); True when its last byte was written."""


@dataclass(eq=False, slots=True)
class Run:
    """A call under way in one sidecar."""

    guard: Guard
    claim: Claim
    request: Request
    owner: Owner
    answer: Answer
    is_dead: bool = False
    is_paused: bool = False
    answered_early: bool = False
    lease_until_ms: int = 0
    renewed_ms: int = 0
    seen_step: int = 0
    claimed_step: int = 0
    asked_step: int = 0  # when its host last asked what it owes itself of this key
    arrived: Now | None = None
    decided_ms: int = 0
    waiter: Waiter | None = None

    @property
    def is_leading(self) -> bool:
        operation = self.guard.operation
        return operation is not None and operation.state is State.IN_FLIGHT and operation.owner == self.owner


@dataclass(frozen=True, slots=True)
class Asked:
    """The store's port for the product's own code: a step is handed out, and its result is handed in."""

    checks: Checks

    @coroutine
    def transact(self, verb: Verb[object]) -> Generator[Verb[object], object, object]:
        result = yield verb
        if isinstance(result, Unavailable):
            raise StoreUnavailable("down", may_have_happened=result.may_have_happened)
        if isinstance(verb, AdmitUnrecorded):
            self.checks.admitted(verb)
        return result


@dataclass(eq=False)
class Sidecar:
    """One process."""

    name: str
    world: World
    setting: Setting
    store: SimStore
    wire: Wire
    checks: Checks
    generation: int = 0
    is_up: bool = True
    skew_ms: int = 0
    runs: list[Run] = field(default_factory=list)
    owed: OwedWrites = field(init=False)
    shared: dict[OperationId, list[Callable[[WireResult], None]]] = field(default_factory=dict)
    calls: int = 0
    _paying: bool = False

    def __post_init__(self) -> None:
        self.owed = self._owes_nothing()

    def _owes_nothing(self) -> OwedWrites:
        return OwedWrites(cast(Store, Asked(self.checks)))

    def wall_ms(self) -> int:
        return self.world.wall_ms() + self.skew_ms

    # --- calls ------------------------------------------------------------------------------------------------

    def call(self, request: Request, answer: Answer, *, patience_ms: int | None = None) -> None:
        """A call arrives."""
        if not self.is_up:
            self.world.after(1, lambda: _gone(answer))
            return
        self.calls += 1
        claim = claim_of(self.setting, request)
        voice = Voice(
            platform=self.setting.platform, claim=claim, stored_bytes_max=self.setting.stored_bytes_max
        )
        guard = Guard(claim, policy=POLICY, classifier=self.setting.classifier(request.kind), voice=voice)
        run = Run(guard, claim, request, Owner(f"{self.name}.{self.generation}:{self.calls}"), answer)
        run.seen_step = self.world.steps
        run.arrived = self.store.ledger.now()
        self.runs.append(run)
        if patience_ms is not None:
            self.world.after(patience_ms, lambda: self._patience_ended(run))
        self._step(run, Began(claim))

    def _patience_ended(self, run: Run) -> None:
        """W1."""
        if run.is_dead or run not in self.runs or run.answered_early:
            return
        run.answered_early = True
        reply = run.guard.early_answer()
        self.checks.tell(run.request, reply, run.seen_step, asked=(self.name, run.asked_step))
        run.answer(reply)
        operation = run.guard.operation
        if operation is not None and operation.owner == run.owner:
            self.store.ask(MarkAnsweredEarly(operation.scope, operation.id, operation.fence), _ignored)

    def _step(self, run: Run, event: Event) -> None:
        if run.is_dead:
            return
        run.decided_ms = self.world.now_ms
        step = run.guard.step(event, run.decided_ms)
        for fact in step.facts:
            self.checks.fact(fact)
        if self.world.tracing:
            self.world.note(f"{run.owner} {type(event).__name__} -> {type(step.command).__name__}")
        if isinstance(step.command, Reply):
            self._reply(run, step.command)
            return
        self.checks.sleeps += isinstance(step.command, Sleep)
        fault = self.world.fault("command")
        if fault == "crash_before":
            self.crash()
        elif fault == "pause":
            run.is_paused = True
            self.world.after(self._pause_ms(), lambda: self._resumed(run, step.command))
        else:
            self._do(run, step.command)
            if fault == "crash_after":
                self.crash()

    def _pause_ms(self) -> int:
        if self.world.kind in (Kind.LAGGING, Kind.INHERITED) and not self.world.is_slow:
            return self.world.chance.between(1, SUSPENDED_MS_MAX)
        return self.world.spell_ms(1, 3 * LEASE_MS)

    def _resumed(self, run: Run, command: Command) -> None:
        run.is_paused = False
        if not run.is_dead:
            self._do(run, command)

    def _reply(self, run: Run, reply: Reply) -> None:
        self.runs.remove(run)
        if run.answered_early:
            return
        self.checks.tell(run.request, reply, run.seen_step, asked=(self.name, run.asked_step))
        if self.world.tracing:
            self.world.note(f"{run.owner} replies {reply.answer.status} {reply.marks.knowledge}")
        if run.answer(reply) and reply.confirm_delivery is not None:
            operation = reply.confirm_delivery
            given = self.store.ledger.now()
            self.store.ask(DeliverFailure(operation.scope, operation.id, operation.fence, given), _ignored)

    # --- commands ---------------------------------------------------------------------------------------------

    def _do(self, run: Run, command: Command) -> None:
        match command:
            case Reserve(claim):
                run.claim = claim
                self._reserve(run)
            case Send():
                self._send(run, command)
            case RecordAttempt(operation, ended):
                self._hold(run, RecordNextAttempt(operation, ended, LEASE_MS))
            case Settle():
                self._write(run, settle_of(command))
            case Update(operation, state, ended, answer, seen, is_shared):
                verb = UpdateFromRepeat(operation, state, ended, answer, seen, is_shared=is_shared)
                self._write(run, verb)
            case Withdraw():
                self._withdraw(run)
            case Sleep(until_ms):
                self._sleep(run, until_ms)
            case Repeat():
                self._repeat(run, command)
            case Wait():
                self._wait(run, command)
            case _:
                raise AssertionError(command)

    def _reserve(self, run: Run) -> None:
        run.claimed_step = run.asked_step = self.world.steps

        def taken_back(result: object) -> None:
            if isinstance(result, Unavailable):
                self._step(run, StoreFailed("down", lease_held=False))
            elif not run.is_dead:
                self._claim(run)

        self._drive(self.owed.take_back(run.claim), taken_back)

    def _claim(self, run: Run) -> None:
        before_ms = self.world.now_ms

        def reserved(result: object) -> None:
            if isinstance(result, Unavailable):
                if result.may_have_happened and not run.is_dead:
                    self.owed.withdraw(WithdrawClaim(run.claim, run.owner))
                    self._pay_soon()
                self._step(run, StoreFailed("down", lease_held=False))
                return
            if isinstance(result, Reserved) and not run.is_dead:
                self._leased(run, before_ms)
            self._step(run, cast(Event, result))

        self._ask(run, ReserveOperation(run.claim, run.owner, LEASE_MS, run.arrived), reserved)

    def _ask(self, run: Run, verb: Verb[object], answered: Callable[[object], None]) -> None:
        def looked() -> None:
            run.seen_step = self.world.steps

        self.store.ask(verb, answered, looked=looked)

    def _failed(self, run: Run) -> StoreFailed:
        return StoreFailed("down", lease_held=self.world.now_ms < run.lease_until_ms)

    def _hold(self, run: Run, verb: RecordNextAttempt) -> None:
        before_ms = self.world.now_ms

        def held(result: object) -> None:
            if isinstance(result, Unavailable):
                self._step(run, self._failed(run))
                return
            if not run.is_dead:
                self._leased(run, before_ms)
            self._step(run, cast(Event, result))

        self._ask(run, verb, held)

    def _write(self, run: Run, verb: SettleRun | UpdateFromRepeat) -> None:
        run.seen_step = self.world.steps

        def written(result: object) -> None:
            if isinstance(result, Unavailable):
                if not run.is_dead:
                    self.owed.add(verb)
                    self._pay_soon()
                self._step(run, self._failed(run))
                return
            self._step(run, cast(Event, result))

        def taken_back(result: object) -> None:
            if isinstance(result, Unavailable):
                written(result)
            else:
                self._ask(run, verb, written)

        if verb.state is State.NOT_EXECUTED:
            run.asked_step = self.world.steps
            self._drive(self.owed.take_back(run.claim), taken_back)
        else:
            self._ask(run, verb, written)

    def _withdraw(self, run: Run) -> None:
        verb = WithdrawClaim(run.claim, run.owner)

        def withdrawn(result: object) -> None:
            if isinstance(result, Unavailable):
                if not run.is_dead:
                    self.owed.withdraw(verb)
                    self._pay_soon()
                self._step(run, self._failed(run))
                return
            self._step(run, cast(Event, result))

        def taken_back(result: object) -> None:
            if isinstance(result, Unavailable):
                withdrawn(result)
            else:
                self._ask(run, verb, withdrawn)

        run.seen_step = run.asked_step = self.world.steps
        self._drive(self.owed.take_back(run.claim), taken_back)

    def _sleep(self, run: Run, until_ms: int) -> None:
        fault = self.world.fault("retry")
        delay_ms = max(0, until_ms - self.world.now_ms)
        if fault:
            reason = self.world.chance.pick(("budget", "drain", "breaker"))
            delay_ms = delay_ms if reason == "breaker" else 0
            self.world.after(delay_ms, lambda: self._step(run, RetryRefused(reason, 1_000)))
        else:
            self.world.after(delay_ms, lambda: self._step(run, Woke()))

    # --- the platform -----------------------------------------------------------------------------------------

    def _send(self, run: Run, command: Send) -> None:
        if self.world.fault("breaker"):
            self.world.after(
                0, lambda: self._ended(run, NotSent(NotSentReason.BREAKER_OPEN, retry_after_ms=500))
            )
            return
        not_after_ms = run.lease_until_ms
        if command.not_after_ms is not None:
            not_after_ms = min(not_after_ms, command.not_after_ms)
        operation = run.guard.operation
        assert operation is not None

        def leaves() -> None:
            self.checks.sending(run.claim, operation, command.n, run.claimed_step)
            self.checks.owing(run.request, self.name, run.claimed_step)

        self.wire.send(
            run.request, command.key, not_after_ms, lambda result: self._ended(run, result), leaves=leaves
        )

    def _ended(self, run: Run, result: WireResult, *, is_shared: bool = False) -> None:
        if not (run.is_dead or is_shared):
            self.checks.ends += 1
        self._step(run, AttemptEnded(result, self.wall_ms(), is_shared=is_shared))

    def _repeat(self, run: Run, command: Repeat) -> None:
        def leaves() -> None:
            self.checks.forwarding(command.share, run.decided_ms)

        if command.share is None:
            self._forward(run, command, leaves)
            return
        share = command.share
        waiting = self.shared.get(share)
        if waiting is not None:
            waiting.append(lambda result: self._ended(run, result, is_shared=True))
            return
        followers: list[Callable[[WireResult], None]] = [lambda result: self._ended(run, result)]
        self.shared[share] = followers

        def came(result: WireResult) -> None:
            if self.shared.get(share) is followers:
                del self.shared[share]
            for follower in followers:
                follower(result)

        self.wire.send(run.request, command.key, command.not_after_ms, came, leaves=leaves)

    def _forward(self, run: Run, command: Repeat, leaves: Callable[[], None]) -> None:
        """D3."""
        sent = self.checks.sent_unrecorded(run.request, command.key, self.name)
        now_ms = self.wall_ms()
        doubt = AdmitUnrecorded(run.claim, command.key, Outcome.IN_DOUBT, None, now_ms, None, run.owner)
        self.checks.owes(sent, doubt)
        number = self.owed.sends(doubt)

        def came(result: WireResult) -> None:
            if not run.is_dead:
                self.owed.sent(number, self._admitted(run, command.key, result, sent))
                if len(self.owed):
                    self._pay_soon()
            self._ended(run, result)

        self.wire.send(run.request, command.key, command.not_after_ms, came, leaves=leaves)

    def _admitted(self, run: Run, key: Key, result: WireResult, sent: Unrecorded) -> AdmitUnrecorded | None:
        classifier = self.setting.classifier(run.request.kind)
        verdict = classifier.classify(result, after_doubt=True, received_wall_ms=self.wall_ms())
        if verdict.outcome in (Outcome.EXECUTED, Outcome.PENDING, Outcome.IN_DOUBT):
            status = result.response.status if isinstance(result, Answered) else None
            now_ms = self.wall_ms()
            verb = AdmitUnrecorded(run.claim, key, verdict.outcome, verdict.seen, now_ms, status, run.owner)
            self.checks.owes(sent, verb)
            return verb
        self.checks.written(sent)
        return None

    # --- following --------------------------------------------------------------------------------------------

    def _wait(self, run: Run, command: Wait) -> None:
        def woken(now: Operation | None) -> None:
            run.waiter = None
            run.seen_step = self.world.steps
            run.asked_step = self.world.steps
            event = _woken(now, command, self.world.now_ms)
            if isinstance(event, RunEnded) and event.answer.knowledge is Knowledge.NOT_EXECUTED:
                event = RunGone() if self.owed.knows_more(run.claim) else event
            self._step(run, event)

        run.waiter = self.store.wait(command.operation, command.until_ms, woken)

    # --- beside the calls -------------------------------------------------------------------------------------

    def _leased(self, run: Run, before_ms: int) -> None:
        run.renewed_ms = before_ms
        run.lease_until_ms = before_ms + LEASE_MS
        self.world.after(LEASE_MS // 3, lambda: self._renew(run, before_ms))

    def _renew(self, run: Run, renewed_ms: int) -> None:
        """P5: every third of the lease, while the run works and its process is not paused."""
        if run.is_dead or run not in self.runs or run.renewed_ms != renewed_ms:
            return
        operation = run.guard.operation
        if operation is None or not run.is_leading:
            return
        if run.is_paused:
            self.world.after(LEASE_MS // 3, lambda: self._renew(run, renewed_ms))
            return
        before_ms = self.world.now_ms

        def renewed(result: object) -> None:
            if run.is_dead or not run.is_leading:
                return
            if isinstance(result, Unavailable):
                self.world.after(LEASE_MS // 3, lambda: self._renew(run, renewed_ms))
            elif result is None:
                self._leased(run, before_ms)
            else:
                if isinstance(result, Operation) and result.state is State.IN_FLIGHT:
                    run.lease_until_ms = 0
                run.guard.lease_lost()

        self.store.ask(RenewLease(operation, LEASE_MS), renewed)

    def _pay_soon(self) -> None:
        if not self._paying:
            self._paying = True
            generation = self.generation
            self.world.after(self.world.chance.between(1, OWED_RETRY_MS), lambda: self._pay(generation))

    def _pay(self, generation: int) -> None:
        if generation != self.generation:
            return

        def paid(is_paid: object) -> None:
            self._paying = False
            if len(self.owed):
                self._pay_soon()

        self._drive(self.owed.pay(), paid)

    def _drive(self, steps: Coroutine[Verb[object], object, object], done: Callable[[object], None]) -> None:
        """The product's own coroutine, each step of the store's on its way in the world; a crash ends it."""
        generation = self.generation

        def go(result: object) -> None:
            if generation != self.generation:
                steps.close()
                return
            try:
                verb = steps.send(result)
            except StopIteration as ended:
                done(ended.value)
            except StoreUnavailable as error:
                done(Unavailable(error.may_have_happened))
            else:
                self.store.ask(verb, go)

        go(None)

    def crash(self) -> None:
        """SIGKILL: every guard is forgotten; what left for the bank is on its way."""
        self.world.note(f"{self.name} crashes")
        self.is_up = False
        self.generation += 1
        self.store.ledger.died()
        dead, self.runs = self.runs, []
        for run in dead:
            run.is_dead = True
            if run.waiter is not None:
                self.store.leave(run.waiter)
            if not run.answered_early:
                self.world.after(1, partial(_gone, run.answer))
        self.checks.lost_with(self.name)
        self.owed = self._owes_nothing()
        self.shared.clear()
        self._paying = False
        self.world.after(self.world.chance.between(100, 3_000), self._restart)

    def _restart(self) -> None:
        self.is_up = True


def settle_of(command: Settle) -> SettleRun:
    return SettleRun(
        command.operation, command.state, command.ended, command.answer, command.seen, command.released
    )


def _woken(now: Operation | None, command: Wait, now_ms: int) -> Event:
    """As the driver tells it: the run's own answer, the end of patience, or a run that is gone (P4)."""
    found = command.operation
    is_same_run = now is not None and now.fence == found.fence and now.state is State.IN_FLIGHT
    if now is not None and not is_same_run:
        for answer in (now.answer, now.answer_before):
            if answer is not None and answer.fence == found.fence:
                return RunEnded(now, answer)
    if now is not None and is_same_run and now_ms >= command.until_ms:
        return WaitTimedOut(now)
    return RunGone()


def _gone(answer: Answer) -> None:
    answer(None)


def _ignored(_: object) -> None:
    """The driver lets this write go too: lookups begin with the call's end, a failure is told once more."""
