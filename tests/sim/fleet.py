"""What happens beside the calls: lookups, events, leases that are over, clocks that step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from proxy.core.bodies import Mistake, read_json
from proxy.core.classify import read_object
from proxy.core.evidence import ApplyEvidence
from proxy.core.http import Answered, MaybeSent, MaybeSentReason, Phase, WireResult
from proxy.core.keys import handle
from proxy.core.lookups import lookup_target, read_lookup
from proxy.core.model import Operation, Owner, State
from proxy.core.resolve import EndLookup, Found, LookupFailed, LookupTask, Missed, NoticeLapse, TakeLookup
from tests.core.payhub import SCOPE
from tests.sim.bank import Bank, Resource, refusal
from tests.sim.checks import Checks
from tests.sim.platforms import LATE_MS_MAX, LOOKUPS, Setting
from tests.sim.sidecar import Sidecar
from tests.sim.store import SimStore
from tests.sim.world import START_MS, WALL_START_MS, Kind, World

LOOKUP_LEASE_MS = 15_000
BEHIND_MS = 900_000  # a replica that the platform forgot: fifteen times the lag that U8 supposes
RESTING = frozenset({State.EXECUTED, State.NOT_EXECUTED})
KINDS = {
    "create_payment": "create",
    "confirm_payment": "confirm",
    "cancel_payment": "cancel",
    "create_refund": "refund",
    "create_checkout_session": "checkout",
}


@dataclass
class Fleet:
    """The resolvers of all sidecars, the platform's webhooks, and the machines they run on."""

    world: World
    setting: Setting
    store: SimStore
    bank: Bank
    sidecars: list[Sidecar]
    checks: Checks
    lookups: int = 0
    is_blind: bool = False  # no credential, or the wrong one: no lookup is answered

    # --- lookups (U2) -----------------------------------------------------------------------------------------

    def watch(self) -> None:
        """One pass of some process's resolver, again and again."""
        self.resolve()
        if not self.world.calm:
            self.world.after(self.world.spell_ms(500, 12_000), self.watch)

    def resolve(self) -> None:
        """Notice dead leaders, look up what is due."""
        now = self.store.ledger.now()
        for operation in tuple(self.store.ledger.operations.values()):
            if operation.state in RESTING:  # most of them, most of the time
                continue
            if operation.state is State.IN_FLIGHT and operation.lease_is_over(now):
                self.store.ask(NoticeLapse(operation.scope, operation.id), _ignored)
            elif _is_due(operation, now.wall_ms):
                self._take(operation)

    def next_due_ms(self) -> int | None:
        """The wall instant of the next lookup."""
        due = [
            one.lookups.next_ms
            for one in self.store.ledger.operations.values()
            if one.is_unresolved and one.tracked and one.lookups.next_ms is not None
        ]
        return min(due, default=None)

    def _take(self, operation: Operation, *, forced: bool = False) -> None:
        sidecar = self.world.chance.pick(self.sidecars)
        if not sidecar.is_up:
            return
        owner = Owner(sidecar.name)
        verb = TakeLookup(operation.scope, operation.id, owner, LOOKUPS, LOOKUP_LEASE_MS, forced)
        self.store.ask(verb, lambda taken: self._look(taken, sidecar, sidecar.generation))

    def _look(self, taken: object, sidecar: Sidecar, generation: int) -> None:
        if not isinstance(taken, LookupTask) or sidecar.generation != generation:
            return
        self.lookups += 1
        world = self.world
        fault = "failed" if self.is_blind and not world.calm else world.fault("lookup")
        delay_ms = world.chance.between(5, 300)
        if fault == "slow":
            delay_ms = world.chance.between(1_000, 14_000)
        world.after(delay_ms, lambda: self._answer(taken, fault, sidecar, generation))

    def _answer(self, task: LookupTask, fault: str, sidecar: Sidecar, generation: int) -> None:
        if sidecar.generation != generation:
            return
        route = self.setting.route(KINDS[task.operation.route])
        target = lookup_target(task.operation, route)
        result: WireResult = MaybeSent(MaybeSentReason.TIMEOUT, Phase.WAITING)
        missed: Callable[[], None] | None = None
        if target is None:
            verb = EndLookup(task, LookupFailed("no way to ask"), LOOKUPS)
        else:
            if fault == "failed":
                if self.world.chance.hits(500):
                    result = Answered(refusal(401, "unauthorized"))
            else:
                lag_ms, is_behind = LOOKUPS.lag_ms - LATE_MS_MAX, fault == "lies"
                if self.world.kind is Kind.LAGGING and not self.world.calm:
                    lag_ms, is_behind = BEHIND_MS, True
                shown = self.bank.look_up(
                    target.decode(), lies=is_behind, stale=fault == "stale", lag_ms=lag_ms
                )
                result = Answered(shown)
            seen_ms = sidecar.wall_ms()
            read = read_lookup(result, task.operation, route, self.setting.platform, seen_ms=seen_ms)
            verb = EndLookup(task, read, LOOKUPS)
            if isinstance(read, Missed | Found):
                looked_up = tuple(identity for identity, _ in task.fences)
                missed = partial(self.checks.missed, looked_up, at_ms=self.world.now_ms)
            if self.world.tracing:
                self.world.note(f"lookup {target.decode()} -> {read}")
        self.store.ask(verb, _ignored, begins=missed)

    # --- events (U4) ------------------------------------------------------------------------------------------

    def changed(self, resource: Resource) -> None:
        """The platform tells of a change: late, twice, or never."""
        if not self.bank.is_unique or resource.id.startswith("cs_"):
            return
        body = resource.body
        fault = self.world.fault("event")
        chance = self.world.chance
        if fault == "dropped":
            return
        delay_ms = self.world.spell_ms(20, 1_000_000) if fault == "late" else chance.between(20, 3_000)
        self.world.after(delay_ms, lambda: self._event(resource, body))
        if fault == "twice":
            self.world.after(delay_ms + chance.between(1, 200_000), lambda: self._event(resource, body))

    def sweep(self) -> None:
        """The daily list of accepted refunds (U2)."""
        for resource in tuple(self.bank.resources.values()):
            if resource.id.startswith("re_"):
                self._event(resource, resource.body)

    def _event(self, resource: Resource, body: bytes) -> None:
        kind = "refund" if resource.id.startswith("re_") else "create"
        rule = self.setting.route(kind).object
        value = read_json(body)
        assert not isinstance(value, Mistake)
        seen = read_object(
            body, value, rule, source="event", seen_ms=self.world.wall_ms(), card_fields=frozenset()
        )
        assert seen is not None
        number = handle("refund" if kind == "refund" else "order", resource.thing)
        if self.world.tracing:
            self.world.note(f"event {resource.id} {seen.status} version {seen.version}")
        self.store.ask(ApplyEvidence(SCOPE, (handle(rule.kind, resource.id), number), seen), _ignored)

    # --- machines ---------------------------------------------------------------------------------------------

    def age(self) -> None:
        """Clocks step, hosts boot, failovers lose a record."""
        world, chance = self.world, self.world.chance
        fault = world.fault("clock")
        if fault == "wall_forward":
            world.wall_offset_ms += chance.between(1_000, 7_200_000)
        elif fault == "wall_back":
            world.wall_offset_ms -= chance.between(1_000, 7_200_000)
        world.wall_error_ms = max(world.wall_error_ms, abs(world.wall_offset_ms - (WALL_START_MS - START_MS)))
        if fault == "skew":
            chance.pick(self.sidecars).skew_ms = chance.between(-300_000, 300_000)
        elif fault == "reboot":
            world.boot += 1
            world.boot_at_ms = world.now_ms
            for sidecar in self.sidecars:
                if sidecar.is_up:
                    sidecar.crash()
        if world.fault("ledger") and self.store.ledger.operations:
            self.store.rows.lossy = True
            known = self.store.ledger.operations.values()
            running = tuple(one.id for one in known if one.state is State.IN_FLIGHT)
            self.store.lose(chance.pick(running or tuple(self.store.ledger.operations)))
        if not world.calm:
            world.after(world.spell_ms(2_000, 60_000), self.age)

    def mend(self) -> None:
        """The clock is set right again."""
        self.world.wall_offset_ms = WALL_START_MS - START_MS
        self.store.down_until_ms = 0


def _is_due(operation: Operation, wall_ms: int) -> bool:
    next_ms = operation.lookups.next_ms
    return operation.is_unresolved and operation.tracked and next_ms is not None and next_ms <= wall_ms


def _ignored(_: object) -> None:
    """The next pass sees what is still due."""
