"""A store that fails before sending, between attempts, after sending; a locked and a damaged file (D3)."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import re
import sqlite3
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from proxy.core.model import State
from proxy.ports import Query
from tests.e2e.callers import call, confirm, lookup, payment
from tests.e2e.platforms import ok, refuses, thing
from tests.e2e.stage import LOOKUPS, Proxy, Stage, until
from tests.wire.peers import Hang, Hold, RawPlatform, Reset, Script

QUICK: dict[str, Any] = {"timeout": "1500ms", "lease": "4s"}


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Another process holds the file's write lock: no step of the ledger can be taken."""
    holder = sqlite3.connect(folder / "ledger.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        holder.execute("ROLLBACK")
        holder.close()


async def _recovered(proxy: Proxy) -> None:
    """The store takes writes again and nothing is owed to it."""

    async def paid() -> bool:
        return not len(proxy.app.now.driver.owed)

    await until(paid)


async def test_d3_reject_sends_nothing_and_says_unknown(stage: Stage) -> None:
    platform = await stage.platform(ok())
    proxy = await stage.proxy(platform.url, store=QUICK)
    with locked(stage.folder):
        told = await proxy.call(payment())

    assert (told.status, told.code) == (503, "store_unavailable")
    assert (told.knowledge, told.attempts) == ("unknown", 0)
    assert told.error["retryable"] is True
    assert told.header("retry-after") is not None
    assert platform.streams == []


async def test_d3_call_after_the_store_came_back_is_sent(stage: Stage) -> None:
    platform = await stage.platform(ok())
    proxy = await stage.proxy(platform.url, store=QUICK)
    with locked(stage.folder):
        await proxy.call(payment())
    await _recovered(proxy)

    told = await proxy.call(payment())

    assert (told.status, told.attempts, platform.hits) == (201, 1, 1)


async def test_d3_reads_pass_while_the_store_is_down(stage: Stage) -> None:
    platform = await stage.platform(ok(200))
    proxy = await stage.proxy(platform.url, store=QUICK)
    with locked(stage.folder):
        assert (await proxy.call(lookup("x"))).status == 200


async def test_d3_store_down_never_says_not_executed_of_an_operation_in_doubt(stage: Stage) -> None:
    """Told "not executed" about a payment that timed out before, a client would take the money elsewhere."""
    platform = await stage.platform(Script(Reset()))
    proxy = await stage.proxy(platform.url, store=QUICK, retry={"attempts": 1})
    await proxy.call(payment())
    with locked(stage.folder):
        told = await proxy.call(payment())

    assert (told.status, told.knowledge) == (503, "unknown")
    assert not told.reads_as_failed


async def test_d3_store_that_fails_between_attempts_starts_no_other(stage: Stage) -> None:
    go = asyncio.Event()
    platform = await stage.platform(ok())
    platform.plan(Script(Hold(go), Reset()))
    proxy = await stage.proxy(platform.url, store=QUICK, retry={"attempt_timeout": "10s"})
    calling = asyncio.create_task(proxy.call(payment()))
    await platform.got(1)
    with locked(stage.folder):
        go.set()
        told = await calling

    assert (told.status, told.code, told.knowledge) == (504, "result_unknown", "unknown")
    assert platform.hits == 1
    settled = await proxy.until("K", lambda operation: operation.state is State.UNKNOWN)
    assert settled.doubt


async def test_d3_refusal_whose_record_fails_is_told_truthfully(stage: Stage) -> None:
    go = asyncio.Event()
    platform = await stage.platform(Script(Hold(go), *refuses(422, "validation_error").steps))
    proxy = await stage.proxy(platform.url, store=QUICK, retry={"attempt_timeout": "10s"})
    calling = asyncio.create_task(proxy.call(payment()))
    await platform.got(1)
    with locked(stage.folder):
        go.set()
        told = await calling

    assert (told.status, told.knowledge) == (422, "not_executed")


async def test_d3_answer_is_delivered_though_it_can_not_be_recorded(stage: Stage) -> None:
    go = asyncio.Event()
    platform = await stage.platform(Script(Hold(go), *ok(version=1).steps))
    proxy = await stage.proxy(platform.url, store=QUICK, retry={"attempt_timeout": "10s"})
    calling = asyncio.create_task(proxy.call(payment()))
    await platform.got(1)
    with locked(stage.folder):
        go.set()
        told = await calling

        assert (told.status, told.body, told.knowledge) == (201, thing(version=1), "executed")
    settled = await proxy.until("K", lambda operation: operation.state is State.EXECUTED)
    assert settled.status == "succeeded"


@pytest.mark.slow
async def test_d3_answer_that_could_never_be_recorded_is_unknown_and_looked_up_after_a_crash(
    stage: Stage,
) -> None:
    go = asyncio.Event()
    sandbox_like = await stage.platform(ok(200, version=1))
    sandbox_like.plan(Script(Hold(go), *ok(version=1).steps))
    first = await stage.process(sandbox_like.url, store=QUICK, retry={"attempt_timeout": "10s"})
    calling = asyncio.create_task(first.call(payment()))
    await sandbox_like.got(1)
    with locked(stage.folder):
        go.set()
        assert (await calling).status == 201
        await first.kill()
    sandbox_like.usual = ok(200, version=1)

    second = await stage.process(sandbox_like.url, store=QUICK)
    told = await second.call(payment())

    assert (told.status, told.knowledge) == (200, "executed")
    assert {tuple(seen.header(b"idempotency-key")) for seen in sandbox_like.received} == {(b"K",)}


# --- forward (D3) ------------------------------------------------------------------------------------------------

FORWARD: dict[str, Any] = {"store": QUICK | {"on_failure": "forward"}}


async def test_d3_forward_sends_once_and_writes_it_later(stage: Stage) -> None:
    platform = await stage.platform(ok())
    proxy = await stage.proxy(platform.url, **FORWARD)
    with locked(stage.folder):
        told = await proxy.call(payment())
        assert (told.status, told.knowledge, platform.hits) == (201, "executed", 1)

    written = await proxy.until("K", lambda operation: operation.state is State.EXECUTED)
    assert written.subject == "order:ORDER-T-001"
    assert (await proxy.call(payment("K", 12_000))).code == "idempotency_conflict"


async def test_d3_forward_in_doubt_is_not_repeated_and_guards_its_order_afterwards(stage: Stage) -> None:
    platform = await stage.platform(Script(Reset()))
    proxy = await stage.proxy(platform.url, **FORWARD)
    with locked(stage.folder):
        told = await proxy.call(payment("K1"))
        assert (told.status, told.code, told.knowledge) == (504, "result_unknown", "unknown")
        assert platform.hits == 1

    await proxy.until("K1", lambda operation: operation.state is State.UNKNOWN)
    blocked = await proxy.call(payment("K2"))
    assert (blocked.status, blocked.code, platform.hits) == (409, "result_unknown", 1)


async def test_d3_forward_before_a_reload_guards_its_order_after_it(stage: Stage) -> None:
    """O4: what is owed to the ledger is the process's, and written before its order is claimed again."""
    platform = await stage.platform(Script(Reset()))
    proxy = await stage.proxy(platform.url, **FORWARD)
    with locked(stage.folder):
        await proxy.call(payment("K1"))
        await proxy.app.reload(proxy.app.now.settings)

    blocked = await proxy.call(payment("K2"))

    assert (blocked.status, blocked.code, platform.hits) == (409, "result_unknown", 1)


async def test_d3_drain_goes_on_trying_to_write_what_was_forwarded(stage: Stage) -> None:
    """O1, O3: a drain loses nothing that its time is enough for."""
    platform = await stage.platform(ok())
    proxy = await stage.proxy(platform.url, drain_timeout="20s", **FORWARD)
    with locked(stage.folder):
        assert (await proxy.call(payment())).knowledge == "executed"
        draining = asyncio.create_task(proxy.app.drain())
        await until(lambda: _was_refused(proxy, times=4))
        assert not draining.done()

    await draining

    assert len(proxy.app.owed) == 0
    (written,) = (await proxy.app.store.find(Query())).operations
    assert written.state is State.EXECUTED


async def _was_refused(proxy: Proxy, *, times: int) -> bool:
    """The store did not take what is owed so many times: from the loop that pays it, and from the drain."""
    admin = proxy.app.admin
    assert admin is not None
    place = admin.url.removeprefix("http://")
    page = (await call(place, f"GET /metrics HTTP/1.1\r\nHost: {place}\r\n\r\n".encode())).body
    found = re.search(rb'safepost_store_errors_total\{operation="admit"\} (\d+)', page)
    return found is not None and int(found[1]) >= times


async def test_d3_forward_on_the_wire_still_is_doubt_once_the_store_is_back(stage: Stage) -> None:
    """H8: the process knows of what it sent, before it knows how that ended."""
    go = asyncio.Event()
    platform = await stage.platform(refuses(422, "validation_error"))
    platform.plan(Script(Hold(go), Reset()))
    proxy = await stage.proxy(platform.url, retry={"attempt_timeout": "20s"}, **FORWARD)
    with locked(stage.folder):
        forwarded = asyncio.create_task(proxy.call(payment("K1")))
        await platform.got(1)

    refused = await proxy.call(payment("K1"))
    blocked = await proxy.call(payment("K2"))

    assert not forwarded.done()
    assert (refused.status, refused.code, refused.knowledge) == (504, "result_unknown", "unknown")
    assert (blocked.status, blocked.code, platform.hits) == (409, "result_unknown", 2)
    go.set()
    assert (await forwarded).knowledge == "unknown"


async def test_d3_forward_sends_nothing_that_it_could_not_keep_in_memory(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.owed.OWED_MAX", 1)
    platform = await stage.platform(ok())
    proxy = await stage.proxy(platform.url, **FORWARD)
    with locked(stage.folder):
        sent = [await proxy.call(payment(f"K{n}", order=f"O-{n}")) for n in range(3)]

    assert [told.status for told in sent] == [201, 503, 503]
    assert platform.hits == 1
    await proxy.until("K0", lambda operation: operation.state is State.EXECUTED)


async def test_d3_forward_means_reject_where_only_the_key_protects(stage: Stage) -> None:
    platform = await stage.platform(ok(200))
    proxy = await stage.proxy(platform.url, **FORWARD)
    with locked(stage.folder):
        told = await proxy.call(confirm("K"))

    assert (told.status, told.code) == (503, "store_unavailable")
    assert platform.streams == []


# --- SQLite's own troubles ---------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _taking_turns(folder: Path) -> AsyncIterator[None]:
    """An outside program that holds the file for half a second, again and again."""
    stopping = asyncio.Event()

    async def hold() -> None:
        holder = sqlite3.connect(folder / "ledger.db", isolation_level=None, check_same_thread=False)
        try:
            while not stopping.is_set():
                holder.execute("BEGIN IMMEDIATE")
                await asyncio.sleep(0.5)
                holder.execute("COMMIT")
                await asyncio.sleep(0.2)
        except sqlite3.OperationalError as error:
            assert "locked" in str(error)
        finally:
            holder.close()

    holding = asyncio.create_task(hold())
    yield
    stopping.set()
    await holding


@pytest.mark.slow
async def test_o56_file_that_others_lock_delays_payments_and_fails_none(stage: Stage) -> None:
    platform = await stage.platform(ok())
    process = await stage.process(platform.url, store={"timeout": "30s", "lease": "10s"}, wait_timeout="30s")
    numbers = itertools.count()

    async def service() -> None:
        while (n := next(numbers)) < 600:
            told = await process.call(payment(f"K{n}", order=f"O-{n}"))
            assert told.status == 201, told.body

    async with _taking_turns(stage.folder):
        await asyncio.gather(*(service() for _ in range(64)))

    assert platform.hits == 600


async def test_o56_file_that_is_locked_blocks_no_loop(stage: Stage) -> None:
    """While a payment waits for the file, everything that needs none is answered."""
    platform = await stage.platform(ok())
    proxy = await stage.proxy(platform.url, store={"timeout": "60s", "lease": "90s"}, wait_timeout="200s")
    await proxy.call(payment("K1", order="O-1"))
    with locked(stage.folder):
        waiting = asyncio.create_task(proxy.call(payment("K2", order="O-2")))
        await until(lambda: len(proxy.app.now.driver.runs) == 1)
        assert proxy.app.admin is not None
        admin = proxy.app.admin.url.removeprefix("http://")
        assert (await call(admin, f"GET /healthz HTTP/1.1\r\nHost: {admin}\r\n\r\n".encode())).status == 200
        assert (await proxy.call(lookup("x"))).status == 201
        assert not waiting.done()

    assert (await waiting).status == 201


@pytest.mark.slow
async def test_o58_damaged_file_is_named_and_nothing_is_sent(stage: Stage) -> None:
    platform = await stage.platform(ok())
    first = await stage.process(platform.url)
    for n in range(60):
        await first.call(payment(f"K{n}", order=f"O-{n}"))
    hits = platform.hits
    await first.kill()
    file = stage.folder / "ledger.db"
    with contextlib.closing(sqlite3.connect(file)) as whole:
        whole.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    size = file.stat().st_size
    with file.open("r+b") as damaged:
        damaged.seek(0)
        damaged.write(os.urandom(100))
        damaged.seek(size // 2)
        damaged.write(os.urandom(4096))

    process = await stage.process(platform.url, until_up=False)
    code = await process.ended()

    assert code != 0
    said = "\n".join(process.said)
    assert "ledger.db" in said
    assert "Traceback" not in said
    assert file.stat().st_size == size, "the damaged file is left for people to look at"
    assert platform.hits == hits


@pytest.mark.slow
async def test_file_in_a_folder_that_is_not_there_is_one_clear_line(stage: Stage) -> None:
    store = {"url": "sqlite:/nowhere/at/all.db"}
    process = await stage.process("http://127.0.0.1:1", store=store, until_up=False)

    assert await process.ended() != 0
    assert any("/nowhere/at/all.db" in line for line in process.said)
    assert not any("Traceback" in line for line in process.said)


async def test_leader_whose_store_is_locked_past_its_lease_claims_nothing(stage: Stage) -> None:
    """R1: no attempt starts under a lease that may be over."""
    go = asyncio.Event()
    platform = await stage.platform(ok(200))
    platform.plan(Script(Hold(go), Reset()))
    proxy = await stage.proxy(
        platform.url, store=QUICK, retry={"attempt_timeout": "15s", "deadline": "30s"}, lookups=LOOKUPS
    )
    calling = asyncio.create_task(proxy.call(payment()))
    await platform.got(1)
    with locked(stage.folder):
        await asyncio.sleep(4.3)  # longer than the lease
        go.set()
        told = await calling

    assert (told.code, told.knowledge) == ("result_unknown", "unknown")
    assert sum(seen.method == b"POST" for seen in platform.received) == 1


async def test_hang_with_a_locked_store_still_answers_within_the_deadline(stage: Stage) -> None:
    platform: RawPlatform = await stage.platform(Script(Hang()))
    proxy = await stage.proxy(platform.url, store=QUICK, retry={"attempt_timeout": "2s"})
    calling = asyncio.create_task(proxy.call(payment()))
    await platform.got(1)
    with locked(stage.folder):
        told = await asyncio.wait_for(calling, 20)

    assert (told.code, told.knowledge) == ("result_unknown", "unknown")
