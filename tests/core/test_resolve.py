"""Lookups: when they are due, who may make them, and what each result means (U2, U3, U8)."""

from __future__ import annotations

import pytest

from proxy.core.delivery import MarkAnsweredEarly
from proxy.core.keys import handle
from proxy.core.messages import AttemptNote
from proxy.core.model import EntryKind, Fence, Operation, Outcome, Owner, State, Subject, replace
from proxy.core.resolve import (
    DAILY_MS,
    EndLookup,
    Found,
    LookupFailed,
    LookupPolicy,
    LookupResult,
    LookupTask,
    Missed,
    NoticeLapse,
    NotNow,
    PutOffLookup,
    TakeLookup,
    TakeSweep,
    first_point_ms,
    next_point_ms,
)
from proxy.core.settle import SettleRun
from tests.core.payhub import SCOPE
from tests.core.play import LEASE_MS, WALL_MS, Book, checkout, confirm, create, led, seen

POLICY = LookupPolicy(
    schedule_ms=(10_000, 30_000, 120_000),
    then_every_ms=4 * 3_600_000,
    until_ms=DAILY_MS,
    min_interval_ms=10_000,
    lag_ms=60_000,
    misses=3,
)
DOUBT = AttemptNote(Outcome.IN_DOUBT, None, None, "timeout", WALL_MS)
ORDER = handle("order", "ORDER-1")
PAYMENT = handle("payment", "pay_1")


def unknown(book: Book, *, state: State = State.UNKNOWN) -> Operation:
    operation = led(book, create())
    ended = replace(DOUBT, ended_ms=book.wall_ms)
    book.run(SettleRun(operation, State.UNKNOWN, ended, None, None))
    book.put(replace(book.only, state=state, accepted=state is State.PENDING))
    return book.only


def take(book: Book, operation: Operation, *, forced: bool = False, owner: str = "a") -> LookupTask | NotNow:
    return book.run(TakeLookup(SCOPE, operation.id, Owner(owner), POLICY, 15_000, forced))


def taken(book: Book, operation: Operation, *, forced: bool = False) -> LookupTask:
    task = take(book, operation, forced=forced)
    assert isinstance(task, LookupTask), task
    return task


def look(book: Book, result: LookupResult, *, after_ms: int = 10_000) -> None:
    """One lookup, some time from now."""
    book.pass_ms(after_ms)
    task = taken(book, book.only, forced=True)
    book.run(EndLookup(task, result, POLICY))


# --- the schedule -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("since_ms", "expected_ms"),
    [
        (0, 10_000),
        (1, 30_000),
        (20_000, 30_000),
        (21_000, 120_000),
        (120_000, 120_000 + 4 * 3_600_000),
        (120_000 + 4 * 3_600_000, 120_000 + 8 * 3_600_000),
        (DAILY_MS, 2 * DAILY_MS),
    ],
)
def test_next_point_is_the_schedules_and_never_sooner_than_the_interval(
    since_ms: int, expected_ms: int
) -> None:
    operation = unknown(Book())
    assert next_point_ms(POLICY, operation, WALL_MS + since_ms) == WALL_MS + expected_ms


def test_next_point_without_a_schedule_counts_from_the_first_attempt() -> None:
    bare = replace(POLICY, schedule_ms=())
    assert next_point_ms(bare, unknown(Book()), WALL_MS) == WALL_MS + 4 * 3_600_000


def test_next_point_in_manual_review_is_a_day_away() -> None:
    operation = unknown(Book(), state=State.MANUAL_REVIEW)
    assert next_point_ms(POLICY, operation, WALL_MS) == WALL_MS + DAILY_MS


@pytest.mark.parametrize(("since_ms", "expected_ms"), [(0, 10_000), (10_000, 10_000), (25_000, 25_000)])
def test_first_point_makes_up_what_has_passed_by_one_lookup_at_once(since_ms: int, expected_ms: int) -> None:
    assert first_point_ms(POLICY, unknown(Book()), WALL_MS + since_ms) == WALL_MS + expected_ms


# --- taking -------------------------------------------------------------------------------------------------


def test_take_before_the_first_point_is_not_now() -> None:
    book = Book()
    operation = unknown(book)
    assert take(book, operation) == NotNow(WALL_MS + 10_000)


def test_take_at_the_point_holds_the_fleet_to_one_lookup_of_the_object() -> None:
    book = Book()
    operation = unknown(book)
    book.pass_ms(10_000)
    task = taken(book, operation)
    assert task.fences == ((operation.id, operation.fence),)
    assert isinstance(take(book, operation, forced=True, owner="b"), NotNow)
    book.run(EndLookup(task, Missed(), POLICY))
    book.pass_ms(9_999)
    assert isinstance(take(book, operation, forced=True, owner="b"), NotNow)
    book.pass_ms(1)
    assert isinstance(take(book, operation, forced=True, owner="b"), LookupTask)


