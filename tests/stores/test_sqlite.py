"""SQLite under trouble: locks held by others, a full disk, damage found late, long readers, power cuts."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import shutil
import sqlite3
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path

import pytest

from proxy.clock import SystemClock
from proxy.core.messages import Reserved
from proxy.core.model import Operation, OperationId, replace
from proxy.owed import OwedWrites
from proxy.ports import Query, StoreUnavailable
from proxy.stores import sqlite_writer
from proxy.stores.notices import Notice, NoticeKind
from proxy.stores.sqlite import SqliteStore
from proxy.stores.sqlite_file import ENDS, JOURNAL_BYTES_KEPT, SQL, wal_of
from tests.contract.values import Bump, PutRows, lead, operation, reserve, settled
from tests.core.payhub import SCOPE
from tests.stores.quota import no_file_beyond

CLOCK = SystemClock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path, clock=CLOCK, timeout_ms=3_000)
    await store.open()
    yield store
    await store.close()


def hold_lock(path: Path, *, let_go: threading.Event, held: threading.Event) -> None:
    """An outside process with the write lock, until told."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        held.set()
        let_go.wait(10)
        other.execute("ROLLBACK")


class Holder:
    """Holds the write lock from another thread's connection."""

    def __init__(self, path: Path) -> None:
        self._held, self._let_go = threading.Event(), threading.Event()
        self._thread = threading.Thread(
            target=hold_lock, args=(path,), kwargs={"let_go": self._let_go, "held": self._held}
        )

    async def __aenter__(self) -> Holder:
        self._thread.start()
        await asyncio.to_thread(self._held.wait, 60)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.let_go()

    async def let_go(self) -> None:
        self._let_go.set()
        await asyncio.to_thread(self._thread.join)


async def test_lock_of_another_is_waited_for_while_the_loop_goes_on(path: Path, store: SqliteStore) -> None:
    """O-56: persist-before-send may wait; it may not fail, and it may not stop everything else.

    A loop that waited for the lock would only turn again once the claims had failed: nobody lets go until then.
    """
    async with Holder(path) as holder:
        claims = [asyncio.ensure_future(store.transact(reserve(f"K-{n}"))) for n in range(20)]
        for _ in range(25):
            await asyncio.sleep(0.02)
        assert not any(claim.done() for claim in claims)
        await holder.let_go()
        answers = await asyncio.gather(*claims)
    assert all(isinstance(answer, Reserved) for answer in answers)


async def test_lock_held_past_the_limit_is_dropped_unapplied(path: Path) -> None:
    store = SqliteStore(path, clock=CLOCK, timeout_ms=1_000)
    await store.open()
    async with Holder(path):
        with pytest.raises(StoreUnavailable, match="nothing was written") as raised:
            await store.transact(reserve("K-1"))
    assert not raised.value.may_have_happened
    assert (await store.find(Query())).operations == ()
    leading = await lead(store, "K-1")
    assert await store.load(leading.id) == leading
    await store.close()


async def test_reads_go_on_while_another_holds_the_lock(path: Path, store: SqliteStore) -> None:
    leading = await lead(store, "K-1")
    async with Holder(path):
        assert await store.load(leading.id) == leading


async def test_full_disk_refuses_and_recovers_by_itself(path: Path, store: SqliteStore) -> None:
    writer = store._writer
    assert writer is not None
    await lead(store, "K-0")

    def limit(pages: int) -> None:
        connection = writer._connection
        assert connection is not None
        connection.execute(f"PRAGMA max_page_count = {pages}")

    await writer.worker.call(lambda: limit(1))  # SQLite takes the present size as the least
    with pytest.raises(StoreUnavailable, match="the disk is full") as raised:
        await asyncio.gather(*(store.transact(reserve(f"L-{n}")) for n in range(200)))
    assert not raised.value.may_have_happened
    assert "no restart is needed" in str(raised.value)
    assert len((await store.find(Query())).operations) == 1
    await writer.worker.call(lambda: limit(1_000_000))
    await lead(store, "L-0")


async def test_row_damaged_beneath_is_refused_alone(path: Path, store: SqliteStore) -> None:
    """A damaged record answers nothing: neither free nor running."""
    leading = await lead(store, "K-1")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("UPDATE operations SET doc = zeroblob(200) WHERE id = ?", (leading.id,))
    broken, fine = await asyncio.gather(
        store.transact(reserve("K-1", "another")), store.transact(reserve("K-2")), return_exceptions=True
    )
    assert isinstance(broken, StoreUnavailable)
    assert isinstance(fine, Reserved)
    with pytest.raises(StoreUnavailable):
        await store.load(leading.id)


