"""Draws docs/how-it-works.md's picture and tables from the core's state table.

`python -m tests.docs.diagram` writes them into the page.
"""

from __future__ import annotations

from typing import Final

from proxy.core.model import State
from proxy.core.states import TABLE, Move, Row
from tests.docs.pages import Page, page

PAGE: Final = "docs/how-it-works.md"

_ORDER: Final = (
    None,
    State.IN_FLIGHT,
    State.UNKNOWN,
    State.ABSENT,
    State.MANUAL_REVIEW,
    State.PENDING,
    State.EXECUTED,
    State.NOT_EXECUTED,
)

SHORT: Final[dict[Move, tuple[str, str]]] = {
    Move.RESERVE: ("reserve", "a call claims the operation and records its next attempt"),
    Move.RECORD_ATTEMPT: ("attempt", "the next attempt is recorded before it leaves"),
    Move.SETTLE_DEFINITE: ("answer", "the platform gave a definite answer"),
    Move.SETTLE_NOT_EXECUTED: ("did not act", "it is certain that the platform did not act"),
    Move.SETTLE_UNKNOWN: ("no answer", "the attempts ended without a definite answer"),
    Move.WITHDRAW: ("withdraw", "a claim that sent nothing is taken back"),
    Move.LAPSE: ("lease over", "the leader died or was cut off"),
    Move.EVIDENCE: ("evidence", "a lookup, an event or a late answer"),
    Move.MISSES: ("misses", "the platform shows nothing, three times"),
    Move.OVERDUE: ("overdue", "the schedule is over; a person is asked"),
    Move.BY_HAND: ("person", "a named person settled it"),
    Move.PURGE: ("purge", "the record is older than its time"),
}

_SIDE_ROADS: Final = frozenset({Move.WITHDRAW, Move.RECORD_ATTEMPT})
"""Moves that the picture leaves to the matrix: they go back, or stay."""

_HIDDEN: Final = frozenset(
    {
        *((None, move) for move in (Move.SETTLE_DEFINITE, Move.SETTLE_NOT_EXECUTED, Move.SETTLE_UNKNOWN)),
        *((state, Move.SETTLE_DEFINITE) for state in State if state is not State.IN_FLIGHT),
        *((state, Move.EVIDENCE) for state in (State.IN_FLIGHT, State.EXECUTED, State.NOT_EXECUTED)),
        (State.MANUAL_REVIEW, Move.MISSES),
    }
)
"""Rare ways (a lost record, a late answer, a newer version) that the picture leaves to the matrix."""


IN_DOUBT: Final = (State.UNKNOWN, State.ABSENT, State.MANUAL_REVIEW)


def _edges() -> dict[tuple[State | None, State | None], list[Move]]:
    found: dict[tuple[State | None, State | None], list[Move]] = {}
    for source in _ORDER:
        for target in _ORDER:
            moves = [row.move for row in TABLE if source in row.sources and target in row.targets]
            if moves:
                found[source, target] = moves
    return found


def _name(state: State | None) -> str:
    return state.value if state else "none"


def picture() -> str:
    """A Mermaid state diagram of the main road. What the states in doubt share is drawn once."""
    drawn = {
        ends: moves
        for ends, all_moves in _edges().items()
        if ends[0] is not ends[1] and (moves := [m for m in all_moves if _is_main(ends[0], m)])
    }
    shared = {
        target: drawn[State.UNKNOWN, target]
        for target in _ORDER
        if target not in IN_DOUBT
        and (State.UNKNOWN, target) in drawn
        and all(drawn.get((state, target)) == drawn[State.UNKNOWN, target] for state in IN_DOUBT)
    }
    inner: list[str] = []
    outer: list[str] = []
    for (source, target), moves in drawn.items():
        if source in IN_DOUBT and target in shared:
            continue
        within = source in IN_DOUBT and target in IN_DOUBT
        (inner if within else outer).append(_arrow(source, target, moves))
    outer += [_arrow("in_doubt", target, moves) for target, moves in shared.items()]
    group = ["    state in_doubt {", *(f"    {line}" for line in inner), "    }"]
    return "\n".join(["```mermaid", "stateDiagram-v2", *group, *outer, "```", ""])


def _is_main(source: State | None, move: Move) -> bool:
    return move not in _SIDE_ROADS and (source, move) not in _HIDDEN


def _arrow(source: State | str | None, target: State | None, moves: list[Move]) -> str:
    ends = [str(end) if end else "[*]" for end in (source, target)]
    return f"    {ends[0]} --> {ends[1]}: {', '.join(SHORT[move][0] for move in moves)}"


def matrix() -> str:
    """Every move of the table, from row to column."""
    edges = _edges()
    head = ["from \\ to", *map(_name, _ORDER)]
    rows = [head, ["---"] * len(head)]
    for source in _ORDER:
        cells = [", ".join(SHORT[move][0] for move in edges.get((source, target), [])) for target in _ORDER]
        rows.append([f"**{_name(source)}**", *cells])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def moves() -> str:
    """One row for each row of the table, with its condition."""
    rows = "".join(f"| {SHORT[row.move][0]} | {_meaning(row)} | {row.condition} |\n" for row in TABLE)
    return f"| move | what it is | condition |\n| --- | --- | --- |\n{rows}"


def _meaning(row: Row) -> str:
    meaning = SHORT[row.move][1]
    again = row.move is Move.RESERVE and None not in row.sources
    return f"{meaning}, of an operation in doubt" if again else meaning


def drawn(on: Page) -> str:
    """The page with its picture and tables as the table says now."""
    for name, inner in (("diagram", picture()), ("matrix", matrix()), ("moves", moves())):
        on = Page(on.name, on.with_part(name, inner))
    return on.text


if __name__ == "__main__":
    current = page(PAGE)
    current.path.write_text(drawn(current), encoding="utf-8")
