"""Reserve, withdraw and admit: P2-P9, U1, K3, D3, each on a ledger of dictionaries."""

from __future__ import annotations

import pytest

from proxy.core.admit import AdmitUnrecorded
from proxy.core.delivery import DeliverFailure
from proxy.core.evidence import SettleByHand
from proxy.core.keys import handle
from proxy.core.messages import (
    AttemptNote,
    Blocked,
    Claim,
    Conflicting,
    KeyExpired,
    Recorded,
    Reserved,
    Running,
    SettleRefused,
    Withdrawn,
)
from proxy.core.model import Key, Operation, Outcome, Owner, Seen, State, replace
from proxy.core.reserve import SEQ_MAX, ReserveOperation, WithdrawClaim
from proxy.core.rules import GuardRule
from proxy.core.settle import SettleRun
from tests.core.payhub import SCOPE, injecting
from tests.core.play import (
    CANCEL,
    CONFIRM,
    CREATE,
    DAY_MS,
    LEASE_MS,
    REFUNDS,
    Book,
    cancel,
    checkout,
    confirm,
    create,
    led,
    refund,
    reserve,
    seen,
)

NOT_UNIQUE = replace(CREATE, guard=GuardRule(on=True, platform_is_unique=False))


def note(outcome: Outcome, status: int | None = None) -> AttemptNote:
    return AttemptNote(outcome, status, None, "test", 0)


def settle(
    book: Book,
    operation: Operation,
    state: State,
    *,
    status: str | None = None,
    outcome: Outcome = Outcome.NOT_SENT,
    released: bool = False,
) -> Operation:
    """End the run; executed and pending with an object in `status`."""
    shown = seen(status, source="answer") if status else None
    book.run(SettleRun(operation, state, note(outcome), None, shown, released))
    return book.operations[operation.id]


def settled(
    book: Book, claim: Claim, state: State, *, status: str | None = None, released: bool = False
) -> Operation:
    """The claim, run to its end."""
    outcome = {State.UNKNOWN: Outcome.IN_DOUBT, State.NOT_EXECUTED: Outcome.RELEASED}.get(
        state, Outcome.EXECUTED
    )
    return settle(book, led(book, claim), state, status=status, outcome=outcome, released=released)


# --- one key ------------------------------------------------------------------------------------------------


def test_reserve_first_call_leads_with_fence_1_and_attempt_1_recorded() -> None:
    operation = led(Book(), create())
    assert (operation.state, operation.fence, operation.attempt_count) == (State.IN_FLIGHT, 1, 1)
    assert [attempt.n for attempt in operation.attempts] == [1]


def test_reserve_and_withdraw_name_their_scope_for_the_store() -> None:
    owner = Owner("a")
    assert ReserveOperation(create(), owner, LEASE_MS).scope == SCOPE
    assert WithdrawClaim(create(), owner).scope == SCOPE


def test_reserve_second_call_of_the_key_follows() -> None:
    """P4."""
    book = Book()
    first = led(book, create())
    assert reserve(book, create(), "b") == Running(first)


def test_reserve_asked_again_by_its_owner_answers_the_same() -> None:
    book = Book()
    assert led(book, create(), "a") == led(book, create(), "a")


def test_reserve_asked_again_by_its_owner_after_the_lease_is_a_new_run() -> None:
    """Someone else might have led meanwhile: the old lease is no lease."""
    book = Book()
    led(book, create(), "a")
    book.pass_ms(LEASE_MS)
    again = led(book, create(), "a")
    assert (again.fence, again.attempt_count, again.doubt) == (3, 2, True)


def test_reserve_other_amount_under_the_key_conflicts_also_in_flight() -> None:
    """P2."""
    book = Book()
    operation = led(book, create())
    assert reserve(book, create(amount=12_000), "b") == Conflicting(operation, ("amount",))


def test_reserve_dead_leaders_key_is_taken_over_with_doubt() -> None:
    """P5: a lease that is over is never back to free."""
    book = Book()
    led(book, create())
    book.pass_ms(LEASE_MS)
    taken = led(book, create(), "b")
    assert (taken.doubt, taken.prior, taken.fence) == (True, State.UNKNOWN, 3)


