"""The unknown-guard: another key for the same thing is held back while the first may have moved money (U1)."""

from __future__ import annotations

import asyncio

import pytest

from proxy.core.model import State
from tests.e2e.callers import cancel, confirm, payment, post, refund
from tests.e2e.platforms import ok, refuses, says, thing
from tests.e2e.stage import LOOKUPS, Stage, until
from tests.wire.peers import Hold, Reset, Script

ONCE = {"attempts": 1}
REFUNDED = says(201, b'{"id":"ref_1","status":"succeeded"}')


async def test_u1_new_key_for_an_unknown_order_is_not_sent_and_told_which_key_to_use(stage: Stage) -> None:
    platform = await stage.platform(Script(Reset()))
    proxy = await stage.proxy(platform.url, retry=ONCE)
    first = await proxy.call(payment("K1"))

    told = await proxy.call(payment("K2"))

    assert (told.status, told.code, told.knowledge) == (409, "result_unknown", "unknown")
    assert (told.error["idempotency_key"], told.error["operation"]) == ("K1", first.operation)
    assert told.error["retryable"] is True
    assert told.header("retry-after") is not None
    assert platform.hits == 1
    assert [one.key for one in await proxy.operations()] == ["K1"]


async def test_u1_new_key_for_an_order_in_flight_is_not_sent(stage: Stage) -> None:
    go = asyncio.Event()
    platform = await stage.platform(Script(Hold(go), *ok().steps))
    proxy = await stage.proxy(platform.url, retry={"attempt_timeout": "5s"})
    first = asyncio.create_task(proxy.call(payment("K1")))
    await platform.got(1)

    told = await proxy.call(payment("K2"))
    go.set()

    assert (told.status, told.code) == (409, "operation_in_progress")
    assert told.error["idempotency_key"] == "K1"
    assert (await first).status == 201
    assert platform.hits == 1


async def test_u1_old_key_may_always_come_again(stage: Stage) -> None:
    platform = await stage.platform(ok(200))
    platform.plan(Script(Reset()))
    proxy = await stage.proxy(platform.url, retry=ONCE)
    await proxy.call(payment("K1"))
    await proxy.call(payment("K2"))

    assert (await proxy.call(payment("K1"))).json["status"] == "succeeded"


async def test_u1_key_after_a_certain_failure_passes(stage: Stage) -> None:
    platform = await stage.platform(ok())
    platform.plan(refuses(422, "validation_error"))
    proxy = await stage.proxy(platform.url)
    await proxy.call(payment("K1"))

    assert (await proxy.call(payment("K2"))).status == 201


async def test_u1_pending_order_is_left_to_the_platform(stage: Stage) -> None:
    """PayHub answers a second key for one order itself (S4): it is asked."""
    platform = await stage.platform(refuses(409, "order_no_conflict", related_resource_id="pay_t1"))
    platform.plan(says(202, thing("processing")))
    proxy = await stage.proxy(platform.url)
    await proxy.call(payment("K1"))

    told = await proxy.call(payment("K2"))

    assert (told.status, told.code, platform.hits) == (409, "order_no_conflict", 2)


async def test_u1_confirm_holds_back_another_confirm_and_no_cancel(stage: Stage) -> None:
    platform = await stage.platform(says(202, thing("processing")))
    platform.plan(Script(Reset()))
    proxy = await stage.proxy(platform.url, retry=ONCE)
    await proxy.call(confirm("C1"))

    held = await proxy.call(confirm("C2"))
    other = await proxy.call(confirm("C3", "pay_t2"))
    canceled = await proxy.call(cancel("X1"))

    assert (held.status, held.code) == (409, "result_unknown")
    assert other.status == 202
    assert canceled.status == 202
    assert platform.hits == 3


async def test_u1_checkout_sessions_are_not_held_back(stage: Stage) -> None:
    platform = await stage.platform(says(201, b'{"id":"cs_2"}'))
    platform.plan(Script(Reset()))
    proxy = await stage.proxy(platform.url, retry=ONCE)
    fields = {"merchant_order_no": "ORDER-1", "amount": 1, "currency": "USD"}
    await proxy.call(post("/v1/checkout/sessions", fields, key="S1"))

    assert (await proxy.call(post("/v1/checkout/sessions", fields, key="S2"))).status == 201


@pytest.mark.parametrize("route", ["create_payment", "confirm_payment"])
async def test_u1_guard_may_be_turned_off(stage: Stage, route: str) -> None:
    raw = payment if route == "create_payment" else confirm
    platform = await stage.platform(ok())
    platform.plan(Script(Reset()))
    proxy = await stage.proxy(platform.url, retry=ONCE, routes={route: {"guard": {"on": False}}})
    await proxy.call(raw("K1"))

    assert (await proxy.call(raw("K2"))).status == 201


