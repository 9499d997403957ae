"""A Redis that fails over: a primary dies, its replica is promoted, and the dead one comes back as a replica.

Either Sentinel promotes it, or the other primaries of a Redis Cluster do.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, Final, Protocol, Self

from tests.stores.redis_server import ClusterTrio, SentinelTrio, Server, free_port, redis_binary

DURABLE: Final = ("--appendonly", "yes", "--appendfsync", "always")


class Fleet(Protocol):
    """Servers of which one may die. Its methods block, so they are for a thread."""

    @property
    def url(self) -> str: ...

    def start(self) -> Self: ...

    def fail_over(self) -> bool:
        """Kill a primary and bring it back as a replica; False where no other was elected in time."""

    def stop(self) -> None: ...


class FailoverPair:
    """Two servers and three sentinels."""

    def __init__(self, directory: Path) -> None:
        self._trio = SentinelTrio(directory)
        self._pair = (self._trio.primary, self._trio.replica)
        for server in self._pair:
            server.options += DURABLE

    def start(self) -> Self:
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
        is_elected = waited(self._trio.sentinels[0], lambda _: self._primary_port() != dead.port)
        if "--replicaof" in dead.options:
            at = dead.options.index("--replicaof")
            del dead.options[at : at + 2]
        if is_elected:
            dead.options += ["--replicaof", f"127.0.0.1 {self._primary_port()}"]
        dead.start()
        if is_elected:  # a second election, of one that was just back, may have made it the primary again
            waited(dead, lambda client: follows(client) or self._primary_port() == dead.port)
        return is_elected

    def _primary_port(self) -> int:
        with contextlib.closing(self._trio.sentinels[0].client()) as client:
            _, port = client.execute_command("SENTINEL GET-MASTER-ADDR-BY-NAME", "pay")
            return int(port)

    def stop(self) -> None:
        self._trio.stop()


PAUSE_MS: Final = 10_000


class FailoverCluster:
    """Three primaries that share the slots, and a replica for each.

    Args: tag: a hash tag. What is kept under it is served by the node that dies. may_lose: that dies before its
        replica has all; a Cluster's clients can't wait for that, and on a busy machine it falls behind.
    """

    def __init__(self, directory: Path, *, tag: str, may_lose: bool = False) -> None:
        self._tag = tag
        self._may_lose = may_lose
        self._trio = ClusterTrio(directory)
        self._replicas = [
            Server(
                directory / f"replica{n}",
                *self._trio.nodes[0].options[:-2],
                "--cluster-port",
                str(free_port()),
            )
            for n in range(len(self._trio.nodes))
        ]
        self.nodes = [*self._trio.nodes, *self._replicas]
        for node in self.nodes:
            node.binary = redis_binary()
            node.options += [*DURABLE, "--repl-diskless-sync-delay", "0"]

    def start(self) -> Self:
        self._trio.start()
        first, known = self._trio.nodes[0], len(self.nodes)
        port_and_bus = (str(first.port), first.options[first.options.index("--cluster-port") + 1])
        for replica in self._replicas:
            replica.start()
            _asked(replica, "CLUSTER", "MEET", "127.0.0.1", *port_and_bus)
        for node in self.nodes:
            node.wait_until(
                lambda client: client.execute_command("CLUSTER INFO")["cluster_known_nodes"] == str(known)
            )
        for primary, replica in zip(self._trio.nodes, self._replicas, strict=True):
            _asked(replica, "CLUSTER", "REPLICATE", _asked(primary, "CLUSTER MYID").decode())
            replica.wait_until(follows)
        return self

    @property
    def url(self) -> str:
        return self._trio.url

    def primary(self) -> Server:
        """The node that serves the tag's slot now, as the first node that answers has it."""
        slot = int(_asked(self.nodes[0], "CLUSTER KEYSLOT", f"{{{self._tag}}}"))
        return next(one for one in self.nodes if one.port == self._port_of(slot, self.nodes[0]))

    def _port_of(self, slot: int, seen_by: Server) -> int | None:
        with contextlib.closing(seen_by.client()) as client:
            for first, last, primary, *_ in client.execute_command("CLUSTER SLOTS"):
                if int(first) <= slot <= int(last):
                    return int(primary[1])
        return None

    def fail_over(self) -> bool:
        slot = int(_asked(self.nodes[0], "CLUSTER KEYSLOT", f"{{{self._tag}}}"))
        dead = self.primary()
        if not self._may_lose:
            _asked(dead, "CLIENT", "PAUSE", str(PAUSE_MS), "WRITE")
            waited(dead, _is_followed)
        dead.kill()
        other = next(one for one in self.nodes if one is not dead)
        is_elected = waited(other, lambda _: self._port_of(slot, other) not in (None, dead.port))
        dead.start()
        return is_elected and waited(
            dead, lambda client: follows(client) or self._port_of(slot, other) == dead.port
        )

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()


def _is_followed(client: Any) -> bool:
    """A primary whose replica has all that it has."""
    told = client.info("replication")
    return bool(told["connected_slaves"]) and told["slave0"]["offset"] >= told["master_repl_offset"]


def follows(client: Any) -> bool:
    """A replica that has caught up with its primary."""
    return bool(client.info("replication").get("master_link_status") == "up")


def waited(server: Server, holds: Any) -> bool:
    with contextlib.suppress(AssertionError):
        server.wait_until(holds)
        return True
    return False


def _asked(server: Server, *command: str) -> Any:
    with contextlib.closing(server.client()) as client:
        return client.execute_command(*command)
