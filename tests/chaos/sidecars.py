"""A sidecar as a real process that may be killed, frozen, drained, reloaded and started again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import resource
import signal
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from tests.chaos.journal import call_of, wall_ms
from tests.chaos.logs import End, Forward
from tests.e2e.processes import Process

STARTS_MAX: Final = 60
START_S: Final = 25.0
START_PAUSE_S: Final = 0.5
FIRST_START_S: Final = 90.0  # nothing is broken yet, but the machine may be busy
DRAIN_S: Final = 30.0
"""Far beyond `drain_timeout` and the graces around it, also on a busy machine: longer is a process that hangs."""

STORY_LINES: Final = 60
STORY_CHARACTERS: Final = 4_000

_SERIOUS: Final = re.compile(r"Traceback|internal_fault|Task exception|never awaited|Exception ignored")
_FORWARDED: Final = '"sent_unrecorded"'
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
    drains_s: list[float] = field(default_factory=list)
    forwards: list[Forward] = field(default_factory=list)
    ends: list[End] = field(default_factory=list)
    may_start: asyncio.Event = field(default_factory=asyncio.Event)
    _busy: asyncio.Lock = field(default_factory=asyncio.Lock)
    _up: asyncio.Event = field(default_factory=asyncio.Event)
    _down: asyncio.Event = field(default_factory=asyncio.Event)
    _ordered: signal.Signals | None = None
    _dead_s: float = 0.0
    _closing: asyncio.Event = field(default_factory=asyncio.Event)
    _life: asyncio.Task[None] | None = None

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
        """Whether something is being done to it, or it isn't there."""
        return self._busy.locked() or not self._up.is_set()

    def write(self, **changed: Any) -> None:
        self.config.write_text(yaml.safe_dump({**self.settings, **changed}), encoding="utf-8")

    async def open(self) -> None:
        """Start it for the first time."""
        self.may_start.set()
        self._life = asyncio.create_task(self._live(), name=self.name)
        await asyncio.wait_for(self._up.wait(), FIRST_START_S)

    async def close(self) -> None:
        """End it for good, as a deployment would."""
        self.may_start.set()
        self._closing.set()
        async with self._busy:
            if self._up.is_set():
                await self._end(signal.SIGTERM)
        if self._life is not None:
            await self._life

    async def kill(self, *, dead_s: float) -> None:
        """SIGKILL, and a while of nobody there."""
        async with self._busy:
            self._dead_s = dead_s
            await self._end(signal.SIGKILL)

    async def drain(self) -> None:
        """SIGTERM: it must end by itself, in time, with code 0 (O3); then a new one takes its place."""
        loop = asyncio.get_running_loop()
        async with self._busy:
            began = loop.time()
            await self._end(signal.SIGTERM)
            self.drains_s.append(loop.time() - began)

    async def freeze(self, *, frozen_s: float) -> None:
        """SIGSTOP past the lease: it wakes as a zombie among the living (P5)."""
        async with self._busy:
            if self.process is not None and self._up.is_set():
                self.process.signal(signal.SIGSTOP)
                await asyncio.sleep(frozen_s)
                self.process.signal(signal.SIGCONT)

    async def reload(self, **changed: Any) -> None:
        """SIGHUP with another configuration, which may be a wrong one (O4)."""
        async with self._busy:
            self.write(**changed)
            if self.process is not None and self._up.is_set():
                self.process.signal(signal.SIGHUP)

    async def fill_disk(self, *, full_s: float) -> None:
        """No file of this process grows for a while: what a quota or a full disk does to it."""
        async with self._busy:
            if self.process is not None and self._up.is_set():
                pid = self.process.pid
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
                await asyncio.sleep(full_s)
                with contextlib.suppress(
                    ProcessLookupError
                ):  # it ended under the quota: that is told elsewhere
                    resource.prlimit(pid, resource.RLIMIT_FSIZE, UNLIMITED)

    async def _end(self, how: signal.Signals) -> None:
        """Let the process end, and wait until it has."""
        process = self.process
        if process is None or process.process.returncode is not None:
            return
        self._down.clear()
        self._ordered = how
        process.signal(how)
        try:
            await asyncio.wait_for(self._down.wait(), DRAIN_S)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):  # it ended in this very moment
                process.signal(signal.SIGKILL)
            await self._down.wait()

    async def _live(self) -> None:
        """One process after the other, as a service manager would have it."""
        failures = 0
        while not self._closing.is_set():
            process = await self._started()
            if process is None:
                failures += 1
                if failures >= STARTS_MAX:
                    self.incidents.append(f"{self.name}: did not start in {STARTS_MAX} tries")
                    return
                await asyncio.sleep(START_PAUSE_S)
                continue
            failures = 0
            self.process = process
            self._up.set()
            if self._closing.is_set():  # it was being started when it was told to end for good
                self._ordered = signal.SIGTERM
                process.signal(signal.SIGTERM)
            code = await process.ended(within_s=86_400)
            self._up.clear()
            self._examine(process, code)
            self._ordered = None
            self._down.set()
            await asyncio.sleep(self._dead_s)
            self._dead_s = 0.0
            await self.may_start.wait()

    async def _started(self) -> Process | None:
        """A process that listens; None where it ended before, or was not up in time."""
        process = await Process.start(self.config, environ=self.environ, until_up=False)
        listening = asyncio.create_task(process.line("admin on ", within_s=START_S))
        ending = asyncio.create_task(process.process.wait())
        await asyncio.wait({listening, ending}, return_when=asyncio.FIRST_COMPLETED)
        is_up = listening.done() and listening.exception() is None
        has_ended = ending.done()
        for task in (listening, ending):
            task.cancel()
        await asyncio.gather(listening, ending, return_exceptions=True)
        if is_up:
            return process
        await process.kill()
        last = process.said[-1] if process.said else "silent"
        how = "ended" if has_ended else f"not up in {START_S:.0f} s"
        self.counts[f"failed start ({how}: {last[-90:]})"] += 1
        self._tell_faults(process)
        return None

    def _examine(self, process: Process, code: int) -> None:
        """Write down an end that nobody ordered, a drain that failed, and faults that the process told of."""
        self.ends.append(End(self.address, wall_ms()))
        with (self.folder / f"{self.name}.log").open("a", encoding="utf-8") as log:
            log.write("\n".join([*process.said, f"ended with {code} at {wall_ms()}", ""]))
        self._tell_faults(process)
        self._tell_forwards(process)
        last = process.said[-5:]
        if self._ordered is None:
            self.incidents.append(f"{self.name}: ended by itself with {code}: {last}")
        elif self._ordered is signal.SIGTERM and code != 0:
            self.incidents.append(f"{self.name}: a drain ended with {code}: {last}")

    def _tell_faults(self, process: Process) -> None:
        """What the process told of its own faults, each with what followed it: a traceback's end says most."""
        lines = process.said
        for at, line in enumerate(lines):
            if _SERIOUS.search(line):
                story = " / ".join(part.strip() for part in lines[at : at + STORY_LINES])
                self.incidents.append(f"{self.name}: {story[:STORY_CHARACTERS]}")

    def _tell_forwards(self, process: Process) -> None:
        """D3: each call that was sent without the store is told in the log."""
        for line in process.said:
            if _FORWARDED in line:
                call = call_of(json.loads(line)["request_id"])
                if call is not None:
                    self.forwards.append(Forward(call, self.address))
