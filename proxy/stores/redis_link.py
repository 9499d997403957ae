"""The way to Redis: one server, Sentinel or Cluster, over TCP, TLS or a Unix socket; redis-py does the rest.

redis-py repeats a command whose reply was lost, which is switched off here: what is to be repeated is decided
where it is known whether it is safe. Its failures become `Trouble`, which says what it means.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

from redis import exceptions as failures
from redis.asyncio import ConnectionPool, Redis, RedisCluster, Sentinel
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from proxy.stores.redis_rows import Argument
from proxy.stores.redis_trouble import NETWORK, Trouble, trouble_of
from proxy.stores.redis_url import (
    PORT,
    SENTINEL_PORT,
    UNCLEAR,
    RedisUrlError,
    check_own,
    parts_of,
    place_of,
    without_option,
)

CONNECT_MS_MAX = 1_000
NO_RETRY = 0
REDIRECTS = 4  # from node to node, for one command: redis-py's 16 take a fifth of a verb's time
WAIT_OPTION = "wait_replicas"
WAIT_SHARE = 0.5  # of the verb's time limit, for the replicas to confirm


class Link:
    """A client of one Redis, in whichever form the URL names.

    Args: timeout_ms: for an answer (`store.timeout`).
    Raises: RedisUrlError.
    """

    def __init__(self, url: str, *, timeout_ms: int) -> None:
        self._settings: dict[str, Any] = {
            "socket_timeout": timeout_ms / 1000,
            "socket_connect_timeout": min(timeout_ms, CONNECT_MS_MAX) / 1000,
            "retry": Retry(NoBackoff(), NO_RETRY),
            "protocol": 2,
            "client_name": "safepost",
            "decode_responses": False,
        }
        url, replicas = without_option(url, WAIT_OPTION)
        check_own(url, self._settings)
        if replicas is not None and not replicas.isdigit():
            raise RedisUrlError(f"store.url: {WAIT_OPTION}: expected a number of replicas")
        self.wait_replicas = int(replicas or 0)
        self._timeout_ms = timeout_ms
        scheme = url.partition(":")[0]
        if self.wait_replicas and scheme == "redis+cluster":
            raise RedisUrlError(f"store.url: {WAIT_OPTION} is not to be had with Redis Cluster")
        if scheme != "unix":
            self._settings["socket_keepalive"] = True
        self.form = {"redis+sentinel": "sentinel", "redis+cluster": "cluster"}.get(scheme, "server")
        self._cluster: RedisCluster | None = None
        self._sentinel: Sentinel | None = None
        self._is_stale = False
        self._left: ClusterNode | None = None
        try:
            self._make(url)
        except RedisUrlError:
            raise
        except (ValueError, TypeError, failures.RedisError):  # their text may hold a part of the URL
            raise RedisUrlError(UNCLEAR) from None

    def _make(self, url: str) -> None:
        """The client, and a connection that is never made: what its options lack shows now, not at the first call.

        Raises: RedisUrlError, and what redis-py raises.
        """
        if self.form == "cluster":
            self.where = "Redis Cluster"
            self._cluster = self._make_cluster(url)
            for node in self._cluster.startup_nodes:
                node.connection_class(**node.connection_kwargs)
            return
        if self.form == "sentinel":
            self._redis = self._make_sentinel(url)
        else:
            self.where = f"Redis at {place_of(url)}"
            self._redis = Redis.from_url(url, **self._settings)
        pool = self._redis.connection_pool
        pool.connection_class(**pool.connection_kwargs)

    def _make_sentinel(self, url: str) -> Redis:
        parts = parts_of(url, port=SENTINEL_PORT)
        service = parts.path[0] if parts.path else ""
        database = parts.path[1] if len(parts.path) > 1 else "0"
        if not service or not database.isdecimal() or len(parts.path) > 2:
            found = "another path" if service else "no service"
            raise RedisUrlError(f"store.url: expected redis+sentinel://HOSTS/SERVICE[/DB], found {found}")
        self._sentinel = Sentinel(  # type: ignore[no-untyped-call]  # redis-py leaves it untyped
            list(parts.hosts), sentinel_kwargs={**self._settings, **parts.of_sentinels}
        )
        self.where = f"Redis by Sentinel, service {service}"
        client: Redis = self._sentinel.master_for(
            service, db=int(database), **{**self._settings, **parts.options}
        )
        return client

    def _make_cluster(self, url: str) -> RedisCluster:
        parts = parts_of(url, port=PORT)
        if parts.path not in ((), ("0",)):
            raise RedisUrlError("store.url: expected redis+cluster://HOSTS, found a path behind them")
        nodes = [ClusterNode(host, port) for host, port in parts.hosts]
        cluster = RedisCluster(startup_nodes=nodes, **{**self._settings, **parts.options})
        cluster.RedisClusterRequestTTL = REDIRECTS
        return cluster

    @property
    def client(self) -> Redis | RedisCluster:
        return self._cluster if self._cluster is not None else self._redis

    async def run(self, *command: Argument) -> Any:
        """One command on one connection, never repeated.

        Raises: Trouble; redis-py's NoScriptError as it is.
        """
        if self._cluster is not None:
            return await self._run_in_cluster(self._cluster, lambda: command)
        (reply,) = await self._converse(lambda: (command,))
        return reply

    async def commit(self, make: Callable[[], tuple[Argument, ...]]) -> Any:
        """A command whose effect has to reach the replicas that were asked for, too.

        Args: make: called when the connection stands: from then on the command may have been carried out.
        Raises: Trouble, also where too few replicas confirmed in time: then it happened, and a failover may
            undo it. redis-py's NoScriptError as it is.
        """
        if self._cluster is not None:
            return await self._run_in_cluster(self._cluster, make)
        if not self.wait_replicas:
            (reply,) = await self._converse(lambda: (make(),))
            return reply
        patience_ms = int(self._timeout_ms * WAIT_SHARE)
        wait: tuple[Argument, ...] = ("WAIT", self.wait_replicas, patience_ms)
        reply, confirmed = await self._converse(lambda: (make(), wait))
        if confirmed < self.wait_replicas:
            raise Trouble(
                f"only {confirmed} of {self.wait_replicas} replicas confirmed the write ({WAIT_OPTION})",
                is_passing=False,
                was_sent=True,
            )
        return reply

    async def _converse(self, make: Callable[[], tuple[tuple[Argument, ...], ...]]) -> list[Any]:
        """Commands one after another on one connection, in one go; their replies."""
        pool = self._redis.connection_pool
        try:
            connection = await pool.get_connection()  # type: ignore[no-untyped-call]  # a decorator's doing
        except NETWORK as error:
            raise trouble_of(error, was_sent=False) from error
        is_clean = False
        try:
            replies = await self._exchange(connection, make())
            is_clean = True
            return replies
        finally:
            if not is_clean:  # a demoted primary's or a half-read connection is of no more use (O-51)
                await connection.disconnect(nowait=True)
            await pool.release(connection)

    async def _exchange(self, connection: Any, commands: tuple[tuple[Argument, ...], ...]) -> list[Any]:
        """Args: connection: one of redis-py's, untyped."""
        try:
            await connection.send_packed_command(connection.pack_commands(commands))
            return [await connection.read_response() for _ in commands]
        except failures.NoScriptError:
            raise
        except NETWORK as error:
            trouble = trouble_of(error, was_sent=True)
            if trouble.is_passing:
                await self.forget_connections()
            raise trouble from error

    async def _run_in_cluster(self, cluster: RedisCluster, make: Callable[[], tuple[Argument, ...]]) -> Any:
        try:
            await (
                cluster.initialize()
            )  # looks for the nodes again where a command was lost; nothing has left yet
        except NETWORK as error:
            raise trouble_of(error, was_sent=False) from error
        try:
            return await cluster.execute_command(*make())
        except failures.NoScriptError:
            raise
        except NETWORK as error:
            await self._ask_others(cluster, str(getattr(error, "last_failed_node_name", "")))
            raise trouble_of(error, was_sent=True) from error

    async def _ask_others(self, cluster: RedisCluster, failed: str) -> None:
        """Let the next look for the nodes not begin at the one that failed.

        One that is frozen would take all the time that a verb has. What the others say of it puts it back.
        """
        known = cluster.nodes_manager.startup_nodes
        if failed in known and len(known) > 1:
            before, self._left = self._left, known.pop(failed)
            for one in (before, self._left):  # again: a look for the nodes may have been at it just then
                if one is not None:
                    await _closed(one.disconnect())

    async def ask(self, *command: Argument, node: ClusterNode | None = None) -> Any:
        """A question about the server itself; the answer as redis-py reads it.

        Args: node: of a cluster; None: any.
        Raises: Trouble.
        """
        try:
            if self._cluster is not None:
                await self._cluster.initialize()
                one = node or self._cluster.get_default_node()
                return await self._cluster.execute_command(*command, target_nodes=one)
            client: Any = self._redis  # redis-py leaves this method of it untyped
            return await client.execute_command(*command)
        except NETWORK as error:
            raise trouble_of(error, was_sent=False) from error

    async def primaries(self) -> Sequence[ClusterNode | None]:
        """Whom to `ask` about what each server has of its own: a cluster's nodes, else the one server.

        Raises: Trouble.
        """
        if self._cluster is None:
            return (None,)
        try:
            await self._cluster.initialize()
        except NETWORK as error:
            raise trouble_of(error, was_sent=False) from error
        return self._cluster.get_primaries()

    async def refresh(self) -> None:
        """Look for a cluster's nodes again where reads found one away: redis-py does so for commands alone.

        Raises: Trouble.
        """
        if self._cluster is None or not self._is_stale:
            return
        try:
            await self._cluster.nodes_manager.initialize()
        except NETWORK as error:
            raise trouble_of(error, was_sent=False) from error
        self._is_stale = False

    async def read(self, commands: Sequence[tuple[Argument, ...]]) -> list[Any]:
        """Many reads in one round trip (one for each node of a cluster); their answers in order.

        Raises: Trouble.
        """
        if not commands:
            return []
        try:
            pipeline = (
                self._cluster.pipeline()
                if self._cluster is not None
                else self._redis.pipeline(transaction=False)
            )
            for command in commands:
                pipeline.execute_command(*command)
            answers: list[Any] = await pipeline.execute(raise_on_error=True)
            return answers
        except asyncio.CancelledError:  # out of time
            self._is_stale = True
            raise
        except NETWORK as error:
            self._is_stale = True
            raise trouble_of(error, was_sent=False) from error

    async def forget_connections(self) -> None:
        """Leave the server that turned out to be a replica, or away; the next command finds the primary."""
        await _closed(self._redis.connection_pool.disconnect(inuse_connections=False))

    def listening_client(self) -> Redis:
        """A client of one server to subscribe at; messages reach every node of a cluster."""
        if self._cluster is None:
            return self._redis
        node = self._cluster.get_random_node()
        pool: Any = ConnectionPool(connection_class=node.connection_class, **node.connection_kwargs)
        return Redis.from_pool(pool)

    async def close(self) -> None:
        if self._cluster is not None:
            # By itself it closes nothing where a lost command made it plan to look for the nodes anew.
            await _closed(self._cluster.aclose())
            for known in ("nodes_cache", "startup_nodes"):
                await _closed(self._cluster.nodes_manager.aclose(known))
            if self._left is not None:
                await _closed(self._left.disconnect())
            return
        await _closed(self._redis.aclose())
        if self._sentinel is not None:
            for one in self._sentinel.sentinels:
                await _closed(one.aclose())


async def _closed(closing: Awaitable[None]) -> None:
    """TLS waits for the other side's farewell, which a frozen server owes; the connection is gone without it."""
    with suppress(*NETWORK):
        await closing
