"""A file is a screenful of screens at most, a function one screen (style: Functions)."""

from __future__ import annotations

import ast
from typing import Final

from tests.tidy.tree import Source, package, suite

FILE_LINES_MAX: Final = 400
FUNCTION_LINES_MAX: Final = 70

LONGER_FILES: Final[dict[str, tuple[int, str]]] = {
    "proxy/core/messages.py": (540, "one list of events, commands and facts: the product in one read"),
    "proxy/core/guard.py": (500, "one state machine; its arms are read side by side"),
    "proxy/driver.py": (470, "the one place of effects, one method for each command"),
}
"""File to (lines at most, why it is not split). A reason to talk, not a place to hide."""

TEST_FILE_LINES_MAX: Final = 1_000
"""A table of cases may be long; what is read top to bottom may not."""


def _code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of the function less its docstring: telling what it is for costs no room."""
    end = function.end_lineno or function.lineno
    lines = end - function.lineno + 1
    first = function.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        lines -= (first.end_lineno or first.lineno) - first.lineno + 1
    return lines


def _too_long(source: Source, limit: int) -> str | None:
    lines = source.text.count("\n")
    allowed, _ = LONGER_FILES.get(source.name, (limit, ""))
    return f"{source.name}: {lines} lines, at most {allowed}" if lines > allowed else None


def test_files_of_the_package_stay_within_their_length() -> None:
    assert [found for source in package() if (found := _too_long(source, FILE_LINES_MAX))] == []


def test_files_of_the_tests_stay_within_their_length() -> None:
    assert [found for source in suite() if (found := _too_long(source, TEST_FILE_LINES_MAX))] == []


def test_exceptions_are_still_needed_and_have_a_reason() -> None:
    lengths = {source.name: source.text.count("\n") for source in package()}
    stale = [name for name in LONGER_FILES if lengths.get(name, 0) <= FILE_LINES_MAX]

    assert stale == [], "shorter than the usual limit, or gone: take the exception out"
    assert all(len(reason) > 10 for _, reason in LONGER_FILES.values())


def test_functions_fit_a_screen() -> None:
    wrong = [
        f"{source.name}:{function.lineno} {function.name}: {_code_lines(function)} lines"
        for source in (*package(), *suite())
        for function in source.functions()
        if _code_lines(function) > FUNCTION_LINES_MAX
    ]

    assert wrong == []
