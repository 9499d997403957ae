"""Opening the ledger's file: what is refused, in which words, and that no loss is ever papered over."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from proxy.clock import SystemClock
from proxy.ports import StoreUnavailable
from proxy.stores.sqlite import SqliteStore
from proxy.stores.sqlite_file import (
    APPLICATION_ID,
    MIGRATIONS,
    file_system_of,
    named_statements,
    open_ledger,
    path_warnings,
)
from tests.contract.values import lead
from tests.stores.quota import no_file_beyond

CLOCK = SystemClock()


def store_at(path: Path, *, timeout_ms: int = 5_000) -> SqliteStore:
    return SqliteStore(path, clock=CLOCK, timeout_ms=timeout_ms)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


async def fill(path: Path, *, count: int = 300) -> None:
    store = store_at(path)
    await store.open()
    for n in range(count):
        await lead(store, f"K-{n}")
    await store.close()


def content(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def spoil(path: Path, *, share: float) -> None:
    """4 KiB of noise over the page at that share of the file."""
    with path.open("r+b") as file:
        file.seek(int(path.stat().st_size * share) // 4096 * 4096)
        file.write(os.urandom(4096))


async def refusal(path: Path) -> str:
    """What opening the file says."""
    before = content(path)
    store = store_at(path)
    with pytest.raises(StoreUnavailable) as raised:
        await store.open()
    assert content(path) == before
    return str(raised.value)


async def test_open_reports_kind_and_place(path: Path) -> None:
    store = store_at(path)
    report = await store.open()
    await store.close()
    assert report.kind == "sqlite"
    assert str(path) in report.detail
    assert "guards this host" in report.detail


async def test_open_missing_directory_is_refused(tmp_path: Path) -> None:
    assert "its directory does not exist" in await refusal(tmp_path / "none" / "ledger.db")


@pytest.fixture
def letter(path: Path) -> Path:
    path.write_bytes(b"a letter to the editor" * 400)
    return path


async def test_open_file_of_another_kind_is_refused(letter: Path) -> None:
    assert "not a database" in await refusal(letter)


async def test_open_database_of_another_program_is_refused(path: Path) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE songs (title TEXT)")
    assert "another program" in str(await refusal_after_wal(path))


async def refusal_after_wal(path: Path) -> str:
    """Turning on the log may touch the header of a foreign file; its tables stay."""
    store = store_at(path)
    with pytest.raises(StoreUnavailable) as raised:
        await store.open()
    return str(raised.value)


async def test_open_newer_schema_is_refused(path: Path) -> None:
    await fill(path, count=1)
    with closing(sqlite3.connect(path)) as other:
        other.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    message = await refusal_after_wal(path)
    assert f"schema is version {len(MIGRATIONS) + 1}" in message
    assert "Run the release that wrote it" in message


@pytest.mark.parametrize("share", [0.3, 0.5, 0.7])
async def test_open_damaged_file_is_refused_and_left_alone(path: Path, share: float) -> None:
    """O-58: 4 KiB of noise in the middle."""
    await fill(path)
    spoil(path, share=share)
    message = await refusal(path)
    assert str(path) in message
    assert "damaged" in message
    assert "restore a backup" in message


@pytest.fixture
def log_alone(path: Path) -> Path:
    path.with_name("ledger.db-wal").write_bytes(b"log of a ledger")
    return path


async def test_open_file_gone_while_its_log_remains_is_refused(log_alone: Path) -> None:
    assert "the file is gone but its log" in await refusal(log_alone)
    assert content(log_alone) is None


@pytest.fixture
def emptied(log_alone: Path) -> Path:
    log_alone.touch()
    return log_alone


async def test_open_file_emptied_while_its_log_remains_is_refused(emptied: Path) -> None:
    """O-58: SQLite takes it for a new file and drops the log: a ledger without the claims began in its place."""
    assert "the file is empty but its log" in await refusal(emptied)
    assert content(emptied.with_name("ledger.db-wal")) == b"log of a ledger"


async def test_open_directory_in_the_files_place_is_refused(tmp_path: Path) -> None:
    told = await refusal(tmp_path)
    assert "it is a directory" in told
    assert f"sqlite:{tmp_path}/safepost.db" in told


async def test_open_while_another_process_holds_the_lock_waits(path: Path) -> None:
    await fill(path, count=1)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        store = store_at(path)
        await store.open()
        await store.close()


class LeftWhenAwaited(SystemClock):
    """Has the other leave the file once somebody waits for it, which is when the time is asked for again."""

    def __init__(self, other: sqlite3.Connection) -> None:
        super().__init__()
        self._other = other
        self._asked = 0

    def monotonic_ms(self) -> int:
        self._asked += 1
        if self._asked == 2:
            self._other.close()
        return super().monotonic_ms()


async def test_open_while_another_process_has_the_file_for_itself_waits(path: Path) -> None:
    """O1: as the last to leave it, or taking up what a crash left; a start beside that ended after 50 ms."""
    await fill(path, count=1)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN IMMEDIATE")
        open_ledger(path, LeftWhenAwaited(other), patience_ms=5_000).connection.close()


async def test_open_on_a_full_disk_says_so_and_what_to_do(path: Path) -> None:
    """After a clean end there is no log; its index is then the first file to find no room."""
    await fill(path, count=1)
    with no_file_beyond(4096):
        message = await refusal(path)
    assert f"{path}: opening the ledger: the disk is full" in message
    assert "No call was sent without a record. Free space on it. Then start Safepost again" in message
    assert "by themselves" not in message
    store = store_at(path)
    await store.open()
    await store.close()


async def test_two_processes_make_the_file_at_once(path: Path) -> None:
    first, second = store_at(path), store_at(path)
    await first.open()
    await second.open()
    assert first.secrets() == second.secrets()
    await first.close()
    await second.close()


OLDER = "CREATE TABLE operations (id TEXT PRIMARY KEY);\nINSERT INTO operations VALUES ('kept')"
NEXT = "ALTER TABLE operations ADD COLUMN note TEXT NOT NULL DEFAULT '';\nCREATE TABLE added (x)"
BROKEN = "CREATE TABLE half (x);\nCREATE TABLE half (x)"


def test_migrate_older_schema_keeps_its_rows(path: Path) -> None:
    open_ledger(path, CLOCK, patience_ms=100, migrations=(OLDER,)).connection.close()
    with closing(
        open_ledger(path, CLOCK, patience_ms=100, migrations=(OLDER, NEXT)).connection
    ) as connection:
        assert connection.execute("SELECT id, note FROM operations").fetchall() == [("kept", "")]
        assert connection.execute("PRAGMA user_version").fetchone() == (2,)
        assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)


def test_migrate_that_fails_leaves_the_older_schema_whole(path: Path) -> None:
    open_ledger(path, CLOCK, patience_ms=100, migrations=(OLDER,)).connection.close()
    with pytest.raises(StoreUnavailable, match="opening the ledger"):
        open_ledger(path, CLOCK, patience_ms=100, migrations=(OLDER, NEXT, BROKEN))
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
        assert connection.execute("SELECT id FROM operations").fetchall() == [("kept",)]


def test_named_statements_are_split_by_their_names() -> None:
    text = "-- about\n-- name: one\nSELECT 1;\n\n-- name: two\nSELECT\n 2;\n"
    assert named_statements(text) == {"one": "SELECT 1;", "two": "SELECT\n 2;"}


MOUNTS = """\
22 1 259:1 / / rw,relatime shared:1 - ext4 /dev/root rw
30 22 0:25 / /run rw,nosuid shared:2 - tmpfs tmpfs rw
31 22 0:26 / /mnt/nfs\\040share rw shared:3 - nfs4 server:/x rw
32 22 0:27 / /layer rw - overlay overlay rw
33 30 259:2 / /run/disk rw - xfs /dev/sdb rw
"""


@pytest.mark.parametrize(
    ("place", "kind", "warning"),
    [
        ("/var/lib/s.db", "ext4", None),
        ("/run/s.db", "tmpfs", "in memory"),
        ("/run/disk/s.db", "xfs", None),
        ("/mnt/nfs share/s.db", "nfs4", "network file system"),
        ("/layer/s.db", "overlay", "container's own layer"),
    ],
)
def test_path_warnings_tell_unsafe_file_systems(
    tmp_path: Path, place: str, kind: str, warning: str | None
) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS)
    assert file_system_of(Path(place), mounts=mounts) == kind
    warnings = path_warnings(Path(place), mounts=mounts)
    assert [warning in one for one in warnings if warning] == [True] * bool(warning)
    assert len(warnings) == bool(warning)


def test_path_warnings_without_mount_table_are_silent(tmp_path: Path) -> None:
    assert path_warnings(tmp_path, mounts=tmp_path / "none") == ()
