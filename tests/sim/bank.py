"""The platform's side: what really happened to the money, and what it answers.

`Unique` banks keep payhub's rules: keys for seven days, order and refund numbers for ever, one open attempt for
each payment. Others honour keys only, and answer a known key with their first answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field

from proxy.core.http import Response
from tests.sim.platforms import JSON_TYPE, Request
from tests.sim.world import Kind, World

RETENTION_MS = 7 * 86_400_000
CONFIRMS_MAX = 3
FINAL = frozenset({"succeeded", "failed", "canceled", "expired"})
OPEN = frozenset({"processing", "requires_action"})


@dataclass(slots=True)
class Effect:
    """Something that the bank did with money, on behalf of one key."""

    kind: str
    thing: str
    key: str
    at_ms: int
    begun: int
    number: int  # of the charge on its payment
    resource: Resource
    result: str = ""  # empty while open

    @property
    def is_good(self) -> bool:
        """Money moved, or still may."""
        return self.result != "failed"


@dataclass(slots=True)
class Resource:
    """A payment or a refund as the platform shows it; `past`: (since, body) of each state that it had."""

    id: str
    thing: str
    amount: int
    status: str
    version: int = 0
    charges: list[Effect] = field(default_factory=list)
    past: list[tuple[int, bytes]] = field(default_factory=list)

    @property
    def body(self) -> bytes:
        return self.past[-1][1]


@dataclass
class Bank:
    """One platform. `effect` and `changed` are told what happens."""

    world: World
    is_unique: bool
    effect: Callable[[Effect], None]
    changed: Callable[[Resource], None]
    resources: dict[str, Resource] = field(default_factory=dict)
    by_number: dict[tuple[str, str], list[Resource]] = field(default_factory=dict)
    keys: dict[tuple[str, str, str], tuple[Request, Resource, Response, int]] = field(default_factory=dict)
    effects: list[Effect] = field(default_factory=list)

    def receive(self, request: Request, key: str, begun: int) -> Response:
        """One request, as it reaches the platform."""
        now = self.world.now_ms
        slot = (request.kind, request.thing if request.kind in ("confirm", "cancel") else "", key)
        known = self.keys.get(slot)
        if known is not None and now - known[3] < RETENTION_MS:
            before, resource, first, _ = known
            if (before.amount, before.thing) != (request.amount, request.thing):
                return refusal(409, "idempotency_conflict")
            return shown(resource) if self.is_unique else first
        if not request.is_valid:
            return refusal(422, "validation_failed")
        match request.kind:
            case "create" | "checkout":
                return self._create(request, key, slot, begun)
            case "refund":
                return self._refund(request, key, slot, begun)
            case _:
                return self._act(request, key, slot, begun)

    def _create(self, request: Request, key: str, slot: tuple[str, str, str], begun: int) -> Response:
        if request.kind == "checkout":
            session = self._made("cs", request, "open", numbered=False)
            return self._kept(slot, request, session, 200)
        existing = self.by_number.get(("create", request.thing))
        if existing and self.is_unique:
            return refusal(409, "order_no_conflict", related=existing[0].id)
        payment = self._made("pay", request, "processing")
        status = self._charge(payment, request, key, begun)
        return self._kept(slot, request, payment, 202 if status not in FINAL else 201)

    def _refund(self, request: Request, key: str, slot: tuple[str, str, str], begun: int) -> Response:
        existing = self.by_number.get(("refund", request.thing))
        if existing:
            return refusal(409, "refund_no_conflict", related=existing[0].id)
        made = self._made("re", request, "processing")
        self._charge(made, request, key, begun)
        return self._kept(slot, request, made, 201)

    def _act(self, request: Request, key: str, slot: tuple[str, str, str], begun: int) -> Response:
        payment = self.resources.get(request.thing)
        if payment is None:
            return refusal(404, "not_found")
        if request.kind == "cancel":
            if payment.status == "succeeded":
                return refusal(422, "payment_not_cancelable")
            if payment.status not in FINAL or payment.status == "failed":
                self._becomes(payment, "canceled")
            return self._kept(slot, request, payment, 200)
        if payment.status in OPEN:
            return refusal(409, "payment_in_progress", related=payment.id)
        if payment.status != "failed" or len(payment.charges) >= CONFIRMS_MAX:
            return refusal(422, "payment_not_confirmable")
        status = self._charge(payment, request, key, begun)
        return self._kept(slot, request, payment, 202 if status not in FINAL else 200)

    # --- what happens to money --------------------------------------------------------------------------------

    def inherited(self, order: str, amount: int) -> Resource:
        """A declined payment from before there was a ledger; nobody ever tells of it."""
        payment = self._made("pay", Request("create", order, amount), "failed")
        payment.charges.append(Effect("create", order, "", 0, 0, 1, payment, "failed"))
        self._show(payment)
        return payment

    def _made(self, prefix: str, request: Request, status: str, *, numbered: bool = True) -> Resource:
        made = Resource(f"{prefix}_{len(self.resources) + 1}", request.thing, request.amount, status)
        self.resources[made.id] = made
        if numbered:
            self.by_number.setdefault((request.kind, request.thing), []).append(made)
        else:
            self._show(made)
        return made

    def _charge(self, resource: Resource, request: Request, key: str, begun: int) -> str:
        chance = self.world.chance
        effect = Effect(
            request.kind,
            request.thing,
            key,
            self.world.now_ms,
            begun,
            len(resource.charges) + 1,
            resource,
        )
        resource.charges.append(effect)
        self.effects.append(effect)
        results = ("succeeded", "failed", "succeeded", "failed", "processing")
        if self.world.kind is Kind.CARDS:
            results = ("failed", "failed", "failed", "failed", "succeeded")
        elif self.world.kind in (Kind.LAGGING, Kind.INHERITED):
            results = ("processing", "processing", "processing", "succeeded", "failed")
        result = chance.pick(results)
        effect.result = result if result in FINAL else ""
        resource.status = "processing"
        self._show(resource)
        if effect.result:
            self._becomes(resource, result, told=False)
        self.world.note(f"BANK effect {request.kind} {request.thing} key={key} -> {result}")
        self.effect(effect)
        self.changed(resource)
        if not effect.result:
            takes_ms = self.world.spell_ms(500, 1_500_000)
            if chance.hits(400):
                self.world.after(chance.below(takes_ms), lambda: self._asks(effect))
            self.world.after(takes_ms, lambda: self._resolve(effect))
        return result

    def _asks(self, effect: Effect) -> None:
        """The payer has to do something."""
        if effect.resource.status == "processing":
            self._becomes(effect.resource, "requires_action")

    def _resolve(self, effect: Effect) -> None:
        resource = effect.resource
        if resource.status not in OPEN:
            effect.result = "failed"  # canceled meanwhile: no money moved
            return
        effect.result = self.world.chance.pick(("succeeded", "failed"))
        self.world.note(f"BANK {resource.id} ends {effect.result}")
        self._becomes(resource, effect.result)

    def _becomes(self, resource: Resource, status: str, *, told: bool = True) -> None:
        resource.status = status
        self._show(resource)
        if told:
            self.changed(resource)

    def _show(self, resource: Resource) -> None:
        resource.version += 1
        number = "merchant_refund_no" if resource.id.startswith("re_") else "merchant_order_no"
        body: dict[str, object] = {
            "id": resource.id,
            "status": resource.status,
            number: resource.thing,
            "amount": resource.amount,
        }
        if self.is_unique and not resource.id.startswith("cs_"):
            body |= {"version": resource.version, "attempt_count": len(resource.charges)}
        if resource.status == "failed":
            body["failure"] = {"code": "card_declined", "attempt_id": f"att_{len(resource.charges)}"}
        resource.past.append((self.world.now_ms, json.dumps(body).encode()))

    def _kept(
        self, slot: tuple[str, str, str], request: Request, resource: Resource, status: int
    ) -> Response:
        first = shown(resource, status)
        self.keys[slot] = (request, resource, first, self.world.now_ms)
        return first

    def before(self, response: Response) -> Response:
        """The same answer by a replica that is one change behind."""
        for resource in self.resources.values():
            if len(resource.past) > 1 and resource.body == response.body:
                return Response(200, JSON_TYPE, resource.past[-2][1])
        return response

    # --- what it is asked -------------------------------------------------------------------------------------

    def look_up(self, target: str, *, lies: bool, stale: bool, lag_ms: int) -> Response:
        """A lookup by id or by number. `lies`: what is younger than the lag is not shown yet."""
        now = self.world.now_ms
        if "?" in target:
            query = target.partition("?")[2]
            name, _, number = query.partition("=")
            kind = "refund" if name == "merchant_refund_no" else "create"
            found = [
                one
                for one in self.by_number.get((kind, number), ())
                if not (lies and _is_young(one, now, lag_ms))
            ]
            items = [self._as_of(one, now - lag_ms if stale else now) for one in found]
            return Response(200, JSON_TYPE, b'{"data":[' + b",".join(items) + b"]}")
        resource = self.resources.get(target.rpartition("/")[2])
        if resource is None:
            return refusal(404, "not_found")
        return Response(200, JSON_TYPE, self._as_of(resource, now - lag_ms if stale else now))

    def _as_of(self, resource: Resource, at_ms: int) -> bytes:
        older = [body for since_ms, body in resource.past if since_ms <= at_ms]
        return older[-1] if older else resource.past[0][1]


def _is_young(resource: Resource, now_ms: int, lag_ms: int) -> bool:
    return now_ms - resource.past[0][0] < lag_ms


def shown(resource: Resource, status: int = 200) -> Response:
    return Response(status, JSON_TYPE, resource.body)


def refusal(status: int, code: str, *, related: str | None = None) -> Response:
    error: dict[str, object] = {"code": code, "message": code}
    if related is not None:
        error["related_resource_id"] = related
    return Response(status, JSON_TYPE, json.dumps({"error": error}).encode())
