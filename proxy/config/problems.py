"""What is wrong in a file: where, what is allowed, what was found; all of it in one error (C2, F1)."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """One mistake. `path` is the place in the file, `line 3, column 7` or empty for the file as a whole."""

    file: str
    path: str
    text: str

    def __str__(self) -> str:
        return ": ".join(part for part in (self.file, self.path, self.text) if part)


class ConfigError(Exception):
    """A configuration or a preset that can't be used. Lists every mistake; never holds a secret."""

    def __init__(self, problems: Iterable[ConfigProblem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


class Problems:
    """Gathers mistakes of one file."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.found: list[ConfigProblem] = []

    def add(self, path: str, text: str) -> None:
        self.found.append(ConfigProblem(self.file, path, text))


def suggestion(name: str, known: Iterable[str]) -> str:
    """`; did you mean "attempts"?` where a known name is close, else the names that there are."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f'; did you mean "{close[0]}"?'
    return f"; known here: {', '.join(names)}" if names else ""
