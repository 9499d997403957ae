"""Card numbers in texts, told from order numbers: what may be neither stored nor logged (D4, K5)."""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import accumulate

from proxy.core.bodies import Json

# Issuer ranges by leading digits and the lengths in use with them. Sources: ISO/IEC 7812-1 for the build of
# the number; the ranges are those that the card schemes publish for their acquirers, read in 2026.
_RANGES: tuple[tuple[int, int, frozenset[int]], ...] = (
    (4, 4, frozenset({13, 16, 19})),  # Visa
    (51, 55, frozenset({16})),  # Mastercard
    (2221, 2720, frozenset({16})),
    (34, 34, frozenset({15})),  # American Express
    (37, 37, frozenset({15})),
    (6011, 6011, frozenset({16, 19})),  # Discover
    (644, 659, frozenset({16, 19})),
    (300, 305, frozenset({14, 16, 19})),  # Diners Club
    (36, 36, frozenset({14, 16, 19})),
    (38, 39, frozenset({14, 16, 19})),
    (3528, 3589, frozenset({16, 17, 18, 19})),  # JCB
    (62, 62, frozenset({16, 17, 18, 19})),  # UnionPay
    (81, 81, frozenset({16, 17, 18, 19})),
    (2200, 2204, frozenset({16, 17, 18, 19})),  # Mir
    (60, 60, frozenset({16})),  # RuPay
    (508, 508, frozenset({16})),
    (5018, 5018, frozenset({16, 18, 19})),  # Maestro
    (5020, 5020, frozenset({16, 18, 19})),
    (5038, 5038, frozenset({16, 18, 19})),
    (6304, 6304, frozenset({16, 18, 19})),
    (6759, 6763, frozenset({16, 18, 19})),
)

_LENGTH_MIN = 13
_LENGTHS = {
    str(start): tuple(
        {
            length
            for low, high, lengths in _RANGES
            if f"{low:0<2}"[:2] <= str(start) <= f"{high:9<2}"[:2]
            for length in lengths
        }
    )
    for start in range(20, 100)
}
"""How long a number can be that begins with these two digits."""
_RUN = re.compile(r"[0-9](?:[ \t._/+-]{0,2}+[0-9])*+")
_BETWEEN = re.compile(r"([ \t._/+-]+)")
_FOREIGN = re.compile(r"(?![\x00-\x7f])[\d\s\u2010-\u2015\u2212\ufe63\uff0d\u00ad\u200b-\u200d\u2060\ufeff]")
"""Digits, blanks, dashes and marks of no width that are not ASCII's."""
_NO_WIDTH = frozenset("\u00ad\u200b\u200c\u200d\u2060\ufeff")
_DOUBLED = str.maketrans("0123456789", "0246813579")  # the digit sum of twice the digit


def holds_card_number(text: str) -> bool:
    """Whether digits in `text`, alone or in groups, are a card number; digits and blanks of any script.

    That is 13 to 19 digits of a known issuer range with a right check digit (Luhn). One in ten order numbers
    that happen to have a card's length and issuer range passes too. Between two groups stands a blank or a dash;
    between three and more (4242.4242.4242.4242) also a dot, an underscore, a slash, a plus, or two of any.
    """
    if not text.isascii():
        text = _FOREIGN.sub(_as_ascii, text)
    plain = text.encode("ascii", "replace")
    if len(plain) - len(plain.translate(None, b"0123456789")) < _LENGTH_MIN:
        return False  # nearly every text; this is asked of each key and header
    return any(len(run) >= _LENGTH_MIN and _run_holds_card(run) for run in _RUN.findall(text))


def holds_card(body: bytes, value: Json, card_fields: frozenset[str]) -> bool:
    """Whether an answer may not be stored (D4): it holds a card-like number or a card field of the preset.

    Field names are compared without case.

    Args: body: the decoded answer. value: what it says as JSON, None where it is none: then a card field's
        name as a word of it is taken for the field.
    """
    text = body.decode("latin-1") if body.isascii() else body.decode("utf-8", "replace")
    if holds_card_number(text):
        return True
    is_named = _is_near(text, card_fields) and _words(card_fields).search(text) is not None
    if value is None:
        return is_named
    is_escaped = "\\" in text
    if not is_named and not is_escaped:
        return False
    return _holds_member(value, _lower(card_fields), is_escaped)


def _is_near(text: str, names: frozenset[str]) -> bool:
    """Whether one of the names is somewhere in the text: a tenth of the price of looking for it as a word."""
    lower = text.lower()
    return any(name in lower for name in _lower(names))


@lru_cache(maxsize=64)
def _lower(names: frozenset[str]) -> frozenset[str]:
    return frozenset(map(str.lower, names))


@lru_cache(maxsize=64)
def _words(names: frozenset[str]) -> re.Pattern[str]:
    return re.compile(rf"\b(?:{'|'.join(map(re.escape, sorted(names)))})\b", re.IGNORECASE)


def _holds_member(value: Json, card_fields: frozenset[str], is_escaped: bool) -> bool:
    """Escaped texts are looked at once more, since digits may have been written as escapes."""
    if isinstance(value, str):
        return is_escaped and holds_card_number(value)
    if isinstance(value, list):
        return any(_holds_member(item, card_fields, is_escaped) for item in value)
    if isinstance(value, dict):
        return any(
            (name.lower() in card_fields and member is not None)
            or _holds_member(member, card_fields, is_escaped)
            for name, member in value.items()
        )
    return False


def _run_holds_card(run: str) -> bool:
    """Whether some groups of `run` that stand together are a card number.

    An answer of a megabyte may be one run, and the event loop waits meanwhile: nothing here is done twice.
    """
    parts = _BETWEEN.split(run)
    groups, between = parts[::2], parts[1::2]
    digits = "".join(groups)
    bounds = {at: number for number, at in enumerate(accumulate(map(len, groups), initial=0))}
    sums = _luhn_sums(digits)
    for start, first in bounds.items():
        for length in _LENGTHS.get(digits[start : start + 2], ()):
            end = start + length
            last = bounds.get(end)
            if last is None or (last - first == 2 and between[first] not in (" ", "-")):
                continue
            parity = sums[(end - 1) % 2]
            if (parity[end] - parity[start]) % 10 == 0 and _is_issued(digits[start:end]):
                return True
    return False


def _luhn_sums(digits: str) -> tuple[list[int], list[int]]:
    """Up to each digit the check sums of numbers that end at an even, and at an odd place."""
    plain, doubled = list(map(int, digits)), list(map(int, digits.translate(_DOUBLED)))
    even, odd = plain[:], doubled[:]
    even[1::2], odd[1::2] = doubled[1::2], plain[1::2]
    return list(accumulate(even, initial=0)), list(accumulate(odd, initial=0))


def _as_ascii(match: re.Match[str]) -> str:
    char = match[0]
    if char.isdecimal():
        return str(int(char))
    return "" if char in _NO_WIDTH else " " if char.isspace() else "-"


def _is_issued(digits: str) -> bool:
    return any(
        low <= int(digits[: len(str(low))]) <= high and len(digits) in lengths
        for low, high, lengths in _RANGES
    )
