"""The house as the tidy tests see it: each Python file once read, once parsed."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGE: Final = ROOT / "proxy"

_NOT_OURS: Final = frozenset(
    {".venv", ".git", "__pycache__", "build", "dist", "node_modules", "safepost.egg-info"}
)


@dataclass(frozen=True, slots=True)
class Source:
    """One Python file. `name` is its path from the root, `module` its dotted name."""

    name: str
    module: str
    text: str
    tree: ast.Module

    def comments(self) -> Iterator[tuple[int, str]]:
        """Each comment with its line, the hash included."""
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string

    def imports(self) -> frozenset[str]:
        """Every module imported anywhere in the file, also within functions; `from a import b` is `a`."""
        found: set[str] = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                found.add(self._absolute(node))
        return frozenset(found)

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self.module.split(".")
        is_package = self.name.endswith("__init__.py")
        base = parts[: len(parts) - node.level + is_package]
        return ".".join([*base, *([node.module] if node.module else [])])

    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node


def _read(path: Path) -> Source:
    relative = path.relative_to(ROOT)
    parts = relative.with_suffix("").parts
    module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    text = path.read_text(encoding="utf-8")
    return Source(relative.as_posix(), module, text, ast.parse(text, filename=str(relative)))


@cache
def package() -> tuple[Source, ...]:
    """Every Python file of the product."""
    return tuple(_read(path) for path in sorted(PACKAGE.rglob("*.py")))


@cache
def suite() -> tuple[Source, ...]:
    """Every Python file of the tests and the benchmarks."""
    folders = (ROOT / "tests", ROOT / "benchmarks")
    return tuple(_read(path) for folder in folders for path in sorted(folder.rglob("*.py")))


@cache
def texts() -> tuple[tuple[str, str], ...]:
    """Every text file of the house with its name: code, papers, configuration."""
    found = []
    for path in sorted(ROOT.rglob("*")):
        relative = path.relative_to(ROOT)
        hidden = any(part.startswith(".") and part not in (".ci", ".dockerignore") for part in relative.parts)
        if hidden or _NOT_OURS & set(relative.parts) or not path.is_file():
            continue
        try:
            found.append((relative.as_posix(), path.read_text(encoding="utf-8")))
        except UnicodeDecodeError:
            continue  # a picture
    return tuple(found)


def called_name(call: ast.Call) -> str:
    """The dotted name of what is called, `loop.create_task`; what can't be named is left out."""
    parts: list[str] = []
    node: ast.expr = call.func
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        parts.append(node.id)
    return ".".join(reversed(parts))


def real_names(source: Source) -> dict[str, str]:
    """What the file's imported names stand for: `chance` may be `secrets`, `sleep` `time.sleep`."""
    found: dict[str, str] = {}
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            found |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return found