def test_reserve_lease_of_another_boot_is_over() -> None:
    """D1."""
    book = Book()
    led(book, create())
    book.epoch = "boot-2"
    assert led(book, create(), "b").doubt


@pytest.mark.parametrize("state", [State.EXECUTED, State.PENDING])
def test_reserve_known_operation_is_recorded(state: State) -> None:
    book = Book()
    operation = settled(book, create(), state, status="succeeded")
    assert reserve(book, create(), "b") == Recorded(operation, failure_is_due=False)


def test_reserve_manual_review_of_a_pending_one_is_recorded() -> None:
    book = Book()
    operation = replace(settled(book, create(), State.PENDING), state=State.MANUAL_REVIEW)
    book.put(operation)
    assert isinstance(reserve(book, create(), "b"), Recorded)


@pytest.mark.parametrize("state", [State.UNKNOWN, State.ABSENT, State.MANUAL_REVIEW])
def test_reserve_unknown_key_may_be_sent_again_with_its_doubt(state: State) -> None:
    """R8: a same-key call may try again at any time."""
    book = Book()
    book.put(replace(settled(book, create(), State.UNKNOWN), state=state))
    again = led(book, create(), "b")
    assert (again.doubt, again.prior, again.fence) == (True, state, 2)


def test_reserve_refused_key_keeps_its_fingerprint() -> None:
    book = Book()
    settled(book, create(), State.NOT_EXECUTED)
    assert isinstance(reserve(book, create(amount=12_000), "b"), Conflicting)
    assert isinstance(reserve(book, create(), "b"), Reserved)


def test_reserve_released_key_may_come_with_other_fields() -> None:
    """P7."""
    book = Book()
    settled(book, create(), State.NOT_EXECUTED, released=True)
    again = led(book, create(amount=12_000), "b")
    assert (again.amount, again.fence) == (12_000, 2)
    assert isinstance(reserve(book, create(), "c"), Conflicting)


def test_reserve_released_key_that_comes_for_another_order_leaves_the_first_one() -> None:
    """Else the first order's events would settle the second order's payment."""
    book = Book()
    settled(book, create(order="ORDER-1"), State.NOT_EXECUTED, released=True)
    operation = led(book, create(order="ORDER-2"), "b")
    assert book.subjects[handle("order", "ORDER-1")].operations == ()
    assert book.subjects[handle("order", "ORDER-2")].operations == (operation.id,)
    assert isinstance(reserve(book, create("K2", order="ORDER-1"), "c"), Reserved)


def test_reserve_key_settled_by_hand_as_absent_starts_afresh() -> None:
    """C5: the person's word is about the run before."""
    book = Book()
    operation = settled(book, create(), State.UNKNOWN)
    book.run(SettleByHand(SCOPE, operation.id, "absent", "Ann", "asked support"))
    again = led(book, create(amount=12_000), "b")
    assert (again.by_hand, again.settled_by, again.doubt, again.amount) == (None, None, False, 12_000)


# --- P9 -----------------------------------------------------------------------------------------------------


def test_reserve_forgotten_key_without_other_uniqueness_is_refused() -> None:
    book = Book()
    operation = settled(book, confirm(), State.EXECUTED, status="failed")
    book.pass_ms(7 * DAY_MS - 3_600_000 + 1)
    assert reserve(book, confirm(), "b") == KeyExpired(operation)


def test_reserve_key_within_the_platforms_memory_is_not_refused() -> None:
    book = Book()
    settled(book, confirm(), State.UNKNOWN)
    book.pass_ms(7 * DAY_MS - 3_600_000)
    assert isinstance(reserve(book, confirm(), "b"), Reserved)


def test_reserve_old_key_of_a_unique_order_may_be_sent() -> None:
    book = Book()
    settled(book, create(), State.UNKNOWN)
    book.pass_ms(8 * DAY_MS)
    assert isinstance(reserve(book, create(), "b"), Reserved)


