"""Counts of several workers on one page: they add up, and no counter ever falls (M1, O-60)."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from proxy.observe import Share
from proxy.observe.cells import CELLS_MAX, SharedBook, clear
from proxy.ports import Holdings
from tests.observe.conftest import Make
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


def test_line_that_is_still_being_written_is_left_for_later(make: Make, tmp_path: Path) -> None:
    make(share=Share(tmp_path, 0))
    names = tmp_path / "0.names"
    whole = names.read_text()
    names.write_text(whole + '["requests_total",["create_pay')

    book = SharedBook(tmp_path, worker=0)

    assert len(book.series()) == whole.count("\n")


def test_clear_forgets_an_earlier_run(tmp_path: Path) -> None:
    SharedBook(tmp_path, worker=3).open("draining", (), width=1)

    clear(tmp_path)

    assert list(tmp_path.iterdir()) == []


def test_label_that_is_not_bounded_is_a_bug_that_shows(tmp_path: Path) -> None:
    book = SharedBook(tmp_path, worker=0)
    with pytest.raises(MemoryError, match="not bounded"):
        book.open("draining", (), width=CELLS_MAX + 1)
