"""Watches over what a Redis may lose: the store's marker, its secret, and the way to it (D6).

The marker is written once into an empty store. One that vanished or changed means that the store lost data: it
was restarted without its file, failed over to a replica that never had it, or was flushed. Each node of a cluster
can lose its own, so that there is a marker beside each scope, and beside the list of scopes.
"""

from __future__ import annotations

import asyncio
import secrets as chance
from collections.abc import Awaitable, Callable, Mapping

from proxy.stores import secret
from proxy.stores.notices import Notice, NoticeKind, Notify
from proxy.stores.redis_engine import ServerTime
from proxy.stores.redis_link import Link
from proxy.stores.redis_rows import MARKER, PREFIX, SCOPES, SECRET, marker_of
from proxy.stores.redis_trouble import Trouble
from proxy.stores.tasks import stop

WATCH_S = 2.0
SETTINGS_EVERY = 5  # looks: ten seconds, so that an alert may rely on it
MARKER_BYTES = 16
PING = f"{PREFIX}:ping"
PING_TTL_S = 60


class Guardian:
    """Looks at the store now and then.

    Args: forget: drops what this process remembers of the store's rows.
        refill: puts back what the store may have lost, and says whether it is all there; called after a loss,
            after each time away and each failover, and again until it is.
        check: looks at the server's settings (D5), and says whether another server may have taken over; called now
            and then, and after each time away.
    """

    def __init__(
        self,
        link: Link,
        time: ServerTime,
        *,
        forget: Callable[[], None],
        refill: Callable[[], Awaitable[bool]],
        check: Callable[[], Awaitable[bool]],
        notify: Notify,
    ) -> None:
        self._link = link
        self._time = time
        self._forget = forget
        self._refill = refill
        self._check = check
        self._notify = notify
        self._secret: bytes | None = None
        self._is_away = False
        self._is_refilled = True
        self._task: asyncio.Task[None] | None = None
        self._markers: dict[str, bytes] = {}
        self._tags: set[bytes] = set()
        self._looking = asyncio.Lock()
        self.lost_data = False

    async def begin(self, *, has_secret: bool) -> None:
        """Read the marker and the store's own secret; make them where they are missing.

        Args: has_secret: the configuration has one, so that none is made.
        Raises: Trouble.
        """
        await self._read_time()
        await self._know(await self._found())
        self._secret = await self._link.run("GET", SECRET)
        if self._secret is None and not has_secret:
            self._secret = await self._kept(SECRET, secret.made())

    def kept_secrets(self) -> tuple[bytes, ...]:
        return (self._secret,) if self._secret is not None else ()

    def warnings(self) -> tuple[str, ...]:
        if not self.lost_data:
            return ()
        return (f"{self._link.where}: the store lost its data since this process started",)

    def watch(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._watch(), name="store-guardian")

    async def close(self) -> None:
        task, self._task = self._task, None
        await stop(task)

    async def look(self) -> None:
        """Is the store there, does it take writes, and is it still the same?

        Raises: Trouble.
        """
        await self._read_time()
        await self._link.run("SET", PING, "1", "EX", PING_TTL_S)
        async with self._looking:  # else one look takes what another has just made for what was lost
            found = await self._found()
            lost = {key: one for key, one in found.items() if self._markers.get(key, one) != one}
            if lost:
                self._is_refilled = False  # also where this look is given up before it is through
                await self._lost(lost)
            await self._know({key: one for key, one in found.items() if key not in self._markers})
        if lost:
            self._is_refilled = await self._refill()

    async def _watch(self) -> None:
        looks = 0
        while True:
            await asyncio.sleep(WATCH_S)
            looks += 1
            try:
                await self._link.refresh()
                await self.look()
                if (self._is_away or looks % SETTINGS_EVERY == 0) and await self._check():
                    self._is_refilled = False
            except Trouble as trouble:
                if not self._is_away:
                    self._is_away = True
                    self._tell(NoticeKind.AWAY, f"{trouble}; calls that have to be guarded are answered 503")
                continue
            if self._is_away:
                self._is_away = self._is_refilled = False
                self._tell(NoticeKind.BACK, "the store answers again")
            if not self._is_refilled:
                self._is_refilled = await self._refill()

    async def _found(self) -> dict[str, bytes | None]:
        """The markers as they are now."""
        if self._link.form != "cluster":
            return {MARKER: await self._link.run("GET", MARKER)}
        self._tags |= await self._link.run("SMEMBERS", SCOPES)
        beside = (SCOPES, SECRET, *sorted(tag.decode() for tag in self._tags))
        keys = [MARKER, *map(marker_of, beside)]
        return dict(zip(keys, await self._link.read([("GET", key) for key in keys]), strict=True))

    async def _know(self, found: Mapping[str, bytes | None]) -> None:
        """Remember these markers; make those that are missing."""
        for key, one in found.items():
            fresh = chance.token_hex(MARKER_BYTES).encode()
            self._markers[key] = one if one is not None else await self._kept(key, fresh)

    async def _lost(self, found: Mapping[str, bytes | None]) -> None:
        """A new marker, never the old one again: every sidecar has to notice the loss by itself.

        It is known last: where something fails before, the next look finds the loss again, and tells of it.
        """
        self._forget()
        self.lost_data = True
        if self._tags:  # else nobody would find what other nodes of a cluster still keep
            await self._link.run("SADD", SCOPES, *self._tags)
        if self._secret is not None:  # what was fingerprinted with it has to stay comparable
            self._secret = await self._kept(SECRET, self._secret)
        await self._know(found)
        loser = "the store" if self._link.form != "cluster" else "a node of the store"
        self._tell(
            NoticeKind.LOST_DATA,
            f"{loser} lost its data (its marker is gone). Payments in doubt that only it knew are forgotten; "
            "store.journal puts back those that this sidecar saw. Compare recent payments with the platform, and "
            "look at the server's persistence and failover",
        )

    async def _kept(self, key: str, value: bytes) -> bytes:
        """What is kept under the key: this value where there was none."""
        await self._link.run("SET", key, value, "NX")
        found: bytes | None = await self._link.run("GET", key)
        return found if found is not None else value

    async def _read_time(self) -> None:
        asked_ms = self._time.asked_ms()
        seconds, microseconds = await self._link.ask("TIME")
        self._time.sample(int(seconds), int(microseconds), asked_ms=asked_ms)

    def _tell(self, kind: NoticeKind, text: str) -> None:
        self._notify(Notice(kind, f"{self._link.where}: {text}"))
