"""A platform, a proxy before it on real sockets, and a client of its admin listener."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

import pytest
from aiohttp import ClientSession, ClientTimeout

from proxy.app import App
from proxy.config import settings_of
from proxy.sandbox import Sandbox
from proxy.sandbox import Settings as Platform

T = TypeVar("T")
TOKEN = "sk_test_A"
SECRET = "whsec_0123456789"

CONFIGURATION = """
listen: 127.0.0.1:0
admin: {admin}
environment: test
platform: payhub
upstream: {{url: "{upstream}", authorization: "Bearer {token}"}}
store: {{url: "sqlite:{folder}/ledger.db"}}
retry: {{attempts: 1, attempt_timeout: 1s, base: 20ms, jitter: none}}
lookups: {{min_interval: 1s, lag: 10ms, schedule: [1h]}}
log: {{level: error}}
"""


async def until(condition: Callable[[], Awaitable[T]], *, within_s: float = 5.0) -> T:
    """Ask until the answer is true; it is looked at from outside, where no event tells."""
    async with asyncio.timeout(within_s):
        while not (found := await condition()):  # noqa: ASYNC110 -- see above
            await asyncio.sleep(0.01)
        return found


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer, read whole. `body` is the parsed JSON, or None."""

    status: int
    headers: Mapping[str, str]
    body: Any
    text: str

    @property
    def code(self) -> str:
        code: str = self.body["error"]["code"]
        return code

    @property
    def message(self) -> str:
        message: str = self.body["error"]["message"]
        return message


@dataclass(frozen=True, slots=True)
class Client:
    """Asks one base URL."""

    session: ClientSession
    url: str

    async def send(
        self,
        method: str,
        path: str,
        *,
        json: object = None,
        data: bytes | str | IO[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        async with self.session.request(
            method, self.url + path, json=json, data=data, headers=headers, allow_redirects=False
        ) as answer:
            is_json = answer.content_type == "application/json"
            text = await answer.text()
            return Answer(answer.status, answer.headers, await answer.json() if is_json else None, text)

    async def get(self, path: str, **headers: str) -> Answer:
        return await self.send("GET", path, headers=headers)

    async def post(self, path: str, body: object, **headers: str) -> Answer:
        return await self.send("POST", path, json=body, headers=headers)


@dataclass(frozen=True, slots=True)
class Stage:
    """The platform, the proxy, and who talks to the two sides of it."""

    sandbox: Sandbox
    app: App
    caller: Client
    admin: Client

    async def pay(self, order: str, *, key: str | None = None, amount: int = 10_000) -> Answer:
        body = {"merchant_order_no": order, "amount": amount, "currency": "USD"}
        headers = {"Idempotency-Key": key or f"payment.create:{order}:1", "Authorization": f"Bearer {TOKEN}"}
        return await self.caller.send("POST", "/v1/payments", json=body, headers=headers)

    async def listed(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = (await self.admin.get("/operations")).body["operations"]
        return rows

    async def waits(self) -> bool:
        """Whether a long poll stands open."""
        return self.app.admin is not None and self.app.admin.waiting > 0

    async def unknown(self, order: str = "ORDER-1~reset_after", **more: Any) -> str:
        """A payment that was made and whose answer was lost; its operation's id."""
        answer = await self.pay(order, **more)
        assert answer.headers["Safepost-Knowledge"] == "unknown", answer.text
        return answer.headers["Safepost-Operation"]


async def staged(
    folder: Path,
    session: ClientSession,
    *,
    config: str = "",
    platform: Platform | None = None,
    admin: str = "127.0.0.1:0",
) -> Stage:
    sandbox = await Sandbox.start(settings=platform or Platform())
    text = CONFIGURATION.format(upstream=sandbox.url, token=TOKEN, folder=folder, admin=admin) + config
    app = await App.start(settings_of(text, file=str(folder / "config.yaml")))
    assert app.admin is not None
    caller = Client(session, f"http://{app.urls[0]}")
    return Stage(sandbox, app, caller, Client(session, app.admin.url))


@pytest.fixture
async def session() -> AsyncIterator[ClientSession]:
    async with ClientSession(timeout=ClientTimeout(total=20.0)) as opened:
        yield opened


@pytest.fixture
def config() -> str:
    """More of the configuration; a module overrides it."""
    return ""


@pytest.fixture
async def stage(tmp_path: Path, session: ClientSession, config: str) -> AsyncIterator[Stage]:
    made = await staged(tmp_path, session, config=config)
    yield made
    await made.app.stop()
    await made.sandbox.close()
