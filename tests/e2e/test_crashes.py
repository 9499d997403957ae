"""SIGKILL at any instant: no order is charged twice, every doubt is seen and resolved (U6, O1; O-11)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from proxy.core.model import State
from tests.e2e.callers import Told, payment
from tests.e2e.platforms import ok, says, thing
from tests.e2e.processes import Process
from tests.e2e.stage import LOOKUPS, Stage, until
from tests.wire.peers import Hang, Hold, Script

pytestmark = pytest.mark.slow


async def _stream(process: Process, orders: list[str]) -> dict[str, Told]:
    """Payments, eight at a time, until the process is gone; what was answered."""
    told: dict[str, Told] = {}
    left = iter(orders)

    async def service() -> None:
        for order in left:
            try:
                told[order] = await process.call(payment(f"payment.create:{order}:1", order=order))
            except (OSError, EOFError):
                return

    await asyncio.gather(*(service() for _ in range(8)))
    return told


@pytest.mark.parametrize("after", [20, 60, 150])
async def test_kill_in_a_stream_of_payments_charges_no_order_twice(stage: Stage, after: int) -> None:
    sandbox = await stage.sandbox()
    sandbox.add_fault({"fault": "delay", "times": "always", "seconds": 0.05})
    orders = [f"ORDER-{n}" for n in range(400)]
    lookups = LOOKUPS | {"schedule": ["200ms", "500ms", "1s", "2s"]}
    given: dict[str, Any] = {
        "lookups": lookups,
        "retry": {"attempt_timeout": "3s", "deadline": "20s"},
        "store": {"lease": "2s"},
    }
    first = await stage.process(sandbox.url, **given)
    streaming = asyncio.create_task(_stream(first, orders))
    await until(lambda: len(sandbox.requests) >= after)
    await first.kill()
    told = await streaming

    assert {one.knowledge for one in told.values()} == {"executed"}
    assert len(told) < len(orders), "it was to be killed in between"
    second = await stage.process(sandbox.url, **given)

    async def resolved() -> bool:
        """What arrived is known; what was claimed and never left is absent, which is no proof."""
        states = {one["subject"]: one["state"] for one in await second.operations()}
        assert {f"order:{seen.order}" for seen in sandbox.requests.seen if seen.order} <= states.keys()
        charged = {f"order:{entry.order}" for entry in sandbox.ledger.charges()}
        return all(
            state == ("executed" if subject in charged else "absent") for subject, state in states.items()
        )

    await until(resolved, within_s=60)
    rest = await _stream(second, orders[: len(told) + 40])
    assert all(one.status in (200, 201) for one in rest.values())
    charged = [len(sandbox.ledger.charges(order)) for order in orders[: len(told) + 40]]
    assert set(charged) == {1}


async def test_o11_repeat_after_a_crash_waits_at_most_for_the_lease(stage: Stage) -> None:
    platform = await stage.platform(ok(200))
    platform.plan(Script(Hang()))
    slow: dict[str, Any] = {
        "retry": {"attempt_timeout": "20s", "deadline": "60s"},
        "store": {"lease": "1500ms"},
    }
    first = await stage.process(platform.url, wait_timeout="15s", **slow)
    calling = asyncio.create_task(first.call(payment()))
    await platform.got(1)
    await first.kill()
    with pytest.raises((EOFError, OSError)):
        await calling
    second = await stage.process(platform.url, wait_timeout="15s", **slow)
    loop = asyncio.get_running_loop()
    began = loop.time()

    told = await second.call(payment())

    assert (told.status, told.knowledge, told.attempts) == (200, "executed", 2)
    assert loop.time() - began < 12, "the dead leader's attempt would have had twenty seconds"
    assert [seen.header(b"idempotency-key") for seen in platform.received] == [[b"K"], [b"K"]]


async def test_o11_doubt_after_a_crash_is_resolved_without_a_caller(stage: Stage) -> None:
    platform = await stage.platform(says(200, b'{"data":[' + thing(version=1) + b"]}"))
    platform.plan(Script(Hang()))
    first = await stage.process(
        platform.url, store={"lease": "2s"}, retry={"attempt_timeout": "20s", "deadline": "60s"}
    )
    calling = asyncio.create_task(first.call(payment()))
    await platform.got(1)
    await first.kill()
    with pytest.raises((EOFError, OSError)):
        await calling

    second = await stage.process(platform.url, lookups=LOOKUPS)
    seen_unknown: list[str] = []

    async def known() -> bool:
        (found,) = await second.operations()
        seen_unknown.append(found["knowledge"])
        return bool(found["knowledge"] == "executed")

    await until(known, within_s=60)
    assert seen_unknown[0] in ("unknown", "executed")
    assert [seen.method for seen in platform.received].count(b"POST") == 1


async def test_kill_right_after_the_claim_leaves_no_payment_lost(stage: Stage) -> None:
    """The claim is durable before a byte leaves: whatever arrived is in the ledger of the next process."""
    platform = await stage.platform(Script(Hang()))
    first = await stage.process(platform.url, retry={"attempt_timeout": "20s", "deadline": "60s"})
    calls = [asyncio.create_task(first.call(payment(f"K{n}", order=f"O-{n}"))) for n in range(40)]
    await platform.got(1)
    await first.kill()
    arrived = {seen.header(b"idempotency-key")[0].decode() for seen in platform.received}
    await asyncio.gather(*calls, return_exceptions=True)

    second = await stage.process(platform.url)

    assert arrived <= {one["key"] for one in await second.operations()}


async def test_two_processes_on_one_file_share_keys_and_guards(stage: Stage) -> None:
    """P4 on one host: thirty calls over two processes are one hit."""
    sandbox = await stage.sandbox()
    sandbox.add_fault({"fault": "delay", "seconds": 0.5})
    given: dict[str, Any] = {"retry": {"attempt_timeout": "5s", "deadline": "20s"}}
    processes = [await stage.process(sandbox.url, name=name, **given) for name in ("a", "b")]

    told = await asyncio.gather(*(processes[n % 2].call(payment()) for n in range(30)))

    assert {one.status for one in told} == {201}
    assert len({one.body for one in told}) == 1
    assert len(sandbox.requests) == 1
    assert len(sandbox.ledger.charges()) == 1
    assert (await processes[1].call(payment("K", 12_000))).code == "idempotency_conflict"


async def test_unknown_order_is_held_back_in_the_other_process(stage: Stage) -> None:
    platform = await stage.platform(Script(Hang()))
    given: dict[str, Any] = {"retry": {"attempts": 1, "attempt_timeout": "1s"}}
    first = await stage.process(platform.url, name="a", **given)
    second = await stage.process(platform.url, name="b", **given)
    await first.call(payment("K1"))

    told = await second.call(payment("K2"))

    assert (told.status, told.code, told.error["idempotency_key"]) == (409, "result_unknown", "K1")


async def test_o01_lease_shorter_than_the_call_is_renewed(stage: Stage) -> None:
    """The other process must not take over from a living leader."""
    platform = await stage.platform(ok())
    go = asyncio.Event()
    platform.plan(Script(Hold(go), *ok().steps))
    given: dict[str, Any] = {
        "retry": {"attempt_timeout": "20s", "deadline": "30s"},
        "store": {"lease": "2s"},
    }
    first = await stage.process(platform.url, name="a", wait_timeout="25s", **given)
    second = await stage.process(platform.url, name="b", wait_timeout="25s", **given)
    leading = asyncio.create_task(first.call(payment()))
    await platform.got(1)
    following = [asyncio.create_task(second.call(payment())) for _ in range(5)]
    await asyncio.sleep(5.0)  # two leases and a half
    go.set()

    told = await asyncio.gather(leading, *following)

    assert {one.status for one in told} == {201}
    assert platform.hits == 1


async def test_leader_that_dies_is_replaced_by_a_waiter(stage: Stage) -> None:
    platform = await stage.platform(ok(200))
    platform.plan(Script(Hang()))
    given: dict[str, Any] = {
        "retry": {"attempt_timeout": "10s", "deadline": "30s"},
        "store": {"lease": "2s"},
    }
    first = await stage.process(platform.url, name="a", wait_timeout="25s", **given)
    second = await stage.process(platform.url, name="b", wait_timeout="25s", **given)
    leading = asyncio.create_task(first.call(payment()))
    await platform.got(1)
    following = [asyncio.create_task(second.call(payment())) for _ in range(5)]
    await asyncio.sleep(0.3)
    await first.kill()
    with pytest.raises((EOFError, OSError)):
        await leading

    told = await asyncio.gather(*following)

    assert {(one.status, one.knowledge) for one in told} == {(200, "executed")}
    assert platform.hits == 2
    assert {tuple(seen.header(b"idempotency-key")) for seen in platform.received} == {(b"K",)}


async def test_crash_between_settling_and_the_answer_is_repeated_truthfully(stage: Stage) -> None:
    sandbox = await stage.sandbox()
    first = await stage.process(sandbox.url)
    assert (await first.call(payment())).status == 201
    await first.kill()
    second = await stage.process(sandbox.url)

    told = await second.call(payment())

    assert (told.status, told.json["status"], told.knowledge) == (200, "succeeded", "executed")
    assert len(sandbox.ledger.charges()) == 1
    assert (await second.operations())[0]["state"] == State.EXECUTED
