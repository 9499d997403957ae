"""One caller's connection: requests one after the other, each answered before the next is looked at.

Pipelined requests wait in the read buffer, so answers are in order by construction, and a full buffer stops
reading. Every state has a time limit. A connection that the server ends is half-closed first and read on for
a moment: closing with unread bytes would make the kernel send a reset, which can destroy the answer on its
way (RFC 9112 section 9.6).
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from proxy.core.http import Response
from proxy.ports import CallerGone
from proxy.wire.alarm import Alarm
from proxy.wire.answer_head import whole_answer
from proxy.wire.bodies import BadBody, BodyDecoder, ChunkedDecoder, Intake, LengthDecoder
from proxy.wire.exchange import CallerExchange
from proxy.wire.heads import HeadLimits, HeadRefused, ParsedHead, head_end, parse_request_head

if TYPE_CHECKING:
    from proxy.wire.listener import Listener

TOO_MANY_CONNECTIONS = "too_many_connections"
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True)
class ListenerLimits:
    """Sizes and times of a caller's connection (H10)."""

    head: HeadLimits = field(default_factory=HeadLimits)
    connections_max: int = 10_000
    first_byte_ms: int = 30_000
    """From accepting to the first byte. Clients may open connections ahead of need; then they are closed."""
    head_ms: int = 10_000
    """From a head's first byte to its end; then 408."""
    body_ms: int = 20_000
    """Between two reads of a body, and for a whole body on top of its size at `body_bytes_per_second_min`."""
    body_bytes_per_second_min: int = 500
    """Apache's mod_reqtimeout default: a body of one byte a second runs out of time, an upload does not."""
    idle_ms: int = 120_000
    """Between calls. Above common clients' own limits (Go 90 s), so that it is they who close."""
    write_ms: int = 30_000
    """Without the caller taking a single byte of its answer."""
    linger_ms: int = 2_000
    """How long a half-closed connection is read on, so that the answer survives."""
    read_ahead_bytes_max: int = 65_536
    """Pipelined bytes that are held while a call is being answered; then reading stops."""


