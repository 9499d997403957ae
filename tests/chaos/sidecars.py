"""A sidecar as a real process that may be killed, frozen, drained, reloaded and started again."""

from __future__ import annotations

import asyncio
import re
import resource
import signal
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from tests.e2e.processes import Process

STARTS_MAX: Final = 40
START_PAUSE_S: Final = 0.5
DRAIN_S: Final = 12.0
"""`drain_timeout` of the run's configuration, the graces around it, and a busy machine."""

_SERIOUS: Final = re.compile(r"Traceback|internal_fault|Task exception|never awaited|Exception ignored")
UNLIMITED: Final = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


@dataclass(slots=True)
class Sidecar:
    """One `python -m proxy run`, on ports of its own that outlive it.

    Args: settings: its configuration. environ: more variables. incidents: where what no process may do is
        written down. counts: what was done to it.
    """

    name: str
    folder: Path
    settings: dict[str, Any]
    environ: Mapping[str, str]
    incidents: list[str]
    counts: Counter[str]
    process: Process | None = None
    is_closing: bool = False
    _busy: asyncio.Lock = field(default_factory=asyncio.Lock)
    _expected: bool = False
    _watch: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        return str(self.settings["listen"])

    @property
    def admin(self) -> str:
        return str(self.settings["admin"])

    @property
    def config(self) -> Path:
        return self.folder / f"{self.name}.yaml"

    @property
    def is_busy(self) -> bool:
        """Whether something is being done to it."""
        return self._busy.locked()

    def write(self, **changed: Any) -> None:
        self.config.write_text(yaml.safe_dump({**self.settings, **changed}), encoding="utf-8")

    async def start(self) -> None:
        """Start it, again and again where its store is away, as a service manager would."""
        for _ in range(STARTS_MAX):
            try:
                self.process = await Process.start(self.config, environ=self.environ)
            except (AssertionError, TimeoutError) as failed:
                self.counts["failed starts"] += 1
                if _SERIOUS.search(str(failed)):
                    self.incidents.append(f"{self.name}: did not start: {str(failed)[-600:]}")
                await asyncio.sleep(START_PAUSE_S)
                continue
            self._expected = False
            self._watch = asyncio.create_task(self._watched(self.process))
            return
        self.incidents.append(f"{self.name}: did not start in {STARTS_MAX} tries")

    async def _watched(self, process: Process) -> None:
        """Write down an end that nobody ordered, and every fault that the process tells of itself."""
        code = await process.ended(within_s=86_400)
        for line in process.said:
            if _SERIOUS.search(line):
                self.incidents.append(f"{self.name}: {line[:600]}")
        if not self._expected:
            self.incidents.append(f"{self.name}: ended by itself, code {code}: {process.said[-5:]}")
            if not self.is_closing:
                await self.start()

    async def kill(self, *, dead_s: float) -> None:
        """SIGKILL, and a while of nobody there."""
        async with self._busy:
            await self._end(signal.SIGKILL)
            await asyncio.sleep(dead_s)
            await self.start()

    async def drain(self) -> None:
        """SIGTERM: it must end by itself, in time, with code 0 (O3); then a new one takes its place."""
        async with self._busy:
            code = await self._end(signal.SIGTERM)
            if code != 0:
                said = self.process.said[-5:] if self.process else []
                self.incidents.append(f"{self.name}: a drain ended with {code}: {said}")
            await self.start()

    async def freeze(self, *, frozen_s: float) -> None:
        """SIGSTOP past the lease: it wakes as a zombie among the living (P5)."""
        async with self._busy:
            if self.process is not None:
                self.process.signal(signal.SIGSTOP)
                await asyncio.sleep(frozen_s)
                self.process.signal(signal.SIGCONT)

    async def reload(self, **changed: Any) -> None:
        """SIGHUP with another configuration, which may be a wrong one (O4)."""
        async with self._busy:
            self.write(**changed)
            if self.process is not None:
                self.process.signal(signal.SIGHUP)

    async def fill_disk(self, *, full_s: float) -> None:
        """No file of this process grows for a while: what a quota or a full disk does to it."""
        async with self._busy:
            if self.process is not None and self.process.process.returncode is None:
                pid = self.process.pid
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
                await asyncio.sleep(full_s)
                resource.prlimit(pid, resource.RLIMIT_FSIZE, UNLIMITED)

    async def close(self) -> None:
        """End it for good, as a deployment would."""
        self.is_closing = True
        async with self._busy:
            code = await self._end(signal.SIGTERM)
        if code not in (0, None):
            self.incidents.append(f"{self.name}: its last drain ended with {code}")

    async def _end(self, how: signal.Signals) -> int | None:
        """Let it end; None where it had not been there."""
        process = self.process
        if process is None or process.process.returncode is not None:
            return None
        self._expected = True
        process.signal(how)
        try:
            code = await asyncio.wait_for(process.process.wait(), DRAIN_S)
        except TimeoutError:
            process.signal(signal.SIGKILL)
            code = await process.process.wait()
        if self._watch is not None:
            await self._watch
        return code
