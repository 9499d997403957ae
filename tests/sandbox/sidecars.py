"""Small sidecars to try the scenarios on: one keeps the promise, the others each break it somewhere."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import ClientError, ClientSession, ClientTimeout, web

ATTEMPTS_MAX = 3
ATTEMPT_TIMEOUT_S = 3.0
PAUSE_S = 0.01
FINAL = {"succeeded", "failed", "canceled", "expired"}
SAFE = ("merchant_order_no", "merchant_refund_no", "payment_id", "amount", "currency")


@dataclass(slots=True)
class Record:
    """One operation as the sidecar remembers it."""

    id: str
    safe: Any
    attempts: int = 0
    knowledge: str = "unknown"
    running: asyncio.Task[tuple[int, bytes]] | None = None


@dataclass(slots=True)
class Sidecar:
    """Keeps the promise as far as the scenarios ask, unless `flaw` names how it breaks it.

    The flaws are those that teams ship: a new key for each retry, no retry, a deaf ear for Retry-After, no
    conflict check, no collapsing of concurrent calls, a hang-up that stops the work, everything told as done.
    """

    upstream: str
    session: ClientSession
    flaw: str = ""
    records: dict[tuple[str, str], Record] = field(default_factory=dict)
    fresh: itertools.count[int] = field(default_factory=itertools.count)

    async def serve(self, request: web.Request) -> web.Response:
        body = await request.read()
        if request.method == "GET":
            status, answer = await self._forward(request, body, key=None)
            return web.Response(status=status, body=answer, content_type="application/json")
        key = request.headers["Idempotency-Key"]
        fields = json.loads(body) if body else {}
        safe = {name: fields.get(name) for name in SAFE}
        record = self.records.get((request.path, key))
        if record is None:
            record = self.records[request.path, key] = Record(f"op_{len(self.records)}", safe)
        elif record.safe != safe and self.flaw != "no conflict check":
            error = {"error": {"code": "idempotency_conflict", "message": "", "retryable": False}}
            return self._say(record, key, 409, json.dumps(error).encode())
        if self.flaw == "no collapsing":
            return self._say(record, key, *await self._run(request, body, key, record))
        if record.running is None or record.running.done():
            record.running = asyncio.ensure_future(self._run(request, body, key, record))
        if self.flaw == "work ends with the caller":
            return self._say(record, key, *await record.running)
        return self._say(record, key, *await asyncio.shield(record.running))

    def _say(self, record: Record, key: str, status: int, body: bytes) -> web.Response:
        headers = {
            "Idempotency-Key": key,
            "Safepost-Knowledge": "executed" if self.flaw == "tells executed" else record.knowledge,
            "Safepost-Attempts": str(record.attempts),
            "Safepost-Operation": record.id,
        }
        return web.Response(status=status, headers=headers, body=body, content_type="application/json")

    async def _run(self, request: web.Request, body: bytes, key: str, record: Record) -> tuple[int, bytes]:
        in_doubt = False
        status, answer = 0, b"{}"
        for number in range(1, ATTEMPTS_MAX + 1):
            record.attempts += 1
            sent_key = (
                f"{key}-{next(self.fresh)}" if self.flaw == "new key for a retry" and number > 1 else key
            )
            status, answer = await self._forward(request, body, key=sent_key)
            is_refusal = status in (429, 503)
            is_unclear = status == 0 or (status >= 500 and not is_refusal)
            in_doubt = in_doubt or is_unclear
            if not is_refusal and not is_unclear:
                record.knowledge = _knowledge(status, answer)
                return status, answer
            record.knowledge = "unknown" if in_doubt else "not_executed"
            if self.flaw == "no retry":
                break
            pause_s = 2.0 if status == 429 and self.flaw != "deaf to Retry-After" else PAUSE_S
            await asyncio.sleep(pause_s)
        return status or 504, answer

    async def _forward(self, request: web.Request, body: bytes, *, key: str | None) -> tuple[int, bytes]:
        headers = {"Authorization": request.headers["Authorization"], "Content-Type": "application/json"}
        if key is not None:
            headers["Idempotency-Key"] = key
        try:
            async with self.session.request(
                request.method, self.upstream + request.path_qs, data=body or None, headers=headers
            ) as answer:
                return answer.status, await answer.read()
        except (ClientError, TimeoutError):
            return 0, b"{}"


def _knowledge(status: int, answer: bytes) -> str:
    parsed = json.loads(answer)
    if status < 300:
        is_final = parsed.get("status") in FINAL and status != 202
        return "executed" if is_final else "pending"
    return "executed" if parsed["error"]["code"] == "order_no_conflict" else "not_executed"


@asynccontextmanager
async def running(upstream: str, flaw: str = "") -> AsyncIterator[str]:
    """A sidecar on a socket; its address."""
    timeout = ClientTimeout(total=ATTEMPT_TIMEOUT_S)
    async with ClientSession(timeout=timeout) as session:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", Sidecar(upstream, session, flaw).serve)
        runner = web.AppRunner(
            app, handler_cancellation=flaw == "work ends with the caller", shutdown_timeout=0.1
        )
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()
