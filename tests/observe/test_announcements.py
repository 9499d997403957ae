"""The ring of announcements: resume, gaps, ends (U7, A2)."""

from __future__ import annotations

import asyncio

import pytest

from proxy.core.messages import BecameKnown, BecameUnknown, OutcomeConflict
from proxy.core.model import State
from proxy.observe.announcements import KEPT, READERS_MAX, Announcements, TooManyReaders
from tests.observe.conftest import Seen, operation


def ring(count: int) -> Announcements:
    made = Announcements(first=100)
    for n in range(count):
        made.announce("note", {"n": n}, at_ms=n)
    return made


async def read(made: Announcements, last: int | None, count: int) -> list[int]:
    found: list[int] = []
    async for told in made.read(last, beat_s=5.0):
        if told is not None:
            found.append(told.id)
        if len(found) == count:
            break
    return found


async def test_reader_gets_what_it_missed_and_then_what_comes() -> None:
    made = ring(5)
    reading = asyncio.ensure_future(read(made, 102, 3))
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    made.announce("note", {}, at_ms=9)

    assert await asyncio.wait_for(reading, 5) == [103, 104, 105]


async def test_reader_without_a_number_begins_now() -> None:
    made = ring(5)
    reading = asyncio.ensure_future(read(made, None, 1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    made.announce("note", {}, at_ms=9)

    assert await asyncio.wait_for(reading, 5) == [105]


@pytest.mark.parametrize(
    ("count", "last", "found", "whole"),
    [
        (5, 104, 0, True),
        (5, 99, 5, True),
        (5, 98, 5, False),
        (5, 105, 5, False),
        (0, 99, 0, True),
        (KEPT + 10, 105, KEPT, False),
        (KEPT + 10, 109, KEPT, True),
    ],
)
def test_since_tells_whether_anything_is_missing(count: int, last: int, found: int, whole: bool) -> None:
    told, is_whole = ring(count).since(last)

    assert (len(told), is_whole) == (found, whole)


async def test_silence_gives_a_sign_of_life() -> None:
    async for told in ring(0).read(None, beat_s=0.01):
        assert told is None
        break


async def test_close_ends_every_reader() -> None:
    made = ring(1)
    readers = [asyncio.ensure_future(read(made, None, 1)) for _ in range(3)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    made.close()

    assert await asyncio.wait_for(asyncio.gather(*readers), 5) == [[], [], []]
    assert await made.changed(timeout_s=1.0) is False


async def test_readers_are_bounded() -> None:
    made = ring(0)
    open_ones = [made.read(None, beat_s=0.01) for _ in range(READERS_MAX)]
    for one in open_ones:
        assert await anext(one) is None

    assert made.is_full
    with pytest.raises(TooManyReaders):
        await anext(made.read(None, beat_s=0.01))


def test_settlements_are_announced_and_everyday_ones_are_not(seen: Seen) -> None:
    news = seen.observer.announcements
    settled = operation(state=State.EXECUTED, status="succeeded")

    seen.observer.fact(BecameKnown(settled, "answer"), None)
    seen.observer.fact(BecameUnknown(operation()), None)
    seen.observer.fact(BecameKnown(settled, "lookup"), None)
    seen.observer.fact(OutcomeConflict(settled, "two truths"), None)
    seen.observer.needs_person(operation(state=State.MANUAL_REVIEW))

    told, _ = news.since(news.first - 1)
    kinds = ["became_unknown", "became_known", "outcome_conflict", "manual_review"]
    assert [one.kind for one in told] == kinds
    assert told[1].data["by"] == "lookup"
    assert told[2].data["text"] == "two truths"


def test_alert_of_a_person_is_quiet_where_the_platform_knows(seen: Seen) -> None:
    """U3: none for a pending payment whose state the platform knows."""
    seen.observer.needs_person(operation(state=State.MANUAL_REVIEW))
    known = operation(state=State.MANUAL_REVIEW, accepted=True, resolution_status="known")
    seen.observer.needs_person(known)

    assert [line["level"] for line in seen.lines()] == ["error", "info"]
