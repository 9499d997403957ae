"""The guard, as tables of (event, command): R1-R8, P4-P9, U1, W1 and D3, one behaviour each."""

from __future__ import annotations

import pytest

from proxy.core.guard import FIRST_START_MS, ProtocolError
from proxy.core.http import NotSent, NotSentReason, WireResult
from proxy.core.messages import (
    AttemptRecorded,
    BecameKnown,
    Began,
    Blocked,
    Conflicting,
    Event,
    KeyExpired,
    LeaseTakenOver,
    LedgerDisagreed,
    OutcomeConflict,
    Recorded,
    Repeat,
    Reply,
    Reserve,
    Reserved,
    RetryPlanned,
    RetryRefused,
    RunEnded,
    RunGone,
    Running,
    Send,
    Settle,
    Settled,
    SettleRefused,
    StoreFailed,
    Superseded,
    WaitTimedOut,
    Withdrawn,
    Woke,
)
from proxy.core.model import Entry, EntryKind, Knowledge, Operation, Outcome, Owner, State, replace
from proxy.core.reserve import WithdrawClaim
from proxy.core.rules import OnFailure, Replay
from proxy.core.tables import told
from tests.core.play import (
    BUSY,
    CREATE,
    DECLINED,
    NOW_MS,
    PAYHUB,
    UNPROCESSABLE,
    WAIT_MS,
    Book,
    answered,
    breaker_open,
    create,
    ends,
    error,
    guard,
    last_answer,
    led,
    payment,
    play,
    read_timeout,
    records,
    refused,
    repeats,
    replies,
    reserves,
    seen,
    sends,
    settles,
    sleeps,
    too_late,
    updates,
    waits,
    with_fence,
    withdraws,
)
from tests.core.runs import (
    CLAIM,
    COUNTED,
    IN_DOUBT_START,
    START,
    answer_of,
    claimed,
    doubtful,
    ended,
    executed_with_answer,
)

# --- attempts and how they end ------------------------------------------------------------------------------


def test_guard_executed_answer_is_settled_then_passed_on_unchanged() -> None:
    settled = ended(claimed(), State.EXECUTED, status="succeeded", settled_by="answer")
    facts = play(
        guard(CLAIM),
        *START,
        (ends(payment(http=201)), settles(State.EXECUTED)),
        (Settled(settled), replies(201, "executed")),
    )
    assert BecameKnown(settled, "answer") in facts


def test_guard_pending_answer_is_settled_as_pending() -> None:
    settled = ended(claimed(), State.PENDING, accepted=True)
    play(
        guard(CLAIM),
        *START,
        (ends(payment("processing", http=202)), settles(State.PENDING)),
        (Settled(settled), replies(202, "pending")),
    )


@pytest.mark.parametrize(
    ("result", "released"),
    [(UNPROCESSABLE, True), (error(404, "not_found"), False), (error(409, "payment_in_progress"), False)],
)
def test_guard_refusal_of_a_fresh_operation_is_not_executed(result: WireResult, released: bool) -> None:
    played = guard(CLAIM)
    play(played, *START, (ends(result), settles(State.NOT_EXECUTED, released=released)))


@pytest.mark.parametrize(
    "result",
    [
        BUSY,
        UNPROCESSABLE,
        error(404, "not_found"),
        error(401, "unauthorized"),
        refused(),
        answered(302),
        answered(200, b"<html>log in</html>"),
    ],
)
def test_guard_refusal_after_doubt_settles_unknown_and_says_504(result: WireResult) -> None:
    """A refusal after an attempt in doubt proves nothing about the first one (R8 c)."""
    unknown = ended(doubtful(), State.UNKNOWN)
    played = guard(create(route=replace(CREATE, retry=replace(CREATE.retry, attempts=1))))
    play(played, *IN_DOUBT_START)
    step = played.step(ends(result), NOW_MS)
    assert isinstance(step.command, Settle)
    assert step.command.state is State.UNKNOWN
    reply = played.step(Settled(replace(unknown, answer=step.command.answer)), NOW_MS).command
    assert replies(504, "unknown", code="result_unknown")(reply)


@pytest.mark.parametrize(
    ("status", "code", "asked"),
    [(429, "rate_limited", b"600"), (403, "forbidden", b"600"), (422, "validation_failed", b"0")],
)
def test_guard_refusal_after_doubt_is_named_with_its_retry_after_kept(
    status: int, code: str, asked: bytes
) -> None:
    """R8 c: of any refusal, not only of those whose Retry-After paces the attempts (R6)."""
    busy = error(status, code, ((b"Content-Type", b"application/json"), (b"Retry-After", asked)))
    played = guard(CLAIM)
    play(played, *IN_DOUBT_START)
    step = played.step(ends(busy), NOW_MS)
    assert isinstance(step.command, Settle)
    reply = played.step(Settled(ended(doubtful(), State.UNKNOWN, answer=step.command.answer)), NOW_MS).command
    assert isinstance(reply, Reply)
    assert last_answer(reply) == {"status": status, "code": code}
    assert (b"Retry-After", asked) in reply.answer.headers