def test_take_that_a_hint_asks_for_too_soon_is_made_once_it_may_be() -> None:
    """U4: the event that says `succeeded` comes seconds after the one that says `processing`; it was dropped, and
    the payment stood open until the schedule's next point, hours later."""
    book = Book()
    operation = unknown(book)
    book.put(replace(operation, state=State.PENDING, accepted=True))
    look(book, LookupFailed("http_500"), after_ms=3_600_000)
    assert isinstance(take(book, book.only), NotNow)
    book.pass_ms(2_000)
    assert take(book, book.only, forced=True) == NotNow(book.wall_ms + 8_000)
    book.pass_ms(8_000)
    assert isinstance(take(book, book.only), LookupTask)


def test_take_after_another_boot_is_not_held_by_a_lease_of_the_last_one() -> None:
    book = Book()
    operation = unknown(book)
    book.pass_ms(10_000)
    taken(book, operation)
    book.epoch = "boot-2"
    assert isinstance(take(book, operation, forced=True), LookupTask)


def test_take_shares_one_lookup_between_operations_on_one_payment() -> None:
    """U2, why 26."""
    book = Book()
    operation = led(book, create("K1"))
    note = AttemptNote(Outcome.PENDING, 202, None, "", WALL_MS)
    book.run(SettleRun(operation, State.PENDING, note, None, seen("processing", source="answer")))
    second = led(book, confirm("K2"), "b")
    book.run(SettleRun(second, State.UNKNOWN, DOUBT, None, None))
    book.pass_ms(10_000)
    task = taken(book, book.operations[operation.id])
    assert {identity for identity, _ in task.fences} == {operation.id, second.id}
    assert isinstance(take(book, book.operations[second.id], forced=True), NotNow)


@pytest.mark.parametrize("state", [State.EXECUTED, State.NOT_EXECUTED])
def test_take_of_what_is_known_is_not_now(state: State) -> None:
    book = Book()
    assert take(book, unknown(book, state=state), forced=True) == NotNow(None)


def test_take_of_what_is_gone_or_no_money_is_not_now() -> None:
    book = Book()
    assert take(Book(), unknown(book)) == NotNow(None)
    session = led(book, checkout("K2"), "b")
    assert take(book, session, forced=True) == NotNow(None)


def test_take_asks_not_for_the_checkout_sessions_of_the_order() -> None:
    """U2: they are no money, and the payment's absence is none of theirs."""
    book = Book()
    session = led(book, checkout("K2"), "b")
    book.run(SettleRun(session, State.UNKNOWN, DOUBT, None, None))
    operation = led(book, create())
    book.run(SettleRun(operation, State.UNKNOWN, DOUBT, None, None))
    book.pass_ms(10_000)
    task = taken(book, operation)
    assert [identity for identity, _ in task.fences] == [operation.id]


def test_take_of_a_run_that_is_not_due_is_not_now_until_its_caller_was_answered_early() -> None:
    book = Book()
    operation = led(book, create())
    book.pass_ms(20_000)
    book.put(replace(operation, lease_until_ms=book.lease_ms + LEASE_MS))
    book.run(MarkAnsweredEarly(SCOPE, operation.id, operation.fence))
    assert isinstance(take(book, operation), LookupTask)


def test_take_of_a_dead_leaders_operation_notices_that() -> None:
    book = Book()
    operation = led(book, create())
    book.pass_ms(LEASE_MS)
    task = taken(book, operation, forced=True)
    assert book.only.state is State.UNKNOWN
    assert task.fences == ((operation.id, Fence(2)),)


def test_take_works_without_any_row_of_the_thing() -> None:
    book = Book()
    operation = unknown(book)
    book.subjects.clear()
    task = taken(book, operation, forced=True)
    assert task.handle == ORDER
    book.run(EndLookup(task, Missed(), POLICY))
    assert book.only.lookups.done == 1


# --- what a result means ------------------------------------------------------------------------------------


def test_end_found_settles_and_is_remembered() -> None:
    book = Book()
    unknown(book)
    look(book, Found(seen(source="lookup"), (ORDER, PAYMENT)))
    assert (book.only.state, book.only.settled_by) == (State.EXECUTED, "lookup")
    assert book.subjects[PAYMENT].latest is not None


