"""How the platform is asked about a resource, and how its answer is read (U2, U8)."""

from __future__ import annotations

from urllib.parse import quote, unquote

from proxy.core.bodies import Json, Mistake, at, read_json, whole_text, written_json
from proxy.core.classify import object_text, plain_body, read_object
from proxy.core.http import Answered, WireResult
from proxy.core.keys import LENGTH_MAX, text_of
from proxy.core.model import Operation, replace
from proxy.core.resolve import Found, LookupFailed, LookupResult, Missed
from proxy.core.rules import Platform, Route


def merchant_number(operation: Operation) -> str | None:
    """The merchant's own number of the resource: what follows the prefix of the subject's handle."""
    if operation.subject is None or operation.acts_on_existing:
        return None
    if len(operation.subject) >= LENGTH_MAX:
        return None  # shortened by a hash: the number can't be read back, and another would be a false miss
    return whole_text(unquote(operation.subject.partition(":")[2], errors="surrogateescape"))


def lookup_target(operation: Operation, route: Route) -> bytes | None:
    """By resource id if it is known, else by merchant number; None where there is no way to ask."""
    rule = route.lookup
    if rule is None:
        return None
    number = merchant_number(operation)
    if operation.resource_id is not None and rule.by_id is not None:
        return rule.by_id.replace("{id}", quote(operation.resource_id, safe="")).encode("ascii")
    if number is not None and rule.by_number is not None:
        return rule.by_number.replace("{number}", quote(number, safe="")).encode("ascii")
    return None


def read_lookup(
    result: WireResult,
    operation: Operation,
    route: Route,
    platform: Platform,
    *,
    seen_ms: int,
    secret: bytes = b"",
) -> LookupResult:
    """What a lookup's end shows. Only the documented empty answer is a miss (U8).

    Args: secret: the credential that it was asked with; an object that repeats it is not kept (D4).
    """
    rule = route.lookup
    if rule is None:
        return LookupFailed("no lookup")
    if not isinstance(result, Answered):
        return LookupFailed(result.reason.value)
    response = result.response
    plain = plain_body(response)
    value = read_json(plain) if plain else None
    if value is None or isinstance(value, Mistake):
        return LookupFailed(f"http_{response.status} without the platform's JSON")
    by_id = operation.resource_id is not None and rule.by_id is not None
    if response.status == 200:
        shown = _shown(value, operation, route, platform, by_id=by_id, seen_ms=seen_ms)
        return _withheld(shown, secret) if secret and isinstance(shown, Found) else shown
    # An id that was never confirmed may be unknown to the platform; one that it gave out itself may not.
    never_confirmed = operation.acts_on_existing and operation.newest is None and not operation.accepted
    says_so = response.status in rule.absent_statuses and at(value, platform.error_code) is not None
    if by_id and never_confirmed and says_so:
        return Missed()
    return LookupFailed(f"http_{response.status}")


def _withheld(found: Found, secret: bytes) -> Found:
    body = found.seen.body
    return (
        found if body is None or secret not in body else Found(replace(found.seen, body=None), found.handles)
    )


def _shown(
    value: Json, operation: Operation, route: Route, platform: Platform, *, by_id: bool, seen_ms: int
) -> LookupResult:
    """A 200: the object by id; by number the object, or the list with at most one item (the number is unique)."""
    item, named, wanted = value, route.object.id, operation.resource_id
    if not by_id:
        found = at(value, route.lookup.list_path if route.lookup else ())
        if isinstance(found, dict) and found is value:
            found = [found]
        if not isinstance(found, list):
            return LookupFailed("no list")
        if not found:
            return Missed()
        if len(found) > 1:
            return LookupFailed("more than one resource for one number")
        item, named, wanted = found[0], route.object.number, merchant_number(operation)
    if named and text_of(at(item, named)) != wanted:
        return LookupFailed("another resource than was asked for")
    seen = read_object(
        written_json(item).encode(),
        item,
        route.object,
        source="lookup",
        seen_ms=seen_ms,
        card_fields=platform.card_fields,
    )
    return Found(seen, operation.handles) if seen else LookupFailed("not the platform's object")


def listed_ids(result: WireResult, route: Route) -> frozenset[str] | None:
    """The ids of the resources that a list of the platform shows; None where it was no such list (U2's sweep)."""
    if not isinstance(result, Answered) or result.response.status != 200 or route.lookup is None:
        return None
    plain = plain_body(result.response)
    value = read_json(plain) if plain else None
    found = None if isinstance(value, Mistake) else at(value, route.lookup.list_path)
    if not isinstance(found, list):
        return None
    ids = (object_text(item, route.object.id, route.object) for item in found)
    return frozenset(one for one in ids if one is not None)