async def test_s11_twin_refund_is_held_back_and_other_amounts_pass(stage: Stage) -> None:
    platform = await stage.platform(REFUNDED)
    platform.plan(Script(Reset()))
    proxy = await stage.proxy(platform.url, retry=ONCE)
    first = await proxy.call(refund("K1", "R-1", amount=500))

    twin = await proxy.call(refund("K2", "R-2", amount=500))
    other_amount = await proxy.call(refund("K3", "R-3", amount=300))
    other_payment = await proxy.call(refund("K4", "R-4", payment_id="pay_t2", amount=500))

    assert (twin.status, twin.code, twin.error["operation"]) == (409, "result_unknown", first.operation)
    assert twin.error["idempotency_key"] == "K1"
    assert "refund" in twin.error["message"]
    assert (other_amount.status, other_payment.status, platform.hits) == (201, 201, 3)


async def test_s11_same_refund_number_under_another_key_is_held_back(stage: Stage) -> None:
    platform = await stage.platform(Script(Reset()))
    proxy = await stage.proxy(platform.url, retry=ONCE)
    await proxy.call(refund("K1", "R-1", amount=500))

    told = await proxy.call(refund("K2", "R-1", amount=100))

    assert (told.status, told.code, platform.hits) == (409, "result_unknown", 1)


async def test_s11_twin_may_pass_with_a_warning(stage: Stage) -> None:
    platform = await stage.platform(REFUNDED)
    platform.plan(Script(Reset()))
    proxy = await stage.proxy(platform.url, retry=ONCE, routes={"create_refund": {"guard": {"twin": "warn"}}})
    await proxy.call(refund("K1", "R-1", amount=500))

    assert (await proxy.call(refund("K2", "R-2", amount=500))).status == 201


async def test_s11_two_refunds_of_one_amount_pass_once_the_first_is_certain(stage: Stage) -> None:
    platform = await stage.platform(REFUNDED)
    proxy = await stage.proxy(platform.url, retry=ONCE)
    await proxy.call(refund("K1", "R-1", amount=500))

    assert (await proxy.call(refund("K2", "R-2", amount=500))).status == 201


async def test_concurrent_keys_for_one_order_make_one_hit(stage: Stage) -> None:
    go = asyncio.Event()
    platform = await stage.platform(Script(Hold(go), *ok().steps))
    proxy = await stage.proxy(platform.url, retry={"attempt_timeout": "5s"})
    calls = [asyncio.create_task(proxy.call(payment(f"K{n}"))) for n in range(30)]
    await platform.got(1)
    await until(lambda: sum(call.done() for call in calls) == 29)
    done, waiting = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
    go.set()
    (led,) = await asyncio.gather(*waiting)

    assert {(one.result().status, one.result().code) for one in done} == {(409, "operation_in_progress")}
    assert (led.status, platform.hits) == (201, 1)


async def test_absent_order_may_only_be_paid_with_its_first_key(stage: Stage) -> None:
    """U3: absent is no proof; the first request may still be under way."""
    sandbox = await stage.sandbox()
    rule = sandbox.add_fault({"fault": "reset_before", "times": "always"})
    proxy = await stage.proxy(sandbox.url, retry=ONCE, lookups=LOOKUPS)
    await proxy.call(payment("K1"))
    await proxy.until("K1", lambda operation: operation.state is State.ABSENT)
    sandbox.remove_fault(rule)

    assert (await proxy.call(payment("K2"))).code == "result_unknown"
    assert (await proxy.call(payment("K1"))).status == 201
    assert len(sandbox.ledger.charges()) == 1


async def test_refusal_after_absence_frees_key_and_order(stage: Stage) -> None:
    """U3: an attempt begun after absence was believed, answered 422, proves that nothing happened."""
    platform = await stage.platform(says(200, b'{"data":[]}'))
    platform.plan(Script(Reset()))
    proxy = await stage.proxy(platform.url, retry=ONCE, lookups=LOOKUPS)
    await proxy.call(payment("K1", 1))
    await proxy.until("K1", lambda operation: operation.state is State.ABSENT)
    platform.usual = refuses(422, "validation_error")

    told = await proxy.call(payment("K1", 1))

    assert (told.status, told.knowledge) == (422, "not_executed")
    platform.usual = ok()
    assert (await proxy.call(payment("K2", 2))).status == 201


@pytest.mark.parametrize("status", [401, 403, 429])
async def test_refusal_before_the_key_is_looked_up_frees_nothing(stage: Stage, status: int) -> None:
    platform = await stage.platform(says(200, b'{"data":[]}'))
    platform.plan(Script(Reset()))
    proxy = await stage.proxy(platform.url, retry=ONCE, lookups=LOOKUPS)
    await proxy.call(payment("K1", 1))
    await proxy.until("K1", lambda operation: operation.state is State.ABSENT)
    platform.usual = refuses(status, "refused")

    told = await proxy.call(payment("K1", 1))

    assert (told.status, told.code, told.knowledge) == (504, "result_unknown", "unknown")
    assert (await proxy.call(payment("K2", 2))).code == "result_unknown"
