"""The second act: alerts that take processes of their own. Signals, deaths, a doubt from yesterday, another store.

Two sidecars share a ledger in a file; the first is stopped, killed and put on another store, the second stays.
Every act waits for what Prometheus saw. Yesterday is libfaketime's: no threshold is scaled.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import ClientSession, ClientTimeout
from rich.console import Console

from deploy.observe.server import Firing, Prometheus
from deploy.observe.sidecar import CREDENTIAL, Sidecar
from deploy.observe.watch import Watch, until
from proxy.clock import SystemClock
from proxy.drill.stage import Shelf
from proxy.sandbox import Sandbox, Settings

YESTERDAY = "-25h"
SETTLED_S_MAX = 60.0
EVENT_SECRET = "whsec_drill"  # noqa: S105 -- the drill's own
HANGS = "60s"
"""How long an attempt may take where the call is to be on the wire when its process ends."""
IN_DOUBT_SOON = "2s"
"""The same where it is to be in doubt before long."""

CONFIGURATION = """
platform: payhub
environment: test
upstream: {{url: "{upstream}", authorization: "{credential}"}}
events: {{secret: {secret}}}
store: {{url: "{store}", lease: 3s, on_failure: {on_failure}}}
wait_timeout: 10s
drain_timeout: 500ms
retry: {{attempts: 1, attempt_timeout: {attempt_timeout}, deadline: 90s}}
lookups: {{enabled: {lookups}, schedule: [1s, 2s, 4s], then_every: 4s, min_interval: 1s, lag: 200ms}}
log: {{level: error}}
"""


@dataclass(slots=True)
class House:
    """Two sidecars on one ledger, the platform behind them, and a Redis beside."""

    sandbox: Sandbox
    first: Sidecar
    second: Sidecar
    ledger: str
    shelf: Shelf
    watch: Watch
    faults: list[int] = field(default_factory=list)

    def configure(
        self,
        *sidecars: Sidecar,
        lookups: bool = True,
        store: str | None = None,
        attempt_timeout: str = HANGS,
    ) -> None:
        """Write their configuration, which they read at their start, or when told to by SIGHUP."""
        text = CONFIGURATION.format(
            upstream=self.sandbox.url,
            credential=CREDENTIAL,
            secret=EVENT_SECRET,
            store=store or self.ledger,
            on_failure="forward" if store else "reject",
            attempt_timeout=attempt_timeout,
            lookups=str(lookups).lower(),
        )
        for sidecar in sidecars:
            sidecar.configure(text)

    def configure_both(self) -> None:
        """The first one's calls hang, the second one's are in doubt before long."""
        self.configure(self.first)
        self.configure(self.second, attempt_timeout=IN_DOUBT_SOON)

    def arm(self, **fault: object) -> None:
        self.faults.append(self.sandbox.add_fault({"times": "always", **fault}))

    def disarm(self) -> None:
        while self.faults:
            self.sandbox.remove_fault(self.faults.pop())

    async def charged(self, order: str) -> None:
        """Wait until the platform has charged it. Raises: TimeoutError."""

        async def is_charged() -> bool:
            return any(entry.order == order for entry in self.sandbox.ledger.of("charge"))

        await _must(is_charged, f"{order} is not charged")

    async def executed(self, order: str, *, ask: bool = False) -> None:
        """Wait until the ledger knows that it was. `ask`: a person has it looked up. Raises: TimeoutError."""

        async def is_known() -> bool:
            if ask:
                await self.second.tell(order, "lookup", {})
            return bool((await self.second.operation(order))["knowledge"] == "executed")

        await _must(is_known, f"{order} is not settled")


async def _must(holds: Callable[[], Awaitable[bool]], problem: str) -> None:
    if not await until(holds, within_s=SETTLED_S_MAX):
        raise TimeoutError(problem)


@dataclass(frozen=True, slots=True)
class Act:
    """One thing that goes wrong, and the alerts that belong to it."""

    name: str
    tells: str
    alerts: frozenset[str]
    play: Callable[[House], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class ActResult:
    """When it began, and when the calm after it ended; the wall clock's time."""

    phase: Act
    began_ms: int
    rested_ms: int


