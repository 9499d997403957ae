"""How much of the state table the stories took: a transition never taken is a failure of the simulator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from proxy.core.model import State
from proxy.core.states import TABLE
from tests.sim.rows import Edge
from tests.sim.story import Outcome

ROWS: frozenset[Edge] = frozenset(
    (source, row.move, target) for row in TABLE for source in row.sources for target in row.targets
)
NEVER: dict[Edge, str] = {}
"""Edges of the table that no verb makes, each with its reason."""


@dataclass
class Coverage:
    """Sums over many seeds."""

    seeds: int = 0
    on_file: int = 0
    operations: int = 0
    calls: int = 0
    steps: int = 0
    effects: int = 0
    lookups: int = 0
    taken: Counter[Edge] = field(default_factory=Counter)
    states: set[State] = field(default_factory=set)
    replies: Counter[str] = field(default_factory=Counter)

    def add(self, outcome: Outcome, *, on_file: bool = False) -> None:
        self.seeds += 1
        self.on_file += on_file
        self.operations += outcome.operations
        self.calls += outcome.calls
        self.steps += outcome.steps
        self.effects += outcome.effects
        self.lookups += outcome.lookups
        self.taken.update(outcome.taken)
        self.states |= outcome.states
        self.replies.update(outcome.replies)

    def merge(self, other: Coverage) -> None:
        for name in ("seeds", "on_file", "operations", "calls", "steps", "effects", "lookups"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.taken.update(other.taken)
        self.states |= other.states
        self.replies.update(other.replies)

    @property
    def missing(self) -> list[Edge]:
        return sorted(ROWS - set(self.taken) - set(NEVER), key=str)

    def report(self) -> Iterable[str]:
        yield (
            f"{self.seeds} seeds ({self.on_file} over SQLite files), {self.operations} operations, "
            f"{self.calls} calls, {self.steps} steps, {self.effects} effects, {self.lookups} lookups"
        )
        for edge, count in self.taken.most_common():
            yield f"{count:>10}  {words(edge)}"
        yield f"{len(self.taken)} of {len(ROWS) - len(NEVER)} transitions of the state table"
        for edge in self.missing:
            yield f"never taken: {words(edge)}"


def words(edge: Edge) -> str:
    source, move, target = edge
    return f"{source or 'none'} -[{move}]-> {target or 'none'}"
