"""The ledger's file: where it may lie, opening it, its schema, and its failures in words an operator can act
on.

A file that can't be trusted is refused. Nothing here ever makes a new file where one was lost or damaged,
since an empty ledger forgets every unknown payment (O-58).
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.resources import files
from pathlib import Path
from typing import TypeVar

from proxy.ports import Clock, StoreUnavailable

Result = TypeVar("Result")

APPLICATION_ID = 0x5AFE9057
BUSY_SLICE_MS = 50  # the longest wait for a lock in one go; callers look at their time limits in between
CHECK_MS_MAX = 5_000  # of the quick check at open: refusing has to take less than 10 s (O-58)
CHECK_STEPS = 20_000  # virtual machine steps between two looks at the clock
JOURNAL_BYTES_KEPT = 32 * 1024 * 1024  # what stays of the WAL file after it grew (O-57 asks for under 64 MB)
SETTINGS = (
    "synchronous = FULL",
    "wal_autocheckpoint = 0",  # the writer checkpoints between groups, never in one
    f"journal_size_limit = {JOURNAL_BYTES_KEPT}",
    "temp_store = MEMORY",
    "cache_size = -32768",
)

ENDS = ("", "-wal", "-shm")  # of the names of a ledger's files

MEMORY_FILE_SYSTEMS = frozenset({"tmpfs", "ramfs", "devtmpfs"})
NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "virtiofs", "fuse.sshfs"}
    | {"afs", "ceph", "glusterfs", "lustre"}
)
LAYER_FILE_SYSTEMS = frozenset({"overlay", "aufs"})
MOUNTS = Path("/proc/self/mountinfo")

UNHARMED = "No call was sent without a record."
OPENING = "opening the ledger"
UNTIL_STARTED = (
    "Then start Safepost again: until it runs, nothing is sent, and nobody asks what became of the payments "
    "in doubt."
)


def named_statements(text: str) -> dict[str, str]:
    """The statements of an SQL file by the names in its `-- name:` lines."""
    statements: dict[str, str] = {}
    for section in text.split("-- name: ")[1:]:
        name, _, body = section.partition("\n")
        statements[name.strip()] = body.strip()
    return statements


SQL = named_statements(files("proxy.stores").joinpath("sqlite.sql").read_text(encoding="utf-8"))
_VALUES = re.compile(r"\(\?(?:, \?)*\)")


@lru_cache(maxsize=64)
def for_rows(name: str, count: int) -> str:
    """The named statement for `count` rows at once: its row of values, `(?, ?)`, so many times."""
    return _VALUES.sub(lambda row: ", ".join([row[0]] * count), SQL[name], count=1)


MIGRATIONS: tuple[str, ...] = (SQL["schema_1"],)
"""Entry N leads from schema N to N+1, statement by statement, in one transaction."""


def file_system_of(path: Path, *, mounts: Path = MOUNTS) -> str | None:
    """The type of the file system that holds the path; None where the system doesn't tell."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    place = path.resolve()
    best, found = -1, None
    for line in lines:
        before, _, after = line.partition(" - ")
        point = before.split()[4].encode().decode("unicode_escape")
        if place.is_relative_to(point) and len(point) >= best:
            best, found = len(point), after.split()[0]
    return found


def path_warnings(path: Path, *, mounts: Path = MOUNTS) -> tuple[str, ...]:
    """What is legal but unsafe about the ledger's place (D1)."""
    kind = file_system_of(path, mounts=mounts)
    warning = ""
    if kind in MEMORY_FILE_SYSTEMS:
        warning = "in memory ({kind}): a restart of the host forgets every payment in doubt"
    elif kind in NETWORK_FILE_SYSTEMS:
        warning = (
            "on a network file system ({kind}), whose locks SQLite can't rely on: two hosts could lead one "
            "payment. Use a local disk, or Redis for several hosts"
        )
    elif kind in LAYER_FILE_SYSTEMS:
        warning = "on a container's own layer ({kind}), which goes with the container: mount a volume"
    return (f"{path}: the ledger lies {warning.format(kind=kind)}",) if warning else ()


