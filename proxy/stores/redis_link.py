"""The way to Redis: one server, Sentinel or Cluster, over TCP, TLS or a Unix socket; redis-py does the rest.

redis-py repeats a command whose reply was lost, which is switched off here: what is to be repeated is decided
where it is known whether it is safe. Its failures become `Trouble`, which says what it means.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from redis import exceptions as failures
from redis.asyncio import Redis, RedisCluster, Sentinel
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from proxy.ports import StoreUnavailable
from proxy.stores.redis_rows import Argument

CONNECT_MS_MAX = 1_000
NO_RETRY = 0
WAIT_OPTION = "wait_replicas"
WAIT_SHARE = 0.5  # of the verb's time limit, for the replicas to confirm
PORT = 6379
SENTINEL_PORT = 26379


class Trouble(Exception):
    """Redis did not do a command, or did not say that it did.

    Args: is_passing: worth another try within the time limit.
        was_sent: the command may have been carried out all the same.
    """

    def __init__(self, text: str, *, is_passing: bool, was_sent: bool) -> None:
        super().__init__(text)
        self.is_passing = is_passing
        self.was_sent = was_sent

    def as_failure(self, where: str, *, may_have_happened: bool) -> StoreUnavailable:
        return StoreUnavailable(f"{where}: {self}", may_have_happened=may_have_happened)


@dataclass(frozen=True, slots=True)
class _Refusal:
    """An error reply that Redis gives before it does anything."""

    beginning: str
    text: str
    is_passing: bool


_REFUSALS = (
    _Refusal("READONLY", "this server is a replica now; looking for the primary", is_passing=True),
    _Refusal("LOADING", "the server is still loading its data", is_passing=True),
    _Refusal("BUSY", "a script of another program keeps the server busy", is_passing=True),
    _Refusal("MASTERDOWN", "the server lost its primary", is_passing=True),
    _Refusal("CLUSTERDOWN", "the cluster does not serve all its slots", is_passing=True),
    _Refusal("TRYAGAIN", "the cluster is moving these keys", is_passing=True),
    _Refusal(
        "OOM",
        "the server's memory is full (maxmemory). Free memory or raise the limit; calls go on by themselves",
        is_passing=False,
    ),
    _Refusal(
        "MISCONF",
        "the server can't save to its disk and refuses writes. Look at its log and its disk",
        is_passing=False,
    ),
    _Refusal(
        "NOREPLICAS",
        "too few replicas are connected (min-replicas-to-write), so the server refuses writes",
        is_passing=False,
    ),
    _Refusal("NOAUTH", "the server asks for a password; set it in store.url", is_passing=False),
    _Refusal("WRONGPASS", "the server refuses the user or password of store.url", is_passing=False),
    _Refusal(
        "NOPERM",
        "the server's ACL does not let this user run a command; it needs keys and channels safepost:* and the "
        "commands of the store (docs: operating)",
        is_passing=False,
    ),
)
_BY_CLASS: tuple[tuple[type[Exception], str], ...] = (
    (failures.ReadOnlyError, "READONLY"),
    (failures.BusyLoadingError, "LOADING"),
    (failures.MasterDownError, "MASTERDOWN"),
    (failures.ClusterDownError, "CLUSTERDOWN"),
    (failures.TryAgainError, "TRYAGAIN"),
    (failures.OutOfMemoryError, "OOM"),
    (failures.NoPermissionError, "NOPERM"),
    (failures.AuthenticationError, "WRONGPASS"),
    (failures.AuthenticationWrongNumberOfArgsError, "NOAUTH"),
)


_LOST = (
    failures.ConnectionError,
    failures.RedisClusterException,
    OSError,
    asyncio.IncompleteReadError,
    RuntimeError,
    AttributeError,
)
"""How a lost connection shows. RedisClusterException, which is no RedisError, says that no node of a cluster can
be reached, or that none lets this user see the slots. RuntimeError is uvloop's word for a write to one that was
just reset, where asyncio says nothing and fails the next read; AttributeError is redis-py's stumble over one that
another task drops while it is being taken out of the pool."""
NETWORK = (failures.RedisError, *_LOST)


def trouble_of(error: Exception, *, was_sent: bool) -> Trouble:
    """What the failure means. Never repeats what redis-py says of the URL or the command."""
    beginning = next(
        (code for kind, code in _BY_CLASS if isinstance(error, kind)), str(error).partition(" ")[0]
    )
    for refusal in _REFUSALS:
        if beginning.startswith(refusal.beginning):
            return Trouble(refusal.text, is_passing=refusal.is_passing, was_sent=False)
    if isinstance(error, failures.TimeoutError | TimeoutError):
        return Trouble("the server does not answer in time", is_passing=True, was_sent=was_sent)
    if isinstance(error, _LOST):
        return Trouble("the connection is lost or refused", is_passing=True, was_sent=was_sent)
    if isinstance(error, failures.ResponseError):
        return Trouble(f"the server refuses: {str(error)[:200]}", is_passing=False, was_sent=False)
    return Trouble(f"{type(error).__name__}", is_passing=True, was_sent=was_sent)


class RedisUrlError(ValueError):
    """A Redis URL that can't be understood. Never repeats it, since it may hold a password (F2)."""


