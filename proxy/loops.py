"""Which event loop the product runs on."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

Result = TypeVar("Result")


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
