"""What the contract suite plays with: a clock moved by hand, operations, claims, verbs of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from proxy.clock import SystemClock
from proxy.core.keys import operation_id
from proxy.core.messages import AttemptNote, Claim, Reserved
from proxy.core.model import (
    Fence,
    Fingerprint,
    Handle,
    Key,
    Knowledge,
    Now,
    Operation,
    OperationId,
    Outcome,
    Owner,
    Scope,
    Seen,
    State,
    StoredAnswer,
    Subject,
    replace,
)
from proxy.core.reserve import ReserveOperation
from proxy.core.settle import SettleRun
from proxy.core.tables import Tables
from proxy.ports import Store
from tests.core.payhub import CREATE, SCOPE

LEASE_MS = 10_000
START_MS = 1_700_000_000_000


class HandClock:
    """A clock that stands still until the test moves it."""

    def __init__(self) -> None:
        self.boot = 1_000_000
        self.wall = START_MS
        self.id = "boot-1"

    def advance(self, ms: int) -> None:
        self.boot += ms
        self.wall += ms

    def monotonic_ms(self) -> int:
        return self.boot

    def monotonic_us(self) -> int:
        return self.boot * 1_000

    def boot_ms(self) -> int:
        return self.boot

    def wall_ms(self) -> int:
        return self.wall

    def boot_id(self) -> str:
        return self.id


class LiveClock(SystemClock):
    """For stores that live by their server's clock: real time inside the process, the test's boot clock."""

    def __init__(self, hand: HandClock) -> None:
        super().__init__()
        self._hand = hand

    def boot_ms(self) -> int:
        return self._hand.boot

    def boot_id(self) -> str:
        return self._hand.id


def operation(
    name: str, *, scope: Scope = SCOPE, state: State = State.UNKNOWN, at_ms: int = START_MS
) -> Operation:
    """An operation to be put as it is; tests `replace` what they are about."""
    return Operation(
        id=operation_id(scope, "POST", "/v1/payments", Key(name)),
        scope=scope,
        route="create_payment",
        method="POST",
        path="/v1/payments",
        key=Key(name),
        fingerprint=Fingerprint("s1", "payhub 1", {"amount": "aa"}),
        state=state,
        fence=Fence(1),
        created_ms=at_ms,
        updated_ms=at_ms,
        subject=Handle(f"order:{name}"),
        handles=(Handle(f"order:{name}"),),
        amount=1_000,
        currency="CNY",
        first_attempt_ms=at_ms,
        doubt=state is State.UNKNOWN,
        lease_epoch="another",
    )


def claim(name: str, *, scope: Scope = SCOPE, order: str | None = None, amount: str = "aa") -> Claim:
    """A call to create a payment with this key."""
    handle = Handle(f"order:{order or name}")
    return Claim(
        scope=scope,
        route=CREATE,
        method="POST",
        path="/v1/payments",
        key=Key(name),
        key_injected=False,
        fingerprints=(Fingerprint("s1", "payhub 1", {"amount": amount}),),
        subject=handle,
        handles=(handle,),
        amount=1_000,
        currency="CNY",
        request_id="r-1",
    )


def reserve(
    name: str, owner: str = "me", *, lease_ms: int = LEASE_MS, scope: Scope = SCOPE
) -> ReserveOperation:
    return ReserveOperation(claim(name, scope=scope), Owner(owner), lease_ms)


def settled(leading: Operation, at_ms: int, *, status: str = "succeeded") -> SettleRun:
    """The verb that ends a run with the platform's answer."""
    body = b'{"id":"pay_1","status":"succeeded"}'
    return SettleRun(
        leading,
        State.EXECUTED,
        AttemptNote(Outcome.EXECUTED, 201, None, "", at_ms),
        StoredAnswer(
            fence=leading.fence,
            status=201,
            headers=((b"Content-Type", b"application/json"),),
            body=body,
            ended_ms=at_ms,
            from_platform=True,
            knowledge=Knowledge.EXECUTED,
        ),
        Seen(
            status=status,
            is_final=True,
            is_failure=status == "failed",
            source="answer",
            seen_ms=at_ms,
            resource_id=f"pay_{leading.key}",
            version=1,
            body=body,
        ),
    )


async def lead(store: Store, name: str, *, owner: str = "me", lease_ms: int = LEASE_MS) -> Operation:
    """Reserve a key that must be free."""
    answer = await store.transact(reserve(name, owner, lease_ms=lease_ms))
    assert isinstance(answer, Reserved)
    return answer.operation


@dataclass(frozen=True, slots=True)
class PutRows:
    """Write rows as they are."""

    rows: tuple[Operation | Subject, ...]
    name: str = "put"

    @property
    def scope(self) -> Scope:
        return self.rows[0].scope

    def apply(self, tables: Tables, now: Now) -> Now:
        for row in self.rows:
            if isinstance(row, Operation):
                tables.put(row)
            else:
                tables.put_subject(row)
        return now


@dataclass(frozen=True, slots=True)
class Bump:
    """Add one to the operation's fence; `then` is called after the put, to fail it or to look."""

    scope: Scope
    operation: OperationId
    then: Callable[[], None] = lambda: None
    name: str = "bump"

    def apply(self, tables: Tables, now: Now) -> int:
        found = tables.operation(self.scope, self.operation)
        assert found is not None
        raised = replace(found, fence=Fence(found.fence + 1))
        tables.put(raised)
        self.then()
        return raised.fence


@dataclass(frozen=True, slots=True)
class ReadRow:
    """The operation and the subject as a verb sees them."""

    scope: Scope
    operation: OperationId
    handle: Handle
    name: str = "read"

    def apply(self, tables: Tables, now: Now) -> tuple[Operation | None, Subject | None]:
        return tables.operation(self.scope, self.operation), tables.subject(self.scope, self.handle)
