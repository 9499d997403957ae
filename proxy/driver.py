"""The driver: the only place where a decision becomes an effect (architecture section 1).

One guarded call is one loop: the guard orders, the driver does and says what happened, until the guard
replies. The loop runs in the call's own task, which no caller's hang-up cancels (H6).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import assert_never

from proxy.core.admit import AdmitUnrecorded
from proxy.core.answers import Voice
from proxy.core.budget import Breaker, RetryBudget
from proxy.core.classify import Classifier
from proxy.core.guard import Guard, GuardPolicy
from proxy.core.http import (
    Answered,
    MaybeSent,
    MaybeSentReason,
    NotSent,
    NotSentReason,
    Phase,
    WireResult,
)
from proxy.core.messages import (
    AttemptEnded,
    Began,
    Claim,
    Event,
    Fact,
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
from proxy.core.model import Key, Knowledge, Operation, OperationId, Outcome, Seen, State
from proxy.core.reserve import ReserveOperation, WithdrawClaim
from proxy.core.rules import Platform
from proxy.core.settle import RecordNextAttempt, RenewLease, SettleRun, UpdateFromRepeat
from proxy.core.tables import Verb
from proxy.decoders import ALL_DECODERS
from proxy.owed import OwedWrites
from proxy.ports import Clock, Store, StoreUnavailable, Upstream
from proxy.run import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverSettings:
    """What the driver needs of the configuration, besides the guard's own policy."""

    lease_ms: int
    wait_timeout_ms: int
    stored_bytes_max: int


