"""A merchant's service as bytes on a socket: what it sends exactly, and what it was told."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tests.wire.peers import Answer, RawCaller

ORDER = "ORDER-T-001"
TOKEN = b"Bearer sk_test_A"


def request(
    method: str, path: str, body: bytes | None = None, *headers: tuple[str, str], key: str | None = None
) -> bytes:
    """A whole request. Without a body there is no Content-Length unless a header says so."""
    lines = [f"{method} {path} HTTP/1.1", "Host: sut.test", "Authorization: Bearer sk_test_A"]
    if body is not None:
        lines.append("Content-Type: application/json")
    if key is not None:
        lines.append(f"Idempotency-Key: {key}")
    lines += [f"{name}: {value}" for name, value in headers]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + (body or b"")


def post(path: str, fields: object, *headers: tuple[str, str], key: str | None = None) -> bytes:
    body = json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()
    return request("POST", path, body, *headers, key=key)


def payment(
    key: str | None = "K",
    amount: int = 10_000,
    *headers: tuple[str, str],
    order: str = ORDER,
    **more: object,
) -> bytes:
    """P(K, amt) of the failure cases; `more` are further members of the body."""
    fields = {"merchant_order_no": order, "amount": amount, "currency": "USD", **more}
    return post("/v1/payments", fields, *headers, key=key)


def refund(key: str | None, number: str, *, payment_id: str = "pay_t1", amount: int = 10_000) -> bytes:
    fields = {"merchant_refund_no": number, "payment_id": payment_id, "amount": amount, "currency": "USD"}
    return post("/v1/refunds", fields, key=key)


def confirm(key: str | None, payment_id: str = "pay_t1", **fields: object) -> bytes:
    return post(f"/v1/payments/{payment_id}/confirm", fields, key=key)


def cancel(key: str, payment_id: str = "pay_t1", *headers: tuple[str, str]) -> bytes:
    """A cancel has a key and no body."""
    return request("POST", f"/v1/payments/{payment_id}/cancel", None, ("Content-Length", "0"), key=key)


def lookup(order: str) -> bytes:
    return request("GET", f"/v1/payments?merchant_order_no={order}")


@dataclass(frozen=True, slots=True)
class Told:
    """What the caller was told."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    raw: Answer

    @classmethod
    def of(cls, read: Answer) -> Told:
        headers = tuple(
            (name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in read.headers
        )
        return cls(read.status, headers, read.body, read)

    def all(self, name: str) -> list[str]:
        return [value for field, value in self.headers if field == name.lower()]

    def header(self, name: str) -> str | None:
        """The only value of the header; a second one is a fault in itself."""
        found = self.all(name)
        assert len(found) <= 1, f"{name} came {len(found)} times"
        return found[0] if found else None

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> Any:
        return self.json["error"]

    @property
    def code(self) -> str | None:
        """The error's code; None where the body is no error."""
        if not self.body.startswith(b'{"error"'):
            return None
        return str(self.error["code"])

    @property
    def knowledge(self) -> str | None:
        return self.header("safepost-knowledge")

    @property
    def attempts(self) -> int:
        return int(self.header("safepost-attempts") or -1)

    @property
    def operation(self) -> str:
        found = self.header("safepost-operation")
        assert found is not None
        return found

    @property
    def replayed(self) -> bool:
        return self.header("idempotent-replayed") == "true"

    @property
    def reads_as_failed(self) -> bool:
        """Whether a client that reads only status and body would take its money for not moved."""
        if self.status < 300:
            return bool(self.json.get("status") == "failed")
        if self.status == 503:
            return self.code in ("temporarily_unavailable", "upstream_unavailable")
        return 400 <= self.status < 500 and self.status not in (408, 409)


async def call(address: str, raw: bytes) -> Told:
    """One request on a connection of its own."""
    async with await RawCaller.dial(address) as caller:
        await caller.send(raw)
        return Told.of(await caller.answer())