@dataclass(frozen=True, slots=True)
class _Parts:
    """A URL of several hosts: `redis+sentinel://user:secret@h1:26379,h2:26379/service/0?tls=true`."""

    hosts: tuple[tuple[str, int], ...]
    username: str | None
    password: str | None
    path: tuple[str, ...]
    options: dict[str, str]


def _parts(url: str, *, port: int) -> _Parts:
    split = urlsplit(url)
    credentials, _, hosts = split.netloc.rpartition("@")
    username, _, password = credentials.partition(":")
    pairs: list[tuple[str, int]] = []
    for host in hosts.split(","):
        name, colon, number = host.rpartition(":") if not host.endswith("]") else (host, "", "")
        if not colon:
            name, number = host, str(port)
        if not name or not number.isdigit():
            raise RedisUrlError("store.url: expected HOST:PORT, several with commas, after the //")
        pairs.append((name.strip("[]"), int(number)))
    return _Parts(
        tuple(pairs),
        unquote(username) or None,
        unquote(password) or None,
        tuple(part for part in split.path.split("/") if part),
        dict(parse_qsl(split.query)),
    )


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
        if self.form == "cluster":
            self._cluster = self._make_cluster(url)
            self.where = "Redis Cluster"
        elif self.form == "sentinel":
            self._redis = self._make_sentinel(url)
        else:
            self._redis = self._make_single(url)

    def _make_single(self, url: str) -> Redis:
        split = urlsplit(url)
        try:
            place = split.path if split.scheme == "unix" else f"{split.hostname}:{split.port or PORT}"
            self.where = f"Redis at {place}"
            return Redis.from_url(url, **self._settings)
        except (ValueError, TypeError):  # their text may hold a part of the URL
            text = "store.url: redis-py can't understand this Redis URL or its options"
            raise RedisUrlError(text) from None

    def _make_sentinel(self, url: str) -> Redis:
        parts = _parts(url, port=SENTINEL_PORT)
        if not parts.path:
            raise RedisUrlError("store.url: expected redis+sentinel://HOSTS/SERVICE[/DB], found no service")
        settings = {**self._settings, **_options(parts)}
        asked = {key: settings.pop(f"sentinel_{key}", None) for key in ("username", "password")}
        self._sentinel = Sentinel(  # type: ignore[no-untyped-call]  # redis-py leaves it untyped
            list(parts.hosts), sentinel_kwargs={**self._settings, **{k: v for k, v in asked.items() if v}}
        )
        self.where = f"Redis by Sentinel, service {parts.path[0]}"
        client: Redis = self._sentinel.master_for(
            parts.path[0], db=int(parts.path[1]) if len(parts.path) > 1 else 0, **settings
        )
        return client

    def _make_cluster(self, url: str) -> RedisCluster:
        parts = _parts(url, port=PORT)
        nodes = [ClusterNode(host, port) for host, port in parts.hosts]
        return RedisCluster(startup_nodes=nodes, **{**self._settings, **_options(parts)})

    @property
    def client(self) -> Redis | RedisCluster:
        return self._cluster if self._cluster is not None else self._redis

    async def run(self, *command: Argument) -> Any:
        """One command on one connection, never repeated.

        Raises: Trouble; redis-py's NoScriptError as it is.
        """
        if self._cluster is not None:
            return await self._run_in_cluster(self._cluster, command)
        (reply,) = await self._converse(lambda: (command,))
        return reply

    async def commit(self, make: Callable[[], tuple[Argument, ...]]) -> Any:
        """A command whose effect has to reach the replicas that were asked for, too.

        Args: make: called when the connection stands: from then on the command may have been carried out.
        Raises: Trouble, also where too few replicas confirmed in time: then it happened, and a failover may
            undo it. redis-py's NoScriptError as it is.
        """
        if self._cluster is not None:
            return await self._run_in_cluster(self._cluster, make())
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

    async def _run_in_cluster(self, cluster: RedisCluster, command: Sequence[Argument]) -> Any:
        try:
            return await cluster.execute_command(*command)
        except failures.NoScriptError:
            raise
        except NETWORK as error:
            raise trouble_of(error, was_sent=True) from error

    async def ask(self, *command: Argument) -> Any:
        """A question about the server itself, to any node; the answer as redis-py reads it.

        Raises: Trouble.
        """
        try:
            if self._cluster is not None:
                await self._cluster.initialize()
                node = self._cluster.get_default_node()
                return await self._cluster.execute_command(*command, target_nodes=node)
            client: Any = self._redis  # redis-py leaves this method of it untyped
            return await client.execute_command(*command)
        except NETWORK as error:
            raise trouble_of(error, was_sent=False) from error

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
        except NETWORK as error:
            raise trouble_of(error, was_sent=False) from error

    async def forget_connections(self) -> None:
        """Leave the server that turned out to be a replica, or away; the next command finds the primary."""
        await self._redis.connection_pool.disconnect(inuse_connections=False)

    def listening_client(self) -> Redis:
        """A client of one server to subscribe at; messages reach every node of a cluster."""
        if self._cluster is None:
            return self._redis
        node = self._cluster.get_random_node()
        settings = {k: v for k, v in node.connection_kwargs.items() if k in _LISTENING}
        return Redis(host=node.host, port=int(node.port), **settings)

    async def close(self) -> None:
        if self._cluster is not None:
            # By itself it closes nothing where a lost command made it plan to look for the nodes anew.
            await self._cluster.aclose()
            for known in ("nodes_cache", "startup_nodes"):
                await self._cluster.nodes_manager.aclose(known)
            return
        await self._redis.aclose()
        if self._sentinel is not None:
            for one in self._sentinel.sentinels:
                await one.aclose()


_LISTENING = frozenset(
    {"username", "password", "ssl", "ssl_ca_certs", "ssl_cert_reqs", "ssl_certfile", "ssl_keyfile"}
)


def _options(parts: _Parts) -> dict[str, Any]:
    """The credentials and TLS settings of a URL with several hosts, as redis-py names them."""
    options: dict[str, Any] = {k: v for k, v in parts.options.items() if k != "tls"}
    if parts.options.get("tls", "false").lower() in ("true", "1", "yes"):
        options["ssl"] = True
    if parts.username:
        options["username"] = parts.username
    if parts.password:
        options["password"] = parts.password
    return options


def without_option(url: str, name: str) -> tuple[str, str | None]:
    """The URL without one of Safepost's own options, and that option's value."""
    split = urlsplit(url)
    pairs = parse_qsl(split.query, keep_blank_values=True)
    value = next((v for k, v in pairs if k == name), None)
    query = urlencode([(k, v) for k, v in pairs if k != name])
    return urlunsplit(split._replace(query=query)), value
