"""Any history of steps gives the same answers and the same ledger in a real store as in the reference one.

The simulator proves the rules over the reference store; this ties the real ones to it.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings, target
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from proxy.core.delivery import DeliverFailure
from proxy.core.evidence import ApplyEvidence
from proxy.core.messages import AttemptNote, Reserved
from proxy.core.model import Handle, Now, Operation, Outcome, Owner, Scope, Seen, State
from proxy.core.reserve import ReserveOperation, WithdrawClaim
from proxy.core.settle import RecordNextAttempt, RenewLease, SettleRun
from proxy.core.tables import Tables, Verb
from proxy.ports import Query, Store
from proxy.stores import make_store
from proxy.stores.memory import MemoryLedger
from tests.contract.conftest import TIMEOUT_MS, emptied
from tests.contract.values import HandClock, LiveClock, claim, settled
from tests.core.payhub import SCOPE
from tests.stores.redis_server import Server

Answer = TypeVar("Answer")
KEYS = st.sampled_from(["K-1", "K-2", "K-3"])
ORDERS = st.sampled_from(["ORDER-1", "ORDER-2"])
OWNERS = st.sampled_from(["a", "b"])
AMOUNTS = st.sampled_from(["aa", "aa", "bb"])
LEASES = st.sampled_from([0, 600_000])  # over at once, or not within the test
STATUSES = st.sampled_from(["succeeded", "failed", "processing"])
IN_DOUBT = AttemptNote(outcome=Outcome.IN_DOUBT, status=504, code=None, detail="", ended_ms=5)


@dataclass(frozen=True, slots=True)
class Timed:
    """The verb, and the time that the store gave it."""

    verb: Verb[Any]
    given: list[Now] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.verb.name

    @property
    def scope(self) -> Scope:
        return self.verb.scope

    def apply(self, tables: Tables, now: Now) -> Any:
        self.given.append(now)
        return self.verb.apply(tables, now)


class SetClock(HandClock):
    """Says what the real store's time was."""

    def set(self, now: Now) -> None:
        self.boot, self.wall, self.id = now.lease_ms, now.wall_ms, now.epoch


class SameHistory(RuleBasedStateMachine):
    """Steps as callers, leaders, zombies and the resolver make them, in any order."""

    store_url = ""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.clock = HandClock()
        self.reference_clock = SetClock()
        self.reference = MemoryLedger(self.reference_clock)
        self.runs: list[Operation] = []
        self.steps = 0

    @initialize()
    def open(self) -> None:
        has_own_clock = self.store_url.startswith("redis")
        clock = LiveClock(self.clock) if has_own_clock else self.clock
        self.store: Store = make_store(self.url(), clock=clock, timeout_ms=TIMEOUT_MS)
        self.await_(self.store.open())

    def url(self) -> str:
        return self.store_url

    def teardown(self) -> None:
        self.await_(self.store.close())
        self.runner.close()
        target(float(self.steps))

    def await_(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        return self.runner.run(work)

    def step(self, verb: Verb[Answer]) -> Answer:
        """One step in both ledgers, at the same time of day."""
        timed = Timed(verb)
        answer: Answer = self.await_(self.store.transact(timed))
        self.reference_clock.set(timed.given[-1])
        assert self.reference.run(verb) == answer
        self.steps += 1
        return answer

    def any_run(self, n: int) -> Operation | None:
        """A run that once led; it may have been replaced since."""
        return self.runs[n % len(self.runs)] if self.runs else None

    @rule(key=KEYS, order=ORDERS, owner=OWNERS, amount=AMOUNTS, lease_ms=LEASES)
    def reserve(self, key: str, order: str, owner: str, amount: str, lease_ms: int) -> None:
        answer = self.step(ReserveOperation(claim(key, order=order, amount=amount), Owner(owner), lease_ms))
        if isinstance(answer, Reserved):
            self.runs.append(answer.operation)

    @rule(key=KEYS, order=ORDERS, owner=OWNERS)
    def withdraw(self, key: str, order: str, owner: str) -> None:
        self.step(WithdrawClaim(claim(key, order=order), Owner(owner)))

    @rule(n=st.integers(0, 9), lease_ms=LEASES)
    def record_attempt(self, n: int, lease_ms: int) -> None:
        run = self.any_run(n)
        if run is not None:
            self.step(RecordNextAttempt(run, IN_DOUBT, lease_ms))

    @rule(n=st.integers(0, 9), lease_ms=LEASES)
    def renew(self, n: int, lease_ms: int) -> None:
        run = self.any_run(n)
        if run is not None:
            self.step(RenewLease(run, lease_ms))

    @rule(n=st.integers(0, 9), status=STATUSES)
    def settle_definite(self, n: int, status: str) -> None:
        run = self.any_run(n)
        if run is not None:
            self.step(settled(run, 5, status=status))

    @rule(
        n=st.integers(0, 9),
        state=st.sampled_from([State.UNKNOWN, State.NOT_EXECUTED]),
        released=st.booleans(),
    )
    def settle_open(self, n: int, state: State, released: bool) -> None:
        run = self.any_run(n)
        if run is not None:
            self.step(SettleRun(run, state, None, None, None, released=released))

    @rule(n=st.integers(0, 9))
    def deliver(self, n: int) -> None:
        run = self.any_run(n)
        if run is not None:
            self.step(DeliverFailure(SCOPE, run.id, run.fence))

    @rule(order=ORDERS, status=STATUSES, version=st.integers(1, 4))
    def evidence(self, order: str, status: str, version: int) -> None:
        seen = Seen(
            status=status,
            is_final=status != "processing",
            is_failure=status == "failed",
            source="event",
            seen_ms=7,
            resource_id="pay_1",
            version=version,
        )
        self.step(ApplyEvidence(SCOPE, (Handle(f"order:{order}"),), seen))

    @invariant()
    def ledgers_are_equal(self) -> None:
        if not self.steps:
            return
        for query in (Query(), Query(knowledge="unknown", oldest_first=True), Query(subject="order:ORDER-1")):
            assert self.await_(self.store.find(query)) == self.reference.find(query)
        assert self.await_(self.store.holdings()) == self.reference.holdings()


STEPS = settings(
    max_examples=25,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def test_sqlite_and_the_reference_have_one_history(tmp_path: Path) -> None:
    class OnSqlite(SameHistory):
        def url(self) -> str:
            return f"sqlite:{Path(tempfile.mkdtemp(dir=tmp_path)) / 'ledger.db'}"

    run_state_machine_as_test(OnSqlite, settings=STEPS)


def test_redis_and_the_reference_have_one_history(valkey: Server) -> None:
    class OnRedis(SameHistory):
        store_url = valkey.url

        def url(self) -> str:
            emptied(valkey)
            return valkey.url

    run_state_machine_as_test(OnRedis, settings=STEPS)
