"""Operations and rows that the guard's tables begin with."""

from __future__ import annotations

from proxy.core.messages import (
    Began,
    Reserved,
)
from proxy.core.model import Knowledge, Operation, Outcome, State, StoredAnswer, replace
from tests.core.payhub import injecting
from tests.core.play import (
    CONFIRM,
    Book,
    confirm,
    create,
    led,
    reserves,
    seen,
    sends,
)

CLAIM = create()
COUNTED = confirm(key=None, route=injecting(CONFIRM))


def claimed(**changes: object) -> Operation:
    """The operation as a reserve leaves it."""
    return replace(led(Book(), CLAIM), **changes)


def doubtful() -> Operation:
    """Claimed again after an attempt in doubt."""
    return claimed(doubt=True, attempt_count=2)


def ended(operation: Operation, state: State, **changes: object) -> Operation:
    return replace(operation, state=state, owner=None, **changes)


def answer_of(
    operation: Operation,
    knowledge: Knowledge,
    *,
    status: int = 429,
    outcome: Outcome = Outcome.NOT_EXECUTED,
    body: bytes | None = b"{}",
) -> StoredAnswer:
    return StoredAnswer(
        fence=operation.fence,
        status=status,
        headers=((b"Content-Type", b"application/json"),),
        body=body,
        ended_ms=0,
        from_platform=True,
        knowledge=knowledge,
        outcome=outcome,
    )


START = ((Began(CLAIM), reserves()), (Reserved(claimed()), sends(1)))
IN_DOUBT_START = ((Began(CLAIM), reserves()), (Reserved(doubtful()), sends(2)))


def executed_with_answer(claim_operation: Operation | None = None, **changes: object) -> Operation:
    operation = claim_operation or claimed()
    stored = answer_of(operation, Knowledge.EXECUTED, status=201, outcome=Outcome.EXECUTED)
    changes.setdefault("newest", seen(source="answer", version=3))
    return ended(operation, State.EXECUTED, answer=stored, version=3, status="succeeded", **changes)
