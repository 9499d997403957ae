"""A process in operation: drained, reloaded, its clock stepped, its environment hostile (O1, O3, O4, H2)."""

from __future__ import annotations

import asyncio
import resource
import shutil
import signal
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from proxy import app as app_module
from proxy.app import ANSWER_GRACE_MS, DRAIN_GRACE_MS
from tests.e2e.callers import Told, lookup, payment, post
from tests.e2e.platforms import ok, page, refuses
from tests.e2e.processes import Process
from tests.e2e.stage import LOOKUPS, Stage, until
from tests.wire.peers import Hang, Hold, RawCaller, Script

pytestmark = pytest.mark.slow

LONG: dict[str, Any] = {"attempt_timeout": "10s", "deadline": "60s"}


# --- drain (O3, O-63) --------------------------------------------------------------------------------------------


async def test_o63_sigterm_lets_calls_in_flight_end_and_takes_no_new_ones(stage: Stage) -> None:
    go = asyncio.Event()
    platform = await stage.platform(Script(Hold(go), *ok().steps))
    process = await stage.process(platform.url, retry=LONG, drain_timeout="10s")
    calls = [asyncio.create_task(process.call(payment(f"K{n}", order=f"O-{n}"))) for n in range(10)]
    async with await RawCaller.dial(process.address) as idle, await RawCaller.dial(process.address) as busy:
        await busy.send(lookup("x"))
        await platform.got(11)
        process.signal(signal.SIGTERM)
        await until(lambda: _refuses(process))
        await _is_refused(idle, payment("K-late", order="O-late"))
        go.set()
        told = await asyncio.gather(*calls)

        assert {(one.status, one.knowledge) for one in told} == {(201, "executed")}
        assert (await busy.answer()).status == 201
    assert await process.ended() == 0
    assert platform.hits == 11


async def _refuses(process: Process) -> bool:
    """Whether new connections are refused."""
    try:
        async with await RawCaller.dial(process.address):
            return False
    except OSError:
        return True


async def _is_refused(caller: RawCaller, raw: bytes) -> None:
    """An idle connection is closed, or its call answered 503 and closed."""
    try:
        await caller.send(raw)
        told = Told.of(await caller.answer())
    except (EOFError, OSError):
        return
    assert (told.status, told.code, told.knowledge) == (503, "draining", "unknown")
    assert told.header("connection") == "close"


async def test_drain_on_a_full_disk_ends_well_and_loses_nothing(stage: Stage) -> None:
    """The last checkpoint finds no room; all that was committed stays in the log, for the next start."""
    platform = await stage.platform(ok())
    first = await stage.process(platform.url)
    assert (await first.call(payment())).status == 201
    resource.prlimit(first.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))

    first.signal(signal.SIGTERM)

    assert await first.ended() == 0
    assert not [line for line in first.said if "Traceback" in line]
    second = await stage.process(platform.url)
    assert [one["knowledge"] for one in await second.operations()] == ["executed"]


async def test_drain_sends_no_call_whose_body_came_too_late_to_be_waited_for(stage: Stage) -> None:
    """O3: it saw no run, and would have cut the attempt off long before its time is up."""
    platform = await stage.platform(Script(Hang()))
    proxy = await stage.proxy(platform.url, drain_timeout="30s")
    raw = payment()
    async with await RawCaller.dial(proxy.address) as caller:
        await caller.send(raw[:-1])
        await until(lambda: proxy.app.now.under_way == 1)
        draining = asyncio.create_task(proxy.app.drain())
        await until(lambda: all(listener.is_draining for listener in proxy.app.listeners))
        await caller.send(raw[-1:])
        told = Told.of(await caller.answer())
    await draining

    assert (told.status, told.code, platform.hits) == (503, "draining", 0)


async def test_drain_gives_a_call_on_no_guarded_route_its_time(stage: Stage) -> None:
    """O3: cut after two seconds, a capture was in doubt, and nobody would have looked it up."""
    go = asyncio.Event()
    platform = await stage.platform(Script(Hold(go), *ok(201).steps))
    proxy = await stage.proxy(platform.url, drain_timeout="30s", retry=LONG)
    calling = asyncio.create_task(proxy.call(post("/v1/payments/pay_t1/capture", {"amount": 1})))
    await platform.got(1)
    draining = asyncio.create_task(proxy.app.drain())
    loop = asyncio.get_running_loop()
    loop.call_later((DRAIN_GRACE_MS + ANSWER_GRACE_MS) / 1000 + 0.5, go.set)

    assert (await calling).status == 201
    await draining


