"""Waits between attempts: back-off, Retry-After, deadline (R5, R6, O-43 to O-45)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.http import Headers
from proxy.core.model import Key, replace
from proxy.core.retry import (
    RETRY_AFTER_MS_MAX,
    backoff_ms,
    http_date_ms,
    plan_retry,
    retry_after_ms,
    retry_times,
)
from proxy.core.rules import Jitter
from tests.core.payhub import RETRY

KEY = Key("payment.create:ORDER-1:1")
BARE = replace(RETRY, jitter=Jitter.NONE)
FULL = replace(RETRY, jitter=Jitter.FULL)

SUNDAY_MS = 784_111_777_000  # Sun, 06 Nov 1994 08:49:37 GMT, RFC 9110's own example
NOW_MS = 1_790_000_000_000


@pytest.mark.parametrize(
    ("attempt", "wait_ms"), [(1, 1_000), (2, 2_000), (3, 4_000), (5, 16_000), (6, 30_000), (10_000, 30_000)]
)
def test_backoff_doubles_up_to_the_cap(attempt: int, wait_ms: int) -> None:
    assert backoff_ms(BARE, KEY, attempt=attempt) == wait_ms


@pytest.mark.parametrize(
    ("base_ms", "cap_ms", "multiplier", "waits"),
    [
        (0, 50, 2.0, [0, 0, 0]),
        (50, 50, 2.0, [50, 50, 50]),
        (80, 50, 2.0, [50, 50, 50]),
        (10, 50, 1.0, [10, 10, 10]),
        (10, 50, 1.5, [10, 15, 22]),
        (10, 50, 1e300, [10, 50, 50]),
    ],
)
def test_backoff_with_odd_settings_keeps_to_the_cap(
    base_ms: int, cap_ms: int, multiplier: float, waits: list[int]
) -> None:
    policy = replace(BARE, base_ms=base_ms, cap_ms=cap_ms, multiplier=multiplier)
    assert [backoff_ms(policy, KEY, attempt=attempt) for attempt in (1, 2, 3)] == waits


@given(st.text(), st.integers(1, 10_000), st.sampled_from(Jitter), st.floats(1, 100))
def test_backoff_of_any_attempt_is_within_its_bounds(
    key: str, attempt: int, jitter: Jitter, multiplier: float
) -> None:
    policy = replace(RETRY, jitter=jitter, base_ms=1, cap_ms=50, multiplier=multiplier)
    wait_ms = backoff_ms(policy, Key(key.encode("ascii", "replace").decode()), attempt=attempt)
    assert 0 <= wait_ms <= 50 + (250 if jitter is Jitter.ADDITIVE else 0)


def test_jitter_is_the_same_for_one_attempt_and_spread_over_keys() -> None:
    waits = [backoff_ms(RETRY, Key(f"K{n}"), attempt=1) for n in range(1_000)]
    assert waits == [backoff_ms(RETRY, Key(f"K{n}"), attempt=1) for n in range(1_000)]
    assert min(waits) < 1_010
    assert max(waits) > 1_240
    bins = [sum(1 for wait in waits if low <= wait - 1_000 < low + 50) for low in range(0, 250, 50)]
    assert min(bins) > 150
    assert len({backoff_ms(FULL, KEY, attempt=attempt) for attempt in range(10, 20)}) == 10


def asked(*retry_after: bytes, date: bytes | None = None) -> int | None:
    headers: Headers = tuple((b"Retry-After", value) for value in retry_after)
    if date is not None:
        headers += ((b"Date", date),)
    return retry_after_ms(headers, received_wall_ms=NOW_MS)


@pytest.mark.parametrize(
    ("value", "wait_ms"),
    [
        (b"2", 2_000),
        (b" 2 ", 2_000),
        (b"0", 0),
        (b"000", 0),
        (b"1.5", 1_500),
        (b"0.0001", 1),
        (b"0.9999", 1_000),
        (b"2.0000", 2_000),
        (b"0120", 120_000),
        (b"31622400", RETRY_AFTER_MS_MAX),
        (b"9999999999", RETRY_AFTER_MS_MAX),
        (b"9" * 5_000, RETRY_AFTER_MS_MAX),
        (b"9" * 5_000 + b".5", RETRY_AFTER_MS_MAX),
    ],
)
def test_retry_after_in_seconds(value: bytes, wait_ms: int) -> None:
    assert asked(value) == wait_ms


@pytest.mark.parametrize(
    "value",
    [
        *(
            b"",
            b"-1",
            b"-0",
            b"+2",
            b"NaN",
            b"inf",
            b"1e3",
            b"soon",
            b"2 s",
            b"2,3",
            b"1.",
            b".5",
            b"\xb2",
            b"0x10",
        ),
        b"Wed, 21 Oct 2015 07:28:00 GMT",
        b"Wed, 21 Oct 2099 07:28:00",
        b"Wed, 21 Oct 2099 07:28:00 CET",
        b"Wed, 31 Feb 2099 07:28:00 GMT",
        b"Wed, 21 Okt 2099 07:28:00 GMT",
        b"Wed, 21 Oct 2099 24:00:00 GMT",
        b"Wed, 21 Oct 2099 07:60:00 GMT",
        b"Wed, 21 Oct 2099 07:28:61 GMT",
        b"Wed, 21 Oct 0000 07:28:00 GMT",
        "Wed, ٢١ Oct 2099 07:28:00 GMT".encode(),
    ],
)
def test_retry_after_that_is_past_or_broken_is_no_advice(value: bytes) -> None:
    assert asked(value) is None


def test_retry_after_absent_is_no_advice() -> None:
    assert asked() is None


@pytest.mark.parametrize(
    ("value", "wait_ms"),
    [
        (b"Sun, 06 Nov 1994 08:49:41 GMT", 4_000),
        (b"Sunday, 06-Nov-94 08:49:41 GMT", 4_000),
        (b"Sun Nov  6 08:49:41 1994", 4_000),
        (b"sun, 06 nov 1994 08:49:41 gmt", 4_000),
        (b"Sun, 06 Nov 1994 08:49:37 GMT", 0),
        (b"Sun, 06 Nov 1994 08:49:36 GMT", None),
    ],
)
def test_retry_after_as_a_date_is_measured_against_the_answers_own(value: bytes, wait_ms: int | None) -> None:
    assert asked(value, date=b"Sun, 06 Nov 1994 08:49:37 GMT") == wait_ms


@pytest.mark.parametrize("date", [None, b"yesterday"])
def test_retry_after_as_a_date_without_a_date_beside_it_is_measured_from_receipt(date: bytes | None) -> None:
    headers: Headers = ((b"retry-after", b"Sun, 06 Nov 1994 08:49:41 GMT"),)
    if date is not None:
        headers += ((b"date", date),)
    assert retry_after_ms(headers, received_wall_ms=SUNDAY_MS + 1_500) == 2_500


def test_retry_after_given_twice_waits_the_longer_and_skips_the_broken() -> None:
    assert asked(b"1", b"3", b"soon") == 3_000


@pytest.mark.parametrize(
    ("text", "at_ms"),
    [
        ("Sun, 06 Nov 1994 08:49:37 GMT", SUNDAY_MS),
        ("Sunday, 06-Nov-94 08:49:37 GMT", SUNDAY_MS),
        ("Sun Nov  6 08:49:37 1994", SUNDAY_MS),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0),
        ("Thu, 29 Feb 2024 23:59:60 GMT", 1_709_251_200_000),
        ("Friday, 01-Jan-27 00:00:00 GMT", 1_798_761_600_000),
        ("Friday, 01-Jan-76 00:00:00 GMT", 3_345_062_400_000),
        ("Saturday, 01-Jan-77 00:00:00 GMT", 220_924_800_000),
    ],
)
def test_http_date_in_each_form(text: str, at_ms: int) -> None:
    assert http_date_ms(text, now_ms=NOW_MS) == at_ms  # 2026: two digits reach to 2076


def planned(
    attempt: int, asked_ms: int | None = None, *, now_ms: int = 0, deadline_ms: int = 120_000
) -> int | None:
    return plan_retry(BARE, KEY, attempt, retry_after_ms=asked_ms, now_ms=now_ms, deadline_ms=deadline_ms)


@pytest.mark.parametrize(
    ("attempt", "now_ms", "at_ms"),
    [
        (1, 0, 1_000),
        (1, 99_000, 100_000),
        (1, 99_001, None),  # its time-out of 20 s would not end by the deadline
        (4, 80_000, 88_000),
        (5, 0, None),
        (9, 0, None),
    ],
)
def test_plan_holds_the_number_of_attempts_and_the_deadline(
    attempt: int, now_ms: int, at_ms: int | None
) -> None:
    assert planned(attempt, now_ms=now_ms) == at_ms


@pytest.mark.parametrize(
    ("asked_ms", "at_ms"), [(0, 0), (2_000, 2_000), (100_000, 100_000), (100_001, None), (600_000, None)]
)
def test_plan_waits_as_long_as_asked_or_stops(asked_ms: int, at_ms: int | None) -> None:
    assert planned(3, asked_ms) == at_ms


@pytest.mark.parametrize(
    ("jitter", "most_ms"), [(Jitter.ADDITIVE, 250), (Jitter.FULL, 1_000), (Jitter.NONE, 0)]
)
def test_plan_puts_jitter_on_top_of_what_was_asked(jitter: Jitter, most_ms: int) -> None:
    policy = replace(RETRY, jitter=jitter)
    instants = [
        plan_retry(policy, Key(f"K{n}"), 1, retry_after_ms=2_000, now_ms=0, deadline_ms=120_000) or 0
        for n in range(200)
    ]
    assert min(instants) >= 2_000
    assert 2_000 + most_ms * 0.9 <= max(instants) <= 2_000 + most_ms


def test_payhubs_plan_of_five_timeouts_fits_its_deadline() -> None:
    times = retry_times(RETRY, KEY, attempt_ms=RETRY.attempt_timeout_ms)
    assert len(times) == 5
    assert times[-1] + RETRY.attempt_timeout_ms <= 116_000
    assert retry_times(BARE, KEY) == (0, 1_000, 3_000, 7_000, 15_000)


def test_retry_times_stop_at_the_deadline() -> None:
    assert retry_times(replace(BARE, deadline_ms=45_000), KEY, attempt_ms=20_000) == (0, 21_000)
    assert retry_times(replace(BARE, deadline_ms=10_000), KEY) == (0,)