@pytest.mark.parametrize(
    "result", [error(500, "internal_error"), answered(408), error(409, "operation_in_progress")]
)
def test_guard_last_answer_that_is_itself_in_doubt_passes_unchanged(result: WireResult) -> None:
    """R8 b."""
    played = guard(create(route=replace(CREATE, retry=replace(CREATE.retry, attempts=1))))
    play(played, *IN_DOUBT_START)
    step = played.step(ends(result), NOW_MS)
    assert isinstance(step.command, Settle) and step.command.state is State.UNKNOWN
    reply = played.step(Settled(ended(doubtful(), State.UNKNOWN, answer=step.command.answer)), NOW_MS).command
    assert isinstance(reply, Reply)
    assert reply.answer == getattr(result, "response", None)
    assert reply.marks.knowledge == "unknown"


def test_guard_5xx_then_time_out_says_504_and_not_the_old_5xx() -> None:
    """R8 b holds for the *last* attempt only."""
    played = guard(create(route=replace(CREATE, retry=replace(CREATE.retry, attempts=2))))
    play(
        played,
        *START,
        (ends(error(500, "internal_error")), sleeps()),
        (Woke(), records()),
        (AttemptRecorded(doubtful()), sends(2)),
    )
    step = played.step(ends(read_timeout()), NOW_MS)
    assert isinstance(step.command, Settle) and step.command.answer is not None
    assert step.command.answer.status == 504


def test_guard_time_out_is_retried_with_the_same_key_after_a_wait() -> None:
    facts = play(
        guard(CLAIM),
        *START,
        (ends(read_timeout()), sleeps(at_least_ms=NOW_MS + 1_000)),
        (Woke(), records()),
        (AttemptRecorded(doubtful()), sends(2)),
    )
    assert any(isinstance(fact, RetryPlanned) and fact.n == 2 for fact in facts)


def test_guard_no_byte_left_on_any_attempt_is_503_not_executed() -> None:
    """R8 a."""
    played = guard(create(route=replace(CREATE, retry=replace(CREATE.retry, attempts=1))))
    play(played, *START)
    step = played.step(ends(refused()), NOW_MS)
    assert isinstance(step.command, Settle) and step.command.state is State.NOT_EXECUTED
    settled = ended(claimed(), State.NOT_EXECUTED, answer=step.command.answer)
    assert replies(503, "not_executed", code="upstream_unavailable")(
        played.step(Settled(settled), NOW_MS).command
    )


def test_guard_429_then_no_connection_gives_the_last_answer_of_the_platform() -> None:
    played = guard(create(route=replace(CREATE, retry=replace(CREATE.retry, attempts=2))))
    again = claimed(attempt_count=2)
    play(played, *START, (ends(BUSY), sleeps()), (Woke(), records()), (AttemptRecorded(again), sends(2)))
    step = played.step(ends(refused()), NOW_MS)
    assert isinstance(step.command, Settle) and step.command.answer is not None
    settled = ended(again, State.NOT_EXECUTED, answer=step.command.answer)
    assert replies(429, "not_executed")(played.step(Settled(settled), NOW_MS).command)


def test_guard_attempts_stop_at_their_number() -> None:
    played = guard(create(route=replace(CREATE, retry=replace(CREATE.retry, attempts=1))))
    play(played, *START, (ends(read_timeout()), settles(State.UNKNOWN)))


def test_guard_retry_after_beyond_the_deadline_ends_the_run() -> None:
    """R6."""
    busy = error(503, "temporarily_unavailable", ((b"Retry-After", b"600"),))
    play(guard(CLAIM), *START, (ends(busy), settles(State.NOT_EXECUTED)))


@pytest.mark.parametrize("reason", ["budget", "drain", "breaker"])
def test_guard_refused_retry_ends_by_what_is_known(reason: str) -> None:
    play(
        guard(CLAIM),
        *START,
        (ends(read_timeout()), sleeps()),
        (RetryRefused(reason, 1_000), settles(State.UNKNOWN)),
    )


def test_guard_send_keeps_to_the_deadline_and_to_a_signatures_window() -> None:
    signed = replace(PAYHUB, signed=True, signature_window_ms=3_000)
    signer = guard(CLAIM, platform=signed)
    signer.step(Began(CLAIM), NOW_MS)
    command = signer.step(Reserved(claimed()), NOW_MS + 1_000).command
    assert isinstance(command, Send)
    assert command.not_after_ms == NOW_MS + 3_000


def test_guard_retry_beyond_a_signatures_window_is_not_planned() -> None:
    """F5, R8: what was never sent is no attempt, and not the last answer."""
    signed = replace(PAYHUB, signed=True, signature_window_ms=900)
    play(
        guard(CLAIM, platform=signed),
        *START,
        (ends(answered(500, {"error": {"code": "internal_error"}})), settles(State.UNKNOWN)),
    )


