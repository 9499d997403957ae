"""A shop's programs as they should be: they repeat what is unknown with the same key, and never make a new one."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count

from aiohttp import ClientError, ClientSession, ClientTimeout

CALLERS = 12
PAUSE_S = 0.8  # of one caller between two orders
AGAIN_S = 0.4  # before the same call with the same key
PATIENCE_S = 30.0
CURRENCIES = ("USD", "EUR", "JPY")
CARD = {"number": "4242424242424242"}

Body = dict[str, object]


@dataclass(frozen=True, slots=True)
class Told:
    """What one call was told. Status 0: nothing; `knowledge` is empty where the answer has none."""

    status: int
    knowledge: str = ""
    code: str = ""
    object_id: str = ""
    state: str = ""

    @property
    def is_open(self) -> bool:
        """Whether the same call must be made again: nobody knows, or nothing was done yet."""
        return self.status in (0, 429) or self.status >= 500 or self.code == "operation_in_progress"


@dataclass(slots=True)
class Shop:
    """All callers, and what they were told."""

    url: str
    credential: str
    session: ClientSession
    numbers: Iterator[int] = field(default_factory=lambda: count(1))
    told: Counter[str] = field(default_factory=Counter)
    paid: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    is_open: bool = True
    _busy: int = 0
    _may_go: asyncio.Event = field(default_factory=asyncio.Event)
    _is_idle: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._may_go.set()

    @asynccontextmanager
    async def at_rest(self) -> AsyncIterator[None]:
        """Between two customers: every order begun is done, and none begins."""
        self._may_go.clear()
        if self._busy:
            self._is_idle.clear()
            await self._is_idle.wait()
        try:
            yield
        finally:
            self._may_go.set()

    async def call(self, path: str, body: Body, key: str) -> Told:
        headers = {"Authorization": f"Bearer {self.credential}", "Idempotency-Key": key}
        data = json.dumps(body).encode()
        try:
            async with self.session.post(f"{self.url}{path}", data=data, headers=headers) as answer:
                told = _told(answer.status, answer.headers.get("Safepost-Knowledge", ""), await answer.read())
        except (ClientError, TimeoutError, OSError):
            told = Told(0)
        self.told[told.knowledge or ("no answer" if told.status == 0 else f"{told.status}")] += 1
        return told

    async def until_known(self, path: str, body: Body, key: str) -> Told:
        """The same call with the same key until it is known what became of it."""
        told = await self.call(path, body, key)
        while told.is_open:
            await asyncio.sleep(AGAIN_S)
            told = await self.call(path, body, key)
        return told

    async def pay(self, order: str, *, amount: int = 10_000, currency: str = "USD") -> Told:
        body: Body = {"merchant_order_no": order, "amount": amount, "currency": currency, "card": CARD}
        told = await self.until_known("/v1/payments", body, f"payment.create:{order}:1")
        (self.paid if told.state == "succeeded" else self.failed).add(order)
        return told

    async def serve(self) -> None:
        """One caller: order after order, until the shop closes."""
        while self.is_open:
            await self._may_go.wait()
            self._busy += 1
            await self._order(next(self.numbers))
            self._busy -= 1
            if not self._busy:
                self._is_idle.set()
            await asyncio.sleep(PAUSE_S)

    async def _order(self, n: int) -> None:
        """One customer. Every few of them are less simple than the others."""
        currency, amount = CURRENCIES[n % 3], 1_000 + 37 * (n % 100)
        order = f"DRILL-{n}-{'ab'[n % 2]}"
        if n % 6 == 0:
            order += "~delay:0.05"
            await asyncio.gather(*(self.pay(order, amount=amount, currency=currency) for _ in range(3)))
        elif n % 7 == 0:
            told = await self.pay(f"{order}~decline", amount=amount, currency=currency)
            path, key = f"/v1/payments/{told.object_id}/confirm", f"payment.confirm:{told.object_id}:2"
            await self.until_known(path, {"card": CARD}, key)
        elif n % 11 == 0:
            await self.pay(f"{order}~503", amount=amount, currency=currency)
        elif n % 13 == 0:
            await self.pay(f"{order}~429:1", amount=amount, currency=currency)
        elif n % 5 == 0:
            told = await self.pay(order, amount=amount, currency=currency)
            refund: Body = {"merchant_refund_no": f"R-{order}", "payment_id": told.object_id}
            refund |= {"amount": amount, "currency": currency}
            await self.until_known("/v1/refunds", refund, f"refund.create:R-{order}:1")
        else:
            await self.pay(order, amount=amount, currency=currency)


@asynccontextmanager
async def open_shop(url: str, credential: str) -> AsyncIterator[Shop]:
    async with ClientSession(timeout=ClientTimeout(total=PATIENCE_S), trust_env=False) as session:
        yield Shop(url, credential, session)


def _told(status: int, knowledge: str, text: bytes) -> Told:
    try:
        body = json.loads(text)
    except ValueError:
        return Told(status, knowledge)
    if not isinstance(body, dict):
        return Told(status, knowledge)
    error = body.get("error")
    code = error.get("code", "") if isinstance(error, dict) else ""
    return Told(status, knowledge, str(code), str(body.get("id", "")), str(body.get("status", "")))
