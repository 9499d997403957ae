"""Reading a request's fields: each refusal is a 422 that names the field."""

from __future__ import annotations

import re
from collections.abc import Mapping

from proxy.sandbox.objects import Card
from proxy.sandbox.refusals import invalid

NUMBER_CHARACTERS_MAX = 128
AMOUNT_MAX = 10**12
DECLINED_CARD = "4000000000000002"
"""The one card number that is always declined; a token that contains `decline` is, too."""

_CURRENCY = re.compile(r"[A-Z]{3}")
_PRINTABLE = re.compile(r"[^\x00-\x1f\x7f]+")


def business_number(body: Mapping[str, object], field: str) -> str:
    """An order or refund number: exact, case-sensitive."""
    value = body.get(field)
    if not isinstance(value, str) or not _PRINTABLE.fullmatch(value) or len(value) > NUMBER_CHARACTERS_MAX:
        raise invalid(field, f"expected 1 to {NUMBER_CHARACTERS_MAX} printable characters")
    return value


def amount(body: Mapping[str, object]) -> int:
    """Minor units."""
    value = body.get("amount")
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= AMOUNT_MAX:
        raise invalid("amount", f"expected an integer of minor units from 1 to {AMOUNT_MAX}")
    return value


def currency(body: Mapping[str, object]) -> str:
    value = body.get("currency")
    if not isinstance(value, str) or not _CURRENCY.fullmatch(value):
        raise invalid("currency", "expected three capital letters")
    return value


def card(body: Mapping[str, object]) -> Card:
    """The card, as little of it as is needed. None given stands for one on file, which pays."""
    value = body.get("card")
    if value is None:
        return Card(None, declines=False)
    if not isinstance(value, dict):
        raise invalid("card", "expected an object with `number` or `token`")
    number = value.get("number", value.get("token"))
    if not isinstance(number, str) or len(number) < 4:
        raise invalid("card.number", "expected a card number, or a token in card.token")
    digits = number.replace(" ", "")
    return Card(digits[-4:], declines=digits == DECLINED_CARD or "decline" in digits)
