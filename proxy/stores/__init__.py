"""Durable stores behind the one store port, by the scheme of `store.url`."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from proxy.ports import Clock, Store
from proxy.stores.memory import MemoryStore
from proxy.stores.notices import Notice, NoticeKind, Notify, unheard
from proxy.stores.redis import RedisStore
from proxy.stores.redis_link import RedisUrlError
from proxy.stores.sqlite import SqliteStore

__all__ = ["SCHEMES", "Notice", "NoticeKind", "Notify", "StoreUrlError", "make_store", "sqlite_path"]


class StoreUrlError(ValueError):
    """`store.url` names no store that Safepost knows. Never repeats the URL: it may hold a password (F2)."""


class Maker(Protocol):
    """Makes one kind of store; it is opened later, in the process that uses it."""

    def __call__(
        self, url: str, *, clock: Clock, timeout_ms: int, secret: bytes | None, notify: Notify
    ) -> Store: ...


def sqlite_path(url: str) -> Path:
    """The file of a `sqlite:` URL: `sqlite:safepost.db`, `sqlite:/var/lib/s.db`, `sqlite:///var/lib/s.db`.

    Raises: StoreUrlError.
    """
    place = url.removeprefix("sqlite:")
    if place.startswith("//"):
        host, slash, rest = place.removeprefix("//").partition("/")
        if host or not slash:
            raise StoreUrlError("store.url: expected sqlite:PATH, found a host name where the path begins")
        place = f"/{rest.lstrip('/')}"
    if not place or place.startswith(":memory:") or "?" in place:
        raise StoreUrlError("store.url: expected sqlite:PATH with the path of a file, without options")
    return Path(place)


def _sqlite(url: str, *, clock: Clock, timeout_ms: int, secret: bytes | None, notify: Notify) -> Store:
    return SqliteStore(sqlite_path(url), clock=clock, timeout_ms=timeout_ms, configured=secret, notify=notify)


def _redis(url: str, *, clock: Clock, timeout_ms: int, secret: bytes | None, notify: Notify) -> Store:
    try:
        return RedisStore(url, clock=clock, timeout_ms=timeout_ms, configured=secret, notify=notify)
    except RedisUrlError as error:
        raise StoreUrlError(str(error)) from error


def _memory(url: str, *, clock: Clock, timeout_ms: int, secret: bytes | None, notify: Notify) -> Store:
    return MemoryStore(clock, secret=secret)


SCHEMES: dict[str, Maker] = {
    "sqlite": _sqlite,
    "redis": _redis,
    "rediss": _redis,
    "unix": _redis,
    "redis+sentinel": _redis,
    "redis+cluster": _redis,
    "memory": _memory,  # tests only: nothing outlives the process
}


def make_store(
    url: str,
    *,
    clock: Clock,
    timeout_ms: int,
    secret: bytes | None = None,
    notify: Notify = unheard,
) -> Store:
    """The store that the URL names, not yet opened.

    Args: timeout_ms: per verb (`store.timeout`). secret: for fingerprints (`store.secret`, P1).
        notify: hears what happens to the store while it is in use.
    Raises: StoreUrlError.
    """
    scheme = url.partition(":")[0]
    maker = SCHEMES.get(scheme)
    if maker is None:
        known = ", ".join(name for name in SCHEMES if name != "memory")
        raise StoreUrlError(
            f"store.url: expected a URL that begins with one of {known}, found {scheme[:20]!r}:"
        )
    return maker(url, clock=clock, timeout_ms=timeout_ms, secret=secret, notify=notify)
