"""Which alerts should have fired in which phase, and which did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from deploy.observe.server import Firing


class Phase(Protocol):
    """One thing that goes wrong, and the alerts that belong to it."""

    @property
    def name(self) -> str: ...
    @property
    def alerts(self) -> frozenset[str]: ...


class Played(Protocol):
    """When a phase began, and when the calm after it ended."""

    @property
    def phase(self) -> Phase: ...
    @property
    def began_ms(self) -> int: ...
    @property
    def rested_ms(self) -> int: ...


def unexpected(results: Sequence[Played], firings: Sequence[Firing]) -> list[str]:
    """Alerts that should have fired in a phase and did not, fired and should not have, or did not clear."""
    wrong = [
        f"{firing.name} fired outside any phase" for firing in firings if phase_of(firing, results) is None
    ]
    for result in results:
        inside = [f for f in firings if result.began_ms <= f.began_ms < result.rested_ms]
        fired = {f.name for f in inside}
        wrong += [f"{result.phase.name}: {name} did not fire" for name in sorted(result.phase.alerts - fired)]
        wrong += [f"{result.phase.name}: {name} fired" for name in sorted(fired - result.phase.alerts)]
        wrong += [
            f"{result.phase.name}: {f.name} did not clear"
            for f in inside
            if result.rested_ms <= f.ended_ms + 1_000
        ]
    return wrong


def phase_of(firing: Firing, results: Sequence[Played]) -> str | None:
    """The phase that an alert began to fire in."""
    return next((r.phase.name for r in results if r.began_ms <= firing.began_ms < r.rested_ms), None)