def test_end_found_processing_stays_pending_and_on_the_schedule() -> None:
    book = Book()
    unknown(book)
    look(book, Found(seen("processing", source="lookup"), (ORDER,)))
    assert (book.only.state, book.only.lookups.done) == (State.PENDING, 1)
    assert book.only.lookups.next_ms == WALL_MS + 30_000


def test_end_three_misses_past_the_lag_are_absent_which_is_no_proof() -> None:
    """U8."""
    book = Book()
    unknown(book)
    look(book, Missed(), after_ms=60_000)
    assert book.only.lookups.next_ms == book.wall_ms + 10_000
    look(book, Missed())
    look(book, Missed())
    absent = book.only
    assert (absent.state, absent.knowledge, absent.absent_at_attempt) == (State.ABSENT, "unknown", 1)
    assert absent.history[-1].kind is EntryKind.ABSENT


@pytest.mark.parametrize("step_ms", [-7_200_000, 7_200_000])
def test_end_lag_is_not_moved_by_a_clock_that_is_set(step_ms: int) -> None:
    """Set forward it would bring absence too soon, which a refusal may then turn into "not executed"."""
    book = Book()
    unknown(book)
    book.wall_ms += step_ms

    look(book, Missed(), after_ms=59_000)
    assert book.only.lookups.misses == 0

    look(book, Missed(), after_ms=10_000)
    assert book.only.lookups.misses == 1


def test_end_lag_after_another_boot_is_the_wall_clocks() -> None:
    book = Book()
    unknown(book)
    book.epoch, book.lease_ms = "boot-2", 5

    look(book, Missed(), after_ms=59_000)
    assert book.only.lookups.misses == 0

    look(book, Missed(), after_ms=10_000)
    assert book.only.lookups.misses == 1


def test_end_miss_of_a_run_whose_attempts_end_nobody_wrote_does_not_count() -> None:
    book = Book()
    unknown(book)
    book.put(replace(book.only, last_attempt_end_ms=None))

    look(book, Missed(), after_ms=120_000)

    assert book.only.lookups.misses == 0


def test_end_misses_before_the_lag_do_not_count() -> None:
    book = Book()
    unknown(book)
    for _ in range(5):
        look(book, Missed())
    assert (book.only.state, book.only.lookups.misses) == (State.UNKNOWN, 0)


def test_end_failed_lookups_are_no_evidence() -> None:
    """Why 7: a 401 is no empty answer."""
    book = Book()
    unknown(book)
    for _ in range(4):
        look(book, LookupFailed("http_401"), after_ms=60_000)
    assert (book.only.state, book.only.lookups.misses) == (State.UNKNOWN, 0)
    assert "failed (http_401)" in book.only.history[-1].text


def test_end_a_new_attempt_starts_the_count_again() -> None:
    book = Book()
    unknown(book)
    look(book, Missed(), after_ms=60_000)
    look(book, Missed())
    operation = led(book, create(), "b")
    book.run(SettleRun(operation, State.UNKNOWN, replace(DOUBT, ended_ms=book.wall_ms), None, None))
    assert book.only.lookups.misses == 0
    look(book, Missed(), after_ms=60_000)
    assert book.only.state is State.UNKNOWN


def test_end_a_miss_older_than_the_current_run_is_dropped() -> None:
    book = Book()
    unknown(book)
    book.pass_ms(60_000)
    task = taken(book, book.only, forced=True)
    operation = led(book, create(), "b")
    book.run(SettleRun(operation, State.UNKNOWN, DOUBT, None, None))
    book.run(EndLookup(task, Missed(), POLICY))
    assert book.only.lookups.misses == 0


def test_end_what_is_not_newer_counts_as_a_miss_for_a_confirm() -> None:
    """U3, U8."""
    book = Book()
    operation = led(book, confirm())
    book.run(SettleRun(operation, State.UNKNOWN, DOUBT, None, None))
    stale = Found(seen("failed", source="lookup", attempt_count=1), (PAYMENT,))
    look(book, stale, after_ms=60_000)
    look(book, stale)
    look(book, stale)
    assert book.only.state is State.ABSENT


def test_end_older_than_the_current_fence_settles_no_confirm() -> None:
    """U8: what the platform showed before this run began is not this run's effect."""
    book = Book()
    operation = led(book, confirm())
    book.run(SettleRun(operation, State.UNKNOWN, DOUBT, None, None))
    book.put(replace(book.only, baseline=replace(book.only.baseline, attempt_count=1)))
    book.pass_ms(10_000)
    task = taken(book, book.only, forced=True)
    led(book, confirm(), "b")
    book.run(EndLookup(task, Found(seen("failed", source="lookup", attempt_count=2), (PAYMENT,)), POLICY))
    assert book.only.state is State.IN_FLIGHT