def test_reserve_old_key_settled_by_hand_says_so_rather_than_expired() -> None:
    book = Book()
    operation = settled(book, confirm(), State.UNKNOWN)
    book.run(SettleByHand(SCOPE, operation.id, "failed", "Ann", "asked support"))
    book.pass_ms(8 * DAY_MS)
    assert isinstance(reserve(book, confirm(), "b"), Recorded)


def test_reserve_old_key_freed_by_hand_is_expired_all_the_same() -> None:
    book = Book()
    operation = settled(book, confirm(), State.UNKNOWN)
    book.run(SettleByHand(SCOPE, operation.id, "absent", "Ann", "asked support"))
    book.pass_ms(8 * DAY_MS)
    assert isinstance(reserve(book, confirm(), "b"), KeyExpired)


# --- U1 -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [State.IN_FLIGHT, State.UNKNOWN, State.ABSENT, State.MANUAL_REVIEW])
def test_reserve_other_key_on_an_unresolved_subject_is_blocked(state: State) -> None:
    book = Book()
    holder = led(book, create("K1"))
    if state is not State.IN_FLIGHT:
        holder = replace(settle(book, holder, State.UNKNOWN, outcome=Outcome.IN_DOUBT), state=state)
        book.put(holder)
    assert reserve(book, create("K2"), "b") == Blocked(holder, twin=False)


def test_reserve_other_key_on_a_dead_leaders_subject_is_blocked_by_an_unknown_one() -> None:
    book = Book()
    led(book, create("K1"))
    book.pass_ms(LEASE_MS)
    found = reserve(book, create("K2"), "b")
    assert isinstance(found, Blocked) and found.holder.state is State.UNKNOWN


@pytest.mark.parametrize(
    ("state", "status"),
    [(State.NOT_EXECUTED, None), (State.PENDING, "processing"), (State.EXECUTED, "succeeded")],
)
def test_reserve_other_key_passes_where_the_platform_itself_is_unique(
    state: State, status: str | None
) -> None:
    book = Book()
    settled(book, create("K1"), state, status=status)
    assert isinstance(reserve(book, create("K2"), "b"), Reserved)


@pytest.mark.parametrize(("state", "status"), [(State.PENDING, "processing"), (State.EXECUTED, "succeeded")])
def test_reserve_other_key_is_blocked_for_life_where_the_platform_is_not_unique(
    state: State, status: str | None
) -> None:
    book = Book()
    holder = settled(book, create("K1", route=NOT_UNIQUE), state, status=status)
    assert reserve(book, create("K2", route=NOT_UNIQUE), "b") == Blocked(holder, twin=False)


def test_reserve_other_key_passes_after_a_definite_failure() -> None:
    book = Book()
    settled(book, create("K1", route=NOT_UNIQUE), State.EXECUTED, status="failed")
    assert isinstance(reserve(book, create("K2", route=NOT_UNIQUE), "b"), Reserved)


def test_reserve_old_key_is_blocked_once_another_one_succeeded() -> None:
    """U1 on platforms without uniqueness: an old job must not repeat K1 after K2 was paid."""
    book = Book()
    settled(book, create("K1", route=NOT_UNIQUE), State.NOT_EXECUTED)
    settled(book, create("K2", route=NOT_UNIQUE), State.EXECUTED, status="succeeded")
    assert isinstance(reserve(book, create("K1", route=NOT_UNIQUE), "b"), Blocked)


def test_reserve_cancels_and_checkouts_are_not_held() -> None:
    book = Book()
    led(book, cancel("K1"))
    assert isinstance(reserve(book, cancel("K2"), "b"), Reserved)
    led(book, checkout("K3"))
    assert isinstance(reserve(book, checkout("K4"), "c"), Reserved)
    assert CANCEL.guard.on is False


def test_reserve_subject_whose_holder_is_gone_is_free() -> None:
    book = Book()
    holder = led(book, create("K1"))
    book.drop(holder)
    assert isinstance(reserve(book, create("K2"), "b"), Reserved)


