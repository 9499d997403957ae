"""One key, many calls: collapse, conflict, replay, release (P1-P9; O-04 to O-06, O-09, O-10, O-13, O-16)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from proxy.core.model import State
from tests.e2e.callers import Told, confirm, payment, post, refund
from tests.e2e.platforms import JSON, ok, page, refuses, says, thing
from tests.e2e.stage import LOOKUPS, MovedClock, Proxy, Stage, until
from tests.wire.peers import Close, Hang, Hold, RawPlatform, Reset, Script, Send, answer

CALLERS = 50


def held(event: asyncio.Event, script: Script) -> Script:
    """The script, once the test lets it go on."""
    return Script(Hold(event), *script.steps)


async def _joined(proxy: Proxy, count: int) -> None:
    """So many calls lead, follow or repeat an operation: each has been told by the ledger which."""
    runs = proxy.app.now.driver.runs
    await until(lambda: [run.guard.operation is not None for run in runs.values()] == [True] * count)


async def _together(proxy: Proxy, platform: RawPlatform, go: asyncio.Event, count: int) -> Sequence[Told]:
    """So many calls with one key; the platform answers when all of them have come."""
    calls = [asyncio.create_task(proxy.call(payment())) for _ in range(count)]
    await _joined(proxy, count)
    await platform.got(1)
    go.set()
    return await asyncio.gather(*calls)


@pytest.mark.parametrize(
    ("script", "status", "knowledge"),
    [
        (ok(201), 201, "executed"),
        (ok(200, status="failed"), 200, "executed"),
        (refuses(402, "card_declined"), 402, "executed"),
        (says(202, thing("processing")), 202, "pending"),
        (refuses(400, "invalid_request"), 400, "not_executed"),
        (refuses(404, "resource_not_found"), 404, "not_executed"),
        (refuses(409, "order_no_conflict"), 409, "executed"),
        (page(500), 500, "unknown"),
        (page(200), 504, "unknown"),
        (Script(Close()), 504, "unknown"),
    ],
    ids=["201", "declined", "402", "202", "released", "refused", "exists", "500", "portal", "no answer"],
)
async def test_fifty_concurrent_calls_make_one_hit_and_fifty_equal_answers(
    stage: Stage, script: Script, status: int, knowledge: str
) -> None:
    go = asyncio.Event()
    platform = await stage.platform(held(go, script))
    proxy = await stage.proxy(platform.url, retry={"attempts": 1, "attempt_timeout": "5s"})

    told = await _together(proxy, platform, go, CALLERS)

    assert platform.hits == 1
    assert {(one.status, one.knowledge, one.attempts) for one in told} == {(status, knowledge, 1)}
    assert len({one.body for one in told}) == 1
    assert len({one.operation for one in told}) == 1
    assert sum(not one.replayed for one in told) == 1


async def test_call_after_a_reload_follows_the_call_that_began_before_it(stage: Stage) -> None:
    """P4, O4: both are the first of their configuration, and still two owners."""
    go = asyncio.Event()
    platform = await stage.platform(held(go, ok(201)))
    proxy = await stage.proxy(platform.url, retry={"attempt_timeout": "5s"})
    first = asyncio.create_task(proxy.call(payment()))
    await platform.got(1)
    await proxy.app.reload(proxy.app.now.settings)
    second = asyncio.create_task(proxy.call(payment()))
    await _joined(proxy, 1)
    go.set()

    before, after = await asyncio.gather(first, second)

    assert platform.hits == 1
    assert (before.status, before.replayed) == (201, False)
    assert (after.status, after.replayed, after.body) == (201, True, before.body)
    assert before.header("x-request-id") != after.header("x-request-id")


async def test_fifty_concurrent_calls_make_as_many_attempts_as_one_call(stage: Stage) -> None:
    """N waiters never become N attempts, also when the leader ends unknown (P4)."""
    go = asyncio.Event()
    platform = await stage.platform(held(go, Script(Reset())))
    proxy = await stage.proxy(platform.url, retry={"attempts": 3, "attempt_timeout": "5s"})

    told = await _together(proxy, platform, go, CALLERS)

    assert platform.hits == 3
    assert {(one.status, one.code, one.knowledge) for one in told} == {(504, "result_unknown", "unknown")}


async def test_follower_past_its_time_is_told_to_come_back(stage: Stage) -> None:
    platform = await stage.platform(Script(Hang()))
    proxy = await stage.proxy(
        platform.url,
        store={"lease": "1s"},
        wait_timeout="2s",
        retry={"attempts": 1, "attempt_timeout": "8s"},
    )
    leading = asyncio.create_task(proxy.call(payment()))
    await platform.got(1)

    told = await proxy.call(payment())

    assert (told.status, told.code, told.knowledge) == (409, "operation_in_progress", "unknown")
    assert told.header("retry-after") is not None
    assert told.error["retryable"] is True
    assert (await leading).code == "result_unknown"
    assert platform.hits == 1


async def test_o04_other_amount_in_flight_conflicts_at_once(stage: Stage) -> None:
    go = asyncio.Event()
    platform = await stage.platform(held(go, ok()))
    proxy = await stage.proxy(platform.url, retry={"attempt_timeout": "5s"})
    first = asyncio.create_task(proxy.call(payment("K", 10_000)))
    await platform.got(1)

    conflict = await proxy.call(payment("K", 12_000))

    assert (conflict.status, conflict.code) == (409, "idempotency_conflict")
    assert conflict.knowledge == "unknown"
    assert conflict.header("retry-after") is None
    assert conflict.error["retryable"] is False
    assert conflict.error["fields"] == ["amount"]
    assert b"12000" not in conflict.body
    assert b"10000" not in conflict.body
    go.set()
    assert (await first).status == 201
    assert platform.hits == 1


async def test_o04_conflict_after_the_end_carries_the_recorded_knowledge(stage: Stage) -> None:
    platform = await stage.platform(ok())
    proxy = await stage.proxy(platform.url)
    await proxy.call(payment("K", 10_000))

    conflict = await proxy.call(payment("K", 12_000, order="ORDER-2"))

    assert (conflict.status, conflict.knowledge) == (409, "executed")
    assert sorted(conflict.error["fields"]) == ["amount", "merchant_order_no"]
    assert platform.hits == 1
    assert (await proxy.operation()).status == "succeeded"


REWRITTEN = b' {"currency" : "\\u0055SD","amount":10000 ,"merchant_order_no":"ORDER-T-001"}\n'


@pytest.mark.parametrize(
    "body",
    [
        REWRITTEN,
        b'{"merchant_order_no":"ORDER-T-001","amount":1.0e4,"currency":"USD"}',
        b'{"merchant_order_no":"ORDER-T-001","amount":10000.00,"currency":"USD","metadata":null}',
    ],
    ids=["order, blanks, escapes", "exponent", "decimals and a null"],
)
async def test_o05_honest_repeat_is_no_conflict_and_is_forwarded_byte_for_byte(
    stage: Stage, body: bytes
) -> None:
    platform = await stage.platform(ok(200))
    proxy = await stage.proxy(platform.url)
    first = await proxy.call(payment())
    head = payment().partition(b"\r\n\r\n")[0].rpartition(b"\r\n")[0]

    again = await proxy.call(head + b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    assert (again.status, again.body) == (first.status, first.body)
    assert platform.hits == 2  # payhub forwards: the platform tells the latest state (P6)
    assert platform.received[1].body == body
    assert platform.received[1].header(b"idempotency-key") == [b"K"]


async def test_o05_honest_repeat_on_a_stored_route_is_not_sent(stage: Stage) -> None:
    platform = await stage.platform(ok())
    proxy = await stage.proxy(platform.url, routes={"create_payment": {"replay": "stored"}})
    first = await proxy.call(payment())

    again = await proxy.call(payment(card={"number": "4242424242424242"}))

    assert (again.status, again.body, again.replayed, platform.hits) == (201, first.body, True, 1)


async def test_o06_large_amounts_that_differ_by_one_conflict(stage: Stage) -> None:
    platform = await stage.platform(ok())
    proxy = await stage.proxy(platform.url)
    await proxy.call(payment("K", 9_007_199_254_740_993))

    told = await proxy.call(payment("K", 9_007_199_254_740_992))

    assert (told.status, told.code, platform.hits) == (409, "idempotency_conflict", 1)
    assert b"9007199254740993" in platform.received[0].body


async def test_o09_transient_500_is_not_pinned_to_the_key(stage: Stage) -> None:
    platform = await stage.platform(ok(200))
    platform.plan(*(refuses(500, "internal_error") for _ in range(3)))
    proxy = await stage.proxy(platform.url)
    first = await proxy.call(payment())

    second = await proxy.call(payment())

    assert (first.status, first.knowledge) == (500, "unknown")
    assert (second.status, second.knowledge, second.attempts) == (200, "executed", 4)
    assert {tuple(seen.header(b"idempotency-key")) for seen in platform.received} == {(b"K",)}


async def test_o10_key_belongs_to_its_endpoint(stage: Stage) -> None:
    platform = await stage.platform()
    platform.plan(
        ok(),
        says(201, b'{"id":"ref_t1","status":"succeeded","merchant_refund_no":"R-T-1"}'),
        ok(200, id="pay_t1"),
        ok(200, id="pay_t2"),
    )
    proxy = await stage.proxy(platform.url)

    told = [
        await proxy.call(payment("K")),
        await proxy.call(refund("K", "R-T-1")),
        await proxy.call(confirm("K2", "pay_t1")),
        await proxy.call(confirm("K2", "pay_t2")),
    ]

    assert [one.json["id"] for one in told] == ["pay_t1", "ref_t1", "pay_t1", "pay_t2"]
    assert platform.hits == 4
    assert len({one.operation for one in told}) == 4


async def test_h9_key_holds_however_the_path_is_written(stage: Stage) -> None:
    platform = await stage.platform(ok())
    proxy = await stage.proxy(platform.url, routes={"create_payment": {"replay": "stored"}})
    await proxy.call(payment())

    again = await proxy.call(payment().replace(b"/v1/payments", b"/v1/p%61yments?x=1"))

    assert (again.replayed, platform.hits) == (True, 1)


FULL = (
    (b"Location", b"/v1/payments/pay_t1"),
    (b"ETag", b'"v1"'),
    (b"Content-Type", b"application/json; charset=utf-8"),
    (b"X-Request-Id", b"r-1"),
    (b"Set-Cookie", b"s=1"),
    (b"Date", b"Mon, 01 Jan 2024 00:00:00 GMT"),
)


async def test_o13_stored_replay_is_the_first_answer(stage: Stage) -> None:
    platform = await stage.platform(Script(Send(answer(201, thing(), *FULL, reason=b"Created"))))
    proxy = await stage.proxy(platform.url, routes={"create_payment": {"replay": "stored"}})
    first = await proxy.call(payment())

    again = await proxy.call(payment())

    assert platform.hits == 1
    assert (again.status, again.body) == (201, first.body)
    for name in ("location", "etag", "content-type"):
        assert again.header(name) == first.header(name) is not None
    assert again.header("content-length") == str(len(first.body))
    assert again.replayed
    assert again.header("cache-control") == "no-store"
    assert again.header("set-cookie") is None
    assert first.header("set-cookie") == "s=1"
    said = again.header("date")
    assert said is not None and said.endswith(" GMT") and said != first.header("date")


async def test_o13_forwarded_repeat_is_the_second_answer_unchanged(stage: Stage) -> None:
    platform = await stage.platform()
    platform.plan(
        Script(Send(answer(201, thing("processing", version=1), *FULL))),
        Script(Send(answer(200, thing("succeeded", version=2), *FULL))),
    )
    proxy = await stage.proxy(platform.url)
    await proxy.call(payment())

    again = await proxy.call(payment())

    assert (again.status, again.body) == (200, thing("succeeded", version=2))
    assert (again.replayed, again.knowledge) == (False, "executed")
    assert again.all("set-cookie") == ["s=1"]
    assert (await proxy.operation()).version == 2


# --- what a forwarded repeat may do (P6) -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "script",
    [
        refuses(401, "unauthorized"),
        refuses(422, "validation_error"),
        refuses(404, "resource_not_found"),
        refuses(409, "idempotency_conflict"),
        refuses(409, "operation_in_progress"),
        refuses(429, "rate_limited"),
        refuses(503, "temporarily_unavailable"),
        page(500),
        page(200),
        Script(Reset()),
        Script(Hang()),
        ok(200, status="processing", version=1),
    ],
    ids=[
        "401",
        "422",
        "404",
        "conflict",
        "in progress",
        "429",
        "503",
        "500",
        "portal",
        "reset",
        "hang",
        "older",
    ],
)
async def test_repeat_of_an_executed_payment_never_changes_it_for_the_worse(
    stage: Stage, script: Script
) -> None:
    platform = await stage.platform(script)
    first_body = thing("succeeded", version=2)
    platform.plan(says(201, first_body))
    proxy = await stage.proxy(platform.url)
    await proxy.call(payment())

    again = await proxy.call(payment())

    assert platform.hits == 2, "one attempt, no retries"
    assert (again.status, again.body) == (201, first_body)
    assert (again.replayed, again.knowledge) == (True, "executed")
    operation = await proxy.operation()
    assert (operation.state, operation.status, operation.version) == (State.EXECUTED, "succeeded", 2)
    assert (await proxy.call(payment("K", 12_000))).code == "idempotency_conflict", "the key is kept"


async def test_repeat_that_brings_a_newer_object_updates_the_record(stage: Stage) -> None:
    platform = await stage.platform()
    platform.plan(says(202, thing("processing", version=1)), ok(200, version=3))
    proxy = await stage.proxy(platform.url)
    assert (await proxy.call(payment())).knowledge == "pending"

    again = await proxy.call(payment())

    assert (again.status, again.knowledge) == (200, "executed")
    operation = await proxy.operation()
    assert (operation.state, operation.version) == (State.EXECUTED, 3)


async def test_concurrent_repeats_share_one_attempt(stage: Stage) -> None:
    go = asyncio.Event()
    platform = await stage.platform(held(go, ok(200, version=2)))
    platform.plan(ok(201, version=1))
    proxy = await stage.proxy(platform.url, retry={"attempt_timeout": "5s"})
    await proxy.call(payment())
    repeats = [asyncio.create_task(proxy.call(payment())) for _ in range(20)]
    await _joined(proxy, 20)
    await platform.got(2)
    go.set()

    told = await asyncio.gather(*repeats)

    assert platform.hits == 2
    assert {(one.status, one.body, one.attempts) for one in told} == {(200, thing(version=2), 2)}
    assert len((await proxy.operation()).attempts) == 2, "no attempt is in the ledger that nobody sent"


async def test_repeat_without_anything_kept_tells_the_recorded_knowledge(stage: Stage) -> None:
    """D4 and P6: an answer that held a card is not kept; then only the knowledge can be told."""
    platform = await stage.platform(page(502))
    platform.plan(ok(201, card={"number": "4242424242424242"}))
    proxy = await stage.proxy(platform.url)
    first = await proxy.call(payment())

    again = await proxy.call(payment())

    assert b"4242424242424242" in first.body
    assert (again.status, again.code, again.knowledge) == (504, "result_unknown", "executed")
    assert again.error["last_answer"]["status"] == 502
    assert not again.reads_as_failed


# --- release (P7) ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [400, 401, 403, 422])
async def test_released_key_may_come_again_with_other_parameters(stage: Stage, status: int) -> None:
    platform = await stage.platform(ok())
    platform.plan(refuses(status, "refused"))
    proxy = await stage.proxy(platform.url)
    assert (await proxy.call(payment("K", 1))).knowledge == "not_executed"

    told = await proxy.call(payment("K", 2))

    assert (told.status, told.knowledge, platform.hits) == (201, "executed", 2)
    assert (await proxy.operation()).amount == 2


async def test_refused_key_is_kept_for_its_parameters(stage: Stage) -> None:
    platform = await stage.platform(ok())
    platform.plan(refuses(404, "resource_not_found"))
    proxy = await stage.proxy(platform.url)
    await proxy.call(payment("K", 1))

    assert (await proxy.call(payment("K", 2))).code == "idempotency_conflict"
    assert (await proxy.call(payment("K", 1))).status == 201


async def test_released_answer_is_given_to_those_who_waited_for_it(stage: Stage) -> None:
    """A caller with new parameters may already lead when the old waiters wake (P4)."""
    go = asyncio.Event()
    platform = await stage.platform(ok())
    platform.plan(held(go, refuses(400, "invalid_request")))
    proxy = await stage.proxy(platform.url, retry={"attempt_timeout": "5s"})
    old = [asyncio.create_task(proxy.call(payment("K", 1))) for _ in range(10)]
    await _joined(proxy, 10)
    await platform.got(1)
    go.set()
    new = await proxy.call(payment("K", 2))
    while new.code == "idempotency_conflict":  # the first run may not have ended yet
        new = await proxy.call(payment("K", 2))

    told = await asyncio.gather(*old)

    assert {(one.status, one.knowledge) for one in told} == {(400, "not_executed")}
    assert (new.status, new.knowledge) == (201, "executed")
    assert platform.hits == 2


# --- age (P9) ----------------------------------------------------------------------------------------------------


async def test_o16_key_that_was_forgotten_is_forwarded_and_the_platform_decides(stage: Stage) -> None:
    """Past the retention the order number still protects: the platform's answers pass unchanged."""
    clock = MovedClock()
    sandbox = await stage.sandbox(key_retention_s=0.0)
    proxy = await stage.proxy(sandbox.url, clock=clock)
    await proxy.call(payment())
    await proxy.purge()
    clock.advance(days=8.1)
    assert await proxy.purge() == 1

    other = await proxy.call(payment("K", 12_000))
    same = await proxy.call(payment())

    assert (other.status, other.code) == (409, "order_no_conflict")
    assert sandbox.requests.seen[-1].key == "K"
    assert same.code == "idempotency_conflict", "the key now belongs to the call with the other amount"
    assert len(sandbox.ledger.charges()) == 1