@pytest.mark.parametrize(
    ("raw", "status", "retryable"),
    [
        (post("/v1/payments/pay_t1/capture", {"amount": 1}), 504, False),
        (post("/v1/payments/pay_t1/capture", {"amount": 1}, key="K"), 504, True),
        (lookup("O"), 503, True),
    ],
    ids=["no key", "a key", "a read"],
)
async def test_call_on_no_guarded_route_that_a_drain_cuts_is_retryable_only_where_that_acts_once(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, raw: bytes, status: int, retryable: bool
) -> None:
    """E2: obeyed by a caller without a key, `retryable: true` could pay twice."""
    platform = await stage.platform(Script(Hang()))
    proxy = await stage.proxy(platform.url, retry=LONG, drain_timeout="1ms")
    calling = asyncio.create_task(proxy.call(raw))
    await platform.got(1)
    monkeypatch.setattr(app_module, "ANSWER_GRACE_MS", 1)

    await proxy.app.drain()

    told = await calling
    assert (told.status, told.error["retryable"]) == (status, retryable)
    assert (told.header("retry-after") is not None) == retryable


async def test_call_refused_by_a_drain_says_that_its_operation_is_unknown(stage: Stage) -> None:
    """H8: the ledger was not read for it, and an earlier attempt with its key may have moved money."""
    platform = await stage.platform(ok())
    proxy = await stage.proxy(platform.url)
    proxy.app.now.driver.start_drain()

    told = await proxy.call(payment())

    assert (told.status, told.code) == (503, "draining")
    assert (told.knowledge, told.attempts) == ("unknown", 0)
    assert platform.hits == 0


async def test_o63_readiness_fails_at_once_and_liveness_stays(stage: Stage) -> None:
    platform = await stage.platform(Script(Hang()))
    process = await stage.process(platform.url, retry=LONG, drain_timeout="5s")
    assert (await process.ask("/readyz")).status == 200
    calling = asyncio.create_task(process.call(payment()))
    await platform.got(1)
    process.signal(signal.SIGTERM)

    async def unready() -> bool:
        return (await process.ask("/readyz")).status == 503

    await until(unready)
    assert (await process.ask("/healthz")).status == 200
    assert (await calling).status == 504
    assert await process.ended() == 0


async def test_drain_that_runs_out_of_time_answers_everybody_and_leaves_doubt(stage: Stage) -> None:
    platform = await stage.platform(Script(Hang()))
    process = await stage.process(platform.url, retry=LONG, drain_timeout="500ms")
    calls = [asyncio.create_task(process.call(payment())) for _ in range(5)]
    await platform.got(1)
    process.signal(signal.SIGTERM)

    told = await asyncio.gather(*calls)

    assert {one.status for one in told} <= {504, 409}
    assert {one.code for one in told} <= {"result_unknown", "operation_in_progress"}
    assert {one.knowledge for one in told} == {"unknown"}
    assert await process.ended() == 0
    again = await stage.process(platform.url)
    assert [one["knowledge"] for one in await again.operations()] == ["unknown"]


async def test_calls_that_a_drain_cut_short_are_counted_where_a_scrape_can_see_it(stage: Stage) -> None:
    """The process that cut them ends in the same instant: its own count was never scraped, and no alert came."""
    sandbox = await stage.sandbox()
    sandbox.add_fault({"match": {"order": "O-cut"}, "fault": "hang_after"})
    upstream = {"url": sandbox.url, "authorization": "Bearer sk_test_A"}
    process = await stage.process(sandbox.url, upstream=upstream, retry=LONG, drain_timeout="200ms")
    calling = asyncio.create_task(process.call(payment("K-cut", order="O-cut")))
    await until(lambda: bool(sandbox.ledger.of("charge")))
    process.signal(signal.SIGTERM)
    assert (await calling).knowledge == "unknown"
    assert await process.ended() == 0

    again = await stage.process(sandbox.url, upstream=upstream, lookups=LOOKUPS | {"schedule": ["2s"]})

    async def counted() -> bool:
        page = await again.ask("/metrics")
        return b"safepost_drain_cut_short_total 1.0" in page.body

    assert b"safepost_drain_cut_short_total 0.0" in (await again.ask("/metrics")).body
    await until(counted)
    await until(lambda: _settled(again))
    assert await counted()


async def _settled(process: Process) -> bool:
    return [one["knowledge"] for one in await process.operations()] == ["executed"]