def test_reserve_call_without_a_subject_is_held_by_nobody() -> None:
    book = Book()
    led(book, replace(create("K1"), subject=None, handles=()))
    assert isinstance(reserve(book, replace(create("K2"), subject=None, handles=()), "b"), Reserved)


@pytest.mark.parametrize("state", [State.IN_FLIGHT, State.UNKNOWN])
def test_reserve_same_amount_refund_under_another_number_is_blocked_while_the_first_is_open(
    state: State,
) -> None:
    """S11's mistake: another refund number after a time-out."""
    book = Book()
    holder = led(book, refund("K1", number="R-1"))
    if state is State.UNKNOWN:
        holder = settle(book, holder, State.UNKNOWN, outcome=Outcome.IN_DOUBT)
    assert reserve(book, refund("K2", number="R-2"), "b") == Blocked(holder, twin=True)
    assert isinstance(reserve(book, refund("K3", number="R-3", amount=400), "c"), Reserved)


def test_reserve_twin_refund_passes_once_the_first_is_known_or_where_twins_only_warn() -> None:
    book = Book()
    settled(book, refund("K1", number="R-1"), State.EXECUTED, status="succeeded")
    settled(book, refund("K2", number="R-2"), State.UNKNOWN)
    warns = replace(REFUNDS, guard=replace(REFUNDS.guard, twin_rejects=False))
    assert isinstance(reserve(book, refund("K3", number="R-3", route=warns), "b"), Reserved)


# --- K3 -----------------------------------------------------------------------------------------------------

COUNTED = injecting(CONFIRM)


def counted() -> Claim:
    return confirm(key=None, route=COUNTED)


def test_reserve_first_submission_on_a_subject_is_number_1() -> None:
    assert led(Book(), counted()).key == "payment.confirm:pay_1:1"


def test_reserve_number_stays_until_the_failure_was_given() -> None:
    book = Book()
    operation = settled(book, counted(), State.EXECUTED, status="failed")
    assert reserve(book, counted(), "b") == Recorded(operation, failure_is_due=True)
    book.run(DeliverFailure(SCOPE, operation.id, operation.fence))
    assert led(book, counted(), "c").key == "payment.confirm:pay_1:2"


def test_reserve_call_from_before_the_failure_was_given_is_no_new_submission() -> None:
    """A host slept with a call that its caller had repeated elsewhere: one card, charged once (K3)."""
    book = Book()
    arrived = book.now
    operation = settled(book, counted(), State.EXECUTED, status="failed")
    book.pass_ms(1_000)
    given = book.now
    book.pass_ms(5)
    delivered = book.run(DeliverFailure(SCOPE, operation.id, operation.fence, given))
    assert isinstance(delivered, Operation)
    for then in (arrived, replace(given, lease_ms=given.lease_ms - 1)):
        held_up = ReserveOperation(counted(), Owner("b"), LEASE_MS, then)
        assert book.run(held_up) == Recorded(delivered, failure_is_due=True)
    assert book.run(DeliverFailure(SCOPE, operation.id, operation.fence)) == delivered
    assert isinstance(book.run(ReserveOperation(counted(), Owner("c"), LEASE_MS, given)), Reserved)


def test_reserve_after_a_boot_a_given_failure_counts_as_earlier() -> None:
    book = Book()
    operation = settled(book, counted(), State.EXECUTED, status="failed")
    book.run(DeliverFailure(SCOPE, operation.id, operation.fence))
    arrived = replace(book.now, epoch="another", lease_ms=0)
    assert isinstance(book.run(ReserveOperation(counted(), Owner("b"), LEASE_MS, arrived)), Reserved)


def test_reserve_after_the_stores_clock_was_set_back_a_given_failure_counts_as_earlier() -> None:
    """Told by that clock, the next submission would be answered with the old failure for hours (K3)."""
    book = Book()
    operation = settled(book, counted(), State.EXECUTED, status="failed")
    for hours, expected in ((0, Recorded), (2, Reserved)):
        ahead = replace(book.now, lease_ms=book.now.lease_ms + 30_000 + hours * 3_600_000)
        book.put(replace(operation, failure_delivered=False))
        book.run(DeliverFailure(SCOPE, operation.id, operation.fence, ahead))
        answer = book.run(ReserveOperation(counted(), Owner("b"), LEASE_MS, book.now))
        assert isinstance(answer, expected)


