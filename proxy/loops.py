"""Which event loop the product runs on, and who hears of what goes wrong in it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")

_BROKEN_UNDER_TLS = ("Fatal error on SSL protocol", "unable to perform operation on ")
_LEFT_BEHIND = "Future exception was never retrieved"


class LoopComplaint(Exception):
    """The loop has something to say that is no exception."""


def run(work: Coroutine[object, object, Result]) -> Result:
    """Run to the end on uvloop, where it exists; else on asyncio's own, which is slower and does the same."""
    try:
        import uvloop  # noqa: PLC0415 -- not on every platform
    except ImportError:
        factory = None
    else:
        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(work)


def tell_faults(fault: Callable[[BaseException], None]) -> None:
    """What the running loop has nobody to give to goes to `fault`, and not as a traceback to stderr (M3, D4)."""

    def hear(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        message: str = context["message"]
        error: BaseException = context.get("exception") or LoopComplaint(message)
        if not _is_lost_connection(message, error):
            fault(error)

    asyncio.get_running_loop().set_exception_handler(hear)


def _is_lost_connection(message: str, error: BaseException) -> bool:
    """A connection broke, and whoever used it hears of that by its own way.

    Under TLS uvloop tells of it here, too, where it was writing at that moment. And a future of the loop's or a
    library's for the end of something on it may have nobody left who waits for it; a task never counts as that.
    """
    said, why = _BROKEN_UNDER_TLS
    if isinstance(error, OSError):  # of a handshake, too, that somebody had given up
        return message.startswith(_LEFT_BEHIND)
    return isinstance(error, RuntimeError) and message.startswith(said) and str(error).startswith(why)
