"""What a failure of Redis means: redis-py's errors as `Trouble`.

Never repeats what redis-py says of a URL or a command: that may hold a password or a caller's key (F2, D4).
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from dataclasses import dataclass

from redis import exceptions as failures
from redis.asyncio.sentinel import MasterNotFoundError

from proxy.ports import StoreUnavailable


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
    _Refusal(
        "TRYAGAIN",
        "the cluster is moving these keys to another node, and serves them again when it has",
        is_passing=True,
    ),
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
    (failures.ClusterError, "TRYAGAIN"),  # each node that was asked named another one: none did anything
    (failures.TryAgainError, "TRYAGAIN"),
    (failures.OutOfMemoryError, "OOM"),
    (failures.NoPermissionError, "NOPERM"),
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
    """What the failure means."""
    if isinstance(error, failures.RedisClusterException):
        below = (
            error.__cause__ or error.__context__
        )  # why the last node that was asked did not tell the slots
        if isinstance(below, Exception):
            return trouble_of(below, was_sent=was_sent)
    beginning = _beginning_of(error)
    for refusal in _REFUSALS:
        if beginning.startswith(refusal.beginning):
            return Trouble(refusal.text, is_passing=refusal.is_passing, was_sent=False)
    if isinstance(error, failures.TimeoutError | TimeoutError):
        return Trouble("the server does not answer in time", is_passing=True, was_sent=was_sent)
    if isinstance(error, _LOST):
        return _lost(error, was_sent=was_sent)
    if isinstance(error, failures.ResponseError):
        return Trouble(f"the server refuses: {str(error)[:200]}", is_passing=False, was_sent=False)
    return Trouble(f"{type(error).__name__}", is_passing=True, was_sent=was_sent)


def _beginning_of(error: Exception) -> str:
    if isinstance(error, failures.AuthenticationError):
        return "NOAUTH" if "required" in str(error) else "WRONGPASS"
    return next((code for kind, code in _BY_CLASS if isinstance(error, kind)), str(error).partition(" ")[0])


def _lost(error: Exception, *, was_sent: bool) -> Trouble:
    """Why, as far as the operating system and TLS know; neither knows a secret."""
    if isinstance(error, MasterNotFoundError):
        text = (
            "no sentinel that was asked names a primary: all are away or refuse the password "
            "(sentinel_password), or they don't know the service"
        )
        return Trouble(text, is_passing=True, was_sent=False)
    for one in _chain(error):
        if isinstance(one, ssl.SSLCertVerificationError):
            text = (
                f"the server's certificate does not verify (ssl_ca_certs): {one.verify_message.rstrip('.')}"
            )
            return Trouble(text, is_passing=False, was_sent=False)
        if isinstance(one, ssl.SSLError):
            why = one.reason or "cut off"
            return Trouble(f"TLS fails: {why}", is_passing="_ALERT_" not in why, was_sent=was_sent)
        if isinstance(one, OSError) and one.strerror:
            text = f"the connection is lost or refused: {one.strerror}"
            return Trouble(text, is_passing=True, was_sent=was_sent)
    return Trouble("the connection is lost or refused", is_passing=True, was_sent=was_sent)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
