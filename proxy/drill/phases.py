"""What is broken in a drill, in which order, and which alerts must fire for it.

Each phase lasts until its alerts have fired, where somebody sees them, and is made so that it ends the same
however fast the machine is: by counts that its own calls reach, never by how many a second there are. `alerts`
are those of dashboards/safepost.rules.yml.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from proxy.drill.callers import CARD, Body, Shop, Told
from proxy.drill.stage import Shelf, Way
from proxy.sandbox import Sandbox

SILENT = 4
"""Orders whose answers never come: fewer than make a growing number, with fewer time-outs than open a breaker."""

KEPT = 2
"""Orders in doubt when the ledger is lost."""

UNANSWERED = "KEPT-"
"""What the numbers of orders begin with that only the journal remembers after the loss."""

PENDING = 6
"""Orders that the platform is still at when it goes away: their lookups fail."""

STORM = 8
"""Orders that stay in doubt through the storm, whatever else does: more than make a growing number."""

STORM_ATTEMPTS = 3
"""Elsewhere a call is one attempt, so that only the storm can spend the budget for retries."""

CALM_S = 8.0

Alerts = frozenset[str]


class Audience(Protocol):
    """Who sees alerts fire. `usual_s`: how long to wait where nobody can."""

    async def until_fired(self, alerts: Alerts, *, usual_s: float) -> None:
        """Until each of them has fired since the last calm, or it is too late for that."""
        ...

    async def until_calm(self, *, usual_s: float) -> None:
        """Until no alert fires or is about to, or it is too late for that."""
        ...


class Nobody:
    """No Prometheus: phases take their usual times. Implements `Audience`."""

    async def until_fired(self, alerts: Alerts, *, usual_s: float) -> None:
        await asyncio.sleep(usual_s)

    async def until_calm(self, *, usual_s: float) -> None:
        await asyncio.sleep(usual_s)


class Configure(Protocol):
    """Has the sidecar read another configuration."""

    async def __call__(self, *, attempts: int = 1, lookups: bool = True) -> None: ...


@dataclass(slots=True)
class Theatre:
    """Everything that a phase may touch. `shelf` is None where no Redis server is at hand."""

    sandbox: Sandbox
    way: Way
    shop: Shop
    shelf: Shelf | None
    audience: Audience
    configure: Configure
    written_down: Callable[[], Awaitable[None]]
    """Wait until no call is under way and nothing is owed to the ledger: callers may be answered before."""


@dataclass(frozen=True, slots=True)
class Phase:
    """One thing that goes wrong, for a while. `rest_s`: how long it is calm after it, where nobody sees it."""

    name: str
    tells: str
    alerts: Alerts
    play: Callable[[Theatre], Awaitable[None]]
    rest_s: float
    needs_shelf: bool = False


UNREACHABLE = frozenset({"SafepostBreakerOpen", "SafepostLookupsFailing"})
STORMY = frozenset({"SafepostUnknownsGrowing", "SafepostRetryBudgetSpent"})
SILENCED = frozenset({"SafepostLookupsFailing", "SafepostGuardBlocks", "SafepostConflicts"})
STORE_AWAY = frozenset({"SafepostStoreDown", "SafepostStoreErrors"})
STORE_EMPTY = frozenset({"SafepostStoreLostData"})


async def _calm(_: Theatre) -> None:
    await asyncio.sleep(CALM_S)


async def _outage(theatre: Theatre) -> None:
    """Cut between two calls: nothing is on the wire, so nothing gets in doubt."""
    accepted = theatre.sandbox.add_fault(
        {"fault": "accept_202", "match": {"order": "PENDING-*"}, "times": "always"}
    )
    pending = await _call_each(theatre.shop, [f"PENDING-{n}" for n in range(PENDING)])
    theatre.sandbox.remove_fault(accepted)
    async with theatre.shop.at_rest():
        await theatre.written_down()
        await theatre.way.cut()
    await theatre.audience.until_fired(UNREACHABLE, usual_s=10)
    await theatre.way.open()
    for told in pending:
        theatre.sandbox.settle_payment(told.object_id, status="succeeded")


async def _storm(theatre: Theatre) -> None:
    """Half of them executed: a 502 by itself proves nothing. Those that were not stay in doubt."""
    page = {"fault": "status", "status": 502, "html": True, "times": "always"}
    await theatre.configure(attempts=STORM_ATTEMPTS)
    rules = [
        theatre.sandbox.add_fault({**page, "match": {"order": order}, "executed": executed})
        for order, executed in (("*-a*", True), ("*-b*", False))
    ]

    async def blow() -> None:
        await theatre.audience.until_fired(STORMY, usual_s=10)
        for rule in rules:
            theatre.sandbox.remove_fault(rule)

    await asyncio.gather(blow(), *(theatre.shop.pay(f"STORM-{n}-b") for n in range(STORM)))
    await theatre.configure()


async def _silence(theatre: Theatre) -> None:
    """Executed, never answered, and the lookups fail, too. Two callers do what nobody should."""
    shop = theatre.shop
    rules = _hush(theatre, "SILENT-*")
    await _call_each(shop, [f"SILENT-{n}" for n in range(SILENT)])
    await shop.call("/v1/payments", _body("SILENT-0"), "payment.create:SILENT-0:2")
    await shop.pay("PLAIN-0")
    await shop.call("/v1/payments", _body("PLAIN-0", amount=99), "payment.create:PLAIN-0:1")
    await theatre.audience.until_fired(SILENCED, usual_s=15)
    for rule in rules:
        theatre.sandbox.remove_fault(rule)


async def _loss(theatre: Theatre) -> None:
    """Between two calls, so that what is in doubt afterwards is what was before; the shop goes on at once.

    Nobody asks about the two before: their lookups would settle them, or fail and be alerts.
    """
    if theatre.shelf is None:
        return
    await theatre.configure(lookups=False)
    rules = _hush(theatre, f"{UNANSWERED}*")
    await _call_each(theatre.shop, [f"{UNANSWERED}{n}" for n in range(KEPT)])
    async with theatre.shop.at_rest():
        await theatre.written_down()
        await theatre.shelf.lose()
    for rule in rules:
        theatre.sandbox.remove_fault(rule)
    await theatre.audience.until_fired(STORE_AWAY, usual_s=6)
    await theatre.shelf.start()
    await theatre.audience.until_fired(STORE_EMPTY, usual_s=4)
    await theatre.configure()


def _hush(theatre: Theatre, orders: str) -> list[int]:
    """From now on these orders are executed and never answered, and nobody can ask about them."""
    silent = {"fault": "hang_after", "match": {"order": orders}, "times": "always"}
    blind = {"fault": "lookup_status", "match": {"order": orders}, "status": 503, "times": "always"}
    return [theatre.sandbox.add_fault(silent), theatre.sandbox.add_fault(blind)]


async def _call_each(shop: Shop, orders: list[str]) -> list[Told]:
    """One call for each, all at once."""
    calls = (shop.call("/v1/payments", _body(order), f"payment.create:{order}:1") for order in orders)
    return await asyncio.gather(*calls)


def _body(order: str, *, amount: int = 10_000) -> Body:
    return {"merchant_order_no": order, "amount": amount, "currency": "USD", "card": CARD}


PHASES = (
    Phase("calm", "The shop at work, and nothing wrong.", frozenset(), _calm, 0),
    Phase(
        "outage",
        "The platform refuses connections: nothing leaves, and nobody can ask about what is pending.",
        UNREACHABLE,
        _outage,
        10,
    ),
    Phase(
        "5xx storm",
        "A gateway answers 502 in HTML; every other payment was executed behind it.",
        STORMY,
        _storm,
        10,
    ),
    Phase(
        "time-outs after execution",
        "Charged and never answered, lookups fail. One caller makes a new key, one changes the amount.",
        SILENCED,
        _silence,
        10,
    ),
    Phase(
        "loss of Redis",
        "The ledger's server dies, and comes back empty; two payments were in doubt.",
        STORE_AWAY | STORE_EMPTY,
        _loss,
        15,
        needs_shelf=True,
    ),
)