async def test_executed_record_lives_for_the_retention_and_a_day(stage: Stage) -> None:
    clock = MovedClock()
    platform = await stage.platform(ok())
    proxy = await stage.proxy(platform.url, clock=clock)
    await proxy.call(payment())
    await proxy.call(confirm("KC", "pay_9"))
    await proxy.purge()

    clock.advance(days=7.9)
    assert await proxy.purge() == 0
    clock.advance(days=0.2)
    assert await proxy.purge() == 1
    assert [one.key for one in await proxy.operations()] == ["KC"], "a confirm lives for 30 days"
    clock.advance(days=22)
    assert await proxy.purge() == 1


async def test_unresolved_operation_is_never_dropped(stage: Stage) -> None:
    clock = MovedClock()
    platform = await stage.platform(Script(Reset()))
    proxy = await stage.proxy(platform.url, clock=clock)
    await proxy.call(payment())
    await proxy.purge()

    clock.advance(days=400)

    assert await proxy.purge() == 0
    assert (await proxy.operation()).state is State.UNKNOWN


async def test_p9_confirm_older_than_the_platform_remembers_is_never_sent(stage: Stage) -> None:
    clock = MovedClock()
    platform = await stage.platform(ok(200, status="failed", version=2))
    proxy = await stage.proxy(platform.url, clock=clock)
    first = await proxy.call(confirm("K"))

    clock.advance(days=6.99)
    again = await proxy.call(confirm("K"))

    assert (again.status, again.body, again.replayed) == (200, first.body, True)
    assert platform.hits == 1