def explain(error: sqlite3.Error, path: Path, doing: str) -> StoreUnavailable:
    """The failure as where, what, what it means for the money, and what to do."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    advice = _ADVICE.get(code) or Advice(str(error), "See the system's log for the disk that holds it.")
    if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_IOERR_SHMSIZE:
        advice = _ADVICE[sqlite3.SQLITE_FULL]
    then = f"{advice.then} {UNTIL_STARTED if doing == OPENING else advice.goes_on}".rstrip()
    return StoreUnavailable(f"{path}: {doing}: {advice.what} ({name}). {UNHARMED} {then}")


@dataclass(frozen=True, slots=True)
class Advice:
    """What an error code means, what to do about it, and how a running Safepost goes on then."""

    what: str
    then: str
    goes_on: str = ""


DAMAGED = Advice(
    "the file is damaged",
    "Stop Safepost, move the file away with its -wal and -shm (an old -wal damages a backup put beside it), "
    "restore a backup or run `sqlite3 FILE .recover`, and compare unknown payments with the platform. Don't "
    "delete it: an empty ledger forgets every payment in doubt.",
)
_ADVICE: dict[int, Advice] = {
    sqlite3.SQLITE_BUSY: Advice(
        "another process holds the write lock",
        "Look for a shell, backup or other tool with the file open.",
        "Calls go on as soon as it lets go.",
    ),
    sqlite3.SQLITE_READONLY: Advice(
        "the file or its directory is read-only",
        "Give the user that runs Safepost write access to both; see that the disk is not mounted read-only.",
    ),
    sqlite3.SQLITE_CANTOPEN: Advice(
        "the file can't be opened",
        "Check that its directory exists and that the user that runs Safepost may write in it.",
    ),
    sqlite3.SQLITE_PERM: Advice("access is denied", "Give the user that runs Safepost access to the file."),
    sqlite3.SQLITE_FULL: Advice(
        "the disk is full, or a quota on it",
        "Free space on it.",
        "Calls go on by themselves, no restart is needed.",
    ),
    sqlite3.SQLITE_IOERR: Advice(
        "the disk failed to read or write", "Check the disk and the system's log before anything else."
    ),
    sqlite3.SQLITE_CORRUPT: DAMAGED,
    sqlite3.SQLITE_NOTADB: Advice(
        "the file is not a database",
        "Check the path in store.url. If the ledger was there, restore it from a backup.",
    ),
}


@dataclass(frozen=True, slots=True)
class Opened:
    """A connection that is ready to write, and what opening it showed."""

    connection: sqlite3.Connection
    notes: tuple[str, ...]


def open_ledger(
    path: Path, clock: Clock, *, patience_ms: int, migrations: Sequence[str] = MIGRATIONS
) -> Opened:
    """Open the ledger for writing; make it where there is none.

    Args: patience_ms: how long locks that other processes hold are waited for.
    Raises: StoreUnavailable: damaged, foreign, newer, unreachable, or locked for too long.
    """
    is_new = _look_first(path)
    patience = _Patience(clock, patience_ms)
    connection: sqlite3.Connection | None = None
    try:
        connection = patience.take(partial(connect, path))
        patience.take(partial(_use_wal, connection))
        _refuse_foreign(connection, path)
        notes = () if is_new else _quick_check(connection, path, clock)
        patience.take(partial(migrate, connection, path, migrations))
    except sqlite3.Error as error:
        if connection is not None:
            connection.close()
        raise explain(error, path, OPENING) from error
    except StoreUnavailable:
        if connection is not None:
            connection.close()
        raise
    return Opened(connection, notes)


def connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    """A connection with every setting that matters. A commit is on the disk when it returns (`FULL`).

    Raises: sqlite3.Error. Some settings read the file: busy while another process has it for itself, which is to
    leave it as the last one, or to take up a log that a crash left.
    """
    connection = sqlite3.connect(
        path,
        timeout=BUSY_SLICE_MS / 1000,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
    )
    try:
        for setting in (*SETTINGS, *(["query_only = ON"] if read_only else [])):
            connection.execute(f"PRAGMA {setting}")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def wal_of(path: Path) -> Path:
    """SQLite keeps it beside the file itself, not beside a link to it."""
    return Path(f"{os.path.realpath(path)}-wal")


class OpenedFiles:
    """The ledger's files as this process has them open, the log and its index included.

    Whoever deletes or replaces one leaves this process writing where no start, and no other process, would find
    it: claims would be lost, and a second one could lead the same payment (O-58).
    """

    def __init__(self, path: Path) -> None:
        real = os.path.realpath(path)
        names = (str(path), *(f"{real}{end}" for end in ENDS[1:]))
        self._known: dict[str, tuple[int, int] | None] = dict.fromkeys(names)

    def check(self) -> None:
        """Raises: StoreUnavailable where one of the names is another file's now, or none's."""
        for name, known in self._known.items():
            found = _identity(name)
            if known is None:
                self._known[name] = found  # the log is made by the first write
            elif found != known:
                raise StoreUnavailable(
                    f"{name}: deleted, moved or replaced while the ledger was in use; nothing was written. "
                    f"{UNHARMED} Put the same file back, and calls go on. If it was deleted, it is still in "
                    f"/proc/{os.getpid()}/fd until Safepost ends: copy it with its -wal from there first. Don't "
                    "start on an empty ledger: it forgets every payment in doubt."
                )

    @property
    def are_anothers(self) -> bool:
        """Whether one of the names is another file's: who made that can't see our locks, nor we theirs."""
        return any(known and _identity(name) not in (known, None) for name, known in self._known.items())


def _identity(name: str) -> tuple[int, int] | None:
    try:
        found = os.stat(name)  # noqa: PTH116 -- for each commit: no object on the way
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _look_first(path: Path) -> bool:
    """Whether the file is to be made.

    Raises: StoreUnavailable where making it would hide a loss, or can't work.
    """
    directory = path.parent
    if not directory.is_dir():
        raise StoreUnavailable(
            f"{path}: {OPENING}: its directory does not exist. {UNHARMED} Make it, or correct store.url."
        )
    log_bytes = _bytes_of(wal_of(path))  # first: another process that makes the file makes its log afterwards
    if log_bytes and not _bytes_of(path):
        raise StoreUnavailable(
            f"{path}: {OPENING}: the file is {'empty' if path.exists() else 'gone'} but its log "
            f"{wal_of(path).name} is still there. An empty ledger in its place would forget every payment in "
            "doubt. Put the file back, or move the log away once you know what became of it."
        )
    if not path.exists():
        if not os.access(directory, os.W_OK):
            raise StoreUnavailable(
                f"{path}: {OPENING}: its directory is read-only for the user that runs Safepost. "
                f"{UNHARMED} Give it write access."
            )
        return True
    if path.is_dir():
        raise StoreUnavailable(
            f"{path}: {OPENING}: it is a directory. {UNHARMED} Name a file in store.url: "
            f"sqlite:{path / 'safepost.db'}"
        )
    if not os.access(path, os.R_OK | os.W_OK):
        raise StoreUnavailable(
            f"{path}: {OPENING}: the file can't be read and written by the user that runs Safepost. "
            f"{UNHARMED} Give it access to the file and its directory."
        )
    return not _bytes_of(path)


def _bytes_of(path: Path) -> int:
    """The file's size; 0 where there is none."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