OLD = frozenset({"SafepostUnknownOver15Minutes", "SafepostUnknownOver1Hour", "SafepostUnknownOver24Hours"})
PERSON = frozenset({"SafepostNeedsPerson"})
DISAGREED = frozenset({"SafepostOutcomesDisagree"})
REFUSED = frozenset({"SafepostReloadRefused"})
DOWN = frozenset({"SafepostDown"})
CUT = frozenset({"SafepostDrainCutShort"})
ABANDONED = frozenset({"SafepostCallsAbandoned"})
UNSAFE = frozenset({"SafepostStoreUnsafe"})
UNRECORDED = frozenset({"SafepostSentUnrecorded", "SafepostStoreDown", "SafepostStoreErrors"})


async def _old_doubt(house: House) -> None:
    """The lookups' time is over: it stays unknown. Then the platform can be asked again, and says what it did."""
    await house.watch.until_fired(OLD)
    house.configure_both()
    for sidecar in (house.first, house.second):
        sidecar.signal(signal.SIGHUP)
    await house.watch.until_fired(PERSON)
    house.disarm()
    await house.executed("OLD", ask=True)


async def _wrong_word(house: House) -> None:
    """A person says failed of what was charged; the platform's event contradicts, and holds."""
    house.arm(fault="hang_after", match={"order": "WORD"})
    house.arm(fault="lookup_status", match={"order": "WORD"}, status=503)
    await house.second.pay("WORD")
    word = {"status": "failed", "by": "drill", "note": "a guess"}
    await house.second.tell("WORD", "resolve", word)
    house.disarm()
    house.sandbox.webhooks.send(house.sandbox.webhooks.events[-1].id)
    await house.watch.until_fired(DISAGREED)
    await house.executed("WORD")


async def _refused_reload(house: House) -> None:
    before = house.first.file.read_text(encoding="utf-8")
    house.first.file.write_text(f"{before}\nretries: many\n", encoding="utf-8")
    house.first.signal(signal.SIGHUP)
    await house.watch.until_fired(REFUSED)
    house.first.file.write_text(before, encoding="utf-8")
    house.first.signal(signal.SIGHUP)


async def _cut_drain(house: House) -> None:
    """Down for as long as it takes to be noticed; meanwhile the other one looks the call up."""
    await _cut_off(house, "CUT", signal.SIGTERM)
    await house.watch.until_fired(CUT | DOWN)
    await house.executed("CUT")
    await house.first.start()


async def _killed(house: House) -> None:
    await _cut_off(house, "KILLED", signal.SIGKILL)
    await house.watch.until_fired(ABANDONED | DOWN)
    await house.executed("KILLED")
    await house.first.start()


async def _cut_off(house: House, order: str, number: signal.Signals) -> None:
    """End the first sidecar with a call on the wire that was executed and never answered."""
    house.arm(fault="hang_after", match={"order": order})
    calling = asyncio.ensure_future(house.first.pay(order))
    await house.charged(order)
    house.first.signal(number)
    await house.first.ended()
    await calling
    house.disarm()


async def _evicting(house: House) -> None:
    """Onto a Redis that may evict, until somebody sets it right and starts the sidecar anew."""
    await house.shelf.start()
    await house.shelf.ask("CONFIG SET maxmemory-policy allkeys-lru")
    await house.first.stop()
    await house.watch.until_fired(DOWN)
    house.configure(house.first, store=house.shelf.url)
    await house.first.start()
    await house.watch.until_fired(UNSAFE)
    await house.shelf.ask("CONFIG SET maxmemory-policy noeviction")
    await house.first.stop()
    await house.first.start()


async def _unrecorded(house: House) -> None:
    """Its store dies, and `on_failure: forward` sends one call on without a record."""
    await house.shelf.kill()
    await house.watch.until_fired(UNRECORDED - {"SafepostSentUnrecorded"})
    await house.first.pay("UNRECORDED")
    await house.watch.until_fired(UNRECORDED)
    await house.shelf.start()