def test_reserve_counted_key_named_in_full_owes_its_failure_too() -> None:
    book = Book()
    operation = settled(book, counted(), State.EXECUTED, status="failed")
    named = replace(counted(), key=operation.key)
    assert reserve(book, named, "b") == Recorded(operation, failure_is_due=True)


@pytest.mark.parametrize("state", [State.UNKNOWN, State.NOT_EXECUTED])
def test_reserve_number_stays_while_nothing_is_known_to_have_failed(state: State) -> None:
    book = Book()
    settled(book, counted(), state)
    assert led(book, counted(), "b").key == "payment.confirm:pay_1:1"


def test_reserve_delivery_of_another_run_or_of_no_failure_does_not_count() -> None:
    book = Book()
    operation = led(book, counted())
    assert book.run(DeliverFailure(SCOPE, operation.id, operation.fence)) == operation
    failed = settle(book, operation, State.EXECUTED, status="failed", outcome=Outcome.EXECUTED)
    other = replace(operation, fence=operation.fence + 1)
    assert book.run(DeliverFailure(SCOPE, other.id, other.fence)) == failed
    assert book.run(DeliverFailure(SCOPE, led(Book(), create()).id, other.fence)) is None


def test_reserve_number_has_an_end() -> None:
    book = Book()
    operation = settled(book, counted(), State.EXECUTED, status="failed")
    row = book.subjects[handle("payment", "pay_1")]
    book.put(replace(operation, id=operation.id, failure_delivered=True))
    guards = {COUNTED.name: replace(row.guards[COUNTED.name], seq=SEQ_MAX)}
    book.put_subject(replace(row, guards=guards))
    assert led(book, counted(), "b").seq == SEQ_MAX


def test_reserve_counted_key_without_a_subject_is_number_1() -> None:
    assert led(Book(), replace(counted(), subject=None, handles=())).seq == 1


# --- withdrawing --------------------------------------------------------------------------------------------


def withdraw(book: Book, claim: Claim, owner: str = "a") -> Operation | None:
    found = book.run(WithdrawClaim(claim, Owner(owner)))
    assert isinstance(found, Withdrawn)
    return found.operation


def test_withdraw_new_claim_leaves_nothing_behind() -> None:
    """A claim that was never sent must not be doubtful for ever (why 21)."""
    book = Book()
    led(book, refund())
    assert withdraw(book, refund()) is None
    assert book.operations == {}
    assert isinstance(reserve(book, refund("K2"), "b"), Reserved)
    assert isinstance(reserve(book, refund("K3", number="R-3", amount=400), "c"), Reserved)


@pytest.mark.parametrize("state", [State.UNKNOWN, State.NOT_EXECUTED])
def test_withdraw_claim_on_a_record_leaves_it_as_before(state: State) -> None:
    book = Book()
    settled(book, create(), state)
    led(book, create(), "b")
    before = withdraw(book, create(), "b")
    assert before is not None
    assert (before.state, before.attempt_count, before.owner, before.prior) == (state, 1, None, None)


@pytest.mark.parametrize("released", [False, True])
def test_withdraw_keeps_the_doubt_of_what_was_sent_without_the_store(released: bool) -> None:
    book = Book()
    if released:
        settled(book, create(), State.NOT_EXECUTED, released=True)
    led(book, create(), "b")
    admit(book, create())
    found = withdraw(book, create(), "b")
    assert found is not None
    assert (found.state, found.doubt, found.owner) == (State.UNKNOWN, True, None)
    assert found.lookups.next_ms == book.wall_ms


def test_withdraw_of_anothers_claim_does_nothing() -> None:
    book = Book()
    operation = led(book, create(), "a")
    assert withdraw(book, create(), "b") == operation
    settle(book, operation, State.UNKNOWN, outcome=Outcome.IN_DOUBT)
    known = withdraw(book, create(), "a")
    assert known is not None and known.state is State.UNKNOWN


