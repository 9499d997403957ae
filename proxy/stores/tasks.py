"""Ending the stores' background tasks."""

from __future__ import annotations

import asyncio

AGAIN_S = 0.05


async def stop(task: asyncio.Task[None] | None) -> None:
    """End the task and wait until it has ended.

    Cancelled again and again: redis-py can swallow a cancellation that meets it while it connects.
    """
    while task is not None and not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=AGAIN_S)
