"""A deterministic world: a heap of (time, sequence, thunk), chance from a seed, faults from a plan.

No asyncio, no threads, no clock: the same seed is the same story, in a test and in a soak of hours. Every fault
passes through `World.fault`, so that a swarm of seeds can weigh them and the exhaustive walk can name them.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Protocol, TypeVar

from proxy.core.http import Answered, MaybeSent, NotSent, Response

START_MS = 1_000_000
WALL_START_MS = 1_700_000_000_000
STEPS_MAX = 60_000  # a hundred times an ordinary story
MASK = (1 << 64) - 1

Item = TypeVar("Item")
Thunk = Callable[[], None]


class Chance:
    """Draws from a seed: xorshift64* (Vigna, "An experimental exploration of Marsaglia's generators")."""

    __slots__ = ("_state",)

    def __init__(self, seed: int) -> None:
        mixed = (seed + 0x9E3779B97F4A7C15) * 0xBF58476D1CE4E5B9 & MASK
        self._state = (mixed ^ (mixed >> 31)) or 1

    def below(self, limit: int) -> int:
        """0 <= drawn < limit."""
        state = self._state
        state ^= state >> 12
        state ^= (state << 25) & MASK
        state ^= state >> 27
        self._state = state
        return ((state * 0x2545F4914F6CDD1D & MASK) >> 33) % limit

    def between(self, low: int, high: int) -> int:
        return low + self.below(high - low + 1)

    @property
    def state(self) -> int:
        return self._state

    def hits(self, permille: int) -> bool:
        return self.below(1000) < permille

    def pick(self, items: Sequence[Item]) -> Item:
        return items[self.below(len(items))]


class Faults(Protocol):
    """Decides which fault, if any, strikes at a point of the story."""

    def at(self, point: str) -> str:
        """The fault's name, empty for none."""
        ...


POINTS: dict[str, tuple[str, ...]] = {
    "command": ("crash_before", "crash_after", "pause"),
    "store": ("down", "outage", "lost_reply", "slow"),
    "wire": (
        "refused",
        "lost",
        "reset_before",
        "reset_after",
        "answer_lost",
        "late",
        "truncated",
        "garbage",
        "html_before",
        "html_after",
        "error_before",
        "error_after",
        "busy",
        "unavailable",
        "lying_429",
        "portal",
        "redirect",
        "turned_away",
        "in_progress",
        "slow_answer",
        "stale",
    ),
    "breaker": ("open",),
    "retry": ("refused",),
    "lookup": ("failed", "lies", "stale", "slow"),
    "event": ("dropped", "late", "twice"),
    "caller": ("hang_up", "patience", "burst", "wrong_amount", "new_key", "gives_up", "no_order"),
    "clock": ("wall_forward", "wall_back", "reboot", "skew"),
    "person": ("settles", "errs"),
    "ledger": ("loses_record",),
}


class Swarm:
    """A seed's own subset of the faults, each with its own weight (Groce et al., "Swarm Testing", 2012)."""

    def __init__(self, chance: Chance, without: frozenset[str] = frozenset()) -> None:
        self._chance = chance
        self._without = without
        self._tables: dict[str, tuple[tuple[int, str], ...]] = {}
        heaviness = chance.pick((15, 40, 90))
        for point, names in POINTS.items():
            bound, table = 0, []
            for name in names:
                weight = chance.below(heaviness) if chance.hits(450) else 0
                if point in _RARE:
                    weight //= _RARE[point]
                elif point in _OFTEN:
                    weight *= _OFTEN[point]
                if weight:
                    bound += weight
                    table.append((bound, "" if f"{point}:{name}" in without else name))
            self._tables[point] = tuple(table)

    def at(self, point: str) -> str:
        table = self._tables[point]
        if not table:
            return ""
        drawn = self._chance.below(1000)
        for bound, name in table:
            if drawn < bound:
                return name
        return ""

    def stress(self, point: str, name: str, weight: int) -> None:
        """One more share for one fault, unless it was left out."""
        if f"{point}:{name}" not in self._without:
            table = self._tables[point]
            bound = (table[-1][0] if table else 0) + weight
            self._tables[point] = (*table, (bound, name))

    @property
    def names(self) -> list[str]:
        return [f"{point}:{name}" for point, table in self._tables.items() for _, name in table if name]


