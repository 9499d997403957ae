"""Builders and players for core's tables: a ledger over dictionaries, calls, answers, and guards played row
by row.

`play` gives a guard one event after the other and compares the command of each step. `Desk` is the smallest
world in which whole calls run: it does what the driver does, over a `Book`, with the platform's answers given.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from proxy.core.answers import Voice
from proxy.core.claim import Understood, make_claim
from proxy.core.classify import Classifier
from proxy.core.guard import Guard, GuardPolicy
from proxy.core.http import (
    Answered,
    Headers,
    MaybeSent,
    MaybeSentReason,
    NotSent,
    NotSentReason,
    Phase,
    RequestHead,
    Response,
    WireResult,
)
from proxy.core.messages import (
    AttemptEnded,
    Began,
    Claim,
    Command,
    Event,
    Fact,
    RecordAttempt,
    Repeat,
    Reply,
    Reserve,
    RunEnded,
    RunGone,
    Send,
    Settle,
    Sleep,
    Update,
    Wait,
    WaitTimedOut,
    Withdraw,
    Woke,
)
from proxy.core.model import (
    Fence,
    Handle,
    Now,
    Operation,
    OperationId,
    Owner,
    Scope,
    Seen,
    State,
    Subject,
    replace,
)
from proxy.core.reserve import ReserveOperation, WithdrawClaim
from proxy.core.routes import Match
from proxy.core.rules import Platform, Route
from proxy.core.settle import RecordNextAttempt, SettleRun, UpdateFromRepeat
from proxy.core.tables import Verb
from tests.core.payhub import CANCEL, CHECKOUT, CONFIRM, CREATE, DAY_MS, PAYHUB, REFUNDS, SCOPE, SECRETS

WALL_MS = 1_700_000_000_000
LEASE_MS = 10_000
WAIT_MS = 20_000
JSON_TYPE: Headers = ((b"Content-Type", b"application/json"),)

__all__ = ["CANCEL", "CHECKOUT", "CONFIRM", "CREATE", "DAY_MS", "PAYHUB", "REFUNDS"]

Answer = TypeVar("Answer")


@dataclass
class Book:
    """The ledger's rows over dictionaries, and the store's two clocks."""

    lease_ms: int = 1_000
    wall_ms: int = WALL_MS
    epoch: str = "boot-1"
    operations: dict[OperationId, Operation] = field(default_factory=dict)
    subjects: dict[Handle, Subject] = field(default_factory=dict)

    @property
    def now(self) -> Now:
        return Now(self.lease_ms, self.epoch, self.wall_ms)

    def pass_ms(self, ms: int) -> None:
        self.lease_ms += ms
        self.wall_ms += ms

    def run(self, verb: Verb[Answer]) -> Answer:
        return verb.apply(self, self.now)

    def operation(self, scope: Scope, operation: OperationId) -> Operation | None:
        return self.operations.get(operation)

    def put(self, operation: Operation) -> None:
        self.operations[operation.id] = operation

    def drop(self, operation: Operation) -> None:
        del self.operations[operation.id]

    def subject(self, scope: Scope, handle: Handle) -> Subject | None:
        return self.subjects.get(handle)

    def put_subject(self, subject: Subject) -> None:
        self.subjects[subject.handle] = subject

    @property
    def only(self) -> Operation:
        """The one operation of a ledger that holds one."""
        (operation,) = self.operations.values()
        return operation

    def keyed(self, key: str) -> Operation:
        (operation,) = (one for one in self.operations.values() if one.key == key)
        return operation


# --- calls --------------------------------------------------------------------------------------------------


def create(
    key: str | None = "K", *, order: str = "ORDER-1", amount: int = 10_000, route: Route = CREATE
) -> Claim:
    """A create call, understood."""
    body = {"merchant_order_no": order, "amount": amount, "currency": "USD"}
    return _claim(route, "/v1/payments", {}, key, body)


def confirm(key: str | None = "K", *, payment: str = "pay_1", route: Route = CONFIRM) -> Claim:
    path = route.template.replace("{payment_id}", payment)
    return _claim(route, path, {"payment_id": payment}, key, {"card": {"number": "4242"}})


def cancel(key: str | None = "K", *, payment: str = "pay_1") -> Claim:
    return confirm(key, payment=payment, route=CANCEL)


def refund(key: str | None = "K", *, number: str = "R-1", amount: int = 500, route: Route = REFUNDS) -> Claim:
    body = {"merchant_refund_no": number, "payment_id": "pay_1", "amount": amount, "currency": "USD"}
    return _claim(route, "/v1/refunds", {}, key, body)


def checkout(key: str = "K", *, order: str = "ORDER-1") -> Claim:
    body = {"merchant_order_no": order, "amount": 10_000, "currency": "USD"}
    return _claim(CHECKOUT, "/v1/checkout/sessions", {}, key, body)


def _claim(
    route: Route, path: str, params: dict[str, str], key: str | None, body: dict[str, object]
) -> Claim:
    headers = JSON_TYPE if key is None else (*JSON_TYPE, (b"Idempotency-Key", key.encode()))
    understood = make_claim(
        RequestHead(b"POST", path.encode(), headers),
        json.dumps(body).encode(),
        match=Match(route, params),
        path=path,
        platform=PAYHUB,
        scope=SCOPE,
        secrets=SECRETS,
        request_id="req-1",
    )
    assert isinstance(understood, Understood), understood
    return understood.claim


# --- what comes back ----------------------------------------------------------------------------------------


def answered(status: int, body: dict[str, object] | bytes = b"", headers: Headers = JSON_TYPE) -> Answered:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Answered(Response(status, headers, raw))


def payment(
    status: str = "succeeded",
    *,
    http: int = 200,
    version: int | None = 1,
    attempt_count: int | None = None,
    order: str = "ORDER-1",
    payment_id: str = "pay_1",
    failure: str | None = None,
) -> Answered:
    """The platform's payment object."""
    shown: dict[str, object] = {"id": payment_id, "status": status, "merchant_order_no": order}
    if version is not None:
        shown["version"] = version
    if attempt_count is not None:
        shown["attempt_count"] = attempt_count
    if failure is not None:
        shown["failure"] = {"attempt_id": failure}
    return answered(http, shown)


