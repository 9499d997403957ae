"""What of a platform's answer may be kept (D4): no card number, no security code, no credential, ever."""

from __future__ import annotations

from proxy.core.bodies import Mistake, read_json
from proxy.core.cards import holds_card, holds_card_number
from proxy.core.http import Headers, Response

NEVER_STORED = frozenset(
    {
        b"date",
        b"set-cookie",
        b"set-cookie2",
        b"authorization",
        b"proxy-authorization",
        b"www-authenticate",
        b"proxy-authenticate",
        b"authentication-info",
        b"proxy-authentication-info",
        b"x-api-key",
    }
)
"""`Date` is of each message (RFC 9110 section 6.6.1); the others hold credentials or a session."""

SECRET_BYTES_MIN = 8
"""A shorter credential is found in any text; nobody has one."""


def stored_headers(headers: Headers) -> Headers:
    """The answer's headers less those that are a message's own or hold credentials."""
    return tuple(
        (name, value)
        for name, value in headers
        if name.lower() not in NEVER_STORED and not holds_card_number(value.decode("latin-1"))
    )


def secret_of(authorization: bytes) -> bytes:
    """The credential of an `Authorization` field, without its scheme; empty for none."""
    secret = authorization.rpartition(b" ")[2]
    return secret if len(secret) >= SECRET_BYTES_MIN else b""


def repeats(response: Response, plain: bytes | None, secret: bytes) -> bool:
    """Whether the answer holds the credential that its call brought. `plain` as for `may_be_stored`."""
    bodies = (response.body, plain or b"")
    return any(secret in body for body in bodies) or any(secret in value for _, value in response.headers)


def may_be_stored(
    response: Response, plain: bytes | None, *, card_fields: frozenset[str], bytes_max: int
) -> bool:
    """Whether the answer's body may be kept. `plain` is a decoded copy, None where it can't be decoded."""
    if plain is None or len(response.body) > bytes_max:
        return False
    if not plain:
        return True
    value = read_json(plain)
    return not holds_card(plain, None if isinstance(value, Mistake) else value, card_fields)
