"""How an answer leaves, or doesn't: the last step of each request, by the fault that has it."""

from __future__ import annotations

import asyncio
import json
from typing import Final

from aiohttp import web

from proxy.sandbox.gate import Gate
from proxy.sandbox.objects import Answer
from proxy.sandbox.refusals import error_body
from proxy.sandbox.rules import HANG_S_MAX, Fault, FaultRule

EARLY_HINTS: Final = b"HTTP/1.1 103 Early Hints\r\nLink: </v1/payments>; rel=preload\r\n\r\n"
GARBAGE: Final = b"\x16\x03\x01\x02\x00 this is not HTTP\r\n\r\n"

_CODES: Final = {
    400: "invalid_request",
    401: "unauthorized",
    403: "forbidden",
    404: "resource_not_found",
    408: "request_timeout",
    409: "operation_in_progress",
    422: "validation_error",
    425: "too_early",
    429: "rate_limited",
    503: "temporarily_unavailable",
}
_RETRYABLE: Final = frozenset({408, 425, 429})


def response(answer: Answer) -> web.Response:
    """An answer in the platform's JSON."""
    headers = {"Cache-Control": "no-store", **dict(answer.headers)}
    if answer.body is None:
        return web.Response(status=answer.status, headers=headers)
    body = json.dumps(answer.body, separators=(",", ":"), ensure_ascii=False).encode()
    return web.Response(status=answer.status, headers=headers, body=body, content_type="application/json")


def faulty_status(rule: FaultRule) -> web.Response:
    """The answer of a `status` rule: in the platform's shape, or as a gateway's page."""
    status = rule.status
    is_bodyless = status in (204, 304)
    if rule.html:
        page = f"<html><body><h1>{status}</h1><p>{rule.message or 'upstream error'}</p></body></html>"
        return web.Response(status=status, headers=rule.headers, text=page, content_type="text/html")
    code = rule.code or _CODES.get(status, "internal_error")
    if status == 503 and rule.executes and rule.code is None:
        code = "internal_error"  # `temporarily_unavailable` promises that nothing was done
    message = rule.message or f"a fault asked for {status}"
    body = error_body(code, message, retryable=status >= 500 or status in _RETRYABLE)
    return response(Answer(status, None if is_bodyless else body, tuple(rule.headers.items())))


def label(rule: FaultRule) -> str:
    """What the request log says instead of an answer's status."""
    return str(rule.status) if rule.fault in (Fault.STATUS, Fault.LOOKUP_STATUS) else rule.fault.value


async def finish(rule: FaultRule, answer: web.Response, gate: Gate) -> web.Response:
    """Let `rule` have the request's end.

    Returns: what aiohttp is to send. Where the connection has ended that is nothing: it notices by itself.
    """
    fault = rule.fault
    if fault in (Fault.STATUS, Fault.LOOKUP_STATUS):
        return faulty_status(rule)
    if fault in (Fault.HANG_BEFORE, Fault.HANG_AFTER):
        await hang(gate, rule.seconds)
        gate.close()
    elif fault in (Fault.RESET_BEFORE, Fault.RESET_AFTER):
        gate.reset()
    elif fault in (Fault.CLOSE_BEFORE, Fault.CLOSE_AFTER):
        gate.close()
    elif fault is Fault.GARBAGE:
        gate.write(GARBAGE)
        _end(rule, gate)
    else:
        gate.write(_cut(answer))
        _end(rule, gate)
    return answer


async def hang(gate: Gate, seconds: float | None) -> None:
    """Keep silent until the client leaves, or for so long."""
    try:
        async with asyncio.timeout(HANG_S_MAX if seconds is None else seconds):
            await gate.gone.wait()
    except TimeoutError:
        return


def _cut(answer: web.Response) -> bytes:
    """A whole head and half of the body it promises."""
    body = answer.body if isinstance(answer.body, bytes) else b""
    head = (
        f"HTTP/1.1 {answer.status} {answer.reason}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body[: len(body) // 2]


def _end(rule: FaultRule, gate: Gate) -> None:
    if rule.reset:
        gate.reset()
    else:
        gate.close()
