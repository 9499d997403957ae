"""Evidence: what an event, a lookup or a person settles, and what it must not (U3, U4, C5)."""

from __future__ import annotations

import pytest

from proxy.core.evidence import ApplyEvidence, Change, SettleByHand
from proxy.core.keys import handle
from proxy.core.messages import AttemptNote
from proxy.core.model import Baseline, EntryKind, Handle, Operation, Outcome, Seen, State, replace
from proxy.core.rules import GuardRule
from proxy.core.settle import SettleRun
from tests.core.payhub import CREATE, SCOPE
from tests.core.play import LEASE_MS, Book, cancel, checkout, confirm, create, led, seen

ORDER = handle("order", "ORDER-1")
PAYMENT = handle("payment", "pay_1")
DOUBT = AttemptNote(Outcome.IN_DOUBT, None, None, "timeout", 0)


def evidence(book: Book, shown: Seen, *handles: Handle) -> tuple[Change, ...]:
    return book.run(ApplyEvidence(SCOPE, handles or (PAYMENT, ORDER), shown))


def unknown(book: Book, *, key: str = "K") -> Operation:
    operation = led(book, create(key), key)
    book.run(SettleRun(operation, State.UNKNOWN, DOUBT, None, None))
    return book.operations[operation.id]


def executed(book: Book, shown: Seen) -> Operation:
    operation = led(book, create())
    note = AttemptNote(Outcome.EXECUTED, 200, None, "http_200", 0)
    state = State.EXECUTED if shown.is_final else State.PENDING
    book.run(SettleRun(operation, state, note, None, shown))
    return book.operations[operation.id]


# --- creates ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [State.UNKNOWN, State.ABSENT, State.MANUAL_REVIEW, State.IN_FLIGHT])
def test_evidence_settles_an_open_create(state: State) -> None:
    """Why 12: also from absent."""
    book = Book()
    operation = led(book, create()) if state is State.IN_FLIGHT else replace(unknown(book), state=state)
    book.put(operation)
    (change,) = evidence(book, seen())
    assert change.became_known
    assert (book.only.state, book.only.settled_by, book.only.owner) == (State.EXECUTED, "event", None)


def test_evidence_of_a_state_that_is_not_final_is_pending_and_looked_up() -> None:
    book = Book()
    unknown(book)
    evidence(book, seen("processing"))
    assert (book.only.state, book.only.accepted) == (State.PENDING, True)
    assert book.only.lookups.next_ms is not None


def test_evidence_of_a_dead_leaders_operation_settles_it() -> None:
    book = Book()
    led(book, create())
    book.pass_ms(LEASE_MS)
    evidence(book, seen())
    assert book.only.state is State.EXECUTED


def test_evidence_with_a_higher_version_wins_over_a_final_one() -> None:
    """Declined, then another card: the payment succeeded (why 12)."""
    book = Book()
    executed(book, seen("failed", version=2, source="answer"))
    evidence(book, seen("succeeded", version=5))
    assert (book.only.status, book.only.version) == ("succeeded", 5)


@pytest.mark.parametrize("version", [1, 2, None])
def test_evidence_of_a_lower_or_equal_or_no_version_changes_nothing(version: int | None) -> None:
    book = Book()
    before = executed(book, seen("failed", version=2, source="answer"))
    assert evidence(book, seen("failed", version=version)) == ()
    assert book.only == before


def test_evidence_of_an_equal_version_with_another_status_is_a_conflict_told_once() -> None:
    book = Book()
    executed(book, seen("failed", version=2, source="answer"))
    (change,) = evidence(book, seen("succeeded", version=2))
    assert change.conflict is not None and not change.became_known
    assert book.only.status == "failed"
    assert evidence(book, seen("succeeded", version=2)) == ()


def test_evidence_without_versions_undoes_no_success() -> None:
    """Nothing tells which is newer, and who heard "failed" of a success would pay once more (U4: reordering)."""
    book = Book()
    executed(book, seen("succeeded", version=None, source="answer"))
    assert evidence(book, seen("processing", version=None)) == ()
    (change,) = evidence(book, seen("failed", version=None))
    assert (book.only.state, book.only.status) == (State.EXECUTED, "succeeded")
    assert change.conflict == "it was succeeded, and is failed by event"


