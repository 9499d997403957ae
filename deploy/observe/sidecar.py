"""A sidecar as a process of its own, for what only a process can show: signals, a death, a clock that is wrong."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aiohttp import ClientError, ClientSession, ClientTimeout

from deploy.observe.server import ROOT
from deploy.observe.watch import until
from proxy.drill.stage import free_port

UP_S_MAX = 60.0
ENDED_S_MAX = 60.0
CALL_S_MAX = 90.0
CREDENTIAL = "Bearer sk_test_drill"

Json = dict[str, Any]


class Sidecar:
    """`python -m proxy run -c FILE`, at the same two addresses whenever it runs."""

    def __init__(self, folder: Path, name: str, session: ClientSession) -> None:
        self.file = folder / f"{name}.yaml"
        self.listen = f"127.0.0.1:{free_port()}"
        self.admin = f"127.0.0.1:{free_port()}"
        self._session = session
        self._process: Process | None = None

    def configure(self, text: str) -> None:
        """Write its configuration; what runs reads it at the next start or SIGHUP."""
        self.file.write_text(f"listen: {self.listen}\nadmin: {self.admin}\n{text}", encoding="utf-8")

    async def start(self, environ: Mapping[str, str] | None = None) -> None:
        """Raises: TimeoutError when it does not come up."""
        command = (sys.executable, "-m", "proxy", "run", "-c", str(self.file))
        self._process = await asyncio.create_subprocess_exec(
            *command,
            cwd=ROOT,
            env={**os.environ, **(environ or {})},
            stdin=DEVNULL,
            stdout=DEVNULL,
            stderr=DEVNULL,
        )
        if not await until(self._is_up, within_s=UP_S_MAX):
            raise TimeoutError(f"{self.file}: the sidecar does not come up")
        if self._process.returncode is not None:
            raise OSError(f"{self.admin}: another program listens there")

    async def _is_up(self) -> bool:
        try:
            async with self._session.get(f"http://{self.admin}/readyz") as answer:
                return answer.status == 200
        except (ClientError, TimeoutError):
            return False

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    async def ended(self) -> None:
        """Wait for its end. Raises: TimeoutError."""
        if self._process is None:
            return
        try:
            async with asyncio.timeout(ENDED_S_MAX):
                await self._process.wait()
        except TimeoutError:
            raise TimeoutError(f"{self.file}: the sidecar does not end") from None

    async def stop(self) -> None:
        self.signal(signal.SIGTERM)
        await self.ended()

    async def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    async def pay(self, order: str) -> str:
        """One call; what is known of its effect afterwards, empty where no answer came."""
        headers = {"Authorization": CREDENTIAL, "Idempotency-Key": f"payment.create:{order}:1"}
        body = {"merchant_order_no": order, "amount": 10_000, "currency": "USD"}
        timeout = ClientTimeout(total=CALL_S_MAX)
        url = f"http://{self.listen}/v1/payments"
        try:
            async with self._session.post(url, json=body, headers=headers, timeout=timeout) as answer:
                await answer.read()
                return answer.headers.get("Safepost-Knowledge", "")
        except ClientError:
            return ""

    async def operation(self, order: str) -> Json:
        """What its ledger holds of the order, whole. Raises: LookupError."""
        async with self._session.get(f"http://{self.admin}/operations?subject=order:{order}") as answer:
            found: list[Json] = json.loads(await answer.read())["operations"]
        if not found:
            raise LookupError(order)
        return found[0]

    async def tell(self, order: str, verb: str, body: Json) -> int:
        """What a person does on the admin listener: `lookup` or `resolve`. Returns the status."""
        identity = (await self.operation(order))["id"]
        url = f"http://{self.admin}/operations/{identity}/{verb}"
        async with self._session.post(url, json=body) as answer:
            await answer.read()
            return answer.status
