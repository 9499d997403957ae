"""Fingerprints: what makes two calls with one key the same submission (P1).

One keyed digest for each safe business field, so that a conflict can name the field and the ledger holds no
value: amounts and order numbers are few enough to be guessed from a plain hash. A digest covers the field's
name and its value in a canonical form in which two values are the same bytes exactly if they are equal:
strings by code point, numbers by value, objects without order and without null members.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b

from proxy.core.bodies import BodyKind, Json, Number, Parsed, get
from proxy.core.model import Fingerprint
from proxy.core.routes import Params, decoded
from proxy.core.rules import Path, Route

WHOLE_BODY = "(body)"
"""The field that stands for a body in which nothing can be found by name: XML, JSON that is no object.

It is null for any other body, so that the two kinds never agree.
"""

ALL_FIELDS = "*"
"""The field that stands for all of a body, less the route's `left_out`: nobody named the safe fields."""

_DIGEST_BYTES = 16  # 128 bits: no accidental equals, and the record stays small


def make(
    parsed: Parsed, params: Params, route: Route, *, secret_id: str, secret: bytes, preset: str
) -> Fingerprint:
    """The fingerprint of one call under one secret; a field that is missing or null has one too.

    A field is a dotted path into the body; `path.NAME` is a parameter of the route's path.
    """
    key = _key(secret)
    fields = {name: _digest(key, name, _field(name, parsed, params, route.left_out)) for name in route.fields}
    if fields:
        fields[WHOLE_BODY] = _digest(key, WHOLE_BODY, _whole(parsed))
    return Fingerprint(secret_id, preset, fields)


def differing(record: Fingerprint, calls: tuple[Fingerprint, ...]) -> tuple[str, ...]:
    """The fields in which the call is not what was recorded; empty where they agree.

    Compared is the one of `calls` made with the record's secret, in the fields that both have: without the
    secret, or for a field that a newer preset added, there is nothing to compare (P1).
    """
    for call in calls:
        if call.secret_id == record.secret_id:
            return tuple(
                name for name, digest in record.fields.items() if call.fields.get(name, digest) != digest
            )
    return ()


def canonical(value: Json) -> bytes:
    """`value` as bytes: equal for equal values, and only for them. Every piece carries its own length."""
    if value is None:
        return b"z"
    if isinstance(value, bool):
        return b"t" if value else b"f"
    if isinstance(value, str):
        return _sized(b"s", value.encode("utf-8", "surrogatepass"))
    if isinstance(value, Number):
        return _sized(b"n", value.canonical.encode())
    if isinstance(value, list):
        return _sized(b"a", b"".join(map(canonical, value)))
    members = ((canonical(name), canonical(member)) for name, member in value.items() if member is not None)
    return _sized(b"o", b"".join(name + member for name, member in sorted(members)))


def _sized(kind: bytes, content: bytes) -> bytes:
    return b"%b%d:%b" % (kind, len(content), content)


def _field(name: str, parsed: Parsed, params: Params, left_out: frozenset[str]) -> bytes:
    if name == ALL_FIELDS:
        return canonical(_less(parsed.root, left_out))
    path = _path(name)
    if len(path) == 2 and path[0] == "path":
        param = params.get(path[1])
        return canonical(None if param is None else decoded(param))
    return canonical(get(parsed, path))


def _less(value: Json, names: frozenset[str]) -> Json:
    """`value` without the members of these lower-case names, at any depth."""
    if isinstance(value, list):
        return [_less(item, names) for item in value]
    if isinstance(value, dict):
        return {name: _less(member, names) for name, member in value.items() if name.lower() not in names}
    return value


def _whole(parsed: Parsed) -> bytes:
    if parsed.kind is BodyKind.OPAQUE:
        return _sized(b"b", parsed.raw)
    return canonical(None if isinstance(parsed.root, dict) else parsed.root)


@lru_cache(maxsize=1_024)
def _path(name: str) -> Path:
    return tuple(name.split("."))


@lru_cache(maxsize=1_024)
def _label(name: str) -> bytes:
    return canonical(name)


@lru_cache(maxsize=16)
def _key(secret: bytes) -> bytes:
    """The secret as a key for BLAKE2b, which takes up to 64 bytes."""
    return secret if len(secret) <= blake2b.MAX_KEY_SIZE else blake2b(secret).digest()


def _digest(key: bytes, name: str, value: bytes) -> str:
    """Keyed BLAKE2b (RFC 7693 section 2.9), a third of the price of an HMAC; a call makes one a field."""
    return blake2b(_label(name) + value, key=key, digest_size=_DIGEST_BYTES).hexdigest()
