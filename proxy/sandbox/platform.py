"""The platform's endpoints without the network: a call comes in, an answer goes out.

Order of checks, which a caller can observe: the credential (401), then the key (400), then whether the key is
known (the object, or 409), then the fields (422) and the object (404, 409, 422). So a known key answers with
its object whatever else is wrong, and what is refused before that says nothing about the key.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from proxy.sandbox.bank import Bank
from proxy.sandbox.keys import KEY_CHARACTERS_MAX, KeyBook, KeyScope
from proxy.sandbox.objects import Answer, Json, Order, Outcome, Payment, Refund, Tenant
from proxy.sandbox.refusals import RefusedError, unknown

KEY_HEADER: Final = "idempotency-key"
PAGE_MAX: Final = 100

ROUTES: Final = (
    ("create_payment", "POST", re.compile(r"/v1/payments")),
    ("confirm_payment", "POST", re.compile(r"/v1/payments/([^/]+)/confirm")),
    ("cancel_payment", "POST", re.compile(r"/v1/payments/([^/]+)/cancel")),
    ("create_checkout_session", "POST", re.compile(r"/v1/checkout/sessions")),
    ("create_refund", "POST", re.compile(r"/v1/refunds")),
    ("get_payment", "GET", re.compile(r"/v1/payments/([^/]+)")),
    ("list_payments", "GET", re.compile(r"/v1/payments")),
    ("get_refund", "GET", re.compile(r"/v1/refunds/([^/]+)")),
    ("list_refunds", "GET", re.compile(r"/v1/refunds")),
)

SAFE_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "create_payment": ("merchant_order_no", "amount", "currency"),
    "confirm_payment": (),
    "cancel_payment": (),
    "create_checkout_session": ("merchant_order_no", "amount", "currency"),
    "create_refund": ("merchant_refund_no", "payment_id", "amount", "currency"),
}
"""What is compared when a key comes again. The path, with its payment id, is part of the scope already."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request as the platform reads it. `body` is None where it is not a JSON object."""

    method: str
    path: str
    query: Mapping[str, str]
    keys: tuple[str, ...]
    authorization: str
    body: Json | None
    has_body: bool
    route: str | None
    object_id: str

    @property
    def key(self) -> str | None:
        return self.keys[0] if self.keys else None


@dataclass(frozen=True, slots=True)
class Work:
    """How one call is worked on: what the bank says, and how long the platform takes before it acts."""

    outcome: Outcome = field(default_factory=Outcome)
    delay_s: float = 0.0


PROMPTLY: Final = Work()


def read_call(
    method: str,
    path: str,
    query: Mapping[str, str],
    *,
    keys: tuple[str, ...],
    authorization: str,
    body: bytes,
) -> Call:
    route, object_id = find_route(method, path)
    return Call(method, path, query, keys, authorization, _parse(body), bool(body), route, object_id)


def find_route(method: str, path: str) -> tuple[str | None, str]:
    """The route's name and the object id in the path; a HEAD is looked up as a GET."""
    asked = "GET" if method == "HEAD" else method
    for name, verb, pattern in ROUTES:
        found = pattern.fullmatch(path)
        if found and verb == asked:
            return name, found.group(1) if pattern.groups else ""
    return None, ""


def _parse(body: bytes) -> Json | None:
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None


