"""Unknown and pending results: looked up, told by events, settled by people (U2-U8, C5; O-15)."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import itertools
import json
from datetime import UTC, datetime
from typing import Any

import pytest

from proxy.core.model import State
from tests.e2e.callers import ORDER, Told, call, cancel, confirm, payment, post, refund
from tests.e2e.platforms import ok, page, refuses, says, thing
from tests.e2e.stage import LOOKUPS, MovedClock, Proxy, Stage, until
from tests.wire.peers import Hang, RawPlatform, Reset, Script

ONCE = {"attempts": 1}
SECRET = "whsec_events"


def listed(*things: bytes) -> Script:
    """A platform's list, as lookups by order number get it."""
    return says(200, b'{"data":[' + b",".join(things) + b"]}")


def _gets(platform: RawPlatform) -> list[bytes]:
    return [seen.target for seen in platform.received if seen.method == b"GET"]


async def _unknown(stage: Stage, raw: bytes | None = None, **overrides: Any) -> tuple[RawPlatform, Proxy]:
    """A platform that swallowed a payment, and the proxy that doubts."""
    platform = await stage.platform(listed())
    platform.plan(Script(Reset()))
    given: dict[str, Any] = {"retry": ONCE, "lookups": LOOKUPS} | overrides
    proxy = await stage.proxy(platform.url, **given)
    told = await proxy.call(raw or payment())
    assert (told.status, told.code) == (504, "result_unknown")
    return platform, proxy


async def test_o15_time_out_is_unknown_and_looked_up_on_the_schedule_until_it_is_known(stage: Stage) -> None:
    platform = await stage.platform(ok(200, status="processing", version=1))
    platform.plan(Script(Hang()), listed(thing("processing", version=1)))
    lookups = LOOKUPS | {
        "schedule": ["1100ms", "1400ms", "1700ms"],
        "min_interval": "250ms",
        "then_every": "300ms",
    }
    proxy = await stage.proxy(platform.url, retry=ONCE | {"attempt_timeout": "1s"}, lookups=lookups)
    loop = asyncio.get_running_loop()
    began = loop.time()
    told = await proxy.call(payment())
    assert (told.status, told.code, told.knowledge, told.attempts) == (504, "result_unknown", "unknown", 1)

    times: list[float] = []
    while len(times) < 4:
        await platform.until(lambda: len(_gets(platform)) > len(times))
        times.append(loop.time() - began)
    pending = await proxy.operation()
    platform.usual = ok(200, version=2)
    settled = await proxy.until("K", lambda operation: operation.state is State.EXECUTED)

    assert pending.state is State.PENDING
    assert settled.status == "succeeded"
    assert times[0] > 1.05
    assert all(later - sooner > 0.2 for sooner, later in itertools.pairwise(times))
    count = len(_gets(platform))
    await asyncio.sleep(0.8)  # silence is what must come
    assert len(_gets(platform)) == count
    assert _gets(platform)[0] == b"/v1/payments?merchant_order_no=ORDER-T-001"
    assert set(_gets(platform)[1:]) == {b"/v1/payments/pay_t1"}
    assert (await proxy.call(payment())).json["status"] == "succeeded"


async def test_u2_what_waits_for_a_lookup_is_counted_before_the_first_one(stage: Stage) -> None:
    """M1: the first scrape after a start said 0, however many results were unknown."""
    platform, _ = await _unknown(stage, lookups={"enabled": False})
    clock = MovedClock()
    clock.advance(days=1)

    proxy = await stage.proxy(platform.url, clock=clock, lookups=LOOKUPS)

    assert proxy.app.now.resolver.backlog == 1


async def test_u2_lookup_by_id_once_the_id_is_known(stage: Stage) -> None:
    platform = await stage.platform(ok(200, version=2))
    platform.plan(says(202, thing("processing", version=1)))
    proxy = await stage.proxy(platform.url, lookups=LOOKUPS)
    await proxy.call(payment())

    await proxy.until("K", lambda operation: operation.state is State.EXECUTED)

    assert _gets(platform) == [b"/v1/payments/pay_t1"]
    assert platform.received[-1].header(b"authorization") == [b"Bearer sk_test_A"]


async def test_u2_refund_in_doubt_is_looked_up_by_its_number(stage: Stage) -> None:
    platform, proxy = await _unknown(stage, refund("K", "R-1"))
    platform.usual = listed(b'{"id":"ref_1","status":"succeeded","merchant_refund_no":"R-1","version":1}')

    settled = await proxy.until("K", lambda operation: operation.state is State.EXECUTED)

    assert (settled.status, settled.resource_id) == ("succeeded", "ref_1")
    assert set(_gets(platform)) == {b"/v1/refunds?merchant_refund_no=R-1"}


