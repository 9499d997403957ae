"""What goes wrong, when, for how long: a plan drawn from a seed, carried out on real processes.

The same seed draws the same disasters in the same order. When exactly they strike is the machine's: real
processes can't be replayed step by step, which is what the simulator is for (`tests/sim`).
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from random import Random  # noqa: TID251 -- seeded: the same seed plans the same disasters
from typing import Any, Final

from tests.chaos.disk import Disk
from tests.chaos.lines import SOUND, Flaw, Line
from tests.chaos.sidecars import Sidecar
from tests.chaos.world import World

GAP_S: Final = 0.9  # between two disasters, on average; most last longer than that

BAD_UPSTREAM: Final = {
    Flaw.NONE: 8,
    Flaw.DELAY: 4,
    Flaw.REFUSE: 2,
    Flaw.RESET_UP: 3,
    Flaw.RESET_DOWN: 4,
    Flaw.HALF_CLOSE_UP: 2,
    Flaw.CLOSE_DOWN: 3,
    Flaw.HOLE_UP: 2,
    Flaw.HOLE_DOWN: 3,
}
BAD_STORE: Final = {**BAD_UPSTREAM, Flaw.NONE: 20}
BAD_TLS: Final = {**BAD_UPSTREAM, Flaw.ALTER_UP: 3, Flaw.ALTER_DOWN: 3}

_HTML: Final = {"fault": "status", "html": True}
FAULTS: Final[tuple[dict[str, Any], ...]] = (
    {"fault": "hang_after", "seconds": 3},
    {"fault": "hang_before", "seconds": 3},
    {"fault": "before_read"},
    {"fault": "reset_before"},
    {"fault": "reset_after"},
    {"fault": "close_before"},
    {"fault": "close_after"},
    {"fault": "truncate"},
    {"fault": "truncate", "reset": True},
    {"fault": "garbage"},
    {"fault": "garbage", "executed": False},
    {"fault": "status", "status": 500, "executed": True},
    {"fault": "status", "status": 500},
    {"fault": "status", "status": 503, "executed": True},
    {"fault": "status", "status": 503, "headers": {"Retry-After": "1"}},
    {"fault": "status", "status": 429, "headers": {"Retry-After": "1"}},
    {"fault": "status", "status": 429, "headers": {"Retry-After": "60"}},
    {"fault": "status", "status": 408, "executed": True},
    {"fault": "status", "status": 409},
    {"fault": "status", "status": 401},
    {"fault": "status", "status": 403},
    {"fault": "status", "status": 422, "code": "validation_error"},
    {"fault": "status", "status": 302, "headers": {"Location": "/elsewhere"}},
    {**_HTML, "status": 502, "executed": True},
    {**_HTML, "status": 503},
    {**_HTML, "status": 504, "executed": True},
    {**_HTML, "status": 200},
    {"fault": "accept_202", "final_status": "succeeded", "final_after_s": 0.7},
    {"fault": "accept_202", "final_status": "failed", "final_after_s": 1.5},
    {"fault": "requires_action", "final_status": "succeeded", "final_after_s": 2},
    {"fault": "decline"},
    {"fault": "delay", "seconds": 0.3},
    {"fault": "delay", "seconds": 1.6},
    {"fault": "delay", "seconds": 1.6, "executed": True},
    {"fault": "early_hints"},
    {"fault": "lookup_status", "status": 500},
    {"fault": "lookup_status", "status": 429},
    {"fault": "lookup_lag", "seconds": 2},
)
"""What the platform may do. Its delays and lags stay below the preset's `lookup_lag`, as its contract says."""

DYING_S: Final = 0.2  # from the first write that fails to a file system that is read-only
MENDING_S: Final = 40.0
MENDING_PAUSE_S: Final = 0.2

CLOCK_SHIFTS: Final = ("+7200s", "-7200s", "+90s", "-90s", "+1s", "+0s")


