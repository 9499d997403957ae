"""What the papers say of codes, headers, keys, metrics and states is what the code has."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any, Final, get_args

import pytest
from pydantic import BaseModel

from proxy.config import settings_of
from proxy.config.model import Config
from proxy.core.model import Knowledge, Outcome, State
from tests.docs import diagram
from tests.docs.pages import ROOT, Page, page, pages
from tests.tidy.tree import package

README: Final = page("README.md")
_CODE_ROW: Final = re.compile(r"^\| (\d{3}) \| `(\w+)` \|", re.M)
_METRIC: Final = re.compile(r"\bsafepost_[a-z_]+\b")


def _codes_of_the_core() -> set[tuple[int, str]]:
    """Every (status, code) that `core/problem.py` constructs."""
    source = next(s for s in package() if s.name == "proxy/core/problem.py")
    found: set[tuple[int, str]] = {(400, "invalid_request")}
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.Call) or getattr(node.func, "id", "") != "Problem":
            continue
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        status = given["status"]
        codes = [n.value for n in ast.walk(given["code"]) if isinstance(n, ast.Constant)]
        if isinstance(status, ast.Constant) and isinstance(status.value, int):
            found |= {(status.value, str(code)) for code in codes}
    return found


_WIRE_CODE: Final = re.compile(r'refus(?:e|al)\((\d{3}), "?(\w+)"?')


def _codes_of_the_wire() -> set[tuple[int, str]]:
    """Those that the listener answers with before or beside a call; a head's refusals share one code."""
    texts = [source.text for source in package() if source.module.startswith("proxy.wire")]
    found = {(int(status), code) for text in texts for status, code in _WIRE_CODE.findall(text)}
    named = {(status, code.lower()) for status, code in found}  # a constant is named like its word
    return {pair for pair in named if pair[1] != "invalid_request"}


def test_readme_documents_every_error_code_and_no_other() -> None:
    told = {(int(status), code) for status, code in _CODE_ROW.findall(README.text)}

    assert _codes_of_the_wire()
    assert told == _codes_of_the_core() | _codes_of_the_wire()


def test_readme_names_every_status_that_a_head_is_refused_with() -> None:
    heads = next(s for s in package() if s.name == "proxy/wire/heads.py")
    statuses = set(re.findall(r"HeadRefused\((\d{3})", heads.text)) | {"408"}

    assert [status for status in statuses if status not in README.text] == []


def test_retryable_codes_are_told_as_such() -> None:
    """Those that the core makes with `retryable=True` are the ones that the sentence below the table names."""
    source = next(s for s in package() if s.name == "proxy/core/problem.py")
    retryable = {
        code.value
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Problem"
        for given in [{keyword.arg: keyword.value for keyword in node.keywords}]
        if isinstance(flag := given.get("retryable"), ast.Constant) and flag.value is True
        for code in ast.walk(given["code"])
        if isinstance(code, ast.Constant)
    }
    below = README.text.partition("| 504 | `result_unknown`")[2].partition("##")[0]

    assert retryable == {code for code in re.findall(r"`(\w+)`", below) if code != "invalid_request"}


def test_readme_documents_every_header_that_calls_carry() -> None:
    source = next(s for s in package() if s.name == "proxy/calls.py")
    carried = set(re.findall(r'b"(Safepost-[A-Za-z]+|Idempotent-Replayed)"', source.text))

    assert carried
    assert [name for name in carried if f"`{name}" not in README.text] == []


def test_words_of_knowledge_and_outcomes_are_explained() -> None:
    text = page("docs/how-it-works.md").text

    assert [word for word in (*Knowledge, *Outcome) if f"| `{word.value}` |" not in text] == []


def test_state_table_in_the_docs_is_the_one_in_the_core() -> None:
    current = page(diagram.PAGE)

    assert current.text == diagram.drawn(current), "run: python -m tests.docs.diagram"
    assert diagram.PICTURE.read_text() == diagram.picture(), "run: python -m tests.docs.diagram"
    assert diagram.main_road().keys() == diagram.PLACES.keys()


def test_picture_leaves_no_state_and_no_move_out() -> None:
    drawn = diagram.picture()
    moves = diagram.moves()

    assert [state for state in State if state.value not in drawn] == []
    assert [short for short, _ in diagram.SHORT.values() if f"| {short} |" not in moves] == []


# --- configuration ------------------------------------------------------------------------------------------

ROUTES: Final = "routes."


def _keys(model: type[BaseModel], before: str = "") -> Iterator[str]:
    """Every dotted path that a configuration may have; a route's name is `*`."""
    for name, field in model.model_fields.items():
        path = f"{before}{name}"
        yield path
        for inner in _models(field.annotation):
            yield from _keys(inner, f"{path}.*." if path == "routes" else f"{path}.")


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models(part)


KEYS: Final = frozenset(_keys(Config))
_TOP: Final = "|".join(sorted(Config.model_fields, key=len, reverse=True))
_DOTTED: Final = re.compile(rf"`((?:{_TOP})(?:\.[a-z_*]+)+)(?:: [^`]*)?`")
_FILES: Final = re.compile(r"\.(?:yaml|py|md|db|json|service)$")


@pytest.mark.parametrize("paper", pages(), ids=lambda paper: paper.name)
def test_configuration_keys_named_in_the_text_exist(paper: Page) -> None:
    named = {key for key in _DOTTED.findall(paper.prose()) if not _FILES.search(key)}
    plain = {re.sub(r"^routes\.[a-z_*]+", "routes.*", key) for key in named}

    assert plain - KEYS == set()


def test_configurations_shown_in_the_docs_are_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAYHUB_API_KEY", "sk_live_of_a_test")
    shown = [(p.name, b.text) for p in pages() for b in p.blocks() if b.info == "yaml config"]

    assert shown
    for name, text in shown:
        assert settings_of(text, file=name).platform.name


# --- metrics ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("paper", pages(), ids=lambda paper: paper.name)
def test_metrics_named_in_the_text_are_exported(paper: Page) -> None:
    exported = {
        name
        for source in package()
        if source.module.startswith("proxy.observe")
        for name in re.findall(r'"(?:safepost_)?([a-z_]+)"', source.text)
    }
    named = {re.sub(r"_(total|bucket|sum|count)$", "", name) for name in _METRIC.findall(paper.text)}
    plain = {re.sub(r"_total$", "", name) for name in exported}

    assert {name for name in named if name.removeprefix("safepost_") not in plain} == set()


# --- guarantees ---------------------------------------------------------------------------------------------


def test_each_guarantee_names_tests_that_exist() -> None:
    guarantees = page("docs/guarantees.md").text
    shown = re.findall(r"^\*\*Shown by\*\*\n\n((?:\* .*\n)+)", guarantees, re.M)
    cited = [re.findall(r"`(tests/[\w/.]+)(?:::(\w+))?`", part) for part in shown]
    missing = [
        f"{file}::{test}" if test else file
        for part in cited
        for file, test in part
        if not (ROOT / file).exists() or (test and f"def {test}(" not in (ROOT / file).read_text())
    ]

    assert len(shown) == len(re.findall(r"^\*\*Assumes\*\*", guarantees, re.M))
    assert all(cited), "a guarantee that no test shows is a wish"
    assert missing == []