class _Patience:
    """Takes a step, and again while another process holds the lock, until time is up."""

    def __init__(self, clock: Clock, patience_ms: int) -> None:
        self._clock = clock
        self._until_ms = clock.monotonic_ms() + patience_ms

    def take(self, step: Callable[[], Result]) -> Result:
        while True:
            try:
                return step()
            except sqlite3.OperationalError as error:
                if not is_busy(error) or self._clock.monotonic_ms() >= self._until_ms:
                    raise


def is_busy(error: sqlite3.Error) -> bool:
    """Whether only another connection's lock stood in the way."""
    return error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _use_wal(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA journal_mode = WAL").fetchone()


def _refuse_foreign(connection: sqlite3.Connection, path: Path) -> None:
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    tables = connection.execute("SELECT COUNT(*) FROM sqlite_schema").fetchone()[0]
    if tables and application != APPLICATION_ID:
        raise StoreUnavailable(
            f"{path}: {OPENING}: this is the database of another program. {UNHARMED} "
            "Point store.url at a file of Safepost's own."
        )


def _quick_check(connection: sqlite3.Connection, path: Path, clock: Clock) -> tuple[str, ...]:
    """Look the file's structure over, for as long as a start may take.

    Returns: a note where the file was too large to be looked over as a whole.
    """
    until_ms = clock.monotonic_ms() + CHECK_MS_MAX
    connection.set_progress_handler(lambda: int(clock.monotonic_ms() > until_ms), CHECK_STEPS)
    try:
        with closing(connection.execute("PRAGMA quick_check(1)")) as rows:
            verdict = rows.fetchone()[0]
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
            raise
        return (f"{path}: too large to be checked at start in {CHECK_MS_MAX} ms; damage shows when read",)
    finally:
        connection.set_progress_handler(None, 0)
    if verdict != "ok":
        raise StoreUnavailable(f"{path}: {OPENING}: {DAMAGED.what} ({verdict}). {UNHARMED} {DAMAGED.then}")
    return ()


def migrate(connection: sqlite3.Connection, path: Path, migrations: Sequence[str]) -> None:
    """Bring the schema up to the last of `migrations`, all of it or none.

    Raises: StoreUnavailable where a newer Safepost made the schema.
    """
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    if version == len(migrations):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = connection.execute("PRAGMA user_version").fetchone()[
            0
        ]  # another process may have been first
        if version > len(migrations):
            raise StoreUnavailable(
                f"{path}: {OPENING}: its schema is version {version}, this Safepost knows up to "
                f"{len(migrations)}. {UNHARMED} Run the release that wrote it, or a newer one."
            )
        for script in migrations[version:]:
            for statement in script.split(";\n"):
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {len(migrations)}")
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