def error(http: int, code: str, headers: Headers = JSON_TYPE, *, related: str | None = None) -> Answered:
    detail: dict[str, object] = {"code": code, "message": code}
    if related is not None:
        detail["related_resource_id"] = related
    return answered(http, {"error": detail}, headers)


def read_timeout() -> MaybeSent:
    return MaybeSent(MaybeSentReason.TIMEOUT, Phase.WAITING)


def refused() -> NotSent:
    return NotSent(NotSentReason.REFUSED)


def too_late() -> NotSent:
    return NotSent(NotSentReason.TOO_LATE)


def breaker_open() -> NotSent:
    return NotSent(NotSentReason.BREAKER_OPEN, retry_after_ms=3_000)


UNPROCESSABLE = error(422, "validation_failed")
BUSY = error(429, "rate_limited")
DECLINED = error(402, "card_declined", related="pay_1")


def seen(
    status: str = "succeeded",
    *,
    version: int | None = 1,
    source: str = "event",
    attempt_count: int | None = None,
    failure: str | None = None,
    resource_id: str = "pay_1",
    body: bytes | None = b'{"id":"pay_1"}',
) -> Seen:
    """What an event or a lookup showed of a payment."""
    return Seen(
        status=status,
        is_final=status in ("succeeded", "failed", "canceled", "expired"),
        is_failure=status == "failed",
        source=source,
        seen_ms=WALL_MS,
        resource_id=resource_id,
        version=version,
        attempt_count=attempt_count,
        failure_attempt_id=failure,
        body=body,
    )


# --- guards, played -----------------------------------------------------------------------------------------

Check = Callable[[Command], bool]
NOW_MS = 50_000


def guard(
    claim: Claim,
    *,
    wait_timeout_ms: int = WAIT_MS,
    platform: Platform = PAYHUB,
    stored_bytes_max: int = 65_536,
) -> Guard:
    voice = Voice(platform=platform, claim=claim, stored_bytes_max=stored_bytes_max)
    policy = GuardPolicy(wait_timeout_ms=wait_timeout_ms)
    return Guard(claim, policy=policy, classifier=Classifier(claim.route, platform), voice=voice)


def play(played: Guard, *rows: tuple[Event, Check], step_ms: int = 10) -> tuple[Fact, ...]:
    """Each row: what happened, and what has to be ordered then. The facts of all steps."""
    facts: list[Fact] = []
    for number, (event, expected) in enumerate(rows):
        step = played.step(event, NOW_MS + number * step_ms)
        facts += step.facts
        assert expected(step.command), f"row {number + 1}: {step.command}"
    return tuple(facts)


def ends(result: WireResult) -> AttemptEnded:
    return AttemptEnded(result, WALL_MS)


def reserves() -> Check:
    return lambda command: isinstance(command, Reserve)


def sends(n: int) -> Check:
    return lambda command: isinstance(command, Send) and command.n == n


def sleeps(*, at_least_ms: int = 0) -> Check:
    return lambda command: isinstance(command, Sleep) and command.until_ms >= at_least_ms


def records() -> Check:
    return lambda command: isinstance(command, RecordAttempt)


def settles(state: State, *, released: bool = False) -> Check:
    return lambda command: (
        isinstance(command, Settle) and command.state is state and command.released is released
    )


