"""The merchants of a chaos run: most behave as the contract asks, some as people do.

One order is one life: it is created, its card may be declined and swapped, it may be refunded or cancelled. A
well-behaved caller keeps key and body until the answer is definite. The others each make one of the mistakes
that the product is there to survive.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random  # noqa: TID251 -- seeded: the same seed plans the same orders
from typing import Any, Final

from tests.chaos.journal import Ask, Journal
from tests.chaos.logs import Call, Witness

TRIES_MAX: Final = 7
CONFIRMS_MAX: Final = 2  # with the create that makes three, which is what the platform allows
GOOD_CARD: Final = {"token": "tok_good"}
BAD_CARD: Final = {"token": "tok_decline"}
STORM_CALLS: Final = 8


class Heard(StrEnum):
    """What a caller makes of an answer, from status and body alone, as clients do."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CLOSED = "closed"
    PENDING = "pending"
    REFUSED = "refused"
    HELD = "held"  # another submission on the subject is in doubt
    AGAIN = "again"


_OBJECTS: Final = {
    "succeeded": Heard.SUCCEEDED,
    "failed": Heard.FAILED,
    "canceled": Heard.CLOSED,
    "expired": Heard.CLOSED,
}
_HELD: Final = frozenset({"result_unknown", "operation_in_progress"})
_FINAL_CONFLICTS: Final = frozenset({"idempotency_conflict", "order_no_conflict", "refund_no_conflict"})


def heard(call: Call) -> Heard:
    if call.object_status is not None:
        return _OBJECTS.get(call.object_status, Heard.PENDING)
    if call.status == 402:
        return Heard.FAILED
    if call.status == 409 and call.code in _HELD:
        return Heard.HELD
    if call.status in (400, 401, 403, 404, 422) or call.code in _FINAL_CONFLICTS:
        return Heard.REFUSED
    return Heard.AGAIN


@dataclass(slots=True)
class Town:
    """Where callers live: the sidecars they can reach, and who may look into the ledger.

    Args: addresses: the sidecars. state_of: state and knowledge of the operation with this key, or None.
    """

    addresses: list[str]
    journal: Journal
    chance: Random
    state_of: Callable[[str], Awaitable[tuple[str, str] | None]]
    is_over: Callable[[], bool]
    groups: itertools.count[int] = field(default_factory=itertools.count)

    def anywhere(self) -> str:
        return self.chance.choice(self.addresses)


