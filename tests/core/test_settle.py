"""The verbs of a run: who may write what, how doubt sticks, what is written anew (P5, R8, U3, D6)."""

from __future__ import annotations

import pytest

from proxy.core.delivery import MarkAnsweredEarly
from proxy.core.evidence import ABSENT, ApplyEvidence, SettleByHand
from proxy.core.keys import handle
from proxy.core.messages import AttemptNote, AttemptRecorded, Blocked, Settled, SettleRefused, Superseded
from proxy.core.model import (
    EntryKind,
    Knowledge,
    Operation,
    Outcome,
    Owner,
    Seen,
    State,
    StoredAnswer,
    replace,
)
from proxy.core.settle import (
    RecordNextAttempt,
    RenewLease,
    SettleRun,
    UpdateFromRepeat,
    absence_holds,
    with_end,
)
from tests.core.payhub import SCOPE, injecting
from tests.core.play import (
    CONFIRM,
    LEASE_MS,
    Book,
    checkout,
    confirm,
    create,
    led,
    reserve,
    seen,
)


def note(outcome: Outcome, status: int | None = None, *, at_ms: int = 0) -> AttemptNote:
    return AttemptNote(outcome, status, None, "test", at_ms)


DOUBT = note(Outcome.IN_DOUBT)
REFUSAL = note(Outcome.RELEASED, 422)


def answer(operation: Operation, *, body: bytes = b"{}", at_ms: int = 1) -> StoredAnswer:
    return StoredAnswer(
        fence=operation.fence,
        status=200,
        headers=(),
        body=body,
        ended_ms=at_ms,
        from_platform=True,
        knowledge=Knowledge.EXECUTED,
        outcome=Outcome.EXECUTED,
    )


def settle(
    book: Book,
    operation: Operation,
    state: State,
    *,
    ended: AttemptNote | None = None,
    shown: Seen | None = None,
    stored: StoredAnswer | None = None,
    released: bool = False,
) -> Settled | SettleRefused:
    outcomes = {State.UNKNOWN: DOUBT, State.NOT_EXECUTED: REFUSAL}
    ended = ended or outcomes.get(state, note(Outcome.EXECUTED, 200))
    return book.run(SettleRun(operation, state, ended, stored, shown, released))


def shown(status: str = "succeeded", version: int | None = 1) -> Seen:
    return seen(status, version=version, source="answer")


# --- recording and renewing ---------------------------------------------------------------------------------


def test_record_attempt_writes_how_the_one_before_ended_and_extends_the_lease() -> None:
    book = Book()
    operation = led(book, create())
    book.pass_ms(4_000)
    found = book.run(RecordNextAttempt(operation, DOUBT, LEASE_MS))
    assert isinstance(found, AttemptRecorded)
    recorded = found.operation
    assert [attempt.outcome for attempt in recorded.attempts] == [Outcome.IN_DOUBT, None]
    assert (recorded.doubt, recorded.attempt_count) == (True, 2)
    assert recorded.lease_until_ms == book.lease_ms + LEASE_MS


def test_record_attempt_after_a_takeover_is_refused() -> None:
    book = Book()
    zombie = led(book, create(), "a")
    book.pass_ms(LEASE_MS)
    leader = led(book, create(), "b")
    assert book.run(RecordNextAttempt(zombie, DOUBT, LEASE_MS)) == Superseded(leader)


def test_record_attempt_after_evidence_settled_it_is_refused() -> None:
    book = Book()
    operation = led(book, create())
    settle(book, operation, State.EXECUTED, shown=shown())
    assert isinstance(book.run(RecordNextAttempt(operation, DOUBT, LEASE_MS)), Superseded)


def test_record_attempt_on_a_lost_record_writes_it_anew_with_its_doubt_and_its_hold() -> None:
    """D6."""
    book = Book()
    operation = led(book, create())
    lost = Book()
    found = lost.run(RecordNextAttempt(operation, DOUBT, LEASE_MS))
    assert isinstance(found, AttemptRecorded)
    assert (found.operation.doubt, found.operation.history[-1].kind) == (True, EntryKind.WRITTEN_ANEW)
    assert isinstance(reserve(lost, create("K2"), "b"), Blocked)


