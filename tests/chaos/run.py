"""One chaos run: callers and disasters for a while, then calm, then the audit."""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random  # noqa: TID251 -- seeded: the same seed plans the same run
from typing import Final

from tests.chaos.audit import Violation, audit
from tests.chaos.callers import Town, shopper
from tests.chaos.disk import MEMORY
from tests.chaos.journal import Journal
from tests.chaos.logs import Call, Logs, Stored
from tests.chaos.monkey import Monkey
from tests.chaos.settings import Variant
from tests.chaos.world import World, world

ORDERS_PER_S: Final = 7.0
"""Some forty calls a second: enough for disasters to meet work, little enough for two cores."""
LAST_CALLS_S: Final = 25.0
SETTLE_S: Final = 150.0
REST_S_MAX: Final = 400.0  # for all that comes before and after the chaos
LINE_MAX: Final = 1_500
LOOK_S: Final = 1.0
ASKED: Final = "looked up by hand"
AT_REST: Final = frozenset({"executed", "not_executed", "absent"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is asked of a run. `seconds`: of chaos; the calm and the audit come on top."""

    seconds: float
    seed: int
    variant: Variant = field(default_factory=Variant)
    orders_per_s: float = ORDERS_PER_S


@dataclass(frozen=True, slots=True)
class Report:
    """How a run went. `settle_s`: how long after the last fault everything was at rest; None: not in time."""

    plan: Plan
    logs: Logs
    disasters: Counter[str]
    counts: Counter[str]  # of what came of them
    violations: Sequence[Violation]
    settle_s: float | None
    drain_s_max: float

    @property
    def by_hand(self) -> int:
        """How many operations somebody had to ask for, long after the last fault."""
        return self.counts[ASKED]

    def lines(self) -> list[str]:
        """The summary, a line for each thing."""
        told = Counter(_word(call) for call in self.logs.calls)
        states = Counter(f"{one.state} by {one.settled_by or '-'}" for one in self.logs.store)
        entries = Counter(entry.kind for entry in self.logs.bank.entries)
        rest = f"{self.settle_s:.0f} s" if self.settle_s is not None else f"not within {SETTLE_S:.0f} s"
        return [
            f"seed {self.plan.seed}, {self.plan.variant}, {self.plan.seconds:.0f} s of chaos",
            f"calls     {len(self.logs.calls)}: {_counted(told)}",
            f"callers   {_counted(Counter(call.caller for call in self.logs.calls))}",
            f"disasters {_counted(self.disasters)}",
            f"of which  {_counted(self.counts)}",
            f"bank      {len(self.logs.bank.arrivals)} guarded requests; {_counted(entries)}",
            f"store     {len(self.logs.store)} operations: {_counted(states)}",
            f"at rest   {rest} after the last fault; slowest drain {self.drain_s_max:.1f} s",
            f"guards    {len(self.logs.witnesses)} second keys went through after a result that was unknown",
            f"forwarded {len(self.logs.forwards)} calls without the store",
            f"verdict   {len(self.violations)} violations",
            *(f"  {violation}"[:LINE_MAX] for violation in self.violations[:40]),
        ]


def _word(call: Call) -> str:
    if not call.status:
        return "left" if call.hung_up else "cut"
    return f"{call.status} {call.code or call.object_status or ''} ({call.knowledge})"


def _counted(counter: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counter.most_common())


async def play(plan: Plan, folder: Path | None = None) -> Report:
    """Carry a run out, in bounded time.

    Args: folder: where its files stay; by default a temporary one in memory, where a busy disk of the machine's
        does not hold the stores up. Raises: TimeoutError.
    """
    async with asyncio.timeout(plan.seconds + REST_S_MAX):
        if folder is not None:
            return await _play(plan, folder)
        with tempfile.TemporaryDirectory(prefix="chaos-", dir=MEMORY if MEMORY.is_dir() else None) as made:
            return await _play(plan, Path(made))


async def _play(plan: Plan, folder: Path) -> Report:
    chance = Random(plan.seed)
    journal = Journal()
    loop = asyncio.get_running_loop()
    async with world(folder, Random(chance.random()), plan.variant) as made_world:
        ends = loop.time() + plan.seconds
        town = Town(
            addresses=[one.address for one in made_world.sidecars],
            journal=journal,
            chance=Random(chance.random()),
            state_of=made_world.state_of,
            is_over=lambda: loop.time() > ends + LAST_CALLS_S / 2,
        )
        monkey = Monkey(made_world, Random(chance.random()))
        raging = asyncio.create_task(monkey.rage(lambda: loop.time() > ends))
        await _trade(town, plan, ends=ends)
        await raging
        await monkey.rest()
        settle_s, store = await _settled(made_world)
        for sidecar in made_world.sidecars:
            await sidecar.close()
        made_world.incidents += await asyncio.to_thread(made_world.ledger_faults)
        bank = await made_world.close_platform()
        for line in made_world.lines:
            made_world.counts.update({f"line {flaw}": count for flaw, count in line.counts.items()})
    logs = Logs(
        bank,
        store,
        journal.calls,
        journal.witnesses,
        incidents_of(made_world),
        may_forward=plan.variant.forward,
        forwards=[one for sidecar in made_world.sidecars for one in sidecar.forwards],
        ends=[one for sidecar in made_world.sidecars for one in sidecar.ends],
        troubles=made_world.troubles,
    )
    drains = [0.0, *(one for sidecar in made_world.sidecars for one in sidecar.drains_s)]
    return Report(plan, logs, made_world.disasters, made_world.counts, audit(logs), settle_s, max(drains))


def incidents_of(made: World) -> list[str]:
    """What no process may have done, and what nobody may have been told."""
    heard = made.stranger.heard if made.stranger is not None else []
    return [*made.incidents, *(f"a stranger was told {said[:60]!r}" for said in heard)]


async def _trade(town: Town, plan: Plan, *, ends: float) -> None:
    """Orders come in at their rate until the end; then each caller has a while to finish."""
    loop = asyncio.get_running_loop()
    lives: set[asyncio.Task[None]] = set()
    n = 0
    while loop.time() < ends:
        n += 1
        lives.add(asyncio.create_task(shopper(town, n).live()))
        await asyncio.sleep(town.chance.expovariate(plan.orders_per_s))
    _, late = await asyncio.wait(lives, timeout=LAST_CALLS_S)
    for life in late:
        life.cancel()
    ended = await asyncio.gather(*lives, return_exceptions=True)
    broken = [one for one in ended if isinstance(one, Exception)]
    if broken:
        raise broken[0]  # a caller of ours is wrong, and the run tells nothing


async def _settled(made: World) -> tuple[float | None, list[Stored]]:
    """Wait until everything is at rest; what is looked up too late after a shifted clock is asked for now."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    found: list[Stored] = []
    owed: float | None = None
    asked: set[str] = set()
    while loop.time() - began < SETTLE_S:
        await asyncio.sleep(LOOK_S)
        owed = await made.owed()  # asked first: what is written meanwhile is in the ledger that is read then
        read = await made.operations()
        if read is None:
            continue
        found = read
        open_ones = [one for one in found if one.state not in AT_REST]
        if not open_ones and owed == 0:
            return loop.time() - began, found
        if loop.time() - began > SETTLE_S / 3:
            for one in open_ones[:20]:
                made.counts[ASKED] += one.id not in asked
                asked.add(one.id)
                await made.ask(f"/operations/{one.id}/lookup", method="POST", body=b"{}")
    if owed != 0:
        made.incidents.append(f"owed writes, long after the last fault: {owed}")
    return None, found
