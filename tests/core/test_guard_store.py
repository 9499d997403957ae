"""The guard whose store fails: before, between and after the attempts (D3)."""

from __future__ import annotations

import pytest

from proxy.core.http import WireResult
from proxy.core.messages import (
    BecameUnknown,
    Began,
    SentUnrecorded,
    Settled,
    StoreFailed,
    Woke,
)
from proxy.core.model import State, replace
from proxy.core.rules import OnFailure
from tests.core.payhub import injecting
from tests.core.play import (
    BUSY,
    CONFIRM,
    CREATE,
    UNPROCESSABLE,
    breaker_open,
    confirm,
    create,
    ends,
    error,
    guard,
    payment,
    play,
    read_timeout,
    records,
    refused,
    repeats,
    replies,
    reserves,
    settles,
    sleeps,
    withdraws,
)
from tests.core.runs import (
    CLAIM,
    START,
    claimed,
    ended,
)

# --- the store that fails -----------------------------------------------------------------------------------


def test_guard_store_down_before_sending_rejects() -> None:
    """D3."""
    play(
        guard(CLAIM),
        (Began(CLAIM), reserves()),
        (StoreFailed("down"), replies(503, "unknown", code="store_unavailable")),
    )


def test_guard_store_down_before_sending_forwards_once_where_told_to() -> None:
    claim = create(route=replace(CREATE, on_failure=OnFailure.FORWARD))
    facts = play(
        guard(claim),
        (Began(claim), reserves()),
        (StoreFailed("down"), repeats()),
        (ends(payment(http=201)), replies(201, "executed")),
    )
    assert SentUnrecorded("create_payment") in facts


@pytest.mark.parametrize("result", [UNPROCESSABLE, BUSY, refused(), read_timeout()])
def test_guard_forwarded_without_the_store_never_says_not_executed(result: WireResult) -> None:
    claim = create(route=replace(CREATE, on_failure=OnFailure.FORWARD))
    play(
        guard(claim),
        (Began(claim), reserves()),
        (StoreFailed("down"), repeats()),
        (ends(result), replies(504, "unknown", code="result_unknown")),
    )


def test_guard_forwarded_without_the_store_passes_an_answer_in_doubt_on() -> None:
    claim = create(route=replace(CREATE, on_failure=OnFailure.FORWARD))
    play(
        guard(claim),
        (StoreFailed("down"), repeats()),
        (ends(error(500, "internal_error")), replies(500, "unknown")),
    )


def test_guard_what_could_not_be_kept_in_memory_is_not_forwarded() -> None:
    claim = create(route=replace(CREATE, on_failure=OnFailure.FORWARD))
    full = StoreFailed("too many", may_forward=False)
    play(guard(claim), (full, replies(503, "unknown", code="store_unavailable")))


def test_guard_key_that_the_store_counts_is_not_forwarded() -> None:
    """A guess of `{seq}` would be another key than the one in doubt (why 14)."""
    route = replace(injecting(CONFIRM), on_failure=OnFailure.FORWARD)
    claim = confirm(key=None, route=route)
    play(guard(claim), (StoreFailed("down"), replies(503, "unknown", code="store_unavailable")))


def test_guard_store_that_fails_between_attempts_ends_the_call_by_what_is_known() -> None:
    """D3: no further attempt starts, and the ledger is owed how the last one ended."""
    play(
        guard(CLAIM),
        *START,
        (ends(BUSY), sleeps()),
        (Woke(), records()),
        (StoreFailed("down"), settles(State.NOT_EXECUTED)),
        (StoreFailed("down"), replies(429, "not_executed")),
    )


def test_guard_store_that_fails_while_the_lease_is_over_says_unknown() -> None:
    facts = play(
        guard(CLAIM),
        *START,
        (ends(UNPROCESSABLE), settles(State.NOT_EXECUTED, released=True)),
        (StoreFailed("down", lease_held=False), replies(504, "unknown", code="result_unknown")),
    )
    assert any(isinstance(fact, BecameUnknown) for fact in facts)


def test_guard_store_that_fails_at_the_end_of_a_run_that_lost_its_lease_says_unknown() -> None:
    played = guard(CLAIM)
    play(played, *START)
    played.lease_lost()
    play(
        played,
        (ends(UNPROCESSABLE), settles(State.NOT_EXECUTED, released=True)),
        (StoreFailed("down"), replies(504, "unknown")),
    )


def test_guard_store_that_fails_at_the_end_where_calls_are_forwarded_says_unknown() -> None:
    """D3: another call may have sent the same key without the store."""
    claim = create(route=replace(CREATE, on_failure=OnFailure.FORWARD))
    play(
        guard(claim),
        *START,
        (ends(UNPROCESSABLE), settles(State.NOT_EXECUTED, released=True)),
        (StoreFailed("down"), replies(504, "unknown")),
    )


def test_guard_store_that_fails_after_a_definite_answer_still_gives_it() -> None:
    play(
        guard(CLAIM),
        *START,
        (ends(payment(http=201)), settles(State.EXECUTED)),
        (StoreFailed("down"), replies(201, "executed")),
    )


def test_guard_store_that_fails_after_a_definite_answer_without_object_still_gives_it() -> None:
    play(
        guard(CLAIM),
        *START,
        (ends(error(409, "order_no_conflict")), settles(State.EXECUTED)),
        (StoreFailed("down"), replies(409, "executed")),
    )


def test_guard_store_that_fails_at_an_unknown_end_says_unknown() -> None:
    played = guard(create(route=replace(CREATE, retry=replace(CREATE.retry, attempts=1))))
    play(
        played,
        *START,
        (ends(read_timeout()), settles(State.UNKNOWN)),
        (StoreFailed("down"), replies(504, "unknown", code="result_unknown")),
    )


def test_guard_withdrawal_that_the_store_did_not_confirm_says_unknown() -> None:
    play(
        guard(CLAIM),
        *START,
        (ends(breaker_open()), withdraws()),
        (StoreFailed("down"), replies(503, "unknown", code="store_unavailable")),
    )


def test_guard_settled_without_an_answer_says_what_is_known() -> None:
    play(guard(CLAIM), *START, (Settled(ended(claimed(), State.UNKNOWN)), replies(504, "unknown")))
