"""Rows in Redis: their keys, their indexes, and the writes that keep both in step.

Every key of a scope carries the hash tag `{merchant/environment}`, so that a step is one script on one node of a
cluster. A row is a string: a revision of 16 bytes, then its document (`codec.py`). The revision is unique for
each write ever made, so that a row that was dropped and made anew is never taken for the old one, and a writer
whose reply was lost recognises its own write.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple
from urllib.parse import quote

import msgspec

from proxy.core.model import Handle, Now, Operation, OperationId, Scope, State, Subject
from proxy.stores.codec import pack, unpack_operation, unpack_subject
from proxy.stores.rows import due_ms, is_purgeable, money_of, oldest_ms

PREFIX = "safepost"
SCOPES = f"{PREFIX}:scopes"
MARKER = f"{PREFIX}:marker"
SECRET = f"{PREFIX}:secret"
EPOCH = "redis"  # leases count from the server's clock, which all sidecars share (D2)
REVISION_BYTES = 16
ABSENT = b""

Row = Operation | Subject | None
Argument = str | int | bytes
Write = tuple[str, str | None, tuple[Argument, ...]]
"""A command, the key that it writes (None: none), and its other arguments."""


class Versioned(NamedTuple):
    """A row as it was at a revision; absent rows have revision `ABSENT` and no value."""

    revision: bytes
    value: Row


@dataclass(frozen=True, slots=True)
class Names:
    """The keys of one scope."""

    base: str

    def operation(self, operation: OperationId) -> str:
        return f"{self.base}o:{operation}"

    def subject(self, handle: Handle) -> str:
        return f"{self.base}s:{handle}"

    def index(self, name: str) -> str:
        return f"{self.base}i:{name}"


def tag_of(scope: Scope) -> str:
    """The scope's hash tag. Percent-encoded: braces and slashes in names make no tag of another shape (O-54)."""
    return f"{quote(scope.merchant, safe='')}/{quote(scope.environment, safe='')}"


@cache
def names_of(tag: str) -> Names:
    return Names(f"{PREFIX}:{{{tag}}}:")


def marker_of(tag: str) -> str:
    """The marker that shares a node with what has the hash tag, or with the one key of that name."""
    return f"{names_of(tag).base}marker"


def channel_of(operation: OperationId) -> str:
    """Where the end of the operation's run is published."""
    return f"{PREFIX}:ended:{operation}"


def split(stored: bytes | None) -> tuple[bytes, bytes | None]:
    """A stored row as revision and document."""
    return (ABSENT, None) if stored is None else (stored[:REVISION_BYTES], stored[REVISION_BYTES:])


def operation_in(stored: bytes | None) -> Operation | None:
    """Raises: RowUnreadable."""
    return None if stored is None else unpack_operation(stored[REVISION_BYTES:])


def subject_in(stored: bytes | None) -> Subject | None:
    """Raises: RowUnreadable."""
    return None if stored is None else unpack_subject(stored[REVISION_BYTES:])


class Held(NamedTuple):
    """What the gauges need of an unresolved operation, kept in one hash so that no document is read for them."""

    route: str
    knowledge: str
    currency: str
    amount: int
    oldest_ms: int
    at_work: bool  # a first run, under a lease: counts once the lease is over
    lease_until_ms: int
    lease_epoch: str

    def counts(self, now: Now) -> bool:
        return not self.at_work or self.lease_epoch != now.epoch or self.lease_until_ms <= now.lease_ms


_held = msgspec.msgpack.Decoder(Held)


def held_in(stored: bytes) -> Held:
    return _held.decode(stored)


def _held_of(operation: Operation) -> bytes | None:
    if not operation.is_unresolved:
        return None
    return msgspec.msgpack.encode(
        Held(
            operation.route,
            operation.knowledge.value,
            operation.currency or "",
            money_of(operation),
            oldest_ms(operation),
            operation.state is State.IN_FLIGHT and not operation.doubt,
            operation.lease_until_ms,
            operation.lease_epoch,
        )
    )


def _flight_score(operation: Operation) -> int | None:
    if operation.state is not State.IN_FLIGHT:
        return None
    return operation.lease_until_ms if operation.lease_epoch == EPOCH else 0


def _scores(operation: Operation) -> dict[str, int | None]:
    """The sorted sets that list the operation, and where; None: not there."""
    return {
        "created": operation.created_ms,
        "unresolved": operation.created_ms if operation.is_unresolved else None,
        "flight": _flight_score(operation),
        "due": due_ms(operation),
        f"purge:{operation.route}": operation.updated_ms if is_purgeable(operation) else None,
    }


def key_member(operation: Operation) -> str:
    """In the index by key, which is ordered by name: the key, then the id."""
    return f"{operation.key}\0{operation.id}"


def operation_writes(
    names: Names, operation: Operation, *, before: Operation | None, is_known: bool, revision: bytes
) -> Iterator[Write]:
    """Put the operation and list it.

    Args: before: the row that is replaced. is_known: False where nothing was read; then every index is written.
    """
    yield ("SET", names.operation(operation.id), (revision + pack(operation),))
    was = _scores(before) if before is not None else {}
    for index, score in _scores(operation).items():
        if is_known and was.get(index) == score:
            continue
        if score is None:
            yield ("ZREM", names.index(index), (operation.id,))
        else:
            yield ("ZADD", names.index(index), (score, operation.id))
    if before is None:
        yield ("ZADD", names.index("keys"), (0, key_member(operation)))
    held = _held_of(operation)
    if held is not None:
        yield ("HSET", names.index("held"), (operation.id, held))
    elif before is None or before.is_unresolved:
        yield ("HDEL", names.index("held"), (operation.id,))


def operation_drops(names: Names, operation: Operation) -> Iterator[Write]:
    yield ("DEL", names.operation(operation.id), ())
    for index in _scores(operation):
        yield ("ZREM", names.index(index), (operation.id,))
    yield ("ZREM", names.index("keys"), (key_member(operation),))
    yield ("HDEL", names.index("held"), (operation.id,))


def subject_writes(names: Names, subject: Subject, *, revision: bytes) -> Iterator[Write]:
    yield ("SET", names.subject(subject.handle), (revision + pack(subject),))
    if subject.operations:
        yield ("ZREM", names.index("empty"), (subject.handle,))
    else:
        yield ("ZADD", names.index("empty"), (subject.updated_ms, subject.handle))


def subject_drops(names: Names, handle: Handle) -> Iterator[Write]:
    yield ("DEL", names.subject(handle), ())
    yield ("ZREM", names.index("empty"), (handle,))


def ended_writes(
    operation: OperationId, before: Operation | None, after: Operation | None
) -> Iterator[Write]:
    """Wake the waiters of the run that this write ends, if any does."""
    if before is None or before.state is not State.IN_FLIGHT:
        return
    if after is None or after.state is not State.IN_FLIGHT or after.fence != before.fence:
        yield ("PUBLISH", None, (channel_of(operation), ""))
