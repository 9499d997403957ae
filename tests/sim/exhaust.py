"""Every story of a small world: two sidecars, one order, two calls with one key or two, each fault at each step.

The story is played again and again, each time with a longer list of "at the n-th point where something may go
wrong, this does". Worlds that look the same after their last fault are not gone into twice: the hash covers the
ledger, the bank, every guard and lease, what callers were told and hosts owe, and all that is still to come.

The space is cut where `LIMITS` says, and nowhere else: within it, every story is played.
"""

from __future__ import annotations

import hashlib
import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

from proxy.core.guard import Guard
from proxy.core.messages import Reply
from tests.sim.file import SimLedger
from tests.sim.platforms import LEASE_MS, Request, Setting
from tests.sim.story import Story
from tests.sim.world import POINTS, START_MS, Chance, World

Script = tuple[tuple[int, str], ...]
"""(number of the point, fault), ascending."""

WALKED = ("command", "store", "wire", "breaker", "retry", "lookup", "event")
LEFT_OUT = frozenset({"lying_429"})  # a platform that lies about what it did is no promise of ours
OFFSETS_MS = (0, 7, 300, 8_000, LEASE_MS + 5_000)
"""How long after the first call the second one comes: at once, while it claims, sends, later, too late."""
HORIZON_MS = 70_000
TRIES_MAX = 3
LIMITS = (
    "two sidecars, one order, two calls of three tries each (one key or two, valid or refused), five distances "
    "between them, three platforms, one draw of chance, faults for 70 s at the points "
    + ", ".join(WALKED)
    + ", and three days without"
)


class Scripted:
    """Strikes where its script says, and counts the points."""

    def __init__(self, script: Script) -> None:
        self._script = dict(script)
        self.count = 0
        self.points: list[str] = []
        self.last = script[-1][0] if script else -1
        self.struck: Callable[[], None] | None = None

    def at(self, point: str) -> str:
        if point not in WALKED:
            return ""
        number = self.count
        self.count += 1
        self.points.append(point)
        if number == self.last + 1 and self.struck is not None:
            self.struck()
        return self._script.get(number, "")


class SeenBeforeError(Exception):
    """This world was gone into already."""


@dataclass
class Walk:
    """What was walked, for the report. `is_cut`: by the number of stories asked for."""

    starts: int = 0
    played: int = 0
    pruned: int = 0
    worlds: int = 0
    points: int = 0
    steps: int = 0
    is_cut: bool = False

    def add(self, other: Walk) -> None:
        self.starts += other.starts
        self.played += other.played
        self.pruned += other.pruned
        self.worlds += other.worlds
        self.points = max(self.points, other.points)
        self.steps = max(self.steps, other.steps)
        self.is_cut |= other.is_cut

    def report(self) -> str:
        return (
            f"{self.starts} beginnings, {self.played} stories played to their end, {self.pruned} ended in a world "
            f"seen before, {self.worlds} worlds after a fault, depth at most {self.points} points for faults and "
            f"{self.steps} steps, {'cut short by --stories' if self.is_cut else 'complete'} within: {LIMITS}"
        )


class Walker:
    """Walks from one beginning; worlds of two beginnings are never the same."""

    def __init__(self, start: Start, stories_max: int | None) -> None:
        self.start = start
        self.stories_max = stories_max
        self.seen: set[bytes] = set()
        self.walk = Walk(starts=1)

    def go(self, script: Script, faults_left: int) -> None:
        if self.stories_max is not None and self.walk.played >= self.stories_max:
            self.walk.is_cut = True
            return
        points = play(self.start, script, self)
        if points is None or faults_left == 0:
            return
        first = script[-1][0] + 1 if script else 0
        for number in range(first, len(points)):
            for fault in POINTS[points[number]]:
                if fault not in LEFT_OUT:
                    self.go((*script, (number, fault)), faults_left - 1)


@dataclass(frozen=True, slots=True)
class Start:
    """Where a walk begins."""

    setting: Setting
    offset_ms: int
    is_valid: bool
    other_key: bool
    """The second call comes with another key for the same order."""


def starts(*, thorough: bool) -> Iterator[Start]:
    settings = [Setting(is_unique=unique, attempts=2, forwards=False) for unique in (True, False)]
    if thorough:
        settings += [Setting(is_unique=True, attempts=1, forwards=True)]
    for setting in settings:
        for offset_ms in OFFSETS_MS if thorough else OFFSETS_MS[1:4]:
            for other_key in (False, True):
                yield Start(setting, offset_ms, is_valid=True, other_key=other_key)
            if thorough:
                yield Start(setting, offset_ms, is_valid=False, other_key=False)


