"""TLS before the plain platform, and a stranger with a certificate of nobody's who takes its place."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import Final, Self

from tests.chaos.lines import CHUNK_BYTES, reset

NAME: Final = "localhost"  # what the certificate is for, and what the sidecars dial


class Front:
    """Ends TLS and carries what was inside to `target`: a reset as a reset, an end as an end."""

    def __init__(self, target: str) -> None:
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    async def open(cls, target: str, context: ssl.SSLContext) -> Self:
        front = cls(target)
        front._server = await asyncio.start_server(front._accept, "127.0.0.1", 0, ssl=context)
        return front

    @property
    def address(self) -> str:
        return address_of(self._server)

    def _accept(self, near_in: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._carry(near_in, near))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry(self, near_in: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        far_in, far = await asyncio.open_connection(self._host, self._port)
        up = asyncio.create_task(_pump(near_in, far))
        down = asyncio.create_task(_pump(far_in, near))
        await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
        for pump in (up, down):
            pump.cancel()
        ended = await asyncio.gather(up, down, return_exceptions=True)
        if any(isinstance(one, OSError) for one in ended):
            reset(near)
            reset(far)
        near.close()
        far.close()

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(CHUNK_BYTES):
        writer.write(chunk)
        await writer.drain()


class Stranger:
    """Answers in the platform's place. Who checks its certificate tells it nothing; `heard`: what others told."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self._server: asyncio.Server | None = None

    @classmethod
    async def open(cls, context: ssl.SSLContext) -> Self:
        stranger = cls()
        stranger._server = await asyncio.start_server(stranger._listen, "127.0.0.1", 0, ssl=context)
        return stranger

    @property
    def address(self) -> str:
        return address_of(self._server)

    async def _listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):  # a client that goes away without a word is what is wanted
            said = await reader.read(CHUNK_BYTES)
            if said:
                self.heard.append(said)
        writer.close()

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()


def address_of(server: asyncio.Server | None) -> str:
    assert server is not None
    port: int = server.sockets[0].getsockname()[1]
    return f"127.0.0.1:{port}"
