"""Card numbers, told from order numbers (D4, K5, O-64)."""

from __future__ import annotations

import time

import pytest

from proxy.core.bodies import Mistake, read_json
from proxy.core.cards import holds_card, holds_card_number

FIELDS = frozenset({"cvc", "card_number"})


@pytest.mark.parametrize(
    "text",
    [
        "4242424242424242",
        "4242 4242 4242 4242",
        "4242-4242-4242-4242",
        "pay:4242424242424242:1",
        "4242424242424242-1",
        "2026-4242424242424242",
        "4222222222222",
        "5555555555554444",
        "2223003122003222",
        "378282246310005",
        "6011111111111117",
        "3056930009020004",
        "36227206271667",
        "3566002020360505",
        "6200000000000005",
        "6205500000000000004",
        "4242  4242  4242  4242",
        "4242--4242--4242--4242",
        "4242.4242.4242.4242",
        "4242_4242_4242_4242",
        "4242/4242/4242/4242",
        "4242+4242+4242+4242",
        "4242\t4242\t4242\t4242",
        "3782.822463.10005",
        "4242\u00a04242\u00a04242\u00a04242",
        "4242\u20114242\u20114242\u20114242",
        "4242\u200b4242\u200b4242\u200b4242",
        "\uff14\uff12" * 8,
        "\u0664\u0662" * 8,
    ],
)
def test_card_number_is_found(text: str) -> None:
    assert holds_card_number(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ORDER-2026-000123",
        "4242424242424241",
        "424242424242424",
        "4.242424242424242",
        "42424242/42424242",
        "4242:4242:4242:4242",
        "4242,4242,4242,4242",
        "x4242424242424242424242x",
        "1111111111111111117",
        "20260714123456789",
        "550e8400-e29b-41d4-a716-446655440000",
        "1789000000000",
    ],
)
def test_other_digits_are_no_card_number(text: str) -> None:
    assert not holds_card_number(text)


@pytest.mark.parametrize("piece", ["4 ", "4./", "4444-", "4"])
def test_long_run_of_digits_holds_no_other_call_up(piece: str) -> None:
    """The event loop waits meanwhile: 22 seconds for a megabyte would outlast every lease (P5)."""
    text = piece * (262_144 // len(piece))
    began = time.process_time()
    assert not holds_card_number(text)
    assert time.process_time() - began < 1.5, "a tenth of that is enough"


@pytest.mark.parametrize(
    ("body", "holds"),
    [
        (b'{"id":"pay_1","amount":10000}', False),
        (b'{"card":{"number":"4242 4242 4242 4242"}}', True),
        (b'{"n":4242424242424242}', True),
        (b'{"n":"\\u0034242424242424242"}', True),
        (b'{"n":"4242\\t4242\\t4242\\t4242"}', True),
        ('{"n":"4242\u00a04242\u00a04242\u00a04242"}'.encode(), True),
        (b"\xff 4242 4242 4242 4242", True),
        ('{"n":"\u4ed8\u6b3e\u6210\u529f 2026.11.29"}'.encode(), False),
        (b'{"n":["\\u4e2d",1,null,{"cvc":null}]}', False),
        (b'{"card":[{"cvc":"987"}]}', True),
        (b'{"card":{"cvc":null},"cvc_check":"pass"}', False),
        (b'{"c\\u0076c":"987"}', True),
        (b'{"card":{"CVC":"987"}}', True),
        (b'{"cvc_result":"987"}', False),
        (b"<cvc>987</cvc>", True),
        (b"<p>the cvcs</p>", False),
        (b"<html>sorry</html>", False),
    ],
)
def test_answer_with_card_data_may_not_be_stored(body: bytes, holds: bool) -> None:
    value = read_json(body)
    assert holds_card(body, None if isinstance(value, Mistake) else value, FIELDS) is holds


def test_answer_of_a_preset_without_card_fields_is_searched_for_numbers_only() -> None:
    assert not holds_card(b'{"cvc":"987"}', {"cvc": "987"}, frozenset())
    assert holds_card(b'{"n":"4242424242424242"}', None, frozenset())
