"""The state table, and the small truths that every verb shares."""

from __future__ import annotations

import pytest

from proxy.core import states
from proxy.core.model import UNRESOLVED, EntryKind, Knowledge, OperationId, State, Subject, replace
from proxy.core.patience import patience_ms
from proxy.core.states import TABLE, ImpossibleMoveError, Move
from proxy.core.tables import ENTRIES_KEPT, OPERATIONS_KEPT, holds_subject, listed, told
from tests.core.payhub import CREATE, SCOPE
from tests.core.play import Book, create, led


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.move.name.lower())
def test_each_row_of_the_table_is_allowed_and_says_when(row: states.Row) -> None:
    for source in row.sources:
        for target in row.targets:
            states.check(source, row.move, target)
    assert row.condition


@pytest.mark.parametrize(
    ("source", "move", "target"),
    [
        (State.IN_FLIGHT, Move.LAPSE, State.NOT_EXECUTED),
        (State.UNKNOWN, Move.OVERDUE, State.NOT_EXECUTED),
        (State.EXECUTED, Move.RESERVE, State.IN_FLIGHT),
        (State.UNKNOWN, Move.PURGE, None),
        (None, Move.EVIDENCE, State.EXECUTED),
    ],
)
def test_moves_outside_the_table_are_bugs(source: State | None, move: Move, target: State | None) -> None:
    with pytest.raises(ImpossibleMoveError, match="--"):
        states.check(source, move, target)


def test_only_resolved_states_are_ever_purged() -> None:
    """P9."""
    (purge,) = (row for row in TABLE if row.move is Move.PURGE)
    assert not purge.sources & UNRESOLVED


def test_knowledge_of_each_state() -> None:
    """Contract section 1."""
    operation = led(Book(), create())
    told_of = {state: replace(operation, state=state).knowledge for state in State}
    assert told_of == {
        State.IN_FLIGHT: Knowledge.UNKNOWN,
        State.EXECUTED: Knowledge.EXECUTED,
        State.PENDING: Knowledge.PENDING,
        State.NOT_EXECUTED: Knowledge.NOT_EXECUTED,
        State.UNKNOWN: Knowledge.UNKNOWN,
        State.ABSENT: Knowledge.UNKNOWN,
        State.MANUAL_REVIEW: Knowledge.UNKNOWN,
    }
    assert replace(operation, state=State.MANUAL_REVIEW, accepted=True).knowledge is Knowledge.PENDING
    assert operation.is_unresolved


def test_story_keeps_its_newest_lines() -> None:
    book = Book()
    operation = led(book, create())
    for number in range(ENTRIES_KEPT + 5):
        history = told(operation, book.now, EntryKind.DOUBT, f"line {number}")
        operation = replace(operation, history=history)
    assert len(operation.history) == ENTRIES_KEPT
    assert operation.history[-1].text == f"line {ENTRIES_KEPT + 4}"


def test_subject_lists_at_most_its_number_and_drops_no_unresolved_one() -> None:
    book = Book()
    open_one = led(book, create("OPEN"))
    old = tuple(OperationId(f"op_{number}") for number in range(OPERATIONS_KEPT - 1))
    row = Subject(scope=SCOPE, handle=open_one.handles[0], updated_ms=0, operations=(open_one.id, *old))
    new = OperationId("op_new")
    assert listed(book, row, new) == (open_one.id, new)
    assert listed(book, row, open_one.id) == row.operations


def test_pending_operation_run_again_holds_its_subject() -> None:
    running = replace(led(Book(), create()), accepted=True)
    assert holds_subject(CREATE, running)
    assert not holds_subject(CREATE, replace(running, state=State.MANUAL_REVIEW))


@pytest.mark.parametrize(
    ("headers", "limit_ms", "expected_ms"),
    [
        ((), None, None),
        ((), 8_000, 8_000),
        (((b"Prefer", b"wait=5"),), None, 5_000),
        (((b"Prefer", b"respond-async, wait=5"),), 8_000, 5_000),
        (((b"Prefer", b'wait="20"; foo'),), 8_000, 8_000),
        (((b"Prefer", b"wait=soon"),), None, None),
        (((b"prefer", b"WAIT = 3"),), None, 3_000),
    ],
)
def test_patience_is_the_smaller_of_configuration_and_preference(
    headers: tuple[tuple[bytes, bytes], ...], limit_ms: int | None, expected_ms: int | None
) -> None:
    """W1, RFC 7240."""
    assert patience_ms(headers, limit_ms) == expected_ms