ACTS = (
    Act(
        "doubt since yesterday",
        "In doubt for 25 hours (by libfaketime); its lookup fails, a person is asked, evidence settles it.",
        OLD | PERSON,
        _old_doubt,
    ),
    Act(
        "wrong word",
        "A person says failed of a payment that was made; an event contradicts.",
        DISAGREED,
        _wrong_word,
    ),
    Act("refused reload", "SIGHUP with a mistake in the file, then without.", REFUSED, _refused_reload),
    Act(
        "cut drain",
        "SIGTERM with a call on the wire for longer than the drain; the other sidecar settles it.",
        CUT | DOWN,
        _cut_drain,
    ),
    Act(
        "kill",
        "SIGKILL with a call on the wire; the other sidecar notices and settles it.",
        ABANDONED | DOWN,
        _killed,
    ),
    Act(
        "evicting store",
        "A sidecar on a Redis with allkeys-lru, then with noeviction.",
        UNSAFE | DOWN,
        _evicting,
    ),
    Act("sent unrecorded", "That Redis dies, and the sidecar forwards.", UNRECORDED, _unrecorded),
)


async def play(
    folder: Path, console: Console, *, server: str, port: int | None = None
) -> tuple[list[ActResult], list[Firing]]:
    """Play every act before a Prometheus of its own. What fired when is the caller's to judge.

    Args: server: a Redis or Valkey program.
    """
    clock, yesterday = SystemClock(), faketime_environ()
    if yesterday is None:
        console.print("no libfaketime here (Debian: apt-get install faketime): no doubt since yesterday")
    results: list[ActResult] = []
    async with _house(folder, server, yesterday, port) as (house, prometheus):
        began_ms = clock.wall_ms()
        for act in acts():
            console.print(f"[bold]{act.name}[/bold]: {act.tells}")
            act_began_ms = clock.wall_ms()
            await act.play(house)
            await house.watch.until_calm()
            results.append(ActResult(act, act_began_ms, clock.wall_ms()))
        return results, await prometheus.alerts(from_ms=began_ms, to_ms=clock.wall_ms())


@asynccontextmanager
async def _house(
    folder: Path, server: str, yesterday: Mapping[str, str] | None, port: int | None
) -> AsyncIterator[tuple[House, Prometheus]]:
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(
            ClientSession(timeout=ClientTimeout(total=10.0), trust_env=False)
        )
        first, second = (Sidecar(folder, name, session) for name in ("first", "second"))
        hooked = Settings(
            webhook_url=f"http://{second.admin}/events", webhook_secret=EVENT_SECRET, webhook_automatic=False
        )
        sandbox = await Sandbox.start("127.0.0.1", 0, settings=hooked)
        stack.push_async_callback(sandbox.close)
        shelf = Shelf(server, folder / "redis")
        stack.push_async_callback(shelf.kill)
        prometheus = Prometheus(folder, targets=(first.admin, second.admin), port=port)
        house = House(sandbox, first, second, f"sqlite:{folder}/ledger.db", shelf, Watch(prometheus))
        for sidecar in (first, second):
            stack.push_async_callback(sidecar.kill)
        if yesterday is not None:
            await _leave_doubt(house, yesterday)
        else:
            house.configure_both()
        await first.start()
        await second.start()
        stack.push_async_callback(prometheus.stop)
        await prometheus.start()
        yield house, prometheus


async def _leave_doubt(house: House, yesterday: Mapping[str, str]) -> None:
    """A payment in doubt that nobody has asked about, in the ledger since yesterday."""
    house.arm(fault="hang_after", match={"order": "OLD"})
    house.arm(fault="lookup_status", match={"order": "OLD"}, status=503)
    house.configure(house.first, house.second, lookups=False, attempt_timeout=IN_DOUBT_SOON)
    await house.first.start(yesterday)
    await house.first.pay("OLD")
    await house.first.stop()


def acts() -> tuple[Act, ...]:
    """Those that this machine can play."""
    return ACTS if faketime_environ() is not None else ACTS[1:]


def faketime_environ(by: str = YESTERDAY) -> dict[str, str] | None:
    """Variables that move a process's wall clock, and no other clock; None where libfaketime is not installed."""
    for folder in (Path("/usr/lib"), Path("/usr/local/lib")):
        for library in folder.glob("**/faketime/libfaketimeMT.so.1"):
            return {
                "LD_PRELOAD": str(library),
                "FAKETIME": by,
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
                "DONT_FAKE_MONOTONIC": "1",
            }
    return None