@pytest.mark.parametrize("deadline_ms", [20_000, 5_000], ids=["as long as one attempt", "shorter"])
def test_guard_first_attempt_may_connect_under_a_deadline_no_longer_than_it(deadline_ms: int) -> None:
    retry = replace(CREATE.retry, attempts=1, attempt_timeout_ms=20_000, deadline_ms=deadline_ms)
    route = replace(CREATE, retry=retry)
    command = guard(replace(CLAIM, route=route)).step(Reserved(claimed()), NOW_MS).command
    assert isinstance(command, Send)
    assert command.timeout_ms == deadline_ms
    assert command.not_after_ms is not None
    assert command.not_after_ms >= NOW_MS + FIRST_START_MS


@pytest.mark.parametrize(
    "event",
    [Recorded(ended(claimed(), State.PENDING, accepted=True), False), StoreFailed("down")],
    ids=["a repeat of what is recorded", "sent while the store is down"],
)
def test_guard_forwarded_without_a_lease_leaves_soon_or_not_at_all(event: Event) -> None:
    """A process that slept would send what was settled by hand, or expired, in the meantime (C5, P9, D3)."""
    route = replace(CREATE, on_failure=OnFailure.FORWARD)
    command = guard(replace(CLAIM, route=route)).step(event, NOW_MS).command
    assert isinstance(command, Repeat)
    assert command.not_after_ms == NOW_MS + FIRST_START_MS


def test_guard_payment_in_progress_after_doubt_is_pending() -> None:
    play(guard(CLAIM), *IN_DOUBT_START, (ends(error(409, "payment_in_progress")), settles(State.PENDING)))


def test_guard_order_number_taken_is_executed_without_an_object() -> None:
    settled = ended(claimed(), State.EXECUTED)
    play(
        guard(CLAIM),
        *START,
        (ends(error(409, "order_no_conflict", related="pay_1")), settles(State.EXECUTED)),
        (Settled(settled), replies(409, "executed")),
    )


DECLINING = replace(
    CREATE, outcomes=tuple(replace(r, means="failed") if 402 in r.statuses else r for r in CREATE.outcomes)
)


def test_guard_402_settles_as_failed_and_names_the_resource() -> None:
    played = guard(create(route=DECLINING))
    play(played, *START)
    step = played.step(ends(DECLINED), NOW_MS)
    assert isinstance(step.command, Settle) and step.command.seen is not None
    assert (step.command.seen.status, step.command.seen.is_failure) == ("failed", True)
    assert step.command.seen.resource_id == "pay_1"


# --- refusals before anything is sent -----------------------------------------------------------------------


def test_guard_conflicting_fingerprint_is_409_with_the_recorded_knowledge() -> None:
    """P2, H8."""
    executed = ended(claimed(), State.EXECUTED)
    play(
        guard(CLAIM),
        (Began(CLAIM), reserves()),
        (Conflicting(executed, ("amount",)), replies(409, "executed", code="idempotency_conflict")),
    )


@pytest.mark.parametrize("twin", [False, True])
def test_guard_held_subject_is_409_with_the_holders_knowledge(twin: bool) -> None:
    """U1."""
    play(
        guard(CLAIM),
        (Began(CLAIM), reserves()),
        (Blocked(ended(claimed(), State.UNKNOWN), twin), replies(409, "unknown", code="result_unknown")),
    )


def test_guard_expired_key_is_409_and_asks_for_a_lookup() -> None:
    """P9."""
    unknown = ended(claimed(), State.UNKNOWN)
    command = guard(CLAIM).step(KeyExpired(unknown), NOW_MS).command
    assert replies(409, "unknown", code="key_expired")(command)
    assert isinstance(command, Reply) and command.look_up == unknown


def test_guard_expired_key_of_an_executed_operation_gives_the_stored_answer() -> None:
    operation = claimed()
    stored = answer_of(operation, Knowledge.EXECUTED, status=200, outcome=Outcome.EXECUTED)
    executed = ended(operation, State.EXECUTED, answer=stored)
    play(guard(CLAIM), (KeyExpired(executed), replies(200, "executed", replayed=True)))


def test_guard_open_breaker_on_the_first_attempt_takes_the_claim_back() -> None:
    """R7."""
    play(
        guard(CLAIM),
        *START,
        (ends(breaker_open()), withdraws()),
        (Withdrawn(None), replies(503, "not_executed", code="upstream_unavailable")),
    )


def test_guard_open_breaker_with_a_past_in_doubt_is_504() -> None:
    play(
        guard(CLAIM),
        *IN_DOUBT_START,
        (ends(breaker_open()), withdraws()),
        (Withdrawn(ended(doubtful(), State.UNKNOWN)), replies(504, "unknown", code="result_unknown")),
    )


