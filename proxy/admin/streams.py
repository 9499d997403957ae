"""Events, both ways: the platform's come in (U4), ours go out as server-sent events (A2, U7)."""

from __future__ import annotations

import json

from aiohttp import web

from proxy.admin import params
from proxy.admin.house import House, Told
from proxy.admin.refusals import Refused, answered
from proxy.core.http import Headers
from proxy.core.model import Scope
from proxy.webhooks import EventPolicy, Verdict, Webhooks

EVENT_BYTES_MAX = 1 << 20
BEAT_S = 15.0  # proxies drop connections that are silent for 30 s and more
RETRY_MS = 2_000


class Inbound:
    """`POST /events`."""

    def __init__(self, house: House) -> None:
        self._house = house

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/events", self.receive)]

    async def receive(self, request: web.Request) -> web.Response:
        body = await request.read()
        headers: Headers = tuple((bytes(name), bytes(value)) for name, value in request.raw_headers)
        ended = await self._webhooks()(headers, body)
        if ended.status >= 400:
            code = "invalid_signature" if ended.verdict is Verdict.REFUSED else "invalid_request"
            raise Refused(ended.status, code, ended.detail)
        told = {"verdict": ended.verdict.value, "detail": ended.detail, "changed": ended.changed}
        return answered(told, status=ended.status)

    def _webhooks(self) -> Webhooks:
        """Of the configuration in force; cheap to make."""
        house, now = self._house, self._house.now
        settings = now.settings
        events = settings.events
        fixed = (
            Scope(settings.merchant.name or "", settings.environment.name or "")
            if settings.has_fixed_scope
            else None
        )
        return Webhooks(
            platform=settings.platform,
            policy=EventPolicy(
                header=events.header.encode("latin-1"),
                secret=events.secret.reveal().encode() if events.secret else None,
                tolerance_ms=events.tolerance_ms,
                scope=fixed,
            ),
            store=house.store,
            hint=now.resolver.hint_at,
            announce=now.resolver.announce,
            tell=house.observer.event_received,
        )


class Outbound:
    """`GET /events`."""

    def __init__(self, house: House) -> None:
        self._house = house

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/events", self.stream)]

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Resume after `Last-Event-ID` (a browser sends it by itself), or `?last=`."""
        params.only(request.query.keys(), {"last"})
        last = _last_id(request)
        news = self._house.observer.announcements
        if news.is_full:
            raise Refused(503, "busy", "too many streams are open", retry_after_ms=5_000)
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream; charset=utf-8", "X-Accel-Buffering": "no"}
        )
        await response.prepare(request)
        await response.write(f"retry: {RETRY_MS}\n\n".encode())
        _, whole = news.since(last)
        if not whole:
            await response.write(b"event: gap\ndata: {}\n\n")
        try:
            async for told in news.read(last, beat_s=BEAT_S):
                await response.write(b": alive\n\n" if told is None else _frame(told))
        except ConnectionResetError:
            return response  # the reader has gone
        return response


def _frame(told: Told) -> bytes:
    data = json.dumps({"at_ms": told.at_ms, **told.data}, separators=(",", ":"))
    return f"id: {told.id}\nevent: {told.kind}\ndata: {data}\n\n".encode()


def _last_id(request: web.Request) -> int | None:
    given = request.query.get("last") or request.headers.get("Last-Event-ID")
    if not given:
        return None
    if not given.isascii() or not given.isdecimal() or len(given) > 18:
        raise params.wrong("last", "the id of an event of this stream", given)
    return int(given)
