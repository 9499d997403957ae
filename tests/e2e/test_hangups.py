"""Callers that leave, and callers that are answered early: the call goes on (H6, W1; O-12)."""

from __future__ import annotations

import asyncio

import pytest

from proxy.core.model import State
from tests.e2e.callers import Told, payment
from tests.e2e.platforms import ok, refuses, thing
from tests.e2e.stage import LOOKUPS, Proxy, Stage, until
from tests.wire.peers import Hang, Hold, RawCaller, Reset, Script, Send, When, answer

PATIENT = {"attempt_timeout": "15s", "attempts": 1}


async def _left_after(proxy: Proxy, raw: bytes, delay_s: float) -> None:
    """A caller that resets its connection."""
    async with await RawCaller.dial(proxy.address) as caller:
        await caller.send(raw)
        await asyncio.sleep(delay_s)
        caller.reset()


async def _idle(proxy: Proxy) -> None:
    await until(lambda: not proxy.app.now.driver.runs)


@pytest.mark.slow
async def test_o12_two_hundred_callers_hang_up_at_any_moment_and_their_repeats_are_answered(
    stage: Stage,
) -> None:
    sandbox = await stage.sandbox()
    sandbox.add_fault({"fault": "delay", "times": "always", "seconds": 0.4})
    proxy = await stage.proxy(sandbox.url, retry={"attempt_timeout": "10s"})
    orders = [f"ORDER-{n}" for n in range(200)]
    payments = [payment(f"K-{order}", order=order) for order in orders]

    # Every 2.5 ms another delay from 0 to 500 ms, spread by a step that is coprime to the count.
    await asyncio.gather(*(_left_after(proxy, raw, (n * 77 % 200) / 400) for n, raw in enumerate(payments)))
    await _idle(proxy)
    told = await asyncio.gather(*(proxy.call(raw) for raw in payments))

    assert {one.status for one in told} <= {200, 201}
    assert {one.knowledge for one in told} == {"executed"}
    assert [one.json["merchant_order_no"] for one in told] == orders
    assert all(len(sandbox.ledger.charges(order)) == 1 for order in orders)
    assert {operation.state for operation in await proxy.operations()} == {State.EXECUTED}
    assert not proxy.app.now.driver.runs


async def test_hang_up_while_the_platform_works_changes_nothing(stage: Stage) -> None:
    go = asyncio.Event()
    platform = await stage.platform(ok(200))
    platform.plan(Script(Hold(go), *ok(201).steps))
    proxy = await stage.proxy(platform.url, retry=PATIENT)
    async with await RawCaller.dial(proxy.address) as caller:
        await caller.send(payment())
        await platform.got(1)
        caller.reset()
    go.set()

    settled = await proxy.until("K", lambda operation: operation.state is State.EXECUTED)

    assert (settled.attempt_count, settled.doubt) == (1, False)
    assert (await proxy.call(payment())).json["status"] == "succeeded"


async def test_hang_up_during_a_back_off_does_not_end_the_retries(stage: Stage) -> None:
    platform = await stage.platform(ok(201))
    platform.plan(refuses(503, "temporarily_unavailable"))
    proxy = await stage.proxy(platform.url, retry={"base": "1s", "cap": "1s"})
    async with await RawCaller.dial(proxy.address) as caller:
        await caller.send(payment())
        await platform.got(1)
        await proxy.until("K", lambda operation: operation.attempt_count == 1)
        caller.reset()

    settled = await proxy.until("K", lambda operation: operation.state is State.EXECUTED)

    assert (settled.attempt_count, platform.hits) == (2, 2)


async def test_hang_up_of_a_follower_leaves_the_leader_alone(stage: Stage) -> None:
    go = asyncio.Event()
    platform = await stage.platform(Script(Hold(go), *ok(201).steps))
    proxy = await stage.proxy(platform.url, retry=PATIENT)
    leading = asyncio.create_task(proxy.call(payment()))
    await platform.got(1)
    await _left_after(proxy, payment(), 0.05)
    go.set()

    assert (await leading).status == 201
    assert platform.hits == 1
    await _idle(proxy)


async def test_hang_up_before_the_body_is_whole_claims_nothing(stage: Stage) -> None:
    platform = await stage.platform(ok())
    proxy = await stage.proxy(platform.url)

    await _left_after(proxy, payment()[:-5], 0.02)

    told = await proxy.call(payment("K2"))
    assert (told.status, platform.hits) == (201, 1)
    assert [operation.key for operation in await proxy.operations()] == ["K2"]


async def test_caller_that_half_closes_is_still_answered(stage: Stage) -> None:
    platform = await stage.platform(ok())
    proxy = await stage.proxy(platform.url)
    async with await RawCaller.dial(proxy.address) as caller:
        await caller.send(payment())
        caller.half_close()
        assert Told.of(await caller.answer()).status == 201


