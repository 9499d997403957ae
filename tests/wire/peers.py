"""Both far ends as raw sockets: a platform that follows a script, a caller that writes bytes.

No HTTP library on either side hides anything: every byte is kept per connection. Nothing here sleeps; a
script that has to wait waits for an event.

    async with RawPlatform() as platform:
        platform.plan(Script(Send(answer(201, b"{}"))), Script(Send(b"HTTP/1.1 20"), Reset()))
        ...
        assert platform.received[0].header(b"idempotency-key") == [b"k"]
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import Self, TypeVar

LIMIT_S = 60.0
"""No wait in a test is longer."""
_T = TypeVar("_T")
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True)
class Send:
    """Write these bytes."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Hold:
    """Do nothing until the event is set."""

    event: asyncio.Event


@dataclass(frozen=True, slots=True)
class Mark:
    """Set the event: a test that waits for it knows that the script came so far."""

    event: asyncio.Event


@dataclass(frozen=True, slots=True)
class Reset:
    """End the connection with RST."""


@dataclass(frozen=True, slots=True)
class HalfClose:
    """Send FIN and keep the connection."""


@dataclass(frozen=True, slots=True)
class Close:
    """End the connection with FIN (RST by the kernel, if bytes were left unread)."""


@dataclass(frozen=True, slots=True)
class Hang:
    """Keep the connection and never go on, until the other side ends it."""


Step = Send | Hold | Mark | Reset | HalfClose | Close | Hang


class When(Enum):
    """How much of a request has to be there before its script runs."""

    BYTE = "first byte"
    HEAD = "head"
    WHOLE = "whole request"


class Script:
    """What the platform does with one request."""

    def __init__(self, *steps: Step, when: When = When.WHOLE) -> None:
        self.steps = steps
        self.when = when


@dataclass(slots=True)
class Received:
    """One request as it came; `body` is decoded where it was chunked, `raw` is not."""

    connection: int
    head: bytes
    body: bytes = b""
    raw_body: bytes = b""

    @property
    def method(self) -> bytes:
        return self.head.split(b" ", 2)[0]

    @property
    def target(self) -> bytes:
        return self.head.split(b" ", 2)[1]

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return _fields(self.head)

    def header(self, name: bytes) -> list[bytes]:
        return [value for field_name, value in self.headers if field_name.lower() == name]


@dataclass(slots=True)
class Answer:
    """One answer as the caller read it."""

    status: int
    head: bytes
    body: bytes
    interims: list[bytes] = field(default_factory=list)
    trailers: bytes = b""

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return _fields(self.head)

    def header(self, name: bytes) -> list[bytes]:
        return [value for field_name, value in self.headers if field_name.lower() == name]


def _fields(head: bytes) -> list[tuple[bytes, bytes]]:
    lines = head.split(b"\r\n")[1:]
    pairs = (line.partition(b":") for line in lines if line)
    return [(name, value.strip(b" ")) for name, _, value in pairs]


def answer(
    status: int = 200,
    body: bytes = b"",
    *headers: tuple[bytes, bytes],
    reason: bytes = b"OK",
    length: int | None = -1,
) -> bytes:
    """An answer's bytes; `length` overrides the Content-Length, None leaves it out."""
    lines = [b"HTTP/1.1 %d %b" % (status, reason)]
    lines += [b"%b: %b" % pair for pair in headers]
    if length is not None:
        lines.append(b"Content-Length: %d" % (len(body) if length < 0 else length))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def chunked(pieces: Iterable[bytes], trailers: bytes = b"") -> bytes:
    """`pieces` in chunked framing."""
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n" + trailers + b"\r\n"


