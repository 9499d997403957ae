"""O-34: a platform that moves to another address while its traffic never stops."""

from __future__ import annotations

import asyncio
import socket
import time

from proxy.core.http import Answered, WireRequest
from proxy.wire.connect import Address
from proxy.wire.pool import PoolLimits
from proxy.wire.upstream import HttpUpstream
from tests.wire.peers import Hold, RawPlatform, Script, Send, answer

DNS_TTL_MS, AGE_MS_MAX = 100, 300
"""A thousandth of the defaults, 5 s and 60 s, would be too short for a busy machine; these are not."""
GET = WireRequest(b"GET", b"/v1/x", (), b"")


async def test_o34_change_of_address_is_followed_under_unbroken_traffic() -> None:
    gate = asyncio.Event()
    old = RawPlatform(host="127.0.0.1")
    async with old, RawPlatform(host="127.0.0.2", port=old.port) as new:
        addresses = ["127.0.0.1"]

        async def look_up(_host: str, port: int) -> list[Address]:
            return [(socket.AF_INET, (addresses[0], port))]

        upstream = HttpUpstream(
            f"http://u.test:{old.port}",
            monotonic_ms=lambda: time.monotonic_ns() // 1_000_000,
            on_error=lambda error: None,
            dns_ttl_ms=DNS_TTL_MS,
            pool=PoolLimits(age_ms_max=AGE_MS_MAX),
            look_up=look_up,
        )
        old.plan(Script(Hold(gate), Send(answer(200, b"late"))))
        under_way = asyncio.create_task(upstream.send(GET, timeout_ms=100_000))
        await old.got(1)
        await upstream.send(GET, timeout_ms=20_000)
        addresses[0] = "127.0.0.2"
        moved_at = asyncio.get_running_loop().time()
        while not new.hits:
            assert isinstance(await upstream.send(GET, timeout_ms=20_000), Answered)
            await asyncio.sleep(0.02)
            assert asyncio.get_running_loop().time() - moved_at < 50

        before = old.hits
        for _ in range(20):
            await upstream.send(GET, timeout_ms=20_000)
        gate.set()
        late = await under_way
        await upstream.close()

    assert old.hits == before, "traffic went back to the old address"
    assert isinstance(late, Answered)
    assert late.response.body == b"late", "a call under way was cut"
