"""Keys: checked, made, counted (K1-K5; O-07, O-08, O-14, O-42)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from aiohttp import ClientSession

from proxy.core.model import State
from tests.e2e.callers import ORDER, confirm, payment, post, refund, request
from tests.e2e.platforms import ok, page, refuses, says, thing
from tests.e2e.stage import LOOKUPS, Stage
from tests.wire.peers import Close, Hang, Hold, RawCaller, RawPlatform, Reset, Script

INJECT = {
    "create_payment": {"key": {"mode": "inject"}},
    "create_refund": {"key": {"mode": "inject"}},
    "confirm_payment": {"key": {"mode": "inject"}},
}
MADE = f"payment.create:{ORDER}:1"


def _keys(platform: RawPlatform) -> list[str]:
    return [seen.header(b"idempotency-key")[0].decode() for seen in platform.received]


# --- given keys (K1) ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["x", "k" * 255, "a b", "!~"], ids=["1", "255", "blank inside", "edges"])
async def test_o14_lawful_key_is_forwarded_unchanged(stage: Stage, key: str) -> None:
    platform = await stage.platform(ok())
    proxy = await stage.proxy(platform.url)

    told = await proxy.call(payment(key))

    assert (told.status, told.header("idempotency-key")) == (201, key)
    assert _keys(platform) == [key]


BAD_KEYS = {
    "256": b"Idempotency-Key: " + b"k" * 256,
    "empty": b"Idempotency-Key:",
    "blanks": b"Idempotency-Key:  \t ",
    "absent": b"X-Other: 1",
    "not ASCII": b"Idempotency-Key: caf\xe9",
    "UTF-8": "Idempotency-Key: 订单".encode(),
    "tab inside": b"Idempotency-Key: a\tb",
    "twice": b"Idempotency-Key: a\r\nIdempotency-Key: b",
    "twice the same": b"Idempotency-Key: a\r\nidempotency-key: a",
}


@pytest.mark.parametrize("line", BAD_KEYS.values(), ids=BAD_KEYS)
async def test_o14_other_keys_are_refused_by_name_and_nothing_is_sent(stage: Stage, line: bytes) -> None:
    platform = await stage.platform(ok())
    proxy = await stage.proxy(platform.url)

    told = await proxy.call(payment("KEY").replace(b"Idempotency-Key: KEY", line))

    assert (told.status, told.code, told.error["field"]) == (400, "invalid_request", "Idempotency-Key")
    assert told.knowledge is None
    assert platform.streams == []
    assert await proxy.operations() == ()


async def test_o14_long_keys_with_one_beginning_are_no_one_key(stage: Stage) -> None:
    platform = await stage.platform(ok())
    proxy = await stage.proxy(platform.url)

    told = [await proxy.call(payment("k" * 255 + last)) for last in "ab"]

    assert [one.status for one in told] == [400, 400]
    assert platform.streams == []


async def test_h9_key_named_in_connection_is_refused(stage: Stage) -> None:
    """A proxy that took it for hop-by-hop would drop the one thing that protects the payment."""
    platform = await stage.platform(ok())
    proxy = await stage.proxy(platform.url)

    told = await proxy.call(payment("K", 1, ("Connection", "close, Idempotency-Key")))

    assert told.status == 400
    assert platform.streams == []


@pytest.mark.parametrize("mode", ["log", "reject"])
async def test_k5_key_that_looks_like_a_card_is_counted_or_refused(stage: Stage, mode: str) -> None:
    platform = await stage.platform(ok())
    proxy = await stage.proxy(platform.url, routes={"create_payment": {"key": {"sensitive": mode}}})

    told = await proxy.call(payment("pay-4242424242424242"))

    assert told.status == (201 if mode == "log" else 400)
    assert platform.hits == (1 if mode == "log" else 0)


# --- made keys (K2, K4) ------------------------------------------------------------------------------------------


async def test_o07_made_key_is_the_same_whatever_else_changes(stage: Stage) -> None:
    platform = await stage.platform(Script(Close()))
    proxy = await stage.proxy(platform.url, routes=INJECT)

    for n, token in ((1, "tok_a"), (2, "tok_b")):
        told = await proxy.call(payment(None, client_ts=n, card={"token": token}))
        assert (told.status, told.knowledge, told.header("idempotency-key")) == (504, "unknown", MADE)
        assert told.error["idempotency_key"] == MADE

    assert _keys(platform) == [MADE] * 6


async def test_o07_without_injection_a_missing_key_is_refused(stage: Stage) -> None:
    platform = await stage.platform(ok())
    proxy = await stage.proxy(platform.url)

    told = await proxy.call(payment(None))

    assert (told.status, told.error["field"]) == (400, "Idempotency-Key")
    assert platform.streams == []


async def test_o08_made_key_and_bytes_are_equal_in_every_attempt_and_stored_before_the_first(
    stage: Stage,
) -> None:
    go = asyncio.Event()
    platform = await stage.platform(ok())
    platform.plan(Script(Hold(go), Close()), Script(Close()))
    proxy = await stage.proxy(platform.url, routes=INJECT, retry={"attempt_timeout": "5s"})
    calling = asyncio.create_task(proxy.call(payment(None)))
    await platform.got(1)

    operation = await proxy.operation(MADE)
    assert (operation.state, operation.attempt_count) == (State.IN_FLIGHT, 1)
    assert operation.key_injected
    go.set()
    told = await calling

    assert (told.status, told.header("idempotency-key"), told.attempts) == (201, MADE, 3)
    assert _keys(platform) == [MADE] * 3
    assert len({seen.body for seen in platform.received}) == 1


async def test_made_key_collapses_with_the_same_key_given(stage: Stage) -> None:
    platform = await stage.platform(ok())
    proxy = await stage.proxy(platform.url, routes=INJECT)

    first = await proxy.call(payment(None))
    second = await proxy.call(payment(MADE))

    assert first.operation == second.operation


async def test_missing_field_of_the_template_is_named(stage: Stage) -> None:
    platform = await stage.platform(ok())
    proxy = await stage.proxy(platform.url, routes=INJECT)

    told = await proxy.call(post("/v1/payments", {"amount": 1, "currency": "USD"}))

    assert (told.status, told.error["field"]) == (400, "merchant_order_no")
    assert platform.streams == []


async def test_checkout_session_always_needs_its_own_key(stage: Stage) -> None:
    platform = await stage.platform(ok())
    proxy = await stage.proxy(platform.url, routes=INJECT)
    fields = {"merchant_order_no": ORDER, "amount": 1, "currency": "USD"}

    told = await proxy.call(post("/v1/checkout/sessions", fields))

    assert (told.status, told.error["field"]) == (400, "Idempotency-Key")


EVIL = {
    "line break": "A\r\nX-Evil: 1\r\n\r\nGET /v1/evil HTTP/1.1",
    "NUL": "A\x00B",
    "line separator": "A\u2028B",
    "long": "N" * 4096,
    "Chinese": "订单 1",
    "colon and braces": "{x}:1",
}


@pytest.mark.parametrize("number", EVIL.values(), ids=EVIL)
async def test_o42_order_number_becomes_one_safe_line(stage: Stage, number: str) -> None:
    platform = await stage.platform(ok())
    proxy = await stage.proxy(platform.url, routes=INJECT)

    told = await proxy.call(payment(None, order=number))

    assert told.status == 201
    (key,) = _keys(platform)
    assert key.isascii()
    assert key.isprintable()
    assert 1 <= len(key) <= 255
    assert platform.hits == 1
    assert platform.received[0].header(b"x-evil") == []
    assert json.loads(platform.received[0].body)["merchant_order_no"] == number


async def test_k4_two_long_numbers_with_one_beginning_have_two_keys(stage: Stage) -> None:
    platform = await stage.platform(ok())
    proxy = await stage.proxy(platform.url, routes=INJECT)

    for last in "ab":
        assert (await proxy.call(payment(None, order="N" * 300 + last))).status == 201

    assert len(set(_keys(platform))) == 2


# --- counted keys (K3) -------------------------------------------------------------------------------------------

FIRST, SECOND = "payment.confirm:pay_t1:1", "payment.confirm:pay_t1:2"
CARD_A: dict[str, Any] = {"card": {"token": "tok_a"}}
CARD_B: dict[str, Any] = {"card": {"token": "tok_b"}}
DECLINED = ok(200, status="failed", version=2, attempt_count=1)
PAID = ok(200, status="succeeded", version=3, attempt_count=2)


async def test_k3_number_grows_after_a_failure_that_was_told(stage: Stage) -> None:
    platform = await stage.platform(PAID)
    platform.plan(DECLINED)
    proxy = await stage.proxy(platform.url, routes=INJECT)

    first = await proxy.call(confirm(None, **CARD_A))
    second = await proxy.call(confirm(None, **CARD_B))

    assert (first.header("idempotency-key"), first.json["status"]) == (FIRST, "failed")
    assert (second.header("idempotency-key"), second.json["status"]) == (SECOND, "succeeded")
    assert _keys(platform) == [FIRST, SECOND]


async def test_k3_card_swap_at_a_bank_makes_one_charge(stage: Stage) -> None:
    """S9 without the service knowing of keys."""
    sandbox = await stage.sandbox()
    sandbox.add_fault({"fault": "decline"})
    proxy = await stage.proxy(sandbox.url, routes=INJECT)
    created = await proxy.call(payment(None, card={"number": "4000000000000002"}))
    assert created.json["status"] == "failed"
    payment_id = created.json["id"]

    told = await proxy.call(confirm(None, payment_id, card={"number": "4242424242424242"}))

    assert (told.json["status"], told.knowledge) == ("succeeded", "executed")
    assert told.header("idempotency-key") == f"payment.confirm:{payment_id}:1"
    assert [entry.card_fingerprint for entry in sandbox.ledger.charges()] == ["4242"]


@pytest.mark.parametrize(
    "script", [Script(Reset()), page(500), says(202, thing("processing"))], ids=["reset", "500", "202"]
)
async def test_k3_number_stays_while_the_result_is_open(stage: Stage, script: Script) -> None:
    platform = await stage.platform(script)
    proxy = await stage.proxy(platform.url, routes=INJECT, retry={"attempts": 1})

    for _ in range(3):
        told = await proxy.call(confirm(None, **CARD_A))
        assert told.header("idempotency-key") == FIRST

    assert set(_keys(platform)) == {FIRST}


@pytest.mark.parametrize("status", [401, 404, 429])
async def test_k3_number_stays_after_a_refusal(stage: Stage, status: int) -> None:
    platform = await stage.platform(PAID)
    platform.plan(refuses(status, "refused"))
    proxy = await stage.proxy(platform.url, routes=INJECT, retry={"attempts": 1})

    await proxy.call(confirm(None, **CARD_A))
    told = await proxy.call(confirm(None, **CARD_B))

    assert told.header("idempotency-key") == FIRST


async def test_k3_failure_that_nobody_was_told_is_told_before_the_number_grows(stage: Stage) -> None:
    """The caller hung up: its repeat must hear of card A's decline, not charge card A again."""
    go = asyncio.Event()
    platform = await stage.platform(PAID)
    platform.plan(Script(Hold(go), *DECLINED.steps))
    proxy = await stage.proxy(platform.url, routes=INJECT, retry={"attempt_timeout": "5s"})
    async with await RawCaller.dial(proxy.address) as caller:
        await caller.send(confirm(None, **CARD_A))
        await platform.got(1)
        caller.reset()
    go.set()
    await proxy.until(FIRST, lambda operation: operation.state is State.EXECUTED)

    repeat = await proxy.call(confirm(None, **CARD_A))
    after = await proxy.call(confirm(None, **CARD_B))

    assert (repeat.json["status"], repeat.replayed) == ("failed", True)
    assert repeat.header("idempotency-key") == FIRST
    assert (after.json["status"], after.header("idempotency-key")) == ("succeeded", SECOND)
    assert _keys(platform) == [FIRST, SECOND]