def test_evidence_without_versions_moves_a_failure_on() -> None:
    """Another card."""
    book = Book()
    executed(book, seen("failed", version=None, source="answer"))
    evidence(book, seen("succeeded", version=None))
    assert (book.only.state, book.only.status) == (State.EXECUTED, "succeeded")


def test_evidence_equal_to_a_pending_one_changes_nothing() -> None:
    book = Book()
    before = executed(book, seen("processing", version=2, source="answer"))
    assert evidence(book, seen("processing", version=2)) == ()
    assert book.only == before


def test_evidence_of_not_executed_is_an_outcome_conflict() -> None:
    """A 429 of a gateway, after the platform had acted."""
    book = Book()
    book.put(replace(led(book, create()), state=State.NOT_EXECUTED, owner=None))
    (change,) = evidence(book, seen())
    assert change.conflict is not None
    assert book.only.history[-1].kind is EntryKind.OUTCOME_CONFLICT


def test_evidence_of_not_executed_that_another_operation_explains_is_none() -> None:
    book = Book()
    book.put(replace(led(book, create("K1")), state=State.NOT_EXECUTED, owner=None))
    unknown(book, key="K2")
    (change,) = evidence(book, seen())
    assert change.operation.key == "K2"
    assert book.keyed("K1").state is State.NOT_EXECUTED
    assert evidence(book, seen(version=2)) != ()
    assert book.keyed("K1").state is State.NOT_EXECUTED


def test_evidence_of_not_executed_counts_where_the_others_did_nothing_or_are_gone() -> None:
    book = Book()
    for key in ("K1", "K2"):
        book.put(replace(led(book, create(key), key), state=State.NOT_EXECUTED, owner=None))
    book.drop(book.keyed("K2"))
    evidence(book, seen())
    assert book.keyed("K1").state is State.EXECUTED


def test_evidence_that_came_first_is_kept_for_operations_not_yet_known() -> None:
    """U4."""
    book = Book()
    assert evidence(book, seen(version=7)) == ()
    assert book.subjects[PAYMENT].latest == seen(version=7)
    evidence(book, seen("processing", version=3))
    assert book.subjects[PAYMENT].latest == seen(version=7)


def test_evidence_by_id_reaches_the_operation_that_only_named_its_order() -> None:
    book = Book()
    executed(book, seen("processing", version=1, source="answer"))
    evidence(book, seen("succeeded", version=2), PAYMENT)
    assert book.only.state is State.EXECUTED


def test_evidence_by_order_reaches_operations_on_the_payment() -> None:
    book = Book()
    executed(book, seen("failed", version=1, source="answer", attempt_count=1))
    second = led(book, confirm("K2"), "b")
    evidence(book, seen("failed", version=3, attempt_count=2), ORDER)
    assert book.operations[second.id].status == "failed"


def test_evidence_of_a_payment_says_nothing_of_a_checkout_session() -> None:
    book = Book()
    session = led(book, checkout())
    assert evidence(book, seen()) == ()
    assert book.operations[session.id].state is State.IN_FLIGHT


def test_evidence_of_another_payment_on_the_order_is_none_where_numbers_are_not_unique() -> None:
    """The first key's decline says nothing of the second key's charge."""
    book = Book()
    loose = replace(CREATE, guard=GuardRule(on=True, platform_is_unique=False))
    first = led(book, create("K1", route=loose))
    note = AttemptNote(Outcome.EXECUTED, 200, None, "http_200", 0)
    declined = seen("failed", version=None, source="answer")
    book.run(SettleRun(first, State.EXECUTED, note, None, declined))
    second = led(book, create("K2", route=loose), "b")
    book.run(SettleRun(second, State.UNKNOWN, DOUBT, None, None))
    assert evidence(book, seen("failed", version=None)) != ()
    assert book.keyed("K2").state is State.UNKNOWN
    evidence(book, seen("succeeded", version=None, resource_id="pay_2"))
    assert (book.keyed("K1").status, book.keyed("K2").status) == ("failed", "succeeded")