class Monkey:
    """Draws disasters and sees each through to its end; `rest` mends everything."""

    def __init__(self, world: World, chance: Random) -> None:
        self._world = world
        self._chance = chance
        self._running: set[asyncio.Task[None]] = set()
        self._store = asyncio.Lock()  # one thing at a time is done to it
        self._disk = asyncio.Lock()
        disasters: list[tuple[int, str, Callable[[], Awaitable[None]]]] = [
            (7, "sidecar killed", self._kill),
            (5, "sidecar frozen", self._freeze),
            (3, "sidecar drained", self._drain),
            (3, "sidecar reloaded", self._reload),
            (18, "platform faults", self._faults),
            (6, "line to the platform bad", self._bad_upstream),
            (2, "connections severed", self._sever),
            (2, "platform frozen", self._freeze_platform),
            (3, "disk quota reached", self._quota),
        ]
        if world.clocks:
            disasters.append((3, "clock shifted", self._shift_clock))
        if world.redis is not None:
            disasters.append((3, "store killed", self._kill_redis))
            disasters.append((3, "store frozen", self._freeze_redis))
            disasters.append((5, "line to the store bad", self._bad_store))
        elif world.fleet is not None:
            disasters.append((4, "store failed over", self._fail_over))
        if world.disk is not None and world.disk.is_own:
            disasters += [
                (3, "disk full", self._fill_disk),
                (2, "disk sealed", self._seal_disk),
                (2, "disk read-only for who comes", self._cover_disk),
                (1, "disk failed, then mended", self._fail_disk),
            ]
        if world.stranger is not None:
            disasters.append((3, "a stranger in the platform's place", self._take_its_place))
        self._disasters = disasters

    async def rage(self, is_over: Callable[[], bool]) -> None:
        """One disaster after the other, many of them at once."""
        while not is_over():
            await asyncio.sleep(self._chance.expovariate(1 / GAP_S))
            ((_, name, act),) = self._chance.choices(
                self._disasters, weights=[weight for weight, _, _ in self._disasters]
            )
            self._world.disasters[name] += 1
            task = asyncio.create_task(_run(act), name=name)
            self._running.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A disaster that failed is a fault of the harness, and told: the run was gentler than it says."""
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._world.incidents.append(f"{task.get_name()} could not be done: {error!r}")

    async def rest(self) -> None:
        """Wait for what is under way, and mend what lasts."""
        await asyncio.gather(*self._running, return_exceptions=True)
        await self._world.forgive()
        for line in self._world.lines:
            line.mend()
        for clock in self._world.clocks:
            clock.write_text("+0s")
        for sidecar in self._world.sidecars:
            await sidecar.reload()

    def _victim(self) -> Sidecar | None:
        """A sidecar that nothing else is being done to."""
        idle = [one for one in self._world.sidecars if not one.is_busy]
        return self._chance.choice(idle) if idle else None

    async def _kill(self) -> None:
        dead_s = self._chance.uniform(0.0, 2.0)
        if victim := self._victim():
            await victim.kill(dead_s=dead_s)

    async def _freeze(self) -> None:
        frozen_s = self._chance.uniform(0.5, 4.0)
        if victim := self._victim():
            with self._world.trouble(
                "frozen"
            ):  # its own clock jumps; and it may hold the lock of an embedded store
                await victim.freeze(frozen_s=frozen_s)

    async def _drain(self) -> None:
        if victim := self._victim():
            await victim.drain()

    async def _reload(self) -> None:
        changes: list[dict[str, Any]] = [
            {"log": {"level": "warning", "format": "json"}},
            {"answer_within": "2s"},
            {"retry": {"attempts": "many"}},
            {"drain_timeout": "4s"},
        ]
        change, held_s = self._chance.choice(changes), self._chance.uniform(0.5, 3.0)
        if victim := self._victim():
            await victim.reload(**change)
            await asyncio.sleep(held_s)
            await victim.reload()  # a process that starts on the wrong one would stay away for good

    async def _quota(self) -> None:
        full_s = self._chance.uniform(0.5, 2.5)
        if victim := self._victim():
            with self._world.trouble("quota"):
                await victim.fill_disk(full_s=full_s)

    async def _faults(self) -> None:
        rules = [
            {**fault, "times": self._chance.randint(1, 5)}
            for fault in self._chance.choices(FAULTS, k=self._chance.randint(2, 6))
        ]
        for rule in rules:
            self._world.counts[f"fault {rule['fault']} {rule.get('status', '')}".strip()] += 1
        await self._world.fault(rules)

    async def _bad_upstream(self) -> None:
        mood = BAD_UPSTREAM if self._world.stranger is None else BAD_TLS
        await self._sour(self._chance.choice(self._world.lines_up), mood)

    async def _bad_store(self) -> None:
        with self._world.trouble("line"):
            await self._sour(self._chance.choice(self._world.lines_store), BAD_STORE)

    async def _sour(self, line: Line, mood: dict[Flaw, int]) -> None:
        line.mood = mood
        line.sever()  # what stands was drawn in better days
        await asyncio.sleep(self._chance.uniform(1.0, 5.0))
        line.mood = SOUND
        line.sever()

    async def _sever(self) -> None:
        with self._world.trouble("severed"):
            for line in self._world.lines:
                line.sever()

    async def _freeze_platform(self) -> None:
        self._world.platform.send_signal(signal.SIGSTOP)
        await asyncio.sleep(self._chance.uniform(0.3, 1.8))
        self._world.platform.send_signal(signal.SIGCONT)

    async def _shift_clock(self) -> None:
        self._chance.choice(self._world.clocks).write_text(self._chance.choice(CLOCK_SHIFTS))

    async def _kill_redis(self) -> None:
        redis = self._world.redis
        away_s = self._chance.uniform(0.0, 2.0)
        if redis is not None:
            async with self._store:
                with self._world.trouble("killed"):
                    await asyncio.to_thread(redis.kill)
                    await asyncio.sleep(away_s)
                    await asyncio.to_thread(redis.start)

    async def _freeze_redis(self) -> None:
        redis = self._world.redis
        frozen_s = self._chance.uniform(0.3, 3.0)
        if redis is not None:
            async with self._store:
                with self._world.trouble("store frozen"):
                    redis.freeze()
                    await asyncio.sleep(frozen_s)
                    redis.thaw()

    async def _fail_over(self) -> None:
        fleet = self._world.fleet
        if fleet is not None and not self._store.locked():  # those that queue up would go on into the calm
            async with self._store:
                with self._world.trouble("failed over"):
                    is_elected = await asyncio.to_thread(fleet.fail_over)
                self._world.counts["elections" if is_elected else "elections that failed"] += 1

    async def _fill_disk(self) -> None:
        if disk := self._idle_disk():
            await self._ail(disk.fill, disk.empty)

    async def _seal_disk(self) -> None:
        if disk := self._idle_disk():
            await self._ail(disk.seal, disk.open_up)

    async def _cover_disk(self) -> None:
        """Nobody notices but a sidecar that starts meanwhile."""
        victim = self._victim()
        if (disk := self._idle_disk()) and victim is not None:
            killing = asyncio.create_task(victim.kill(dead_s=0.1))
            await self._ail(disk.cover, disk.open_up)
            await killing

    def _idle_disk(self) -> Disk | None:
        return None if self._disk.locked() else self._world.disk

    async def _ail(self, begin: Callable[[], None], end: Callable[[], None]) -> None:
        """Something is wrong with the disk for a while."""
        async with self._disk:
            with self._world.trouble(begin.__name__):
                try:
                    await asyncio.to_thread(begin)
                    await asyncio.sleep(self._chance.uniform(0.5, 3.0))
                finally:
                    await asyncio.to_thread(end)

    async def _fail_disk(self) -> None:
        """The kernel makes it read-only for good: sidecars go on as they can until somebody comes."""
        disk = self._idle_disk()
        if disk is None:
            return
        sidecars = self._world.sidecars
        async with self._disk:
            with self._world.trouble("disk failed"):
                if not await asyncio.to_thread(disk.die):
                    return
                await asyncio.sleep(DYING_S)
                await asyncio.to_thread(disk.fail)
                await asyncio.sleep(self._chance.uniform(0.5, 3.0))
                for sidecar in sidecars:
                    sidecar.may_start.clear()
                async with asyncio.timeout(MENDING_S):
                    while True:
                        await asyncio.gather(*(sidecar.kill(dead_s=0.0) for sidecar in sidecars))
                        if await asyncio.to_thread(disk.mend):
                            break
                        await asyncio.sleep(MENDING_PAUSE_S)
                for sidecar in sidecars:
                    sidecar.may_start.set()

    async def _take_its_place(self) -> None:
        """Somebody without the platform's certificate answers in its place, and must be told nothing."""
        stranger, line = self._world.stranger, self._chance.choice(self._world.lines_up)
        if stranger is None or line.target == stranger.address:
            return
        target, line.target = line.target, stranger.address
        line.sever()
        await asyncio.sleep(self._chance.uniform(0.5, 3.0))
        line.target = target
        line.sever()


async def _run(act: Callable[[], Awaitable[None]]) -> None:
    await act()
