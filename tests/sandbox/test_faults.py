"""Each fault as a client's socket sees it, and what it left in the ledger."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest
import uvloop

from proxy.sandbox import Fault, FaultRule, Match, Sandbox

from .conftest import Merchant
from .wires import PATIENCE_S, SILENCE_S, Wire, payment, play, post, until


@pytest.mark.parametrize(
    ("fault", "how", "charges"),
    [
        ("before_read", "reset", 0),
        ("reset_before", "reset", 0),
        ("close_before", "closed", 0),
        ("hang_before", "silent", 0),
        ("reset_after", "reset", 1),
        ("close_after", "closed", 1),
        ("hang_after", "silent", 1),
    ],
)
async def test_fault_ends_the_connection_in_its_phase_once(
    sandbox: Sandbox, fault: str, how: str, charges: int
) -> None:
    sandbox.add_fault({"fault": fault})
    silence_s = SILENCE_S if how == "silent" else PATIENCE_S
    ended = await play(sandbox.url, payment("ORDER-1"), silence_s=silence_s)
    assert (ended.data, ended.how) == (b"", how)
    assert len(sandbox.ledger.charges()) == charges
    seen = sandbox.requests.seen[-1]
    assert (seen.answer, seen.executed) == (fault, charges == 1)
    again = await play(sandbox.url, payment("ORDER-1"))
    assert again.status == (200 if charges else 201)
    assert len(sandbox.ledger.charges()) == 1


async def test_before_read_by_close_ends_with_fin(sandbox: Sandbox) -> None:
    sandbox.add_fault(FaultRule(Fault.BEFORE_READ, Match(path="/v1/payments"), reset=False))
    assert (await play(sandbox.url, payment("ORDER-1"))).how == "closed"


async def test_before_read_of_another_path_lets_the_request_pass(sandbox: Sandbox) -> None:
    sandbox.add_fault({"fault": "before_read", "match": {"path": "/v1/payments/{id}/confirm"}})
    assert (await play(sandbox.url, payment("ORDER-1"))).status == 201


async def test_before_read_hits_a_connection_in_use(sandbox: Sandbox) -> None:
    async with await Wire.to(sandbox.url) as wire:
        wire.send(payment("ORDER-1", close=False))
        assert (await wire.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 201")
        sandbox.add_fault({"fault": "before_read"})
        wire.send(payment("ORDER-2", key="K2"))
        assert (await wire.ending()).how == "reset"
    assert len(sandbox.ledger.charges()) == 1


@pytest.mark.parametrize(("reset", "how"), [(False, "closed"), (True, "reset")])
async def test_truncate_promises_more_than_it_sends(sandbox: Sandbox, reset: bool, how: str) -> None:
    sandbox.add_fault({"fault": "truncate", "reset": reset})
    ended = await play(sandbox.url, payment("ORDER-1"))
    assert ended.how == how
    if not reset:
        assert ended.status == 201
        promised = int(ended.head.partition(b"content-length: ")[2].split()[0])
        assert 0 < len(ended.body) < promised
    assert len(sandbox.ledger.charges()) == 1


async def test_garbage_is_not_http_and_the_payment_executed(sandbox: Sandbox) -> None:
    sandbox.add_fault({"fault": "garbage"})
    ended = await play(sandbox.url, payment("ORDER-1"))
    assert ended.how == "closed"
    assert not ended.data.startswith(b"HTTP/")
    assert len(sandbox.ledger.charges()) == 1


async def test_hang_ends_after_its_seconds_by_a_close(sandbox: Sandbox) -> None:
    sandbox.add_fault({"fault": "hang_after", "seconds": 0.01})
    assert (await play(sandbox.url, payment("ORDER-1"))).how == "closed"


async def test_hang_ends_when_the_client_leaves(sandbox: Sandbox) -> None:
    sandbox.add_fault({"fault": "hang_after"})
    async with await Wire.to(sandbox.url) as wire:
        wire.send(payment("ORDER-1"))
        await until(lambda: len(sandbox.ledger.charges()) == 1)
        assert len(sandbox._gates) == 1
    await until(lambda: not sandbox._gates)


async def test_close_does_not_wait_for_what_hangs() -> None:
    sandbox = await Sandbox.start()
    sandbox.add_fault({"fault": "hang_after"})
    async with await Wire.to(sandbox.url) as wire:
        wire.send(payment("ORDER-1"))
        await until(lambda: len(sandbox.requests) == 1)
        async with asyncio.timeout(PATIENCE_S):
            await sandbox.close()
        assert (await wire.ending()).how == "reset"


@pytest.mark.parametrize(
    ("rule", "code", "retryable"),
    [
        ({"status": 429, "headers": {"Retry-After": "2"}}, "rate_limited", True),
        ({"status": 503}, "temporarily_unavailable", True),
        ({"status": 503, "executed": True}, "internal_error", True),
        ({"status": 500}, "internal_error", True),
        ({"status": 403}, "forbidden", False),
        ({"status": 409, "code": "something_else"}, "something_else", False),
        ({"status": 302, "headers": {"Location": "/elsewhere"}}, "internal_error", False),
    ],
)
async def test_status_rule_answers_in_the_error_shape(
    sandbox: Sandbox, rule: dict[str, object], code: str, retryable: bool
) -> None:
    sandbox.add_fault(rule)
    ended = await play(sandbox.url, payment("ORDER-1"))
    error = json.loads(ended.body)["error"]
    assert (ended.status, error["code"], error["retryable"]) == (rule["status"], code, retryable)
    headers = rule.get("headers", {})
    assert isinstance(headers, dict)
    assert all(f"{name}: {value}".lower().encode() in ended.head for name, value in headers.items())
    assert len(sandbox.ledger.charges()) == (1 if rule.get("executed") else 0)


async def test_status_rule_in_html_has_no_error_shape(sandbox: Sandbox) -> None:
    sandbox.add_fault({"status": 502, "html": True})
    ended = await play(sandbox.url, payment("ORDER-1"))
    assert (ended.status, b"text/html" in ended.head) == (502, True)
    assert ended.body.startswith(b"<html>")


async def test_status_204_has_no_body(sandbox: Sandbox) -> None:
    sandbox.add_fault({"status": 204, "executed": True})
    ended = await play(sandbox.url, payment("ORDER-1"))
    assert (ended.status, ended.body) == (204, b"")


async def test_accept_202_becomes_final_later(merchant: Merchant, sandbox: Sandbox) -> None:
    sandbox.add_fault({"fault": "accept_202", "final_after_s": 0.01, "final_status": "failed"})
    made = await merchant.pay("ORDER-1")
    assert (made.status, made.body["status"], made.body["version"]) == (202, "processing", 1)
    await until(lambda: len(sandbox.webhooks.events) == 1)
    again = await merchant.pay("ORDER-1")
    assert (again.body["status"], again.body["version"]) == ("failed", 2)
    assert sandbox.ledger.entries == ()


async def test_late_final_status_leaves_a_newer_attempt_alone(merchant: Merchant, sandbox: Sandbox) -> None:
    sandbox.add_fault({"fault": "accept_202", "final_after_s": 0.2, "final_status": "succeeded"})
    payment_id = (await merchant.pay("ORDER-1")).body["id"]
    sandbox.settle_payment(payment_id, status="failed")
    sandbox.add_fault({"fault": "accept_202", "match": {"route": "confirm_payment"}})
    await merchant.post(f"/v1/payments/{payment_id}/confirm", {}, key="C")
    await until(lambda: not sandbox._timers)
    assert (await merchant.get(f"/v1/payments/{payment_id}")).body["status"] == "processing"
    assert sandbox.ledger.entries == ()


async def test_cancel_202_is_canceled_later_by_a_rule(merchant: Merchant, sandbox: Sandbox) -> None:
    sandbox.add_fault({"fault": "requires_action"})
    payment_id = (await merchant.pay("ORDER-1")).body["id"]
    sandbox.add_fault({"fault": "accept_202", "match": {"route": "cancel_payment"}, "final_after_s": 0.001})
    answer = await merchant.post(f"/v1/payments/{payment_id}/cancel", key="X")
    assert (answer.status, answer.body["status"]) == (202, "requires_action")
    await until(lambda: len(sandbox.ledger.cancels()) == 1)
    assert (await merchant.get(f"/v1/payments/{payment_id}")).body["status"] == "canceled"


async def test_delay_that_executes_charges_at_once_and_answers_late(sandbox: Sandbox) -> None:
    sandbox.add_fault({"fault": "delay", "seconds": 2.0, "executed": True})
    async with await Wire.to(sandbox.url) as wire:
        wire.send(payment("ORDER-1"))
        await until(lambda: len(sandbox.ledger.charges()) == 1)
        assert (await wire.ending(silence_s=SILENCE_S)).how == "silent"
        assert (await wire.ending()).status == 201


async def test_payment_executes_although_the_client_left_during_the_delay(sandbox: Sandbox) -> None:
    sandbox.add_fault({"fault": "delay", "seconds": 0.02})
    async with await Wire.to(sandbox.url) as wire:
        wire.send(payment("ORDER-1"))
        await until(lambda: len(sandbox.requests) == 1)
    await until(lambda: len(sandbox.ledger.charges()) == 1)


async def test_lookup_lag_hides_a_new_payment_until_it_is_over(merchant: Merchant, sandbox: Sandbox) -> None:
    sandbox.add_fault({"fault": "lookup_lag", "seconds": 0.4})
    payment_id = (await merchant.pay("ORDER-1")).body["id"]
    assert (await merchant.get("/v1/payments?merchant_order_no=ORDER-1")).body["data"] == []
    assert (await merchant.get(f"/v1/payments/{payment_id}")).status == 404
    assert (await merchant.pay("ORDER-1")).status == 200

    async def is_shown() -> bool:
        return (await merchant.get(f"/v1/payments/{payment_id}")).status == 200

    await until(is_shown)


async def test_lookup_lag_shows_the_state_before_a_confirm(merchant: Merchant, sandbox: Sandbox) -> None:
    payment_id = (await merchant.pay("ORDER-1", card={"number": "4000000000000002"})).body["id"]
    sandbox.add_fault({"fault": "lookup_lag", "seconds": 60, "match": {"route": "confirm_payment"}})
    confirmed = await merchant.post(f"/v1/payments/{payment_id}/confirm", {}, key="C")
    assert confirmed.body["status"] == "succeeded"
    shown = (await merchant.get(f"/v1/payments/{payment_id}")).body
    assert (shown["status"], shown["version"]) == ("failed", 1)


async def test_lookup_status_leaves_the_post_alone(merchant: Merchant, sandbox: Sandbox) -> None:
    sandbox.add_fault({"fault": "lookup_status", "status": 503, "match": {"order": "ORDER-1"}, "times": 2})
    made = await merchant.pay("ORDER-1")
    assert made.status == 201
    assert (await merchant.get("/v1/payments?merchant_order_no=ORDER-1")).status == 503
    assert (await merchant.get(f"/v1/payments/{made.body['id']}")).status == 503
    assert (await merchant.get(f"/v1/payments/{made.body['id']}")).status == 200


async def test_early_hints_come_before_the_answer(sandbox: Sandbox) -> None:
    sandbox.add_fault({"fault": "early_hints"})
    ended = await play(sandbox.url, payment("ORDER-1"))
    hint, _, rest = ended.data.partition(b"\r\n\r\n")
    assert hint.startswith(b"HTTP/1.1 103 ")
    assert rest.startswith(b"HTTP/1.1 201 ")


# Which rule meets which request


async def test_rule_skips_and_counts(sandbox: Sandbox) -> None:
    sandbox.add_fault({"status": 500, "skip": 1, "times": 2})
    statuses = [(await play(sandbox.url, payment(f"O-{n}", key=f"K{n}"))).status for n in range(4)]
    assert statuses == [201, 500, 500, 201]


async def test_rule_for_always_stays_until_removed(sandbox: Sandbox) -> None:
    rule_id = sandbox.add_fault({"status": 503, "times": "always", "match": {"order": "O-1"}})
    statuses = [(await play(sandbox.url, payment("O-1"))).status for _ in range(3)]
    assert statuses == [503] * 3
    assert (await play(sandbox.url, payment("O-2", key="K2"))).status == 201
    sandbox.remove_fault(rule_id)
    assert (await play(sandbox.url, payment("O-1"))).status == 201


async def test_endings_wait_for_their_turn_and_outcomes_join_them(
    merchant: Merchant, sandbox: Sandbox
) -> None:
    sandbox.add_fault({"status": 429})
    sandbox.add_fault({"status": 500, "executed": True})
    sandbox.add_fault({"fault": "decline", "skip": 1})
    answers = [await merchant.pay("ORDER-1") for _ in range(3)]
    assert [answer.status for answer in answers] == [429, 500, 200]
    assert answers[2].body["status"] == "failed"
    assert sandbox.ledger.entries == ()


async def test_rule_for_an_order_meets_its_confirm_and_refund(merchant: Merchant, sandbox: Sandbox) -> None:
    paid = (await merchant.pay("ORDER-1")).body["id"]
    sandbox.add_fault({"status": 500, "match": {"order": "ORDER-1"}, "times": 2})
    assert (await merchant.post(f"/v1/payments/{paid}/confirm", {}, key="C")).status == 500
    body = {"merchant_refund_no": "R-1", "payment_id": paid, "amount": 1}
    assert (await merchant.post("/v1/refunds", body, key="R")).status == 500
    assert (await merchant.post("/v1/refunds", body, key="R")).status == 201


async def test_rule_with_key_and_any_method_matches_just_that(merchant: Merchant, sandbox: Sandbox) -> None:
    sandbox.add_fault({"status": 500, "match": {"key": "K-*", "path": "/v1/*"}})
    assert (await merchant.pay("O-1", key="L-1")).status == 201
    assert (await merchant.pay("O-2", key="K-1")).status == 500
    sandbox.add_fault({"status": 418, "match": {"method": "*"}})
    assert (await merchant.get("/v1/payments")).status == 418


# Directives in a business number


async def test_order_number_scripts_its_own_faults(sandbox: Sandbox) -> None:
    order = "ORDER-1~503x2~reset_after"
    ends = [await play(sandbox.url, payment(order)) for _ in range(4)]
    assert [end.how for end in ends] == ["closed", "closed", "reset", "closed"]
    assert [ends[n].status for n in (0, 1, 3)] == [503, 503, 200]
    assert len(sandbox.ledger.charges(order)) == 1


@pytest.mark.parametrize(
    ("directive", "status", "shown"),
    [("~202", 202, "processing"), ("~decline", 201, "failed"), ("~requires_action", 201, "requires_action")],
)
async def test_order_number_scripts_the_outcome(
    merchant: Merchant, directive: str, status: int, shown: str
) -> None:
    made = await merchant.pay(f"ORDER-1{directive}")
    assert (made.status, made.body["status"]) == (status, shown)


async def test_order_number_scripts_its_confirm(merchant: Merchant, sandbox: Sandbox) -> None:
    made = await merchant.pay("ORDER-1~decline~confirm.500_after~lookup.404")
    path = f"/v1/payments/{made.body['id']}"
    assert (await merchant.post(f"{path}/confirm", {}, key="C")).status == 500
    assert (await merchant.get(path)).status == 404
    assert (await merchant.get(path)).body["status"] == "succeeded"
    assert len(sandbox.ledger.charges()) == 1


async def test_refund_number_scripts_its_own_faults(merchant: Merchant, sandbox: Sandbox) -> None:
    paid = (await merchant.pay("ORDER-1")).body["id"]
    body = {"merchant_refund_no": "R-1~close_after", "payment_id": paid, "amount": 1}
    assert (await play(sandbox.url, post("/v1/refunds", body))).how == "closed"
    assert (await merchant.post("/v1/refunds", body, key="K")).status == 200
    assert len(sandbox.ledger.refunds()) == 1


# Carrying HTTP


async def test_chunked_body_with_expect_is_read(sandbox: Sandbox) -> None:
    body = b'{"merchant_order_no":"ORDER-1","amount":100,"currency":"USD"}'
    async with await Wire.to(sandbox.url) as wire:
        wire.send(
            b"POST /v1/payments HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer t\r\nIdempotency-Key: K\r\n"
            b"Expect: 100-continue\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        )
        assert await wire.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        wire.send(b"%x\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (10, body[:10], len(body) - 10, body[10:]))
        assert (await wire.ending()).status == 201
    (seen,) = sandbox.requests.seen
    assert (seen.body_bytes, seen.headers["transfer-encoding"]) == (len(body), "chunked")


def padded(mebibytes: int) -> bytes:
    body = {"merchant_order_no": "ORDER-1", "amount": 1, "currency": "USD", "pad": "x" * (mebibytes << 20)}
    return post("/v1/payments", body)


async def test_large_body_and_headers_are_read(merchant: Merchant, sandbox: Sandbox) -> None:
    assert (await play(sandbox.url, padded(15))).status == 201
    headers = {"Idempotency-Key": "K2", "X-Long": "y" * 60_000}
    body = {"merchant_order_no": "ORDER-2", "amount": 1, "currency": "USD"}
    assert (await merchant.send("POST", "/v1/payments", body, headers=headers)).status == 201


async def test_body_past_16_mib_is_413(sandbox: Sandbox) -> None:
    ended = await play(sandbox.url, padded(16))
    assert (ended.status, json.loads(ended.body)["error"]["code"]) == (413, "body_too_large")
    assert sandbox.ledger.entries == ()


async def test_request_that_ends_in_its_body_is_not_executed(sandbox: Sandbox) -> None:
    async with await Wire.to(sandbox.url) as wire:
        wire.send(payment("ORDER-1")[:-5])
        wire.writer.write_eof()
        await wire.ending()
    await until(lambda: not sandbox._gates)
    assert (sandbox.ledger.entries, len(sandbox.requests)) == ((), 0)


async def test_request_log_tells_connections_apart_and_keeps_no_secret(sandbox: Sandbox) -> None:
    body = {
        "merchant_order_no": "O-1",
        "amount": 1,
        "currency": "USD",
        "card": {"number": "4242424242424242"},
    }
    async with await Wire.to(sandbox.url) as wire:
        for order in ("O-1", "O-2"):
            wire.send(post("/v1/payments?x=1", {**body, "merchant_order_no": order}, key=order, close=False))
            head = await wire.reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].split()[0])
            await wire.reader.readexactly(length)
    await play(sandbox.url, payment("O-3", key="O-3"))
    seen = sandbox.requests.seen
    assert [request.connection for request in seen] == [1, 1, 2]
    assert [request.key for request in seen] == ["O-1", "O-2", "O-3"]
    assert (seen[0].path, seen[0].authorized, seen[0].answer) == ("/v1/payments?x=1", True, "201")
    everything = json.dumps([*sandbox.requests.view(), *sandbox.ledger.view()], default=str)
    assert "4242424242424242" not in everything
    assert "sk_test_A" not in everything


@pytest.mark.parametrize(
    "raw",
    [
        b"POST /v1/payments HTTP/1.1\r\nHost: h\r\nBad Header: 4242424242424242\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n4242424242424242",
        b"POST /v1/payments HTTP/1.1\r\nHost: h\r\nContent-Length: 4242424242424242x\r\n\r\n",
    ],
)
async def test_malformed_request_is_refused_and_its_bytes_are_not_logged(
    sandbox: Sandbox, raw: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        ended = await play(sandbox.url, raw)
    assert ended.status == 400
    assert "4242424242424242" not in caplog.text
    assert sandbox.ledger.entries == ()


def test_resets_are_real_on_uvloop_too() -> None:
    async def scene() -> None:
        sandbox = await Sandbox.start()
        sandbox.add_fault({"fault": "reset_after"})
        try:
            assert (await play(sandbox.url, payment("ORDER-1"))).how == "reset"
            assert (await play(sandbox.url, payment("ORDER-1"))).status == 200
        finally:
            await sandbox.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scene())