class CallerConnection(asyncio.Protocol):
    """The protocol of one accepted connection."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._limits = listener.limits
        self._loop = listener.loop
        self._transport: asyncio.Transport
        self._read_alarm = Alarm(self._loop, self._read_time_over)
        self._write_alarm = Alarm(self._loop, self._write_time_over)
        self._buffer = b""
        self._scanned = 0
        self._exchange: CallerExchange | None = None
        self._decoder: BodyDecoder | None = None
        self._body_began_at = 0.0
        self._body_bytes = 0
        self._reading_paused = False
        self._unsent_bytes = 0
        self._drained: asyncio.Future[None] | None = None
        self._lingering = False
        self._is_tls = False
        self.is_write_paused = False
        """Whether bytes are left that the kernel has not taken."""
        self.at_end = False
        """The caller sent FIN: it may still read (half-closed), or be gone; nobody can tell."""
        self._ended_at = float("inf")
        self.is_lost = False
        self.peer = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)
        self._is_tls = transport.get_extra_info("ssl_object") is not None
        # With no high-water mark, `pause_writing` means: bytes are left that the kernel has not taken.
        # The loop's TLS compares with >=, so its mark has to be one.
        transport.set_write_buffer_limits(high=1 if self._is_tls else 0, low=0)
        self.peer = _peer_name(transport)
        if not self._listener.admit(self):
            self.refuse(503, TOO_MANY_CONNECTIONS, _TOO_MANY)
            return
        self._read_alarm.set_in(self._limits.first_byte_ms)

    @property
    def is_open(self) -> bool:
        return not self.is_lost and not self._transport.is_closing()

    @property
    def ended_ms_ago(self) -> float:
        """How long ago the caller sent FIN; negative if it has not."""
        return (self._loop.time() - self._ended_at) * 1000

    @property
    def is_idle(self) -> bool:
        """Whether no byte of a further request has come and no answer is owed."""
        return self._exchange is None and not self._buffer and not self._lingering

    @property
    def closes_after_answer(self) -> bool:
        """Whether the connection can't carry another call after this one's answer."""
        exchange = self._exchange
        return (
            exchange is None
            or not exchange.keeps_alive
            or not exchange.intake.is_whole
            or self._listener.is_draining
            or (self.at_end and not self._buffer)
        )

    def data_received(self, data: bytes) -> None:
        if self._lingering:
            return
        self._buffer = self._buffer + data if self._buffer else data
        self._advance()

    def _advance(self) -> None:
        try:
            if self._exchange is None:
                self._read_head()
            elif self._decoder is not None:
                self._read_body(self._exchange, self._decoder)
        except HeadRefused as refused:
            self.refuse(
                refused.status, "invalid_request", f"{refused.message}. {_NOTHING_SENT}", refused.field
            )
            return
        except BadBody as bad:
            message = f"The request's body is malformed: {bad}. {_BODY_BROKEN}"
            self._break_call(cast(CallerExchange, self._exchange), 400, message)
            return
        if len(self._buffer) > self._limits.read_ahead_bytes_max and self._exchange is not None:
            self._pause_reading()

    def _read_head(self) -> None:
        buffer = self._buffer
        if not self._scanned and buffer.startswith(b"\r\n"):
            # RFC 9112 section 2.2: one empty line before a request is to be ignored.
            buffer = self._buffer = buffer[2:]
        if not buffer:
            return
        end = head_end(buffer, self._scanned, self._limits.head)
        if end < 0:
            if not self._scanned:
                self._read_alarm.set_in(self._limits.head_ms)
            self._scanned = len(buffer)
            return
        self._scanned = 0
        parsed = parse_request_head(buffer[:end], self._limits.head, self._listener.protected)
        self._buffer = buffer[end:]
        self._begin_call(parsed)

    def _begin_call(self, parsed: ParsedHead) -> None:
        self._read_alarm.clear()
        intake = Intake(self._resume_reading)
        exchange = self._exchange = CallerExchange(self, parsed, intake)
        if parsed.body_length == 0:
            intake.is_whole = True
        else:
            length = parsed.body_length
            decoder = self._decoder = ChunkedDecoder() if length is None else LengthDecoder(length)
            self._body_began_at = self._loop.time()
            self._body_bytes = 0
            self._read_body(exchange, decoder)
        self._listener.start(exchange)

    def _read_body(self, exchange: CallerExchange, decoder: BodyDecoder) -> None:
        intake = exchange.intake
        data, self._buffer = self._buffer, b""
        pieces, self._buffer = decoder.feed(data)
        is_whole = decoder.is_whole
        intake.push(pieces, is_whole=is_whole)
        if is_whole:
            self._decoder = None
            self._read_alarm.clear()
            return
        self._body_bytes += len(data)
        self._read_alarm.set_in(self._body_time_left_ms())
        if intake.is_full:
            self._pause_reading()

    def _body_time_left_ms(self) -> float:
        earned_ms = self._limits.body_ms + self._body_bytes * 1000 / self._limits.body_bytes_per_second_min
        used_ms = (self._loop.time() - self._body_began_at) * 1000
        return max(0.0, min(self._limits.body_ms, earned_ms - used_ms))

    def _break_call(self, exchange: CallerExchange, status: int, message: str) -> None:
        """Give up a request whose body can't be read on; an answer that has begun is finished first."""
        exchange.intake.fail(CallerGone(message))
        self._decoder = None
        self._buffer = b""
        if exchange.is_answered:
            self._pause_reading()
        else:
            self.refuse(status, "invalid_request", message)

    def _pause_reading(self) -> None:
        if not self._reading_paused:
            self._reading_paused = True
            self._transport.pause_reading()
            # While we do not read, the caller can't be late.
            self._read_alarm.clear()

    def _resume_reading(self) -> None:
        if not self._reading_paused or self._transport.is_closing():
            return
        self._reading_paused = False
        self._transport.resume_reading()
        if self._decoder is not None:
            self._body_began_at = self._loop.time()
            self._body_bytes = 0
            self._read_alarm.set_in(self._limits.body_ms)

    def eof_received(self) -> bool:
        """Keep a half-closed connection open for as long as whole requests wait for their answers."""
        self.at_end = True
        self._ended_at = self._loop.time()
        if self._exchange is None and self._buffer and not self._lingering:
            self._advance()
        exchange = self._exchange
        if exchange is None or self._lingering:
            return False
        if not exchange.intake.is_whole:
            exchange.intake.fail(CallerGone("the caller ended its request early"))
            return False
        return not self._is_tls

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        self._read_alarm.close()
        self._write_alarm.close()
        if self._exchange is not None:
            self._exchange.intake.fail(CallerGone("the caller's connection was lost"))
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        self._listener.forget(self)

    def owes(self, exchange: CallerExchange) -> bool:
        """Whether `exchange` is still to be answered on this connection."""
        return self._exchange is exchange and self.is_open

    def call_soon(self, thunk: Callable[[], None]) -> None:
        self._loop.call_soon(thunk)

    def write(self, data: bytes) -> None:
        """Hand bytes to the kernel as far as it takes them; nothing where the caller has gone."""
        if self.is_open:
            self._transport.write(data)

    def pause_writing(self) -> None:
        self.is_write_paused = True
        self._unsent_bytes = self._transport.get_write_buffer_size()
        self._write_alarm.set_in(self._limits.write_ms)

    def resume_writing(self) -> None:
        self.is_write_paused = False
        self._write_alarm.clear()
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    async def drained(self) -> None:
        """Return once the kernel has taken every byte, or the connection is lost."""
        while self.is_write_paused and not self.is_lost:
            if self._drained is None or self._drained.done():
                self._drained = self._loop.create_future()
            await asyncio.shield(self._drained)

    def answered(self, *, closing: bool) -> None:
        """The current call's answer is written: go on to the next request, or end the connection."""
        request_read = self._decoder is None and not self._buffer
        if self._exchange is not None:
            # Whoever still reads a body that was answered early gets no more of it.
            self._exchange.intake.fail(CallerGone("the call was answered before its body was whole"))
        self._exchange = None
        self._decoder = None
        if closing:
            self.close_gently(request_read=request_read)
            return
        self._resume_reading()
        if self._buffer:
            self._loop.call_soon(self._next_in_buffer)
        elif self.is_open:
            self._read_alarm.set_in(self._limits.idle_ms)

    def _next_in_buffer(self) -> None:
        if self._is_between_calls:
            self._advance()
        if self._is_between_calls:
            if self.at_end:
                self.close_gently()
            elif not self._buffer:
                self._read_alarm.set_in(self._limits.idle_ms)

    @property
    def _is_between_calls(self) -> bool:
        return self._exchange is None and self.is_open and not self._lingering

    def refuse(self, status: int, code: str, message: str, blamed: str | None = None) -> None:
        """Answer with the wire's own refusal and end the connection."""
        self.answer_and_close(self._listener.refusal(status, code, message, blamed))

    def answer_and_close(self, response: Response) -> None:
        """Answer the current call with `response` and end the connection."""
        method = b"" if self._exchange is None else self._exchange.head.method
        self.write(whole_answer(response, method=method, closing=True))
        self._exchange = None
        self._decoder = None
        self.close_gently()

    def close_gently(self, *, request_read: bool = False) -> None:
        """End the connection so that what was written arrives: FIN, read on for a moment, close.

        TLS has no half-close: there the connection ends at once if the caller's bytes were read to their end.
        """
        if not self.is_open or self._lingering:
            return
        self._buffer = b""
        self._lingering = True
        if self.at_end or (self._is_tls and request_read):
            self._transport.close()
            return
        self._resume_reading()
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._read_alarm.set_in(self._limits.linger_ms)

    def abort(self) -> None:
        """Reset the connection, so that a cut answer can't be taken for a whole one."""
        if self.is_lost:
            return
        sock = self._transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self._transport.abort()

    def close_if_idle(self) -> None:
        if self.is_idle:
            self.close_gently(request_read=True)

    def _read_time_over(self) -> None:
        exchange = self._exchange
        if self._lingering:
            if self.is_write_paused:
                self._transport.abort()
            else:
                self._transport.close()
        elif exchange is None:
            if self._buffer:
                self.refuse(408, "invalid_request", f"The request's headers took too long. {_NOTHING_SENT}")
            else:
                self.close_gently(request_read=True)
        else:
            self._break_call(exchange, 408, f"The request's body took too long. {_BODY_BROKEN}")

    def _write_time_over(self) -> None:
        unsent_bytes = self._transport.get_write_buffer_size()
        if unsent_bytes < self._unsent_bytes:
            self._unsent_bytes = unsent_bytes
            self._write_alarm.set_in(self._limits.write_ms)
        else:
            self.abort()


_NOTHING_SENT = "Nothing was sent to the platform and no money moved. Mend the request, then send it again."
_BODY_BROKEN = (
    "The call was broken off; a guarded call was not sent to the platform, and its money did not move. "
    "Send it again whole, with the same key."
)
_TOO_MANY = "This proxy serves as many connections as it may. Nothing was sent to the platform; try again."


def _peer_name(transport: asyncio.Transport) -> str:
    name = transport.get_extra_info("peername")
    if isinstance(name, tuple):
        return f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"
    return "unix"
