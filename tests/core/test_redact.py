"""What of an answer may be kept (D4, O-64)."""

from __future__ import annotations

import pytest

from proxy.core.bodies import Json
from proxy.core.classify import read_object
from proxy.core.http import Headers, Response
from proxy.core.redact import may_be_stored, secret_of, stored_headers
from tests.core.payhub import PAYMENT

FIELDS = frozenset({"pan", "cvc"})


@pytest.mark.parametrize(
    ("plain", "stored"),
    [
        (b"", True),
        (b'{"id":"pay_1","company":"Japan Ltd"}', True),
        (b'{"title":"pan and cvc"}', True),
        (b'{"card":{"cvc":"987"}}', False),
        (b'{"n":"4242424242424242"}', False),
        (b"<html>bad gateway</html>", True),
        (b"<cvc>987</cvc>", False),
        (b'{"cvc":"1","cvc":"2"}', False),
        (b"x" * 101, False),
        (None, False),
    ],
)
def test_body_is_stored_unless_it_holds_card_data_or_is_too_large(plain: bytes | None, stored: bool) -> None:
    response = Response(200, (), plain or b"")
    assert may_be_stored(response, plain, card_fields=FIELDS, bytes_max=100) is stored


def test_headers_are_stored_less_credentials_dates_and_card_numbers() -> None:
    kept: Headers = ((b"Location", b"/v1/payments/pay_1"), (b"ETag", b"v1"))
    dropped: Headers = (
        (b"Date", b"x"),
        (b"Set-Cookie", b"s=1"),
        (b"Authentication-Info", b"nextnonce=1"),
        (b"X-Api-Key", b"sk_live_12345"),
        (b"X-Card", b"4242424242424242"),
    )
    assert stored_headers((*dropped, *kept)) == kept


@pytest.mark.parametrize(
    ("authorization", "secret"),
    [
        (b"Bearer sk_live_12345", b"sk_live_12345"),
        (b"sk_live_12345", b"sk_live_12345"),
        (b"Bearer x", b""),
        (b"", b""),
    ],
)
def test_secret_of_a_call_is_its_credential_without_the_scheme(authorization: bytes, secret: bytes) -> None:
    assert secret_of(authorization) == secret


@pytest.mark.parametrize(
    ("said", "kept"),
    [("requires_action", "requires_action"), ("4242424242424242", ""), ("a" * 65, ""), ("on\nhold", "")],
)
def test_status_that_is_no_word_is_not_kept(said: str, kept: str) -> None:
    """D4: a status is stored, logged and shown, whatever the platform puts there."""
    value: dict[str, Json] = {"id": "pay_1", "status": said, "resolution_status": said}
    seen = read_object(b"{}", value, PAYMENT, source="answer", seen_ms=7, card_fields=frozenset())
    assert seen is not None
    assert (seen.status, seen.is_final, seen.resolution_status or "") == (kept, False, kept)
