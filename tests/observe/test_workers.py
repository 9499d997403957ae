"""Counts of several workers on one page: they add up, and no counter ever falls (M1, O-60)."""

from __future__ import annotations

import asyncio
import math
import os
import sys
from pathlib import Path

import pytest

from proxy.core.messages import BecameUnknown
from proxy.observe import Observer, Share
from proxy.observe.cells import CELLS_MAX, SharedBook, books_in, clear
from proxy.ports import Holdings
from proxy.run import Run
from tests.observe.conftest import Make, StillClock, operation, settings
from tests.observe.test_metrics import call

LABELS = {"route": "create_payment", "method": "POST", "status": "201", "knowledge": "executed"}

WORKER = """
import sys
from pathlib import Path
from proxy.observe.cells import SharedBook
book = SharedBook(Path(sys.argv[1]), worker=1)
at = book.open("requests_total", ("create_payment", "POST", "201", "executed"), width=1)
while True:
    line = sys.stdin.readline()
    if not line:
        break
    book.cells[at] += float(line)
    sys.stdout.write("done\\n")
    sys.stdout.flush()
"""


async def test_page_of_one_worker_holds_the_sum(make: Make, tmp_path: Path) -> None:
    first = make(share=Share(tmp_path, 0))
    second = make(share=Share(tmp_path, 1))
    for one, count in ((first, 3), (second, 4)):
        for _ in range(count):
            one.observer.fact(call(), None)

    assert await first.value("requests_total", **LABELS) == 7.0
    assert await second.value("requests_total", **LABELS) == 7.0
    assert await first.value("request_duration_seconds_count", route="create_payment") == 7.0


async def test_killed_worker_keeps_its_counts_and_its_successor_goes_on(make: Make, tmp_path: Path) -> None:
    reader = make(share=Share(tmp_path, 0))
    totals = []
    for _ in range(2):
        worker = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            WORKER,
            str(tmp_path),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert worker.stdin is not None
        assert worker.stdout is not None
        for _ in range(5):
            worker.stdin.write(b"1\n")
            assert await worker.stdout.readline() == b"done\n"
            totals.append(await reader.value("requests_total", **LABELS))
        worker.kill()
        await worker.wait()
        totals.append(await reader.value("requests_total", **LABELS))

    assert totals == [1, 2, 3, 4, 5, 5, 6, 7, 8, 9, 10, 10]


async def test_log_lines_that_any_worker_dropped_are_counted_for_good(make: Make, tmp_path: Path) -> None:
    serving, full = make(share=Share(tmp_path, 0)), os.open("/dev/full", os.O_WRONLY)
    killed = Observer(settings=settings(), clock=serving.clock, share=Share(tmp_path, 1), log_fd=full)
    killed.fact(call(), None)
    killed.close()
    os.close(full)
    killed.holdings = ()

    make(share=Share(tmp_path, 1))

    assert await serving.value("log_lines_dropped_total") == 1.0


async def test_successor_does_not_say_that_it_began_to_count(make: Make, tmp_path: Path) -> None:
    """Alerts take what is counted since a young beginning for new."""
    serving, killed = make(share=Share(tmp_path, 0)), make(share=Share(tmp_path, 1))
    began = await serving.value("counts_start_time_seconds")
    later = StillClock(killed.clock.wall_ms() + 60_000)

    Observer(settings=settings(), clock=later, share=Share(tmp_path, 1)).close()

    assert await serving.value("counts_start_time_seconds") == began == killed.clock.wall_ms() / 1000


async def test_gauges_of_the_store_are_not_added_twice(make: Make, tmp_path: Path) -> None:
    first = make(share=Share(tmp_path, 0))
    second = make(share=Share(tmp_path, 1))
    held = Holdings(
        route="create_payment", knowledge="unknown", currency="USD", count=2, amount=700, oldest_ms=0
    )
    for one in (first, second):
        one.observer.holdings = (held,)

    assert await first.value("unknown_operations", route="create_payment") == 2.0
    assert await first.value("unknown_amount", currency="USD") == 700.0


async def test_money_that_a_killed_worker_told_of_is_not_at_risk_for_ever(make: Make, tmp_path: Path) -> None:
    """Its currency is not among the series that its successor opens."""
    serving, killed = make(share=Share(tmp_path, 0)), make(share=Share(tmp_path, 1))
    killed.observer.holdings = (
        Holdings(
            route="create_payment", knowledge="unknown", currency="USD", count=2, amount=700, oldest_ms=0
        ),
    )
    before = await serving.value("unknown_amount", currency="USD")

    make(share=Share(tmp_path, 1))

    assert (before, await serving.value("unknown_amount", currency="USD")) == (700.0, 0.0)


