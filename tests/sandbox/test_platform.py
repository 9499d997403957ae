"""The platform's happy paths: what the five endpoints and the lookups say when nothing goes wrong."""

from __future__ import annotations

from proxy.sandbox import Sandbox

from .conftest import Merchant


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


async def test_same_key_gives_the_latest_object_and_no_second_charge(
    merchant: Merchant, sandbox: Sandbox
) -> None:
    first = await merchant.pay("ORDER-1", key="K")
    again = await merchant.pay("ORDER-1", key="K")
    assert (first.status, again.status, again.body) == (201, 200, first.body)
    assert len(sandbox.ledger.charges()) == 1
