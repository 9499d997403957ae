"""One connection to the platform, carrying one exchange at a time.

Only this file writes the bytes of an attempt, so only it knows how far the attempt had come when something
broke (R2): nothing before `launch`, and from then on a phase. The answer is watched for while the request is
still being sent (O-25).
"""

from __future__ import annotations

import asyncio
import select
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from proxy.core.http import Answered, MaybeSent, MaybeSentReason, Phase, Response
from proxy.wire.alarm import Alarm
from proxy.wire.answers import AnswerReader, AnswerTooLarge, BadAnswer
from proxy.wire.bodies import READ_BUFFER_BYTES
from proxy.wire.tls import ResumingContext

WATCH_MS = 500
"""How often a waiting stream looks whether its caller is still there (O-40 allows two seconds)."""


@dataclass(frozen=True, slots=True)
class HeadCame:
    """The final head; the reader holds it."""


@dataclass(frozen=True, slots=True)
class BodyEnded:
    """The answer's last byte came."""


Event = HeadCame | BodyEnded | MaybeSent | bytes
"""What a streamed exchange hands on, in order; `bytes` are a piece of the body."""

HEAD_CAME = HeadCame()
BODY_ENDED = BodyEnded()


class Link(asyncio.Protocol):
    """The protocol of one upstream connection. `on_lost` is called once, when it is gone for good."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_lost: Callable[[Link], None]) -> None:
        self._loop = loop
        self._on_lost = on_lost
        self._transport: asyncio.Transport
        self._alarm = Alarm(loop, self._time_over)
        self._watch = Alarm(loop, self._ring_wake)
        self._poll: select.poll | None = None
        self._reader: AnswerReader | None = None
        self._answer: asyncio.Future[Answered | MaybeSent] | None = None
        self._parts: list[bytes] = []
        self._parts_bytes = 0
        self._parts_bytes_max = 0
        self._events: deque[Event] = deque()
        self._events_bytes = 0
        self._wake: asyncio.Future[None] | None = None
        self._is_streaming = False
        self._is_sending = False
        self._timeout_ms = 0
        self._drained: asyncio.Future[None] | None = None
        self._reading_paused = False
        self._is_dirty = False
        self._is_over = True
        self._has_rested = False
        self._is_tls = False
        self.is_write_paused = False
        self.is_lost = False
        self.born_at = loop.time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)
        self._is_tls = transport.get_extra_info("ssl_object") is not None
        transport.set_write_buffer_limits(high=1 if self._is_tls else 0, low=0)
        self._poll = select.poll()
        self._poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)

    @property
    def is_fit(self) -> bool:
        """Whether the connection can carry a request now: no FIN, no reset, no stray byte on it.

        Asks the kernel, since the loop may not have looked since the platform closed (field fact 5.2).
        """
        if self.is_lost or self._is_dirty or self._transport.is_closing() or self._poll is None:
            return False
        if self._is_tls and self._reader is None and not self._has_rested:
            # Session tickets may wait on a new TLS connection; bytes prove nothing there.
            return True
        return not self._poll.poll(0)

    @property
    def is_reusable(self) -> bool:
        """Whether the exchange that just ended leaves a connection for another one."""
        reader = self._reader
        return (
            reader is not None
            and reader.is_whole
            and reader.keeps_alive
            and not self._is_sending
            and not self.is_write_paused
            and not self._is_dirty
            and not self.is_lost
        )

    @property
    def reader(self) -> AnswerReader:
        """The current exchange's answer."""
        return cast(AnswerReader, self._reader)

    def launch(
        self,
        data: bytes,
        reader: AnswerReader,
        *,
        timeout_ms: int,
        bytes_max: int,
        more_to_send: bool = False,
        streaming: bool = False,
    ) -> None:
        """Write the first byte of an exchange; from here on the platform may have acted.

        Args: data: the head, with what is known of the body. timeout_ms: for the whole answer; for each
            silence where `streaming`. bytes_max: of a whole answer's body.
        """
        self._reader = reader
        self._is_over = False
        self._parts = []
        self._parts_bytes = 0
        self._parts_bytes_max = bytes_max
        self._is_streaming = streaming
        self._is_sending = more_to_send
        self._timeout_ms = timeout_ms
        if not streaming:
            self._answer = self._loop.create_future()
        if not more_to_send:
            self._alarm.set_in(timeout_ms)
        self._transport.write(data)

    async def answer(self) -> Answered | MaybeSent:
        """The whole answer, or how the attempt broke."""
        return await cast("asyncio.Future[Answered | MaybeSent]", self._answer)

    def next_event(self) -> Event | None:
        """The next piece of a streamed answer, if it is here."""
        if not self._events:
            return None
        event = self._events.popleft()
        if isinstance(event, bytes):
            self._events_bytes -= len(event)
            if self._reading_paused and self._events_bytes < READ_BUFFER_BYTES:
                self._reading_paused = False
                if not self.is_lost:
                    self._transport.resume_reading()
                    self._alarm.set_in(self._timeout_ms)
        return event

    async def wait_event(self) -> None:
        """Return when there may be a next event or an interim answer, and every `WATCH_MS`."""
        if self._events or self.reader.interims:
            return
        self._wake = self._loop.create_future()
        self._watch.set_in(WATCH_MS)
        try:
            await self._wake
        finally:
            self._watch.clear()
            self._wake = None

    def _ring_wake(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def write(self, data: bytes) -> None:
        """Send a further piece of a streamed request's body."""
        if not self.is_lost and not self._transport.is_closing():
            self._transport.write(data)

    async def drained(self) -> None:
        """Return once the kernel has taken every byte, or the connection is lost."""
        while self.is_write_paused and not self.is_lost:
            if self._drained is None or self._drained.done():
                self._drained = self._loop.create_future()
            await asyncio.shield(self._drained)

    def sent(self) -> None:
        """A streamed request's body is at its end; the wait for the answer begins."""
        self._is_sending = False
        if not self.reader.is_whole and not self._reading_paused:
            self._alarm.set_in(self._timeout_ms)

    def sender_ended(self, sending: asyncio.Task[None]) -> None:
        """The task that sends a body ended; our own failure must not leave the exchange waiting."""
        if not sending.cancelled() and sending.exception() is not None:
            self.break_off(MaybeSentReason.EOF, "the proxy failed while it sent the request")

    def break_off(self, reason: MaybeSentReason, detail: str) -> None:
        """End the current exchange as not answered and the connection with it."""
        reader = self._reader
        if reader is None or self._is_over:
            return
        if reader.status is not None:
            phase = Phase.READING
        elif self._is_sending or self.is_write_paused:
            phase = Phase.SENDING
        else:
            phase = Phase.WAITING
        if phase is Phase.READING and reason in (MaybeSentReason.RESET, MaybeSentReason.EOF):
            reason = MaybeSentReason.TRUNCATED
        self._finish(MaybeSent(reason, phase, detail, reader.status))
        self.abort()

    def abort(self) -> None:
        """Close at once."""
        self._alarm.close()
        self._watch.close()
        if not self.is_lost:
            self._transport.abort()

    def rest(self, idle_ms: float) -> None:
        """Wait in the pool for the next exchange, for so long."""
        self._reader = None
        self._answer = None
        self._parts = []
        self._has_rested = True
        self._alarm.set_in(idle_ms)

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        if reader is None or self._is_over:
            # Nobody asked for these bytes; they must not be taken for the next call's answer.
            self._is_dirty = True
            if reader is None:
                self.abort()
            return
        head_was_due = reader.status is None
        try:
            pieces = reader.feed(data)
        except BadAnswer as bad:
            self.break_off(MaybeSentReason.GARBAGE, str(bad))
            return
        except AnswerTooLarge:
            self.break_off(MaybeSentReason.TOO_LARGE, "the answer's head is larger than allowed")
            return
        if self._is_streaming:
            self._pass_on(reader, pieces, head_came=head_was_due and reader.status is not None)
        else:
            self._keep(reader, pieces)

    def _keep(self, reader: AnswerReader, pieces: list[bytes]) -> None:
        if pieces:
            self._parts += pieces
            self._parts_bytes += sum(map(len, pieces))
        if self._parts_bytes > self._parts_bytes_max or (reader.body_length or 0) > self._parts_bytes_max:
            self.break_off(
                MaybeSentReason.TOO_LARGE, f"the answer's body is larger than {self._parts_bytes_max} bytes"
            )
        elif reader.is_whole:
            self._finish(None)

    def _pass_on(self, reader: AnswerReader, pieces: list[bytes], *, head_came: bool) -> None:
        if head_came:
            self._events.append(HEAD_CAME)
        for piece in pieces:
            self._events.append(piece)
            self._events_bytes += len(piece)
        if reader.is_whole:
            self._finish(None)
            return
        if not self._is_sending:
            self._alarm.set_in(self._timeout_ms)
        if self._events_bytes >= READ_BUFFER_BYTES and not self._reading_paused:
            self._reading_paused = True
            self._transport.pause_reading()
            self._alarm.clear()
        self._ring_wake()

    def _finish(self, broken: MaybeSent | None) -> None:
        """Hand the exchange's end on; None means that a whole answer came."""
        self._is_over = True
        self._alarm.clear()
        if self._is_tls and broken is None and not self._has_rested:
            self._remember_session()
        if self._is_streaming:
            self._events.append(BODY_ENDED if broken is None else broken)
            self._ring_wake()
        elif self._answer is not None and not self._answer.done():
            self._answer.set_result(broken if broken is not None else self._whole())

    def _remember_session(self) -> None:
        tls: ssl.SSLObject = self._transport.get_extra_info("ssl_object")
        if isinstance(tls.context, ResumingContext):
            tls.context.remember(tls, now_s=self._loop.time())

    def _whole(self) -> Answered:
        reader, parts = self.reader, self._parts
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        return Answered(Response(cast(int, reader.status), reader.headers, body, reader.reason))

    def eof_received(self) -> bool:
        """A FIN ends a body that runs until close; it breaks every other unfinished exchange."""
        reader = self._reader
        if reader is not None and not self._is_over:
            if reader.end():
                self._finish(None)
            else:
                self.break_off(MaybeSentReason.EOF, "the platform closed the connection")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        self._poll = None
        self.break_off(MaybeSentReason.RESET, _lost_detail(exc))
        self._alarm.close()
        self._watch.close()
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        self._on_lost(self)

    def pause_writing(self) -> None:
        self.is_write_paused = True
        if self._is_sending:
            # A platform that takes no byte for so long is not going to answer.
            self._alarm.set_in(self._timeout_ms)

    def resume_writing(self) -> None:
        self.is_write_paused = False
        if self._is_sending:
            self._alarm.clear()
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def _time_over(self) -> None:
        if self._reader is None:
            self.abort()
        else:
            self.break_off(MaybeSentReason.TIMEOUT, f"no whole answer within {self._timeout_ms} ms")


def _lost_detail(exc: Exception | None) -> str:
    if exc is None:
        return "the connection was lost"
    if isinstance(exc, ssl.SSLError):
        return f"TLS failed after the request had left: {exc.reason or exc}"
    return f"the connection was lost: {exc}"
