"""When the next attempt starts, if one does: back-off, Retry-After and the deadline (R5, R6).

Jitter is a hash of (key, attempt): spread across keys, the same in a test, in a log line and in `explain`.
"""

from __future__ import annotations

import hashlib
import math
import re
from datetime import date

from proxy.core.http import Headers, first, values
from proxy.core.model import Key
from proxy.core.rules import Jitter, RetryPolicy

RETRY_AFTER_MS_MAX = 366 * 86_400_000
"""More than any deadline holds: what a platform asks beyond it is told as this."""


def backoff_ms(policy: RetryPolicy, key: Key, *, attempt: int) -> int:
    """Delay before the attempt after `attempt`, in milliseconds (R5).

    Args: attempt: the one that just ended; 1 is the first.
    Returns: at most `cap_ms`, plus `jitter_max_ms` with additive jitter; for any attempt, however late.
    Source: AWS Architecture Blog, "Exponential Backoff And Jitter", for the full kind.
    """
    step = _step_ms(policy, attempt)
    if policy.jitter is Jitter.FULL:
        return _spread(key, attempt, step)
    return step + _jitter_ms(policy, key, attempt)


def retry_after_ms(headers: Headers, *, received_wall_ms: int) -> int | None:
    """How long the platform asks to wait, in milliseconds; None for no advice that can be followed (R6).

    Seconds, also fractional, or an HTTP-date in any of its three forms (RFC 9110 section 5.6.7), measured
    against the answer's own `Date`, else against when it was received. Negative, past and broken values are
    no advice. Of several values the longest counts.
    """
    asked = [
        wait
        for value in values(headers, b"retry-after")
        if (wait := _wait_ms(value.decode("latin-1"), headers, received_wall_ms)) is not None
    ]
    return min(max(asked), RETRY_AFTER_MS_MAX) if asked else None


def plan_retry(
    policy: RetryPolicy, key: Key, attempt: int, *, retry_after_ms: int | None, now_ms: int, deadline_ms: int
) -> int | None:
    """The instant at which the next attempt may start, None where none may (R5).

    An attempt starts only if its whole time-out ends by the deadline: one cut short would be one more doubt,
    with less chance of an answer. payhub's plan fits: 5 x 20 s, 15 s of waits and 1 s of jitter within 120 s.

    Args: attempt: the one that just ended; 1 is the first. retry_after_ms: what the platform asked for, which
        replaces the computed wait; jitter comes on top, never below. deadline_ms: on the clock of `now_ms`.
    """
    if attempt >= policy.attempts:
        return None
    if retry_after_ms is None:
        wait_ms = backoff_ms(policy, key, attempt=attempt)
    else:
        wait_ms = retry_after_ms + _jitter_ms(policy, key, attempt)
    at_ms = now_ms + wait_ms
    return at_ms if at_ms + policy.attempt_timeout_ms <= deadline_ms else None


def retry_times(policy: RetryPolicy, key: Key, *, attempt_ms: int = 0) -> tuple[int, ...]:
    """When each attempt starts, in milliseconds from the first, if each ends in doubt after `attempt_ms`."""
    times = [0]
    while True:
        next_ms = plan_retry(
            policy,
            key,
            len(times),
            retry_after_ms=None,
            now_ms=times[-1] + attempt_ms,
            deadline_ms=policy.deadline_ms,
        )
        if next_ms is None:
            return tuple(times)
        times.append(next_ms)


def _step_ms(policy: RetryPolicy, attempt: int) -> int:
    """min(cap, base * multiplier**(attempt - 1)), without computing a power that overflows."""
    if policy.base_ms <= 0 or policy.base_ms >= policy.cap_ms:
        return min(policy.base_ms, policy.cap_ms)
    if policy.multiplier <= 1:
        return policy.base_ms
    steps_to_cap = math.log(policy.cap_ms / policy.base_ms) / math.log(policy.multiplier)
    if attempt - 1 > steps_to_cap:
        return policy.cap_ms
    return min(policy.cap_ms, int(policy.base_ms * policy.multiplier ** (attempt - 1)))


def _jitter_ms(policy: RetryPolicy, key: Key, attempt: int) -> int:
    """What comes on top of a wait. Full jitter is over the whole step; on top of Retry-After, over the"
    " base."""
    span = {Jitter.ADDITIVE: policy.jitter_max_ms, Jitter.FULL: policy.base_ms, Jitter.NONE: 0}
    return _spread(key, attempt, span[policy.jitter])


def _spread(key: Key, attempt: int, span_ms: int) -> int:
    """A number in [0, span_ms], uniform over keys and attempts."""
    digest = hashlib.sha256(f"{attempt}:{key}".encode()).digest()
    return int.from_bytes(digest[:8], "big") * (span_ms + 1) >> 64


_SECONDS = re.compile(r"([0-9]+)(?:\.([0-9]+))?")


def _wait_ms(value: str, headers: Headers, received_wall_ms: int) -> int | None:
    seconds = _SECONDS.fullmatch(value)
    if seconds is not None:
        whole, fraction = seconds[1].lstrip("0"), seconds[2] or ""
        if len(whole) > 10:
            return RETRY_AFTER_MS_MAX
        below = int(fraction[:3].ljust(3, "0")) + (1 if fraction[3:].strip("0") else 0)
        return int(whole or "0") * 1000 + below
    at_ms = http_date_ms(value, now_ms=received_wall_ms)
    if at_ms is None:
        return None
    said = first(headers, b"date")
    sent_ms = None if said is None else http_date_ms(said.decode("latin-1"), now_ms=received_wall_ms)
    wait_ms = at_ms - (received_wall_ms if sent_ms is None else sent_ms)
    return wait_ms if wait_ms >= 0 else None


_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_CLOCK = r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)"
_DATES = (
    re.compile(rf"[a-z]{{3}}, (?P<day>\d\d) (?P<month>[a-z]{{3}}) (?P<year>\d{{4}}) {_CLOCK} gmt"),
    re.compile(rf"[a-z]+day, (?P<day>\d\d)-(?P<month>[a-z]{{3}})-(?P<year>\d\d) {_CLOCK} gmt"),
    re.compile(rf"[a-z]{{3}} (?P<month>[a-z]{{3}}) (?P<day>[ \d]\d) {_CLOCK} (?P<year>\d{{4}})"),
)
_EPOCH_DAY = date(1970, 1, 1).toordinal()


def http_date_ms(text: str, *, now_ms: int) -> int | None:
    """An HTTP-date as milliseconds since the Unix epoch, None where it is none.

    Args: now_ms: tells the century of the old two-digit form: at most 50 years ahead (RFC 9110, 5.6.7).
    """
    match = next((found for form in _DATES if (found := form.fullmatch(text.lower()))), None)
    if match is None or match["month"] not in _MONTHS or not match.string.isascii():
        return None
    hour, minute, second = int(match["hour"]), int(match["minute"]), int(match["second"])
    if hour > 23 or minute > 59 or second > 60:
        return None
    day = _day(match, now_ms)
    return None if day is None else (day * 86_400 + hour * 3_600 + minute * 60 + second) * 1000


def _day(match: re.Match[str], now_ms: int) -> int | None:
    """Days since the Unix epoch."""
    year = int(match["year"])
    if len(match["year"]) == 2:
        latest = date.fromordinal(_EPOCH_DAY + now_ms // 86_400_000).year + 50
        year += (latest - year) // 100 * 100
    try:
        return date(year, _MONTHS.index(match["month"]) + 1, int(match["day"])).toordinal() - _EPOCH_DAY
    except ValueError:  # no such day, like 31 February
        return None
