"""Leaders that are slow, frozen or forgotten, before two sidecars on one Redis (P4, P5; O-01, O-02)."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import Any

import pytest

from tests.e2e.callers import payment
from tests.e2e.platforms import ok, refuses, thing
from tests.e2e.processes import Process
from tests.e2e.stage import Proxy, Stage, until
from tests.redis.crowd import house, patient, under_way, with_store
from tests.redis.lines import SlowLine
from tests.stores.redis_server import Server
from tests.wire.peers import Hang, Hold, Mark, RawPlatform, Script

PAST_THE_LEASE_S = 30.0
"""The lease is three seconds; a follower that nobody woke would wait for forty."""


async def _state(sidecar: Process) -> tuple[str, int]:
    """The one operation as the ledger has it: its state, and how many attempts it had."""
    (found,) = await sidecar.operations()
    return found["state"], found["attempt_count"]


async def _taken_over(zombie: Process, heir: Process, platform: RawPlatform, *, first: Script) -> Any:
    """The first sidecar leads, is frozen with its attempt on the wire, and its key is sent by the other.

    Returns: what the zombie's caller and the heir's will be told, as tasks.
    """
    platform.plan(first)
    leading = asyncio.create_task(patient(zombie.address, payment()))
    await platform.got(1)
    zombie.signal(signal.SIGSTOP)
    following = asyncio.create_task(patient(heir.address, payment()))
    await platform.got(2)
    return leading, following


@pytest.mark.slow
async def test_o01_smallest_lease_and_an_answer_after_twelve_seconds_are_one_hit(
    stage: Stage, server: Server
) -> None:
    go = asyncio.Event()
    platform = await stage.platform()
    platform.plan(Script(Hold(go), *ok().steps))
    store = with_store(server.url, lease="500ms")
    first, second = await house(stage, platform.url, server.url, count=2, **store)
    loop = asyncio.get_running_loop()
    began = loop.time()
    calls = [asyncio.create_task(patient(first.address, payment()))]
    await platform.got(1)

    for at_s in (4.0, 7.0, 10.0):
        await asyncio.sleep(max(0.0, began + at_s - loop.time()))
        calls.append(asyncio.create_task(patient(second.address, payment())))
    await asyncio.sleep(max(0.0, began + 12.0 - loop.time()))
    go.set()

    told = await asyncio.gather(*calls)

    assert {(one.status, one.body) for one in told} == {(201, thing())}
    assert platform.hits == 1


@pytest.mark.slow
async def test_zombies_late_unknown_is_refused_by_its_fence(stage: Stage, server: Server) -> None:
    platform = await stage.platform(ok(version=2))
    store = with_store(server.url, lease="1s")
    one_attempt = {"retry": {"attempts": 1, "attempt_timeout": "20s", "deadline": "50s"}}
    zombie, heir = await house(stage, platform.url, server.url, count=2, **(store | one_attempt))
    broken = asyncio.Event()
    leading, following = await _taken_over(zombie, heir, platform, first=Script(Hold(broken)))
    assert (await following).status == 201
    platform.streams[0].reset()  # the zombie's attempt is lost while it sleeps
    zombie.signal(signal.SIGCONT)

    told = await leading

    assert not told.reads_as_failed
    assert await _state(heir) == ("executed", 2)
    assert platform.hits == 2
    assert {tuple(seen.header(b"idempotency-key")) for seen in platform.received} == {(b"K",)}


@pytest.mark.slow
async def test_zombies_late_refusal_does_not_end_the_run_of_its_heir(stage: Stage, server: Server) -> None:
    """The platform refuses the first attempt and works on the second: nobody may take the key for free."""
    refused, go, refusal_sent = asyncio.Event(), asyncio.Event(), asyncio.Event()
    platform = await stage.platform()
    first = Script(Hold(refused), *refuses(422, "validation_error").steps, Mark(refusal_sent))
    zombie, heir = await house(stage, platform.url, server.url, count=2, **with_store(server.url, lease="1s"))
    platform.plan(first, Script(Hold(go), *ok().steps))
    leading = asyncio.create_task(patient(zombie.address, payment()))
    await platform.got(1)
    zombie.signal(signal.SIGSTOP)
    following = asyncio.create_task(patient(heir.address, payment()))
    await platform.got(2)
    refused.set()
    await refusal_sent.wait()
    zombie.signal(signal.SIGCONT)
    await asyncio.wait([leading], timeout=2.0)
    state = await _state(heir)
    conflict = await heir.call(payment("K", 12_000))
    go.set()

    told = await following
    late = await leading

    assert state == ("in_flight", 2)
    assert conflict.code == "idempotency_conflict"
    assert (told.status, told.knowledge) == (201, "executed")
    assert not late.reads_as_failed
    assert late.knowledge != "not_executed"
    assert platform.hits == 2
    assert await _state(heir) == ("executed", 2)


@pytest.mark.slow
async def test_zombies_late_definite_answer_is_kept(stage: Stage, server: Server) -> None:
    """Its heir ended unknown; what the zombie brings is true, whoever brings it."""
    go, sent = asyncio.Event(), asyncio.Event()
    platform = await stage.platform(Script(Hang()))
    store = with_store(server.url, lease="1s")
    patience = {"retry": {"attempts": 1, "attempt_timeout": "25s", "deadline": "50s"}}
    hasty = {"retry": {"attempts": 1, "attempt_timeout": "2s", "deadline": "50s"}}
    zombie = await stage.process(platform.url, name="zombie", **(store | patience))
    heir = await stage.process(platform.url, name="heir", **(store | hasty))
    first = Script(Hold(go), *ok(version=1).steps, Mark(sent))
    leading, following = await _taken_over(zombie, heir, platform, first=first)
    assert (await following).code == "result_unknown"
    assert await _state(heir) == ("unknown", 2)
    go.set()
    await sent.wait()
    zombie.signal(signal.SIGCONT)

    told = await leading

    assert (told.status, told.knowledge) == (201, "executed")
    assert await _state(heir) == ("executed", 2)
    assert platform.hits == 2


async def _record_gone(server: Server) -> None:
    """Somebody from outside deletes the record, which is the lock: no lock can be taken from it otherwise."""
    with contextlib.closing(server.client()) as client:
        (name,) = client.keys("safepost:{*}:o:*")
        assert client.delete(name) == 1


@pytest.mark.slow
async def test_o02_record_deleted_from_outside_never_makes_a_third_hit(stage: Stage, server: Server) -> None:
    """A's renewal writes its record anew, or B's claim comes first and A leaves it alone."""
    go = asyncio.Event()
    platform = await stage.platform()
    platform.plan(*(Script(Hold(go), *ok().steps) for _ in range(3)))
    store = with_store(server.url, lease="1500ms")
    a, b, d = await house(stage, platform.url, server.url, count=3, **store)
    calls = [asyncio.create_task(patient(a.address, payment()))]
    await platform.got(1)
    await _record_gone(server)
    calls.append(asyncio.create_task(patient(b.address, payment())))

    async def both_in() -> bool:
        return await under_way([a, b]) == 2

    await until(both_in)
    calls.append(asyncio.create_task(patient(d.address, payment())))

    async def all_in() -> bool:
        return await under_way([a, b, d]) == 3

    await until(all_in)
    hits = platform.hits
    go.set()

    told = await asyncio.gather(*calls)

    assert {(one.status, one.body) for one in told} == {(201, thing())}
    assert hits <= 2
    assert platform.hits <= 2
    assert {tuple(seen.header(b"idempotency-key")) for seen in platform.received} == {(b"K",)}
    assert (await _state(d))[0] == "executed"


def _followers(proxy: Proxy) -> int:
    """Calls that know which run they wait for."""
    return sum(run.guard.operation is not None for run in proxy.app.now.driver.runs.values())


async def test_follower_whose_run_is_gone_is_judged_again(stage: Stage, forgetful: Server) -> None:
    """Its leader died and the store forgot it: the follower neither waits for ever nor makes an answer up."""
    platform = await stage.platform(ok())
    platform.plan(Script(Hang()))
    leader = await stage.process(platform.url, name="leader", **with_store(forgetful.url))
    follower = await stage.proxy(platform.url, **with_store(forgetful.url))
    leading = asyncio.create_task(patient(leader.address, payment()))
    await platform.got(1)
    following = asyncio.create_task(patient(follower.address, payment()))
    await until(lambda: _followers(follower) == 1)
    await leader.kill()
    with pytest.raises((EOFError, OSError)):
        await leading
    await _record_gone(forgetful)

    told = await asyncio.wait_for(following, PAST_THE_LEASE_S)

    assert (told.status, told.knowledge, platform.hits) == (201, "executed", 2)
    assert {tuple(seen.header(b"idempotency-key")) for seen in platform.received} == {(b"K",)}


@pytest.mark.parametrize("n", range(3))
async def test_follower_never_gets_another_submissions_answer(stage: Stage, server: Server, n: int) -> None:
    """The key is released and taken at once for another amount, before the followers have heard."""
    go = asyncio.Event()
    platform = await stage.platform(ok())
    platform.plan(Script(Hold(go), *refuses(422, "validation_error").steps))
    async with SlowLine(server.port, 0.05 * n) as line, contextlib.AsyncExitStack() as stack:
        near = await stage.proxy(platform.url, **with_store(server.url))
        far = await stage.proxy(platform.url, **with_store(line.url))
        stack.push_async_callback(far.app.stop)
        leading = asyncio.create_task(near.call(payment()))
        await platform.got(1)
        following = [asyncio.create_task(far.call(payment())) for _ in range(8)]
        await until(lambda: _followers(far) == 8)
        go.set()
        assert (await leading).status == 422
        other = await near.call(payment("K", 12_000))

        told = await asyncio.gather(*following)

    assert (other.status, platform.hits) == (201, 2)
    assert {(one.status, one.code) for one in told} <= {
        (422, "validation_error"),
        (409, "idempotency_conflict"),
    }
