"""Whose payment a call is (K6)."""

from __future__ import annotations

import pytest

from proxy.core.http import Headers
from proxy.core.problem import Problem
from proxy.core.scopes import scope_name

HEADER = "X-Merchant-Id"


def named(*values: bytes) -> str | Problem:
    headers: Headers = tuple((b"x-merchant-id", value) for value in values)
    return scope_name(headers, fixed=None, header=HEADER)


@pytest.mark.parametrize(("fixed", "expected"), [("shop", "shop"), (None, "")])
def test_fixed_scope_is_the_same_whatever_a_call_says(fixed: str | None, expected: str) -> None:
    assert scope_name(((b"X-Merchant-Id", b"other"),), fixed=fixed, header=None) == expected


@pytest.mark.parametrize("value", [b"shop", b"Shop_1.a-b", b"x" * 64])
def test_scope_is_what_its_header_says(value: bytes) -> None:
    assert named(value) == value.decode()


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ((), "is missing"),
        ((b"",), "is missing"),
        ((b"", b""), "is missing"),
        ((b"shop", b"shop"), "occurs 2 times"),
        ((b"shop", b""), "occurs 2 times"),
        ((b"a/b",), "holds no name"),
        ((b"sh\xc3\xb6p",), "holds no name"),
        ((b"x" * 65,), "holds no name"),
    ],
)
def test_scope_that_a_header_does_not_name_is_refused(values: tuple[bytes, ...], what: str) -> None:
    refused = named(*values)
    assert isinstance(refused, Problem)
    assert (refused.status, refused.field) == (400, HEADER)
    assert f"The {HEADER} header, which names whose payment it is, {what}" in refused.message