def test_record_attempt_against_a_new_claim_with_the_same_fence_is_refused() -> None:
    """D6: a store that lost data counts fences from 1 again."""
    operation = led(Book(), create(), "a")
    lost = Book()
    other = led(lost, create(), "b")
    assert operation.fence == other.fence
    assert lost.run(RecordNextAttempt(operation, DOUBT, LEASE_MS)) == Superseded(other)
    assert lost.run(RenewLease(operation, LEASE_MS)) == other
    assert settle(lost, operation, State.NOT_EXECUTED) == SettleRefused(other)


def test_renew_extends_the_lease_of_its_own_run_only() -> None:
    book = Book()
    operation = led(book, create(), "a")
    book.pass_ms(5_000)
    assert book.run(RenewLease(operation, LEASE_MS)) is None
    assert book.only.lease_until_ms == book.lease_ms + LEASE_MS
    book.pass_ms(LEASE_MS)
    leader = led(book, create(), "b")
    assert book.run(RenewLease(operation, LEASE_MS)) == leader


def test_renew_of_a_lost_record_writes_it_anew() -> None:
    operation = led(Book(), create())
    lost = Book()
    assert lost.run(RenewLease(operation, LEASE_MS)) is None
    assert lost.only.state is State.IN_FLIGHT


# --- settling -----------------------------------------------------------------------------------------------


def test_settle_executed_keeps_the_answer_for_followers_and_frees_the_lease() -> None:
    book = Book()
    operation = led(book, create())
    settle(book, operation, State.EXECUTED, shown=shown(version=3), stored=answer(operation))
    known = book.only
    assert (known.state, known.version, known.owner, known.status) == (State.EXECUTED, 3, None, "succeeded")
    assert known.answer is not None and known.answer.fence == operation.fence
    assert handle("payment", "pay_1") in known.handles


def test_settle_not_executed_releases_and_forgets_no_fingerprint_by_itself() -> None:
    book = Book()
    operation = led(book, create())
    settle(book, operation, State.NOT_EXECUTED)
    assert (book.only.state, book.only.released) == (State.NOT_EXECUTED, False)


def test_settle_not_executed_is_refused_where_the_ledger_holds_doubt() -> None:
    """The store checks again what the run believes."""
    book = Book()
    operation = led(book, create())
    book.put(replace(operation, doubt=True))
    found = settle(book, operation, State.NOT_EXECUTED)
    assert isinstance(found, SettleRefused) and book.only.state is State.IN_FLIGHT


def test_settle_unknown_is_due_for_a_lookup_and_keeps_since_when() -> None:
    book = Book()
    settle(book, led(book, create()), State.UNKNOWN)
    assert (book.only.doubt, book.only.lookups.next_ms) == (True, book.wall_ms)
    since_ms = book.only.unknown_since_ms
    book.pass_ms(1_000)
    settle(book, led(book, create(), "b"), State.UNKNOWN)
    assert book.only.unknown_since_ms == since_ms


@pytest.mark.parametrize("skew_ms", [-7_200_000, 0, 7_200_000])
def test_attempts_end_is_by_the_stores_clock_whatever_its_hosts_says(skew_ms: int) -> None:
    """U8 counts from it: by a host's clock that is slow, absence would be believed before the lag is over."""
    book = Book()
    ended = note(Outcome.IN_DOUBT, at_ms=book.wall_ms + skew_ms)
    book.run(RecordNextAttempt(led(book, create()), ended, LEASE_MS))
    assert book.only.last_attempt_end_ms == book.wall_ms
    book.pass_ms(100)

    settle(book, book.only, State.UNKNOWN, ended=ended)

    assert book.only.last_attempt_end_ms == book.wall_ms


def test_settle_without_an_attempts_end_says_interrupted() -> None:
    book = Book()
    operation = led(book, create())
    book.run(SettleRun(operation, State.UNKNOWN, None, None, None))
    assert "interrupted" in book.only.history[-1].text


@pytest.mark.parametrize("state", [State.NOT_EXECUTED, State.UNKNOWN])
def test_settle_by_a_zombie_is_refused_unless_definite(state: State) -> None:
    """P5."""
    book = Book()
    zombie = led(book, create(), "a")
    book.pass_ms(LEASE_MS)
    leader = led(book, create(), "b")
    assert settle(book, zombie, state) == SettleRefused(leader)