async def test_u2_checkout_session_in_doubt_is_not_looked_up(stage: Stage) -> None:
    fields = {"merchant_order_no": ORDER, "amount": 1, "currency": "USD"}
    platform, _ = await _unknown(stage, post("/v1/checkout/sessions", fields, key="K"))

    await asyncio.sleep(0.7)  # silence is what must come

    assert _gets(platform) == []


async def test_u2_operations_on_one_payment_share_one_lookup(stage: Stage) -> None:
    platform = await stage.platform(ok(200, status="processing", version=1, attempt_count=0))
    platform.plan(says(202, thing("processing", version=1, attempt_count=0)), Script(Reset()))
    proxy = await stage.proxy(
        platform.url, retry=ONCE, lookups=LOOKUPS | {"schedule": ["1s"], "then_every": "10s"}
    )
    await proxy.call(payment("K"))
    await proxy.call(confirm("C"))
    platform.usual = ok(200, version=4, attempt_count=1)

    await proxy.until("K", lambda operation: operation.state is State.EXECUTED)
    await proxy.until("C", lambda operation: operation.state is State.EXECUTED)

    assert _gets(platform) == [b"/v1/payments/pay_t1"]


async def test_u3_failure_of_the_card_before_settles_no_confirm(stage: Stage) -> None:
    """Card B hangs in the network; the payment still shows card A's failure."""
    platform = await stage.platform(
        ok(200, status="failed", version=2, attempt_count=1, failure={"attempt_id": "att_1"})
    )
    proxy = await stage.proxy(platform.url, retry=ONCE, lookups=LOOKUPS | {"misses": 100})
    await proxy.call(payment("K"))
    platform.plan(Script(Reset()))
    await proxy.call(confirm("C"))
    await until(lambda: len(_gets(platform)) >= 3)

    assert (await proxy.operation("C")).state is State.UNKNOWN
    platform.usual = ok(200, status="failed", version=3, attempt_count=2, failure={"attempt_id": "att_2"})
    settled = await proxy.until("C", lambda operation: operation.state is State.EXECUTED)
    assert (settled.status, settled.version) == ("failed", 3)


@pytest.mark.parametrize(
    "script",
    [
        refuses(401, "unauthorized"),
        refuses(403, "forbidden"),
        refuses(429, "rate_limited"),
        refuses(500, "internal_error"),
        page(200),
        page(404),
        page(502),
        Script(Reset()),
        says(200, b'{"data":"none"}'),
        says(200, b"[]"),
    ],
    ids=["401", "403", "429", "500", "portal", "404 HTML", "502", "reset", "no list", "bare list"],
)
async def test_u8_failed_lookup_is_no_evidence(stage: Stage, script: Script) -> None:
    platform, proxy = await _unknown(stage)
    platform.usual = script

    await until(lambda: len(_gets(platform)) >= 6)

    operation = await proxy.operation()
    assert (operation.state, operation.knowledge) == (State.UNKNOWN, "unknown")


async def test_u8_absence_takes_three_misses_and_is_no_proof(stage: Stage) -> None:
    platform, proxy = await _unknown(stage)

    absent = await proxy.until("K", lambda operation: operation.state is State.ABSENT)

    assert absent.knowledge == "unknown"
    assert len(_gets(platform)) >= 3
    platform.usual = listed(thing("succeeded", version=1))
    settled = await proxy.until("K", lambda operation: operation.state is State.EXECUTED)
    assert settled.status == "succeeded"


async def test_u8_scope_of_unknown_credential_is_not_looked_up(stage: Stage) -> None:
    """An empty answer under another merchant's key proves nothing."""
    platform = await stage.platform(listed())
    platform.plan(Script(Reset()), Script(Reset()))
    proxy = await stage.proxy(
        platform.url,
        retry=ONCE,
        lookups=LOOKUPS,
        merchant={"header": "X-Merchant-Id"},
        upstream={"authorization": {"A/test": "sk_test_A"}},
    )
    await proxy.call(payment("K", 1, ("X-Merchant-Id", "B")))
    await proxy.call(payment("K", 1, ("X-Merchant-Id", "A")))

    await until(lambda: len(_gets(platform)) >= 3)

    operations = {one.scope.merchant: one for one in await proxy.operations()}
    assert operations["A"].lookups.done > 0
    assert operations["B"].lookups.done == 0
    assert operations["B"].state is State.UNKNOWN


async def test_u3_old_doubt_goes_to_a_person_and_is_never_failed(stage: Stage) -> None:
    clock = MovedClock()
    platform, proxy = await _unknown(stage, clock=clock, lookups=LOOKUPS | {"lag": "3d"})

    clock.advance(days=1.1)
    waiting = await proxy.until("K", lambda operation: operation.state is State.MANUAL_REVIEW)

    assert waiting.knowledge == "unknown"
    platform.usual = ok(200)
    assert (await proxy.call(payment())).json["status"] == "succeeded"