def test_evidence_that_names_no_resource_is_not_another_submissions() -> None:
    """A 402 of the first submission settled the second, whose answer was lost, as failed: {seq} grew, and a third
    one would have been charged (U3, K3)."""
    book = Book()
    loose = replace(CREATE, guard=GuardRule(on=True, platform_is_unique=False))
    declined = replace(seen("failed", version=None, source="answer"), resource_id=None)
    first = led(book, create("K1", route=loose))
    note = AttemptNote(Outcome.EXECUTED, 402, None, "http_402", 0)
    book.run(SettleRun(first, State.EXECUTED, note, None, declined))
    second = led(book, create("K2", route=loose), "b")
    book.run(SettleRun(second, State.UNKNOWN, DOUBT, None, None))
    evidence(book, replace(declined, source="lookup"))
    assert book.keyed("K2").state is State.UNKNOWN


def test_evidence_that_names_no_resource_settles_an_order_with_one_submission() -> None:
    book = Book()
    loose = replace(CREATE, guard=GuardRule(on=True, platform_is_unique=False))
    book.run(SettleRun(led(book, create(route=loose)), State.UNKNOWN, DOUBT, None, None))
    evidence(book, replace(seen("failed", version=None), resource_id=None))
    assert (book.only.state, book.only.status) == (State.EXECUTED, "failed")


def test_evidence_of_an_id_with_odd_characters_finds_its_operation() -> None:
    book = Book()
    executed(book, seen("processing", version=1, source="answer", resource_id="pay/1 ü"))
    evidence(book, seen("succeeded", version=2, resource_id="pay/1 ü"), handle("payment", "pay/1 ü"))
    assert book.only.state is State.EXECUTED


# --- confirms and cancels -----------------------------------------------------------------------------------


def confirming(book: Book, known: Seen | None = None) -> Operation:
    """A confirm in doubt; `known` is what was seen of the payment before."""
    if known is not None:
        evidence(book, known, PAYMENT)
    operation = led(book, confirm())
    book.run(SettleRun(operation, State.UNKNOWN, DOUBT, None, None))
    return book.operations[operation.id]


BEFORE = seen("failed", version=2, attempt_count=1, failure="att_1")


def test_evidence_known_before_the_claim_is_the_baseline() -> None:
    book = Book()
    assert confirming(book, BEFORE).baseline == Baseline(2, 1, "att_1")


@pytest.mark.parametrize(
    "shown",
    [
        seen("failed", version=2, attempt_count=1, failure="att_1"),
        seen("failed", version=3, attempt_count=1, failure="att_1"),
        seen("failed", version=3),
        seen("processing", version=3, attempt_count=1),
        seen("requires_action", version=3),
        seen("failed", version=1, attempt_count=0, failure="att_0"),
    ],
)
def test_evidence_of_the_attempt_before_does_not_settle_a_confirm(shown: Seen) -> None:
    """Why 3: card A's failure is none of card B's."""
    book = Book()
    confirming(book, BEFORE)
    evidence(book, shown, PAYMENT)
    assert book.only.state is State.UNKNOWN


@pytest.mark.parametrize(
    ("shown", "state"),
    [
        (seen("failed", version=3, attempt_count=2), State.EXECUTED),
        (seen("failed", version=3, failure="att_2"), State.EXECUTED),
        (seen("processing", version=3, attempt_count=2), State.PENDING),
        (seen("succeeded", version=3), State.EXECUTED),
        (seen("canceled", version=3), State.EXECUTED),
        (seen("expired", version=3), State.EXECUTED),
    ],
)
def test_evidence_newer_than_the_baseline_settles_a_confirm(shown: Seen, state: State) -> None:
    """U3."""
    book = Book()
    confirming(book, BEFORE)
    evidence(book, shown, PAYMENT)
    assert book.only.state is state


def test_evidence_of_failure_is_none_where_nothing_was_known_before() -> None:
    book = Book()
    confirming(book)
    evidence(book, seen("failed", version=9, attempt_count=3, failure="att_3"), PAYMENT)
    assert book.only.state is State.UNKNOWN