def explore(*, faults: int, thorough: bool, stories_max: int | None = None, jobs: int = 1) -> Walk:
    """Walk every story with at most so many faults.

    Args: stories_max: from each beginning. jobs: processes, each with a beginning at a time.
    Raises: Violation, with the script that replays it.
    """
    walk = Walk()
    one = partial(_from, faults=faults, stories_max=stories_max)
    beginnings = list(starts(thorough=thorough))
    if jobs == 1:
        for done in map(one, beginnings):
            walk.add(done)
        return walk
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        for done in pool.map(one, beginnings):
            walk.add(done)
    return walk


def _from(start: Start, *, faults: int, stories_max: int | None) -> Walk:
    walker = Walker(start, stories_max)
    walker.go((), faults)
    walker.walk.worlds = len(walker.seen)
    return walker.walk


def play(start: Start, script: Script, walker: Walker, told: list[str] | None = None) -> list[str] | None:
    """One story; the points that it passed, None if it ran into a world seen before."""
    faults = Scripted(script)
    world = World(0, faults, Chance(20 + start.offset_ms), told)
    story = Story.of(world, start.setting, SimLedger(world), sidecars=2)
    told_to: list[object] = []

    def struck() -> None:
        mark = fingerprint(story, start, told_to)
        if mark in walker.seen:
            raise SeenBeforeError
        walker.seen.add(mark)

    if script:
        faults.struck = struck
    try:
        _calls(story, start, told_to)
        world.run_until(START_MS + HORIZON_MS)
        story.calm()
        if None in told_to and len(told_to) > 2 * TRIES_MAX:
            raise world.broken("a caller was never answered")
    except SeenBeforeError:
        walker.walk.pruned += 1
        return None
    except AssertionError as error:
        error.add_note(f"replay: start={start} script={script}")
        raise
    walker.walk.played += 1
    walker.walk.points = max(walker.walk.points, faults.count)
    walker.walk.steps = max(walker.walk.steps, world.steps)
    return faults.points


def _calls(story: Story, start: Start, told: list[object]) -> None:
    """Two calls, each repeated with its own key until it knows (the seventh try gives up)."""
    world = story.world
    first = Request("create", "O0", 10_000, "K-O0", is_valid=start.is_valid)
    second = Request("create", "O0", 10_000, "K-O0x" if start.other_key else "K-O0", is_valid=start.is_valid)

    def call(host: int, request: Request, tries: int) -> None:
        def answer(reply: Reply | None) -> bool:
            told.append(reply.answer.status if reply is not None else None)
            unknown = reply is None or reply.marks.knowledge == "unknown"
            if unknown and tries < TRIES_MAX:
                world.after(3_000, lambda: call(1 - host, request, tries + 1))
            return True

        story.town.sidecars[host].call(request, answer)

    world.after(0, lambda: call(0, first, 1))
    world.after(start.offset_ms, lambda: call(1, second, 1))
    for at_ms in range(5_000, 60_000, 9_000):
        world.after(at_ms, story.fleet.resolve)


def fingerprint(story: Story, start: Start, told: list[object]) -> bytes:
    """A hash of everything that the rest of the story, and its checks, depend on."""
    world, checks = story.world, story.checks
    parts: list[object] = [start, world.now_ms, world.boot, story.store.down_until_ms, told]
    parts += [sorted((name, repr(one)) for name, one in checks.told.items()), checks.unrecorded]
    parts += [sorted(checks.misses.items()), sorted(checks.bodies.items()), sorted(checks.liars)]
    ledger = story.store.ledger
    parts += sorted((str(one.id), repr(one)) for one in ledger.operations.values())
    parts += sorted((str(name), repr(row)) for name, row in ledger.subjects.items())
    parts += [(one.key, one.result, one.at_ms) for one in story.bank.effects]
    for host in story.town.sidecars:
        parts.append((host.is_up, host.generation, host.calls, sorted(host.shared)))
        owed = vars(host.owed)
        parts += [repr(verb) for name in ("_verbs", "_unused") for verb in owed[name].values()]
        parts += [number in owed["_on_the_wire"] for number in owed["_verbs"]]
        parts += [(run.owner, run.lease_until_ms, run.is_paused, guard_state(run.guard)) for run in host.runs]
    parts.append(world.pending())
    parts.append(world.chance.state)
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).digest()


def guard_state(guard: Guard) -> list[str]:
    skipped = ("_classifier", "_voice", "_policy", "claim")
    return [f"{name}={getattr(guard, name)!r}" for name in Guard.__slots__ if name not in skipped]
