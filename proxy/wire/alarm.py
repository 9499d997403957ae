"""One deadline per connection, moved at every turn of the protocol and ringing almost never."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_NEVER = float("inf")


class Alarm:
    """A deadline that is cheap to move: the loop's timer is left in place and re-armed only when it fires.

    A timer made and cancelled for each request costs more than parsing its head does; here a move is one
    assignment unless the new deadline lies before the armed one.
    """

    __slots__ = ("_armed_at", "_due_at", "_loop", "_ring", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop = loop
        self._ring = ring
        self._due_at = _NEVER
        self._armed_at = _NEVER
        self._timer: asyncio.TimerHandle | None = None

    def set_in(self, delay_ms: float) -> None:
        """Ring `delay_ms` from now, whatever was set before."""
        due_at = self._loop.time() + delay_ms / 1000
        self._due_at = due_at
        if due_at < self._armed_at:
            self._arm(due_at)

    def clear(self) -> None:
        """Do not ring until set again."""
        self._due_at = _NEVER

    def close(self) -> None:
        """Give the loop's timer up; the alarm is at its end."""
        self._due_at = self._armed_at = _NEVER
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, due_at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._armed_at = due_at
        self._timer = self._loop.call_at(due_at, self._fire)

    def _fire(self) -> None:
        self._timer = None
        self._armed_at = _NEVER
        if self._due_at == _NEVER:
            return
        # The loop may run timers up to its clock's resolution early.
        if self._due_at - self._loop.time() > 0.001:
            self._arm(self._due_at)
            return
        self._due_at = _NEVER
        self._ring()
