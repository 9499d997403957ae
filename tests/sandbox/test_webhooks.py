"""Events: what is sent, how it is signed, and how a test sends it again."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from proxy.sandbox import Sandbox, Settings
from proxy.sandbox.webhooks import signature

from .conftest import Merchant

SECRET = "whsec_test"


@dataclass(slots=True)
class Inbox:
    """A merchant's endpoint for events; `statuses` are given first, then 200."""

    url: str = ""
    statuses: list[int] = field(default_factory=list)
    letters: list[tuple[str, bytes]] = field(default_factory=list)

    async def take(self, request: web.Request) -> web.Response:
        self.letters.append((request.headers.get("Webhook-Signature", ""), await request.read()))
        return web.Response(status=self.statuses.pop(0) if self.statuses else 200)

    @property
    def events(self) -> list[Any]:
        return [json.loads(body) for _, body in self.letters]


@pytest.fixture
async def inbox() -> AsyncIterator[Inbox]:
    box = Inbox()
    app = web.Application()
    app.router.add_post("/events", box.take)
    async with TestServer(app, host="127.0.0.1") as server:
        box.url = str(server.make_url("/events"))
        yield box


@pytest.fixture
def settings(inbox: Inbox) -> Settings:
    return Settings(webhook_url=inbox.url, webhook_secret=SECRET)


async def test_each_final_change_is_one_signed_event_in_order(
    merchant: Merchant, sandbox: Sandbox, inbox: Inbox
) -> None:
    failed = (await merchant.pay("O-1~decline")).body
    await merchant.post(f"/v1/payments/{failed['id']}/confirm", {}, key="C")
    refund = {"merchant_refund_no": "R-1~202", "payment_id": failed["id"], "amount": 1}
    await merchant.post("/v1/refunds", refund, key="R")
    sandbox.settle_refund("ref_demo_001", status="succeeded")
    await sandbox.webhooks.delivered()
    events = inbox.events
    assert [event["type"] for event in events] == [
        "payment.failed",
        "payment.succeeded",
        "refund.processing",
        "refund.succeeded",
    ]
    assert [event["id"] for event in events] == [f"evt_demo_00{n}" for n in range(1, 5)]
    assert [event["data"]["object"]["version"] for event in events] == [1, 2, 1, 2]
    assert events[0]["data"]["object"] == failed
    for header, body in inbox.letters:
        stamp, mac = (part.partition("=")[2] for part in header.split(","))
        expected = hmac.new(SECRET.encode(), f"{stamp}.".encode() + body, hashlib.sha256).hexdigest()
        assert mac == expected


async def test_canceled_and_expired_are_events_too(
    merchant: Merchant, sandbox: Sandbox, inbox: Inbox
) -> None:
    first, second = [(await merchant.pay(f"O-{n}~decline")).body["id"] for n in (1, 2)]
    await merchant.post(f"/v1/payments/{first}/cancel", key="X")
    sandbox.settle_payment(second, status="expired")
    await sandbox.webhooks.delivered()
    assert [event["type"] for event in inbox.events[2:]] == ["payment.canceled", "payment.expired"]


async def test_refused_delivery_is_tried_again_and_noted(
    merchant: Merchant, sandbox: Sandbox, inbox: Inbox
) -> None:
    inbox.statuses[:] = [500]
    await merchant.pay("O-1")
    await sandbox.webhooks.delivered()
    (event,) = (await merchant.get("/_sandbox/events")).body["events"]
    assert event["deliveries"] == ["500", "200"]
    assert inbox.letters[0][1] == inbox.letters[1][1]


async def test_events_are_sent_again_doubled_and_out_of_order(merchant: Merchant, inbox: Inbox) -> None:
    sandbox = await Sandbox.start(settings=Settings(webhook_url=inbox.url, webhook_automatic=False))
    try:
        caller = Merchant(merchant.session, sandbox.url)
        made = (await caller.pay("O-1~decline")).body
        await caller.post(f"/v1/payments/{made['id']}/confirm", {}, key="C")
        ids = ["evt_demo_002", "evt_demo_001", "evt_demo_001"]
        assert (await caller.post("/_sandbox/events", {"ids": ids})).status == 202
        await sandbox.webhooks.delivered()
        assert [event["id"] for event in inbox.events] == ids
        assert inbox.letters[0][0] == ""
        answer = await caller.post("/_sandbox/events", {"ids": ["evt_demo_009"]})
        assert answer.status == 404
    finally:
        await sandbox.close()


async def test_unreachable_endpoint_is_noted_and_harms_nothing(session: ClientSession) -> None:
    sandbox = await Sandbox.start(settings=Settings(webhook_url="http://127.0.0.1:1/"))
    try:
        assert (await Merchant(session, sandbox.url).pay("O-1")).status == 201
        await sandbox.webhooks.delivered()
        assert sandbox.webhooks.events[0].deliveries == ["ClientConnectorError"] * 3
    finally:
        await sandbox.close()


def test_signature_covers_time_and_body() -> None:
    made = signature("s", b"{}", unix_s=7)
    assert made.startswith("t=7,v1=")
    assert len({made, signature("s", b"{}", unix_s=8), signature("s", b"{ }", unix_s=7)}) == 3