def test_guard_open_breaker_with_a_past_that_did_nothing_is_503() -> None:
    play(
        guard(CLAIM),
        *START,
        (ends(breaker_open()), withdraws()),
        (Withdrawn(ended(claimed(), State.NOT_EXECUTED)), replies(503, "not_executed")),
    )


def test_guard_breaker_that_opens_between_attempts_ends_the_run() -> None:
    again = claimed(attempt_count=2)
    play(
        guard(CLAIM),
        *START,
        (ends(BUSY), sleeps()),
        (Woke(), records()),
        (AttemptRecorded(again), sends(2)),
        (ends(breaker_open()), settles(State.NOT_EXECUTED)),
    )


def test_guard_wrong_certificate_is_not_retried() -> None:
    """R4."""
    play(guard(CLAIM), *START, (ends(NotSent(NotSentReason.CERTIFICATE)), settles(State.NOT_EXECUTED)))


# --- following ----------------------------------------------------------------------------------------------

OTHERS = claimed(owner=Owner("other"))
FOLLOWING = ((Began(CLAIM), reserves()), (Running(OTHERS), waits()))


def test_guard_follower_gets_the_leaders_answer() -> None:
    """P4."""
    executed = ended(OTHERS, State.EXECUTED)
    stored = answer_of(OTHERS, Knowledge.EXECUTED, status=201, outcome=Outcome.EXECUTED)
    play(guard(CLAIM), *FOLLOWING, (RunEnded(executed, stored), replies(201, "executed", replayed=True)))


def test_guard_follower_of_a_run_that_ended_unknown_sends_nothing() -> None:
    unknown = ended(OTHERS, State.UNKNOWN)
    stored = answer_of(OTHERS, Knowledge.UNKNOWN, status=504, outcome=Outcome.IN_DOUBT)
    play(guard(CLAIM), *FOLLOWING, (RunEnded(unknown, stored), replies(504, "unknown", replayed=True)))


def test_guard_follower_is_not_told_not_executed_once_a_later_run_executed() -> None:
    """H8: knowledge is about the operation, over all its calls; the 429 of an earlier run is no longer true."""
    later = ended(with_fence(OTHERS, 2), State.EXECUTED, newest=seen(source="lookup"))
    stored = answer_of(OTHERS, Knowledge.NOT_EXECUTED)
    play(guard(CLAIM), *FOLLOWING, (RunEnded(later, stored), replies(200, "executed", replayed=True)))


def test_guard_follower_goes_on_waiting_where_the_operation_runs_again() -> None:
    later = with_fence(OTHERS, 2)
    stored = answer_of(OTHERS, Knowledge.NOT_EXECUTED)
    play(guard(CLAIM), *FOLLOWING, (RunEnded(later, stored), waits()))


def test_guard_follower_of_an_unknown_run_gets_what_evidence_showed_since() -> None:
    later = ended(OTHERS, State.EXECUTED, newest=seen())
    stored = answer_of(OTHERS, Knowledge.UNKNOWN, status=504)
    play(guard(CLAIM), *FOLLOWING, (RunEnded(later, stored), replies(200, "executed", replayed=True)))


def test_guard_follower_of_a_released_run_gets_its_refusal_though_the_key_came_again() -> None:
    """P4, P7: the other submission under the key is none of this caller's."""
    other_amount = led(Book(), create(amount=12_000), "b")
    stored = answer_of(OTHERS, Knowledge.NOT_EXECUTED, status=400, outcome=Outcome.RELEASED)
    play(
        guard(CLAIM),
        *FOLLOWING,
        (RunEnded(with_fence(other_amount, 2), stored), replies(400, "not_executed", replayed=True)),
    )


def test_guard_follower_of_a_claim_taken_back_gets_no_other_submissions_answer() -> None:
    """P2, P4: no trace was left of that claim, so the next one counts its fences from one again."""
    book = Book()
    led(book, CLAIM, "other")
    book.run(WithdrawClaim(CLAIM, Owner("other")))
    other_amount = led(book, create(amount=12_000), "b")
    assert other_amount.fence == OTHERS.fence
    stored = answer_of(other_amount, Knowledge.EXECUTED, status=201, outcome=Outcome.EXECUTED)
    executed = ended(other_amount, State.EXECUTED)
    play(
        guard(CLAIM),
        *FOLLOWING,
        (RunEnded(executed, stored), reserves()),
        (Conflicting(executed, ("amount",)), replies(409, "executed", code="idempotency_conflict")),
    )


def test_guard_follower_of_a_dead_leader_is_judged_again() -> None:
    """P5."""
    play(guard(CLAIM), *FOLLOWING, (RunGone(), reserves()), (Reserved(doubtful()), sends(2)))


def test_guard_follower_without_a_key_stays_with_the_submission_that_it_found() -> None:
    """K3: its caller may have gone, and the next number is a charge that nobody asked for."""
    running = led(Book(), COUNTED, "other")
    played = guard(COUNTED)
    play(played, (Began(COUNTED), reserves()), (Running(running), waits()))
    command = played.step(RunGone(), NOW_MS).command
    assert isinstance(command, Reserve) and command.claim.key == "payment.confirm:pay_1:1"


