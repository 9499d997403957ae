"""What signals do to a running process, alone or with workers (C1, O1, O4)."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from tests.e2e.callers import Told, payment
from tests.e2e.platforms import ok
from tests.e2e.processes import Process
from tests.e2e.stage import PATIENCE_S, Stage, until
from tests.wire.peers import Hold, Script

pytestmark = pytest.mark.slow

MEANINGLESS = ("SIGUSR1", "SIGUSR2", "SIGALRM", "SIGVTALRM", "SIGPROF", "SIGIO", "SIGPWR", "SIGPIPE")


def workers_of(process: Process) -> list[int]:
    """The processes that a parent of workers has started."""
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


@pytest.mark.parametrize("workers", [1, 2])
async def test_signal_that_means_nothing_ends_no_call(stage: Stage, workers: int) -> None:
    """O1: a log rotation's SIGUSR1 ended the process at once, and left its payments in doubt."""
    go = asyncio.Event()
    platform = await stage.platform(Script(Hold(go), *ok().steps))
    process = await stage.process(platform.url, workers=workers, retry={"attempt_timeout": "30s"})
    calling = asyncio.create_task(process.call(payment()))
    await platform.got(1)

    for name in MEANINGLESS:
        for pid in (process.pid, *workers_of(process)):
            os.kill(pid, signal.Signals[name])
    go.set()

    assert (await calling).status == 201
    process.signal(signal.SIGTERM)
    assert await process.ended() == 0
    assert not [line for line in process.said if "ended with" in line]


async def test_reload_that_comes_during_the_start_is_made_after_it(stage: Stage) -> None:
    """O4: it ended the process."""
    ledger = stage.folder / "ledger.db"
    with closing(sqlite3.connect(ledger, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        process = await stage.process("http://127.0.0.1:1", until_up=False, log={"level": "info"})
        await until(lambda: _has_open(process.pid, ledger))
        process.signal(signal.SIGHUP)
    await process.line("admin on ")

    await process.line("reloaded")


FIRST = ("unshare", "--map-root-user", "--pid", "--fork", "--kill-child")
"""What makes a command the first process of a container."""


@pytest.mark.skipif(
    shutil.which("unshare") is None or subprocess.run([*FIRST, "true"], check=False).returncode != 0,
    reason="this user may make no containers",
)
async def test_stop_that_comes_during_the_start_of_a_container_ends_it(stage: Stage) -> None:
    """O1: the start went on without having heard of it, and took calls until SIGKILL."""
    ledger = stage.folder / "ledger.db"
    with closing(sqlite3.connect(ledger, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        process = await stage.process("http://127.0.0.1:1", until_up=False, before=FIRST)
        await until(lambda: any(_has_open(pid, ledger) for pid in workers_of(process)))
        (first,) = workers_of(process)
        os.kill(first, signal.SIGTERM)

        assert await process.ended() == 128 + signal.SIGTERM


def _has_open(pid: int, path: Path) -> bool:
    folder = Path(f"/proc/{pid}/fd")
    return path.resolve() in [one.resolve() for one in folder.iterdir()]


async def test_worker_started_after_a_reload_has_the_configuration_of_the_others(stage: Stage) -> None:
    """O4: it had the one of the start, and sent payments where they were sent before the reload."""
    old, new = await stage.platform(ok()), await stage.platform(ok())
    process = await stage.process(old.url, workers=2, log={"level": "info"})
    text = process.config.read_text(encoding="utf-8")
    process.config.write_text(text.replace(old.url, new.url), encoding="utf-8")
    process.signal(signal.SIGHUP)
    await until(lambda: len([line for line in process.said if "reloaded" in line]) == 2)
    process.config.write_text("nonsense: [", encoding="utf-8")
    before = workers_of(process)
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    await until(lambda: len(set(workers_of(process)) - set(before)) == 2)

    assert (await _when_up(process)).status == 201
    assert (old.hits, new.hits) == (0, 1)


async def _when_up(process: Process) -> Told:
    """The answer to a payment, as soon as somebody listens."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await process.call(payment())
            except OSError:
                await asyncio.sleep(0.01)


async def test_reloads_that_meet_workers_at_their_start_end_none_of_them(stage: Stage) -> None:
    """O4: one that had no handler yet was ended by it, after five the parent gave up. Nor do they hold it up."""
    process = await stage.process("http://127.0.0.1:1", workers=2)
    before = workers_of(process)
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    async with asyncio.timeout(PATIENCE_S):
        while len([line for line in process.said if "ended with -9" in line]) < 2:
            process.signal(signal.SIGHUP)
            await asyncio.sleep(0)
    for _ in range(200):
        process.signal(signal.SIGHUP)
        await asyncio.sleep(0.005)
    process.signal(signal.SIGTERM)

    assert await process.ended() == 0
    assert [line for line in process.said if "ended with" in line and "-9" not in line] == []


async def test_worker_that_is_told_to_stop_drains_and_is_replaced(stage: Stage) -> None:
    """It was said to have left its calls unknown, and had answered them all."""
    go = asyncio.Event()
    platform = await stage.platform(Script(Hold(go), *ok().steps))
    process = await stage.process(platform.url, workers=2, retry={"attempt_timeout": "30s"})
    calls = [asyncio.create_task(process.call(payment(f"K{n}", order=f"O-{n}"))) for n in range(6)]
    await platform.got(6)
    before = workers_of(process)
    for pid in before:
        os.kill(pid, signal.SIGTERM)
    go.set()

    assert {(await one).status for one in calls} == {201}
    await until(lambda: len(set(workers_of(process)) - set(before)) == 2)
    told = "ended with 0; it was told to, and had drained"
    await until(lambda: len([line for line in process.said if told in line]) == 2)
    assert len([line for line in process.said if "ended with" in line]) == 2, process.said
