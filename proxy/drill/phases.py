"""What is broken in a drill, in which order, and which alerts must fire for it.

The times suit alert rules whose minutes are seconds: each phase lasts as long as its alerts need, and ends before
others would begin. `alerts` are those of dashboards/safepost.rules.yml.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from proxy.drill.callers import CARD, Body, Shop
from proxy.drill.stage import Shelf, Way
from proxy.sandbox import Sandbox

SILENT = 4
"""Orders whose answers never come: fewer than make a growing number, with fewer time-outs than open a breaker."""

KEPT = 2
"""Orders in doubt when the ledger is lost: with fewer failed lookups than make an alert."""

UNANSWERED = "KEPT-"
"""What the numbers of orders begin with that only the journal remembers after the loss."""

PENDING = 6
"""Orders that the platform is still at when it goes away: their lookups fail."""


@dataclass(slots=True)
class Theatre:
    """Everything that a phase may touch. `shelf` is None where no Redis server is at hand."""

    sandbox: Sandbox
    way: Way
    shop: Shop
    shelf: Shelf | None


@dataclass(frozen=True, slots=True)
class Phase:
    """One thing that goes wrong, for a while. `rest_s`: how long it is calm after it."""

    name: str
    tells: str
    alerts: frozenset[str]
    play: Callable[[Theatre], Awaitable[None]]
    rest_s: float
    needs_shelf: bool = False


async def _calm(_: Theatre) -> None:
    await asyncio.sleep(10)


async def _outage(theatre: Theatre) -> None:
    shop = theatre.shop
    await asyncio.gather(*(shop.pay(f"PENDING-{n}~202:succeeded:11") for n in range(PENDING)))
    await theatre.way.cut()
    await asyncio.sleep(10)
    await theatre.way.open()


async def _storm(theatre: Theatre) -> None:
    """Half of them executed: a 502 by itself proves nothing."""
    page = {"fault": "status", "status": 502, "html": True, "times": "always"}
    rules = [
        theatre.sandbox.add_fault({**page, "match": {"order": order}, "executed": executed})
        for order, executed in (("*-a*", True), ("*-b*", False))
    ]
    await asyncio.sleep(11)
    for rule in rules:
        theatre.sandbox.remove_fault(rule)


async def _silence(theatre: Theatre) -> None:
    """Executed, never answered, and the lookups fail, too. Two callers do what nobody should."""
    shop = theatre.shop
    rules = _hush(theatre, "SILENT-*")
    await _call_each(shop, [f"SILENT-{n}" for n in range(SILENT)])
    await shop.call("/v1/payments", _body("SILENT-0"), "payment.create:SILENT-0:2")
    await shop.pay("PLAIN-0")
    await shop.call("/v1/payments", _body("PLAIN-0", amount=99), "payment.create:PLAIN-0:1")
    await asyncio.sleep(20)
    for rule in rules:
        theatre.sandbox.remove_fault(rule)


async def _loss(theatre: Theatre) -> None:
    """Between two calls, so that what is in doubt afterwards is what was before; the shop goes on at once."""
    if theatre.shelf is None:
        return
    rules = _hush(theatre, "KEPT-*")
    await _call_each(theatre.shop, [f"KEPT-{n}" for n in range(KEPT)])
    async with theatre.shop.at_rest():
        await theatre.shelf.lose()
    for rule in rules:
        theatre.sandbox.remove_fault(rule)
    await asyncio.sleep(6)
    await theatre.shelf.start()


def _hush(theatre: Theatre, orders: str) -> list[int]:
    """From now on these orders are executed and never answered, and nobody can ask about them."""
    silent = {"fault": "hang_after", "match": {"order": orders}, "times": "always"}
    blind = {"fault": "lookup_status", "match": {"order": orders}, "status": 503, "times": "always"}
    return [theatre.sandbox.add_fault(silent), theatre.sandbox.add_fault(blind)]


async def _call_each(shop: Shop, orders: list[str]) -> None:
    """One call for each, all at once."""
    calls = (shop.call("/v1/payments", _body(order), f"payment.create:{order}:1") for order in orders)
    await asyncio.gather(*calls)


def _body(order: str, *, amount: int = 10_000) -> Body:
    return {"merchant_order_no": order, "amount": amount, "currency": "USD", "card": CARD}


PHASES = (
    Phase("calm", "The shop at work, and nothing wrong.", frozenset(), _calm, 0),
    Phase(
        "outage",
        "The platform refuses connections: nothing leaves, and nobody can ask about what is pending.",
        frozenset({"SafepostBreakerOpen", "SafepostLookupsFailing"}),
        _outage,
        18,
    ),
    Phase(
        "5xx storm",
        "A gateway answers 502 in HTML; every other payment was executed behind it.",
        frozenset({"SafepostUnknownsGrowing", "SafepostRetryBudgetSpent"}),
        _storm,
        18,
    ),
    Phase(
        "time-outs after execution",
        "Charged and never answered, lookups fail. One caller makes a new key, one changes the amount.",
        frozenset(
            {
                "SafepostUnknownOver15Minutes",
                "SafepostLookupsFailing",
                "SafepostGuardBlocks",
                "SafepostConflicts",
            }
        ),
        _silence,
        22,
    ),
    Phase(
        "loss of Redis",
        "The ledger's server dies, and comes back empty; two payments were in doubt.",
        frozenset({"SafepostStoreDown", "SafepostStoreErrors", "SafepostStoreLostData"}),
        _loss,
        40,
        needs_shelf=True,
    ),
)
