"""Which file holds which dashboard."""

from __future__ import annotations

import json
from pathlib import Path

from dashboards.source.money import MONEY
from dashboards.source.overview import OVERVIEW
from dashboards.source.panels import Board
from dashboards.source.platform import PLATFORM

FOLDER = Path(__file__).resolve().parents[1]
BOARDS: dict[str, Board] = {
    "overview.json": OVERVIEW,
    "money-in-doubt.json": MONEY,
    "platform-health.json": PLATFORM,
}


def text_of(board: Board) -> str:
    return json.dumps(board.json(), indent=2) + "\n"


def write() -> None:
    for name, board in BOARDS.items():
        (FOLDER / name).write_text(text_of(board), encoding="utf-8")


def stale() -> list[str]:
    """The files that are not as they would be written."""
    return [
        f"dashboards/{name}: not as dashboards/source makes it; run `make dashboards`"
        for name, board in BOARDS.items()
        if (FOLDER / name).read_text(encoding="utf-8") != text_of(board)
    ]
