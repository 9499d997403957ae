"""A look into the ledger for `explain --store`: which number `{seq}` is, and what is known (K3, C6)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from proxy.clock import SystemClock
from proxy.config import Settings
from proxy.core.messages import Claim
from proxy.core.model import Key, Now, Operation, OperationId, Scope
from proxy.core.reserve import find
from proxy.core.tables import Tables
from proxy.stores import make_store, sqlite_path

Found = tuple[int | None, Key, OperationId, Operation | None]


@dataclass(frozen=True, slots=True)
class Peek:
    """Reads what a claim means at this moment, and writes nothing."""

    claim: Claim
    name: str = "peek"

    @property
    def scope(self) -> Scope:
        return self.claim.scope

    def apply(self, tables: Tables, now: Now) -> Found:
        return find(tables, self.claim)


def is_missing(settings: Settings) -> bool:
    """Whether the ledger is a SQLite file that was never made; looking must not make it."""
    return settings.store.url.startswith("sqlite:") and not sqlite_path(settings.store.url).exists()


async def peeked(settings: Settings, claim: Claim) -> dict[str, Any]:
    """The members that the ledger adds to an explanation. Raises: StoreUnavailable."""
    secret = settings.store.secret
    store = make_store(
        settings.store.url,
        clock=SystemClock(),
        timeout_ms=settings.store.timeout_ms,
        secret=secret.reveal().encode() if secret else None,
    )
    await store.open()
    try:
        seq, key, operation, found = await store.transact(Peek(claim))
    finally:
        await store.close()
    return {"seq": seq, "made_key": key, "operation": operation, "ledger": _told(found)}


def _told(found: Operation | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "state": str(found.state),
        "knowledge": str(found.knowledge),
        "status": found.status,
        "doubt": found.doubt,
        "attempt_count": found.attempt_count,
    }
