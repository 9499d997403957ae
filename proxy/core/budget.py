"""What protects the platform from our retries: a budget for them, and a breaker (R7).

State machines with the time passed in, one pair for each upstream and process.
"""

from __future__ import annotations

from collections import deque
from enum import StrEnum
from typing import assert_never

from proxy.core.http import Answered, MaybeSent, MaybeSentReason, NotSent, NotSentReason, WireResult

WINDOW_MS = 10_000
"""What the budget's floor counts over (R7)."""

_SLICES = 20  # a window moves in steps of a twentieth of itself


class _Slices:
    """Counts in slices of time, so that a busy window takes no more memory than a quiet one."""

    def __init__(self, window_ms: int) -> None:
        self._slice_ms = max(1, window_ms // _SLICES)
        self._window_ms = window_ms
        self._counts: deque[list[int]] = deque()

    def add(self, now_ms: int) -> None:
        number = now_ms // self._slice_ms
        if self._counts and self._counts[-1][0] >= number:
            self._counts[-1][1] += 1
        else:
            self._counts.append([number, 1])

    def count(self, now_ms: int, *, whole: bool) -> int:
        """How many in the last window. `whole`: only slices that lie in it wholly, else all that touch it."""
        start_ms = now_ms - self._window_ms
        while self._counts and (self._counts[0][0] + 1) * self._slice_ms <= start_ms:
            self._counts.popleft()
        total = sum(count for _, count in self._counts)
        if whole and self._counts and self._counts[0][0] * self._slice_ms < start_ms:
            return total - self._counts[0][1]
        return total

    def clear(self) -> None:
        self._counts.clear()


class RetryBudget:
    """How many retries the platform is asked to bear: a share of the calls, plus a floor, in any window.

    A retry is withdrawn when it is about to start, not when it is planned: those that sleep hold nothing, and
    those that wake together find one budget (O-48).

    Args: ratio: retries for each call in the last `window_ms`. floor: retries in `window_ms` that are always
        allowed, so that a quiet service can retry at all.
    """

    def __init__(self, *, ratio: float, floor: int, window_ms: int = WINDOW_MS) -> None:
        self._ratio = ratio
        self._floor = floor
        self._calls = _Slices(window_ms)
        self._retries = _Slices(window_ms)

    def call(self, now_ms: int) -> None:
        """A call begins, which earns its share."""
        self._calls.add(now_ms)

    def withdraw(self, now_ms: int) -> bool:
        """Whether a retry may start now; if so, it is counted."""
        allowed = self.remaining(now_ms) > 0
        if allowed:
            self._retries.add(now_ms)
        return allowed

    def remaining(self, now_ms: int) -> int:
        """How many retries could start now. Errs towards fewer, so that the bound holds for every window."""
        earned = int(self._ratio * self._calls.count(now_ms, whole=True))
        return max(0, self._floor + earned - self._retries.count(now_ms, whole=False))


class BreakerState(StrEnum):
    """Whether attempts may go to the platform."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"  # one trial is on its way


_LOCAL = frozenset(
    {
        NotSentReason.POOL_TIMEOUT,
        NotSentReason.TOO_LATE,
        NotSentReason.CONNECTION_LOST,
        NotSentReason.RESOURCES,
        NotSentReason.BREAKER_OPEN,
    }
)
"""Ends that tell of this process, or of one connection, and not of the platform."""

TRIAL_MS_MAX = 60_000
"""After this long a trial that never ended is given up: its call may have ended without an attempt."""


class Breaker:
    """Stops attempts while the platform can't be reached (R7).

    Opens when at least `failures` attempts within `window_ms` were not sent or timed out, and no fewer than
    were answered: a busy service has twenty time-outs in ten seconds on a good day, and must not be cut off
    by them. After `open_for_ms` one attempt is let through as a trial; its answer closes the breaker.
    """

    def __init__(self, *, failures: int, window_ms: int, open_for_ms: int) -> None:
        self._failures_min = failures
        self._open_for_ms = open_for_ms
        self._failed = _Slices(window_ms)
        self._answered = _Slices(window_ms)
        self._since_ms = 0
        self.state = BreakerState.CLOSED

    def allows(self, now_ms: int) -> int | None:
        """None: go, and say by `ended` how it went. Else the milliseconds until it is worth asking again.

        The first to ask after the open time is the trial.
        """
        blocked_ms = self.blocked_ms(now_ms)
        if blocked_ms is None and self.state is not BreakerState.CLOSED:
            self._enter(BreakerState.HALF_OPEN, now_ms)
        return blocked_ms

    def blocked_ms(self, now_ms: int) -> int | None:
        """What `allows` would say, for one who does not send yet: it takes no trial."""
        match self.state:
            case BreakerState.CLOSED:
                return None
            case BreakerState.OPEN:
                wait_ms = self._since_ms + self._open_for_ms - now_ms
            case BreakerState.HALF_OPEN:
                wait_ms = self._since_ms + TRIAL_MS_MAX - now_ms
            case _:
                assert_never(self.state)
        return min(wait_ms, self._open_for_ms) if wait_ms > 0 else None

    def ended(self, result: WireResult, now_ms: int) -> None:
        """How an attempt ended. Any whole answer shows that the platform is there, whatever it says.

        While a trial is on its way, the end of an older attempt counts like the trial's: as good a sign.
        """
        if isinstance(result, NotSent) and result.reason in _LOCAL:
            if self.state is BreakerState.HALF_OPEN:
                self._enter(BreakerState.OPEN, now_ms - self._open_for_ms)
            return
        if self.state is BreakerState.CLOSED:
            self._count(result, now_ms)
        elif self.state is BreakerState.HALF_OPEN:
            is_answer = isinstance(result, Answered)
            self._enter(BreakerState.CLOSED if is_answer else BreakerState.OPEN, now_ms)

    def _count(self, result: WireResult, now_ms: int) -> None:
        if isinstance(result, Answered):
            self._answered.add(now_ms)
        elif _is_failure(result):
            self._failed.add(now_ms)
            failed = self._failed.count(now_ms, whole=False)
            if failed >= max(self._failures_min, self._answered.count(now_ms, whole=False)):
                self._enter(BreakerState.OPEN, now_ms)

    def _enter(self, state: BreakerState, now_ms: int) -> None:
        self.state = state
        self._since_ms = now_ms
        self._failed.clear()
        self._answered.clear()


def _is_failure(result: NotSent | MaybeSent) -> bool:
    return isinstance(result, NotSent) or result.reason is MaybeSentReason.TIMEOUT
