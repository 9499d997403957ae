"""A call, understood: from a request's bytes to the claim that the ledger judges."""

from __future__ import annotations

from msgspec import Struct

from proxy.core import fingerprint, keys
from proxy.core.bodies import BodyKind, Json, Mistake, Number, Parsed, get, parse_headed, whole_text
from proxy.core.http import Headers, RequestHead, values
from proxy.core.messages import Claim, SeqKey
from proxy.core.model import Fingerprint, Handle, Key, Scope
from proxy.core.problem import (
    Problem,
    body_invalid,
    body_missing,
    field_missing,
    key_missing,
    key_sensitive,
    unsupported_encoding,
)
from proxy.core.routes import Match, decoded
from proxy.core.rules import KeyMode, KeyRule, Platform, Route

_CURRENCY_CHARS_MAX = 8  # longer than any code in use; the ledger keeps no arbitrary text as a currency


class Understood(Struct, frozen=True):
    """A call that may be claimed. `sensitive` is `card` or `email` where its key or subject looks so (K5)."""

    claim: Claim
    sensitive: str | None = None


def make_claim(
    head: RequestHead,
    body: bytes,
    *,
    match: Match,
    path: str,
    platform: Platform,
    scope: Scope,
    secrets: tuple[tuple[str, bytes], ...],
    request_id: str,
    observe: bool = False,
) -> Understood | Problem:
    """Understand a guarded call, or say why it is not sent.

    Args: path: normalised, without its query. secrets: (id, secret) of each that records may have been made
        with, the current one first (P1).
        observe: shadow mode (C9): a missing key is made from the template also where the route requires one,
        so that the submission is known again; a sensitive key is only reported.
    """
    route = match.route
    encoding = _encoding(head.headers)
    if encoding is not None:
        return unsupported_encoding(encoding)
    given = keys.given_key(head.headers, route.key)
    if isinstance(given, Problem):
        return given
    if given is None and not _may_inject(route.key, platform, observe=observe):
        return key_missing(route.key.header.decode("latin-1"))
    parsed = parse_headed(body, head.headers)
    if isinstance(parsed, Mistake):
        return body_invalid(parsed.place, what=parsed.what)
    if parsed.kind is BodyKind.EMPTY and route.body_required:
        return body_missing()
    subject = _named(route.subject, parsed, match)
    key = given if given is not None else _made(route, parsed, match, subject)
    if isinstance(key, keys.Unfilled):
        return field_missing(key.place)
    sensitive = _sensitive(key, subject)
    if sensitive is not None and route.key.reject_sensitive and not observe:
        return key_sensitive(route.key.header.decode("latin-1"), what=sensitive)
    resource_id = _resource_id(match)
    claim = Claim(
        scope=scope,
        route=route,
        method=route.method,
        path=path,
        key=key,
        key_injected=given is None,
        fingerprints=_fingerprints(parsed, match, platform, secrets),
        subject=_handle(subject),
        twin=_handle(_named(route.twin, parsed, match)),
        handles=_handles(route, _handle(subject), resource_id),
        resource_id=resource_id,
        amount=_amount(parsed, route),
        currency=_currency(parsed, route),
        request_id=keys.masked(request_id),  # it is recorded with each attempt, and is a caller's text (D4)
    )
    return Understood(claim, sensitive)


def _encoding(headers: Headers) -> str | None:
    """What the body is encoded as, None where it is plain (H3)."""
    for value in values(headers, b"content-encoding"):
        if value.lower() not in (b"", b"identity"):
            return value.decode("ascii", "replace")[:40]
    return None


def _may_inject(rule: KeyRule, platform: Platform, *, observe: bool) -> bool:
    """Never on a signed platform: the signature may cover the key (F5)."""
    wanted = rule.mode is KeyMode.INJECT or observe
    return wanted and rule.template is not None and not platform.signed


def _named(template: str | None, parsed: Parsed, match: Match) -> Handle | keys.Unfilled | None:
    return keys.handle_of(template, parsed, match.params) if template else None


def _handle(named: Handle | keys.Unfilled | None) -> Handle | None:
    """A call that doesn't name its subject has none: the platform will say what is wrong with it."""
    return None if isinstance(named, keys.Unfilled) else named


def _made(
    route: Route, parsed: Parsed, match: Match, subject: Handle | keys.Unfilled | None
) -> Key | SeqKey | keys.Unfilled:
    """The injected key (K2). `{seq}` counts the submissions on a subject, so it needs one."""
    made = keys.injected(route.key.template or "", parsed, match.params, length_max=route.key.length_max)
    return subject if isinstance(made, SeqKey) and isinstance(subject, keys.Unfilled) else made


def _sensitive(key: Key | SeqKey, subject: Handle | keys.Unfilled | None) -> str | None:
    text = f"{key.before}{key.after}" if isinstance(key, SeqKey) else key
    handle = _handle(subject)
    return keys.looks_sensitive(text) or (keys.looks_sensitive(handle) if handle else None)


def _fingerprints(
    parsed: Parsed, match: Match, platform: Platform, secrets: tuple[tuple[str, bytes], ...]
) -> tuple[Fingerprint, ...]:
    preset = f"{platform.name}@{platform.version}"
    return tuple(
        fingerprint.make(parsed, match.params, match.route, secret_id=name, secret=secret, preset=preset)
        for name, secret in secrets
    )


def _resource_id(match: Match) -> str | None:
    """The id of the existing resource that the call acts on: the last parameter of its path, None if no text."""
    if not match.route.acts_on_existing or not match.params:
        return None
    return whole_text(decoded(list(match.params.values())[-1]))


def _handles(route: Route, subject: Handle | None, resource_id: str | None) -> tuple[Handle, ...]:
    found = [subject, keys.handle(route.object.kind, resource_id) if resource_id else None]
    return tuple(dict.fromkeys(handle for handle in found if handle is not None))


def _amount(parsed: Parsed, route: Route) -> int | None:
    """In minor units; None where it is not given as a whole number that is not negative."""
    value = get(parsed, route.amount) if route.amount else None
    if parsed.kind is BodyKind.FORM and isinstance(value, str) and value.isascii() and value.isdigit():
        value = Number(value)
    amount = value.integer if isinstance(value, Number) else None
    return amount if amount is not None and amount >= 0 else None


def _currency(parsed: Parsed, route: Route) -> str | None:
    value: Json = get(parsed, route.currency) if route.currency else None
    if not isinstance(value, str) or len(value) > _CURRENCY_CHARS_MAX:
        return None
    return value if value.isascii() and value.isalpha() else None