async def test_u6_operation_in_flight_at_a_crash_is_unknown_and_looked_up(stage: Stage) -> None:
    """Here the process goes away without a word; with SIGKILL in `test_crashes`."""
    platform = await stage.platform(listed(thing("succeeded", version=1)))
    platform.plan(Script(Hang()))
    first = await stage.proxy(
        platform.url, store={"lease": "2s"}, retry={"attempt_timeout": "5s", "attempts": 1}
    )
    calling = asyncio.create_task(first.call(payment()))
    await platform.got(1)
    await first.app.stop()
    told = await calling
    assert (told.status, told.code, told.knowledge, told.attempts) == (504, "result_unknown", "unknown", 0)
    assert told.error["retryable"] is True
    assert told.header("retry-after") is not None

    second = await stage.proxy(platform.url, lookups=LOOKUPS)
    settled = await second.until("K", lambda operation: operation.state is State.EXECUTED)

    assert (settled.status, settled.doubt) == ("succeeded", True)


# --- events (U4) -------------------------------------------------------------------------------------------------


def _admin(proxy: Proxy) -> str:
    assert proxy.app.admin is not None
    return proxy.app.admin.url.removeprefix("http://")


async def _event(
    proxy: Proxy,
    shown: dict[str, Any],
    *,
    kind: str = "payment.updated",
    secret: str = SECRET,
    age_s: int = 0,
) -> Told:
    body = json.dumps({"id": "evt_1", "type": kind, "data": {"object": shown}}).encode()
    stamp = int(datetime.now(UTC).timestamp()) - age_s
    digest = hmac.new(secret.encode(), b"%d." % stamp + body, hashlib.sha256).hexdigest()
    head = (
        f"POST /events HTTP/1.1\r\nHost: {_admin(proxy)}\r\nContent-Type: application/json\r\n"
        f"Webhook-Signature: t={stamp},v1={digest}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return await call(_admin(proxy), head.encode() + body)


def _shown(status: str = "succeeded", version: int = 2) -> dict[str, Any]:
    return {"id": "pay_t1", "status": status, "merchant_order_no": ORDER, "version": version}


SIGNED: dict[str, Any] = {"events": {"secret": SECRET}, "lookups": {"enabled": False}}


async def test_u4_signed_event_settles_an_unknown_payment(stage: Stage) -> None:
    _, proxy = await _unknown(stage, **SIGNED)

    assert (await _event(proxy, _shown())).status == 200

    operation = await proxy.operation()
    assert (operation.state, operation.status, operation.settled_by) == (
        State.EXECUTED,
        "succeeded",
        "event",
    )


async def test_u4_signed_event_that_is_older_changes_nothing(stage: Stage) -> None:
    _, proxy = await _unknown(stage, **SIGNED)
    await _event(proxy, _shown("succeeded", 5))

    assert (await _event(proxy, _shown("processing", 2))).status == 200
    assert (await _event(proxy, _shown("succeeded", 5))).status == 200

    operation = await proxy.operation()
    assert (operation.status, operation.version) == ("succeeded", 5)


@pytest.mark.parametrize(("secret", "age_s"), [("whsec_other", 0), (SECRET, 3_600)], ids=["forged", "old"])
async def test_u4_event_with_a_wrong_signature_settles_nothing(stage: Stage, secret: str, age_s: int) -> None:
    _, proxy = await _unknown(stage, **SIGNED)

    told = await _event(proxy, _shown("failed"), secret=secret, age_s=age_s)

    assert told.status == 401
    assert (await proxy.operation()).state is State.UNKNOWN


async def test_u4_unsigned_event_only_starts_a_lookup(stage: Stage) -> None:
    platform, proxy = await _unknown(stage, lookups=LOOKUPS | {"schedule": ["1h"]})
    platform.usual = listed(thing("succeeded", version=3))

    assert (await _event(proxy, _shown("failed"))).status == 202

    settled = await proxy.until("K", lambda operation: operation.state is State.EXECUTED)
    assert (settled.status, settled.settled_by) == ("succeeded", "lookup")


async def test_u4_signed_event_that_names_no_merchant_starts_a_lookup_of_each_that_it_may_be_of(
    stage: Stage,
) -> None:
    """It was thrown away, and told as kept: two merchants may have the same order's number."""
    platform = await stage.platform(listed())
    platform.plan(Script(Reset()), Script(Reset()))
    proxy = await stage.proxy(
        platform.url,
        retry=ONCE,
        lookups=LOOKUPS | {"schedule": ["1h"]},
        events={"secret": SECRET},
        merchant={"header": "X-Merchant-Id"},
        upstream={"authorization": {"A/test": "sk_test_A", "B/test": "sk_test_B"}},
    )
    for merchant in ("A", "B"):
        await proxy.call(payment("K", 1, ("X-Merchant-Id", merchant)))

    told = await _event(proxy, _shown())

    assert (told.status, told.json["verdict"], told.json["changed"]) == (202, "hint", 2)

    def asked() -> set[bytes]:
        found = [one.header(b"authorization")[0] for one in platform.received if one.method == b"GET"]
        return set(found)

    await until(lambda: asked() == {b"Bearer sk_test_A", b"Bearer sk_test_B"})
    assert {one.knowledge for one in await proxy.operations()} == {"unknown"}


async def test_u4_event_during_the_call_ends_its_retries(stage: Stage) -> None:
    """The caller gets the event's object as P6 gives it."""
    platform = await stage.platform(Script(Hang()))
    proxy = await stage.proxy(
        platform.url, retry={"attempts": 3, "attempt_timeout": "4s", "deadline": "50s"}, **SIGNED
    )
    calling = asyncio.create_task(proxy.call(payment()))
    await platform.got(1)
    await proxy.until("K", lambda operation: operation.state is State.IN_FLIGHT)

    await _event(proxy, _shown())
    told = await calling

    assert (told.status, told.json["status"], told.knowledge) == (200, "succeeded", "executed")
    assert told.replayed
    assert platform.hits == 1


async def test_u4_event_before_its_operation_is_kept_for_it(stage: Stage) -> None:
    platform = await stage.platform(Script(Reset()))
    proxy = await stage.proxy(platform.url, retry=ONCE, **SIGNED)
    await _event(proxy, _shown())

    told = await proxy.call(payment())

    assert (told.status, told.json["status"], told.knowledge) == (200, "succeeded", "executed")
    assert (await proxy.operation()).state is State.EXECUTED


async def test_s12_cancel_that_was_accepted_is_settled_by_its_event(stage: Stage) -> None:
    platform = await stage.platform(says(202, thing("requires_action", version=2)))
    proxy = await stage.proxy(platform.url, **SIGNED)
    told = await proxy.call(cancel("K"))
    assert told.knowledge == "pending"

    await _event(proxy, _shown("canceled", 3), kind="payment.canceled")

    assert (await proxy.operation()).status == "canceled"


async def test_sandbox_webhook_settles_a_pending_payment(stage: Stage) -> None:
    """The whole way: accepted, settled at the bank, told by a signed event."""
    sandbox = await stage.sandbox(webhook_secret=SECRET)
    sandbox.add_fault({"fault": "accept_202"})
    proxy = await stage.proxy(sandbox.url, **SIGNED)
    told = await proxy.call(payment())
    assert (told.status, told.knowledge) == (202, "pending")
    view = sandbox.settle_payment(told.json["id"], status="succeeded")

    assert (await _event(proxy, view, kind="payment.succeeded")).status == 200

    assert (await proxy.operation()).status == "succeeded"


# --- people (C5) -------------------------------------------------------------------------------------------------


async def _resolve(proxy: Proxy, status: str) -> Told:
    operation = await proxy.operation()
    body = json.dumps({"status": status, "by": "Li Wei", "note": "the bank says so"}).encode()
    head = (
        f"POST /operations/{operation.id}/resolve HTTP/1.1\r\nHost: {_admin(proxy)}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return await call(_admin(proxy), head.encode() + body)


async def test_c5_what_a_person_settled_is_never_sent_again(stage: Stage) -> None:
    platform, proxy = await _unknown(stage, lookups={"enabled": False})
    assert (await _resolve(proxy, "failed")).status == 200
    hits = platform.hits

    told = await proxy.call(payment())

    assert (told.status, told.code) == (409, "settled_by_hand")
    assert "failed" in told.error["message"]
    assert "the bank says so" in told.error["message"]
    assert platform.hits == hits


async def test_c5_absent_by_a_person_frees_key_and_order(stage: Stage) -> None:
    platform, proxy = await _unknown(stage, lookups={"enabled": False})
    await _resolve(proxy, "absent")
    platform.usual = ok()

    assert (await proxy.operation()).knowledge == "not_executed"
    assert (await proxy.call(payment("K2"))).status == 201


async def test_c5_platforms_own_evidence_overrides_a_person(stage: Stage) -> None:
    _, proxy = await _unknown(stage, **SIGNED)
    await _resolve(proxy, "failed")

    await _event(proxy, _shown())

    operation = await proxy.operation()
    assert (operation.status, operation.by_hand) == ("succeeded", None)
    assert any("person" in entry.text for entry in operation.history)
