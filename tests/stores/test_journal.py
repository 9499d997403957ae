"""The journal's file: what is in it after a crash, a torn write, several workers, a full disk."""

from __future__ import annotations

import asyncio
import fcntl
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from proxy.core.model import OperationId, State, replace
from proxy.stores import journal as journal_module
from proxy.stores.journal import Journal, PutBack
from proxy.stores.memory import MemoryLedger
from tests.chaos.disk import small_disk
from tests.contract.values import HandClock, operation
from tests.stores.quota import no_file_beyond


class Journals:
    """Journals that are closed at the end, and what they complained of."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.troubles: list[str | None] = []
        self._open: list[Journal] = []

    async def open(self) -> Journal:
        journal = Journal(self.path, failed=self.troubles.append)
        await journal.open()
        self._open.append(journal)
        return journal

    async def close(self, journal: Journal) -> None:
        self._open.remove(journal)
        await journal.close()


@pytest.fixture
async def journals(tmp_path: Path) -> AsyncIterator[Journals]:
    journals = Journals(tmp_path / "journal")
    yield journals
    for journal in tuple(journals._open):
        await journals.close(journal)


def keys(journal: Journal) -> set[str]:
    return {one.key for one in journal.operations()}


async def test_unresolved_operations_come_back_and_settled_ones_don_t(journals: Journals) -> None:
    journal = await journals.open()
    one, two = operation("K-1"), operation("K-2", state=State.IN_FLIGHT)
    journal.note(one.id, one)
    journal.note(two.id, two)
    journal.note(two.id, replace(two, state=State.EXECUTED))
    journal.note(OperationId("op_unheard_of"), None)
    await journals.close(journal)
    again = await journals.open()
    assert again.operations() == (one,)


async def test_latest_state_of_an_operation_wins(journals: Journals) -> None:
    journal = await journals.open()
    one = operation("K-1", state=State.IN_FLIGHT)
    later = replace(one, state=State.UNKNOWN, doubt=True)
    journal.note(one.id, one)
    journal.note(one.id, later)
    await journals.close(journal)
    assert (await journals.open()).operations() == (later,)


@pytest.mark.parametrize("cut", [1, 7, 200])
async def test_torn_last_write_loses_that_write_alone(journals: Journals, cut: int) -> None:
    journal = await journals.open()
    for name in ("K-1", "K-2"):
        row = operation(name)
        journal.note(row.id, row)
    await journals.close(journal)
    shorten(journals.path, cut)
    assert keys(await journals.open()) == {"K-1"}


def shorten(path: Path, cut: int) -> None:
    path.write_bytes(path.read_bytes()[:-cut])


async def written(journal: Journal) -> None:
    """The file has what was noted, or a complaint was made."""
    journal._flush()
    await journal._worker.call(lambda: None)
    await asyncio.sleep(0)


async def test_what_a_full_disk_cut_in_half_hides_nothing_that_came_later(journals: Journals) -> None:
    """D6: the reader stops at half a record, and everything behind it would be lost."""
    journal = await journals.open()
    rows = [operation(f"K-{n}") for n in range(100)]
    journal.note(rows[0].id, rows[0])
    await written(journal)
    with no_file_beyond(size_of(journals.path) + 10_000):
        for row in rows[1:98]:
            journal.note(row.id, row)
        await written(journal)
        journal.note(rows[0].id, None)
        await written(journal)
    journal.note(rows[98].id, rows[98])
    await written(journal)
    journal.note(rows[99].id, rows[99])
    await journals.close(journal)

    assert keys(await journals.open()) == {f"K-{n}" for n in range(1, 100)}
    assert [trouble is not None for trouble in journals.troubles] == [True, False]


async def test_what_a_full_disk_did_not_take_is_written_at_the_end(journals: Journals) -> None:
    journal = await journals.open()
    row = operation("K-1")
    with no_file_beyond(10):
        journal.note(row.id, row)
        await written(journal)

    await journals.close(journal)

    assert keys(await journals.open()) == {"K-1"}


async def test_disk_that_takes_writes_again_gets_what_it_missed_though_nothing_more_happens(
    journals: Journals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "RETRY_S", 0.02)
    journal = await journals.open()
    rows = [operation("K-1"), operation("K-2")]
    with no_file_beyond(10):
        for row in rows:
            journal.note(row.id, row)
            await written(journal)
    async with asyncio.timeout(5):
        while journals.troubles[-1] is not None:
            await written(journal)
    await written(journal)

    assert keys_in(journals.path) == {"K-1", "K-2"}


def keys_in(path: Path) -> set[str]:
    """What a start would find in the file as it is."""
    docs = journal_module._docs_of(path.read_bytes())
    return {one.key for one in journal_module._operations_of(docs).values()}


async def test_start_on_a_full_disk_keeps_what_the_file_holds(journals: Journals) -> None:
    """It was emptied to be written anew, and a disk that filled up meanwhile took nothing."""
    journal = await journals.open()
    row = operation("K-1")
    journal.note(row.id, row)
    await journals.close(journal)
    with no_file_beyond(10):
        await journals.close(await journals.open())

    assert keys(await journals.open()) == {"K-1"}


async def test_disk_that_died_is_complained_of_and_ends_no_drain(tmp_path: Path) -> None:
    """Closing raised what the disk said, and a process that was told to end well ended with 1 (O3)."""
    with small_disk(tmp_path / "disk") as disk:
        if not disk.is_own:
            pytest.skip("needs root and a loop device")
        troubles: list[str | None] = []
        journal = Journal(disk.folder / "journal", failed=troubles.append)
        await journal.open()
        row = operation("K-1")
        journal.note(row.id, row)
        await written(journal)
        assert disk.die()
        disk.fail()

        await journal.close()

        await asyncio.sleep(0)
        assert ["can't be written" in (trouble or "") for trouble in troubles] == [True]


async def test_each_worker_has_a_file_and_the_next_start_adopts_what_is_left(journals: Journals) -> None:
    first, second = await journals.open(), await journals.open()
    for journal, name in ((first, "K-1"), (second, "K-2")):
        row = operation(name)
        journal.note(row.id, row)
    await journals.close(second)
    await journals.close(first)
    assert keys(await journals.open()) == {"K-1", "K-2"}
    assert file_names(journals.path) == ["journal"]


def file_names(path: Path) -> list[str]:
    return sorted(one.name for one in path.parent.iterdir())


async def test_file_is_private(journals: Journals) -> None:
    await journals.open()
    assert mode_of(journals.path) == 0o600


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


async def test_file_is_rewritten_when_most_of_it_is_past(
    journals: Journals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "REWRITE_BYTES", 20_000)
    journal = await journals.open()
    kept = operation("K-kept")
    journal.note(kept.id, kept)
    for n in range(300):
        row = operation(f"K-{n}")
        journal.note(row.id, row)
        journal.note(row.id, None)
        if n % 50 == 0:
            journal._flush()
    await journals.close(journal)
    assert size_of(journals.path) < 60_000
    assert keys(await journals.open()) == {"K-kept"}


async def grow(journals: Journals) -> None:
    """A file that is worth replacing: of 40 operations two are left."""
    journal = await journals.open()
    for n in range(40):
        row = operation(f"K-{n}")
        journal.note(row.id, row)
        await written(journal)
        if n >= 2:
            journal.note(row.id, None)
    await journals.close(journal)


async def test_process_killed_at_any_step_of_a_rewrite_loses_nothing(journals: Journals) -> None:
    """D6: one that died between emptying the file and filling it left an empty one."""
    await grow(journals)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.stores.journal_killed", str(journals.path), stdout=subprocess.PIPE
    )
    said, _ = await process.communicate()

    found = said.decode().splitlines()
    assert process.returncode == 0
    assert set(found) == {"K-0 K-1 K-noted"}
    assert len(found) > 20, "it was never killed at the replacing: this test tells nothing"
    assert keys(await journals.open()) == {"K-0", "K-1", "K-noted"}
    assert file_names(journals.path) == ["journal"]


@pytest.mark.parametrize("room_bytes", [0, 1, 500, 2_000, 5_000])
async def test_disk_that_fills_up_at_any_step_of_a_rewrite_loses_nothing(
    journals: Journals, monkeypatch: pytest.MonkeyPatch, room_bytes: int
) -> None:
    await grow(journals)
    monkeypatch.setattr(journal_module, "REWRITE_BYTES", 1)
    journal = await journals.open()
    with no_file_beyond(room_bytes):
        await journal._worker.call(journal._rewrite_where_worth_it)
        assert keys_in(journals.path) == {"K-0", "K-1"}
    row = operation("K-later")
    journal.note(row.id, row)
    await journals.close(journal)

    assert keys(await journals.open()) == {"K-0", "K-1", "K-later"}
    assert file_names(journals.path) == ["journal"]


async def test_folder_that_takes_no_new_file_keeps_the_journal_going(
    journals: Journals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file mounted by itself can't be replaced."""
    await grow(journals)
    monkeypatch.setattr(journal_module, "REWRITE_BYTES", 1)
    journal = await journals.open()
    (journals.path.parent / "journal.new").mkdir()
    row = operation("K-later")
    journal.note(row.id, row)
    await written(journal)

    assert keys_in(journals.path) == {"K-0", "K-1", "K-later"}
    assert journals.troubles == []