async def test_worker_that_still_starts_is_no_store_down_and_no_spent_budget(
    make: Make, tmp_path: Path
) -> None:
    serving = make(share=Share(tmp_path, 0))
    starting = Observer(settings=settings(), clock=serving.clock, share=Share(tmp_path, 1))

    assert await serving.value("store_up") == 1.0
    assert await serving.value("retry_budget_remaining") == math.inf
    starting.close()


async def test_store_that_one_worker_can_not_reach_is_told_at_once(make: Make, tmp_path: Path) -> None:
    serving, other = make(share=Share(tmp_path, 0)), make(share=Share(tmp_path, 1))

    other.observer.store_step("reserve", 1, False, "it took too long")

    assert await serving.value("store_up") == 0.0


def test_counts_are_shared_where_the_system_reserves_no_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """macOS: no worker came up there."""
    monkeypatch.delattr(os, "posix_fallocate", raising=False)
    book = SharedBook(tmp_path, worker=0)
    book.cells[book.open("collapsed_total", ("create_payment",), width=1)] = 2.0
    assert books_in(tmp_path, but=1) == [book.series()]


def test_line_that_is_still_being_written_is_left_for_later(make: Make, tmp_path: Path) -> None:
    make(share=Share(tmp_path, 0))
    names = tmp_path / "0.names"
    whole = names.read_text()
    names.write_text(whole + '["requests_total",["create_pay')

    book = SharedBook(tmp_path, worker=0)
    book.open("draining", ("new",), width=1)

    assert len(book.series()) == whole.count("\n") + 1
    assert SharedBook(tmp_path, worker=0).series() == book.series()


def test_series_that_a_full_disk_does_not_take_counts_and_is_told_later(tmp_path: Path) -> None:
    """No payment may end because a new status could not be written down."""
    book, names = SharedBook(tmp_path, worker=1), tmp_path / "1.names"
    names.symlink_to("/dev/full")
    book.cells[book.open("requests_total", ("a", "POST", "201", ""), width=1)] += 1
    names.unlink()
    book.open("draining", (), width=1)

    assert books_in(tmp_path, but=0) == [book.series()]
    assert (tmp_path / "1.cells").stat().st_blocks * 512 >= CELLS_MAX * 8


def test_clear_forgets_an_earlier_run(tmp_path: Path) -> None:
    SharedBook(tmp_path, worker=3).open("draining", (), width=1)

    clear(tmp_path)

    assert list(tmp_path.iterdir()) == []


def test_label_that_is_not_bounded_is_a_bug_that_shows(tmp_path: Path) -> None:
    book = SharedBook(tmp_path, worker=0)
    with pytest.raises(MemoryError, match="not bounded"):
        book.open("draining", (), width=CELLS_MAX + 1)


class Idle:
    """A driver and a resolver that have nothing to do."""

    runs: dict[int, Run] = {}  # noqa: RUF012 -- stays empty
    owed: tuple[object, ...] = ()
    is_draining = False
    budget = None
    breaker = None
    backlog = 0
    backlog_ends_in_ms = 0


async def test_announcements_of_every_worker_reach_the_one_with_the_console(
    make: Make, tmp_path: Path
) -> None:
    serving, other = make(share=Share(tmp_path, 0)), make(share=Share(tmp_path, 1))
    for one in (serving, other):
        one.observer.watch(driver=Idle(), resolver=Idle())
    news = serving.observer.announcements

    other.observer.fact(BecameUnknown(operation()), None)
    assert await news.changed(timeout_s=5)
    serving.observer.fact(BecameUnknown(operation()), None)

    told, _ = news.since(news.first - 1)
    assert [one.kind for one in told] == ["became_unknown", "became_unknown"]
    assert told[0].data == told[1].data


async def test_announcement_that_nobody_takes_is_counted_and_harmless(make: Make, tmp_path: Path) -> None:
    other = make(share=Share(tmp_path, 1))

    other.observer.fact(BecameUnknown(operation()), None)

    assert await other.value("announcements_lost_total") == 1.0


async def test_successor_of_the_serving_worker_takes_over(make: Make, tmp_path: Path) -> None:
    make(share=Share(tmp_path, 0)).observer.watch(driver=Idle(), resolver=Idle())
    successor, other = make(share=Share(tmp_path, 0)), make(share=Share(tmp_path, 1))
    successor.observer.watch(driver=Idle(), resolver=Idle())

    other.observer.fact(BecameUnknown(operation()), None)

    assert await successor.observer.announcements.changed(timeout_s=5)
