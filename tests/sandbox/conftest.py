"""A running sandbox for each test, and a client that speaks to it as a merchant's program would."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from aiohttp import ClientSession, ClientTimeout

from proxy.sandbox import Sandbox, Settings

TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer, read whole. `body` is the parsed JSON, or None."""

    status: int
    headers: Mapping[str, str]
    body: Any

    @property
    def code(self) -> str:
        code: str = self.body["error"]["code"]
        return code


@dataclass(frozen=True, slots=True)
class Merchant:
    """Calls the platform with one API key."""

    session: ClientSession
    url: str
    token: str = "sk_test_A"

    async def post(self, path: str, body: object = None, *, key: str | None = None) -> Reply:
        headers = {} if key is None else {"Idempotency-Key": key}
        return await self.send("POST", path, body, headers=headers)

    async def get(self, path: str) -> Reply:
        return await self.send("GET", path)

    async def send(
        self, method: str, path: str, body: object = None, *, headers: Mapping[str, str] | None = None
    ) -> Reply:
        sent = {"Authorization": f"Bearer {self.token}", **(headers or {})}
        async with self.session.request(method, self.url + path, json=body, headers=sent) as answer:
            is_json = answer.content_type == "application/json"
            return Reply(answer.status, answer.headers, await answer.json() if is_json else None)

    async def pay(self, order: str, *, key: str | None = None, amount: int = 10_000, **more: object) -> Reply:
        body = {"merchant_order_no": order, "amount": amount, "currency": "USD", **more}
        return await self.post("/v1/payments", body, key=key or f"payment.create:{order}:1")


@pytest.fixture
async def session() -> AsyncIterator[ClientSession]:
    async with ClientSession(timeout=ClientTimeout(total=TIMEOUT_S)) as opened:
        yield opened


@pytest.fixture
def settings() -> Settings:
    return Settings()


@pytest.fixture
async def sandbox(settings: Settings) -> AsyncIterator[Sandbox]:
    started = await Sandbox.start(settings=settings)
    yield started
    await started.close()


@pytest.fixture
def merchant(session: ClientSession, sandbox: Sandbox) -> Merchant:
    return Merchant(session, sandbox.url)


Calls = Callable[[str], Merchant]


@pytest.fixture
def merchant_of(session: ClientSession, sandbox: Sandbox) -> Calls:
    """A merchant with the API key given."""
    return lambda token: Merchant(session, sandbox.url, token)