def accepted(book: Book, version: int | None) -> Operation:
    evidence(book, BEFORE, PAYMENT)
    operation = led(book, cancel())
    note = AttemptNote(Outcome.PENDING, 202, None, "http_202", 0)
    shown = seen("processing", version=version, source="answer") if version else None
    book.run(SettleRun(operation, State.PENDING, note, None, shown))
    return book.operations[operation.id]


@pytest.mark.parametrize(("answered", "shown", "state"), [(4, 5, State.EXECUTED), (4, 4, State.PENDING)])
def test_evidence_newer_than_the_acceptance_settles(answered: int, shown: int, state: State) -> None:
    book = Book()
    accepted(book, answered)
    evidence(book, seen("failed", version=shown, attempt_count=1), PAYMENT)
    assert book.only.state is state


def test_evidence_after_an_acceptance_without_a_version_has_to_be_newer_than_the_resource_was() -> None:
    book = Book()
    accepted(book, None)
    assert evidence(book, seen("failed", version=2, attempt_count=1), PAYMENT) == ()
    evidence(book, seen("failed", version=3, attempt_count=1), PAYMENT)
    assert book.only.state is State.EXECUTED


def test_evidence_after_an_acceptance_of_which_no_version_is_known_settles() -> None:
    book = Book()
    operation = led(book, cancel())
    book.run(SettleRun(operation, State.PENDING, AttemptNote(Outcome.PENDING, 202, None, "", 0), None, None))
    evidence(book, seen("canceled", version=None), PAYMENT)
    assert book.only.state is State.EXECUTED


def test_evidence_that_came_before_an_acceptance_without_a_version_is_not_newer_than_it() -> None:
    """Why 3: the first card's failure came while the second card's confirm ran, of which nothing was known. The
    platform then said `payment_in_progress`, and the caller was told that the payment had failed."""
    book = Book()
    operation = led(book, confirm())
    first_card = seen("failed", version=2, attempt_count=1, failure="att_1")
    evidence(book, first_card, PAYMENT)
    note = AttemptNote(Outcome.PENDING, 409, "payment_in_progress", "http_409", 0)
    book.run(SettleRun(operation, State.PENDING, note, None, None))
    for shown, state in (
        (first_card, State.PENDING),
        (seen("failed", version=4, attempt_count=2, failure="att_2"), State.EXECUTED),
    ):
        evidence(book, shown, PAYMENT)
        assert book.only.state is state


def test_event_of_a_failure_is_none_after_an_acceptance_where_nothing_was_known_before() -> None:
    """U3: it may be the card before, come late; the lookup shows what is."""
    book = Book()
    operation = led(book, confirm())
    note = AttemptNote(Outcome.PENDING, 409, "payment_in_progress", "http_409", 0)
    book.run(SettleRun(operation, State.PENDING, note, None, None))
    for source, state in (("event", State.PENDING), ("lookup", State.EXECUTED)):
        evidence(book, seen("failed", version=2, attempt_count=1, source=source), PAYMENT)
        assert book.only.state is state


OLD = seen("failed", version=None, attempt_count=1, failure="att_1", source="answer")


@pytest.mark.parametrize(
    ("shown", "state"),
    [
        (OLD, State.PENDING),
        (seen("failed", version=None, failure="att_1"), State.PENDING),
        (seen("failed", version=None, attempt_count=1), State.PENDING),
        (seen("failed", version=None, attempt_count=2, failure="att_2"), State.EXECUTED),
        (seen("failed", version=None), State.EXECUTED),
        (seen("succeeded", version=None, attempt_count=1), State.EXECUTED),
    ],
)
def test_evidence_without_versions_of_the_card_before_does_not_settle_an_accepted_confirm(
    shown: Seen, state: State
) -> None:
    """Why 3: the platform accepted the second card, and was held to have declined it for the first one's failure,
    which the ledger had kept: {seq} grew, and a third one would have been charged."""
    book = Book()
    evidence(book, OLD, PAYMENT)
    operation = led(book, confirm())
    book.run(SettleRun(operation, State.PENDING, AttemptNote(Outcome.PENDING, 202, None, "", 0), None, None))
    assert book.only.state is State.PENDING, "what was kept from before the claim is no news"
    evidence(book, shown, PAYMENT)
    assert book.only.state is state