async def test_drain_ends_back_offs_at_once_with_what_is_known(stage: Stage) -> None:
    platform = await stage.platform(refuses(503, "temporarily_unavailable"))
    waits = LONG | {"base": "40s", "cap": "40s", "deadline": "90s"}
    process = await stage.process(platform.url, retry=waits, drain_timeout="60s")
    calling = asyncio.create_task(process.call(payment()))
    await platform.got(1)
    await until(lambda: _is_backing_off(process))
    loop = asyncio.get_running_loop()
    began = loop.time()
    process.signal(signal.SIGTERM)

    told = await calling

    assert (told.status, told.code, told.knowledge) == (503, "temporarily_unavailable", "not_executed")
    assert loop.time() - began < 20, "the back-off would take forty seconds"
    assert await process.ended() == 0


async def _is_backing_off(process: Process) -> bool:
    """Whether the answer to the first attempt has come."""
    page = (await process.ask("/metrics")).body.decode()
    return 'safepost_attempts_total{outcome="refused"' in page


async def test_sigterm_without_work_ends_quickly(stage: Stage) -> None:
    process = await stage.process("http://127.0.0.1:1")
    process.signal(signal.SIGTERM)
    assert await process.ended() == 0


async def test_sigint_drains_too(stage: Stage) -> None:
    process = await stage.process("http://127.0.0.1:1")
    process.signal(signal.SIGINT)
    assert await process.ended() == 0


# --- reload (O4, O-66) -------------------------------------------------------------------------------------------


async def test_o66_broken_file_changes_nothing_and_is_told(stage: Stage) -> None:
    go = asyncio.Event()
    platform = await stage.platform(Script(Hold(go), *ok().steps))
    process = await stage.process(platform.url, retry=LONG)
    good = process.config.read_text(encoding="utf-8")
    calls = [asyncio.create_task(process.call(payment(f"K{n}", order=f"O-{n}"))) for n in range(3)]
    await platform.got(3)
    process.config.write_text("retry: {attempts: 0}\nnonsense: [", encoding="utf-8")
    process.signal(signal.SIGHUP)
    await process.line("reload")
    go.set()

    told = await asyncio.gather(*calls)

    assert {one.status for one in told} == {201}
    assert (await process.call(payment("K-after", order="O-after"))).status == 201
    process.config.write_text(good, encoding="utf-8")
    process.signal(signal.SIGHUP)
    assert (await process.call(payment("K-healed", order="O-healed"))).status == 201
    assert process.process.returncode is None


async def test_reload_takes_effect_for_the_next_call_and_not_for_one_under_way(stage: Stage) -> None:
    go = asyncio.Event()
    old = await stage.platform(Script(Hold(go), *ok(201, version=1).steps))
    new = await stage.platform(ok(201, version=2))
    process = await stage.process(old.url, retry=LONG, log={"level": "info", "format": "json"})
    under_way = asyncio.create_task(process.call(payment("K1", order="O-1")))
    await old.got(1)
    text = process.config.read_text(encoding="utf-8")
    process.config.write_text(text.replace(old.url, new.url), encoding="utf-8")
    process.signal(signal.SIGHUP)
    await process.line("reloaded")

    fresh = await process.call(payment("K2", order="O-2"))
    go.set()

    assert fresh.json["version"] == 2
    assert (await under_way).json["version"] == 1
    assert (old.hits, new.hits) == (1, 1)


async def test_reload_leaves_a_call_whose_body_still_comes_its_connections(stage: Stage) -> None:
    """O4: its generation had no run, was taken for spent, and told it that the platform was out of reach."""
    platform = await stage.platform(ok(201))
    proxy = await stage.proxy(platform.url)
    raw = payment()
    async with await RawCaller.dial(proxy.address) as caller:
        await caller.send(raw[:-1])
        first = proxy.app.now
        await until(lambda: first.under_way == 1)
        for _ in range(2):
            await proxy.app.reload(first.settings)
        await until(lambda: len(proxy.app.retired) == 1)  # the second one was spent
        await caller.send(raw[-1:])
        told = Told.of(await caller.answer())

    assert (told.status, told.knowledge, platform.hits) == (201, "executed", 1)
    await until(lambda: not proxy.app.retired)


async def test_reload_that_needs_a_restart_says_so_and_keeps_the_old_value(stage: Stage) -> None:
    platform = await stage.platform(ok())
    process = await stage.process(platform.url)
    before = process.address
    text = process.config.read_text(encoding="utf-8")
    process.config.write_text(text.replace("listen: 127.0.0.1:0", "listen: 127.0.0.1:1"), encoding="utf-8")
    process.signal(signal.SIGHUP)

    said = await process.line("restart")

    assert "listen" in said
    assert process.address == before
    assert (await process.call(payment())).status == 201