async def test_damaged_row_keeps_no_other_from_being_listed_and_is_told_once(
    path: Path, store: SqliteStore
) -> None:
    """U2: the lookups of all stopped for one record of which nothing was known any more."""
    notices: list[Notice] = []
    store._notify = notices.append
    rows = [operation(f"K-{n}", at_ms=n) for n in range(6)]
    await store.transact(PutRows(tuple(rows)))
    spoil(path, rows[1].id, rows[2].id)
    listed: list[Operation] = []
    query = Query(oldest_first=True, limit=2)
    while True:
        page = await store.find(query)
        listed += page.operations
        if page.cursor is None:
            break
        query = replace(query, cursor=page.cursor)

    assert [one.key for one in listed] == ["K-0", "K-3", "K-4", "K-5"]
    with pytest.raises(StoreUnavailable, match="in row format 0"):
        await store.find(Query(key=rows[1].key))
    assert [(notice.kind, notice.warnings) for notice in notices] == [(NoticeKind.DAMAGED, store.warnings())]
    assert "2 records can't be read" in notices[0].text


def spoil(path: Path, *identities: OperationId) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        for identity in identities:
            other.execute("UPDATE operations SET doc = zeroblob(200) WHERE id = ?", (identity,))


async def test_rows_kept_from_before_are_forgotten_when_another_process_wrote(path: Path) -> None:
    first, second = (SqliteStore(path, clock=CLOCK, timeout_ms=3_000) for _ in range(2))
    await first.open()
    await second.open()
    leading = await lead(first, "K-1")
    await second.transact(Bump(SCOPE, leading.id))
    assert await first.transact(Bump(SCOPE, leading.id)) == 3
    await first.close()
    await second.close()