@dataclass(slots=True)
class Driver:
    """Performs the guard's commands against the store, the platform and the clock."""

    store: Store
    upstream: Upstream
    clock: Clock
    platform: Platform
    settings: DriverSettings
    budget: RetryBudget | None
    breaker: Breaker | None
    instance: str
    tell: Callable[[Fact, Run], None]
    owed: OwedWrites
    runs: dict[int, Run] = field(default_factory=dict)
    _ids: itertools.count[int] = field(default_factory=itertools.count)
    _shared: dict[OperationId, asyncio.Future[WireResult]] = field(default_factory=dict)
    _drain: asyncio.Event = field(default_factory=asyncio.Event)
    _idle: asyncio.Event = field(default_factory=asyncio.Event)
    _gave_up: bool = False
    _classifiers: dict[str, Classifier] = field(default_factory=dict)
    _policy: GuardPolicy | None = None

    def guard_of(self, claim: Claim) -> Guard:
        """A guard for one call."""
        route = claim.route
        classifier = self._classifiers.get(route.name)
        if classifier is None:
            classifier = self._classifiers[route.name] = Classifier(route, self.platform, ALL_DECODERS)
        policy = self._policy or GuardPolicy(wait_timeout_ms=self.settings.wait_timeout_ms)
        self._policy = policy
        voice = Voice(platform=self.platform, claim=claim, stored_bytes_max=self.settings.stored_bytes_max)
        return Guard(claim, policy=policy, classifier=classifier, voice=voice)

    async def run(self, run: Run) -> Reply:
        """Drive one call from its claim to its reply."""
        number = next(self._ids)
        self.runs[number] = run
        self._idle.clear()
        if self.budget is not None:
            self.budget.call(self.clock.monotonic_ms())
        event: Event = Began(run.claim)
        try:
            while True:
                step = run.guard.step(event, self.clock.monotonic_ms())
                for fact in step.facts:
                    self.tell(fact, run)
                if isinstance(step.command, Reply):
                    return step.command
                event = await self._perform(run, step.command)
        finally:
            del self.runs[number]
            if not self.runs:
                self._idle.set()

    async def _perform(
        self,
        run: Run,
        command: Reserve | Send | Repeat | Sleep | RecordAttempt | Settle | Update | Withdraw | Wait,
    ) -> Event:
        match command:
            case Reserve(claim):
                run.claim = claim
                return await self._reserve(run)
            case Send():
                return await self._send(run, command)
            case RecordAttempt(operation, ended):
                return await self._hold(
                    run,
                    RecordNextAttempt(operation, ended, self.settings.lease_ms, run.request_id),
                )
            case Settle():
                return await self._write(
                    run,
                    SettleRun(
                        command.operation,
                        command.state,
                        command.ended,
                        command.answer,
                        command.seen,
                        command.released,
                    ),
                )
            case Sleep():
                return await self._sleep(run, command)
            case Repeat():
                return await self._repeat(run, command)
            case Update():
                return await self._write(
                    run,
                    UpdateFromRepeat(
                        command.operation,
                        command.state,
                        command.ended,
                        command.answer,
                        command.seen,
                        run.request_id,
                        command.is_shared,
                    ),
                )
            case Withdraw():
                return await self._withdraw(run, WithdrawClaim(run.claim, run.owner))
            case Wait():
                return await self._wait(run, command)
            case _:
                assert_never(command)

    # --- the store ------------------------------------------------------------------------------------------

    async def _reserve(self, run: Run) -> Event:
        run.arrived = run.arrived or self.store.now()
        verb = ReserveOperation(run.claim, run.owner, self.settings.lease_ms, run.arrived)
        if self.owed.is_full:
            return StoreFailed("too many writes wait for the store", lease_held=False, may_forward=False)
        before_ms = self.clock.monotonic_ms()
        try:
            await self.owed.take_back(run.claim)
        except StoreUnavailable as error:
            return StoreFailed(str(error), lease_held=False)
        try:
            event = await self.store.transact(verb)
        except StoreUnavailable as error:
            if error.may_have_happened:
                self.owed.withdraw(WithdrawClaim(run.claim, run.owner))
            return StoreFailed(str(error), lease_held=False)
        if isinstance(event, Reserved):
            self._leased(run, before_ms)
        return event

    async def _hold(self, run: Run, verb: RecordNextAttempt) -> Event:
        """A write that also extends the lease, measured from before it was asked for."""
        before_ms = self.clock.monotonic_ms()
        event = await self._transact(run, verb)
        if not isinstance(event, StoreFailed):
            self._leased(run, before_ms)
        return event

    async def _write(self, run: Run, verb: SettleRun | UpdateFromRepeat) -> Event:
        """A write that is owed to the ledger: if the store fails now, it is tried until it holds (D3).

        What was sent for the same key without the store comes first: with it, the run can't end as not executed.
        """
        try:
            if verb.state is State.NOT_EXECUTED:
                await self.owed.take_back(run.claim)
            event = await self._transact(run, verb)
        except StoreUnavailable as error:
            event = self._failed(run, error)
        if isinstance(event, StoreFailed):
            self.owed.add(verb)
        return event

    async def _withdraw(self, run: Run, verb: WithdrawClaim) -> Event:
        """Take an unused claim back; owed if the store fails now, or it would end as unknown.

        What was sent for the same key without the store comes first: with it, nobody is told "not executed".
        """
        try:
            await self.owed.take_back(run.claim)
            event: Event = await self._transact(run, verb)
        except StoreUnavailable as error:
            event = self._failed(run, error)
        if isinstance(event, StoreFailed):
            self.owed.withdraw(verb)
        return event

    async def _transact(self, run: Run, verb: Verb[Event]) -> Event:
        try:
            return await self.store.transact(verb)
        except StoreUnavailable as error:
            return self._failed(run, error)

    def _failed(self, run: Run, error: StoreUnavailable) -> StoreFailed:
        return StoreFailed(str(error), lease_held=self.clock.monotonic_ms() < run.lease_until_ms)

    def _leased(self, run: Run, before_ms: int) -> None:
        run.renewed_ms = before_ms
        run.lease_until_ms = before_ms + self.settings.lease_ms

    async def _wait(self, run: Run, command: Wait) -> Event:
        """Follow another call's run; never for ever, and never another run's answer (P4)."""
        timeout_ms = max(0, command.until_ms - self.clock.monotonic_ms())
        started_us = self.clock.monotonic_us()
        try:
            now = await self.store.wait(command.operation, timeout_ms=timeout_ms)
        except StoreUnavailable as error:
            return StoreFailed(str(error), lease_held=False)
        except asyncio.CancelledError:
            if not self._gave_up:
                raise
            return WaitTimedOut(command.operation)
        finally:
            run.away_us += self.clock.monotonic_us() - started_us
        if now is None or now.fence != command.operation.fence or now.state is not State.IN_FLIGHT:
            ended = _answer_of(now, command.operation)
            if ended is None or (
                ended.answer.knowledge is Knowledge.NOT_EXECUTED and self.owed.knows_more(run.claim)
            ):
                return RunGone()  # judged again, once the ledger has what this host sent without it (D3)
            return ended
        if self.clock.monotonic_ms() >= command.until_ms:
            return WaitTimedOut(now)
        return RunGone()

    # --- the platform ---------------------------------------------------------------------------------------

    async def _send(self, run: Run, command: Send) -> Event:
        not_after_ms = run.lease_until_ms
        if command.not_after_ms is not None:
            not_after_ms = min(not_after_ms, command.not_after_ms)
        result = await self._attempt(
            run, command.key, timeout_ms=command.timeout_ms, not_after_ms=not_after_ms
        )
        return AttemptEnded(result, self.store.now().wall_ms, run.secret)

    async def _attempt(self, run: Run, key: Key, *, timeout_ms: int, not_after_ms: int) -> WireResult:
        """One attempt on the wire, if the breaker allows it (R7): a repeat's caller then gets what is stored.

        A drain that gives up on it leaves it in doubt, never unanswered (O3).
        """
        blocked_ms = self.breaker.allows(self.clock.monotonic_ms()) if self.breaker else None
        if blocked_ms is not None:
            why = "the circuit breaker is open"
            return NotSent(NotSentReason.BREAKER_OPEN, why, retry_after_ms=blocked_ms)
        request = run.keyed(key)
        started_us = self.clock.monotonic_us()
        try:
            result = await self.upstream.send(
                request,
                timeout_ms=timeout_ms,
                not_after_ms=not_after_ms,
                fresh=run.claim.route.fresh_connection,
            )
        except asyncio.CancelledError:
            if not self._gave_up:
                raise
            result = INTERRUPTED
        spent_us = self.clock.monotonic_us() - started_us
        run.away_us += spent_us
        if self.breaker is not None:
            self.breaker.ended(result, self.clock.monotonic_ms())
        run.attempt_us = spent_us
        return result

    async def _repeat(self, run: Run, command: Repeat) -> Event:
        if command.share is None:
            return await self._forward(run, command)
        shared = self._shared.get(command.share)
        is_shared = shared is not None
        if shared is None:
            shared = asyncio.get_running_loop().create_future()
            self._shared[command.share] = shared
            try:
                result = await self._attempt(
                    run, command.key, timeout_ms=command.timeout_ms, not_after_ms=command.not_after_ms
                )
            except BaseException:
                shared.set_result(INTERRUPTED)
                raise
            finally:
                del self._shared[command.share]
            shared.set_result(result)
        else:
            started_us = self.clock.monotonic_us()
            result = await asyncio.shield(shared)
            run.away_us += self.clock.monotonic_us() - started_us
        return AttemptEnded(result, self.store.now().wall_ms, run.secret, is_shared)

    async def _forward(self, run: Run, command: Repeat) -> Event:
        """D3: send once without the store. It is in doubt from now on, until it is known how it ended."""
        doubt = self._unrecorded(run, command.key, Outcome.IN_DOUBT, None, None)
        number = self.owed.sends(doubt)
        owed: AdmitUnrecorded | None = doubt
        try:
            result = await self._attempt(
                run, command.key, timeout_ms=command.timeout_ms, not_after_ms=command.not_after_ms
            )
            owed = self._admitted(run, command.key, result)
        finally:
            self.owed.sent(number, owed)
        return AttemptEnded(result, self.store.now().wall_ms, run.secret)

    def _admitted(self, run: Run, key: Key, result: WireResult) -> AdmitUnrecorded | None:
        """D3: what was sent without the store is kept and written when the store returns."""
        classifier = self._classifiers[run.claim.route.name]
        verdict = classifier.classify(
            result, after_doubt=True, received_wall_ms=self.store.now().wall_ms, secret=run.secret
        )
        if verdict.outcome not in (Outcome.EXECUTED, Outcome.PENDING, Outcome.IN_DOUBT):
            return None  # it left nothing behind that the ledger would not say anyway
        status = result.response.status if isinstance(result, Answered) else None
        return self._unrecorded(run, key, verdict.outcome, verdict.seen, status)

    def _unrecorded(
        self, run: Run, key: Key, outcome: Outcome, seen: Seen | None, status: int | None
    ) -> AdmitUnrecorded:
        return AdmitUnrecorded(run.claim, key, outcome, seen, self.store.now().wall_ms, status, run.owner)

    async def _sleep(self, run: Run, command: Sleep) -> Event:
        """Back off. The budget is asked before, so that sleepers count; a drain ends it at once (O3)."""
        now_ms = self.clock.monotonic_ms()
        if self._drain.is_set():
            return RetryRefused("drain")
        if self.budget is not None and not self.budget.withdraw(now_ms):
            return RetryRefused("budget")
        started_us = self.clock.monotonic_us()
        try:
            async with asyncio.timeout(max(0, command.until_ms - now_ms) / 1000):
                await self._drain.wait()
        except TimeoutError:
            pass
        finally:
            run.away_us += self.clock.monotonic_us() - started_us
        if self._drain.is_set():
            return RetryRefused("drain")
        if self.breaker is not None:
            # The attempt itself takes the trial: taken here, it would find it taken.
            blocked_ms = self.breaker.blocked_ms(self.clock.monotonic_ms())
            if blocked_ms is not None:
                return RetryRefused("breaker", blocked_ms)
        return Woke()

    # --- beside the calls -----------------------------------------------------------------------------------

    async def renew_leases(self) -> None:
        """Renew every lease that a third of its time has passed for (P5). One pass; the app repeats it."""
        now_ms = self.clock.monotonic_ms()
        due = [
            run
            for run in self.runs.values()
            if run.lease_until_ms and now_ms - run.renewed_ms >= self.settings.lease_ms // 3
        ]
        await asyncio.gather(*(self._renew(run, now_ms) for run in due))

    async def _renew(self, run: Run, now_ms: int) -> None:
        operation = run.guard.operation
        if operation is None or not run.is_leading:
            return
        try:
            current = await self.store.transact(RenewLease(operation, self.settings.lease_ms))
        except StoreUnavailable:
            return  # the lease runs on; past its end nothing is started: `not_after` holds the wire to that
        if current is None:
            self._leased(run, now_ms)
        elif current.state is State.IN_FLIGHT:
            run.lease_until_ms = 0
            run.guard.lease_lost()
        else:
            run.guard.lease_lost()  # settled by evidence: finish this attempt, start no other (U4)

    @property
    def is_draining(self) -> bool:
        """Whether no new call is taken (O3)."""
        return self._drain.is_set()

    def start_drain(self) -> None:
        """Back-offs end at once; attempts in flight go on (O3)."""
        self._drain.set()

    async def runs_ended(self, *, within_ms: int) -> bool:
        """Wait until no call runs; False when the time is up first."""
        try:
            async with asyncio.timeout(within_ms / 1000):
                while self.runs:
                    await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def give_up(self) -> None:
        """The drain's time is over: what is still on the wire is in doubt, and every caller is answered."""
        self._gave_up = True
        for run in self.runs.values():
            if run.task is not None:
                run.task.cancel()


INTERRUPTED = MaybeSent(MaybeSentReason.GIVEN_UP, Phase.WAITING, "the process gave the attempt up")


def _answer_of(now: Operation | None, found: Operation) -> RunEnded | None:
    """The answer of the run that the follower was bound to, by its fence (P4)."""
    if now is None:
        return None
    for answer in (now.answer, now.answer_before):
        if answer is not None and answer.fence == found.fence:
            return RunEnded(now, answer)
    return None