class Stream:
    """A connection's bytes, kept as they come."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        on_bytes: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_bytes = on_bytes
        self.reader = reader
        self.writer = writer
        self.log = bytearray()
        self._read = 0

    async def fill(self) -> bool:
        """Wait for more bytes. False at the end; a reset counts as one."""
        try:
            data = await self.reader.read(65_536)
        except ConnectionError:
            return False
        self.log += data
        self._on_bytes()
        return bool(data)

    async def until(self, mark: bytes) -> bytes:
        """The bytes up to and with `mark`. Raises: EOFError."""
        while (at := self.log.find(mark, self._read)) < 0:
            if not await self.fill():
                raise EOFError(bytes(self.log[self._read :]))
        return self._take(at + len(mark) - self._read)

    async def exactly(self, size: int) -> bytes:
        while len(self.log) - self._read < size:
            if not await self.fill():
                raise EOFError(bytes(self.log[self._read :]))
        return self._take(size)

    async def first_byte(self) -> bool:
        while len(self.log) == self._read:
            if not await self.fill():
                return False
        return True

    async def to_end(self) -> bytes:
        while await self.fill():
            pass
        return self._take(len(self.log) - self._read)

    def _take(self, size: int) -> bytes:
        taken = bytes(self.log[self._read : self._read + size])
        self._read += size
        return taken

    async def chunked_body(self) -> tuple[bytes, bytes, bytes]:
        """A chunked body: decoded, trailers, and as it came."""
        began = self._read
        body = b""
        while size := int((await self.until(b"\r\n")).split(b";")[0], 16):
            body += await self.exactly(size)
            await self.exactly(2)
        trailers = b""
        while (line := await self.until(b"\r\n")) != b"\r\n":
            trailers += line
        return body, trailers, bytes(self.log[began : self._read])

    def reset(self) -> None:
        sock = self.writer.get_extra_info("socket")
        if sock is not None and sock.fileno() != -1 and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self.writer.transport.abort()


class RawPlatform:
    """A scripted platform on a port of its own. Plans are used up in order, then `usual` is."""

    def __init__(
        self,
        usual: Script | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.usual = usual or Script(Send(answer(200, b"ok")))
        self.received: list[Received] = []
        self.streams: list[Stream] = []
        self._host = host
        self._asked_port = port
        self._tls = tls
        self._plans: list[Script] = []
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self.ended: set[int] = set()
        """Numbers of the connections that the other side, or a script, has ended."""

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'https' if self._tls else 'http'}://{host}:{self.port}"

    @property
    def hits(self) -> int:
        """Complete request heads received."""
        return len(self.received)

    def plan(self, *scripts: Script) -> None:
        self._plans += scripts

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, self._host, self._asked_port, ssl=self._tls)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for stream in self.streams:
            stream.writer.transport.abort()
        for task in self._serving:
            task.cancel()
        if self._serving:
            await asyncio.wait(self._serving)
        await self._server.wait_closed()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds; it is looked at whenever something happened here."""
        async with asyncio.timeout(LIMIT_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def got(self, hits: int) -> None:
        """Wait for so many requests (heads)."""
        await self.until(lambda: self.hits >= hits)

    async def got_bytes(self, connection: int, size: int) -> None:
        await self.until(lambda: len(self.streams) > connection and len(self.streams[connection].log) >= size)

    async def gone(self, connection: int) -> None:
        """Wait until a connection is at its end."""
        await self.until(lambda: connection in self.ended)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = len(self.streams)
        stream = Stream(reader, writer, self._changed.set)
        self.streams.append(stream)
        task = asyncio.get_running_loop().create_task(self._serve(number, stream))
        self._serving.add(task)
        self._changed.set()

    async def _serve(self, number: int, stream: Stream) -> None:
        try:
            while await self._one_request(number, stream):
                self._changed.set()
        except EOFError:
            pass
        finally:
            self.ended.add(number)
            stream.writer.transport.abort()
            self._changed.set()

    async def _one_request(self, number: int, stream: Stream) -> bool:
        if not await stream.first_byte():
            return False
        self._changed.set()
        script = self._plans.pop(0) if self._plans else self.usual
        if script.when is When.BYTE and not await self._play(script, stream):
            return False
        received = Received(number, await stream.until(b"\r\n\r\n"))
        self.received.append(received)
        self._changed.set()
        if script.when is When.HEAD and not await self._play(script, stream):
            return False
        await _read_body(stream, received)
        self._changed.set()
        return script.when is not When.WHOLE or await self._play(script, stream)

    async def _play(self, script: Script, stream: Stream) -> bool:
        """Run the steps. False where they ended the connection."""
        for step in script.steps:
            match step:
                case Send(data):
                    stream.writer.write(data)
                    await stream.writer.drain()
                case Hold(event):
                    await event.wait()
                case Mark(event):
                    event.set()
                case Reset():
                    stream.reset()
                    return False
                case HalfClose():
                    stream.writer.write_eof()
                case Close():
                    stream.writer.close()
                    return False
                case Hang():
                    await stream.to_end()
                    return False
        return True


async def _read_body(stream: Stream, received: Received) -> None:
    lengths = received.header(b"content-length")
    if received.header(b"transfer-encoding"):
        received.body, _, received.raw_body = await stream.chunked_body()
    elif lengths:
        received.body = received.raw_body = await stream.exactly(int(lengths[0]))


class RawCaller:
    """A caller on a raw socket."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    @classmethod
    async def dial(cls, address: str, *, tls: ssl.SSLContext | None = None, name: str | None = None) -> Self:
        """Connect to `host:port`, `[v6]:port` or `unix:/path`."""
        if address.startswith("unix:"):
            reader, writer = await asyncio.open_unix_connection(address[5:])
        else:
            host, _, port = address.rpartition(":")
            reader, writer = await asyncio.open_connection(
                host.strip("[]"), int(port), ssl=tls, server_hostname=name
            )
        return cls(Stream(reader, writer))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.stream.writer.transport.abort()

    async def send(self, data: bytes) -> None:
        self.stream.writer.write(data)
        await _within(self.stream.writer.drain())

    def half_close(self) -> None:
        self.stream.writer.write_eof()

    def reset(self) -> None:
        self.stream.reset()

    async def answer(self, *, head_only: bool = False) -> Answer:
        """Read one answer. Raises: EOFError where the connection ends inside it."""
        return await _within(self._answer(head_only=head_only))

    async def _answer(self, *, head_only: bool) -> Answer:
        interims: list[bytes] = []
        head = await self.stream.until(b"\r\n\r\n")
        while head[9:10] == b"1":
            interims.append(head)
            head = await self.stream.until(b"\r\n\r\n")
        read = Answer(int(head[9:12]), head, b"", interims)
        if head_only or read.status in (204, 304):
            return read
        lengths = read.header(b"content-length")
        if read.header(b"transfer-encoding"):
            read.body, read.trailers, _ = await self.stream.chunked_body()
        elif lengths:
            read.body = await self.stream.exactly(int(lengths[0]))
        else:
            read.body = await self.stream.to_end()
        return read

    async def until(self, mark: bytes) -> bytes:
        return await _within(self.stream.until(mark))

    async def to_end(self) -> bytes:
        """Everything until the connection ends."""
        return await _within(self.stream.to_end())


async def turned(condition: Callable[[], bool]) -> None:
    """Let the loop turn until `condition` holds; for what has no event to wait for."""
    async with asyncio.timeout(LIMIT_S):
        while not condition():  # noqa: ASYNC110 - nothing announces it
            await asyncio.sleep(0)


async def _within(waiting: Awaitable[_T]) -> _T:
    async with asyncio.timeout(LIMIT_S):
        return await waiting
