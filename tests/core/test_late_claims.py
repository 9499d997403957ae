"""A call that came while the leader's run went on, and whose claim reached the store after its end (P4)."""

from __future__ import annotations

from proxy.core.messages import AttemptNote, Conflicting, Recorded, RunEnded
from proxy.core.model import Knowledge, Now, Operation, Outcome, Owner, Seen, State, StoredAnswer, replace
from proxy.core.reserve import ReserveOperation
from proxy.core.settle import SettleRun
from tests.core.play import LEASE_MS, Book, create, led, seen


def answer(operation: Operation, body: bytes | None = b"{}") -> StoredAnswer:
    return StoredAnswer(
        fence=operation.fence,
        status=201,
        headers=(),
        body=body,
        ended_ms=1,
        from_platform=True,
        knowledge=Knowledge.EXECUTED,
        outcome=Outcome.EXECUTED,
    )


def shown() -> Seen:
    return seen("succeeded", source="answer")


def executed(book: Book, operation: Operation, body: bytes | None = b"{}") -> Operation:
    """The run's end, half a second after it began."""
    book.pass_ms(500)
    ended = AttemptNote(Outcome.EXECUTED, 201, None, "test", 0)
    book.run(SettleRun(operation, State.EXECUTED, ended, answer(operation, body), shown()))
    return book.operations[operation.id]


def late(book: Book, arrived: Now | None, *, amount: int = 10_000) -> object:
    return book.run(ReserveOperation(create(amount=amount), Owner("b"), LEASE_MS, arrived))


def test_late_claim_of_a_call_that_came_during_the_run_gets_its_answer() -> None:
    """Forwarded as a repeat, it would be a second hit for concurrent calls."""
    book = Book()
    running = led(book, create())
    arrived = book.now
    ended = executed(book, running)
    book.pass_ms(10)
    assert late(book, arrived) == RunEnded(ended, answer(running))


def test_late_claim_of_a_call_that_came_after_the_run_is_a_repeat() -> None:
    book = Book()
    ended = executed(book, led(book, create()))
    for arrived in (book.now, None):
        assert late(book, arrived) == Recorded(ended, failure_is_due=False)


def test_late_claim_across_a_restart_of_the_clock_is_a_repeat() -> None:
    book = Book()
    running = led(book, create())
    arrived = replace(book.now, epoch="another")
    ended = executed(book, running)
    assert late(book, arrived) == Recorded(ended, failure_is_due=False)


def test_late_claim_with_other_values_conflicts() -> None:
    book = Book()
    running = led(book, create())
    arrived = book.now
    executed(book, running)
    assert isinstance(late(book, arrived, amount=12_000), Conflicting)


def test_late_claim_on_a_withheld_answer_is_a_repeat() -> None:
    """D4: what was not stored can't be given twice."""
    book = Book()
    running = led(book, create())
    arrived = book.now
    ended = executed(book, running, body=None)
    assert late(book, arrived) == Recorded(ended, failure_is_due=False)


def test_late_claim_on_what_a_zombie_brought_is_a_repeat() -> None:
    """Its answer ended no run: the heir's lease, still on the record, says nothing of when it came."""
    book = Book()
    zombie = led(book, create(), "a")
    book.pass_ms(LEASE_MS)
    led(book, create(), "c")
    ended = executed(book, zombie)
    book.pass_ms(10)
    assert late(book, book.now) == Recorded(ended, failure_is_due=False)