def test_evidence_without_versions_of_the_card_before_does_not_undo_a_confirm() -> None:
    """U4: an event that comes late is harmless, and nobody is called for it."""
    book = Book()
    evidence(book, OLD, PAYMENT)
    operation = led(book, confirm())
    paid = seen("succeeded", version=None, attempt_count=2, source="answer")
    book.run(
        SettleRun(operation, State.EXECUTED, AttemptNote(Outcome.EXECUTED, 200, None, "", 0), None, paid)
    )
    assert evidence(book, OLD, PAYMENT) == ()
    assert (book.only.state, book.only.status) == (State.EXECUTED, "succeeded")


# --- people -------------------------------------------------------------------------------------------------


def by_hand(book: Book, operation: Operation, status: str) -> Operation | None:
    return book.run(SettleByHand(SCOPE, operation.id, status, "Ann", "asked support"))


@pytest.mark.parametrize("state", [State.UNKNOWN, State.ABSENT, State.MANUAL_REVIEW, State.PENDING])
def test_by_hand_settles_what_is_open(state: State) -> None:
    book = Book()
    operation = replace(unknown(book), state=state)
    book.put(operation)
    settled = by_hand(book, operation, "failed")
    assert settled is not None
    assert (settled.state, settled.by_hand, settled.settled_by) == (State.EXECUTED, "failed", "person")
    assert (settled.history[-1].by, settled.history[-1].text) == ("Ann", "failed: asked support")


def test_by_hand_absent_is_not_executed_and_frees_the_key() -> None:
    book = Book()
    settled = by_hand(book, unknown(book), "absent")
    assert settled is not None
    assert (settled.state, settled.released, settled.doubt) == (State.NOT_EXECUTED, True, False)


def test_by_hand_leaves_what_runs_or_is_known_or_is_not_there() -> None:
    book = Book()
    running = led(book, create())
    assert by_hand(book, running, "failed") is None
    book.put(replace(running, state=State.EXECUTED))
    assert by_hand(book, running, "failed") is None
    assert by_hand(Book(), running, "failed") is None


def test_by_hand_settles_a_dead_leaders_operation() -> None:
    book = Book()
    running = led(book, create())
    book.pass_ms(LEASE_MS)
    assert by_hand(book, running, "failed") is not None


def test_evidence_overrides_a_person_with_an_alert() -> None:
    """C5, why 8."""
    book = Book()
    by_hand(book, unknown(book), "failed")
    (change,) = evidence(book, seen("succeeded"))
    assert change.conflict == "a person settled it as failed; the platform says succeeded"
    assert (book.only.status, book.only.by_hand) == ("succeeded", None)


def test_evidence_that_agrees_with_a_person_is_no_conflict() -> None:
    book = Book()
    by_hand(book, unknown(book), "succeeded")
    (change,) = evidence(book, seen("succeeded"))
    assert change.conflict is None


def test_evidence_older_than_what_the_person_knew_does_not_override() -> None:
    """A late copy of an old event is no new evidence."""
    book = Book()
    operation = executed(book, seen("processing", version=3, source="answer"))
    by_hand(book, operation, "failed")
    assert evidence(book, seen("processing", version=2)) == ()
    assert evidence(book, seen("processing", version=3)) == ()
    assert book.only.by_hand == "failed"


def test_evidence_that_is_not_the_operations_does_not_override_a_person() -> None:
    book = Book()
    operation = confirming(book, BEFORE)
    by_hand(book, operation, "succeeded")
    evidence(book, seen("failed", version=3, attempt_count=1, failure="att_1"), PAYMENT)
    assert book.only.by_hand == "succeeded"


def test_evidence_settles_an_operation_without_resource_kind_or_subject() -> None:
    book = Book()
    operation = replace(unknown(book), kind="", subject=None)
    book.put(operation)
    evidence(book, seen())
    assert book.only.handles == (ORDER,)
    book.put(replace(operation, kind="payment"))
    evidence(book, seen())
    assert PAYMENT in book.only.handles


def test_evidence_without_an_id_leaves_the_handles() -> None:
    book = Book()
    unknown(book)
    evidence(book, replace(seen(), resource_id=None))
    assert book.only.handles == (ORDER,)
