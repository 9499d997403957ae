"""Draws what the docs show of the core's state table: docs/images/states.svg and the tables of how-it-works.md.

`python -m tests.docs.diagram` writes both.
"""

from __future__ import annotations

from typing import Final

from proxy.core.model import UNRESOLVED, State
from proxy.core.states import TABLE, Move, Row
from tests.docs.pages import ROOT, Page, page

PAGE: Final = "docs/how-it-works.md"
PICTURE: Final = ROOT / "docs" / "images" / "states.svg"

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

_SIDE_ROADS: Final = frozenset({Move.WITHDRAW, Move.RECORD_ATTEMPT, Move.BY_HAND, Move.PURGE})
"""Moves that the picture leaves to the matrix: they go back, or stay, or are a person's, or the end."""

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
    """The main road as SVG. What the states in doubt share is drawn once, from their frame.

    Raises: KeyError for a move that the picture has no place for yet.
    """
    drawn = main_road()
    arrows = "".join(
        _arrow(*PLACES[ends], ", ".join(SHORT[m][0] for m in moves)) for ends, moves in drawn.items()
    )
    boxes = "".join(_box(state, x, y) for state, (x, y) in NODES.items())
    return f"{_HEAD}{arrows}{boxes}</svg>\n"


def main_road() -> dict[tuple[str, str], list[Move]]:
    """What the picture shows: (from, to) by name, `in_doubt` for all states of that group."""
    pairs = {
        ends: moves
        for ends, all_moves in _edges().items()
        if ends[0] is not ends[1] and (moves := [m for m in all_moves if _is_main(ends[0], m)])
    }
    shared = {
        target: pairs[State.UNKNOWN, target]
        for target in _ORDER
        if target not in IN_DOUBT
        and (State.UNKNOWN, target) in pairs
        and all(pairs.get((state, target)) == pairs[State.UNKNOWN, target] for state in IN_DOUBT)
    }
    alone = {
        (_name(source), _name(target)): moves
        for (source, target), moves in pairs.items()
        if not (source in IN_DOUBT and target in shared)
    }
    return alone | {("in_doubt", _name(target)): moves for target, moves in shared.items()}


def _is_main(source: State | None, move: Move) -> bool:
    return move not in _SIDE_ROADS and (source, move) not in _HIDDEN


NODES: Final = {
    State.NOT_EXECUTED: (190, 60),
    State.IN_FLIGHT: (190, 200),
    State.PENDING: (500, 200),
    State.EXECUTED: (780, 60),
    State.UNKNOWN: (190, 380),
    State.ABSENT: (500, 380),
    State.MANUAL_REVIEW: (780, 380),
}
"""The middle of each state's box."""

PLACES: Final = {
    ("none", "in_flight"): ("M52 200 H122", 86, 190),
    ("not_executed", "in_flight"): ("M165 80 V178", 132, 132),
    ("in_flight", "not_executed"): ("M215 180 V82", 262, 132),
    ("in_flight", "executed"): ("M256 188 L712 66", 470, 116),
    ("in_flight", "pending"): ("M256 200 H432", 344, 190),
    ("in_flight", "unknown"): ("M165 220 V358", 84, 256),
    ("in_doubt", "in_flight"): ("M215 310 V222", 252, 284),
    ("in_doubt", "pending"): ("M500 310 V222", 540, 284),
    ("in_doubt", "executed"): ("M800 310 V82", 840, 220),
    ("pending", "executed"): ("M566 186 L744 82", 682, 150),
    ("pending", "manual_review"): ("M556 220 L738 358", 696, 284),
    ("unknown", "absent"): ("M256 380 H432", 344, 370),
    ("absent", "manual_review"): ("M566 380 H712", 634, 370),
    ("unknown", "manual_review"): ("M220 400 C300 446 660 446 744 402", 480, 428),
}
"""By (from, to): the arrow's path, and the middle of its words."""

_HEAD: Final = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 920 460" role="img"
     font-family="system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif" font-size="14">
  <title>The states of an operation</title>
  <style>
    .card { fill: #ffffff; stroke: #d0d7de; }
    .box { fill: #f6f8fa; stroke: #57606a; }
    .known { fill: #e6f4ea; stroke: #1a7f37; }
    .doubt { fill: #fff8e1; stroke: #bf8700; }
    .frame { fill: #fffdf5; stroke: #bf8700; stroke-dasharray: 6 4; }
    .arrow { stroke: #24292f; stroke-width: 1.4; fill: none; }
    .word { fill: #57606a; font-size: 13px; }
    .name { fill: #24292f; font-weight: 600; }
  </style>
  <defs>
    <marker id="a" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" orient="auto">
      <path d="M0 0 L10 5 L0 10 z" fill="#24292f"/>
    </marker>
  </defs>
  <rect class="card" x="1" y="1" width="918" height="458" rx="12"/>
  <circle cx="44" cy="200" r="8" fill="#24292f"/>
  <rect class="frame" x="40" y="310" width="846" height="136" rx="10"/>
  <text class="word" x="872" y="436" text-anchor="end">in doubt</text>
"""


def _arrow(path: str, x: int, y: int, words: str) -> str:
    return (
        f'  <path class="arrow" d="{path}" marker-end="url(#a)"/>\n'
        f'  <text class="word" x="{x}" y="{y}" text-anchor="middle">{words}</text>\n'
    )


def _box(state: State, x: int, y: int) -> str:
    kind = "doubt" if state in IN_DOUBT else "box" if state in UNRESOLVED else "known"
    return (
        f'  <rect class="{kind}" x="{x - 66}" y="{y - 20}" width="132" height="40" rx="8"/>\n'
        f'  <text class="name" x="{x}" y="{y + 5}" text-anchor="middle">{state.value}</text>\n'
    )


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
    for name, inner in (("matrix", matrix()), ("moves", moves())):
        on = Page(on.name, on.with_part(name, inner))
    return on.text


if __name__ == "__main__":
    current = page(PAGE)
    current.path.write_text(drawn(current), encoding="utf-8")
    PICTURE.write_text(picture(), encoding="utf-8")