class Platform:
    """Credentials, keys and pages around the bank."""

    def __init__(
        self,
        *,
        bank: Bank,
        keys: KeyBook,
        tokens: Mapping[str, str] | None,
        merchant: str,
        wait_s: float,
    ) -> None:
        self._bank = bank
        self._keys = keys
        self._tokens = tokens
        self._merchant = merchant
        self._wait_s = wait_s
        self._verbs: Mapping[str, Callable[[Order], Answer]] = {
            "create_payment": bank.create_payment,
            "confirm_payment": bank.confirm_payment,
            "cancel_payment": bank.cancel_payment,
            "create_checkout_session": bank.create_checkout_session,
            "create_refund": bank.create_refund,
        }

    async def answer(self, call: Call, work: Work = PROMPTLY) -> Answer:
        try:
            tenant = self._tenant(call)
            if call.route is None:
                raise RefusedError(404, "resource_not_found", f"no such endpoint: {call.method} {call.path}")
            if call.route in self._verbs:
                return await self._guarded(call, call.route, tenant=tenant, work=work)
            if work.delay_s > 0:
                await asyncio.sleep(work.delay_s)
            return Answer(200, self._look(call, call.route, tenant))
        except RefusedError as refused:
            return refused.answer

    def _tenant(self, call: Call) -> Tenant:
        scheme, _, token = call.authorization.partition(" ")
        token = token.strip()
        is_known = self._tokens is None or token in self._tokens
        if scheme.lower() != "bearer" or not token or not is_known:
            message = "send a valid API key as Authorization: Bearer"
            raise RefusedError(401, "unauthorized", message, field="Authorization")
        merchant = self._merchant if self._tokens is None else self._tokens[token]
        return Tenant(merchant, "live" if token.startswith("sk_live_") else "test")

    async def _guarded(self, call: Call, route: str, *, tenant: Tenant, work: Work) -> Answer:
        scope = KeyScope(tenant, call.method, call.path, _key(call))
        body = call.body
        if body is None and (route != "cancel_payment" or call.has_body):
            raise RefusedError(400, "invalid_request", "the body must be a JSON object", field="body")
        safe = {name: (body or {}).get(name) for name in SAFE_FIELDS[route]}
        ends_at = asyncio.get_running_loop().time() + self._wait_s
        while (record := self._keys.find(scope)) is not None:
            if record.safe != safe:
                message = "this key was used with other parameters; nothing was done"
                raise RefusedError(409, "idempotency_conflict", message, field="Idempotency-Key")
            if record.object_id is not None:
                return Answer(200, self._bank.latest(record.object_id))
            try:
                async with asyncio.timeout_at(ends_at):
                    await record.ended.wait()
            except TimeoutError:
                message = "a request with this key is being worked on; send it again later, with the same key"
                raise RefusedError(409, "operation_in_progress", message, retryable=True) from None
        order = Order(tenant, scope.key, body or {}, call.object_id, work.outcome)
        return await self._execute(scope, safe, order=order, act=self._verbs[route], delay_s=work.delay_s)

    async def _execute(
        self, scope: KeyScope, safe: Json, *, order: Order, act: Callable[[Order], Answer], delay_s: float
    ) -> Answer:
        """Act while holding the key. Whoever is refused gives it back: no object, nothing to come back to."""
        record = self._keys.claim(scope, safe)
        try:
            if delay_s > 0:
                await asyncio.sleep(delay_s)
            answer = act(order)
        except BaseException:
            self._keys.release(scope, record)
            raise
        self._keys.finish(record, str((answer.body or {})["id"]))
        return answer

    def _look(self, call: Call, route: str, tenant: Tenant) -> Json:
        bank = self._bank
        if route in ("get_payment", "get_refund"):
            held: Payment | Refund | None
            held = (bank.payments if route == "get_payment" else bank.refunds).get(call.object_id)
            view = bank.shown(tenant, held)
            if view is None:
                raise unknown(call.object_id)
            return view
        found: list[Payment | Refund | None]
        if route == "list_payments":
            number = call.query.get("merchant_order_no")
            found = list(reversed(bank.payments.values())) if number is None else []
            if number is not None:
                found = [bank.payment_of_order(tenant, number)]
        else:
            number = call.query.get("merchant_refund_no")
            found = list(reversed(bank.refunds.values())) if number is None else []
            if number is not None:
                found = [bank.refund_of_number(tenant, number)]
        views = [view for held in found if (view := bank.shown(tenant, held)) is not None]
        status = call.query.get("status")
        if status is not None:
            views = [view for view in views if view["status"] == status]
        return _page(views, call.query)


def _key(call: Call) -> str:
    key = call.keys[0].strip(" \t") if len(call.keys) == 1 else ""
    if not 1 <= len(key) <= KEY_CHARACTERS_MAX:
        message = f"send one Idempotency-Key of 1 to {KEY_CHARACTERS_MAX} characters"
        raise RefusedError(400, "invalid_request", message, field="Idempotency-Key")
    return key


def _page(views: list[Json], query: Mapping[str, str]) -> Json:
    """One page, newest first; `starting_after` is the id of the last object of the page before."""
    limit = query.get("limit", "20")
    size = int(limit) if limit.isascii() and limit.isdigit() else 0
    if not 1 <= size <= PAGE_MAX:
        raise RefusedError(400, "invalid_request", f"limit: expected 1 to {PAGE_MAX}", field="limit")
    after = query.get("starting_after")
    if after is not None:
        ids = [view["id"] for view in views]
        views = views[ids.index(after) + 1 :] if after in ids else []
    return {"data": views[:size], "has_more": len(views) > size}