def test_withdraw_of_nothing_is_nothing() -> None:
    assert withdraw(Book(), create()) is None


def test_withdraw_keeps_another_holder_of_the_subject() -> None:
    book = Book()
    settled(book, refund("K1", number="R-1"), State.NOT_EXECUTED)
    led(book, refund("K2", number="R-1"), "b")
    book.put_subject(replace(book.subjects[handle("refund", "R-1")], guards={}))
    withdraw(book, refund("K2", number="R-1"), "b")
    assert len(book.operations) == 1


# --- what was sent without the store ------------------------------------------------------------------------


def admit(
    book: Book,
    claim: Claim,
    outcome: Outcome = Outcome.IN_DOUBT,
    *,
    shown: Seen | None = None,
) -> Operation:
    key = claim.key
    assert isinstance(key, str)
    return book.run(AdmitUnrecorded(claim, Key(key), outcome, shown, book.wall_ms - 5_000, None))


def test_admit_whose_reply_was_lost_is_written_once() -> None:
    book = Book()
    verb = AdmitUnrecorded(create(), Key("K"), Outcome.IN_DOUBT, None, book.wall_ms - 5_000, None)
    first = book.run(verb)
    assert book.run(verb) == first
    assert first.attempt_count == 1
    another = book.run(replace(verb, sent_ms=book.wall_ms - 4_000))
    assert another.attempt_count == 2


def test_admit_doubt_blocks_the_subject_as_any_unknown_operation_does() -> None:
    """Why 14: K timed out while the store was down; K2 on the same order must not pass."""
    book = Book()
    admitted = admit(book, create("K1"))
    assert (admitted.state, admitted.doubt, admitted.unknown_since_ms) == (
        State.UNKNOWN,
        True,
        book.wall_ms - 5_000,
    )
    assert isinstance(reserve(book, create("K2"), "b"), Blocked)


def test_admit_beside_an_open_operation_takes_its_hold_from_nobody() -> None:
    """Both keys are open on the order: neither one's end frees it."""
    book = Book()
    settled(book, create("K1"), State.UNKNOWN)
    second = admit(book, create("K2"))
    assert isinstance(reserve(book, create("K3"), "b"), Blocked)
    book.run(SettleByHand(SCOPE, second.id, "failed", "Ann", "asked support"))
    found = reserve(book, create("K3"), "b")
    assert isinstance(found, Blocked) and found.holder.key == "K1"
    book.run(SettleByHand(SCOPE, found.holder.id, "failed", "Ann", "asked support"))
    assert isinstance(reserve(book, create("K3"), "b"), Reserved)


def test_admit_definite_answer_is_recorded_with_its_resource() -> None:
    book = Book()
    admitted = admit(book, create(), Outcome.EXECUTED, shown=seen(source="answer", version=3))
    assert (admitted.state, admitted.version, admitted.doubt) == (State.EXECUTED, 3, False)
    assert handle("payment", "pay_1") in book.subjects
    assert isinstance(reserve(book, create(), "b"), Recorded)


def test_admit_pending_answer_without_an_object_is_pending() -> None:
    assert admit(Book(), create(), Outcome.PENDING).state is State.PENDING


@pytest.mark.parametrize("state", [State.UNKNOWN, State.ABSENT, State.MANUAL_REVIEW, State.NOT_EXECUTED])
def test_admit_doubt_makes_what_was_not_known_unknown(state: State) -> None:
    book = Book()
    before = replace(settled(book, create(), State.UNKNOWN), state=state)
    book.put(before)
    admitted = admit(book, create())
    assert (admitted.state, admitted.doubt, admitted.attempt_count) == (State.UNKNOWN, True, 2)


@pytest.mark.parametrize("state", [State.EXECUTED, State.PENDING])
def test_admit_leaves_what_is_known(state: State) -> None:
    book = Book()
    known = settled(book, create(), state, status="succeeded")
    assert admit(book, create()) == known
    assert admit(book, create(), Outcome.EXECUTED, shown=seen()) == known


