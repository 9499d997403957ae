"""The platform over HTTP/1.1: one attempt in, one exact result out (contract R1, R2, H1-H3).

Never repeats a request, follows a redirect, keeps a cookie, decodes a body or reads a proxy variable. What
fails before `Link.launch` is `NotSent`, what fails after it is `MaybeSent`; there is nothing in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from proxy.core.http import (
    MaybeSentReason,
    NotSent,
    NotSentReason,
    WireRequest,
    WireResult,
)
from proxy.ports import CallerGone, Streamed, StreamSink
from proxy.wire.answer_head import LAST_CHUNK, framed_chunk
from proxy.wire.answers import AnswerReader
from proxy.wire.bodies import Intake
from proxy.wire.connect import Connector, LookUp, Origin, system_look_up
from proxy.wire.fields import PSEUDONYM, REQUEST_FRAMING, lines, sealed
from proxy.wire.heads import HEAD_BYTES_MAX
from proxy.wire.link import BodyEnded, HeadCame, Link
from proxy.wire.pool import LinkPool, PoolLimits
from proxy.wire.tls import FreshContext, TlsFiles, client_context

RESPONSE_BYTES_MAX = 8 * 1024 * 1024
_VIA = b"Via: 1.1 " + PSEUDONYM
_SAYS_ZERO = frozenset((b"POST", b"PUT", b"PATCH"))
"""Methods that say `Content-Length: 0` where they have no body (RFC 9110 section 8.6, O-28)."""


class HttpUpstream:
    """Implements `ports.Upstream`. Made inside a running loop."""

    def __init__(
        self,
        url: str,
        *,
        monotonic_ms: Callable[[], int],
        on_error: Callable[[BaseException], None],
        tls: TlsFiles | None = None,
        connect_timeout_ms: int = 2_000,
        dns_ttl_ms: int = 5_000,
        pool: PoolLimits | None = None,
        response_bytes_max: int = RESPONSE_BYTES_MAX,
        head_bytes_max: int = HEAD_BYTES_MAX,
        look_up: LookUp = system_look_up,
    ) -> None:
        """A pool of connections to one platform; none is opened yet.

        Args: monotonic_ms: the clock that `not_after_ms` is of. on_error: told of TLS files that changed for
            the worse. response_bytes_max: of an answer to `send`; streamed ones have no limit.
        Raises: ValueError for a URL that is none, TlsFilesUnusable.
        """
        self._origin = Origin.parse(url)
        context = FreshContext(tls or TlsFiles(), client_context, on_error) if self._origin.is_tls else None
        connector = Connector(
            self._origin,
            context=context,
            timeout_ms=connect_timeout_ms,
            dns_ttl_ms=dns_ttl_ms,
            look_up=look_up,
        )
        self.pool = LinkPool(connector, pool or PoolLimits())
        self._monotonic_ms = monotonic_ms
        self._response_bytes_max = response_bytes_max
        self._head_bytes_max = head_bytes_max
        self._host_line = b"Host: " + self._origin.host_header

    async def send(
        self,
        request: WireRequest,
        *,
        timeout_ms: int,
        not_after_ms: int | None = None,
        fresh: bool = False,
        on_first_byte: Callable[[], None] | None = None,
    ) -> WireResult:
        """One attempt. Cancelled, it closes its connection: the platform may have acted all the same."""
        body = request.body
        says_length = bool(body) or request.method in _SAYS_ZERO
        data = self._head(request, len(body) if says_length else None, is_chunked=False) + body
        link = (None if fresh else self.pool.take_idle()) or await self.pool.take(fresh=fresh)
        if isinstance(link, NotSent):
            return link
        if not_after_ms is not None and self._monotonic_ms() > not_after_ms:
            self.pool.give_back(link)
            return NotSent(NotSentReason.TOO_LATE, "the attempt's latest start had passed")
        try:
            if on_first_byte is not None:
                on_first_byte()
            reader = AnswerReader(request.method, self._head_bytes_max)
            link.launch(data, reader, timeout_ms=timeout_ms, bytes_max=self._response_bytes_max)
            return await link.answer()
        finally:
            self._release(link)

    def _release(self, link: Link) -> None:
        if link.is_reusable:
            self.pool.give_back(link)
        else:
            self.pool.discard(link)

    def _head(self, request: WireRequest, body_length: int | None, *, is_chunked: bool) -> bytes:
        target = request.target if request.target == b"*" else self._origin.base_path + request.target
        start = b"%b %b HTTP/1.1" % (request.method, target)
        head_lines = [start, self._host_line, *lines(request.headers, dropped=REQUEST_FRAMING), _VIA]
        if is_chunked:
            head_lines.append(b"Transfer-Encoding: chunked")
        elif body_length is not None:
            head_lines.append(b"Content-Length: %d" % body_length)
        return sealed(head_lines)

    async def stream(
        self,
        head: WireRequest,
        body: AsyncIterator[bytes] | None,
        *,
        body_length: int | None,
        sink: StreamSink,
        timeout_ms: int,
        fresh: bool = False,
    ) -> Streamed:
        """Pass a call through in pieces. A caller that leaves closes the platform's connection (O-40).

        Where the result is `NotSent`, nothing was taken from `body`.
        """
        link = (None if fresh else self.pool.take_idle()) or await self.pool.take(fresh=fresh)
        if isinstance(link, NotSent):
            return Streamed(None, link, head_passed=False)
        sending: asyncio.Task[None] | None = None
        try:
            # A body that has come whole leaves with its head, in one write and without a task of its own.
            whole = body.take_whole() if isinstance(body, Intake) else None
            if whole is not None:
                body, body_length = None, len(whole)
            data = self._streamed_head(head, body_length, has_body=body is not None or whole is not None)
            link.launch(
                data if whole is None else data + whole,
                AnswerReader(head.method, self._head_bytes_max),
                timeout_ms=timeout_ms,
                bytes_max=0,
                more_to_send=body is not None,
                streaming=True,
            )
            if body is not None:
                sending = asyncio.get_running_loop().create_task(_send_body(link, body, body_length))
                sending.add_done_callback(link.sender_ended)
            streamed = await _relay(link, sink)
            if sending is not None and sending.done():
                sending.result()
            return streamed
        finally:
            if sending is not None:
                sending.cancel()
            self._release(link)

    def _streamed_head(self, head: WireRequest, body_length: int | None, *, has_body: bool) -> bytes:
        if has_body:
            return self._head(head, body_length, is_chunked=body_length is None)
        return self._head(head, 0 if head.method in _SAYS_ZERO else None, is_chunked=False)

    async def close(self) -> None:
        self.pool.close()


async def _send_body(link: Link, body: AsyncIterator[bytes], length: int | None) -> None:
    """Send a body as its pieces come; one that ends early or late breaks the exchange, never its framing."""
    left = length
    try:
        async for piece in body:
            if not piece:
                continue
            if left is None:
                link.write(framed_chunk(piece))
            elif len(piece) <= left:
                left -= len(piece)
                link.write(piece)
            else:
                left = -1
                break
            if link.is_write_paused:
                await link.drained()
    except CallerGone:
        link.break_off(MaybeSentReason.EOF, "the caller left before its request was whole")
        return
    if left:
        link.break_off(MaybeSentReason.EOF, "the request's body is not as long as it said")
        return
    if left is None:
        link.write(LAST_CHUNK)
    link.sent()


async def _relay(link: Link, sink: StreamSink) -> Streamed:
    """Pass the answer on, piece by piece, until its end or a break."""
    reader = link.reader
    head_passed = False
    while True:
        while reader.interims:
            await sink.interim(*reader.interims.pop(0))
        event = link.next_event()
        if event is None:
            if not sink.is_open:
                link.break_off(MaybeSentReason.RESET, "the caller left; the connection was closed")
                continue
            await link.wait_event()
        elif isinstance(event, bytes):
            await sink.write(event)
        elif isinstance(event, HeadCame):
            await sink.begin(
                reader.status or 0,
                reader.reason,
                reader.headers,
                body_length=reader.body_length,
                bodyless=reader.is_bodyless,
            )
            head_passed = True
        elif isinstance(event, BodyEnded):
            await sink.end(reader.trailers)
            return Streamed(reader.status, None, head_passed=True)
        else:
            return Streamed(event.status, event, head_passed=head_passed)
