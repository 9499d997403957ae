"""Every story of small worlds with one fault, at each step that it can strike."""

from __future__ import annotations

from tests.sim.exhaust import explore


def test_every_single_fault_of_two_calls_holds_every_promise() -> None:
    walk = explore(faults=1, thorough=False)
    assert walk.played > 500
    assert walk.worlds > 500
    assert not walk.is_cut
