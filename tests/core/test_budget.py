"""The retry budget and the breaker (R7, O-48)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.budget import TRIAL_MS_MAX, Breaker, BreakerState, RetryBudget
from proxy.core.http import (
    Answered,
    MaybeSent,
    MaybeSentReason,
    NotSent,
    NotSentReason,
    Phase,
    Response,
    WireResult,
)

ANSWER = Answered(Response(500, (), b""))
REFUSED = NotSent(NotSentReason.REFUSED)
TIMEOUT = MaybeSent(MaybeSentReason.TIMEOUT, Phase.WAITING)
RESET = MaybeSent(MaybeSentReason.RESET, Phase.WAITING)
LOCAL = NotSent(NotSentReason.POOL_TIMEOUT)


def budget() -> RetryBudget:
    return RetryBudget(ratio=0.2, floor=10)


def test_budget_of_a_quiet_service_is_the_floor() -> None:
    quiet = budget()
    quiet.call(0)
    assert [quiet.withdraw(5) for _ in range(11)] == [True] * 10 + [False]
    assert quiet.remaining(5) == 0


def test_budget_grows_by_a_fifth_of_the_calls() -> None:
    busy = budget()
    for at_ms in range(1_000):
        busy.call(at_ms)
    assert busy.remaining(1_000) == 210


def test_budget_comes_back_when_the_window_has_passed() -> None:
    spent = budget()
    while spent.withdraw(100):
        pass
    assert spent.remaining(10_000) == 0
    assert spent.remaining(10_500) == 10


def test_budget_forgets_calls_before_it_forgets_retries() -> None:
    busy = budget()
    for _ in range(100):
        busy.call(499)
    while busy.withdraw(499):
        pass
    assert busy.remaining(10_000) == 0
    assert busy.remaining(10_100) == 0
    assert busy.remaining(10_500) == 10


def test_budget_counts_calls_only_while_all_of_their_slice_is_in_the_window() -> None:
    busy = budget()
    for _ in range(100):
        busy.call(499)
    assert [busy.remaining(at_ms) for at_ms in (10_000, 10_100)] == [30, 10]


@given(st.lists(st.tuples(st.integers(0, 2_000), st.booleans()), max_size=300))
def test_budget_holds_in_every_window(steps: list[tuple[int, bool]]) -> None:
    """Whenever a retry starts: in the 10 s up to then no more than 10, and a fifth of that time's calls."""
    limited, now_ms = budget(), 0
    calls: list[int] = []
    retries: list[int] = []
    for pause_ms, is_call in steps:
        now_ms += pause_ms
        if is_call:
            limited.call(now_ms)
            calls.append(now_ms)
        elif limited.withdraw(now_ms):
            retries.append(now_ms)
            recent = [sum(1 for at_ms in seen if at_ms > now_ms - 10_000) for seen in (calls, retries)]
            assert recent[1] <= 10 + recent[0] * 0.2


def test_budget_with_a_clock_that_stands_still_or_is_read_out_of_order_counts_on() -> None:
    limited = budget()
    limited.call(600)
    limited.call(400)
    assert limited.remaining(600) == 10
    assert [limited.withdraw(at_ms) for at_ms in (600, 400)] == [True, True]
    assert limited.remaining(600) == 8


def breaker(*ends: WireResult, now_ms: int = 0) -> Breaker:
    made = Breaker(failures=20, window_ms=10_000, open_for_ms=5_000)
    for end in ends:
        made.ended(end, now_ms)
    return made


@pytest.mark.parametrize("end", [REFUSED, TIMEOUT, NotSent(NotSentReason.CERTIFICATE)])
def test_breaker_opens_at_its_number_of_failures(end: WireResult) -> None:
    closed = breaker(*[end] * 19)
    assert (closed.state, closed.allows(0)) == (BreakerState.CLOSED, None)
    opened = breaker(*[end] * 20)
    assert (opened.state, opened.allows(0), opened.allows(3_000)) == (BreakerState.OPEN, 5_000, 2_000)


@pytest.mark.parametrize("end", [ANSWER, RESET, LOCAL, NotSent(NotSentReason.BREAKER_OPEN)])
def test_breaker_counts_nothing_else(end: WireResult) -> None:
    assert breaker(*[end] * 100).state is BreakerState.CLOSED


def test_breaker_counts_within_its_window_only() -> None:
    made = breaker(*[TIMEOUT] * 19)
    made.ended(TIMEOUT, 10_500)
    assert made.state is BreakerState.CLOSED


def test_breaker_of_a_busy_service_stays_closed_while_most_are_answered() -> None:
    assert breaker(*[ANSWER] * 30, *[TIMEOUT] * 29).state is BreakerState.CLOSED
    assert breaker(*[ANSWER] * 30, *[TIMEOUT] * 30).state is BreakerState.OPEN


def half_open() -> Breaker:
    made = breaker(*[REFUSED] * 20)
    assert made.allows(5_000) is None
    assert made.state is BreakerState.HALF_OPEN
    return made


def test_breaker_lets_one_trial_through() -> None:
    made = half_open()
    assert made.allows(5_001) == 5_000


def test_breaker_looked_at_by_one_who_does_not_send_yet_keeps_its_trial() -> None:
    """A back-off that ended took the trial, and the attempt that it was for then found it taken (R7)."""
    made = breaker(*[REFUSED] * 20)
    assert made.blocked_ms(4_000) == 1_000
    assert (made.blocked_ms(5_000), made.state) == (None, BreakerState.OPEN)
    assert made.allows(5_000) is None
    assert made.blocked_ms(5_001) == 5_000


def test_breaker_closes_on_the_trials_answer_and_starts_counting_anew() -> None:
    made = half_open()
    made.ended(ANSWER, 6_000)
    assert (made.state, made.allows(6_000)) == (BreakerState.CLOSED, None)
    for _ in range(19):
        made.ended(REFUSED, 6_000)
    assert made.state is BreakerState.CLOSED


@pytest.mark.parametrize("end", [REFUSED, TIMEOUT, RESET])
def test_breaker_opens_again_when_the_trial_fails(end: WireResult) -> None:
    made = half_open()
    made.ended(end, 6_000)
    assert (made.state, made.allows(6_000), made.allows(11_000)) == (BreakerState.OPEN, 5_000, None)


def test_breaker_gives_the_trial_to_the_next_when_it_told_nothing() -> None:
    made = half_open()
    made.ended(LOCAL, 6_000)
    assert made.allows(6_000) is None
    assert made.state is BreakerState.HALF_OPEN


def test_breaker_gives_up_a_trial_that_never_ends() -> None:
    made = half_open()
    assert made.allows(5_000 + TRIAL_MS_MAX - 1) == 1
    assert made.allows(5_000 + TRIAL_MS_MAX) is None


def test_breaker_open_ignores_the_ends_of_attempts_begun_before() -> None:
    made = breaker(*[TIMEOUT] * 20)
    made.ended(ANSWER, 1_000)
    made.ended(TIMEOUT, 4_000)
    made.ended(LOCAL, 4_000)
    assert (made.state, made.allows(4_000)) == (BreakerState.OPEN, 1_000)
