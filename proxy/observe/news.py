"""Where announcements go: into this process's ring, and to the worker that serves the console (U7, A2)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from proxy.observe.announcements import Announcements
from proxy.observe.counts import Counts
from proxy.observe.relay import Relay
from proxy.ports import Clock

SERVES = 0  # the worker that serves the admin listener


@dataclass(frozen=True, slots=True)
class Share:
    """Where the workers of one host keep their counts for each other, and which of them this is."""

    folder: Path
    worker: int


class News:
    """Announces. `ring` is what the event stream reads."""

    def __init__(self, clock: Clock, counts: Counts, share: Share | None) -> None:
        self._clock = clock
        self._counts = counts
        self.ring = Announcements(first=clock.wall_ms())
        self._relay = (
            Relay(share.folder, serves=share.worker == SERVES, deliver=self._take_in) if share else None
        )

    def announce(self, kind: str, data: dict[str, object]) -> None:
        at_ms = self._clock.wall_ms()
        self._take_in(kind, data, at_ms)
        if self._relay is not None and not self._relay.send(kind, data, at_ms):
            self._counts.add("announcements_lost_total")

    def listen(self) -> None:
        """Take in what other workers announce. Needs a running loop."""
        if self._relay is not None:
            self._relay.listen()

    def close(self) -> None:
        self.ring.close()
        if self._relay is not None:
            self._relay.close()

    def _take_in(self, kind: str, data: dict[str, object], at_ms: int) -> None:
        self.ring.announce(kind, data, at_ms=at_ms)