async def test_journal_opens_where_its_folder_can_not_be_changed(journals: Journals) -> None:
    """A file mounted by itself into a read-only root: nothing ended the start before files were replaced."""
    (journals.path.parent / "journal.new").mkdir()  # EISDIR, also for root, as EROFS would be
    journal = await journals.open()
    row = operation("K-1")
    journal.note(row.id, row)
    await written(journal)

    assert keys_in(journals.path) == {"K-1"}
    assert journals.troubles == []


async def test_file_that_was_replaced_before_it_was_locked_is_not_taken(
    journals: Journals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What this worker wrote would have been in a file without a name."""
    await grow(journals)
    content = journals.path.read_bytes()
    lock = fcntl.flock

    def replaced_first(file: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        other = journals.path.with_name("other")
        other.write_bytes(content)
        other.replace(journals.path)
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", replaced_first)
    journal = await journals.open()
    row = operation("K-later")
    journal.note(row.id, row)
    await written(journal)

    assert keys_in(journals.path) == {"K-0", "K-1", "K-later"}


async def test_damaged_record_hides_none_that_came_later(journals: Journals) -> None:
    journal = await journals.open()
    for name in ("K-1", "K-2", "K-3"):
        row = operation(name)
        journal.note(row.id, row)
        await written(journal)
    await journals.close(journal)
    content = bytearray(journals.path.read_bytes())
    content[len(content) // 2] ^= 1
    journals.path.write_bytes(content)

    assert keys(await journals.open()) == {"K-1", "K-3"}


def size_of(path: Path) -> int:
    return path.stat().st_size


def test_put_back_leaves_what_is_there_alone() -> None:
    ledger = MemoryLedger(HandClock())
    lost = operation("K-1")
    assert ledger.run(PutBack(lost))
    there = ledger.load(lost.id)
    assert there is not None
    assert there.history[-1].kind == "written_anew"
    assert not ledger.run(PutBack(replace(lost, amount=5)))
    assert ledger.load(lost.id) == there
    (subject,) = ledger.subjects.values()
    assert subject.operations == (lost.id,)
    assert subject.guards["create_payment"].holder == lost.id