def test_guard_follower_waits_once_for_wait_timeout_over_all_runs() -> None:
    play(
        guard(CLAIM),
        *FOLLOWING,
        (RunGone(), reserves()),
        (Running(with_fence(OTHERS, 2)), replies(409, "unknown", code="operation_in_progress")),
        step_ms=WAIT_MS,
    )


def test_guard_follower_past_wait_timeout_is_409_in_progress() -> None:
    play(
        guard(CLAIM),
        *FOLLOWING,
        (WaitTimedOut(OTHERS), replies(409, "unknown", code="operation_in_progress")),
    )


def test_guard_follower_whose_store_fails_can_say_nothing() -> None:
    play(guard(CLAIM), *FOLLOWING, (StoreFailed("down"), replies(503, "unknown", code="store_unavailable")))


# --- what is recorded ---------------------------------------------------------------------------------------


def test_guard_executed_key_is_forwarded_once_and_updates_the_record() -> None:
    """P6."""
    recorded = executed_with_answer()
    play(
        guard(CLAIM),
        (Recorded(recorded, False), repeats()),
        (ends(payment("succeeded", version=4)), updates(State.EXECUTED)),
        (Settled(recorded), replies(200, "executed")),
    )


@pytest.mark.parametrize(
    "result",
    [
        UNPROCESSABLE,
        error(401, "unauthorized"),
        BUSY,
        read_timeout(),
        payment("processing", version=2),
        error(402, "card_declined"),
        answered(204),
    ],
)
def test_guard_forwarded_repeat_that_shows_nothing_newer_gives_the_stored_answer(result: WireResult) -> None:
    """P6: it never releases the key and never relabels the operation."""
    play(
        guard(CLAIM),
        (Recorded(executed_with_answer(), False), repeats()),
        (ends(result), replies(201, "executed", replayed=True)),
    )


def test_guard_forwarded_repeat_without_anything_stored_is_504_with_the_recorded_knowledge() -> None:
    played = guard(CLAIM)
    played.step(Recorded(ended(claimed(), State.EXECUTED), False), NOW_MS)
    command = played.step(ends(UNPROCESSABLE), NOW_MS).command
    assert replies(504, "executed", code="result_unknown")(command)
    assert isinstance(command, Reply) and last_answer(command)["status"] == 422


def test_guard_stored_replay_sends_nothing() -> None:
    claim = create(route=replace(CREATE, replay=Replay.STORED))
    play(guard(claim), (Recorded(executed_with_answer(), False), replies(201, "executed", replayed=True)))


def test_guard_pending_is_forwarded_even_on_a_stored_route() -> None:
    claim = create(route=replace(CREATE, replay=Replay.STORED))
    play(guard(claim), (Recorded(ended(claimed(), State.PENDING, accepted=True), False), repeats()))


def test_guard_confirm_that_only_evidence_settled_is_never_forwarded() -> None:
    """P6: the platform may never have seen the key."""
    known = ended(claimed(), State.EXECUTED, acts_on_existing=True, settled_by="event", newest=seen())
    play(guard(CLAIM), (Recorded(known, False), replies(200, "executed", replayed=True)))


def test_guard_confirm_that_evidence_settled_without_a_body_is_504_and_not_forwarded() -> None:
    known = ended(
        claimed(), State.EXECUTED, acts_on_existing=True, settled_by="lookup", newest=seen(body=None)
    )
    play(guard(CLAIM), (Recorded(known, False), replies(504, "executed", code="result_unknown")))


def test_guard_settled_by_hand_is_409_and_sends_nothing() -> None:
    """C5."""
    by_hand = ended(claimed(), State.EXECUTED, by_hand="failed", status="failed")
    play(guard(CLAIM), (Recorded(by_hand, False), replies(409, "executed", code="settled_by_hand")))


def test_guard_stored_answer_older_than_evidence_without_a_body_is_not_shown() -> None:
    """A stored decline must not be told of a payment that succeeded since (H8)."""
    recorded = executed_with_answer(newest=seen(version=5, body=None))
    play(
        guard(CLAIM),
        (Recorded(recorded, False), repeats()),
        (ends(BUSY), replies(504, "executed", code="result_unknown")),
    )


def test_guard_update_that_failed_still_gives_the_live_answer() -> None:
    play(
        guard(CLAIM),
        (Recorded(executed_with_answer(), False), repeats()),
        (ends(payment(version=4)), updates(State.EXECUTED)),
        (StoreFailed("down"), replies(200, "executed")),
    )