def test_settle_zombies_definite_answer_is_true_whoever_brings_it() -> None:
    """Why 17."""
    book = Book()
    zombie = led(book, create(), "a")
    book.pass_ms(LEASE_MS)
    leader = led(book, create(), "b")
    found = settle(book, zombie, State.EXECUTED, shown=shown(), stored=answer(zombie))
    assert isinstance(found, Settled)
    assert (book.only.state, book.only.settled_by, book.only.owner) == (State.EXECUTED, "late_answer", None)
    assert book.only.answer is not None and book.only.answer.fence == leader.fence
    assert isinstance(settle(book, leader, State.UNKNOWN), SettleRefused)


def test_settle_late_answer_after_not_executed_is_executed_and_a_conflict() -> None:
    """Architecture 3: a 429 of a gateway, after the platform had acted."""
    book = Book()
    zombie = led(book, create(), "a")
    settle(book, zombie, State.NOT_EXECUTED)
    settle(book, zombie, State.EXECUTED, shown=shown())
    assert (book.only.state, book.only.history[-1].kind) == (State.EXECUTED, EntryKind.OUTCOME_CONFLICT)


def test_settle_definite_answer_overrides_a_person_with_an_alert() -> None:
    book = Book()
    zombie = led(book, create(), "a")
    settle(book, zombie, State.UNKNOWN)
    book.run(SettleByHand(SCOPE, zombie.id, "failed", "Ann", "asked support"))
    settle(book, zombie, State.EXECUTED, shown=shown())
    assert (book.only.by_hand, book.only.status) == (None, "succeeded")
    assert book.only.history[-1].kind is EntryKind.OUTCOME_CONFLICT


def test_settle_asked_again_after_a_lost_reply_changes_nothing() -> None:
    book = Book()
    operation = led(book, confirm(key=None, route=injecting(CONFIRM)))
    stored = answer(operation)
    settle(book, operation, State.EXECUTED, shown=shown("failed"), stored=stored)
    delivered = replace(book.only, failure_delivered=True)
    book.put(delivered)
    assert settle(book, operation, State.EXECUTED, shown=shown("failed"), stored=stored) == Settled(delivered)


def test_settle_older_answer_than_recorded_is_refused() -> None:
    book = Book()
    zombie = led(book, create(), "a")
    settle(book, zombie, State.EXECUTED, shown=shown(version=5))
    before = book.only
    assert settle(book, zombie, State.PENDING, shown=shown("processing", 2)) == SettleRefused(before)
    assert settle(book, zombie, State.EXECUTED) == SettleRefused(before)


def test_settle_equal_version_with_another_status_is_a_conflict_and_changes_nothing_else() -> None:
    book = Book()
    zombie = led(book, create(), "a")
    settle(book, zombie, State.EXECUTED, shown=shown("succeeded", 5))
    found = settle(book, zombie, State.EXECUTED, shown=shown("failed", 5))
    assert isinstance(found, SettleRefused)
    assert (book.only.status, book.only.history[-1].kind) == ("succeeded", EntryKind.OUTCOME_CONFLICT)
    again = settle(book, zombie, State.EXECUTED, shown=shown("failed", 5))
    assert again == SettleRefused(book.only)


def test_settle_own_answer_after_an_event_of_the_same_version_keeps_the_answer() -> None:
    """P6 `stored`: the first response is what is replayed."""
    book = Book()
    operation = led(book, create())
    settle(book, operation, State.EXECUTED, shown=seen(version=3))
    settle(book, operation, State.EXECUTED, shown=shown(version=3), stored=answer(operation))
    assert book.only.answer is not None


def test_settle_failure_given_stays_given_while_it_is_the_same_failure() -> None:
    book = Book()
    operation = led(book, create())
    settle(book, operation, State.EXECUTED, shown=shown("failed", 2))
    book.put(replace(book.only, failure_delivered=True))
    settle(book, operation, State.EXECUTED, shown=shown("failed", 3), stored=answer(operation))
    assert book.only.failure_delivered
    settle(book, operation, State.EXECUTED, shown=shown("succeeded", 4), stored=answer(operation, at_ms=2))
    assert not book.only.failure_delivered


