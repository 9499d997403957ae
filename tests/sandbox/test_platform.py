"""The platform contract's rules, one by one, over a real connection."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
from aiohttp import ClientSession

from proxy.sandbox import Sandbox, Settings, Terms

from .conftest import Calls, Merchant
from .wires import until

WEEK_MS = 7 * 24 * 3600 * 1000


@dataclass(slots=True)
class HandClock:
    """A clock that moves when a test says so."""

    now_ms: int = 1_800_000_000_000

    def monotonic_ms(self) -> int:
        return self.now_ms

    def wall_ms(self) -> int:
        return self.now_ms


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def settings(clock: HandClock) -> Settings:
    return Settings(clock=clock, terms=Terms(payment_valid_s=3600))


async def declined(merchant: Merchant, order: str) -> str:
    """A payment whose first attempt was declined; its id."""
    made = await merchant.pay(order, card={"number": "4000000000000002"})
    assert made.body["status"] == "failed"
    payment_id: str = made.body["id"]
    return payment_id


# Creating payments


async def test_create_payment_succeeds_and_charges_once(merchant: Merchant, sandbox: Sandbox) -> None:
    made = await merchant.pay("ORDER-1", card={"number": "4242424242424242", "cvc": "987"})
    assert made.status == 201
    assert (made.body["id"], made.body["status"], made.body["version"]) == ("pay_demo_001", "succeeded", 1)
    (charge,) = sandbox.ledger.charges()
    assert (charge.order, charge.payment, charge.amount, charge.card_fingerprint) == (
        "ORDER-1",
        "pay_demo_001",
        10_000,
        "4242",
    )


async def test_create_payment_with_declined_card_fails_without_a_charge(
    merchant: Merchant, sandbox: Sandbox
) -> None:
    made = await merchant.pay("ORDER-1", card={"number": "4000 0000 0000 0002"})
    assert (made.status, made.body["status"]) == (201, "failed")
    assert made.body["failure"]["code"] == "card_declined"
    assert made.body["failure"]["attempt_id"] == "att_demo_001"
    assert sandbox.ledger.entries == ()


async def test_create_payment_with_declining_token_fails(merchant: Merchant) -> None:
    assert (await merchant.pay("ORDER-1", card={"token": "tok_decline"})).body["status"] == "failed"
    assert (await merchant.pay("ORDER-2", card={"token": "tok_visa"})).body["status"] == "succeeded"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"amount": 0}, "amount"),
        ({"amount": 10.5}, "amount"),
        ({"amount": "100"}, "amount"),
        ({"amount": True}, "amount"),
        ({"amount": 10**13}, "amount"),
        ({"currency": "usd"}, "currency"),
        ({"currency": "USDX"}, "currency"),
        ({"currency": None}, "currency"),
        ({"merchant_order_no": ""}, "merchant_order_no"),
        ({"merchant_order_no": 7}, "merchant_order_no"),
        ({"merchant_order_no": "A\nB"}, "merchant_order_no"),
        ({"merchant_order_no": "A" * 129}, "merchant_order_no"),
        ({"card": "4242"}, "card"),
        ({"card": {}}, "card.number"),
    ],
)
async def test_create_payment_with_bad_field_is_422_naming_it(
    merchant: Merchant, change: dict[str, object], field: str
) -> None:
    body = {"merchant_order_no": "ORDER-1", "amount": 100, "currency": "USD", **change}
    answer = await merchant.post("/v1/payments", body, key="K")
    assert (answer.status, answer.code, answer.body["error"]["field"]) == (422, "validation_error", field)
    assert answer.body["error"]["retryable"] is False


async def test_refused_request_does_not_occupy_its_key(merchant: Merchant) -> None:
    assert (await merchant.pay("ORDER-1", key="K", amount=0)).status == 422
    assert (await merchant.pay("ORDER-1", key="K", amount=5)).status == 201


# Keys


async def test_same_key_gives_the_latest_object_and_no_second_charge(
    merchant: Merchant, sandbox: Sandbox
) -> None:
    first = await merchant.pay("ORDER-1", key="K")
    again = await merchant.pay("ORDER-1", key="K")
    assert (first.status, again.status, again.body) == (201, 200, first.body)
    assert len(sandbox.ledger.charges()) == 1


async def test_same_key_after_a_change_gives_the_newer_version(merchant: Merchant, sandbox: Sandbox) -> None:
    sandbox.add_fault({"fault": "accept_202"})
    made = await merchant.pay("ORDER-1")
    assert (made.status, made.body["status"], made.body["version"]) == (202, "processing", 1)
    sandbox.settle_payment(made.body["id"], status="succeeded")
    again = await merchant.pay("ORDER-1")
    assert (again.status, again.body["status"], again.body["version"]) == (200, "succeeded", 2)


@pytest.mark.parametrize(
    "change",
    [{"amount": 12_000}, {"currency": "EUR"}, {"merchant_order_no": "order-1"}, {"amount": -1}],
)
async def test_same_key_with_other_safe_field_is_409_conflict(
    merchant: Merchant, sandbox: Sandbox, change: dict[str, object]
) -> None:
    await merchant.pay("ORDER-1", key="K")
    body = {"merchant_order_no": "ORDER-1", "amount": 10_000, "currency": "USD", **change}
    answer = await merchant.post("/v1/payments", body, key="K")
    assert (answer.status, answer.code) == (409, "idempotency_conflict")
    assert len(sandbox.ledger.charges()) == 1


async def test_same_key_with_other_card_reuses_the_first_operation(
    merchant: Merchant, sandbox: Sandbox
) -> None:
    first = await merchant.pay("ORDER-1", key="K", card={"number": "4242424242424242"})
    again = await merchant.pay("ORDER-1", key="K", card={"number": "5555555555554444"})
    assert (again.status, again.body["id"]) == (200, first.body["id"])
    assert [charge.card_fingerprint for charge in sandbox.ledger.charges()] == ["4242"]


@pytest.mark.parametrize("key", [None, "", "   ", "k" * 256])
async def test_bad_key_is_400_naming_the_header(merchant: Merchant, key: str | None) -> None:
    body = {"merchant_order_no": "ORDER-1", "amount": 100, "currency": "USD"}
    answer = await merchant.post("/v1/payments", body, key=key)
    assert (answer.status, answer.body["error"]["field"]) == (400, "Idempotency-Key")


async def test_key_of_255_characters_is_accepted(merchant: Merchant) -> None:
    assert (await merchant.pay("ORDER-1", key="k" * 255)).status == 201


async def test_body_that_is_no_object_is_400(merchant: Merchant) -> None:
    answer = await merchant.post("/v1/payments", [1], key="K")
    assert (answer.status, answer.body["error"]["field"]) == (400, "body")


async def test_key_scope_separates_paths_merchants_and_environments(
    merchant: Merchant, settings: Settings, merchant_of: Calls, sandbox: Sandbox
) -> None:
    await merchant.pay("ORDER-1", key="K")
    live = await merchant_of("sk_live_A").pay("ORDER-1", key="K")
    assert (live.status, live.body["id"]) == (201, "pay_demo_002")
    session = await merchant.post(
        "/v1/checkout/sessions", {"merchant_order_no": "ORDER-9", "amount": 1, "currency": "USD"}, key="K"
    )
    assert session.status == 201
    assert len(sandbox.ledger.charges("ORDER-1")) == 2


async def test_rotated_api_key_keeps_the_scope(merchant: Merchant, merchant_of: Calls) -> None:
    first = await merchant.pay("ORDER-1", key="K")
    again = await merchant_of("sk_test_ROTATED").pay("ORDER-1", key="K")
    assert (again.status, again.body["id"]) == (200, first.body["id"])


async def test_concurrent_same_key_waits_and_gets_the_same_object(
    merchant: Merchant, sandbox: Sandbox
) -> None:
    sandbox.add_fault({"fault": "delay", "seconds": 0.02})
    answers = await asyncio.gather(*(merchant.pay("ORDER-1", key="K") for _ in range(5)))
    assert sorted(answer.status for answer in answers) == [200, 200, 200, 200, 201]
    assert {answer.body["id"] for answer in answers} == {"pay_demo_001"}
    assert len(sandbox.ledger.charges()) == 1


async def test_concurrent_same_key_past_the_wait_is_409_in_progress(session: ClientSession) -> None:
    sandbox = await Sandbox.start(settings=Settings(wait_s=0.02))
    try:
        merchant = Merchant(session, sandbox.url)
        sandbox.add_fault({"fault": "delay", "seconds": 0.3})
        first, second = await asyncio.gather(*(merchant.pay("ORDER-1", key="K") for _ in range(2)))
        assert {first.status, second.status} == {201, 409}
        late = first if first.status == 409 else second
        assert (late.code, late.body["error"]["retryable"]) == ("operation_in_progress", True)
        assert (await merchant.pay("ORDER-1", key="K")).status == 200
        assert len(sandbox.ledger.charges()) == 1
    finally:
        await sandbox.close()


async def test_concurrent_conflict_is_told_at_once(merchant: Merchant, sandbox: Sandbox) -> None:
    sandbox.add_fault({"fault": "delay", "seconds": 0.3, "match": {"order": "ORDER-1"}})
    first = asyncio.ensure_future(merchant.pay("ORDER-1", key="K"))
    await until(lambda: len(sandbox.requests) == 1)
    answer = await merchant.pay("ORDER-1", key="K", amount=12_000)
    assert (answer.code, first.done()) == ("idempotency_conflict", False)
    assert (await first).status == 201


async def test_waiter_of_a_refused_request_takes_its_own_turn(merchant: Merchant, sandbox: Sandbox) -> None:
    sandbox.add_fault({"fault": "delay", "seconds": 0.02})
    bad = {"merchant_order_no": "ORDER-1", "amount": 0, "currency": "USD"}
    answers = await asyncio.gather(*(merchant.post("/v1/payments", bad, key="K") for _ in range(2)))
    assert [answer.status for answer in answers] == [422, 422]


async def test_order_number_stays_unique_when_the_key_is_forgotten(
    merchant: Merchant, clock: HandClock, sandbox: Sandbox
) -> None:
    made = await merchant.pay("ORDER-1", key="K")
    clock.now_ms += WEEK_MS - 1
    assert (await merchant.pay("ORDER-1", key="K")).status == 200
    clock.now_ms += 1
    answer = await merchant.pay("ORDER-1", key="K")
    assert (answer.status, answer.code) == (409, "order_no_conflict")
    assert answer.body["error"]["related_resource_id"] == made.body["id"]
    assert len(sandbox.ledger.charges()) == 1


async def test_confirm_executes_anew_when_its_key_is_forgotten(merchant: Merchant, clock: HandClock) -> None:
    """What makes a late repeat of a confirm dangerous: nothing else protects it."""
    sandbox = await Sandbox.start(settings=Settings(clock=clock, terms=Terms(payment_valid_s=WEEK_MS)))
    try:
        caller = Merchant(merchant.session, sandbox.url)
        path = f"/v1/payments/{await declined(caller, 'ORDER-1')}/confirm"
        bad_card = {"card": {"number": "4000000000000002"}}
        assert (await caller.post(path, bad_card, key="K3")).body["attempt_count"] == 2
        assert (await caller.post(path, bad_card, key="K3")).body["attempt_count"] == 2
        clock.now_ms += WEEK_MS
        again = await caller.post(path, {"card": {"number": "4242424242424242"}}, key="K3")
        assert (again.body["attempt_count"], again.body["status"]) == (3, "succeeded")
    finally:
        await sandbox.close()


async def test_other_key_same_order_is_409_with_the_payment(merchant: Merchant, sandbox: Sandbox) -> None:
    made = await merchant.pay("ORDER-1", key="K1")
    answer = await merchant.pay("ORDER-1", key="K2")
    assert (answer.status, answer.code) == (409, "order_no_conflict")
    assert answer.body["error"]["related_resource_id"] == made.body["id"]
    assert (await merchant.pay("order-1", key="K3")).status == 201
    assert len(sandbox.ledger.charges("ORDER-1")) == 1


# Confirming: card swaps


async def test_confirm_after_failure_makes_a_new_attempt(merchant: Merchant, sandbox: Sandbox) -> None:
    payment_id = await declined(merchant, "ORDER-1")
    answer = await merchant.post(
        f"/v1/payments/{payment_id}/confirm", {"card": {"number": "5555555555554444"}}, key="K3"
    )
    assert (answer.status, answer.body["status"], answer.body["attempt_count"]) == (200, "succeeded", 2)
    assert (answer.body["version"], answer.body["failure"]) == (2, None)
    assert [charge.card_fingerprint for charge in sandbox.ledger.charges()] == ["4444"]
    assert (await merchant.post(f"/v1/payments/{payment_id}/confirm", {}, key="K3")).body["version"] == 2


@pytest.mark.parametrize("fault", ["accept_202", "requires_action"])
async def test_confirm_of_an_unfinished_payment_is_409_in_progress(
    merchant: Merchant, sandbox: Sandbox, fault: str
) -> None:
    sandbox.add_fault({"fault": fault})
    payment_id = (await merchant.pay("ORDER-1")).body["id"]
    answer = await merchant.post(f"/v1/payments/{payment_id}/confirm", {}, key="K2")
    assert (answer.status, answer.code) == (409, "payment_in_progress")
    assert answer.body["error"]["related_resource_id"] == payment_id
    assert sandbox.ledger.entries == ()


async def test_confirm_past_three_attempts_is_422(merchant: Merchant) -> None:
    path = f"/v1/payments/{await declined(merchant, 'ORDER-1')}/confirm"
    bad_card = {"card": {"number": "4000000000000002"}}
    for number in (2, 3):
        answer = await merchant.post(path, bad_card, key=f"C{number}")
        assert (answer.status, answer.body["attempt_count"]) == (200, number)
    assert (await merchant.post(path, {}, key="C4")).code == "attempts_exhausted"


async def test_confirm_after_expiry_is_422_and_the_payment_expired(
    merchant: Merchant, clock: HandClock, sandbox: Sandbox
) -> None:
    payment_id = await declined(merchant, "ORDER-1")
    clock.now_ms += 3600 * 1000
    assert (await merchant.post(f"/v1/payments/{payment_id}/confirm", {}, key="C2")).code == "invalid_state"
    assert (await merchant.get(f"/v1/payments/{payment_id}")).body["status"] == "expired"
    assert sandbox.ledger.entries == ()


async def test_processing_payment_may_succeed_after_its_expiry(
    merchant: Merchant, clock: HandClock, sandbox: Sandbox
) -> None:
    sandbox.add_fault({"fault": "accept_202"})
    payment_id = (await merchant.pay("ORDER-1")).body["id"]
    clock.now_ms += 3600 * 1000
    assert (await merchant.get(f"/v1/payments/{payment_id}")).body["status"] == "processing"
    sandbox.settle_payment(payment_id, status="succeeded")
    assert len(sandbox.ledger.charges()) == 1


async def test_confirm_of_succeeded_or_unknown_payment_is_refused(
    merchant: Merchant, sandbox: Sandbox
) -> None:
    payment_id = (await merchant.pay("ORDER-1")).body["id"]
    assert (await merchant.post(f"/v1/payments/{payment_id}/confirm", {}, key="C")).status == 422
    assert (await merchant.post("/v1/payments/pay_x/confirm", {}, key="C")).status == 404
    assert len(sandbox.ledger.charges()) == 1


# Cancelling


async def test_cancel_of_a_failed_payment_cancels_it_once(merchant: Merchant, sandbox: Sandbox) -> None:
    payment_id = await declined(merchant, "ORDER-1")
    for key in ("X1", "X1", "X2"):
        answer = await merchant.post(f"/v1/payments/{payment_id}/cancel", key=key)
        assert (answer.status, answer.body["status"]) == (200, "canceled")
    assert [entry.key for entry in sandbox.ledger.cancels()] == ["X1"]


async def test_cancel_of_an_open_attempt_is_202_and_keeps_the_state(
    merchant: Merchant, sandbox: Sandbox
) -> None:
    sandbox.add_fault({"fault": "requires_action"})
    made = await merchant.pay("ORDER-1")
    assert made.body["next_action"]["type"] == "redirect"
    answer = await merchant.post(f"/v1/payments/{made.body['id']}/cancel", key="X")
    assert (answer.status, answer.body["status"]) == (202, "requires_action")
    assert sandbox.ledger.entries == ()
    sandbox.settle_payment(made.body["id"], status="canceled")
    again = await merchant.post(f"/v1/payments/{made.body['id']}/cancel", key="X")
    assert (again.status, again.body["status"]) == (200, "canceled")
    assert [entry.key for entry in sandbox.ledger.cancels()] == ["X"]


async def test_cancel_of_processing_is_409_and_of_succeeded_422(merchant: Merchant, sandbox: Sandbox) -> None:
    sandbox.add_fault({"fault": "accept_202"})
    processing = (await merchant.pay("ORDER-1")).body["id"]
    paid = (await merchant.pay("ORDER-2")).body["id"]
    assert (await merchant.post(f"/v1/payments/{processing}/cancel", key="X")).code == "payment_in_progress"
    assert (await merchant.post(f"/v1/payments/{paid}/cancel", key="X")).code == "invalid_state"
    assert sandbox.ledger.cancels() == ()


# Checkout sessions


async def test_new_session_key_for_one_order_makes_a_session_of_the_same_payment(
    merchant: Merchant, sandbox: Sandbox
) -> None:
    body = {"merchant_order_no": "ORDER-1", "amount": 100, "currency": "USD"}
    first = await merchant.post("/v1/checkout/sessions", body, key="S1")
    repeat = await merchant.post("/v1/checkout/sessions", body, key="S1")
    second = await merchant.post("/v1/checkout/sessions", body, key="S2")
    assert (first.status, repeat.status, second.status) == (201, 200, 201)
    assert first.body == repeat.body
    assert first.body["id"] != second.body["id"]
    assert first.body["payment_id"] == second.body["payment_id"]
    assert sandbox.ledger.entries == ()


async def test_session_with_other_amount_is_409_with_the_payment(merchant: Merchant) -> None:
    body = {"merchant_order_no": "ORDER-1", "amount": 100, "currency": "USD"}
    made = await merchant.post("/v1/checkout/sessions", body, key="S1")
    answer = await merchant.post("/v1/checkout/sessions", {**body, "amount": 200}, key="S2")
    assert (answer.code, answer.body["error"]["related_resource_id"]) == (
        "order_no_conflict",
        made.body["payment_id"],
    )


async def test_payer_on_a_session_pays_once(merchant: Merchant, sandbox: Sandbox) -> None:
    body = {"merchant_order_no": "ORDER-1", "amount": 100, "currency": "USD"}
    payment_id = (await merchant.post("/v1/checkout/sessions", body, key="S1")).body["payment_id"]
    shown = await merchant.get(f"/v1/payments/{payment_id}")
    assert (shown.body["status"], shown.body["attempt_count"]) == ("requires_action", 0)
    sandbox.settle_payment(payment_id, status="succeeded")
    assert len(sandbox.ledger.charges("ORDER-1")) == 1


# Refunds


async def test_refund_is_made_once_and_looked_up_by_number(merchant: Merchant, sandbox: Sandbox) -> None:
    payment_id = (await merchant.pay("ORDER-1")).body["id"]
    body = {"merchant_refund_no": "R-1", "payment_id": payment_id, "amount": 4000}
    first = await merchant.post("/v1/refunds", body, key="K")
    again = await merchant.post("/v1/refunds", body, key="K")
    assert (first.status, first.body["id"], first.body["status"]) == (201, "ref_demo_001", "succeeded")
    assert (again.status, again.body) == (200, first.body)
    (entry,) = sandbox.ledger.refunds()
    assert (entry.refund, entry.amount, entry.order) == ("ref_demo_001", 4000, "ORDER-1")
    assert (await merchant.get("/v1/refunds?merchant_refund_no=R-1")).body["data"] == [first.body]
    assert (await merchant.get("/v1/refunds/ref_demo_001")).body == first.body
    assert (await merchant.get("/v1/refunds?merchant_refund_no=r-1")).body["data"] == []


async def test_refund_number_with_other_key_is_409_with_the_refund(
    merchant: Merchant, sandbox: Sandbox
) -> None:
    payment_id = (await merchant.pay("ORDER-1")).body["id"]
    body = {"merchant_refund_no": "R-1", "payment_id": payment_id, "amount": 4000}
    await merchant.post("/v1/refunds", body, key="K1")
    answer = await merchant.post("/v1/refunds", body, key="K2")
    assert (answer.code, answer.body["error"]["related_resource_id"]) == (
        "refund_no_conflict",
        "ref_demo_001",
    )
    assert len(sandbox.ledger.refunds()) == 1


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"amount": 10_001}, "amount"),
        ({"payment_id": "pay_x"}, "payment_id"),
        ({"payment_id": None}, "payment_id"),
        ({"currency": "EUR"}, "currency"),
        ({"merchant_refund_no": None}, "merchant_refund_no"),
    ],
)
async def test_bad_refund_is_422_naming_the_field(
    merchant: Merchant, change: dict[str, object], field: str
) -> None:
    payment_id = (await merchant.pay("ORDER-1")).body["id"]
    body = {"merchant_refund_no": "R-1", "payment_id": payment_id, "amount": 1, **change}
    answer = await merchant.post("/v1/refunds", body, key="K")
    assert (answer.status, answer.body["error"]["field"]) == (422, field)


async def test_refund_of_an_unpaid_payment_is_422(merchant: Merchant) -> None:
    payment_id = await declined(merchant, "ORDER-1")
    body = {"merchant_refund_no": "R-1", "payment_id": payment_id, "amount": 1}
    assert (await merchant.post("/v1/refunds", body, key="K")).body["error"]["field"] == "payment_id"


async def test_accepted_refund_is_listed_by_status_until_it_settles(
    merchant: Merchant, sandbox: Sandbox
) -> None:
    payment_id = (await merchant.pay("ORDER-1")).body["id"]
    sandbox.add_fault({"fault": "accept_202", "first_status": "pending_review"})
    body = {"merchant_refund_no": "R-1", "payment_id": payment_id, "amount": 4000}
    made = await merchant.post("/v1/refunds", body, key="K")
    assert (made.status, made.body["status"]) == (202, "pending_review")
    listed = await merchant.get("/v1/refunds?status=pending_review")
    assert [refund["id"] for refund in listed.body["data"]] == [made.body["id"]]
    assert sandbox.ledger.refunds() == ()
    sandbox.settle_refund(made.body["id"], status="succeeded")
    assert (await merchant.get("/v1/refunds?status=pending_review")).body["data"] == []
    assert len(sandbox.ledger.refunds()) == 1


async def test_failed_refund_gives_its_amount_back(merchant: Merchant, sandbox: Sandbox) -> None:
    payment_id = (await merchant.pay("ORDER-1")).body["id"]
    sandbox.add_fault({"fault": "decline", "match": {"refund": "R-1"}})
    body = {"merchant_refund_no": "R-1", "payment_id": payment_id, "amount": 10_000}
    assert (await merchant.post("/v1/refunds", body, key="K1")).body["status"] == "failed"
    answer = await merchant.post("/v1/refunds", {**body, "merchant_refund_no": "R-2"}, key="K2")
    assert answer.body["status"] == "succeeded"
    assert [entry.refund for entry in sandbox.ledger.refunds()] == ["ref_demo_002"]


# Lookups, credentials, unknown addresses


async def test_payment_lookups_are_exact_and_of_their_tenant(merchant: Merchant, merchant_of: Calls) -> None:
    made = await merchant.pay("ORDER-1")
    assert (await merchant.get("/v1/payments/pay_demo_001")).body == made.body
    assert (await merchant.get("/v1/payments?merchant_order_no=ORDER-1")).body["data"] == [made.body]
    assert (await merchant.get("/v1/payments?merchant_order_no=order-1")).body["data"] == []
    live = merchant_of("sk_live_A")
    assert (await live.get("/v1/payments?merchant_order_no=ORDER-1")).body["data"] == []
    missing = await live.get("/v1/payments/pay_demo_001")
    assert (missing.status, missing.code) == (404, "resource_not_found")


async def test_payment_list_is_newest_first_in_pages(merchant: Merchant) -> None:
    for number in range(3):
        await merchant.pay(f"ORDER-{number}")
    page = (await merchant.get("/v1/payments?limit=2")).body
    assert ([p["id"] for p in page["data"]], page["has_more"]) == (["pay_demo_003", "pay_demo_002"], True)
    rest = (await merchant.get("/v1/payments?limit=2&starting_after=pay_demo_002")).body
    assert ([p["id"] for p in rest["data"]], rest["has_more"]) == (["pay_demo_001"], False)
    assert (await merchant.get("/v1/payments?limit=0")).status == 400


@pytest.mark.parametrize("authorization", ["", "Bearer", "Bearer  ", "Basic c2s6"])
async def test_request_without_a_bearer_token_is_401_and_keeps_no_key(
    merchant: Merchant, authorization: str
) -> None:
    body = {"merchant_order_no": "ORDER-1", "amount": 100, "currency": "USD"}
    headers = {"Authorization": authorization, "Idempotency-Key": "K"}
    refused = await merchant.send("POST", "/v1/payments", body, headers=headers)
    assert (refused.status, refused.code) == (401, "unauthorized")
    assert (await merchant.post("/v1/payments", body, key="K")).status == 201


async def test_token_map_names_the_merchant_and_refuses_others(merchant: Merchant) -> None:
    tokens = {"sk_test_1": "anna", "sk_test_2": "anna", "sk_test_3": "bert"}
    sandbox = await Sandbox.start(settings=Settings(tokens=tokens))
    try:
        anna, also_anna, bert, stranger = (
            Merchant(merchant.session, sandbox.url, token) for token in (*tokens, "sk_test_4")
        )
        assert (await anna.pay("ORDER-1", key="K")).status == 201
        assert (await also_anna.pay("ORDER-1", key="K")).status == 200
        assert (await bert.pay("ORDER-1", key="K")).status == 201
        assert (await stranger.pay("ORDER-1", key="K")).status == 401
    finally:
        await sandbox.close()


async def test_unknown_address_is_404_in_the_error_shape(merchant: Merchant) -> None:
    for method, path in (("GET", "/v1/nothing"), ("DELETE", "/v1/payments"), ("GET", "/_sandbox/nothing")):
        answer = await merchant.send(method, path)
        assert (answer.status, answer.code) == (404, "resource_not_found")


async def test_head_of_a_lookup_has_no_body(merchant: Merchant) -> None:
    await merchant.pay("ORDER-1")
    answer = await merchant.send("HEAD", "/v1/payments/pay_demo_001")
    assert (answer.status, answer.body) == (200, None)
