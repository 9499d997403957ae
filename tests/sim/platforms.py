"""The platforms that the world's banks speak for, and the calls that merchants make of them."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import lru_cache

from proxy.core.claim import Understood, make_claim
from proxy.core.classify import Classifier
from proxy.core.http import RequestHead
from proxy.core.messages import Claim
from proxy.core.resolve import LookupPolicy
from proxy.core.routes import Match
from proxy.core.rules import GuardRule, OnFailure, Path, Platform, Replay, Route
from tests.core.payhub import CANCEL, CHECKOUT, CONFIRM, CREATE, PAYHUB, REFUNDS, SCOPE, SECRETS, injecting

JSON_TYPE = ((b"Content-Type", b"application/json"),)
LEASE_MS = 10_000
WAIT_MS = 20_000
ATTEMPT_TIMEOUT_MS = 6_000
LATE_MS_MAX = 40_000  # how long a request may hang in a queue; the lag below is longer (U8's assumption)
LOOKUPS = LookupPolicy(
    schedule_ms=(10_000, 30_000, 120_000, 300_000, 900_000, 3_600_000),
    then_every_ms=4 * 3_600_000,
    until_ms=86_400_000,
    min_interval_ms=10_000,
    lag_ms=60_000,
    misses=3,
)
NO_PATH: Path = ()


@dataclass(frozen=True, slots=True)
class Setting:
    """What differs between worlds: the platform, and how the sidecars are configured.

    `is_unique`: the platform itself refuses a second effect on an order (payhub); else it only honours keys,
    replays its first answer, and its objects carry no version (Stripe-like).
    """

    is_unique: bool
    attempts: int
    forwards: bool  # D3: `on_failure: forward` on creates and refunds
    stored_bytes_max: int = 65_536  # below an answer's size nothing of it is kept (D4)

    @property
    def platform(self) -> Platform:
        return _platform(self)

    def route(self, kind: str) -> Route:
        return _routes(self)[kind]

    def classifier(self, kind: str) -> Classifier:
        return _classifier(self, kind)


@lru_cache(maxsize=64)
def _routes(setting: Setting) -> dict[str, Route]:
    retry = replace(
        CREATE.retry, attempts=setting.attempts, attempt_timeout_ms=ATTEMPT_TIMEOUT_MS, deadline_ms=40_000
    )
    on_failure = OnFailure.FORWARD if setting.forwards else OnFailure.REJECT
    create = replace(CREATE, retry=retry, on_failure=on_failure)
    refunds = replace(REFUNDS, retry=retry, on_failure=on_failure)
    if not setting.is_unique:
        loose = GuardRule(on=True, platform_is_unique=False)
        bare = replace(create.object, version=NO_PATH, attempt_count=NO_PATH, failure_attempt_id=NO_PATH)
        create = replace(
            create,
            guard=loose,
            replay=Replay.STORED,
            object=bare,
            key_expires=True,
            on_failure=OnFailure.REJECT,
        )
    return {
        "create": create,
        "confirm": replace(injecting(CONFIRM), retry=retry),
        "cancel": replace(CANCEL, retry=retry),
        "checkout": replace(CHECKOUT, retry=retry),
        "refund": refunds,
    }


@lru_cache(maxsize=64)
def _platform(setting: Setting) -> Platform:
    return replace(PAYHUB, routes=tuple(_routes(setting).values()))


@lru_cache(maxsize=256)
def _classifier(setting: Setting, kind: str) -> Classifier:
    return Classifier(setting.route(kind), setting.platform)


@dataclass(frozen=True, slots=True)
class Request:
    """A call as the merchant makes it. `thing`: order number, payment id or refund number."""

    kind: str
    thing: str
    amount: int = 0
    key: str | None = None
    payment: str = ""  # a refund's
    is_valid: bool = True


PATHS = {
    "create": "/v1/payments",
    "confirm": "/v1/payments/{}/confirm",
    "cancel": "/v1/payments/{}/cancel",
    "checkout": "/v1/checkout/sessions",
    "refund": "/v1/refunds",
}


@lru_cache(maxsize=4096)
def claim_of(setting: Setting, request: Request) -> Claim:
    """The call, understood by the core's own rules."""
    path = PATHS[request.kind].format(request.thing)
    body: dict[str, object] = {"currency": "USD", "amount": request.amount}
    if request.kind in ("create", "checkout"):
        body["merchant_order_no"] = request.thing
    elif request.kind == "refund":
        body |= {"merchant_refund_no": request.thing, "payment_id": request.payment}
    else:
        body = {"card": {"token": "tok"}}
    params = {"payment_id": request.thing} if "{}" in PATHS[request.kind] else {}
    headers = JSON_TYPE if request.key is None else (*JSON_TYPE, (b"Idempotency-Key", request.key.encode()))
    understood = make_claim(
        RequestHead(b"POST", path.encode(), headers),
        json.dumps(body).encode(),
        match=Match(setting.route(request.kind), params),
        path=path,
        platform=setting.platform,
        scope=SCOPE,
        secrets=SECRETS,
        request_id="sim",
    )
    assert isinstance(understood, Understood), understood
    return understood.claim
