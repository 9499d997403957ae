"""Writes owed to the ledger: what happened while the store could not say so (contract D3).

Kept in memory until the store takes them. If the process dies before, the lease of an in-flight operation
runs out and it is unknown: doubt is never lost, only certainty.
"""

from __future__ import annotations

import itertools
from contextlib import suppress

from proxy.core.admit import AdmitUnrecorded
from proxy.core.messages import Claim, SeqKey
from proxy.core.model import Owner
from proxy.core.reserve import WithdrawClaim
from proxy.core.tables import Verb
from proxy.ports import RowUnreadable, Store, StoreUnavailable

OWED_MAX = 10_000
"""With so many, no call is taken: what can't be written must not be sent. Those under way may still add theirs."""


class OwedWrites:
    """The queue of one process."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._verbs: dict[int, Verb[object]] = {}
        self._unrecorded: dict[tuple[str, ...], set[int]] = {}  # of those, by what a later call may ask for
        self._on_the_wire: set[int] = set()  # of those, whose ends are not known yet
        self._unused: dict[tuple[str, ...], dict[Owner, WithdrawClaim]] = {}  # by what their calls asked for
        self._unused_count = 0
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._verbs) + self._unused_count

    @property
    def is_full(self) -> bool:
        return len(self) >= OWED_MAX

    def add(self, verb: Verb[object]) -> int:
        """Owe a write. None is ever dropped: of what was sent unrecorded nothing else knows."""
        number = next(self._numbers)
        self._verbs[number] = verb
        for thing in _things(verb):
            self._unrecorded.setdefault(thing, set()).add(number)
        return number

    def sends(self, doubt: AdmitUnrecorded) -> int:
        """A call is about to be sent unrecorded: a doubt for whoever asks before it has ended (D3)."""
        number = self.add(doubt)
        self._on_the_wire.add(number)
        return number

    def sent(self, number: int, verb: AdmitUnrecorded | None) -> None:
        """It has ended, and this is owed of it; None: it left nothing behind."""
        self._on_the_wire.discard(number)
        self._written(number)
        if verb is not None:
            self.add(verb)

    def knows_more(self, claim: Claim) -> bool:
        """Whether this key was sent unrecorded, and the ledger does not have it yet."""
        return _identity(claim) in self._unrecorded

    def _written(self, number: int) -> None:
        """Owed no more; it may have been written by another call meanwhile."""
        verb = self._verbs.pop(number, None)
        for thing in _things(verb):
            numbers = self._unrecorded[thing]
            numbers.discard(number)
            if not numbers:
                del self._unrecorded[thing]

    def withdraw(self, verb: WithdrawClaim) -> None:
        """A claim that was perhaps made and surely not used: taken back before its key is used again."""
        unused = self._unused.setdefault(_identity(verb.claim), {})
        self._unused_count += verb.owner not in unused
        unused[verb.owner] = verb

    async def take_back(self, claim: Claim) -> None:
        """Write first what is owed about this key or its subject: sends unrecorded, claims unused (D3).

        In this order, so that a claim leaves its doubt behind where the same call was then sent without the store.

        Raises: StoreUnavailable; what was not written stays owed.
        """
        if self._unrecorded:
            met = set[int]().union(*(self._unrecorded.get(thing, ()) for thing in _asked_for(claim)))
            for number in sorted(met):
                if (verb := self._verbs.get(number)) is not None:
                    await self._store.transact(verb)
                    self._written(number)
        if self._unused:
            await self._withdraw_all(_identity(claim))

    async def pay(self) -> bool:
        """Write what is owed, oldest first. True when nothing is owed any more.

        What is on the wire still waits for its end, which is seldom a doubt; a claim that was perhaps made holds
        its key meanwhile. What meets a damaged record stays owed, and holds nothing else up.
        """
        try:
            for number, verb in tuple(self._verbs.items()):
                if number in self._on_the_wire or number not in self._verbs:
                    continue
                with suppress(RowUnreadable):
                    await self._store.transact(verb)
                    self._written(number)
            for identity in tuple(self._unused):
                if identity not in self._unrecorded:
                    with suppress(RowUnreadable):
                        await self._withdraw_all(identity)
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


def _things(verb: Verb[object] | None) -> tuple[tuple[str, ...], ...]:
    """What was sent unrecorded bears on (D3); nothing for other writes, whose operations the store has."""
    return _asked_for(verb.claim) if isinstance(verb, AdmitUnrecorded) else ()


def _asked_for(claim: Claim) -> tuple[tuple[str, ...], ...]:
    """A claim's key, and the thing that it acts on (U1)."""
    if claim.subject is None:
        return (_identity(claim),)
    return (_identity(claim), (claim.scope.tag, claim.subject))


def _identity(claim: Claim) -> tuple[str, ...]:
    key = f"{claim.key.before}{{seq}}{claim.key.after}" if isinstance(claim.key, SeqKey) else claim.key
    return (claim.scope.tag, claim.method, claim.path, key)