# --- answered early (W1) -----------------------------------------------------------------------------------------


async def _answered_early(proxy: Proxy, told: Told) -> None:
    operation = await proxy.operation()
    assert (told.status, told.code, told.knowledge) == (504, "result_unknown", "unknown")
    assert told.header("retry-after") is not None
    assert told.header("location") == f"{proxy.app.now.settings.admin_url}/operations/{operation.id}"
    assert told.error["idempotency_key"] == "K"
    assert not told.reads_as_failed


async def test_w1_answer_within_answers_while_the_call_goes_on(stage: Stage) -> None:
    go = asyncio.Event()
    platform = await stage.platform(ok(200))
    platform.plan(Script(Hold(go), *ok(201).steps))
    proxy = await stage.proxy(platform.url, answer_within="200ms", retry=PATIENT)

    told = await proxy.call(payment())

    await _answered_early(proxy, told)
    repeat = asyncio.create_task(proxy.call(payment()))
    await until(lambda: len(proxy.app.now.driver.runs) == 2)
    go.set()
    again = await repeat
    assert (again.status, again.body, platform.hits) == (201, thing(), 1)
    assert again.replayed


@pytest.mark.parametrize("prefer", ["wait=1", "respond-async, wait=1", "WAIT=1", 'wait="1"'])
async def test_w1_callers_own_preference_counts(stage: Stage, prefer: str) -> None:
    platform = await stage.platform(Script(Hang()))
    proxy = await stage.proxy(platform.url, retry=PATIENT)
    began = asyncio.get_running_loop().time()

    told = await proxy.call(payment("K", 10_000, ("Prefer", prefer)))

    assert 0.9 < asyncio.get_running_loop().time() - began < 10, "the platform hangs for fifteen seconds"
    await _answered_early(proxy, told)


async def test_w1_the_smaller_of_both_wins(stage: Stage) -> None:
    platform = await stage.platform(Script(Hang()))
    proxy = await stage.proxy(platform.url, answer_within="200ms", retry=PATIENT)
    began = asyncio.get_running_loop().time()

    await _answered_early(proxy, await proxy.call(payment("K", 10_000, ("Prefer", "wait=14"))))

    assert asyncio.get_running_loop().time() - began < 10


async def test_w1_follower_gets_the_sooner_of_both_limits(stage: Stage) -> None:
    platform = await stage.platform(Script(Hang()))
    proxy = await stage.proxy(platform.url, retry=PATIENT, wait_timeout="13s")
    leading = asyncio.create_task(proxy.call(payment()))
    await platform.got(1)

    told = await proxy.call(payment("K", 10_000, ("Prefer", "wait=1")))

    assert (told.status, told.code) == (504, "result_unknown")
    leading.cancel()


async def test_w1_operation_answered_early_is_looked_up(stage: Stage) -> None:
    """Evidence then ends the call's retries, and its waiting callers get the object (U4)."""
    platform = await stage.platform(Script(Hang()))
    proxy = await stage.proxy(
        platform.url,
        answer_within="150ms",
        lookups=LOOKUPS,
        retry={"attempts": 3, "attempt_timeout": "3s"},
    )
    told = await proxy.call(payment())
    assert told.status == 504
    platform.usual = Script(Send(answer(200, b'{"data":[' + thing(version=2) + b"]}")))

    settled = await proxy.until("K", lambda operation: operation.state is State.EXECUTED)

    assert (settled.status, settled.settled_by) == ("succeeded", "lookup")
    await _idle(proxy)
    assert sum(seen.method == b"POST" for seen in platform.received) == 1, "no retry after the evidence"


async def test_o25_early_refusal_of_a_large_body_reaches_the_caller(stage: Stage) -> None:
    """The platform refuses from the head alone and does not read on."""
    go = asyncio.Event()
    body = b'{"error":{"code":"body_too_large","message":"no","retryable":false}}'
    refusal = answer(413, body, (b"Content-Type", b"application/json"), (b"Connection", b"close"))
    platform = await stage.platform(Script(Send(refusal), Hold(go), when=When.HEAD))
    proxy = await stage.proxy(platform.url, limits={"body": "8MiB"}, retry={"attempt_timeout": "3s"})

    told = await proxy.call(payment(padding="x" * 5_000_000))
    go.set()

    assert (told.status, told.body, told.knowledge) == (413, body, "not_executed")
    assert platform.hits == 1


async def test_o25_reset_instead_of_a_refusal_is_unknown(stage: Stage) -> None:
    platform = await stage.platform(Script(Reset(), when=When.HEAD))
    proxy = await stage.proxy(platform.url, limits={"body": "8MiB"}, retry={"attempts": 1})

    told = await proxy.call(payment(padding="x" * 5_000_000))

    assert (told.status, told.knowledge) == (504, "unknown")
