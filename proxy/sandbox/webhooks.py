"""The platform's events: made with each change, signed, delivered in order, and sent again on request."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from dataclasses import dataclass, field
from typing import Final

from aiohttp import ClientError, ClientSession, ClientTimeout

from proxy.sandbox.objects import Clock, Json

SIGNATURE_HEADER: Final = "Webhook-Signature"
TRIES_MAX: Final = 3
TRY_TIMEOUT_S: Final = 5.0
PAUSE_S: Final = 0.2
"""Between two tries of one delivery. The platform names no figures; short ones keep a test short."""


@dataclass(slots=True)
class Event:
    """One thing that happened. `deliveries` says how each try of sending it ended."""

    id: str
    type: str
    created: int
    object: Json
    deliveries: list[str] = field(default_factory=list)

    def view(self) -> Json:
        return {"id": self.id, "type": self.type, "created": self.created, "data": {"object": self.object}}


def signature(secret: str, body: bytes, *, unix_s: int) -> str:
    """`t=UNIX,v1=HEX`: HMAC-SHA256 over `t.BODY`."""
    mac = hmac.new(secret.encode(), str(unix_s).encode() + b"." + body, hashlib.sha256)
    return f"t={unix_s},v1={mac.hexdigest()}"


class Webhooks:
    """The events of this run, and the one sender that delivers them in order.

    Args: url: where events go; None keeps them here, to be sent on request once there is an address.
        automatic: send each event as it happens; False leaves it to `send`, in any order.
    """

    def __init__(self, clock: Clock, *, url: str | None, secret: str | None, automatic: bool) -> None:
        self._clock = clock
        self.url = url
        self.secret = secret
        self.automatic = automatic
        self.events: list[Event] = []
        self._queue: asyncio.Queue[Event] = asyncio.Queue()
        self._sender: asyncio.Task[None] | None = None

    def happened(self, kind: str, view: Json) -> None:
        number = len(self.events) + 1
        event = Event(f"evt_demo_{number:03d}", kind, self._clock.wall_ms() // 1000, view)
        self.events.append(event)
        if self.automatic:
            self._enqueue(event)

    def send(self, *event_ids: str) -> list[str]:
        """Send events again, in the order given; an id may come twice.

        Returns: the ids that are not known; nothing is sent if there are any.
        """
        known = {event.id: event for event in self.events}
        missing = [event_id for event_id in event_ids if event_id not in known]
        if not missing:
            for event_id in event_ids:
                self._enqueue(known[event_id])
        return missing

    async def delivered(self) -> None:
        """Wait until everything that was to be sent has been tried."""
        await self._queue.join()

    def reset(self) -> None:
        self.events.clear()

    async def close(self) -> None:
        if self._sender is not None:
            self._sender.cancel()
            await asyncio.wait([self._sender])

    def _enqueue(self, event: Event) -> None:
        if self.url is None:
            return
        self._queue.put_nowait(event)
        if self._sender is None:
            self._sender = asyncio.get_running_loop().create_task(self._send_all(), name="sandbox webhooks")

    async def _send_all(self) -> None:
        async with ClientSession(timeout=ClientTimeout(total=TRY_TIMEOUT_S), trust_env=False) as session:
            while True:
                event = await self._queue.get()
                await self._deliver(session, event)
                self._queue.task_done()

    async def _deliver(self, session: ClientSession, event: Event) -> None:
        body = json.dumps(event.view(), separators=(",", ":")).encode()
        for number in range(1, TRIES_MAX + 1):
            headers = {"Content-Type": "application/json"}
            if self.secret is not None:
                headers[SIGNATURE_HEADER] = signature(self.secret, body, unix_s=self._clock.wall_ms() // 1000)
            try:
                async with session.post(
                    self.url or "", data=body, headers=headers, allow_redirects=False
                ) as answer:
                    event.deliveries.append(str(answer.status))
                    if answer.status < 300:
                        return
            except (ClientError, TimeoutError, OSError) as lost:
                event.deliveries.append(type(lost).__name__)
            if number < TRIES_MAX:
                await asyncio.sleep(PAUSE_S)
