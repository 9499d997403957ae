"""Rows that are not in memory are supposed absent until the file is asked: never to the harm of a verb."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from proxy.clock import SystemClock
from proxy.core.messages import Recorded, Reserved, Running
from proxy.core.model import Now, OperationId, Scope
from proxy.core.tables import Tables
from proxy.ports import StoreUnavailable
from proxy.stores.sqlite import SqliteStore
from proxy.stores.sqlite_file import SQL, for_rows
from proxy.stores.sqlite_rows import ROUNDS_MAX, ROWS_AT_ONCE
from tests.contract.values import lead, operation, reserve, settled
from tests.core.payhub import SCOPE

CLOCK = SystemClock()


@dataclass(frozen=True, slots=True)
class Follow:
    """Reads operations one after another until one is missing; the number of those that were there."""

    names: tuple[OperationId, ...]
    scope: Scope = SCOPE
    name: str = "follow"

    def apply(self, tables: Tables, now: Now) -> int:
        for count, name in enumerate(self.names):
            if tables.operation(self.scope, name) is None:
                return count
        return len(self.names)


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    """A ledger in which some payments are settled, and nothing of it is in anybody's memory."""
    path = tmp_path / "ledger.db"
    store = SqliteStore(path, clock=CLOCK, timeout_ms=5_000)
    await store.open()
    for number in range(ROUNDS_MAX + 3):
        leading = await lead(store, f"K-{number}")
        await store.transact(settled(leading, CLOCK.wall_ms()))
    await store.close()
    return path


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path, clock=CLOCK, timeout_ms=5_000)
    await store.open()
    yield store
    await store.close()


async def test_settled_payment_among_new_ones_is_found_and_the_new_ones_lead_once(store: SqliteStore) -> None:
    """The verbs of the group are applied again, from rows as they are."""
    names = ("K-0", "N-1", "K-1", "N-2", "N-1")
    answers = await asyncio.gather(
        *(store.transact(reserve(name, f"me-{at}")) for at, name in enumerate(names))
    )
    assert [type(answer) for answer in answers] == [Recorded, Reserved, Recorded, Reserved, Running]
    leading = await store.load(operation("N-1").id)
    assert leading is not None
    assert (leading.fence, leading.attempt_count) == (1, 1)


async def test_verb_that_walks_from_row_to_row_reads_them_all(store: SqliteStore) -> None:
    """More rows, each known only after the one before, than rounds of supposing."""
    names = tuple(operation(f"K-{number}").id for number in range(ROUNDS_MAX + 3))
    assert await store.transact(Follow((*names, OperationId("op_none")))) == ROUNDS_MAX + 3


async def test_more_new_payments_than_one_statement_takes_are_all_there(store: SqliteStore) -> None:
    count = 2 * ROWS_AT_ONCE + 7
    await asyncio.gather(*(lead(store, f"N-{number}") for number in range(count)))
    found = [await store.load(operation(f"N-{number}").id) for number in range(count)]
    assert None not in found


async def test_damaged_row_fails_the_verb_that_needs_it_and_no_other(path: Path, store: SqliteStore) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("UPDATE operations SET doc = zeroblob(9) WHERE id = ?", (operation("K-0").id,))
    broken, known, new = await asyncio.gather(
        store.transact(reserve("K-0")),
        store.transact(reserve("K-1")),
        store.transact(reserve("N-1")),
        return_exceptions=True,
    )
    assert isinstance(broken, StoreUnavailable)
    assert isinstance(known, Recorded)
    assert isinstance(new, Reserved)


@pytest.mark.parametrize(("name", "width"), [("get_operation_rows", 1), ("get_subject_rows", 2)])
async def test_looking_rows_up_never_scans(path: Path, name: str, width: int) -> None:
    with closing(sqlite3.connect(path)) as connection:
        plan = connection.execute(f"EXPLAIN QUERY PLAN {for_rows(name, 3)}", ["x"] * width * 3).fetchall()
    table = name.split("_")[1] + "s"
    assert any(step[-1].startswith(f"SEARCH {table} USING") for step in plan)


@pytest.mark.parametrize("name", ["put_operation", "put_subject"])
def test_statement_for_many_rows_repeats_the_values_alone(name: str) -> None:
    once, thrice = SQL[name], for_rows(name, 3)
    assert thrice.count("?") == 3 * once.count("?")
    assert thrice.count("INSERT") == thrice.count("ON CONFLICT") == 1
