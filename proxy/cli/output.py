"""What the commands share: failing in one line, reading the configuration, printing tables and JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from proxy.config import Settings

USAGE = 2
FAILED = 1


class Failure(Exception):
    """A command can't be done. `lines` go to standard error, `code` is the exit code."""

    def __init__(self, *lines: str, code: int) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines
        self.code = code


ConfigFile = Annotated[
    Path, typer.Option("-c", "--config", metavar="FILE", help="The configuration file.", show_default=True)
]
DEFAULT_CONFIG = Path("config.yaml")
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]


def settings_from(file: Path) -> Settings:
    """The settings of a file. Raises: Failure, with one line for each mistake."""
    from proxy.config import ConfigError, load_settings

    try:
        return load_settings(file)
    except ConfigError as error:
        raise Failure(*map(str, error.problems), code=USAGE) from None


def print_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table for people; as wide as the terminal, or as its content where there is none."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=False)
    if not console.is_terminal:
        console.width = 200
    table = Table(box=box.SIMPLE, header_style="bold", pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)
