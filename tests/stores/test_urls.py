"""Which store a URL names, and what is said of one that names none."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.clock import SystemClock
from proxy.stores import StoreUrlError, make_store, sqlite_path
from proxy.stores.memory import MemoryStore
from proxy.stores.redis import RedisStore
from proxy.stores.sqlite import SqliteStore

CLOCK = SystemClock()


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("sqlite:safepost.db", SqliteStore),
        ("memory:", MemoryStore),
        ("redis://h", RedisStore),
        ("redis://:secret@h:6380/2", RedisStore),
        ("rediss://u:p@h:6380/0?ssl_cert_reqs=none", RedisStore),
        ("unix:///run/redis.sock?db=1", RedisStore),
        ("redis+sentinel://u:p@h1,h2:26380/pay/1?sentinel_password=x&tls=true", RedisStore),
        ("redis+cluster://u:p@h1:7000,[::1]:7001?tls=yes", RedisStore),
        ("redis://h/0?wait_replicas=1", RedisStore),
    ],
)
async def test_url_names_its_store(url: str, kind: type) -> None:
    assert isinstance(make_store(url, clock=CLOCK, timeout_ms=1_000), kind)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("postgres://u:hidden@h/x", "begins with one of sqlite, redis"),
        ("sqlite:", "expected sqlite:PATH"),
        ("sqlite::memory:", "expected sqlite:PATH"),
        ("sqlite://host/path", "found a host name"),
        ("sqlite:a.db?mode=ro", "without options"),
        ("redis://h:hidden/0", "can't understand"),
        ("redis+sentinel://u:hidden@h:26379", "found no service"),
        ("redis+cluster://u:hidden@h:port", "expected HOST:PORT"),
        ("redis+cluster://u:hidden@h:1?wait_replicas=1", "not to be had with Redis Cluster"),
        ("redis://u:hidden@h:1?wait_replicas=some", "expected a number"),
        ("redis://:31337/hidden@h:1", "percent-encoded"),
        ("redis://:31337#hidden@h:1", "percent-encoded"),
        ("redis://:31337?hidden@h:1", "percent-encoded"),
        ("redis://u:31337/hidden@h:1", "percent-encoded"),
        ("redis://:[hidden@h:1", "percent-encoded"),
        ("unix://u:31337/hidden@/run/r.sock", "percent-encoded"),
        ("redis+cluster://:31337/hidden@h:1", "percent-encoded"),
        ("redis+cluster://u:31337/hidden@h:1", "percent-encoded"),
        ("redis+sentinel://u:31337/hidden@h:1", "percent-encoded"),
        ("redis+sentinel://:31337#hidden@h:1/pay", "percent-encoded"),
        ("redis://h:1?hidden=31337", "options"),
        ("redis://h:1?max_connections=hidden", "options"),
        ("redis+sentinel://h:1/pay?hidden=31337", "options"),
        ("redis+sentinel://h:1/pay/hidden", "found another path"),
        ("redis+cluster://h:1?hidden=31337", "options"),
        ("redis+cluster://h:1/7", "found a path"),
        ("redis://h:1?decode_responses=true", "decode_responses is set by Safepost"),
        ("redis+cluster://h:1?retry_on_timeout=true", "retry_on_timeout is set by Safepost"),
    ],
)
async def test_url_that_names_none_is_told_without_its_password(url: str, says: str) -> None:
    with pytest.raises(StoreUrlError) as raised:
        make_store(url, clock=CLOCK, timeout_ms=1_000)
    assert says in str(raised.value)
    assert "hidden" not in str(raised.value)
    assert "31337" not in str(raised.value)


async def test_journal_is_for_redis_alone() -> None:
    with pytest.raises(StoreUrlError, match="for Redis alone"):
        make_store("sqlite:a.db", clock=CLOCK, timeout_ms=1_000, journal=Path("j"))


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:safepost.db", "safepost.db"),
        ("sqlite:/var/lib/s.db", "/var/lib/s.db"),
        ("sqlite:///var/lib/s.db", "/var/lib/s.db"),
        ("sqlite:data/s.db", "data/s.db"),
    ],
)
def test_sqlite_path_of_a_url(url: str, path: str) -> None:
    assert sqlite_path(url) == Path(path)
