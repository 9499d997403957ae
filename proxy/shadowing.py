"""Shadow mode: every call passes untouched, and what the guard would have done is told (C9).

The call is overheard, not delayed: its body and its answer are copied as they stream, up to a limit, and
judged beside it. A call too large to be overheard passes all the same and is not judged.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from proxy.calls import Calls
from proxy.core.claim import Understood, make_claim
from proxy.core.classify import Classifier
from proxy.core.http import (
    Answered,
    Headers,
    MaybeSent,
    MaybeSentReason,
    Phase,
    RequestHead,
    Response,
    WireResult,
)
from proxy.core.messages import Fact, Observed
from proxy.core.problem import Problem
from proxy.core.routes import Match, normalise
from proxy.core.shadow import Shadow
from proxy.decoders import ALL_DECODERS
from proxy.ports import Exchange

ANSWER_BYTES_MAX = 262_144  # of an answer that is judged: far above a payment's


@dataclass(slots=True)
class ShadowCalls:
    """The listener's handler in `mode: observe`."""

    calls: Calls
    tell: Callable[[Fact], None]
    shadow: Shadow = field(default_factory=Shadow)

    async def __call__(self, exchange: Exchange) -> None:
        head = exchange.head
        path, _ = normalise(head.target)
        match = self.calls.routes.match(head.method.decode("latin-1"), path)
        if match is None:
            await self.calls(exchange)
            return
        request_id = self.calls.request_id(head)

        def begun(body: bytes) -> None:
            self._begun(heard, match, path, body, request_id.decode("latin-1"))

        heard = Overheard(exchange, self.calls.settings.body_bytes_max, begun)
        if exchange.body_length == 0:
            begun(b"")
        await self.calls(heard, request_id)
        if heard.understood is not None:
            classifier = Classifier(match.route, self.calls.platform, ALL_DECODERS)
            verdict = classifier.classify(
                heard.result(), after_doubt=False, received_wall_ms=self.calls.clock.wall_ms()
            )
            self.shadow.ended(heard.understood.claim, verdict.outcome)

    def _begun(self, heard: Overheard, match: Match, path: str, body: bytes, request_id: str) -> None:
        """The request is whole: what would the guard have said?"""
        scope = self.calls.settings.scope_of(heard.head)
        understood = (
            scope
            if isinstance(scope, Problem)
            else make_claim(
                heard.head,
                body,
                match=match,
                path=path,
                platform=self.calls.platform,
                scope=scope,
                secrets=self.calls.store.secrets(),
                request_id=request_id,
                observe=True,
            )
        )
        route = match.route
        if isinstance(understood, Problem):
            header = route.key.header.decode("latin-1")
            finding = self.shadow.refused(understood, key_header=header)
            self.tell(Observed(route.name, finding, request_id))
            return
        heard.understood = understood
        for finding in self.shadow.passed(
            understood.claim,
            heard.head.headers,
            sensitive=understood.sensitive,
            now_ms=self.calls.clock.monotonic_ms(),
        ):
            self.tell(Observed(route.name, finding, request_id))


class Overheard:
    """An exchange whose request and answer are copied as they pass. Implements `ports.Exchange`."""

    def __init__(self, exchange: Exchange, body_bytes_max: int, begun: Callable[[bytes], None]) -> None:
        self._exchange = exchange
        self._body_bytes_max = body_bytes_max
        self._begun = begun
        self.head: RequestHead = exchange.head
        self.peer: str = exchange.peer
        self.understood: Understood | None = None
        self._status: int | None = None
        self._headers: Headers = ()
        self._answer = bytearray()
        self._is_whole = False
        self._is_awaited = False

    def result(self) -> WireResult:
        """How the platform answered, as far as it was heard: for a caller that had given up, not at all (C9)."""
        is_heard = self._is_whole and self._is_awaited and len(self._answer) <= ANSWER_BYTES_MAX
        if self._status is not None and is_heard:
            return Answered(Response(self._status, self._headers, bytes(self._answer)))
        return MaybeSent(MaybeSentReason.TRUNCATED, Phase.READING, status=self._status)

    @property
    def is_open(self) -> bool:
        return self._exchange.is_open

    @property
    def body_length(self) -> int | None:
        return self._exchange.body_length

    @property
    def has_body_framing(self) -> bool:
        return self._exchange.has_body_framing

    async def read_body(self, *, bytes_max: int) -> bytes:
        return await self._exchange.read_body(bytes_max=bytes_max)

    async def body_chunks(self) -> AsyncIterator[bytes]:
        body: bytearray | None = bytearray()
        async for chunk in self._exchange.body_chunks():
            if body is not None:
                body += chunk
                body = body if len(body) <= self._body_bytes_max else None
            yield chunk
        if body is not None:
            self._begun(bytes(body))

    async def reply(self, response: Response) -> bool:
        return await self._exchange.reply(response)

    async def interim(self, status: int, headers: Headers) -> None:
        await self._exchange.interim(status, headers)

    async def begin(
        self, status: int, reason: bytes, headers: Headers, *, body_length: int | None, bodyless: bool
    ) -> None:
        self._status, self._headers = status, headers
        await self._exchange.begin(status, reason, headers, body_length=body_length, bodyless=bodyless)
        self._is_awaited = self._exchange.is_open

    async def write(self, chunk: bytes) -> None:
        if len(self._answer) <= ANSWER_BYTES_MAX:
            self._answer += chunk
        await self._exchange.write(chunk)

    async def end(self, trailers: Headers = ()) -> bool:
        self._is_whole = await self._exchange.end(trailers)
        return self._is_whole

    def abort(self) -> None:
        self._exchange.abort()