async def test_reader_that_stays_starves_the_log_and_is_told(
    path: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O-57: the log grows behind a long reader, says so, and shrinks when the reader has left."""
    notices: list[Notice] = []
    writer = store._writer
    assert writer is not None
    writer._notify = notices.append
    monkeypatch.setattr(sqlite_writer, "STARVED_BYTES", 4 * 2**20)
    body = b"x" * 200_000
    rows = [_with_body(operation(f"K-{n}"), body) for n in range(250)]
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT COUNT(*) FROM operations").fetchone()
        for start in range(0, len(rows), 25):
            await store.transact(PutRows(tuple(rows[start : start + 25])))
        await writer.worker.call(writer.tidy)
        grown = wal_of(path).stat().st_size
        reader.execute("COMMIT")
    assert grown > JOURNAL_BYTES_KEPT
    assert store.warnings() != ()
    await writer.worker.call(writer.tidy)
    await asyncio.sleep(0)
    assert wal_of(path).stat().st_size <= JOURNAL_BYTES_KEPT
    assert [notice.kind for notice in notices] == [NoticeKind.WAL_STARVED, NoticeKind.WAL_EMPTIED]
    assert store.warnings() == ()


async def test_log_that_has_grown_is_started_over_beside_readers_that_overlap(
    path: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O-57: with four readers of 20 ms each it grew by 130 MiB a second, and nobody was told."""
    monkeypatch.setattr(sqlite_writer, "IDLE_S", 60.0)
    monkeypatch.setattr(sqlite_writer, "READERS_MS", 1_000)
    writer = store._writer
    assert writer is not None
    rows = [_with_body(operation(f"K-{n}"), b"x" * 200_000) for n in range(200)]
    await store.transact(PutRows(tuple(rows[1:])))
    async with reading(path, until=lambda: not _can_write(path)):
        await store.transact(PutRows((rows[0],)))
        untouched_ns = _written_ns(path)
        async with reading(path, until=lambda: _written_ns(path) != untouched_ns):
            assert _size(wal_of(path)) > JOURNAL_BYTES_KEPT
            await writer.worker.call(writer.tidy)
            assert _size(wal_of(path)) <= JOURNAL_BYTES_KEPT


@asynccontextmanager
async def reading(path: Path, *, until: Callable[[], bool]) -> AsyncIterator[None]:
    """Somebody reads what is committed now, until that."""
    begun = threading.Event()

    def read() -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT COUNT(*) FROM operations").fetchone()
            begun.set()
            ends = time.monotonic() + 10
            while not until() and time.monotonic() < ends:
                threading.Event().wait(0.005)

    task = asyncio.create_task(asyncio.to_thread(read))
    await asyncio.to_thread(begun.wait, 10)
    yield
    await task


async def test_log_is_moved_only_while_no_other_process_can_start_it_over(
    path: Path, store: SqliteStore
) -> None:
    """D6: before 3.51.3 SQLite loses commits if a log is started over just as a checkpoint begins (0014)."""
    await lead(store, "K-1")
    writer = store._writer
    assert writer is not None and writer._mover is not None
    untouched_ns = _written_ns(path)
    async with Holder(path):
        await writer.worker.call(writer.tidy)
        assert _written_ns(path) == untouched_ns
    could_write: list[bool] = []
    writer._mover.set_trace_callback(lambda _: could_write.append(_can_write(path)))
    await writer.worker.call(writer.tidy)
    assert _written_ns(path) > untouched_ns
    assert could_write == [False]
    assert _can_write(path)


async def test_log_that_finds_no_room_in_the_file_is_not_tried_again_with_each_group(
    path: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D3: on a full disk claims go on in the log's own room; each would have copied all of it once more."""
    monkeypatch.setattr(sqlite_writer, "IDLE_S", 60.0)
    rows = [_with_body(operation(f"K-{n}"), b"x" * 50_000) for n in range(14)]
    await store.transact(PutRows(tuple(rows[:10])))
    writer = store._writer
    assert writer is not None and writer._mover is not None
    await writer.worker.call(writer.tidy)
    monkeypatch.setattr(sqlite_writer, "CHECKPOINT_ROWS", 2)
    tries: list[str] = []
    writer._mover.set_trace_callback(tries.append)
    with no_file_beyond(_size(path)):
        for row in rows[10:]:
            await store.transact(PutRows((row,)))
            await writer.worker.call(lambda: None)
    assert len(tries) == 2
    assert len((await store.find(Query())).operations) == len(rows)


def _size(path: Path) -> int:
    return path.stat().st_size


def _written_ns(path: Path) -> int:
    return path.stat().st_mtime_ns


def _can_write(path: Path) -> bool:
    with closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as other:
        try:
            other.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        other.execute("ROLLBACK")
        return True


async def test_owed_write_that_meets_a_damaged_record_holds_up_no_other(
    path: Path, store: SqliteStore
) -> None:
    """D3: the doubt of all that came after it was kept from the ledger."""
    owed = OwedWrites(store)
    first, second = await lead(store, "K-1"), await lead(store, "K-2")
    for leading in (first, second):
        owed.add(Bump(SCOPE, leading.id))
    spoil(path, first.id)
    assert not await owed.pay()
    assert len(owed) == 1
    done = await store.load(second.id)
    assert done is not None
    assert done.fence == second.fence + 1


def _with_body(row: Operation, body: bytes) -> Operation:
    answer = settled(row, 1).answer
    assert answer is not None
    return replace(row, answer=replace(answer, body=body))


async def test_killed_process_loses_no_acknowledged_claim(path: Path) -> None:
    """O1: whatever was acknowledged before SIGKILL is there afterwards."""
    claimer = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.stores.claimer", f"sqlite:{path}", stdout=asyncio.subprocess.PIPE
    )
    assert claimer.stdout is not None
    acknowledged = [await claimer.stdout.readline() for _ in range(300)]
    claimer.kill()
    acknowledged += (await claimer.stdout.read()).splitlines(keepends=True)
    await claimer.wait()
    store = SqliteStore(path, clock=CLOCK, timeout_ms=3_000)
    await store.open()
    for line in acknowledged:
        if line.endswith(b"\n"):
            assert await store.load(OperationId(line.decode().strip())) is not None
    await store.close()


async def test_claim_is_on_the_disk_though_what_the_log_held_before_it_never_got_there(
    path: Path, tmp_path: Path, store: SqliteStore
) -> None:
    """R1: a sync that fails leaves its commit in the system's memory, where it counts as written from then on.

    The next start takes it up from there; a power cut then took it, and with it all that followed in the log.
    """
    for n in range(10):
        await lead(store, f"K-{n}")
    begin = _size(wal_of(path))
    await lead(store, "unsynced")
    started = as_left(path, tmp_path / "started")
    end = _size(wal_of(path))

    second = SqliteStore(started, clock=CLOCK, timeout_ms=3_000)
    await second.open()
    leading = await lead(second, "acknowledged")
    after_the_cut = as_left(started, tmp_path / "cut", never_written=(begin, end))
    await second.close()

    third = SqliteStore(after_the_cut, clock=CLOCK, timeout_ms=3_000)
    await third.open()
    assert await third.load(leading.id) == leading
    await third.close()


def as_left(path: Path, folder: Path, *, never_written: tuple[int, int] = (0, 0)) -> Path:
    """The ledger as a crash leaves it, in a folder of its own. Args: never_written: of its log."""
    folder.mkdir()
    shutil.copy(path, folder)
    begin, end = never_written
    log = wal_of(path).read_bytes()
    (folder / wal_of(path).name).write_bytes(log[:begin] + bytes(end - begin) + log[end:])
    return folder / path.name


async def test_log_beside_what_a_link_leads_to_is_watched_too(tmp_path: Path) -> None:
    """O-58: SQLite keeps the log beside the file, and not beside the link that store.url names."""
    (tmp_path / "disk").mkdir()
    link = tmp_path / "ledger.db"
    link.symlink_to(tmp_path / "disk" / "real.db")
    store = SqliteStore(link, clock=CLOCK, timeout_ms=3_000)
    await store.open()
    try:
        await lead(store, "K-1")
        assert wal_of(link).parent.name == "disk"
        wal_of(link).rename(tmp_path / "away")
        with pytest.raises(StoreUnavailable, match=r"real\.db-wal: deleted, moved or replaced"):
            await store.transact(reserve("K-2"))
        (tmp_path / "away").rename(wal_of(link))
        await lead(store, "K-3")
    finally:
        await store.close()


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("is_copied", [False, True])
async def test_file_that_is_taken_away_takes_no_claim_until_it_is_back(
    path: Path, store: SqliteStore, end: str, is_copied: bool
) -> None:
    """O-58: claims went on into a file without a name; the next start knew nothing of them."""
    await lead(store, "K-1")
    file, away = f"{path}{end}", path.with_name("away")
    shutil.move(file, away)
    if is_copied:
        shutil.copy(away, file)

    with pytest.raises(StoreUnavailable, match=r"deleted, moved or replaced .* nothing was written"):
        await store.transact(reserve("K-2"))
    with pytest.raises(StoreUnavailable, match="deleted, moved or replaced"):
        await store.ping()
    shutil.move(away, file)

    await lead(store, "K-3")
    await store.ping()
    page = await store.find(Query())
    assert {one.key for one in page.operations} == {"K-1", "K-3"}


@pytest.mark.parametrize("end", ENDS)
async def test_log_is_not_moved_once_a_file_is_anothers(
    path: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """O-58: the process that still ran damaged what the one started after an `rm *-shm` had written."""
    monkeypatch.setattr(sqlite_writer, "IDLE_S", 60.0)
    await lead(store, "K-1")
    writer = store._writer
    assert writer is not None
    file, away = f"{path}{end}", path.with_name("away")
    shutil.move(file, away)
    shutil.copy(away, file)
    ledger = path if end else away
    before = _content(ledger)

    await writer.worker.call(writer.tidy)
    assert _content(ledger) == before
    shutil.move(away, file)
    await writer.worker.call(writer.tidy)
    assert _content(path) != before


@pytest.mark.parametrize("end", ["-wal", "-shm"])
async def test_close_leaves_the_log_where_a_file_is_anothers(
    path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """O-58: it dropped the log by its name, and with it what the process started after the `rm` had claimed."""
    monkeypatch.setattr(sqlite_writer, "IDLE_S", 60.0)
    store = SqliteStore(path, clock=CLOCK, timeout_ms=3_000)
    await store.open()
    await lead(store, "K-1")
    file, away = f"{path}{end}", path.with_name("away")
    shutil.move(file, away)
    shutil.copy(away, file)
    before = _content(path), _content(wal_of(path))
    await store.close()
    assert (_content(path), _content(wal_of(path))) == before


def _content(path: Path) -> bytes:
    return path.read_bytes()


async def test_close_leaves_one_file(path: Path) -> None:
    store = SqliteStore(path, clock=CLOCK, timeout_ms=3_000)
    await store.open()
    await lead(store, "K-1")
    await store.close()
    assert [file.name for file in path.parent.iterdir()] == [path.name]


async def test_lists_use_their_indexes(path: Path, store: SqliteStore) -> None:
    """No list scans the ledger: it has to stay fast with millions of settled records."""
    names = [
        name for name in SQL if name.startswith(("find", "holdings", "purgeable", "empty", "get_subjects"))
    ]
    with closing(sqlite3.connect(path)) as connection:
        for name in names:
            statement = SQL[name]
            values = dict.fromkeys(re.findall(r":(\w+)", statement), 1) if ":" in statement else ("x",)
            plan = connection.execute(f"EXPLAIN QUERY PLAN {statement}", values).fetchall()
            for step in (row[-1] for row in plan):
                assert "TEMP B-TREE FOR ORDER" not in step, (name, step)
                assert not step.startswith("SCAN operations") or "INDEX" in step, (name, step)


async def test_start_without_files_to_spare_is_one_clear_failure_wherever_they_run_out(path: Path) -> None:
    """The second connection, and the secret, failed in SQLite's own words, which ended a start in a traceback."""
    store = SqliteStore(path, clock=CLOCK, timeout_ms=3_000)
    await store.open()
    await store.close()
    failures = 0
    for spare in range(40):
        store = SqliteStore(path, clock=CLOCK, timeout_ms=3_000)
        with files_left(spare):
            try:
                await store.open()
            except StoreUnavailable as error:
                failures += 1
                assert "opening the ledger" in str(error)
            else:
                break
        await store.close()
    await store.close()
    assert failures > 1


@contextmanager
def files_left(count: int) -> Iterator[None]:
    """This process may open so many files more."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + count, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