def repeats() -> Check:
    return lambda command: isinstance(command, Repeat)


def updates(state: State) -> Check:
    return lambda command: isinstance(command, Update) and command.state is state


def waits() -> Check:
    return lambda command: isinstance(command, Wait)


def withdraws() -> Check:
    return lambda command: isinstance(command, Withdraw)


def replies(
    status: int,
    knowledge: str | None,
    *,
    code: str | None = None,
    replayed: bool = False,
    given: bool = False,
) -> Check:
    """A reply with this status, knowledge and error code. `given`: it shows a failure that K3 counts."""

    def fits(command: Command) -> bool:
        return (
            isinstance(command, Reply)
            and command.answer.status == status
            and command.marks.knowledge == knowledge
            and command.marks.replayed is replayed
            and (command.confirm_delivery is not None) is given
            and (code is None or code_of(command) == code)
        )

    return fits


def code_of(reply: Reply) -> str | None:
    """The error code of a reply in the envelope shape."""
    told = json.loads(reply.answer.body or b"{}").get("error", {})
    return str(told["code"]) if "code" in told else None


def last_answer(reply: Reply) -> dict[str, object]:
    told: dict[str, object] = json.loads(reply.answer.body)["error"].get("last_answer", {})
    return told


# --- whole calls --------------------------------------------------------------------------------------------


@dataclass
class Desk:
    """Whole calls over a book: what the driver does, with the platform's answers given beforehand."""

    book: Book = field(default_factory=Book)
    calls: int = 0
    sent: list[str] = field(default_factory=list)

    def call(
        self,
        claim: Claim,
        answers: Iterable[WireResult | Callable[[], WireResult]] = (),
        *,
        meanwhile: Callable[[], object] | None = None,
    ) -> Reply:
        """One call, to its reply. `meanwhile` happens the first time that it has to wait for another's run."""
        self.calls += 1
        owner = Owner(f"desk:{self.calls}")
        coming = iter(answers)
        led = guard(claim)
        event: Event = Began(claim)
        while True:
            command = led.step(event, self.book.lease_ms).command
            if isinstance(command, Reply):
                return command
            if isinstance(command, Send | Repeat):
                self.sent.append(command.key)
                came = next(coming)
                self.book.pass_ms(50)
                event = AttemptEnded(came() if callable(came) else came, self.book.wall_ms)
            elif isinstance(command, Wait):
                if meanwhile is not None:
                    meanwhile()
                event = self._waited(command)
            else:
                event = self._write(command, claim, owner)

    def _write(self, command: Command, claim: Claim, owner: Owner) -> Event:
        match command:
            case Reserve():
                return self.book.run(ReserveOperation(claim, owner, LEASE_MS))
            case RecordAttempt(operation, ended):
                return self.book.run(RecordNextAttempt(operation, ended, LEASE_MS))
            case Settle():
                return self.book.run(settle_verb(command))
            case Update():
                return self.book.run(update_verb(command))
            case Withdraw():
                return self.book.run(WithdrawClaim(claim, owner))
            case Sleep(until_ms):
                self.book.pass_ms(max(0, until_ms - self.book.lease_ms))
                return Woke()
            case _:
                raise AssertionError(command)

    def _waited(self, command: Wait) -> Event:
        now = self.book.operations.get(command.operation.id)
        for answer in (now.answer, now.answer_before) if now else ():
            if now and answer and answer.fence == command.operation.fence:
                return RunEnded(now, answer)
        if now and now.state is State.IN_FLIGHT and now.fence == command.operation.fence:
            self.book.pass_ms(max(0, command.until_ms - self.book.lease_ms))
            if not now.lease_is_over(self.book.now):
                return WaitTimedOut(now)
        return RunGone()


def settle_verb(command: Settle) -> SettleRun:
    return SettleRun(
        command.operation, command.state, command.ended, command.answer, command.seen, command.released
    )


def update_verb(command: Update) -> UpdateFromRepeat:
    return UpdateFromRepeat(
        command.operation,
        command.state,
        command.ended,
        command.answer,
        command.seen,
        is_shared=command.is_shared,
    )


def reserve(book: Book, claim: Claim, owner: str = "a") -> object:
    """What reserving answers."""
    return book.run(ReserveOperation(claim, Owner(owner), LEASE_MS))


def led(book: Book, claim: Claim, owner: str = "a") -> Operation:
    """The operation, claimed."""
    found = reserve(book, claim, owner)
    operation = getattr(found, "operation", None)
    assert type(found).__name__ == "Reserved" and isinstance(operation, Operation), found
    return operation


def with_fence(operation: Operation, fence: int) -> Operation:
    return replace(operation, fence=Fence(fence))