@dataclass(slots=True)
class Shopper:
    """One order's caller. `makes_keys`: False leaves the key to the product."""

    town: Town
    order: str
    kind: str
    makes_keys: bool
    amount: int
    card: dict[str, str]
    home: str
    payment: str | None = None

    async def live(self) -> None:
        """The order's whole life."""
        ended = await self.create()
        confirms = 0
        while ended is Heard.FAILED and confirms < CONFIRMS_MAX and not self.town.is_over():
            confirms += 1
            ended = await self.confirm(confirms)
        if ended is Heard.SUCCEEDED and self.town.chance.random() < 0.5:
            await self.refund(f"R-{self.order}", self.amount // 2)

    def asks(
        self, path: str, submission: str, fields: dict[str, Any] | None, own_key: str, **more: Any
    ) -> Ask:
        """A request of this order's. `own_key`: the caller's key where it makes its own; `key` overrules."""
        key = more.pop("key", own_key if self.makes_keys else None)
        return Ask(
            caller=self.kind,
            submission=submission,
            order=self.order,
            path=path,
            key=key,
            fields=fields,
            **more,
        )

    def create_ask(self, **more: Any) -> Ask:
        fields = {
            "merchant_order_no": self.order,
            "amount": more.pop("amount", self.amount),
            "currency": "USD",
            "card": self.card,
        }
        key = f"payment.create:{self.order}:own"
        return self.asks("/v1/payments", f"create {self.order}", fields, key, **more)

    async def create(self) -> Heard:
        return await self.insist(self.create_ask())

    async def confirm(self, n: int, *, card: dict[str, str] | None = None) -> Heard:
        """Another card after a definite failure: a submission of its own."""
        path = f"/v1/payments/{self.payment}/confirm"
        drawn = BAD_CARD if self.town.chance.random() < 0.4 else GOOD_CARD
        key = f"payment.confirm:{self.payment}:own{n}"
        ask = self.asks(path, f"confirm {self.order}#{n}", {"card": card or drawn}, key)
        return await self.insist(ask)

    def refund_ask(self, number: str, amount: int) -> Ask:
        fields = {
            "merchant_refund_no": number,
            "payment_id": self.payment,
            "amount": amount,
            "currency": "USD",
        }
        return self.asks("/v1/refunds", f"refund {number}", fields, f"refund.create:{number}:own")

    async def refund(self, number: str, amount: int) -> Heard:
        return await self.insist(self.refund_ask(number, amount))

    async def cancel(self) -> Heard:
        path = f"/v1/payments/{self.payment}/cancel"
        ask = self.asks(path, f"cancel {self.order}", None, f"payment.cancel:{self.payment}:own")
        return await self.insist(ask)

    async def insist(self, ask: Ask, *, leave_after_s: float | None = None) -> Heard:
        """The same request, byte for byte, until the answer is definite: what the contract asks of callers."""
        said = Heard.AGAIN
        for attempt in range(TRIES_MAX):
            told = await self.send(ask, leave_after_s=leave_after_s if attempt < 2 else None)
            said = heard(told)
            if said not in (Heard.AGAIN, Heard.PENDING, Heard.HELD) or self.town.is_over():
                break
            await asyncio.sleep(self.town.chance.uniform(0.1, 0.5) * (attempt + 1))
        return said

    async def send(self, ask: Ask, *, leave_after_s: float | None = None, to: str | None = None) -> Call:
        """One request; after a broken connection the next one goes to another sidecar."""
        told = await self.town.journal.call(to or self.home, ask, leave_after_s=leave_after_s)
        if not told.status:
            self.home = self.town.anywhere()
        if told.object_id is not None and told.object_id.startswith("pay_"):
            self.payment = told.object_id
        return told

    async def witness(self, first: str, second: str, *, call: int) -> None:
        """Another key went through: what does the ledger say of the first one *now*?"""
        found = await self.town.state_of(first)
        if found is not None:
            self.town.journal.witnesses.append(Witness(first, second, *found, call))


class Impatient(Shopper):
    """Tells how long it will wait (W1), and comes back with the same key."""

    async def create(self) -> Heard:
        return await self.insist(self.create_ask(headers=(("Prefer", "wait=1"),)))


class Quitter(Shopper):
    """Hangs up in the middle, then repeats as it should."""

    async def create(self) -> Heard:
        return await self.insist(self.create_ask(), leave_after_s=self.town.chance.uniform(0.0, 0.6))


class Vanished(Shopper):
    """Sends once and never comes back, whatever it hears."""

    async def live(self) -> None:
        await self.send(self.create_ask(), leave_after_s=self.town.chance.uniform(0.0, 1.0))


class NewKey(Shopper):
    """The anti-pattern: another key for the same order after a result that was unknown."""

    async def create(self) -> Heard:
        first = f"payment.create:{self.order}:own"
        told = await self.send(self.create_ask(key=first))
        if heard(told) is Heard.AGAIN:
            second = f"payment.create:{self.order}:other"
            other = await self.send(self.create_ask(key=second))
            in_doubt = told.knowledge == "unknown" and told.operation is not None
            if in_doubt and other.object_id is not None:
                await self.witness(first, second, call=other.n)
        return await self.insist(self.create_ask(key=first))


class OtherAmount(Shopper):
    """A bug of the merchant's: the second request with a key has another amount."""

    async def create(self) -> Heard:
        key = f"payment.create:{self.order}:own"
        first = asyncio.create_task(self.send(self.create_ask(key=key)))
        await asyncio.sleep(self.town.chance.uniform(0.0, 0.3))
        await self.send(self.create_ask(key=key, amount=self.amount + 1), to=self.town.anywhere())
        await first
        return await self.insist(self.create_ask(key=key))


class Storm(Shopper):
    """The same request from everywhere at once, without waiting for anything."""

    async def create(self) -> Heard:
        ask = self.create_ask(group=next(self.town.groups))
        calls = (self.send(ask, to=self.town.anywhere()) for _ in range(STORM_CALLS))
        await asyncio.gather(*calls)
        return await self.insist(self.create_ask())


class Twins(Shopper):
    """Refunds under another number after a time-out: S11's mistake."""

    async def live(self) -> None:
        self.card = GOOD_CARD
        if await self.create() is not Heard.SUCCEEDED:
            return
        amount = self.amount // 4
        one, two = self.refund_ask(f"R-{self.order}-a", amount), self.refund_ask(f"R-{self.order}-b", amount)
        told = await self.send(one)
        if heard(told) is Heard.AGAIN:
            other = await self.send(two)
            in_doubt = told.knowledge == "unknown" and told.operation is not None
            if in_doubt and other.object_id is not None and told.any_key is not None:
                await self.witness(told.any_key, two.submission, call=other.n)
        await self.insist(one)


class Canceller(Shopper):
    """Changes its mind while the payment is under way."""

    async def live(self) -> None:
        told = await self.send(self.create_ask())
        if self.payment is None:
            await self.insist(self.create_ask())
        if self.payment is not None:
            await self.cancel()
        if heard(told) is Heard.AGAIN:
            await self.insist(self.create_ask())


class Doubled(Shopper):
    """Two programs confirm one payment at once, neither bringing a key."""

    async def confirm(self, n: int, *, card: dict[str, str] | None = None) -> Heard:
        path = f"/v1/payments/{self.payment}/confirm"
        group = next(self.town.groups)
        ask = self.asks(
            path, f"confirm {self.order}#{n}", {"card": GOOD_CARD}, own_key="", key=None, group=group
        )
        await asyncio.gather(self.send(ask, to=self.town.anywhere()), self.send(ask, to=self.town.anywhere()))
        return Heard.CLOSED  # whose failure was whose can't be told apart any more


KINDS: Final[dict[str, tuple[int, type[Shopper]]]] = {
    "honest": (39, Shopper),
    "impatient": (8, Impatient),
    "quitter": (8, Quitter),
    "vanished": (12, Vanished),
    "new_key": (8, NewKey),
    "other_amount": (5, OtherAmount),
    "storm": (4, Storm),
    "twins": (8, Twins),
    "canceller": (4, Canceller),
    "doubled": (4, Doubled),
}
"""Behaviour to (weight, caller)."""


def shopper(town: Town, n: int) -> Shopper:
    """The n-th order's caller, drawn by the run's chance."""
    names = list(KINDS)
    (name,) = town.chance.choices(names, weights=[KINDS[one][0] for one in names])
    return KINDS[name][1](
        town=town,
        order=f"ORD-{n}",
        kind=name,
        makes_keys=town.chance.random() < 0.5,
        amount=town.chance.randrange(1_000, 50_000),
        card=BAD_CARD if town.chance.random() < 0.35 or name == "doubled" else GOOD_CARD,
        home=town.anywhere(),
    )