def test_guard_update_that_failed_says_what_the_live_answer_made_known() -> None:
    """A declined payment told as pending, by the record that could not be written: body and header disagreed."""
    pending = ended(claimed(), State.PENDING, accepted=True)
    play(
        guard(CLAIM),
        (Recorded(pending, False), repeats()),
        (ends(payment("failed", version=4)), updates(State.EXECUTED)),
        (StoreFailed("down"), replies(200, "executed")),
    )


def test_guard_update_refused_for_newer_evidence_gives_that() -> None:
    newer = executed_with_answer(newest=seen(version=9, body=b'{"version":9}'))
    play(
        guard(CLAIM),
        (Recorded(executed_with_answer(), False), repeats()),
        (ends(payment(version=4)), updates(State.EXECUTED)),
        (SettleRefused(newer), replies(200, "executed", replayed=True)),
    )


def test_guard_repeat_that_disputes_the_recorded_version_gives_what_is_recorded() -> None:
    """State table; and people are told."""
    before = executed_with_answer()
    entry = Entry(at_ms=1, kind=EntryKind.OUTCOME_CONFLICT, text="version 3 was succeeded, and is failed")
    facts = play(
        guard(CLAIM),
        (Recorded(before, False), repeats()),
        (ends(payment("failed", version=3)), updates(State.EXECUTED)),
        (SettleRefused(replace(before, history=(entry,))), replies(201, "executed", replayed=True)),
    )
    assert [fact.text for fact in facts if isinstance(fact, OutcomeConflict)] == [entry.text]


def test_guard_repeat_of_what_a_person_settled_meanwhile_is_told_so() -> None:
    pending = replace(executed_with_answer(), state=State.PENDING, status="processing")
    play(
        guard(CLAIM),
        (Recorded(pending, False), repeats()),
        (ends(payment("processing", version=3)), updates(State.PENDING)),
        (
            SettleRefused(replace(pending, state=State.EXECUTED, by_hand="failed")),
            replies(409, "executed", code="settled_by_hand"),
        ),
    )


# --- K3: a failure that was given ---------------------------------------------------------------------------


def failed(**changes: object) -> Operation:
    return replace(led(Book(), COUNTED), state=State.EXECUTED, owner=None, status="failed", **changes)


def test_guard_failure_given_to_the_caller_is_to_be_confirmed() -> None:
    operation = led(Book(), COUNTED)
    play(
        guard(COUNTED),
        (Began(COUNTED), reserves()),
        (Reserved(operation), sends(1)),
        (ends(payment("failed")), settles(State.EXECUTED)),
        (Settled(failed()), replies(200, "executed", given=True)),
    )


def test_guard_failure_that_was_learned_later_is_told_before_the_number_grows() -> None:
    due = failed(settled_by="lookup", newest=seen("failed", source="lookup"))
    play(guard(COUNTED), (Recorded(due, True), replies(200, "executed", replayed=True, given=True)))


def test_guard_504_about_a_failed_operation_gives_no_failure() -> None:
    """A caller that only heard `result_unknown` was not told that the card was declined (why 4)."""
    play(
        guard(COUNTED),
        (Recorded(failed(), False), repeats()),
        (ends(UNPROCESSABLE), replies(504, "executed", given=False)),
    )


def test_guard_conflict_on_a_failed_operation_gives_no_failure() -> None:
    play(guard(COUNTED), (Conflicting(failed(), ("x",)), replies(409, "executed", given=False)))


def test_guard_settled_by_hand_as_failed_counts_as_given() -> None:
    by_hand = failed(by_hand="failed")
    play(guard(COUNTED), (Recorded(by_hand, True), replies(409, "executed", given=True)))


def test_guard_failure_already_given_needs_no_second_confirmation() -> None:
    play(
        guard(COUNTED),
        (
            Recorded(failed(failure_delivered=True, newest=seen("failed")), True),
            replies(200, "executed", replayed=True),
        ),
    )


# --- leases, evidence while the run goes on -----------------------------------------------------------------


def test_guard_lost_lease_finishes_the_attempt_and_starts_no_other() -> None:
    played = guard(CLAIM)
    play(played, *START)
    played.lease_lost()
    play(played, (ends(read_timeout()), settles(State.UNKNOWN)))


def test_guard_lease_lost_in_a_back_off_records_no_attempt() -> None:
    played = guard(CLAIM)
    play(played, *START, (ends(read_timeout()), sleeps()))
    played.lease_lost()
    play(played, (Woke(), settles(State.UNKNOWN)))


def test_guard_zombie_follows_the_run_that_replaced_it() -> None:
    """P5."""
    play(
        guard(CLAIM),
        *START,
        (ends(too_late()), sleeps()),
        (Woke(), records()),
        (Superseded(with_fence(OTHERS, 2)), waits()),
        (RunGone(), reserves()),
    )


def test_guard_zombie_that_takes_over_again_may_retry() -> None:
    played = guard(CLAIM)
    play(played, *START)
    played.lease_lost()
    play(
        played,
        (ends(too_late()), settles(State.NOT_EXECUTED)),
        (SettleRefused(with_fence(OTHERS, 2)), waits()),
        (RunGone(), reserves()),
        (Reserved(with_fence(doubtful(), 3)), sends(2)),
        (ends(read_timeout()), sleeps()),
    )