# --- the environment (H2, O-67) ----------------------------------------------------------------------------------


async def test_o67_proxy_variables_divert_nothing(stage: Stage) -> None:
    platform = await stage.platform(ok(200, version=2))
    platform.plan(ok(202, status="processing", version=1))
    dead = "http://127.0.0.1:9"
    names = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
    process = await stage.process(platform.url, environ=dict.fromkeys(names, dead), lookups=LOOKUPS)

    assert (await process.call(payment())).status == 202

    await platform.until(lambda: any(seen.method == b"GET" for seen in platform.received))
    assert (await process.call(lookup("x"))).status == 200


# --- clocks (O-65) -----------------------------------------------------------------------------------------------


class Faketime:
    """A file that shifts the wall clock of the processes that run under faketime."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "faketime"
        self.shift("+0")

    def shift(self, by: str) -> None:
        self.file.write_text(by, encoding="utf-8")

    @property
    def environ(self) -> dict[str, str]:
        return {
            "FAKETIME_TIMESTAMP_FILE": str(self.file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
            "LD_PRELOAD": str(_faketime_library()),
        }


def _faketime_library() -> Path | None:
    for folder in (Path("/usr/lib"), Path("/usr/local/lib")):
        for found in folder.glob("**/faketime/libfaketime*.so.1"):
            return found
    return None


needs_faketime = pytest.mark.skipif(
    shutil.which("faketime") is None or _faketime_library() is None,
    reason="libfaketime is not installed (apt-get install faketime)",
)


@needs_faketime
async def test_o65_wall_clock_that_steps_ends_no_wait_and_no_lease(stage: Stage, tmp_path: Path) -> None:
    clock = Faketime(tmp_path)
    go = asyncio.Event()
    platform = await stage.platform(Script(Hold(go), *ok().steps))
    given: dict[str, Any] = {"retry": LONG, "store": {"lease": "2s"}, "wait_timeout": "25s"}
    first = await stage.process(platform.url, name="a", environ=clock.environ, **given)
    second = await stage.process(platform.url, name="b", environ=clock.environ, **given)
    leading = asyncio.create_task(first.call(payment()))
    await platform.got(1)
    following = asyncio.create_task(second.call(payment()))
    for shift in ("+2h", "-2h", "+0"):
        clock.shift(shift)
        await asyncio.sleep(1.0)
    go.set()

    told = await asyncio.gather(leading, following)

    assert {(one.status, one.knowledge) for one in told} == {(201, "executed")}
    assert platform.hits == 1
    assert not any(line.endswith(" -") or " -" in line.split("#")[0] for line in await _metrics(first))


async def _metrics(process: Process) -> list[str]:
    told = await process.ask("/metrics")
    return [line for line in told.body.decode().splitlines() if not line.startswith("#")]


@needs_faketime
async def test_o65_back_off_takes_its_time_whatever_the_wall_clock_does(stage: Stage, tmp_path: Path) -> None:
    clock = Faketime(tmp_path)
    platform = await stage.platform(ok())
    platform.plan(page(500))
    process = await stage.process(
        platform.url, environ=clock.environ, retry=LONG | {"base": "1500ms", "cap": "2s", "jitter": "none"}
    )
    loop = asyncio.get_running_loop()
    calling = asyncio.create_task(process.call(payment()))
    await platform.got(1)
    began = loop.time()
    await asyncio.sleep(0.3)
    clock.shift("+2h")
    await asyncio.sleep(0.3)
    clock.shift("-2h")
    await platform.got(2)

    assert loop.time() - began > 1.3
    assert (await calling).status == 201


@needs_faketime
async def test_o65_days_that_did_not_pass_drop_no_record(stage: Stage, tmp_path: Path) -> None:
    clock = Faketime(tmp_path)
    platform = await stage.platform(ok())
    process = await stage.process(platform.url, environ=clock.environ)
    await process.call(payment())
    clock.shift("+40d")
    await process.kill()
    again = await stage.process(platform.url, environ=clock.environ)

    assert [one["knowledge"] for one in await again.operations()] == ["executed"]
    assert (await again.call(payment("K", 12_000))).code == "idempotency_conflict"
    await again.call(payment("K2", order="O-2"))
    created = {one["key"]: datetime.fromisoformat(one["created"]) for one in await again.operations()}
    assert (created["K2"] - created["K"]).days == 40, "the clock was not shifted: this test tells nothing"