async def test_k3_failure_learned_after_an_early_answer_is_told_first(stage: Stage) -> None:
    """Told "repeat the same request", the caller repeats; card A must not be tried again."""
    go = asyncio.Event()
    platform = await stage.platform(PAID)
    platform.plan(Script(Hold(go), *DECLINED.steps))
    proxy = await stage.proxy(
        platform.url, routes=INJECT, answer_within="200ms", retry={"attempt_timeout": "15s"}
    )
    early = await proxy.call(confirm(None, **CARD_A))
    assert (early.status, early.code) == (504, "result_unknown")
    go.set()
    await proxy.until(FIRST, lambda operation: operation.state is State.EXECUTED)

    repeat = await proxy.call(confirm(None, **CARD_A))

    assert (repeat.json["status"], repeat.replayed, platform.hits) == ("failed", True, 1)


LATER = LOOKUPS | {"schedule": ["3s"]}
"""After an attempt that hangs has ended: a lookup that came sooner would answer for it."""


async def test_k3_failure_learned_by_lookup_is_told_first(stage: Stage) -> None:
    platform = await stage.platform(ok(200, status="failed", version=2, attempt_count=1))
    proxy = await stage.proxy(
        platform.url, routes=INJECT, retry={"attempts": 1, "attempt_timeout": "1s"}, lookups=LATER
    )
    platform.plan(ok(201, status="processing", version=1, attempt_count=0), Script(Hang()))
    await proxy.call(payment(None))
    assert (await proxy.call(confirm(None, **CARD_A))).code == "result_unknown"
    await proxy.until(FIRST, lambda operation: operation.state is State.EXECUTED)

    repeat = await proxy.call(confirm(None, **CARD_A))

    assert (repeat.json["status"], repeat.replayed) == ("failed", True)
    posts = [seen for seen in platform.received if seen.target.endswith(b"/confirm")]
    assert len(posts) == 1


