"""Merchants, who make calls and repeat them, and operators, who settle what nothing else settles.

A merchant does what the platform's contract tells it to, and now and then what it must not: a new key after a
time-out, another amount under an old key, one call on two hosts, hanging up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from proxy.core.evidence import SettleByHand
from proxy.core.messages import Reply
from proxy.core.model import Knowledge, Operation, State
from tests.sim.bank import FINAL, Bank
from tests.sim.checks import Checks
from tests.sim.platforms import Request
from tests.sim.sidecar import Sidecar
from tests.sim.store import SimStore
from tests.sim.world import Kind, World

TRIES_MAX = 6
SUBMISSIONS_MAX = 3
AMOUNTS = (10_000, 12_500)
DAY_MS = 86_400_000


@dataclass
class Town:
    """Everyone who calls, and the sidecars they call."""

    world: World
    sidecars: list[Sidecar]
    bank: Bank
    checks: Checks
    store: SimStore
    open_calls: int = 0
    calls: int = 0
    planned: int = 0  # calls that will be made some day
    merchants: list[Merchant] = field(default_factory=list)

    def stop(self) -> None:
        """No merchant repeats any more."""
        for merchant in self.merchants:
            merchant.is_done = True

    def call(
        self,
        request: Request,
        told: Callable[[Reply | None], None],
        *,
        patience_ms: int | None = None,
        hangs_up_ms: int | None = None,
    ) -> None:
        """One call to some sidecar. `told` is given the answer, or None if the connection broke or was left."""
        self.open_calls += 1
        self.calls += 1
        state = {"open": True}

        def answer(reply: Reply | None) -> bool:
            if not state["open"]:
                return False
            state["open"] = False
            self.open_calls -= 1
            told(reply)
            return True

        if hangs_up_ms is not None:
            self.world.after(hangs_up_ms, lambda: _left(answer))
        if self.world.tracing:
            self.world.note(f"CALL {request.kind} {request.thing} key={request.key} amount={request.amount}")
        self.world.chance.pick(self.sidecars).call(request, answer, patience_ms=patience_ms)


@dataclass
class Merchant:
    """One business submission, repeated until its result is known."""

    town: Town
    request: Request
    tries: int = 0
    is_done: bool = False
    then: Callable[[Reply], None] | None = None

    def go(self) -> None:
        """Call, in whatever way the plan has for it."""
        if self.is_done:
            return
        self.tries += 1
        world, chance = self.town.world, self.town.world.chance
        fault = world.fault("caller")
        patience_ms = chance.between(500, 15_000) if fault == "patience" else None
        leaves = fault == "hang_up" or (self.request.kind == "confirm" and chance.hits(400))
        hangs_up_ms = chance.between(1, 12_000) if leaves and not world.calm else None
        self.town.call(self.request, self._told, patience_ms=patience_ms, hangs_up_ms=hangs_up_ms)
        if self.request.key is None:
            return
        if fault == "burst" or (world.kind is Kind.FORWARDING and chance.hits(600)):
            for _ in range(chance.between(1, 3)):
                world.after(chance.below(50), lambda: self.town.call(self.request, _unheard))
        elif fault == "wrong_amount":
            wrong = replace(self.request, amount=self.request.amount + 2_000)
            world.after(chance.below(3_000), lambda: self.town.call(wrong, _unheard))
        elif fault == "new_key":
            again = replace(self.request, key=f"{self.request.key}x")
            world.after(world.spell_ms(1, 20_000), lambda: self.town.call(again, _unheard))
        elif self.request.kind == "refund" and (fault == "no_order" or chance.hits(150)):
            twin = replace(self.request, thing=f"{self.request.thing}b", key=f"{self.request.key}b")
            world.after(chance.below(20_000), lambda: self.town.call(twin, _unheard))

    def _told(self, reply: Reply | None) -> None:
        world, chance = self.town.world, self.town.world.chance
        knowledge = reply.marks.knowledge if reply is not None else None
        # Many clients read the status alone: a 504 is asked again, whatever its headers know.
        is_told = reply is not None and reply.answer.status != 504
        if reply is not None and is_told and knowledge in (Knowledge.EXECUTED, Knowledge.PENDING):
            self._known(reply)
            return
        if self.tries >= TRIES_MAX or world.fault("caller") == "gives_up":
            self.is_done = True
            return
        if reply is not None and knowledge is Knowledge.NOT_EXECUTED and not self.request.is_valid:
            # The platform said what is wrong: the fixed body comes with the same key, or with a new one.
            key = self.request.key if chance.hits(500) else f"{self.request.key}-fixed"
            self.request = replace(self.request, is_valid=True, key=key)
            if chance.hits(
                300
            ):  # a released key names another order, and the first one gets a key of its own
                other = replace(self.request, key=f"{self.request.key}-other")
                world.after(chance.below(3_000), lambda: self.town.call(other, _unheard))
                self.request = replace(self.request, thing=f"{self.request.thing}n")
        wait_ms = chance.pick((10, 500, 3_000, 12_000, 40_000))
        slow_ms = chance.pick((1_000, 200_000, 10_800_000, 90_000_000))
        world.after(slow_ms if world.is_slow else wait_ms, self.go)

    def _known(self, reply: Reply) -> None:
        self.is_done = True
        world, chance = self.town.world, self.town.world.chance
        if chance.hits(300) and self.request.key is not None:
            world.after(world.spell_ms(1, 60_000), lambda: self.town.call(self.request, _unheard))
        if world.is_slow and reply.marks.knowledge is Knowledge.PENDING and self.request.key is not None:
            # a nightly job asks again for what is still open
            self.town.planned += 1
            world.after(chance.between(DAY_MS, 3 * DAY_MS), self._nightly)
        if self.then is not None:
            self.then(reply)

    def _nightly(self) -> None:
        self.town.planned -= 1
        self.town.call(self.request, _unheard)


def _left(answer: Callable[[Reply | None], bool]) -> None:
    answer(None)


def _unheard(_: Reply | None) -> None:
    """A call whose answer nobody acts upon."""


@dataclass
class Shopper:
    """One order's whole story: created, perhaps confirmed with other cards, canceled or refunded."""

    town: Town
    order: str
    confirms: int = 0
    follow_ups: list[Merchant] = field(default_factory=list)

    def begin(self) -> None:
        chance = self.town.world.chance
        if self.town.world.kind is Kind.INHERITED:
            self._submit(self.town.bank.inherited(self.order, chance.pick(AMOUNTS)).id)
            return
        request = Request(
            "create", self.order, chance.pick(AMOUNTS), f"K-{self.order}", is_valid=not chance.hits(120)
        )
        if chance.hits(60):
            session = Request("checkout", self.order, 10_000, f"S-{self.order}")
            self.town.world.after(chance.below(5_000), Merchant(self.town, session).go)
        self._follow(Merchant(self.town, request, then=self._created))

    def _follow(self, merchant: Merchant) -> None:
        self.town.merchants.append(merchant)
        self.follow_ups.append(merchant)
        self.town.world.after(self.town.world.chance.below(20_000), merchant.go)

    def _created(self, reply: Reply) -> None:
        if not self.town.bank.is_unique:
            failed = b'"status": "failed"' in reply.answer.body
            if failed and len(self.follow_ups) < SUBMISSIONS_MAX:
                before = self.follow_ups[-1].request
                again = replace(before, key=f"{before.key}+")
                self._follow(Merchant(self.town, again, then=self._created))
            return
        made = self.town.bank.by_number.get(("create", self.order), [])
        chance = self.town.world.chance
        if not made:
            return
        payment = made[0]
        if payment.status == "failed" and chance.hits(700):
            self._submit(payment.id)
        elif payment.status == "succeeded" and chance.hits(400):
            number = f"R-{self.order}"
            request = Request("refund", number, 500, f"KR-{self.order}", payment=payment.id)
            self._follow(Merchant(self.town, request))
        if chance.hits(120):
            self._follow(Merchant(self.town, Request("cancel", payment.id, 0, f"KC-{self.order}")))

    def _submit(self, payment: str) -> None:
        """One more card: a submission of its own, without a key (K3)."""
        self.confirms += 1
        self.town.checks.submissions[payment] += 1
        self._follow(Merchant(self.town, Request("confirm", payment), then=self._confirmed))

    def _confirmed(self, reply: Reply) -> None:
        said_failed = b'"status": "failed"' in reply.answer.body and reply.answer.status == 200
        if said_failed and self.confirms < SUBMISSIONS_MAX:
            self._submit(self.follow_ups[-1].request.thing)