def test_guard_run_that_evidence_settled_gives_the_evidence() -> None:
    """U4."""
    known = ended(claimed(), State.EXECUTED, newest=seen())
    play(
        guard(CLAIM),
        *START,
        (ends(read_timeout()), sleeps()),
        (Woke(), records()),
        (Superseded(known), replies(200, "executed", replayed=True)),
    )


def test_guard_run_that_evidence_settled_gives_evidence_newer_than_its_own_answer() -> None:
    known = ended(claimed(), State.EXECUTED, newest=seen(version=5, body=b'{"version":5}'))
    played = guard(CLAIM)
    play(played, *START, (ends(payment("processing", version=2)), settles(State.PENDING)))
    command = played.step(SettleRefused(known), NOW_MS).command
    assert isinstance(command, Reply)
    assert (command.answer.body, command.marks.knowledge) == (b'{"version":5}', "executed")


def test_guard_own_answer_older_than_evidence_without_a_body_is_504_with_what_is_known() -> None:
    known = ended(claimed(), State.EXECUTED, newest=seen(version=5, body=None))
    play(
        guard(CLAIM),
        *START,
        (ends(payment("failed", version=2)), settles(State.EXECUTED)),
        (Settled(known), replies(504, "executed")),
    )


@pytest.mark.parametrize(
    ("result", "state", "version"),
    [
        (DECLINED, State.EXECUTED, 2),
        (DECLINED, State.EXECUTED, None),
        (answered(202, b""), State.PENDING, 2),
        (payment("failed", version=None), State.EXECUTED, None),
    ],
    ids=["402", "402, no versions", "202 without an object", "failed, no versions"],
)
def test_guard_own_answer_that_an_event_belies_gives_the_event(
    result: WireResult, state: State, version: int | None
) -> None:
    """U4: the payment had succeeded while the call ran, and its caller was told "declined"."""
    known = ended(
        claimed(), State.EXECUTED, newest=seen(version=version), version=version, status="succeeded"
    )
    play(
        guard(create(route=DECLINING)),
        *START,
        (ends(result), settles(state)),
        (SettleRefused(known), replies(200, "executed", replayed=True)),
    )


def test_guard_unknown_run_with_kept_evidence_gives_that() -> None:
    known = ended(claimed(), State.EXECUTED, newest=seen())
    played = guard(create(route=replace(CREATE, retry=replace(CREATE.retry, attempts=1))))
    play(
        played,
        *START,
        (ends(read_timeout()), settles(State.UNKNOWN)),
        (Settled(known), replies(200, "executed", replayed=True)),
    )


def test_guard_run_settled_by_evidence_without_a_body_says_504_with_what_is_known() -> None:
    known = ended(claimed(), State.PENDING, accepted=True, newest=seen("processing", body=None))
    for event in (Superseded(known), Settled(known)):
        played = guard(CLAIM)
        play(played, *START, (ends(read_timeout()), sleeps()), (Woke(), records()))
        assert replies(504, "pending")(played.step(event, NOW_MS).command)


def test_guard_zombie_of_an_operation_settled_by_hand_is_told_so() -> None:
    by_hand = ended(claimed(), State.EXECUTED, by_hand="failed")
    play(
        guard(CLAIM),
        *START,
        (ends(read_timeout()), sleeps()),
        (Woke(), records()),
        (Superseded(by_hand), replies(409, "executed", code="settled_by_hand")),
    )


def test_guard_zombie_in_doubt_is_not_told_not_executed() -> None:
    """The ledger moved on; what this run sent itself may still be under way."""
    gone = ended(with_fence(claimed(), 4), State.NOT_EXECUTED)
    play(
        guard(CLAIM),
        *START,
        (ends(read_timeout()), sleeps()),
        (Woke(), records()),
        (Superseded(gone), replies(504, "unknown", code="result_unknown")),
    )


def test_guard_settle_refused_for_a_doubt_it_did_not_know_of_ends_unknown() -> None:
    """D3: the same key was sent while the store was down; a refusal here proves nothing about that one."""
    doubted = claimed(doubt=True)
    facts = play(
        guard(CLAIM),
        *START,
        (ends(UNPROCESSABLE), settles(State.NOT_EXECUTED, released=True)),
        (SettleRefused(doubted), settles(State.UNKNOWN)),
    )
    assert any(isinstance(fact, LedgerDisagreed) for fact in facts)


def test_guard_takeover_of_a_dead_leader_is_a_fact() -> None:
    book = Book()
    operation = claimed(prior=State.UNKNOWN)
    taken = replace(operation, history=told(operation, book.now, EntryKind.LEASE_LOST, "over"))
    facts = play(guard(CLAIM), (Reserved(taken), sends(1)))
    assert facts == (LeaseTakenOver(taken.id, "create_payment"),)


