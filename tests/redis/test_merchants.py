"""Sidecars of several merchants on one Redis, each with its own merchant's credential alone (contract U8)."""

from __future__ import annotations

from typing import Any

from aiohttp import ClientSession

from proxy.core.model import State
from tests.e2e.callers import payment
from tests.e2e.stage import LOOKUPS, Proxy, Stage
from tests.stores.redis_server import Server
from tests.wire.peers import Reset, Script

ONCE: dict[str, Any] = {"retry": {"attempts": 1}, "lookups": {**LOOKUPS, "schedule": ["1h"]}}


async def _sidecar(stage: Stage, platform_url: str, store_url: str, merchant: str) -> Proxy:
    authorization = {"authorization": f"sk_test_{merchant}"}
    store = {"url": store_url}
    return await stage.proxy(platform_url, merchant=merchant, upstream=authorization, store=store, **ONCE)


async def test_u8_sidecar_asks_nothing_about_another_ones_merchant(stage: Stage, server: Server) -> None:
    """Its credential sees none of the other's payments: three empty answers would make one that is paid absent."""
    platform = await stage.platform()
    platform.plan(Script(Reset()))
    mine = await _sidecar(stage, platform.url, server.url, "A")
    other = await _sidecar(stage, platform.url, server.url, "B")
    told = await mine.call(payment())
    (operation,) = await other.operations()
    assert other.app.admin is not None

    url = f"{other.app.admin.url}/operations/{operation.id}/lookup"
    async with ClientSession() as session, session.post(url, json={}) as refused:
        said = (refused.status, (await refused.json())["error"]["code"])

    assert (told.knowledge, operation.state, platform.hits) == ("unknown", State.UNKNOWN, 1)
    assert said == (409, "no_lookup")
    assert (await other.operation()).lookups == operation.lookups
