"""The papers hold together: links lead somewhere, commands exist, nothing is promised that the code lacks."""

from __future__ import annotations

import re
import subprocess
import tomllib
from typing import Any, Final

import pytest
import typer

from proxy.cli import app
from tests.docs.pages import ROOT, Page, pages

_MAKE: Final = re.compile(r"(?:^ {4}|`)make ([a-z][a-z-]*)", re.M)
_MAKE_IN_BLOCK: Final = re.compile(r"^make ([a-z][a-z-]*)", re.M)
_SAFEPOST: Final = re.compile(r"(?:^|[`\s/])safepost ([a-z]+)((?: [^`\n|;)]*)?)")
_PATH: Final = re.compile(r"`((?:proxy|tests|docs|deploy|dashboards|benchmarks)/[\w./-]+)`")

PAPERS: Final = pages()
_COMMANDS: Final[Any] = typer.main.get_command(app)


def named(page: Page) -> str:
    return page.name


@pytest.mark.parametrize("page", PAPERS, ids=named)
def test_relative_links_lead_to_files_and_headings(page: Page) -> None:
    broken = []
    for link in page.links():
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        target, _, anchor = link.partition("#")
        path = (page.path.parent / target).resolve() if target else page.path
        if not path.exists():
            broken.append(link)
        elif anchor and path.suffix == ".md":
            there = Page(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
            if anchor not in there.anchors():
                broken.append(link)

    assert broken == []


@pytest.mark.parametrize("page", PAPERS, ids=named)
def test_make_targets_exist(page: Page) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    blocks = {name for block in page.blocks() for name in _MAKE_IN_BLOCK.findall(block.text)}

    assert (blocks | set(_MAKE.findall(page.text))) - targets == set()


@pytest.mark.parametrize("page", PAPERS, ids=named)
def test_safepost_commands_and_options_exist(page: Page) -> None:
    known = _COMMANDS.commands
    wrong = []
    for word, rest in _SAFEPOST.findall(page.text):
        if word not in known:
            wrong.append(word)
            continue
        options = {name for parameter in known[word].params for name in parameter.opts} | {"--help"}
        given = [part.split("=")[0] for part in rest.split() if re.match(r"--?[a-zA-Z]", part)]
        wrong += [f"{word} {option}" for option in given if option not in options]

    assert wrong == []


@pytest.mark.parametrize("page", PAPERS, ids=named)
def test_files_named_in_the_text_exist(page: Page) -> None:
    missing = [path for path in _PATH.findall(page.text) if "NNNN" not in path and not (ROOT / path).exists()]

    assert missing == []


def test_first_screen_has_the_promise_its_limits_two_commands_and_a_picture() -> None:
    screen = "\n".join((ROOT / "README.md").read_text().splitlines()[:25])

    for needed in ("**Promised.**", "**Not promised.**", "make demo", "make test", "docs/images/"):
        assert needed in screen


def test_both_readmes_say_the_same() -> None:
    """Same commands, same outputs, same tables: the languages differ, the facts don't."""
    english, chinese = (Page(name, (ROOT / name).read_text()) for name in ("README.md", "README.zh-CN.md"))

    assert list(english.blocks()) == list(chinese.blocks())
    assert _facts(english) == _facts(chinese)
    assert len(re.findall(r"^## ", english.text, re.M)) == len(re.findall(r"^## ", chinese.text, re.M))


def _facts(page: Page) -> list[tuple[str, ...]]:
    """Each table row's code words."""
    rows = [line for line in page.prose().splitlines() if line.startswith("|")]
    return [tuple(sorted(set(re.findall(r"`([^`]+)`", row)))) for row in rows]


def test_changelog_has_the_version_of_the_package() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text()


def test_decisions_are_numbered_once_and_have_their_parts() -> None:
    records = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    numbers = [record.name[:4] for record in records]
    lacking = [
        f"{record.name}: {part}"
        for record in records
        for part in ("Context", "Options", "Decision", "Price")
        if not re.search(rf"(?im)^#+ {part}|^\*\*{part}", record.read_text())
    ]

    assert len(numbers) == len(set(numbers))
    assert lacking == []


def test_pictures_are_drawn_and_small() -> None:
    shown = {link for page in PAPERS for link in page.links() if link.endswith((".svg", ".png"))}
    names = {link.rpartition("/")[2] for link in shown}
    images = ROOT / "docs" / "images"
    kept = {path.name: path.stat().st_size for path in images.rglob("*") if path.is_file()}

    assert set(kept) == names, "each picture is shown somewhere"
    assert all(size < 400_000 for size in kept.values())


def test_license_is_the_one_that_the_package_names() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = (ROOT / "LICENSE").read_text()

    assert project["license"] == "Apache-2.0"
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_bare_make_tells_every_target() -> None:
    told = subprocess.run(["make", "-C", str(ROOT)], capture_output=True, text=True, timeout=30, check=True)
    phony = re.search(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(), re.M)

    assert phony is not None
    for target in set(phony[1].split()) - {"help"}:
        assert f"make {target}" in told.stdout
