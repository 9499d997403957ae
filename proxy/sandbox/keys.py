"""Idempotency keys as the platform keeps them.

The scope of a key is merchant, environment, method, path and key. A record is made when a request wins the
right to execute, and stays for the retention; the business numbers outlive it. Card data is neither
compared nor kept.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from proxy.sandbox.objects import Clock, Json, Tenant

KEY_CHARACTERS_MAX = 255


@dataclass(frozen=True, slots=True)
class KeyScope:
    """What makes two keys the same key. Which API key signed the request plays no part."""

    tenant: Tenant
    method: str
    path: str
    key: str


@dataclass(slots=True)
class KeyRecord:
    """One key's first request: its safe fields and, once it has executed, the object it led to."""

    safe: Json
    created_ms: int
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    object_id: str | None = None


class KeyBook:
    """The keys in use. A running request holds its record; a refused one gives it back."""

    def __init__(self, clock: Clock, *, retention_ms: int) -> None:
        self._clock = clock
        self._retention_ms = retention_ms
        self._records: dict[KeyScope, KeyRecord] = {}

    def find(self, scope: KeyScope) -> KeyRecord | None:
        """The record of `scope`; one past its retention is forgotten here, unless it still runs."""
        record = self._records.get(scope)
        if record is None:
            return None
        age_ms = self._clock.wall_ms() - record.created_ms
        if record.ended.is_set() and age_ms >= self._retention_ms:
            del self._records[scope]
            return None
        return record

    def claim(self, scope: KeyScope, safe: Json) -> KeyRecord:
        record = KeyRecord(safe, self._clock.wall_ms())
        self._records[scope] = record
        return record

    def finish(self, record: KeyRecord, object_id: str) -> None:
        record.object_id = object_id
        record.ended.set()

    def release(self, scope: KeyScope, record: KeyRecord) -> None:
        """The request was refused: the key is free again, and who waited may try in its turn."""
        if self._records.get(scope) is record:
            del self._records[scope]
        record.ended.set()

    def reset(self) -> None:
        for record in self._records.values():
            record.ended.set()
        self._records.clear()
