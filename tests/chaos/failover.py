"""A Redis that fails over: its primary dies, Sentinel promotes the replica, and the dead one comes back as one."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, Final

from tests.stores.redis_server import SentinelTrio, Server

DURABLE: Final = ("--appendonly", "yes", "--appendfsync", "always")
PATIENCE: Final = 4  # times the server's own five seconds, for an election on a busy machine


class FailoverPair:
    """Two servers and three sentinels. Its methods block, so they are for a thread."""

    def __init__(self, directory: Path) -> None:
        self._trio = SentinelTrio(directory)
        self._pair = (self._trio.primary, self._trio.replica)
        for server in self._pair:
            server.options += DURABLE

    def start(self) -> FailoverPair:
        self._trio.start()
        return self

    @property
    def url(self) -> str:
        """A write counts once the replica has it: else a failover may lose what was acknowledged (D6)."""
        return f"{self._trio.url}?wait_replicas=1"

    def fail_over(self) -> bool:
        """Kill the primary and bring it back as a replica; False where no other was elected in time."""
        dead = next(one for one in self._pair if one.port == self._primary_port())
        dead.kill()
        is_elected = self._waited(self._trio.sentinels[0], lambda _: self._primary_port() != dead.port)
        if "--replicaof" in dead.options:
            at = dead.options.index("--replicaof")
            del dead.options[at : at + 2]
        if is_elected:
            dead.options += ["--replicaof", f"127.0.0.1 {self._primary_port()}"]
        dead.start()
        if is_elected:
            self._waited(dead, lambda client: client.info("replication").get("master_link_status") == "up")
        return is_elected

    def _primary_port(self) -> int:
        with contextlib.closing(self._trio.sentinels[0].client()) as client:
            _, port = client.execute_command("SENTINEL GET-MASTER-ADDR-BY-NAME", "pay")
            return int(port)

    def _waited(self, server: Server, holds: Any) -> bool:
        for _ in range(PATIENCE):
            with contextlib.suppress(AssertionError):
                server.wait_until(holds)
                return True
        return False

    def stop(self) -> None:
        self._trio.stop()