def test_end_misses_do_not_unsettle_what_was_accepted() -> None:
    book = Book()
    unknown(book, state=State.PENDING)
    for _ in range(4):
        look(book, Missed(), after_ms=60_000)
    assert (book.only.state, book.only.lookups.misses) == (State.PENDING, 0)


def test_end_pending_that_is_not_polled_leaves_the_schedule() -> None:
    book = Book()
    book.put(replace(unknown(book), polled=False))
    look(book, Found(seen("processing", source="lookup"), (ORDER,)))
    assert book.only.lookups.next_ms is None


@pytest.mark.parametrize("state", [State.UNKNOWN, State.ABSENT, State.PENDING])
def test_end_past_the_schedule_is_manual_review_and_never_failed(state: State) -> None:
    """U3."""
    book = Book()
    unknown(book, state=state)
    look(book, LookupFailed("timeout"), after_ms=DAILY_MS)
    assert book.only.state is State.MANUAL_REVIEW
    assert book.only.lookups.next_ms == book.wall_ms + DAILY_MS
    look(book, LookupFailed("timeout"), after_ms=DAILY_MS)
    assert book.only.history[-1].kind is EntryKind.LOOKUP


def test_end_misses_in_manual_review_are_absent_and_stay_under_review() -> None:
    book = Book()
    unknown(book, state=State.MANUAL_REVIEW)
    book.pass_ms(DAILY_MS)
    for _ in range(3):
        look(book, Missed(), after_ms=60_000)
    assert (book.only.state, book.only.absent_at_attempt) == (State.MANUAL_REVIEW, 1)


def test_end_conflict_is_told_of_an_operation_that_was_settled_meanwhile() -> None:
    book = Book()
    operation = unknown(book)
    book.pass_ms(10_000)
    task = taken(book, operation, forced=True)
    book.put(replace(book.only, state=State.EXECUTED, status="failed", version=1))
    assert book.run(EndLookup(task, Found(seen(source="lookup"), (ORDER,)), POLICY)) == ()


def test_end_of_an_operation_that_is_gone_is_nothing() -> None:
    book = Book()
    operation = unknown(book)
    book.pass_ms(10_000)
    task = taken(book, operation, forced=True)
    book.drop(operation)
    assert book.run(EndLookup(task, Missed(), POLICY)) == ()


def test_put_off_lookup_comes_back_later_where_one_was_due() -> None:
    book = Book()
    operation = unknown(book)
    book.run(PutOffLookup(SCOPE, operation.id, WALL_MS + 77_000))
    assert book.only.lookups.next_ms == WALL_MS + 77_000


def test_put_off_lookup_makes_nothing_due() -> None:
    book = Book()
    operation = unknown(book)
    book.put(replace(operation, lookups=replace(operation.lookups, next_ms=None)))
    book.run(PutOffLookup(SCOPE, operation.id, WALL_MS))
    assert book.only.lookups.next_ms is None
    Book().run(PutOffLookup(SCOPE, operation.id, WALL_MS))


# --- dead leaders, sweeps -----------------------------------------------------------------------------------


def test_lapse_is_noticed_once_the_lease_is_over() -> None:
    """U6."""
    book = Book()
    operation = led(book, create())
    assert book.run(NoticeLapse(SCOPE, operation.id)) is None
    book.pass_ms(LEASE_MS)
    noticed = book.run(NoticeLapse(SCOPE, operation.id))
    assert noticed is not None
    assert (noticed.state, noticed.doubt, noticed.fence) == (State.UNKNOWN, True, 2)
    assert book.run(NoticeLapse(SCOPE, operation.id)) is None
    assert Book().run(NoticeLapse(SCOPE, operation.id)) is None


def test_sweep_is_taken_once_a_day_by_one_process() -> None:
    book = Book()
    sweep = TakeSweep(SCOPE, "/v1/refunds?status=processing")
    assert [book.run(sweep), book.run(sweep)] == [True, False]
    book.pass_ms(DAILY_MS)
    assert book.run(sweep)
    book.wall_ms -= 3 * DAILY_MS  # a clock that stepped back: once too often is harmless
    assert book.run(sweep)


def test_sweep_keeps_what_its_row_holds_besides() -> None:
    book = Book()
    row = Subject(scope=SCOPE, handle=handle("sweep", "x"), updated_ms=0)
    book.put_subject(row)
    book.run(TakeSweep(SCOPE, "x"))
    assert book.subjects[row.handle].looked_up_ms == WALL_MS
