"""A call from its head to its answer: which route it is on, what it claims, what it is told.

Guarded calls are read whole, understood and driven; everything else streams both ways and never touches the
core (architecture section 4).
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import formatdate

from proxy.core import problem
from proxy.core.claim import make_claim
from proxy.core.delivery import DeliverFailure, MarkAnsweredEarly
from proxy.core.http import Headers, MaybeSent, NotSent, RequestHead, Response, WireRequest, first, without
from proxy.core.messages import CallEnded, Fact, Marks, Reply, SensitiveKey
from proxy.core.model import Knowledge, Owner, Scope
from proxy.core.patience import patience_ms
from proxy.core.problem import Problem, render
from proxy.core.routes import Match, RouteTable, near_miss, normalise
from proxy.core.rules import Platform
from proxy.driver import INTERRUPTED, Driver
from proxy.ports import BodyTooLarge, CallerGone, Clock, Exchange, Store, StoreUnavailable, Upstream
from proxy.run import Run

REQUEST_ID = b"X-Request-Id"
REQUEST_ID_MAX = 128  # of a caller's own; a longer one is replaced in logs, never on the wire
SAFE_METHODS = frozenset({b"GET", b"HEAD", b"OPTIONS"})
IDEMPOTENT_METHODS = frozenset({b"PUT", b"DELETE"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSettings:
    """What the configuration says of calls. `authorization` is added where a call brings none (H1)."""

    body_bytes_max: int
    answer_within_ms: int | None
    admin_url: str
    scope_of: Callable[[RequestHead], Scope | Problem]
    authorization: Callable[[Scope], bytes | None]
    is_observing: bool = False


@dataclass(slots=True)
class Calls:
    """The listener's handler."""

    platform: Platform
    settings: CallSettings
    driver: Driver
    store: Store
    upstream: Upstream
    clock: Clock
    tell: Callable[[Fact], None]
    routes: RouteTable
    instance: str
    look_up: Callable[[Reply], None] = lambda _reply: None
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    _beside: set[asyncio.Task[None]] = field(default_factory=set)

    async def __call__(self, exchange: Exchange, request_id: bytes | None = None) -> None:
        """Args: request_id: the call's, where it was asked for before; else it is made now (H7)."""
        started_us = self.clock.monotonic_us()
        head = exchange.head
        request_id = request_id or self.request_id(head)
        path, _query = normalise(head.target)
        match = self.routes.match(head.method.decode("latin-1"), path)
        if match is None or self.settings.is_observing:
            if not self.settings.is_observing and near_miss(self.routes, head.method, path):
                refusal = problem.invalid_request(problem.NEAR_MISS, field="path")
                await self._refuse(exchange, refusal, request_id, started_us)
                return
            await self._pass_through(exchange, request_id, started_us)
            return
        await self._guarded(exchange, match, path, request_id, started_us)

    # --- guarded --------------------------------------------------------------------------------------------

    async def _guarded(
        self, exchange: Exchange, match: Match, path: str, request_id: bytes, started_us: int
    ) -> None:
        head, route = exchange.head, match.route
        if (late := self._too_late()) is not None:
            await self._refuse(exchange, late, request_id, started_us, route.name)
            return
        try:
            body = await exchange.read_body(bytes_max=self.settings.body_bytes_max)
        except BodyTooLarge:
            refusal = problem.body_too_large(self.settings.body_bytes_max)
            await self._refuse(exchange, refusal, request_id, started_us, route.name)
            return
        except CallerGone:
            self._ended(exchange, Reply(Response(0, (), b""), Marks()), request_id, started_us, 0, route.name)
            return
        scope = self.settings.scope_of(head)
        understood = (
            scope
            if isinstance(scope, Problem)
            else make_claim(
                head,
                body,
                match=match,
                path=path,
                platform=self.platform,
                scope=scope,
                secrets=self.store.secrets(),
                request_id=request_id.decode("latin-1"),
            )
        )
        # A drain that began while the body came may have seen no run, and would not wait for this one.
        understood = self._too_late() or understood
        if isinstance(understood, Problem):
            await self._refuse(exchange, understood, request_id, started_us, route.name)
            return
        claim = understood.claim
        if understood.sensitive is not None:
            self.tell(SensitiveKey(route.name, understood.sensitive, claim.request_id))
        number = next(self._numbers)
        run = Run(
            guard=self.driver.guard_of(claim),
            claim=claim,
            request=WireRequest(head.method, head.target, self._headers(head, claim.scope, request_id), body),
            owner=Owner(f"{self.instance}:{number}"),
            request_id=claim.request_id,
            task=asyncio.current_task(),
        )
        await self._drive(exchange, run, request_id, started_us)

    def _too_late(self) -> Problem | None:
        return problem.draining(retry_after_ms=1_000) if self.driver.is_draining else None

    async def _drive(self, exchange: Exchange, run: Run, request_id: bytes, started_us: int) -> None:
        """Run the call; answer early if its caller's patience ends first (W1)."""
        within_ms = patience_ms(exchange.head.headers, self.settings.answer_within_ms)
        answered = [False]
        timer = None
        if within_ms is not None:
            loop = asyncio.get_running_loop()
            spent_ms = (self.clock.monotonic_us() - started_us) // 1000

            def patience_ended() -> None:
                answered[0] = True
                task = loop.create_task(self._answer_early(exchange, run, request_id, started_us))
                self._beside.add(task)
                task.add_done_callback(self._beside.discard)

            timer = loop.call_later(max(0, within_ms - spent_ms) / 1000, patience_ended)
        try:
            reply = await self.driver.run(run)
        finally:
            if timer is not None:
                timer.cancel()
        if reply.look_up is not None:
            self.look_up(reply)
        if answered[0]:
            return
        delivered = await exchange.reply(self._marked(reply, run.claim.route.key.header, request_id))
        self._ended(exchange, reply, request_id, started_us, run.away_us, run.claim.route.name)
        if delivered and reply.confirm_delivery is not None:
            await self._confirm(reply)

    async def _answer_early(self, exchange: Exchange, run: Run, request_id: bytes, started_us: int) -> None:
        reply = run.guard.early_answer()
        await exchange.reply(self._marked(reply, run.claim.route.key.header, request_id))
        self._ended(exchange, reply, request_id, started_us, run.away_us, run.claim.route.name)
        operation = run.guard.operation
        if operation is not None and operation.owner == run.owner:
            try:
                await self.store.transact(MarkAnsweredEarly(operation.scope, operation.id, operation.fence))
            except StoreUnavailable:
                return  # lookups begin when the call ends, or its lease does

    async def _confirm(self, reply: Reply) -> None:
        """K3: a definite failure reached a caller. If this write is lost, the failure is told once more."""
        operation = reply.confirm_delivery
        if operation is None:
            return
        given = self.store.now()
        try:
            await self.store.transact(DeliverFailure(operation.scope, operation.id, operation.fence, given))
        except StoreUnavailable:
            return

    def _marked(self, reply: Reply, key_header: bytes, request_id: bytes) -> Response:
        """The answer with H8's headers. The platform's own headers of these names give way to ours."""
        marks = reply.marks
        ours: list[tuple[bytes, bytes]] = []
        if marks.key is not None:
            ours.append((key_header, marks.key.encode("ascii")))
        if marks.knowledge is not None:
            ours.append((b"Safepost-Knowledge", marks.knowledge.value.encode()))
        if marks.attempts is not None:
            ours.append((b"Safepost-Attempts", b"%d" % marks.attempts))
        if marks.operation is not None:
            ours.append((b"Safepost-Operation", marks.operation.encode()))
        if marks.replayed:
            ours.append((b"Idempotent-Replayed", b"true"))
            ours.append((b"Cache-Control", b"no-store"))
            # RFC 9110 section 6.6.1: of this message, which is not the platform's (O-13).
            ours.append((b"Date", formatdate(self.clock.wall_ms() / 1000, usegmt=True).encode("ascii")))
        if reply.location is not None:
            address = f"{self.settings.admin_url}/operations/{reply.location}"
            ours.append((b"Location", address.encode("latin-1", "replace")))
        names = [name.lower() for name, _ in ours]
        headers = without(reply.answer.headers, *names)
        if first(headers, b"x-request-id") is None:
            ours.append((REQUEST_ID, request_id))
        answer = reply.answer
        return Response(answer.status, (*headers, *ours), answer.body, answer.reason)

    async def _refuse(
        self,
        exchange: Exchange,
        refusal: Problem,
        request_id: bytes,
        started_us: int,
        route: str = "other",
    ) -> None:
        """A call that was not claimed: nothing was sent, and the ledger was not read.

        H8: a mistake of the caller's says nothing of the operation; a 5xx says that it can't be told.
        """
        unread = Marks(Knowledge.UNKNOWN, 0) if refusal.status >= 500 else Marks()
        reply = Reply(render(refusal, self.platform.error_shape), unread)
        await exchange.reply(self._marked(reply, b"", request_id))
        self._ended(exchange, reply, request_id, started_us, 0, route, code=refusal.code)

    # --- everything else ------------------------------------------------------------------------------------

    async def _pass_through(self, exchange: Exchange, request_id: bytes, started_us: int) -> None:
        """Stream both ways. Reads may be tried again; anything else only if nothing was sent (R4)."""
        head = exchange.head
        scope = self.settings.scope_of(head)
        headers = self._headers(head, None if isinstance(scope, Problem) else scope, request_id)
        request = WireRequest(head.method, head.target, headers, b"")
        has_body = exchange.has_body_framing and exchange.body_length != 0
        passage = Passage(exchange, request_id)
        reads = self.platform.reads
        is_read = head.method in SAFE_METHODS and not has_body
        attempts_max = 1 if self.settings.is_observing else reads.attempts
        attempt = 0
        while True:
            attempt += 1
            try:
                ended = await self.upstream.stream(
                    request,
                    exchange.body_chunks() if has_body else None,
                    body_length=exchange.body_length if exchange.has_body_framing else None,
                    sink=passage,
                    timeout_ms=reads.attempt_timeout_ms if is_read else self._patience_ms,
                )
            except asyncio.CancelledError:  # a drain that ran out of time (O3)
                if not passage.head_passed:
                    told = self._stream_failed(head, INTERRUPTED, request_id, is_read=is_read)
                    await exchange.reply(told)
                raise
            result = ended.result
            if result is None:
                break
            if passage.head_passed:
                exchange.abort()
                break
            again = isinstance(result, NotSent) or is_read  # of what was not sent, no byte was taken either
            if not again or attempt >= attempts_max or not exchange.is_open:
                await exchange.reply(self._stream_failed(head, result, request_id, is_read=is_read))
                passage.status = 503 if is_read or isinstance(result, NotSent) else 504
                break
        reply = Reply(Response(passage.status, (), b""), Marks())
        away_us = self.clock.monotonic_us() - started_us
        self._ended(exchange, reply, request_id, started_us, away_us, "other")

    @property
    def _patience_ms(self) -> int:
        """For what is streamed and no read: cut, it is in doubt, so never sooner than a guarded call would be."""
        deadlines = [route.retry.deadline_ms for route in self.platform.routes]
        return max(deadlines, default=self.platform.reads.attempt_timeout_ms)

    def _stream_failed(
        self, head: RequestHead, result: object, request_id: bytes, *, is_read: bool
    ) -> Response:
        why = _why(result) if isinstance(result, NotSent | MaybeSent) else "no answer"
        if is_read:
            told = problem.read_failed(retry_after_ms=1_000, why=why)
        elif isinstance(result, MaybeSent):
            key_headers = {route.key.header.lower() for route in self.platform.routes}
            told = problem.unguarded_unknown(
                has_key=any(name.lower() in key_headers for name, _ in head.headers),
                is_idempotent=head.method in IDEMPOTENT_METHODS,
                retry_after_ms=2_000,
            )
        else:
            told = problem.upstream_unavailable(key=None, operation=None, retry_after_ms=1_000, why=why)
        return self._marked(Reply(render(told, self.platform.error_shape), Marks()), b"", request_id)

    # --- parts ----------------------------------------------------------------------------------------------

    def _headers(self, head: RequestHead, scope: Scope | None, request_id: bytes) -> Headers:
        """The caller's headers, and what is added where missing (H1). Signed and observed ones stay (F5, C9)."""
        headers = head.headers
        if self.platform.signed or self.settings.is_observing:
            return headers
        if first(headers, b"x-request-id") is None:
            headers = (*headers, (REQUEST_ID, request_id))
        if scope is not None and first(headers, b"authorization") is None:
            credential = self.settings.authorization(scope)
            if credential is not None:
                headers = (*headers, (b"Authorization", credential))
        return headers

    def request_id(self, head: RequestHead) -> bytes:
        """What names the call in every line: the caller's own id, or one that is made (H7)."""
        given = first(head.headers, b"x-request-id")
        if given and len(given) <= REQUEST_ID_MAX and given.isascii():
            return given
        return f"{self.instance}-{next(self._numbers):x}".encode()

    def _ended(
        self,
        exchange: Exchange,
        reply: Reply,
        request_id: bytes,
        started_us: int,
        away_us: int,
        route: str,
        *,
        code: str | None = None,
    ) -> None:
        duration_us = self.clock.monotonic_us() - started_us
        marks = reply.marks
        traceparent = _traceparent(exchange.head.headers)
        self.tell(
            CallEnded(
                route=route,
                method=exchange.head.method.decode("latin-1"),
                status=reply.answer.status,
                knowledge=marks.knowledge,
                duration_us=duration_us,
                overhead_us=max(0, duration_us - away_us),
                request_id=request_id.decode("latin-1"),
                trace_id=traceparent[3:35],
                traceparent=traceparent,
                operation=marks.operation,
                key=marks.key,
                attempts=marks.attempts or 0,
                replayed=marks.replayed,
                code=code,
            )
        )


