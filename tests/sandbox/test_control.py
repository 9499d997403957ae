"""The control endpoints, and `serve` as the command line uses it."""

from __future__ import annotations

import asyncio

import pytest

from proxy.sandbox import Sandbox, serve

from .conftest import Merchant
from .wires import until


async def test_ledger_and_requests_are_shown(merchant: Merchant) -> None:
    await merchant.pay("ORDER-1", key="K")
    (entry,) = (await merchant.get("/_sandbox/ledger")).body["entries"]
    assert (entry["seq"], entry["kind"], entry["order"], entry["key"]) == (1, "charge", "ORDER-1", "K")
    (request,) = (await merchant.get("/_sandbox/requests")).body["requests"]
    assert (request["method"], request["path"], request["answer"]) == ("POST", "/v1/payments", "201")


async def test_faults_are_added_listed_and_dropped(merchant: Merchant) -> None:
    added = await merchant.post("/_sandbox/faults", {"status": 500, "match": {"order": "O-1"}})
    more = await merchant.post("/_sandbox/faults", {"rules": [{"fault": "garbage"}, {"fault": "decline"}]})
    assert (added.status, added.body, more.body) == (201, {"ids": [1]}, {"ids": [2, 3]})
    await merchant.pay("O-1")
    rules = (await merchant.get("/_sandbox/faults")).body["rules"]
    assert [(rule["id"], rule["fault"], rule["used"]) for rule in rules] == [
        (1, "status", 1),
        (2, "garbage", 0),
        (3, "decline", 1),
    ]
    assert rules[0]["match"] == {"order": "O-1"}
    assert (await merchant.send("DELETE", "/_sandbox/faults/2")).status == 204
    assert (await merchant.send("DELETE", "/_sandbox/faults")).status == 204
    assert (await merchant.get("/_sandbox/faults")).body["rules"] == []


async def test_one_bad_rule_adds_none(merchant: Merchant, sandbox: Sandbox) -> None:
    answer = await merchant.post("/_sandbox/faults", [{"status": 500}, {"fault": "explode"}])
    assert (answer.status, answer.body["error"]["field"]) == (422, "fault")
    assert sandbox.faults.armed == ()


async def test_payment_and_refund_are_settled(merchant: Merchant, sandbox: Sandbox) -> None:
    made = await merchant.pay("ORDER-1~202")
    address = f"/_sandbox/payments/{made.body['id']}"
    assert (await merchant.post(address, {"status": "processing"})).status == 422
    settled = await merchant.post(address, {"status": "succeeded"})
    assert (settled.status, settled.body["status"], settled.body["version"]) == (200, "succeeded", 2)
    again = await merchant.post(address, {"status": "failed"})
    assert (again.status, again.code) == (422, "invalid_state")
    body = {"merchant_refund_no": "R-1~202", "payment_id": made.body["id"], "amount": 1}
    refund = await merchant.post("/v1/refunds", body, key="R")
    address = f"/_sandbox/refunds/{refund.body['id']}"
    assert (await merchant.post(address, {"status": "failed"})).body["failure"]["code"] == "refund_declined"
    assert (await merchant.post(address, {"status": "succeeded"})).code == "invalid_state"
    assert (await merchant.post("/_sandbox/refunds/ref_x", {"status": "failed"})).status == 404
    assert (await merchant.post("/_sandbox/payments/pay_x", {"status": "failed"})).status == 404
    assert len(sandbox.ledger.entries) == 1


async def test_payment_may_expire_or_fail_and_be_tried_again(merchant: Merchant, sandbox: Sandbox) -> None:
    made = await merchant.pay("ORDER-1~202")
    sandbox.settle_payment(made.body["id"], status="failed")
    shown = (await merchant.get(f"/v1/payments/{made.body['id']}")).body
    assert (shown["status"], shown["failure"]["attempt_id"]) == ("failed", "att_demo_001")
    assert sandbox.settle_payment(made.body["id"], status="expired")["resolution_status"] == "known"
    confirm = await merchant.post(f"/v1/payments/{made.body['id']}/confirm", {}, key="C")
    assert confirm.code == "invalid_state"
    assert sandbox.ledger.entries == ()


async def test_open_payment_shows_how_far_its_resolution_is(merchant: Merchant, sandbox: Sandbox) -> None:
    made = await merchant.pay("ORDER-1~202")
    address = f"/_sandbox/payments/{made.body['id']}"
    noted = (await merchant.post(address, {"resolution_status": "manual_review"})).body
    assert (noted["status"], noted["resolution_status"], noted["version"]) == (
        "processing",
        "manual_review",
        2,
    )
    assert (await merchant.post(address, {"resolution_status": "lost"})).status == 422
    settled = (await merchant.post(address, {"status": "succeeded"})).body
    assert (settled["resolution_status"], settled["version"]) == ("known", 3)
    assert (await merchant.post(address, {"resolution_status": "needs_query"})).code == "invalid_state"
    assert [event.type for event in sandbox.webhooks.events] == ["payment.succeeded"]


async def test_reset_starts_anew(merchant: Merchant, sandbox: Sandbox) -> None:
    await merchant.pay("ORDER-1~202:succeeded:60")
    sandbox.add_fault({"status": 500, "times": "always"})
    assert (await merchant.send("DELETE", "/_sandbox")).status == 204
    assert sandbox._timers == set()
    assert (sandbox.ledger.entries, sandbox.requests.seen, sandbox.faults.armed) == ((), (), ())
    made = await merchant.pay("ORDER-1")
    assert (made.status, made.body["id"]) == (201, "pay_demo_001")


async def test_control_body_that_is_no_json_is_400(merchant: Merchant) -> None:
    assert (await merchant.post("/_sandbox/events", "x")).status == 422
    assert (await merchant.send("POST", "/_sandbox/faults")).status == 400


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
async def test_serve_announces_itself_and_ends_when_told(host: str) -> None:
    stop = asyncio.Event()
    lines: list[str] = []
    serving = asyncio.ensure_future(serve(f"{host}:0", announce=lines.append, stop=stop))
    await until(lambda: bool(lines))
    assert lines[0].startswith(f"sandbox listening on http://{host}:")
    stop.set()
    await serving
    assert len(lines) == 1


@pytest.mark.parametrize("listen", ["9000", ":9000", "host:", "host:http", "host:70000"])
async def test_serve_refuses_an_address_that_is_none(listen: str) -> None:
    lines: list[str] = []
    with pytest.raises(ValueError, match="HOST:PORT"):
        await serve(listen, announce=lines.append)
    assert lines == []