async def test_k3_number_outlives_a_restart(stage: Stage) -> None:
    platform = await stage.platform(PAID)
    platform.plan(DECLINED)
    first = await stage.proxy(platform.url, routes=INJECT)
    await first.call(confirm(None, **CARD_A))
    await first.app.stop()
    second = await stage.proxy(platform.url, routes=INJECT)

    told = await second.call(confirm(None, **CARD_B))

    assert told.header("idempotency-key") == SECOND


async def test_refund_without_a_key_is_made_one_from_its_number(stage: Stage) -> None:
    platform = await stage.platform(says(201, b'{"id":"ref_1","status":"succeeded"}'))
    proxy = await stage.proxy(platform.url, routes=INJECT)

    told = await proxy.call(refund(None, "R-1"))

    assert told.header("idempotency-key") == "refund.create:R-1:1"


# --- bodies that can't be trusted (P3, H3) -----------------------------------------------------------------------

BAD_BODIES = {
    "cut": b'{"merchant_order_no":"ORDER-1","amount":1',
    "duplicate member": b'{"merchant_order_no":"ORDER-1","amount":1,"amount":2,"currency":"USD"}',
    "NaN": b'{"merchant_order_no":"ORDER-1","amount":NaN,"currency":"USD"}',
    "two values": b'{"merchant_order_no":"ORDER-1","amount":1,"currency":"USD"} {}',
    "not UTF-8": b'{"merchant_order_no":"\xff","amount":1,"currency":"USD"}',
    "none": b"",
}


