"""The sandbox's page in the docs says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from proxy.sandbox import Fault
from proxy.sandbox.rules import read_directives

PAGE = (Path(__file__).parents[2] / "docs" / "sandbox.md").read_text(encoding="utf-8")


def test_every_fault_is_on_the_page() -> None:
    assert [fault for fault in Fault if f"`{fault}`" not in PAGE] == []


def test_every_number_on_the_page_scripts_what_it_shows() -> None:
    numbers = re.findall(r"^\| `([^`]*~[^`]*)`", PAGE, re.MULTILINE)
    assert len(numbers) > 5
    for number in numbers:
        rules = list(read_directives(number, is_refund=number.startswith("R-")))
        assert len(rules) == number.count("~"), number
