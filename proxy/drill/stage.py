"""What a drill breaks: the way to the platform, and the store's server. Both on loopback, both its own."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
from asyncio.subprocess import DEVNULL, Process
from itertools import count
from pathlib import Path
from typing import Self

CHUNK_BYTES = 64 << 10
READY_S = 10.0
LOOK_S = 0.02


PORTS = range(20_000, 30_000)
"""Below those that Linux (32768) and IANA (49152) give to whoever asks for any: what goes down can come back."""

_turn = count(os.getpid() * 131)


def free_port() -> int:
    """A port of loopback that nobody listens on now and nobody is given by chance. Raises: OSError for none."""
    for _ in PORTS:
        port = PORTS[next(_turn) % len(PORTS)]
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError(f"no free port from {PORTS[0]} to {PORTS[-1]}")


class Way:
    """A relay before the platform. Cut, it refuses connections and resets those that it carries."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._port = free_port()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def open(self) -> Self:
        """Let connections through, from now on or again."""
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", self._port)
        return self

    async def cut(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        if self._server is not None:
            await self._server.wait_closed()
            self._server = None

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(*self._target)
        self._writers |= {writer, back}
        try:
            await asyncio.gather(_pump(reader, back), _pump(there, writer))
        finally:
            self._writers -= {writer, back}
            writer.close()
            back.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Bytes from one side to the other until either is gone; a reset here is what the drill is about."""
    try:
        while chunk := await reader.read(CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
    except ConnectionError:
        writer.transport.abort()
    else:
        writer.close()


def server_program() -> str | None:
    """A Redis or Valkey server of this machine."""
    return shutil.which("redis-server") or shutil.which("valkey-server")


class Shelf:
    """A Redis of the drill's own, set up so that it loses nothing until it is made to."""

    def __init__(self, program: str, folder: Path) -> None:
        self._program = program
        self._folder = folder
        self._port = free_port()
        self._process: Process | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._port}/0"

    async def start(self) -> Self:
        """Raises: TimeoutError when it does not take connections in time."""
        self._folder.mkdir(parents=True, exist_ok=True)
        options = {
            "port": str(self._port),
            "bind": "127.0.0.1",
            "dir": str(self._folder),
            "save": "",
            "appendonly": "yes",
            "appendfsync": "always",
            "maxmemory-policy": "noeviction",
        }
        arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
        self._process = await asyncio.create_subprocess_exec(
            self._program, *arguments, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL
        )
        try:
            async with asyncio.timeout(READY_S):
                while not await self._answers():  # noqa: ASYNC110 -- another program's readiness sets no event
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            raise TimeoutError(f"{self._program}: does not take connections") from None
        return self

    async def _answers(self) -> bool:
        try:
            return await self.ask("PING") == b"+PONG\r\n"
        except ConnectionRefusedError:
            return False

    async def ask(self, command: str) -> bytes:
        """The first line of the server's answer. Raises: ConnectionRefusedError."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(f"{command}\r\n".encode())
        answer = await reader.readline()
        writer.close()
        return answer

    async def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    async def lose(self) -> None:
        """Kill it, and its files with it."""
        await self.kill()
        shutil.rmtree(self._folder)