def test_settle_lost_record_is_written_anew() -> None:
    operation = led(Book(), create())
    lost = Book()
    assert isinstance(settle(lost, operation, State.UNKNOWN), Settled)
    assert isinstance(reserve(lost, create("K2"), "b"), Blocked)


def test_settle_two_answers_are_kept_for_followers_of_two_runs() -> None:
    """P4, why 19: a follower bound to the first run finds its answer after the second one ended."""
    book = Book()
    first = led(book, create(), "a")
    settle(book, first, State.NOT_EXECUTED, stored=answer(first, body=b"1"))
    second = led(book, create(), "b")
    settle(book, second, State.NOT_EXECUTED, stored=answer(second, body=b"2"))
    kept = {one.fence: one.body for one in (book.only.answer, book.only.answer_before) if one}
    assert kept == {1: b"1", 2: b"2"}


def test_settle_unknown_takes_up_evidence_that_came_before() -> None:
    """U4: an early event, kept for the operation."""
    book = Book()
    operation = led(book, create())
    row = book.subjects[handle("order", "ORDER-1")]
    book.put_subject(replace(row, latest=seen(version=4)))
    settle(book, operation, State.UNKNOWN)
    assert (book.only.state, book.only.version) == (State.EXECUTED, 4)


def test_settle_of_a_checkout_session_says_nothing_of_its_orders_payment() -> None:
    """A session is another object than the payment that shares its order number."""
    book = Book()
    session = led(book, checkout("K1"))
    settle(book, session, State.EXECUTED, shown=seen("open", resource_id="cs_1", source="answer"))
    payment = led(book, create("K2"), "b")
    settle(book, payment, State.UNKNOWN)
    assert book.operations[payment.id].state is State.UNKNOWN
    assert book.subjects[handle("order", "ORDER-1")].alias is None


# --- U3: absent, and then refused ---------------------------------------------------------------------------


def absent(book: Book) -> Operation:
    operation = led(book, create())
    settle(book, operation, State.UNKNOWN)
    book.put(replace(book.only, state=State.ABSENT, absent_at_attempt=1, doubt_since_absent=False))
    return led(book, create(), "b")


@pytest.mark.parametrize("status", [400, 404, 422])
def test_settle_absent_and_then_refused_is_not_executed_and_frees_the_key(status: int) -> None:
    book = Book()
    again = absent(book)
    found = settle(book, again, State.NOT_EXECUTED, ended=note(Outcome.REFUSED, status))
    assert isinstance(found, Settled)
    assert (book.only.state, book.only.released, book.only.doubt) == (State.NOT_EXECUTED, True, False)


@pytest.mark.parametrize("status", [401, 403, 429, 503])
def test_settle_absent_and_then_turned_away_at_the_door_proves_nothing(status: int) -> None:
    """These come before the platform looks the key up."""
    book = Book()
    again = absent(book)
    found = settle(book, again, State.NOT_EXECUTED, ended=note(Outcome.NOT_EXECUTED, status))
    assert isinstance(found, SettleRefused)


@pytest.mark.parametrize(("between", "holds"), [(note(Outcome.RELEASED, 401), True), (DOUBT, False)])
def test_settle_absent_then_refused_in_a_later_call_holds_unless_one_between_was_in_doubt(
    between: AttemptNote, holds: bool
) -> None:
    """U3: the call between was turned away at the door, and counted as a doubt: the order stayed blocked."""
    book = Book()
    settle(book, absent(book), State.UNKNOWN, ended=between)
    found = settle(book, led(book, create(), "c"), State.NOT_EXECUTED, ended=note(Outcome.REFUSED, 422))
    assert isinstance(found, Settled if holds else SettleRefused)


def test_settle_absent_then_in_doubt_then_refused_proves_nothing() -> None:
    book = Book()
    again = absent(book)
    recorded = book.run(RecordNextAttempt(again, DOUBT, LEASE_MS))
    assert isinstance(recorded, AttemptRecorded)
    assert isinstance(settle(book, recorded.operation, State.NOT_EXECUTED), SettleRefused)


def test_absence_does_not_hold_without_an_attempts_end_or_before_another_attempt() -> None:
    book = Book()
    again = absent(book)
    assert not absence_holds(again, None)
    assert not absence_holds(replace(again, attempt_count=1), REFUSAL)
    assert not absence_holds(replace(again, absent_at_attempt=None), REFUSAL)


