"""The product as a real process: started as people start it, stopped as machines stop it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.e2e.callers import Told, call

START_S = 60.0
"""A start takes half a second; a machine with much else to do takes its time."""
ROOT = Path(__file__).resolve().parents[2]


class Process:
    """`python -m proxy run -c FILE`. What it says is kept; it is killed when the test ends."""

    def __init__(self, process: asyncio.subprocess.Process, config: Path) -> None:
        self.process = process
        self.config = config
        self.said: list[str] = []
        self._changed = asyncio.Event()
        self._readers = [
            asyncio.get_running_loop().create_task(self._read(stream))
            for stream in (process.stdout, process.stderr)
            if stream is not None
        ]

    @classmethod
    async def start(
        cls,
        config: Path,
        *,
        environ: Mapping[str, str] | None = None,
        before: tuple[str, ...] = (),
        until_up: bool = True,
    ) -> Process:
        """Start it and wait until it says that it listens.

        Args: environ: more variables. before: a command that runs it, such as prlimit. until_up: whether it
            is meant to come up.
        """
        clean = {name: value for name, value in os.environ.items() if not name.upper().endswith("_PROXY")}
        process = await asyncio.create_subprocess_exec(
            *before,
            sys.executable,
            "-m",
            "proxy",
            "run",
            "-c",
            str(config),
            cwd=ROOT,
            env={**clean, "PYTHONUNBUFFERED": "1", **(environ or {})},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        started = cls(process, config)
        if until_up:
            await started.line("admin on ", within_s=START_S)
        return started

    async def _read(self, stream: asyncio.StreamReader) -> None:
        while line := await stream.readline():
            self.said.append(line.decode(errors="replace").rstrip("\n"))
            self._changed.set()
        self._changed.set()

    async def line(self, part: str, *, within_s: float = START_S) -> str:
        """Wait for a line that holds `part`."""
        async with asyncio.timeout(within_s):
            while True:
                found = [line for line in self.said if part in line]
                if found:
                    return found[0]
                assert self.process.returncode is None, self.said
                self._changed.clear()
                await self._changed.wait()

    @property
    def address(self) -> str:
        """Where callers reach it."""
        return next(line for line in self.said if line.startswith("listening on ")).split()[-1]

    @property
    def admin(self) -> str:
        line = next(line for line in self.said if line.startswith("admin on "))
        return line.split()[-1].removeprefix("http://")

    @property
    def pid(self) -> int:
        return self.process.pid

    async def call(self, raw: bytes) -> Told:
        return await call(self.address, raw)

    async def ask(self, path: str) -> Told:
        """The admin listener's answer."""
        return await call(self.admin, f"GET {path} HTTP/1.1\r\nHost: {self.admin}\r\n\r\n".encode())

    async def operations(self, query: str = "") -> list[dict[str, Any]]:
        told = await self.ask(f"/operations?limit=200{query}")
        assert told.status == 200, told.body
        found: list[dict[str, Any]] = told.json["operations"]
        return found

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def ended(self, *, within_s: float = START_S) -> int:
        """Wait for its end; its exit code, negative for a signal."""
        async with asyncio.timeout(within_s):
            code = await self.process.wait()
            await asyncio.gather(*self._readers)
        return code

    async def kill(self) -> None:
        """SIGKILL: no code of the product runs after this instant."""
        if self.process.returncode is None:
            self.process.kill()
        await self.ended()
