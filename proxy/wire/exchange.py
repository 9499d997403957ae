"""One call on a caller's connection: its request's body, and the place for its answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from proxy.core.http import Headers, RequestHead, Response
from proxy.ports import BodyTooLarge
from proxy.wire.answer_head import (
    CONTINUE,
    framed_chunk,
    interim_head,
    last_chunk,
    streamed_head,
    whole_answer,
)
from proxy.wire.bodies import Intake
from proxy.wire.heads import ParsedHead

if TYPE_CHECKING:
    from proxy.wire.caller import CallerConnection

_CORKED_BYTES_MAX = 65_536
_READS = frozenset((b"GET", b"HEAD", b"OPTIONS"))
HALF_CLOSED_MS_MAX = 1_000
"""How long a stream goes on for a caller that sent FIN; with the link's watch, O-40's two seconds hold."""


class CallerExchange:
    """Implements `ports.Exchange`.

    Pieces of a streamed answer that are written in one turn of the loop leave in one write.
    """

    __slots__ = (
        "_closing",
        "_connection",
        "_corked",
        "_corked_bytes",
        "_is_chunked",
        "_is_muted",
        "_is_streaming",
        "_left",
        "_parsed",
        "head",
        "intake",
        "is_answered",
        "peer",
    )

    def __init__(self, connection: CallerConnection, parsed: ParsedHead, intake: Intake) -> None:
        self._connection = connection
        self._parsed = parsed
        self.head: RequestHead = parsed.head
        self.peer: str = connection.peer
        self.intake = intake
        self.is_answered = False
        """Whether the call has begun to answer."""
        if parsed.expects_continue:
            intake.on_wait = self._invite_body
        self._closing = False
        self._is_streaming = False
        self._is_chunked = False
        self._is_muted = False
        self._left: int | None = None
        self._corked: list[bytes] = []
        self._corked_bytes = 0

    @property
    def is_open(self) -> bool:
        """Whether somebody reads. FIN means half-closed or gone, and TCP can't tell which (O-40).

        A caller that only waits, for a read or for more of an answer that has begun, is taken for gone a
        moment after its FIN. What a caller has ordered otherwise goes on until its answer begins.
        """
        connection = self._connection
        only_waits = self.is_answered or self.head.method in _READS
        return connection.is_open and not (only_waits and connection.ended_ms_ago > HALF_CLOSED_MS_MAX)

    @property
    def keeps_alive(self) -> bool:
        """Whether the caller wants to use its connection again."""
        return self._parsed.keep_alive

    @property
    def is_owed(self) -> bool:
        """Whether the caller is there and has no whole answer yet."""
        return self._connection.owes(self)

    @property
    def body_length(self) -> int | None:
        return self._parsed.body_length

    @property
    def has_body_framing(self) -> bool:
        return self._parsed.has_body_framing

    async def read_body(self, *, bytes_max: int) -> bytes:
        length = self._parsed.body_length
        if length is not None and length > bytes_max:
            raise BodyTooLarge
        if self.intake.is_whole:
            if self.intake.size > bytes_max:
                raise BodyTooLarge
            return self.intake.take_whole() or b""
        return await self.intake.read_whole(bytes_max)

    def body_chunks(self) -> AsyncIterator[bytes]:
        return self.intake

    def _invite_body(self) -> None:
        """Send the 100 that the caller waits for, once somebody waits for a body that is not on its way."""
        self.intake.on_wait = None
        if not self.intake.size and not self.is_answered and self.is_owed:
            self._connection.write(CONTINUE)

    async def reply(self, response: Response) -> bool:
        closing = self._connection.closes_after_answer
        answer = whole_answer(response, method=self.head.method, closing=closing)
        self._claim_answer()
        if not self.is_owed:
            return False
        self._connection.write(answer)
        return await self._finish(closing)

    def _claim_answer(self) -> None:
        if self.is_answered:
            raise RuntimeError("a call was answered twice")
        self.is_answered = True

    async def _finish(self, closing: bool) -> bool:
        """End the call. True when the kernel took the answer's last byte and the caller had not sent FIN.

        A caller that half-closed is answered too, but it can't be told from one that is gone, so its answer
        does not count as given (K3).
        """
        connection = self._connection
        if connection.is_write_paused:
            await connection.drained()
        given = connection.is_open and not connection.at_end
        connection.answered(closing=closing)
        return given

    async def interim(self, status: int, headers: Headers) -> None:
        if self.head.http_minor and not self.is_answered and self.is_owed:
            self._connection.write(interim_head(status, headers))

    async def begin(
        self,
        status: int,
        reason: bytes,
        headers: Headers,
        *,
        body_length: int | None,
        bodyless: bool,
    ) -> None:
        is_11 = self.head.http_minor == 1
        until_close = body_length is None and not bodyless and not is_11
        closing = until_close or self._connection.closes_after_answer
        head = streamed_head(
            status,
            reason,
            headers,
            body_length=body_length,
            bodyless=bodyless,
            closing=closing,
            is_11=is_11,
        )
        self._claim_answer()
        self._is_streaming = True
        self._is_muted = bodyless
        self._is_chunked = body_length is None and not bodyless and is_11
        self._left = 0 if bodyless else body_length
        self._closing = closing
        self._cork(head)

    async def write(self, chunk: bytes) -> None:
        if not self._is_streaming:
            raise RuntimeError("a piece of an answer came outside its begin and end")
        if self._is_muted or not chunk:
            return
        if self._left is not None:
            if len(chunk) > self._left:
                self.abort()
                raise RuntimeError("an answer is longer than its Content-Length")
            self._left -= len(chunk)
        self._cork(framed_chunk(chunk) if self._is_chunked else chunk)
        if self._corked_bytes >= _CORKED_BYTES_MAX:
            self._uncork()
        if self._connection.is_write_paused:
            await self._connection.drained()

    async def end(self, trailers: Headers = ()) -> bool:
        if not self._is_streaming:
            raise RuntimeError("an answer ended that had not begun")
        self._is_streaming = False
        if not self.is_owed:
            return False
        if self._left:
            self.abort()
            return False
        if self._is_chunked:
            self._cork(last_chunk(trailers))
        self._uncork()
        return await self._finish(self._closing or self._connection.closes_after_answer)

    def end_unanswered(self, response: Response) -> None:
        """Answer a call that failed to answer itself; break an answer that it left unfinished."""
        if not self.is_owed:
            return
        if self.is_answered:
            self.abort()
        else:
            self.is_answered = True
            self._connection.answer_and_close(response)

    def abort(self) -> None:
        self._corked.clear()
        if self.is_owed:
            self._connection.abort()

    def _cork(self, data: bytes) -> None:
        if not self._corked:
            self._connection.call_soon(self._uncork)
        self._corked.append(data)
        self._corked_bytes += len(data)

    def _uncork(self) -> None:
        if self._corked:
            data = b"".join(self._corked)
            self._corked.clear()
            self._corked_bytes = 0
            if self.is_owed:
                self._connection.write(data)