def test_with_end_of_an_operation_whose_attempts_were_dropped_still_keeps_doubt() -> None:
    bare = replace(led(Book(), create()), attempts=())
    assert with_end(bare, DOUBT).doubt


@pytest.mark.parametrize("state", [State.EXECUTED, State.PENDING, State.NOT_EXECUTED, State.UNKNOWN, None])
def test_run_that_evidence_overtook_still_says_how_its_attempt_ended(state: State | None) -> None:
    """The attempt stood in the ledger as on the wire for good; None: it was in a back-off."""
    book = Book()
    operation = led(book, create())
    book.run(ApplyEvidence(SCOPE, operation.handles, seen(version=3)))
    if state is None:
        assert isinstance(book.run(RecordNextAttempt(operation, DOUBT, LEASE_MS)), Superseded)
    else:
        assert isinstance(settle(book, operation, state, shown=shown("failed", 1)), SettleRefused)
    (attempt,) = book.only.attempts
    assert (attempt.ended_ms, attempt.outcome is None) == (0, False)
    assert (book.only.state, book.only.status) == (State.EXECUTED, "succeeded")


@pytest.mark.parametrize("is_replaced", [False, True])
def test_late_answer_says_how_its_own_attempt_ended(is_replaced: bool) -> None:
    """Evidence, or another run, came first: the attempt that brought the answer stood as on the wire for good."""
    book = Book()
    operation = led(book, create())
    if is_replaced:
        book.pass_ms(LEASE_MS)
        led(book, create(), "b")
    else:
        book.run(ApplyEvidence(SCOPE, operation.handles, seen("processing", version=1)))
    assert isinstance(settle(book, operation, State.EXECUTED, shown=shown("succeeded", 2)), Settled)
    assert [one.outcome for one in book.only.attempts] == [Outcome.EXECUTED, None][: 1 + is_replaced]


def test_update_over_a_person_leaves_how_the_attempts_before_ended() -> None:
    book = Book()
    before = recorded(book, state=State.PENDING)
    book.run(SettleByHand(SCOPE, before.id, "failed", "ada", "the bank said so"))
    update(book, before, State.EXECUTED, shown("succeeded", 4))
    assert book.only.attempts == before.attempts


def test_run_that_another_one_replaced_writes_nothing() -> None:
    """P5."""
    book = Book()
    operation = led(book, create())
    book.pass_ms(LEASE_MS)
    replaced = led(book, create(), "b")
    settle(book, operation, State.UNKNOWN)
    assert book.only == replaced


# --- repeats of what is recorded ----------------------------------------------------------------------------


def update(book: Book, operation: Operation, state: State, shown_: Seen) -> Settled | SettleRefused:
    ended = note(Outcome.EXECUTED, 200)
    return book.run(UpdateFromRepeat(operation, state, ended, answer(operation), shown_))


def recorded(book: Book, *, version: int | None = 3, state: State = State.EXECUTED) -> Operation:
    settle(book, led(book, create()), state, shown=shown("succeeded", version))
    return book.only


def test_update_with_a_newer_object_moves_the_record() -> None:
    book = Book()
    before = recorded(book)
    update(book, before, State.EXECUTED, shown("canceled", 4))
    assert (book.only.status, book.only.version, book.only.attempt_count) == ("canceled", 4, 2)
    assert book.only.settled_ms == before.settled_ms


def test_update_settles_a_pending_one() -> None:
    book = Book()
    pending = recorded(book, state=State.PENDING)
    update(book, pending, State.EXECUTED, shown("succeeded", None))
    assert book.only.state is State.PENDING  # an object without a version never replaces one that has one
    update(book, pending, State.EXECUTED, shown("succeeded", 4))
    assert (book.only.state, book.only.settled_by) == (State.EXECUTED, "answer")


def test_update_without_versions_keeps_none() -> None:
    book = Book()
    before = recorded(book, version=None)
    update(book, before, State.EXECUTED, shown("succeeded", None))
    assert (book.only.version, book.only.attempt_count) == (None, 2)


