"""Ends of runs as other sidecars publish them: one channel for each operation that someone here waits for.

A message only hurries the poll along (`waiters.py`); one that is lost costs a quarter of a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from redis.asyncio import Redis
from redis.asyncio.client import PubSub

from proxy.core.model import OperationId
from proxy.stores.redis_link import Link
from proxy.stores.redis_rows import PREFIX, channel_of
from proxy.stores.redis_trouble import NETWORK
from proxy.stores.tasks import stop

HELLO = f"{PREFIX}:listening"  # keeps the subscription open while nobody waits
RETRY_S = 0.5
CLOSE_S = 1.0


class Listener:
    """Subscribes while it is wanted; subscribes again after a break.

    Args: heard: called for an operation whose run may have ended, also when listening for it has just begun,
        since the end may have been published a moment before (O-49).
    """

    def __init__(self, link: Link, heard: Callable[[OperationId], None]) -> None:
        self._link = link
        self._heard = heard
        self._wanted: dict[bytes, OperationId] = {}
        self._stirred = asyncio.Event()
        self._is_closing = False
        self._task: asyncio.Task[None] | None = None

    def watch(self, operation: OperationId, wanted: bool) -> None:
        """Someone waits for the operation, or nobody does any more."""
        channel = channel_of(operation).encode()
        if wanted:
            self._wanted[channel] = operation
        else:
            self._wanted.pop(channel, None)
        self._stirred.set()
        if self._task is None and wanted:
            self._task = asyncio.get_running_loop().create_task(self._listen(), name="store-listener")

    async def close(self) -> None:
        """Ends by itself within a moment; redis-py takes cancellations badly."""
        self._is_closing = True
        self._stirred.set()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=CLOSE_S)
            await stop(self._task)

    async def _listen(self) -> None:
        while not self._is_closing:
            try:
                await self._subscribe(self._link.listening_client())
            except NETWORK:
                await asyncio.sleep(RETRY_S)  # the poll goes on meanwhile

    async def _subscribe(self, client: Redis) -> None:
        try:
            async with client.pubsub() as subscription:
                await subscription.subscribe(HELLO)
                await self._follow(subscription)
        finally:
            if client is not self._link.client:
                await client.aclose()

    async def _follow(self, subscription: PubSub) -> None:
        """Keep the subscription in step with what is wanted, while someone listens to it."""
        hearing = asyncio.get_running_loop().create_task(self._hear(subscription))
        hearing.add_done_callback(self._heard_out)
        have: set[bytes] = set()
        try:
            while not self._is_closing and not hearing.done():
                self._stirred.clear()
                wanted = set(self._wanted)
                if wanted - have:
                    await subscription.subscribe(*(wanted - have))
                if have - wanted:
                    await subscription.unsubscribe(*(have - wanted))
                have = wanted
                await self._stirred.wait()
        finally:
            await stop(hearing)
        if not hearing.cancelled():
            hearing.result()

    def _heard_out(self, hearing: asyncio.Task[None]) -> None:
        """Its break is taken note of here: where the subscription breaks at the same moment nobody else would."""
        self._stirred.set()
        if not hearing.cancelled():
            hearing.exception()

    async def _hear(self, subscription: PubSub) -> None:
        while True:
            message = await subscription.get_message(timeout=None)
            operation = self._wanted.get(message["channel"]) if message is not None else None
            if operation is not None:
                self._heard(operation)
