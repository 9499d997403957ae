"""What a platform on a raw socket says: answers, errors, and how they end badly."""

from __future__ import annotations

import json
from typing import Any

from tests.wire.peers import Script, Send, answer

JSON = (b"Content-Type", b"application/json")


def thing(status: str = "succeeded", **more: Any) -> bytes:
    """The platform's object as the failure cases have it."""
    fields = {"id": "pay_t1", "status": status, "merchant_order_no": "ORDER-T-001", **more}
    return json.dumps(fields, separators=(",", ":")).encode()


def says(status: int, body: bytes, *headers: tuple[bytes, bytes], reason: bytes = b"Said") -> Script:
    return Script(Send(answer(status, body, JSON, *headers, reason=reason)))


def ok(code: int = 201, /, **more: Any) -> Script:
    """OK201: the payment, succeeded; `more` are further members of the object."""
    return says(code, thing(**more))


def refuses(status: int, code: str, *headers: tuple[bytes, bytes], **more: object) -> Script:
    """The platform's error shape."""
    body = json.dumps({"error": {"code": code, "message": "as told", "retryable": False, **more}}).encode()
    return says(status, body, *headers)


def page(status: int, *headers: tuple[bytes, bytes]) -> Script:
    """A page in HTML, as something in between would send."""
    html = b"<html><body>sign in first</body></html>"
    return Script(Send(answer(status, html, (b"Content-Type", b"text/html"), *headers)))
