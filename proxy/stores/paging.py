"""Lists of operations, the same over every store: which belong to a query, in what order, up to where.

Ordered by creation, or by the due instant where the query asks for due lookups; ties by id. A cursor is the
place of the last operation seen, so that a page costs the same however deep it lies.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from dataclasses import dataclass

from proxy.core.model import Now, Operation, State
from proxy.ports import Page, Query
from proxy.stores.rows import due_ms

LIMIT_MAX = 1_000


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where an operation stands in a list."""

    at_ms: int
    id: str


class CursorError(ValueError):
    """A cursor that no page of ours gave out."""


def cursor_of(place: Place) -> str:
    return base64.urlsafe_b64encode(f"{place.at_ms}:{place.id}".encode()).decode()


def place_of(cursor: str) -> Place:
    """Raises: CursorError."""
    try:
        at, colon, identity = base64.b64decode(cursor, altchars=b"-_", validate=True).decode().partition(":")
        if not colon:
            raise CursorError("cursor: expected one that an earlier page gave")
        return Place(int(at), identity)
    except (binascii.Error, ValueError) as error:
        raise CursorError("cursor: expected one that an earlier page gave") from error


def limit_of(query: Query) -> int:
    return max(1, min(query.limit, LIMIT_MAX))


def place_in(query: Query, operation: Operation) -> Place:
    due = due_ms(operation) if query.due_before_ms is not None else None
    return Place(operation.created_ms if due is None else due, operation.id)


def matches(query: Query, operation: Operation, now: Now) -> bool:
    """Whether the operation belongs to the query; `subject` is left to whoever knows the subject's row."""
    if query.knowledge is not None and operation.knowledge != query.knowledge:
        return False
    if query.key is not None and operation.key != query.key:
        return False
    if query.route is not None and operation.route != query.route:
        return False
    if query.since_ms is not None and operation.created_ms < query.since_ms:
        return False
    if query.until_ms is not None and operation.created_ms >= query.until_ms:
        return False
    due = due_ms(operation)
    if query.due_before_ms is not None and (due is None or due > query.due_before_ms):
        return False
    return not query.lapsed or (operation.state is State.IN_FLIGHT and operation.lease_is_over(now))


def page_of(query: Query, operations: Iterable[Operation], now: Now) -> Page:
    """A page out of candidates that may be unordered, doubled or beside the query."""
    after = place_of(query.cursor) if query.cursor else None
    found: dict[str, tuple[Place, Operation]] = {}
    for operation in operations:
        place = place_in(query, operation)
        if after is not None and not (place > after if query.oldest_first else place < after):
            continue
        if matches(query, operation, now):
            found[operation.id] = (place, operation)
    ordered = sorted(found.values(), key=lambda pair: pair[0], reverse=not query.oldest_first)
    limit = limit_of(query)
    shown = ordered[:limit]
    more = len(ordered) > limit
    return Page(tuple(operation for _, operation in shown), cursor_of(shown[-1][0]) if more else None)
