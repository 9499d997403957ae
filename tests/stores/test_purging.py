"""When the wall clock may decide about dropping records (D1, O-65)."""

from __future__ import annotations

from proxy.core.model import Now, State, replace
from proxy.stores.purging import DAY_MS, HOUR_MS, ClockTrust, is_old
from tests.contract.values import START_MS, operation

RECORD_MS = 8 * DAY_MS


def at(boot_ms: int, wall_ms: int, boot: str = "b") -> Now:
    return Now(lease_ms=boot_ms, epoch=boot, wall_ms=wall_ms)


def test_trust_needs_an_hour_of_agreement() -> None:
    trust = ClockTrust()
    assert not trust.read(at(0, START_MS))
    assert not trust.read(at(HOUR_MS - 1, START_MS + HOUR_MS - 1))
    assert trust.read(at(HOUR_MS, START_MS + HOUR_MS))
    assert trust.read(at(9 * HOUR_MS, START_MS + 9 * HOUR_MS + 30_000))


def test_trust_is_lost_when_the_wall_clock_is_set_either_way() -> None:
    for jump in (2 * HOUR_MS, -2 * HOUR_MS, 61_000):
        trust = ClockTrust()
        trust.read(at(0, START_MS))
        assert not trust.read(at(HOUR_MS, START_MS + HOUR_MS + jump))
        assert not trust.read(at(2 * HOUR_MS - 1, START_MS + 2 * HOUR_MS - 1 + jump))
        assert trust.read(at(2 * HOUR_MS, START_MS + 2 * HOUR_MS + jump))


def test_trust_begins_anew_with_each_boot() -> None:
    trust = ClockTrust()
    trust.read(at(0, START_MS))
    assert not trust.read(at(HOUR_MS, START_MS + HOUR_MS, boot="another"))


def test_record_is_old_by_its_last_change() -> None:
    row = operation("K", state=State.EXECUTED)
    assert not is_old(row, at(1, START_MS + RECORD_MS - 1), record_ms=RECORD_MS)
    assert is_old(row, at(1, START_MS + RECORD_MS), record_ms=RECORD_MS)


def test_record_of_this_boot_is_not_old_before_its_lease_s_clock_says_so() -> None:
    """Written while the wall clock stood years behind, and set right since."""
    row = replace(operation("K", state=State.EXECUTED, at_ms=1_000), lease_epoch="b", lease_until_ms=10_000)
    assert not is_old(row, at(2 * HOUR_MS, START_MS), record_ms=RECORD_MS)
    assert is_old(row, at(RECORD_MS, START_MS), record_ms=RECORD_MS)


def test_unresolved_record_is_never_old() -> None:
    for state in (State.IN_FLIGHT, State.UNKNOWN, State.ABSENT, State.PENDING, State.MANUAL_REVIEW):
        assert not is_old(operation("K", state=state, at_ms=0), at(1, START_MS), record_ms=1)
