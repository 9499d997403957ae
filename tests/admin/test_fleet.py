"""Four worker processes behind one port: one page of counts, one stream of events (O-60)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import sys
from pathlib import Path

import pytest
from aiohttp import ClientError, ClientSession

from proxy.sandbox import Sandbox
from tests.admin.conftest import TOKEN, until

CONFIGURATION = """
listen: 127.0.0.1:{port}
admin: 127.0.0.1:{admin}
environment: test
platform: payhub
workers: 4
upstream: {{url: "{upstream}", authorization: "Bearer {token}"}}
store: {{url: "sqlite:{folder}/ledger.db"}}
retry: {{attempts: 1}}
log: {{level: error}}
"""
CALLS, SCRAPES = 1_000, 40


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.mark.slow
async def test_counts_of_four_workers_only_grow_and_add_up(tmp_path: Path) -> None:
    sandbox = await Sandbox.start()
    port, admin_port = free_port(), free_port()
    file = tmp_path / "config.yaml"
    told = {"port": port, "admin": admin_port, "upstream": sandbox.url, "token": TOKEN, "folder": tmp_path}
    file.write_text(CONFIGURATION.format(**told))
    parent = await asyncio.create_subprocess_exec(sys.executable, "-m", "proxy", "run", "-c", str(file))
    admin = f"http://127.0.0.1:{admin_port}"
    async with ClientSession() as session:

        async def ready() -> bool:
            with contextlib.suppress(ClientError):
                async with session.get(f"{admin}/readyz") as answer:
                    return answer.status == 200
            return False

        async def total() -> float:
            async with session.get(f"{admin}/metrics") as answer:
                page = await answer.text()
            return sum(map(float, re.findall(r"(?m)^safepost_requests_total\{.*\} (.*)$", page)))

        async def pay(n: int) -> None:
            """Over a connection of its own, so that the kernel picks a worker."""
            order = f"ORDER-{n}" + ("~reset_after" if n % 50 == 0 else "")
            body = {"merchant_order_no": order, "amount": 1, "currency": "USD"}
            headers = {"Idempotency-Key": f"K-{n}", "Authorization": f"Bearer {TOKEN}"}
            async with (
                ClientSession() as own,
                own.post(f"http://127.0.0.1:{port}/v1/payments", json=body, headers=headers) as answer,
            ):
                await answer.read()

        async def unknown_told(count: int) -> None:
            async with session.get(f"{admin}/events") as answer:
                async for line in answer.content:
                    count -= line == b"event: became_unknown\n"
                    if count == 0:
                        return

        try:
            await until(ready, within_s=20)
            reading = asyncio.ensure_future(unknown_told(CALLS // 50))
            totals = []
            for first in range(0, CALLS, CALLS // SCRAPES):
                await asyncio.gather(*(pay(first + n) for n in range(CALLS // SCRAPES)))
                totals.append(await total())
            await asyncio.wait_for(reading, 10)
            os.kill(_children(parent.pid)[-1], signal.SIGKILL)
            totals.append(await total())
        finally:
            parent.terminate()
            await parent.wait()
            await sandbox.close()

    assert totals == sorted(totals)
    assert totals[-1] == CALLS


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