def test_guard_conflict_of_evidence_is_a_fact_once() -> None:
    book = Book()
    operation = claimed()
    conflicting = ended(
        replace(operation, history=told(operation, book.now, EntryKind.OUTCOME_CONFLICT, "two truths")),
        State.EXECUTED,
    )
    first = play(
        guard(CLAIM),
        *START,
        (ends(payment()), settles(State.EXECUTED)),
        (Settled(conflicting), replies(200, "executed")),
    )
    again = play(
        guard(CLAIM),
        (Recorded(conflicting, False), repeats()),
        (ends(payment(version=4)), updates(State.EXECUTED)),
        (Settled(conflicting), replies(200, "executed")),
    )
    assert sum(isinstance(fact, OutcomeConflict) for fact in first) == 1
    assert not any(isinstance(fact, OutcomeConflict) for fact in again)


# --- patience -----------------------------------------------------------------------------------------------


def test_guard_early_answer_names_the_operation() -> None:
    """W1."""
    played = guard(CLAIM)
    play(played, *START)
    reply = played.early_answer()
    assert replies(504, "unknown", code="result_unknown")(reply)
    assert reply.location == claimed().id


def test_guard_early_answer_before_the_claim_names_only_the_key() -> None:
    reply = guard(CLAIM).early_answer()
    assert (reply.answer.status, reply.marks.attempts, reply.marks.key, reply.location) == (504, 0, "K", None)


def test_guard_early_answer_names_no_claim_that_is_being_taken_back() -> None:
    """Nothing was sent, and its address would lead nowhere (W1)."""
    played = guard(CLAIM)
    play(played, *START, (ends(breaker_open()), withdraws()))
    reply = played.early_answer()
    assert (reply.marks.knowledge, reply.marks.operation, reply.location) == ("unknown", None, None)


def test_guard_early_answer_names_what_stood_before_the_claim_that_is_taken_back() -> None:
    played = guard(CLAIM)
    play(played, *IN_DOUBT_START, (ends(breaker_open()), withdraws()))
    assert played.early_answer().location == claimed().id


def test_guard_early_answer_of_a_forwarded_repeat_keeps_the_recorded_knowledge() -> None:
    played = guard(CLAIM)
    played.step(Recorded(executed_with_answer(), False), NOW_MS)
    assert played.early_answer().marks.knowledge == "executed"


# --- bugs of the driver -------------------------------------------------------------------------------------


def test_guard_event_without_a_run_is_a_bug() -> None:
    with pytest.raises(ProtocolError):
        guard(CLAIM).step(SettleRefused(claimed()), NOW_MS)


def test_guard_settling_before_any_attempt_ended_is_a_bug() -> None:
    played = guard(CLAIM)
    play(played, *START)
    with pytest.raises(ProtocolError):
        played.step(RetryRefused("drain"), NOW_MS)


def test_guard_answer_with_a_card_is_delivered_and_not_stored() -> None:
    """D4."""
    shown = answered(201, {"id": "pay_1", "status": "succeeded", "card": {"number": "4242424242424242"}})
    played = guard(CLAIM)
    play(played, *START)
    settle = played.step(ends(shown), NOW_MS).command
    assert isinstance(settle, Settle) and settle.answer is not None and settle.seen is not None
    assert (settle.answer.body, settle.seen.body) == (None, None)
    reply = played.step(Settled(ended(claimed(), State.EXECUTED)), NOW_MS).command
    assert isinstance(reply, Reply) and reply.answer == shown.response


def test_guard_answer_over_the_limit_is_delivered_and_not_stored() -> None:
    played = guard(CLAIM, stored_bytes_max=10)
    play(played, *START)
    settle = played.step(ends(payment()), NOW_MS).command
    assert isinstance(settle, Settle) and settle.answer is not None and settle.seen is not None
    assert (settle.answer.body, settle.seen.body) == (None, None)


def test_guard_replay_of_a_withheld_body_leaves_its_type_out() -> None:
    refused_ = ended(OTHERS, State.NOT_EXECUTED)
    stored = answer_of(OTHERS, Knowledge.NOT_EXECUTED, status=422, outcome=Outcome.RELEASED, body=None)
    command = guard(CLAIM).step(RunEnded(refused_, stored), NOW_MS).command
    assert isinstance(command, Reply) and command.answer.headers == ()


def test_guard_follower_of_a_withheld_result_is_judged_again_and_forwarded() -> None:
    """D4: a 201 without its body would be no answer."""
    executed = ended(OTHERS, State.EXECUTED)
    stored = answer_of(OTHERS, Knowledge.EXECUTED, status=201, outcome=Outcome.EXECUTED, body=None)
    play(
        guard(CLAIM),
        *FOLLOWING,
        (RunEnded(executed, stored), reserves()),
        (Recorded(executed, False), repeats()),
    )