def test_admit_doubt_leaves_a_persons_word_and_a_definite_answer_overrides_it() -> None:
    book = Book()
    operation = settled(book, create(), State.UNKNOWN)
    by_hand = book.run(SettleByHand(SCOPE, operation.id, "failed", "Ann", "asked support"))
    assert admit(book, create()) == by_hand
    assert admit(book, create(), Outcome.EXECUTED, shown=seen(source="answer")).by_hand is None


def test_admit_doubt_reaches_a_run_that_is_under_way() -> None:
    """Its refusal then proves nothing about what was sent without the store."""
    book = Book()
    running = led(book, create())
    assert admit(book, create()).state is State.IN_FLIGHT
    refusal = SettleRun(running, State.NOT_EXECUTED, note(Outcome.RELEASED, 422), None, None, True)
    found = book.run(refusal)
    assert isinstance(found, SettleRefused) and found.operation.doubt


def test_admit_definite_answer_settles_a_run_that_is_under_way() -> None:
    book = Book()
    running = led(book, create())
    admitted = admit(book, create(), Outcome.EXECUTED, shown=seen(source="answer"))
    assert (admitted.state, admitted.fence) == (State.EXECUTED, running.fence)


def test_admit_by_the_call_whose_claim_was_made_all_the_same_counts_its_one_attempt() -> None:
    """H8: the claim's reply was lost, and the call went on without the store (D3)."""
    book = Book()
    running = led(book, create(), "a")
    verb = AdmitUnrecorded(
        create(), Key("K"), Outcome.EXECUTED, seen(source="answer"), book.wall_ms, 201, running.owner
    )
    admitted = book.run(verb)
    assert (admitted.state, admitted.fence, admitted.attempt_count) == (State.EXECUTED, running.fence, 1)
    assert [one.outcome for one in admitted.attempts] == [Outcome.EXECUTED]


def test_admit_released_key_moves_to_the_order_that_was_sent() -> None:
    book = Book()
    settled(book, create(order="ORDER-1"), State.NOT_EXECUTED, released=True)
    admitted = admit(book, create(order="ORDER-2"))
    assert book.subjects[handle("order", "ORDER-1")].operations == ()
    assert (admitted.released, admitted.subject) == (True, handle("order", "ORDER-2"))


@pytest.mark.parametrize("state", [State.UNKNOWN, State.IN_FLIGHT])
def test_admit_accepted_with_other_fields_is_of_those(state: State) -> None:
    """The platform took the key for another order: it held it for none, whatever was in doubt (P7, D3)."""
    book = Book()
    first = led(book, create(order="ORDER-1"))
    if state is State.UNKNOWN:
        settle(book, first, State.UNKNOWN, outcome=Outcome.IN_DOUBT)
    other = create(order="ORDER-2", amount=12_000)
    admitted = admit(book, other, Outcome.EXECUTED, shown=seen(source="answer"))
    assert (admitted.state, admitted.subject, admitted.amount) == (
        State.EXECUTED,
        handle("order", "ORDER-2"),
        12_000,
    )
    assert admitted.fingerprint == other.fingerprints[0]
    assert book.subjects[handle("order", "ORDER-1")].operations == ()


def test_admit_in_doubt_with_other_fields_leaves_the_record_as_it_is() -> None:
    book = Book()
    settled(book, create(order="ORDER-1"), State.UNKNOWN)
    assert admit(book, create(order="ORDER-2", amount=12_000)).subject == handle("order", "ORDER-1")


def test_admit_refused_key_names_what_was_sent_with_it() -> None:
    """The ledger alone held the key for the first fields; the platform now holds it for the second."""
    book = Book()
    settled(book, create(), State.NOT_EXECUTED)
    admitted = admit(book, create(amount=12_000), Outcome.EXECUTED, shown=seen(source="answer"))
    assert admitted.amount == 12_000
    assert isinstance(reserve(book, create(), "b"), Conflicting)


def test_admit_call_without_a_subject_is_found_by_its_key() -> None:
    book = Book()
    assert admit(book, replace(create(), subject=None, handles=())).state is State.UNKNOWN
