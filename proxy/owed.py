"""Writes owed to the ledger: what happened while the store could not say so (contract D3).

Kept in memory until the store takes them. If the process dies before, the lease of an in-flight operation
runs out and it is unknown: doubt is never lost, only certainty.
"""

from __future__ import annotations

import itertools

from proxy.core.admit import AdmitUnrecorded
from proxy.core.messages import Claim, SeqKey
from proxy.core.model import Owner
from proxy.core.reserve import WithdrawClaim
from proxy.core.tables import Verb
from proxy.ports import Store, StoreUnavailable

OWED_MAX = 10_000
"""More calls than that are refused while the store is away: what can't be written must not be sent."""


class OwedWrites:
    """The queue of one process."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._verbs: dict[int, Verb[object]] = {}
        self._unused: dict[tuple[str, ...], dict[Owner, WithdrawClaim]] = {}  # by what their calls asked for
        self._unused_count = 0
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._verbs) + self._unused_count

    @property
    def is_full(self) -> bool:
        return len(self) >= OWED_MAX

    def add(self, verb: Verb[object]) -> None:
        """Owe a write. Past the limit the oldest is dropped: its lease ends in doubt, which is safe."""
        if len(self._verbs) >= OWED_MAX:
            del self._verbs[next(iter(self._verbs))]
        self._verbs[next(self._numbers)] = verb

    def withdraw(self, verb: WithdrawClaim) -> None:
        """A claim that was perhaps made and surely not used: taken back before its key is used again."""
        unused = self._unused.setdefault(_identity(verb.claim), {})
        self._unused_count += verb.owner not in unused
        unused[verb.owner] = verb

    async def take_back(self, claim: Claim) -> None:
        """Write first what is owed about this key or its subject: claims unused, sends unrecorded (D3).

        Raises: StoreUnavailable; what was not written stays owed.
        """
        if self._unused:
            await self._withdraw_all(_identity(claim))
        for number, verb in tuple(self._verbs.items()):
            if number in self._verbs and isinstance(verb, AdmitUnrecorded) and _meets(verb.claim, claim):
                await self._store.transact(verb)
                self._verbs.pop(number, None)

    async def pay(self) -> bool:
        """Write what is owed, oldest first. True when nothing is owed any more."""
        try:
            for identity in tuple(self._unused):
                await self._withdraw_all(identity)
            for number, verb in tuple(self._verbs.items()):
                await self._store.transact(verb)
                self._verbs.pop(number, None)
        except StoreUnavailable:
            return False
        return not len(self)

    async def _withdraw_all(self, identity: tuple[str, ...]) -> None:
        """Of calls at once, any may have got the claim."""
        unused = self._unused.get(identity, {})
        for owner, verb in tuple(unused.items()):
            await self._store.transact(verb)
            self._unused_count -= unused.pop(owner, None) is not None
        if not unused and self._unused.get(identity) is unused:
            del self._unused[identity]


def _meets(sent: Claim, claim: Claim) -> bool:
    """Whether what was sent unrecorded bears on this claim: the same key, or the same thing (U1)."""
    same_thing = sent.scope == claim.scope and sent.subject is not None and sent.subject == claim.subject
    return same_thing or _identity(sent) == _identity(claim)


def _identity(claim: Claim) -> tuple[str, ...]:
    key = f"{claim.key.before}{{seq}}{claim.key.after}" if isinstance(claim.key, SeqKey) else claim.key
    return (claim.scope.tag, claim.method, claim.path, key)
