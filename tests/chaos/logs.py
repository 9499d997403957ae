"""The three logs of a chaos run, as plain values: the bank's, the store's and the callers'.

All instants are milliseconds of the machine's wall clock, which no fault of a run touches: the bank and the
callers keep it; only sidecars live under shifted clocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Entry:
    """Money that moved, as the bank has it. `kind`: charge, refund or cancel."""

    kind: str
    order: str
    payment: str
    key: str
    amount: int
    at_ms: int
    refund: str | None = None  # the merchant's refund number


@dataclass(frozen=True, slots=True)
class Arrival:
    """A guarded request that reached the bank.

    Args: answer: a status, or the fault that took its place. call: the caller's request that it was sent for.
    """

    seq: int
    at_ms: int
    path: str
    key: str
    body_sha256: str
    answer: str
    executed: bool
    call: int | None = None


@dataclass(frozen=True, slots=True)
class Bank:
    """What really happened. `payments`: the status of each order's payment at the end."""

    entries: Sequence[Entry] = ()
    arrivals: Sequence[Arrival] = ()
    payments: dict[str, str] = field(default_factory=dict)
    is_complete: bool = True  # False: requests were forgotten before they were read


@dataclass(frozen=True, slots=True)
class Stored:
    """An operation as the store has it at the end."""

    id: str
    route: str
    path: str
    key: str
    subject: str
    state: str
    knowledge: str
    status: str | None
    settled_by: str | None = None
    attempts: int = 0
    has_next_lookup: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request of a caller and what became of it.

    Args: submission: the business submission that it belongs to; a new one begins only after a definite
        failure. key: as sent, None where the product makes it. amount: as in the body, None without.
        status: 0 where no whole answer came. told_key and the following: from the answer. object_id,
        object_status, version, body: of the platform's object in it. group: calls sent at one moment.
        sidecar: where it was sent to.
    """

    n: int
    caller: str
    submission: str
    order: str
    path: str
    key: str | None
    body_sha256: str
    amount: int | None
    began_ms: int
    ended_ms: int
    status: int = 0
    code: str | None = None
    knowledge: str | None = None
    told_key: str | None = None
    operation: str | None = None
    attempts: int = 0
    object_id: str | None = None
    object_status: str | None = None
    version: int | None = None
    body: str = ""
    group: int | None = None
    hung_up: bool = False
    sidecar: str = ""

    @property
    def any_key(self) -> str | None:
        """The key that was used, as far as the caller can know it."""
        return self.told_key or self.key


@dataclass(frozen=True, slots=True)
class Witness:
    """What the ledger still said of one operation *after* another key on its subject went through.

    Args: call: the one with the other key.
    """

    first: str
    second: str
    state_of_first: str
    knowledge_of_first: str
    call: int = 0


@dataclass(frozen=True, slots=True)
class Forward:
    """A call that a sidecar said it sent without the store (D3)."""

    call: int
    sidecar: str


@dataclass(frozen=True, slots=True)
class End:
    """A sidecar's process ended, and what it kept in memory alone with it."""

    sidecar: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class Trouble:
    """A while in which the store was, or may have been, away for some sidecar. `what` was done to it."""

    began_ms: int
    ended_ms: int
    what: str = ""


@dataclass(frozen=True, slots=True)
class Logs:
    """Everything that is compared.

    Args: incidents: what the processes themselves did that none may do. may_forward: whether calls may be sent
        while the store is away (D3). forwards, ends, troubles: what is needed to judge that.
    """

    bank: Bank = field(default_factory=Bank)
    store: Sequence[Stored] = ()
    calls: Sequence[Call] = ()
    witnesses: Sequence[Witness] = ()
    incidents: Sequence[str] = ()
    may_forward: bool = False
    forwards: Sequence[Forward] = ()
    ends: Sequence[End] = ()
    troubles: Sequence[Trouble] = ()
