"""What a caller was given, as far as the ledger has to know of it (K3, W1)."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from proxy.core.model import EntryKind, Fence, Now, Operation, OperationId, Scope, State
from proxy.core.tables import Tables, scheduled, told


class DeliverFailure(Struct, frozen=True):
    """A caller was given this operation's definite failure, to its last byte (K3).

    Args: given: when that was, by the store's clocks; None: now.
    """

    scope: Scope
    operation: OperationId
    fence: Fence
    given: Now | None = None
    name: str = "deliver"

    def apply(self, tables: Tables, now: Now) -> Operation | None:
        current = tables.operation(self.scope, self.operation)
        if current is None or current.fence != self.fence or current.state is not State.EXECUTED:
            return current
        if current.failure_delivered:
            return current
        given = self.given or now
        delivered = replace(
            current,
            failure_delivered=True,
            delivered_ms=given.lease_ms,
            delivered_epoch=given.epoch,
            updated_ms=now.wall_ms,
        )
        tables.put(delivered)
        return delivered


class MarkAnsweredEarly(Struct, frozen=True):
    """The caller's patience ended before the call did (W1): lookups may begin."""

    scope: Scope
    operation: OperationId
    fence: Fence
    name: str = "answered_early"

    def apply(self, tables: Tables, now: Now) -> Operation | None:
        current = tables.operation(self.scope, self.operation)
        if current is None or current.fence != self.fence or current.state is not State.IN_FLIGHT:
            return current
        text = "the caller was answered before the call ended"
        marked = replace(
            current,
            lookups=scheduled(current, State.UNKNOWN, now),
            history=told(current, now, EntryKind.ANSWERED_EARLY, text),
        )
        tables.put(marked)
        return marked
