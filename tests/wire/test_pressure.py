"""The product under pressure, at sizes that a test suite can bear; `make pressure` has the full ones.

Times are bounded so that a machine ten times as slow passes, and a product without the limit in question fails.
"""

from __future__ import annotations

import re

import pytest

from proxy import loops
from tests.wire import pressure
from tests.wire.pressure import MIB, PORTS

pytestmark = pytest.mark.slow


def test_idle_connections_cost_little_memory_and_hold_no_payment_up() -> None:
    """10,000 have to stay under 150 MiB: a fifth of them may take a fifth of what that leaves."""
    found = loops.run(pressure.idle_connections(2_000))

    assert found.status == 201
    assert found.payment_ms < 10_000
    assert found.memory_mib - found.before_mib < (150 - found.before_mib) / 5


def test_streams_of_any_size_pass_in_bounded_memory() -> None:
    size = 192 * MIB

    found = loops.run(pressure.streamed(size))

    assert (found.arrived, found.came_back) == (size, size)
    assert found.peak_mib < 100


@pytest.mark.parametrize("downwards", [True, False], ids=["caller", "platform"])
def test_sender_is_held_back_while_nobody_reads(downwards: bool) -> None:
    found = loops.run(pressure.held_back(downwards=downwards))

    assert found.sent_mib < 32, "only the kernel's buffers may fill"
    assert found.peak_mib < 100


def test_o36_slow_senders_are_cut_and_hold_nobody_up() -> None:
    found = loops.run(pressure.slow_senders(100))

    assert found.slowest_payment_ms < 10_000
    assert (found.hits, found.operations) == (20, 20)
    assert found.all_cut_after_s < 100, "a body would drip for a thousand seconds"
    assert found.memory_mib < 150


def test_more_callers_than_open_files_are_refused_and_served_afterwards() -> None:
    found = loops.run(pressure.few_files(100, 120))

    assert found.told.pop("201 executed") == found.hits > 10
    assert found.told.keys() <= {"503 too_many_connections", "closed"}
    assert found.afterwards == 201
    assert found.faults == 0


def test_more_calls_than_local_ports_are_not_sent_and_served_afterwards() -> None:
    printed = pressure.in_a_network_of_its_own(60)
    if printed is None:
        pytest.skip("needs the right to make a network namespace, and the ip command")

    served = re.search(r"'201 executed': (\d+)", printed)
    assert served is not None
    assert 10 < int(served[1]) <= PORTS
    assert f"'503 upstream_unavailable not_executed': {60 - int(served[1])}" in printed
    assert "afterwards=201, faults=0" in printed


def test_call_without_a_connection_in_time_is_not_sent_and_may_come_again() -> None:
    waiting, afterwards = loops.run(pressure.full_pool())

    assert {(told.status, told.code, told.knowledge) for told in waiting} == {
        (503, "upstream_unavailable", "not_executed")
    }
    assert (afterwards.status, afterwards.knowledge) == (201, "executed")
