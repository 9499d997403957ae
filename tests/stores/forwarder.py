"""A TCP forwarder between a store and its server, with faults: the network as a test has it."""

from __future__ import annotations

import asyncio
from contextlib import suppress

CHUNK_BYTES = 65_536


class Forwarder:
    """Forwards each connection to `port`, which may be changed for those that come later (O-51).

    `swallow_reply`: the next request that holds these bytes is carried out and its reply lost, with the
    connection. `swallow_request`: it never arrives.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self.swallow_reply: bytes | None = None
        self.swallow_request: bytes | None = None
        self.swallowed = 0
        self.has_swallowed = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> Forwarder:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/0"

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            writer.close()
            return
        back = asyncio.ensure_future(self._pass(far_reader, writer))
        try:
            await self._forward(reader, far_writer, far_reader, back)
        finally:
            back.cancel()
            await asyncio.gather(back, return_exceptions=True)
            writer.close()
            far_writer.close()
            self._tasks.discard(task)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while chunk := await reader.read(CHUNK_BYTES):
                writer.write(chunk)
                await writer.drain()
        writer.close()

    async def _forward(
        self,
        reader: asyncio.StreamReader,
        far_writer: asyncio.StreamWriter,
        far_reader: asyncio.StreamReader,
        back: asyncio.Task[None],
    ) -> None:
        with suppress(ConnectionError):
            while chunk := await reader.read(CHUNK_BYTES):
                if self.swallow_request is not None and self.swallow_request in chunk:
                    self.swallow_request = None
                    self._count()
                    return
                loses = self.swallow_reply is not None and self.swallow_reply in chunk
                if loses:
                    self.swallow_reply = None
                    back.cancel()
                    await asyncio.gather(back, return_exceptions=True)
                far_writer.write(chunk)
                await far_writer.drain()
                if loses:
                    await far_reader.read(CHUNK_BYTES)  # it was carried out
                    self._count()
                    return

    def _count(self) -> None:
        self.swallowed += 1
        self.has_swallowed.set()
