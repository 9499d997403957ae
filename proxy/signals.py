"""Which signals end the process, which ask something of it, and which mean nothing to it (O1, O3, O4)."""

from __future__ import annotations

import os
import signal

STOP = frozenset({signal.SIGTERM, signal.SIGINT})
"""They drain. SIGQUIT is left to end the process at once, as SIGKILL does."""
RELOAD = frozenset({signal.SIGHUP})

_MEANINGLESS = ("SIGUSR1", "SIGUSR2", "SIGALRM", "SIGVTALRM", "SIGPROF", "SIGIO", "SIGPWR", "SIGPIPE")
"""By default each would end the process, and a log rotation's SIGUSR1 would leave payments in doubt."""


def ignore_meaningless() -> None:
    """Also for processes that are forked from this one."""
    for name in _MEANINGLESS:
        number = getattr(signal, name, None)  # macOS has no SIGPWR
        if number is not None:
            signal.signal(number, signal.SIG_IGN)


def end_at_once() -> None:
    """Let SIGTERM end a start, which has nothing to drain. A container's first process loses it by default.

    The calls that it took a moment later would be cut by the SIGKILL that follows.
    """
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, lambda number, _frame: os._exit(128 + number))


def hold_reload() -> None:
    """One that comes while the process starts waits until `take_reload`, rather than ending it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, RELOAD)


def take_reload() -> None:
    """From now on, the one that has waited first."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, RELOAD)
