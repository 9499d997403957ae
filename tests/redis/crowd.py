"""Many callers of one key over several sidecars, and what they were told (contract P4, P5)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from tests.e2e.callers import Told, payment
from tests.e2e.platforms import thing
from tests.e2e.processes import Process
from tests.e2e.stage import Stage, until
from tests.wire.peers import Hang, Hold, RawCaller, RawPlatform, Script, Send, answer

PATIENCE_S = 60.0
JSON = (b"Content-Type", b"application/json")

SHARED: dict[str, Any] = {
    "retry": {"attempts": 3, "attempt_timeout": "40s", "deadline": "50s"},
    "wait_timeout": "40s",
}
"""Nobody's patience ends in these tests but the test's own."""


def with_store(url: str, *, lease: str = "3s", **store: Any) -> dict[str, Any]:
    """`SHARED` on that Redis."""
    return {**SHARED, "store": {"url": url, "lease": lease, "timeout": "5s", **store}}


async def patient(address: str, raw: bytes) -> Told:
    """A call whose caller waits longer than any sidecar."""
    async with await RawCaller.dial(address) as caller:
        await caller.send(raw)
        async with asyncio.timeout(PATIENCE_S):
            return Told.of(await caller._answer(head_only=False))


async def house(
    stage: Stage, platform_url: str, store_url: str, *, count: int, **given: Any
) -> list[Process]:
    """So many sidecar processes on one Redis."""
    overrides = {**with_store(store_url), **given}
    names = [f"s{n}" for n in range(count)]
    return list(
        await asyncio.gather(*(stage.process(platform_url, name=name, **overrides) for name in names))
    )


async def under_way(sidecars: Sequence[Process]) -> int:
    """Guarded calls that the sidecars have taken and not answered, by their own count."""
    pages = await asyncio.gather(*(one.ask("/metrics") for one in sidecars))
    found = re.findall(
        r"(?m)^safepost_in_flight\{.*\} (.*)$", "\n".join(page.body.decode() for page in pages)
    )
    return round(sum(map(float, found)))


def paid(name: str) -> Script:
    """The platform's answer for this order, as a script's last step."""
    body = thing(id=f"pay_{name}", merchant_order_no=name)
    return Script(Send(answer(201, body, JSON, reason=b"Created")))


@dataclass(frozen=True, slots=True)
class Round:
    """What one round of the crowd came to."""

    hits: int
    keys: frozenset[bytes]
    told: tuple[Told, ...]
    lost: int
    """Callers whose sidecar died under them."""

    def has_one_answer(self, *, hits: int, lost: int) -> bool:
        """Whether everyone who could be answered was told the same, as executed."""
        answers = {(one.status, one.body, one.knowledge) for one in self.told}
        return (
            (self.hits, self.lost, len(self.keys)) == (hits, lost, 1)
            and len(answers) == 1
            and {one.status for one in self.told} == {201}
        )


async def one_key_round(
    platform: RawPlatform, sidecars: Sequence[Process], name: str, *, callers: int
) -> Round:
    """All call at once; the platform answers when the last call is under way."""
    go = asyncio.Event()
    platform.plan(Script(Hold(go), *paid(name).steps))
    before = platform.hits
    calls = await _called(sidecars, name, callers=callers)

    async def all_in() -> bool:
        return await under_way(sidecars) == callers

    await until(all_in, within_s=PATIENCE_S)
    go.set()
    return await _heard(platform, calls, before)


async def killed_leader_round(
    platform: RawPlatform, sidecars: Sequence[Process], name: str, *, callers: int
) -> Round:
    """The first sidecar leads and is killed when all calls are under way; one of the others takes over."""
    platform.plan(Script(Hang()), paid(name))
    before = platform.hits
    async with AsyncExitStack() as stack:
        leading = await stack.enter_async_context(await RawCaller.dial(sidecars[0].address))
        await leading.send(payment(name, order=name))
        await platform.got(before + 1)
        calls = await _called(sidecars, name, callers=callers - 1)

        async def all_in() -> bool:
            return await under_way(sidecars) == callers

        await until(all_in, within_s=PATIENCE_S)
        await sidecars[0].kill()
        return await _heard(platform, calls, before)


async def _called(sidecars: Sequence[Process], name: str, *, callers: int) -> list[asyncio.Task[Told]]:
    raw = payment(name, order=name)
    addresses = [sidecars[n % len(sidecars)].address for n in range(callers)]
    return [asyncio.create_task(patient(address, raw)) for address in addresses]


async def _heard(platform: RawPlatform, calls: list[asyncio.Task[Told]], before: int) -> Round:
    heard = await asyncio.gather(*calls, return_exceptions=True)
    told = tuple(one for one in heard if isinstance(one, Told))
    lost = [one for one in heard if isinstance(one, (OSError, EOFError))]
    assert len(told) + len(lost) == len(heard), [one for one in heard if one not in (*told, *lost)]
    hits = platform.received[before:]
    keys = frozenset(key for seen in hits for key in seen.header(b"idempotency-key"))
    return Round(len(hits), keys, told, len(lost))
