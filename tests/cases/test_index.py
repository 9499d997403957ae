"""Each of the 67 cases has tests, each of them exists, and what was chosen is written down."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.cases.index import CASES
from tests.docs.pages import ROOT

CHOICES = (ROOT / "docs" / "cases.md").read_text(encoding="utf-8")
MAY_CHOOSE = ("O-01", "O-22", "O-23", "O-45", "O-46")
"""Cases that list several right answers."""


def test_index_has_every_case() -> None:
    assert list(CASES) == [f"O-{n:02}" for n in range(1, 68)]


@pytest.mark.parametrize("case", CASES)
def test_case_has_tests_that_exist(case: str) -> None:
    assert CASES[case]
    for one in CASES[case]:
        file, _, name = one.partition("::")
        assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), one


@pytest.mark.slow
def test_pytest_collects_them_all() -> None:
    wanted = sorted({one for tests in CASES.values() for one in tests})
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *wanted],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
        timeout=100,
    )

    assert found.returncode == 0, found.stdout[-2_000:] + found.stderr[-2_000:]


def test_choice_is_written_down_where_a_case_leaves_one() -> None:
    rows = re.findall(r"^\| (O-\d\d) \|", CHOICES, re.M)

    assert set(MAY_CHOOSE) <= set(rows)
    assert set(rows) <= set(CASES)
    assert rows == sorted(rows)
