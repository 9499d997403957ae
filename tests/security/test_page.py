"""The security page: each claim names tests that exist, and the comparison with nginx is what was measured."""

from __future__ import annotations

import re

import pytest

from proxy import loops
from tests.docs.pages import ROOT
from tests.wire import reference
from tests.wire.corpus import REQUESTS

PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
CLAIMS = re.findall(r"^### (.+)\n((?:(?!^##).*\n)*)", PAGE, re.M)
_TEST = re.compile(r"`(tests/[\w/.]+\.py)(?:::(\w+))?`")


@pytest.mark.parametrize(("title", "text"), CLAIMS, ids=[title for title, _ in CLAIMS])
def test_each_claim_names_tests_that_exist(title: str, text: str) -> None:
    cited = _TEST.findall(text.partition("**Shown by**")[2])

    assert cited, f"{title}: a claim that no test shows is a wish"
    for file, test in cited:
        assert (ROOT / file).exists(), file
        assert not test or f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), test


def _listed() -> list[str]:
    table = re.search(r"<!-- nginx -->\n(.*?)<!-- /nginx -->", PAGE, re.S)
    assert table is not None
    return re.findall(r"^\| (.+?) \|", table[1], re.M)[2:]


def test_requests_listed_beside_nginx_are_of_the_corpus() -> None:
    assert set(_listed()) <= set(REQUESTS)


@pytest.mark.slow
def test_comparison_with_nginx_is_what_nginx_does() -> None:
    version = reference.installed()
    if version is None or f"nginx {version} " not in PAGE:
        pytest.skip(f"needs the nginx that the page speaks of, found {version}")

    found = loops.run(reference.compared())

    assert [name for name, one in found.items() if one.targets] == _listed()
