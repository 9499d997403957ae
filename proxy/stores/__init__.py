"""Durable stores behind the one store port, by the scheme of `store.url`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from proxy.ports import Clock, Store
from proxy.stores.memory import MemoryStore
from proxy.stores.notices import Notice, NoticeKind, Notify, unheard
from proxy.stores.redis import RedisStore
from proxy.stores.redis_url import RedisUrlError
from proxy.stores.sqlite import SqliteStore

__all__ = ["SCHEMES", "Notice", "NoticeKind", "Notify", "StoreUrlError", "make_store", "sqlite_path"]


class StoreUrlError(ValueError):
    """`store.url` names no store that Safepost knows. Never repeats the URL: it may hold a password (F2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a store is made with besides its URL."""

    clock: Clock
    timeout_ms: int
    secret: bytes | None
    journal: Path | None
    notify: Notify


Maker = Callable[[str, Terms], Store]
"""Makes one kind of store; it is opened later, in the process that uses it."""


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


def _sqlite(url: str, terms: Terms) -> Store:
    if terms.journal is not None:
        raise StoreUrlError("store.journal: for Redis alone; SQLite's own file is the journal")
    return SqliteStore(
        sqlite_path(url),
        clock=terms.clock,
        timeout_ms=terms.timeout_ms,
        configured=terms.secret,
        notify=terms.notify,
    )


def _redis(url: str, terms: Terms) -> Store:
    try:
        return RedisStore(
            url,
            clock=terms.clock,
            timeout_ms=terms.timeout_ms,
            configured=terms.secret,
            journal=terms.journal,
            notify=terms.notify,
        )
    except RedisUrlError as error:
        raise StoreUrlError(str(error)) from error


def _memory(url: str, terms: Terms) -> Store:
    return MemoryStore(terms.clock, secret=terms.secret)


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
    journal: Path | None = None,
    notify: Notify = unheard,
) -> Store:
    """The store that the URL names, not yet opened.

    Args: timeout_ms: per verb (`store.timeout`). secret: for fingerprints (`store.secret`, P1).
        journal: for Redis, a local file of unresolved operations (`store.journal`, D6).
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
    terms = Terms(clock=clock, timeout_ms=timeout_ms, secret=secret, journal=journal, notify=notify)
    return maker(url, terms)