async def test_p9_unknown_confirm_older_than_the_platform_remembers_is_looked_up_instead(
    stage: Stage,
) -> None:
    clock = MovedClock()
    platform = await stage.platform(Script(Reset()))
    proxy = await stage.proxy(
        platform.url, clock=clock, retry={"attempts": 1}, lookups=LOOKUPS | {"schedule": ["300d"]}
    )
    await proxy.call(confirm("K"))
    clock.advance(days=6.99)
    platform.usual = ok(200, version=5)

    told = await proxy.call(confirm("K"))

    assert (told.status, told.code, told.knowledge) == (409, "key_expired", "unknown")
    await platform.until(lambda: any(seen.method == b"GET" for seen in platform.received))
    assert sum(seen.method == b"POST" for seen in platform.received) == 1
    await proxy.until("K", lambda operation: operation.state is State.EXECUTED)


async def test_s6_ten_repeats_make_one_charge(stage: Stage) -> None:
    sandbox = await stage.sandbox()
    proxy = await stage.proxy(sandbox.url)

    told = [await proxy.call(payment()) for _ in range(10)]

    assert [one.status for one in told] == [201] + [200] * 9
    assert len({one.json["id"] for one in told}) == 1
    assert len(sandbox.ledger.charges()) == 1


async def test_two_merchants_and_environments_share_no_key(stage: Stage) -> None:
    platform = await stage.platform(ok())
    proxy = await stage.proxy(
        platform.url, merchant={"header": "X-Merchant-Id"}, environment={"header": "X-Env"}
    )
    scopes = [("A", "live"), ("B", "live"), ("A", "test")]

    told = [await proxy.call(payment("K", 1, ("X-Merchant-Id", who), ("X-Env", env))) for who, env in scopes]
    nobody = await proxy.call(payment("K", 1, ("X-Env", "live")))

    assert len({one.operation for one in told}) == 3
    assert platform.hits == 3
    assert (nobody.status, nobody.error["field"]) == (400, "X-Merchant-Id")


async def test_key_of_a_path_is_not_the_key_of_another(stage: Stage) -> None:
    platform = await stage.platform(says(201, b'{"id":"cs_1"}', JSON))
    proxy = await stage.proxy(platform.url)
    fields = {"merchant_order_no": "ORDER-1", "amount": 1, "currency": "USD"}

    first = await proxy.call(post("/v1/checkout/sessions", fields, key="K"))
    second = await proxy.call(post("/v1/checkout/sessions", fields, key="K2"))

    assert first.operation != second.operation
    assert platform.hits == 2