@pytest.mark.parametrize("body", BAD_BODIES.values(), ids=BAD_BODIES)
async def test_p3_body_that_can_be_read_two_ways_is_refused(stage: Stage, body: bytes) -> None:
    platform = await stage.platform(ok())
    proxy = await stage.proxy(platform.url)

    told = await proxy.call(request("POST", "/v1/payments", body, key="K"))

    assert (told.status, told.code) == (400, "invalid_request")
    assert told.error["field"]
    assert platform.streams == []


async def test_h3_encoded_body_is_refused(stage: Stage) -> None:
    platform = await stage.platform(ok())
    proxy = await stage.proxy(platform.url)

    told = await proxy.call(payment("K", 1, ("Content-Encoding", "gzip")))

    assert (told.status, told.code) == (415, "unsupported_encoding")
    assert platform.streams == []


GENERIC = {
    "pay": {
        "path": "/pay",
        "key": {"mode": "inject", "template": "pay:{body.order}:{seq}"},
        "subject": "order:{body.order}",
    }
}


async def test_declined_card_of_a_platform_without_statuses_lets_the_order_be_paid_anew(stage: Stage) -> None:
    """K3, U1: 402 is a definite failure, also where the preset lists no status; it holds nobody back."""
    platform = await stage.platform(refuses(402, "card_declined"))
    proxy = await stage.proxy(platform.url, platform="generic", routes=GENERIC)

    first, second = [await proxy.call(post("/pay", {"order": "O-1"})) for _ in range(2)]
    own_key = await proxy.call(post("/pay", {"order": "O-1"}, key="K"))

    assert [first.status, second.status, own_key.status] == [402] * 3, own_key
    assert _keys(platform) == ['"pay:O-1:1"', '"pay:O-1:2"', "K"]


async def test_person_may_say_how_it_ended_on_a_platform_without_statuses(stage: Stage) -> None:
    """C5, K3: nothing else can settle it, and "it never happened" is the most dangerous word of them."""
    platform = await stage.platform(Script(Reset()))
    proxy = await stage.proxy(platform.url, platform="generic", routes=GENERIC)
    await proxy.call(post("/pay", {"order": "O-1"}))
    (unknown,) = await proxy.operations()
    assert proxy.app.admin is not None
    said = {"status": "failed", "by": "Li", "note": "the bank says so"}
    address = f"{proxy.app.admin.url}/operations/{unknown.id}/resolve"
    async with ClientSession() as session, session.post(address, json=said) as answer:
        assert answer.status == 200
    platform.usual = ok()

    told = [await proxy.call(post("/pay", {"order": "O-1"})) for _ in range(2)]

    assert [one.status for one in told] == [409, 201]
    assert told[0].json["code"] == "settled_by_hand"
    assert _keys(platform)[-1] == '"pay:O-1:2"'
