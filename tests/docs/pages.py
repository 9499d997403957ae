"""The papers as the docs tests see them: pages, headings, links, code blocks, marked parts."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]

_FENCE: Final = re.compile(r"^\s*```(.*)$")
_HEADING: Final = re.compile(r"^(#{1,6})\s+(.*?)\s*$")
_LINK: Final = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block. `info` is what follows the fence: `sh`, `text`, `python`."""

    info: str
    text: str


@dataclass(frozen=True, slots=True)
class Page:
    """One Markdown file; `name` is its path from the root."""

    name: str
    text: str

    @property
    def path(self) -> Path:
        return ROOT / self.name

    def prose(self) -> str:
        """The text without its fenced and indented blocks."""
        lines: list[str] = []
        inside = False
        for line in self.text.splitlines():
            if _FENCE.match(line):
                inside = not inside
            elif not inside and not line.startswith("    "):
                lines.append(line)
        return "\n".join(lines)

    def blocks(self) -> Iterator[Block]:
        info: str | None = None
        lines: list[str] = []
        for line in self.text.splitlines():
            fence = _FENCE.match(line)
            if fence and info is None:
                info, lines = fence[1].strip(), []
            elif fence and info is not None:
                yield Block(info, textwrap.dedent("\n".join(lines) + "\n"))
                info = None
            elif info is not None:
                lines.append(line)

    def links(self) -> Iterator[str]:
        return (found[1] for found in _LINK.finditer(self.prose()))

    def anchors(self) -> frozenset[str]:
        """The anchors that GitHub gives to the page's headings."""
        found: dict[str, int] = {}
        for line in self.prose().splitlines():
            if heading := _HEADING.match(line):
                anchor = _anchor(heading[2])
                found[anchor] = found.get(anchor, 0) + 1
        numbered = {f"{anchor}-{n}" for anchor, times in found.items() for n in range(1, times)}
        return frozenset(found) | numbered

    def part(self, name: str) -> str:
        """What stands between `<!-- NAME:begin -->` and `<!-- NAME:end -->`. Raises: ValueError."""
        _, begin, rest = self.text.partition(f"<!-- {name}:begin -->\n")
        inner, end, _ = rest.partition(f"<!-- {name}:end -->")
        if not begin or not end:
            raise ValueError(f"{self.name}: no part {name}")
        return inner

    def with_part(self, name: str, inner: str) -> str:
        """The page's text with that part replaced."""
        before, begin, rest = self.text.partition(f"<!-- {name}:begin -->\n")
        _, end, after = rest.partition(f"<!-- {name}:end -->")
        return before + begin + inner + end + after


def _anchor(heading: str) -> str:
    plain = _LINK.sub(lambda found: found[0][1 : found[0].index("]")], heading)
    kept = re.sub(r"[^\w\- ]", "", plain.lower())
    return kept.replace(" ", "-")


def page(name: str) -> Page:
    """One page, read anew."""
    return Page(name, (ROOT / name).read_text(encoding="utf-8"))


@cache
def pages() -> tuple[Page, ...]:
    """Every Markdown file at the root and under docs/ and deploy/."""
    folders = (ROOT.glob("*.md"), ROOT.glob("docs/**/*.md"), ROOT.glob("deploy/**/*.md"))
    return tuple(page(path.relative_to(ROOT).as_posix()) for folder in folders for path in sorted(folder))
