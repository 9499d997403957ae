"""The way to Redis as a network has it: every byte arrives, late."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Self

CHUNK_BYTES = 65_536


class SlowLine:
    """A port that leads to Redis; each direction takes half of `delay_s`, however much is on its way.

    Unlike a line that sleeps between reads it never makes one command wait for another's delay. `port` may be
    changed for the connections that come later (O-51).
    """

    def __init__(self, port: int, delay_s: float) -> None:
        self.port = port
        self._delay_s = delay_s
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        for writer in tuple(self._writers):
            writer.transport.abort()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/0"

    def _accept(self, near_in: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._carry(near_in, near))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry(self, near_in: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        self._writers.add(near)
        try:
            far_in, far = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            near.transport.abort()
            return
        self._writers.add(far)
        try:
            await asyncio.gather(self._pass(near_in, far), self._pass(far_in, near))
        finally:
            for writer in (near, far):
                writer.transport.abort()
                self._writers.discard(writer)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Each chunk is written half the delay after it came; the end of the stream, too."""
        loop = asyncio.get_running_loop()
        late: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def read() -> None:
            chunk = b"."
            while chunk:
                try:
                    chunk = await reader.read(CHUNK_BYTES)
                except OSError:
                    chunk = b""
                late.put_nowait((loop.time() + self._delay_s / 2, chunk))

        reading = asyncio.create_task(read())
        try:
            while True:
                due, chunk = await late.get()
                await asyncio.sleep(max(0.0, due - loop.time()))
                if not chunk or writer.is_closing():  # uvloop takes a write to a closed one for a bug
                    break
                writer.write(chunk)
                await writer.drain()
        except OSError:
            return
        finally:
            reading.cancel()
            with suppress(asyncio.CancelledError):
                await reading
            writer.close()
