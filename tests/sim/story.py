"""One seed, from its first call to the truth: a phase with faults, a phase without, and the week after."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from proxy.core.model import Operation, State
from tests.sim.bank import Bank, Effect, Resource
from tests.sim.checks import Checks
from tests.sim.file import SimLedger, ledger_for
from tests.sim.fleet import Fleet
from tests.sim.people import TRIES_MAX, Merchant, Operator, Shopper, Town
from tests.sim.platforms import Setting
from tests.sim.rows import Edge, Rows
from tests.sim.sidecar import Sidecar
from tests.sim.store import SimStore
from tests.sim.wire import Wire
from tests.sim.world import START_MS, Chance, Kind, Swarm, World

FAULTS_MS_MAX = 1_200_000
SETTLING_MS_MAX = 3 * 86_400_000
ROUNDS_MAX = 120
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


@dataclass
class Outcome:
    """What one seed was worth."""

    operations: int = 0
    calls: int = 0
    steps: int = 0
    effects: int = 0
    lookups: int = 0
    taken: dict[Edge, int] = field(default_factory=dict)
    states: set[State] = field(default_factory=set)
    replies: dict[str, int] = field(default_factory=dict)


@dataclass
class Story:
    """A world with everything in it."""

    world: World
    setting: Setting
    rows: Rows
    store: SimStore
    checks: Checks
    bank: Bank
    fleet: Fleet
    town: Town
    calm_ms: int = 0

    @classmethod
    def of(cls, world: World, setting: Setting, ledger: SimLedger, *, sidecars: int) -> Story:
        rows = Rows()
        store = SimStore(world, rows, ledger)
        checks = Checks(world, setting, store.ledger, rows)
        told: list[Fleet] = []

        def changed(resource: Resource) -> None:
            told[0].changed(resource)

        def effect(effect: Effect) -> None:
            checks.effect(effect)

        store.wrote = checks.wrote
        bank = Bank(world, setting.is_unique, effect, changed)
        checks.bank = bank
        wire = Wire(world, bank, checks, {})
        hosts = [Sidecar(f"host{n}", world, setting, store, wire, checks) for n in range(1, sidecars + 1)]
        fleet = Fleet(world, setting, store, bank, hosts, checks)
        told.append(fleet)
        return cls(world, setting, rows, store, checks, bank, fleet, Town(world, hosts, bank, checks, store))

    # --- phases -----------------------------------------------------------------------------------------------

    def trouble(self, shoppers: int) -> None:
        """Calls and faults."""
        world, chance = self.world, self.world.chance
        for number in range(shoppers):
            shopper = Shopper(self.town, f"O{number}")
            world.after(chance.below(60_000), shopper.begin)
        if self.setting.forwards:
            self.store.flaky_permille = chance.pick((0, 80, 200))
            for _ in range(chance.between(0, 3)):
                world.after(chance.between(1, 80_000), self.store.goes_down)
        self.fleet.is_blind = world.is_slow and chance.hits(300)
        self.fleet.watch()
        self.fleet.age()
        Operator(self.town).look()
        spell_ms = (
            chance.between(12, 72) * HOUR_MS if world.is_slow else chance.between(120_000, FAULTS_MS_MAX)
        )
        end_ms = START_MS + spell_ms
        while world.now_ms < end_ms:
            if world.now_ms > START_MS + 90_000 and self.is_quiet and not self.town.planned:
                break
            world.run_until(min(end_ms, world.now_ms + (600_000 if world.is_slow else 5_000)))

    @property
    def is_quiet(self) -> bool:
        """Nobody calls any more, or will."""
        waits = any(not one.is_done for one in self.town.merchants)
        return (
            not waits
            and self.town.open_calls == 0
            and all(not host.runs and not len(host.owed) for host in self.town.sidecars)
        )

    def calm(self) -> None:
        """The faults stop: every operation settles, or is absent or under review; nothing is left behind."""
        world = self.world
        world.calm = True
        self.calm_ms = world.now_ms
        self.fleet.mend()
        self.town.stop()
        world.run_until(world.now_ms + 130_000)
        end_ms = world.now_ms + SETTLING_MS_MAX
        while world.now_ms < end_ms:
            self.fleet.resolve()
            world.run_until(world.now_ms + 600)
            if self._is_settled():
                break
            due_ms = self.fleet.next_due_ms()
            if due_ms is None:
                self.fleet.sweep()
            wait_ms = 6 * HOUR_MS if due_ms is None else max(1_000, due_ms - world.wall_ms())
            world.run_until(world.now_ms + min(wait_ms, DAY_MS))
        self.town.stop()  # a last answer may have begun another submission, whose next try is days away
        for _ in range(ROUNDS_MAX):  # a merchant may have put a call off until now
            world.run_until(world.now_ms + 30_000)
            if self.is_quiet and not self.store.waiters:
                break
        if not self.is_quiet or self.store.waiters:
            raise world.broken("calls, waiters or owed writes are left long after the faults stopped")
        self.checks.settled()
        self.checks.facts_add_up()

    def _is_settled(self) -> bool:
        return all(self._is_closed(one) for one in self.store.ledger.operations.values())

    def _is_closed(self, operation: Operation) -> bool:
        if operation.state is State.ABSENT:  # no proof (U8): it has to be asked for once more without faults
            return self.checks.looked_ms.get(operation.id, 0) > self.calm_ms
        closed = (State.EXECUTED, State.NOT_EXECUTED, State.MANUAL_REVIEW)
        return operation.state in closed or not operation.tracked

    def week(self) -> None:
        """P9: a queue repeats old keys after the platform has forgotten them; what is old is dropped."""
        world, chance = self.world, self.world.chance
        world.run_until(world.now_ms + chance.between(6, 8) * DAY_MS)
        for slot, (request, _, _, _) in tuple(self.bank.keys.items()):
            again = Merchant(self.town, request if request.key else replace(request, key=slot[2]))
            again.tries = TRIES_MAX
            world.after(chance.below(60_000), again.go)
        world.run_until(world.now_ms + 200_000)
        record_ms = {route.name: route.record_ms for route in self.setting.platform.routes}
        for _ in range(2):
            self.store.ledger.purge(record_ms=record_ms)
            world.run_until(world.now_ms + chance.between(1, 30) * DAY_MS)
        self.store.ledger.purge(record_ms=record_ms)

    def outcome(self) -> Outcome:
        return Outcome(
            operations=len(self.store.ledger.operations),
            calls=self.town.calls,
            steps=self.world.steps,
            effects=len(self.bank.effects),
            lookups=self.fleet.lookups,
            taken=dict(self.rows.taken),
            states={one.state for one in self.store.ledger.operations.values()},
            replies=dict(self.checks.replies),
        )


def setting_of(chance: Chance) -> Setting:
    return Setting(
        is_unique=not chance.hits(400),
        attempts=chance.pick((1, 2, 3)),
        forwards=chance.hits(300),
        stored_bytes_max=40 if chance.hits(250) else 65_536,
    )


SETTINGS: dict[Kind, dict[str, Any]] = {
    Kind.CARDS: {"is_unique": True, "stored_bytes_max": 40},
    Kind.FORWARDING: {"attempts": 1},
    Kind.LAGGING: {"forwards": False},
    Kind.INHERITED: {"is_unique": True, "attempts": 1},
}
STRESSED: dict[Kind, tuple[tuple[str, str, int], ...]] = {
    Kind.CARDS: (("wire", "reset_before", 250),),
    Kind.FORWARDING: (("wire", "turned_away", 250), ("wire", "reset_after", 250)),
    Kind.LAGGING: (("command", "pause", 60), ("wire", "reset_after", 150), ("event", "late", 500)),
    Kind.INHERITED: (("command", "pause", 60), ("wire", "reset_after", 150), ("event", "dropped", 500)),
}


def _kind_of(chance: Chance, setting: Setting) -> Kind:
    drawn = chance.below(1000)
    if setting.forwards and drawn < 500:
        return Kind.FORWARDING
    for kind, bound in ((Kind.CARDS, 580), (Kind.LAGGING, 660), (Kind.INHERITED, 740)):
        if 500 <= drawn < bound:
            return kind
    return Kind.ORDINARY


def faults_of(seed: int) -> list[str]:
    """The faults in the seed's plan."""
    return Swarm(Chance(seed)).names


def play(
    seed: int,
    *,
    told: list[str] | None = None,
    without: frozenset[str] = frozenset(),
    on_file: bool = False,
) -> Outcome:
    """Play a seed to its end.

    Args: told: where the story is written, line by line; None tells none. without: faults of its plan that do
        not strike. on_file: over a SQLite file; the story is the same.
    Raises: Violation, or whatever the core itself raised.
    """
    chance = Chance(seed)
    swarm = Swarm(chance, without)
    world = World(seed, swarm, chance, told)
    world.is_slow = chance.hits(300)
    setting = setting_of(chance)
    world.kind = _kind_of(chance, setting)
    setting = replace(setting, **SETTINGS.get(world.kind, {}))
    for point, name, weight in STRESSED.get(world.kind, ()):
        swarm.stress(point, name, weight)
    with ledger_for(world, on_file=on_file) as ledger:
        story = Story.of(world, setting, ledger, sidecars=chance.between(1, 3))
        story.trouble(shoppers=chance.between(1, 5))
        story.calm()
        ledger.restarts()
        if (
            chance.hits(150) and world.wall_error_ms < HOUR_MS
        ):  # P9's margin holds for clocks right to an hour
            story.week()
        return story.outcome()
