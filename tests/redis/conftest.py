"""Several sidecars before one Redis: real processes or whole products, and a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import uvloop

from tests.e2e.stage import Stage
from tests.stores.redis_server import Server


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that the product runs on."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A durable server: `appendonly yes`, `appendfsync always`."""
    server = Server(tmp_path / "server", "--appendonly", "yes", "--appendfsync", "always").start()
    yield server
    server.stop()


@pytest.fixture
def forgetful(tmp_path: Path) -> Iterator[Server]:
    """A server that keeps nothing on disk: started again, it is empty."""
    server = Server(tmp_path / "forgetful", "--appendonly", "no").start()
    yield server
    server.stop()


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    """What a test puts on. A task that nobody waited for and that failed fails the test."""
    async with AsyncExitStack() as stack:
        made = Stage(stack, tmp_path)
        asyncio.get_running_loop().set_exception_handler(made.caught)
        yield made
    assert made.loop_faults == []