def _why(result: NotSent | MaybeSent) -> str:
    return f"{result.reason.value} ({result.detail})" if result.detail else result.reason.value


def _traceparent(headers: Headers) -> str:
    """The caller's `traceparent` (W3C Trace Context), empty without a well-formed one."""
    value = first(headers, b"traceparent")
    return value.decode("ascii") if value is not None and _TRACEPARENT.fullmatch(value) else ""


_TRACEPARENT = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(?:-[!-~]{0,64})?")


class Passage:
    """A streamed answer on its way to the caller: remembers what has passed, adds the request's id (H7)."""

    def __init__(self, exchange: Exchange, request_id: bytes) -> None:
        self._exchange = exchange
        self._request_id = request_id
        self.status = 0
        self.head_passed = False

    @property
    def is_open(self) -> bool:
        return self._exchange.is_open

    async def interim(self, status: int, headers: Headers) -> None:
        await self._exchange.interim(status, headers)

    async def begin(
        self, status: int, reason: bytes, headers: Headers, *, body_length: int | None, bodyless: bool
    ) -> None:
        self.status, self.head_passed = status, True
        if first(headers, b"x-request-id") is None:
            headers = (*headers, (REQUEST_ID, self._request_id))
        await self._exchange.begin(status, reason, headers, body_length=body_length, bodyless=bodyless)

    async def write(self, chunk: bytes) -> None:
        await self._exchange.write(chunk)

    async def end(self, trailers: Headers = ()) -> bool:
        return await self._exchange.end(trailers)
