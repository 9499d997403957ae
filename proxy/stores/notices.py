"""What a store has to tell an operator while it runs; `app` makes facts of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class NoticeKind(StrEnum):
    """What happened to the store."""

    WAL_STARVED = "wal_starved"  # SQLite: a long reader keeps the log from being emptied (O-57)
    WAL_EMPTIED = "wal_emptied"
    DAMAGED = "damaged"  # records that can't be read were left out of a list
    LOST_DATA = "lost_data"  # Redis: the store marker vanished (D6)
    PUT_BACK = "put_back"  # the journal put lost operations back (D6)
    JOURNAL_FAILING = "journal_failing"
    JOURNAL_WRITTEN = "journal_written"
    SETTINGS = "settings"  # Redis: what could lose claims was set otherwise (D5)
    AWAY = "away"
    BACK = "back"


@dataclass(frozen=True, slots=True)
class Notice:
    """`text` says where, what, what it means for the money and what to do.

    `warnings`: of the store's settings, as they are from now on; None: as they were.
    """

    kind: NoticeKind
    text: str
    warnings: tuple[str, ...] | None = None


Notify = Callable[[Notice], None]


def unheard(notice: Notice) -> None:
    """Where nobody listens: tests and tools."""


def damage(where: object, records: int, *, then: str) -> str:
    """What is said of records that can't be read, and `then` is to be done."""
    count = f"{records} record{'s' if records > 1 else ''}"
    return (
        f"{where}: {count} can't be read: damaged, or a newer Safepost's. Nothing is sent for these and nobody "
        f"looks them up; all others go on. {then}"
    )
