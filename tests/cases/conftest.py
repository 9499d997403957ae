"""The loop that the product runs on, and the stage of the whole-product tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import uvloop

from tests.e2e.stage import Stage


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that the product runs on."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    """What a test puts on. A task that nobody waited for and that failed fails the test."""
    async with AsyncExitStack() as stack:
        made = Stage(stack, tmp_path)
        asyncio.get_running_loop().set_exception_handler(made.caught)
        yield made
    assert made.loop_faults == []