_OFTEN = {"caller": 3, "person": 6, "lookup": 4, "event": 4}
_RARE = {"command": 3, "store": 2, "ledger": 4}


class Kind(StrEnum):
    """What a story is about, where chance alone would seldom get there."""

    ORDINARY = "ordinary"
    CARDS = "cards"  # declined, in answers that may not be kept, to callers that leave (K3, D4)
    FORWARDING = "forwarding"  # refusals beside doubts, while the store comes and goes (D3)
    LAGGING = (
        "lagging"  # lookups minutes behind, more than the lag that U8 supposes; hosts that are suspended
    )
    INHERITED = "inherited"  # payments older than the ledger, whose state before nobody knows (U3)


class Violation(AssertionError):
    """A promise that was broken."""


@dataclass
class World:
    """Time, the heap, chance, faults, and the story so far. `calm`: the faults have stopped."""

    seed: int
    faults: Faults
    chance: Chance
    told: list[str] | None = None
    now_ms: int = START_MS
    wall_offset_ms: int = WALL_START_MS - START_MS
    wall_error_ms: int = 0  # how far the wall clock ever was from the truth
    boot: int = 1
    boot_at_ms: int = 0
    calm: bool = False
    kind: Kind = Kind.ORDINARY
    is_slow: bool = False  # a story of days instead of minutes
    steps: int = 0
    on_step: Thunk | None = None
    _heap: list[tuple[int, int, Thunk]] = field(default_factory=list)
    _sequence: int = 0

    # --- the clock that the ledger reads ----------------------------------------------------------------------

    def boot_ms(self) -> int:
        return self.now_ms - self.boot_at_ms

    def boot_id(self) -> str:
        return f"boot-{self.boot}"

    def wall_ms(self) -> int:
        return self.now_ms + self.wall_offset_ms

    def monotonic_ms(self) -> int:
        return self.now_ms

    def monotonic_us(self) -> int:
        return self.now_ms * 1000

    @property
    def tracing(self) -> bool:
        return self.told is not None

    # --- what happens when ------------------------------------------------------------------------------------

    def after(self, delay_ms: int, thunk: Thunk) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (self.now_ms + delay_ms, self._sequence, thunk))

    def run_until(self, until_ms: int) -> None:
        heap = self._heap
        while heap and heap[0][0] <= until_ms:
            at_ms, _, thunk = heapq.heappop(heap)
            self.now_ms = at_ms
            self.steps += 1
            if self.steps > STEPS_MAX:
                raise self.broken("the story never ends")
            thunk()
            if self.on_step is not None:
                self.on_step()
        self.now_ms = max(self.now_ms, until_ms)

    def pending(self) -> list[tuple[int, str]]:
        """What is still to come: when, the function that does it, and the values that it holds."""
        return [(at_ms, _mark(thunk)) for at_ms, _, thunk in sorted(self._heap, key=lambda one: one[:2])]

    def spell_ms(self, low_ms: int, high_ms: int) -> int:
        """A while, in a story of minutes; a hundred times that in one of days."""
        return self.chance.between(low_ms, high_ms) * (100 if self.is_slow else 1)

    def fault(self, point: str) -> str:
        if self.calm:
            return ""
        name = self.faults.at(point)
        if name and self.tracing:
            self.note(f"fault {point}:{name}")
        return name

    def note(self, text: str) -> None:
        if self.told is not None:
            self.told.append(f"{self.now_ms - START_MS:>9} ms  {text}")

    def broken(self, promise: str) -> Violation:
        return Violation(f"seed {self.seed}: {promise}")


def _mark(thunk: Callable[..., object], depth: int = 4) -> str:
    """A function by its name and by what it closes over, as far as that is plain data or a function itself."""
    if isinstance(thunk, partial):
        held = [repr(one) if isinstance(one, str | int) else type(one).__name__ for one in thunk.args]
        return f"({_mark(thunk.func, depth)} {held})"
    parts = [getattr(thunk, "__qualname__", type(thunk).__name__)]
    cells = getattr(thunk, "__closure__", None) or ()
    for value in (cell.cell_contents for cell in cells):
        if callable(value) and depth:
            parts.append(_mark(value, depth - 1))
        elif isinstance(value, str | int | bytes | NotSent | MaybeSent | Answered | Response | None):
            parts.append(repr(value))
    return "(" + " ".join(parts) + ")"