@pytest.mark.parametrize(("state", "status"), [(State.EXECUTED, "failed"), (State.PENDING, "processing")])
def test_update_without_versions_undoes_no_success(state: State, status: str) -> None:
    """Nothing tells which is newer: an event may have come while the repeat was on its way (U4). Its caller was
    told "failed" of a payment that had succeeded."""
    book = Book()
    before = recorded(book, version=None)
    assert isinstance(update(book, before, state, shown(status, None)), SettleRefused)
    assert (book.only.state, book.only.status) == (State.EXECUTED, "succeeded")
    conflicts = [entry for entry in book.only.history if entry.kind is EntryKind.OUTCOME_CONFLICT]
    assert len(conflicts) == (status == "failed"), "the open state before is no news"


def test_update_with_an_older_object_is_refused() -> None:
    book = Book()
    before = recorded(book)
    assert update(book, before, State.PENDING, shown("processing", 2)) == SettleRefused(before)


def test_update_of_what_is_no_longer_known_is_refused() -> None:
    book = Book()
    before = recorded(book)
    book.put(replace(before, state=State.UNKNOWN))
    assert isinstance(update(book, before, State.EXECUTED, shown("succeeded", 4)), SettleRefused)


@pytest.mark.parametrize("status", ["failed", ABSENT])
def test_update_overrides_what_a_person_said_while_the_repeat_was_on_its_way(status: str) -> None:
    """C5: the platform's own evidence, with an alert; it was thrown away, and the ledger said failed for good."""
    book = Book()
    before = recorded(book, state=State.PENDING)
    assert book.run(SettleByHand(SCOPE, before.id, status, "ada", "the bank said so")) is not None
    assert isinstance(update(book, before, State.EXECUTED, shown("succeeded", 3)), SettleRefused)
    held = book.only
    assert held.by_hand == status, "what the person knew already overrides nothing"
    update(book, before, State.EXECUTED, shown("succeeded", 4))
    now = book.only
    assert (now.state, now.status, now.by_hand) == (State.EXECUTED, "succeeded", None)
    assert now.history[-1].kind is EntryKind.OUTCOME_CONFLICT


def test_late_answer_that_agrees_with_the_person_is_no_conflict() -> None:
    book = Book()
    before = recorded(book, state=State.PENDING)
    book.run(SettleByHand(SCOPE, before.id, "succeeded", "ada", "the bank said so"))
    update(book, before, State.EXECUTED, shown("succeeded", 4))
    assert (book.only.by_hand, book.only.history[-1].kind) == (None, EntryKind.LATE_ANSWER)


@pytest.mark.parametrize(
    ("state", "status"),
    [(State.EXECUTED, "failed"), (State.PENDING, "processing"), (State.PENDING, "succeeded")],
)
def test_update_with_the_version_that_is_recorded_changes_nothing_executed(state: State, status: str) -> None:
    """State table: unchanged, and another status is a conflict; a repeat made "failed" of what had succeeded."""
    book = Book()
    before = recorded(book)
    assert isinstance(update(book, before, state, shown(status, 3)), SettleRefused)
    assert (book.only.state, book.only.status) == (State.EXECUTED, "succeeded")
    conflicts = [entry for entry in book.only.history if entry.kind is EntryKind.OUTCOME_CONFLICT]
    assert len(conflicts) == (status != "succeeded")


def test_update_of_a_lost_record_writes_it_anew() -> None:
    lost = Book()
    assert isinstance(update(lost, recorded(Book()), State.EXECUTED, shown("succeeded", 4)), Settled)


# --- patience -----------------------------------------------------------------------------------------------


def test_answered_early_makes_a_run_due_for_lookups() -> None:
    """U2, W1."""
    book = Book()
    operation = led(book, create())
    marked = book.run(MarkAnsweredEarly(SCOPE, operation.id, operation.fence))
    assert marked is not None and marked.lookups.next_ms == book.wall_ms
    settle(book, operation, State.EXECUTED, shown=shown())
    assert book.run(MarkAnsweredEarly(SCOPE, operation.id, operation.fence)) == book.only
    assert Book().run(MarkAnsweredEarly(SCOPE, operation.id, operation.fence)) is None


def test_lapsed_run_is_led_by_nobody() -> None:
    book = Book()
    led(book, create())
    book.pass_ms(LEASE_MS)
    assert led(book, create(), "b").owner == Owner("b")