@dataclass
class Operator:
    """A person who knows the truth from the platform's support, and seldom errs (C5)."""

    town: Town

    def look(self) -> None:
        world = self.town.world
        fault = world.fault("person")
        if fault:
            self._settle(errs=fault == "errs")
        if not world.calm:
            world.after(world.spell_ms(5_000, 60_000), self.look)

    def _settle(self, *, errs: bool) -> None:
        open_states = (State.UNKNOWN, State.ABSENT, State.MANUAL_REVIEW, State.PENDING)
        found = [one for one in self.town.store.ledger.operations.values() if one.state in open_states]
        if not found:
            return
        operation = self.town.world.chance.pick(found)
        status = self._truth(operation)
        if status is None:
            return
        if errs:
            status = "failed" if status != "failed" else "absent"
            kind = {"create_payment": "create", "confirm_payment": "confirm"}.get(operation.route, "refund")
            thing = (operation.subject or "").partition(":")[2]
            self.town.checks.persons.add((kind, thing, str(operation.key)))
        self.town.world.note(f"PERSON settles {operation.key} as {status}")
        self.town.store.ask(
            SettleByHand(operation.scope, operation.id, status, "Ann", "asked support"), _unheard_of
        )

    def _truth(self, operation: Operation) -> str | None:
        """What really became of it; None while something may still change."""
        if any(one.wire.under_way.get(operation.key) for one in self.town.sidecars):
            return None
        for effect in self.town.bank.effects:
            if effect.key == operation.key and effect.thing == (operation.subject or "").partition(":")[2]:
                return effect.result or None
        if operation.acts_on_existing or operation.state is State.PENDING:
            return None
        made = self.town.bank.by_number.get(("create", (operation.subject or "").partition(":")[2]))
        if made:
            return made[0].status if made[0].status in FINAL else None
        return "absent"


def _unheard_of(_: object) -> None:
    """Whether it was written shows in the ledger."""
