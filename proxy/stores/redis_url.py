"""What a Redis URL says, in each of its forms, or why it can't be understood.

Nothing here repeats a part of the URL that may be one of its password: a `/`, `?` or `#` that was not
percent-encoded makes a host, a port or an option of what follows (F2).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from redis.asyncio.connection import parse_url

PORT = 6379
SENTINEL_PORT = 26379
_NOT_OURS_TO_SET = ("retry_on_timeout", "retry_on_error", "encoding", "encoding_errors", "legacy_responses")
_YES = ("true", "1", "yes")


class RedisUrlError(ValueError):
    """A Redis URL that can't be understood. Never repeats it, since it may hold a password (F2)."""


UNCLEAR = (
    "store.url: can't understand this Redis URL or its options. In a user or password, each of / ? # @ % : has to "
    "be percent-encoded"
)


@dataclass(frozen=True, slots=True)
class Parts:
    """A URL of several hosts: `redis+sentinel://user:secret@h1:26379,h2:26379/service/0?tls=true`.

    `options` and `of_sentinels` are as redis-py names them, for the servers and for the sentinels.
    """

    hosts: tuple[tuple[str, int], ...]
    path: tuple[str, ...]
    options: Mapping[str, Any]
    of_sentinels: Mapping[str, Any]


def _split(url: str) -> SplitResult:
    try:
        split = urlsplit(url)
    except ValueError:  # a bracket in a password, taken for one of an address
        raise RedisUrlError(UNCLEAR) from None
    if split.fragment or any("=" not in pair for pair in split.query.split("&") if pair):
        raise RedisUrlError(UNCLEAR)
    return split


def place_of(url: str) -> str:
    """The one server's address, for messages.

    Raises: RedisUrlError.
    """
    split = _split(url)
    if split.scheme == "unix":
        if not split.path or (split.netloc and not split.netloc.endswith("@")):
            raise RedisUrlError(UNCLEAR)
        return split.path
    try:
        host, port = split.hostname, split.port or PORT
    except ValueError:  # its text holds what stands where the port should
        raise RedisUrlError(UNCLEAR) from None
    database = split.path.removeprefix("/")
    if not host or (database and not database.isdecimal()):
        raise RedisUrlError(UNCLEAR)
    return f"{host}:{port}"


def parts_of(url: str, *, port: int) -> Parts:
    """Args: port: of hosts that name none.

    Raises: RedisUrlError.
    """
    split = _split(url)
    if "@" in split.path:
        raise RedisUrlError(UNCLEAR)
    credentials, _, hosts = split.netloc.rpartition("@")
    pairs: list[tuple[str, int]] = []
    for host in hosts.split(","):
        name, colon, number = host.rpartition(":") if not host.endswith("]") else (host, "", "")
        if not colon:
            name, number = host, str(port)
        if not name or not number.isdecimal():
            raise RedisUrlError("store.url: expected HOST:PORT, several with commas, after the //")
        pairs.append((name.strip("[]"), int(number)))
    username, _, password = credentials.partition(":")
    named = {"username": unquote(username), "password": unquote(password)}
    options, of_sentinels = _options(split.query)
    options |= {name: value for name, value in named.items() if value}
    return Parts(tuple(pairs), tuple(part for part in split.path.split("/") if part), options, of_sentinels)


def _options(query: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Those for the servers and those for the sentinels, which are asked over TLS where the servers are."""
    pairs = dict(parse_qsl(query))
    is_tls = pairs.pop("tls", "false").lower() in _YES
    asks_tls = pairs.pop("sentinel_tls", str(is_tls)).lower() in _YES
    credentials = {name: pairs.pop(f"sentinel_{name}", None) for name in ("username", "password")}
    try:
        found: dict[str, Any] = {**parse_url(f"redis://?{urlencode(pairs)}")}
    except ValueError:
        raise RedisUrlError(UNCLEAR) from None
    of_tls = {name: value for name, value in found.items() if name.startswith("ssl_")}
    of_sentinels: dict[str, Any] = {name: value for name, value in credentials.items() if value}
    if asks_tls:
        of_sentinels |= {"ssl": True, **of_tls}
    if is_tls:
        found["ssl"] = True
    return found, of_sentinels


def check_own(url: str, names: Collection[str]) -> None:
    """Some options are Safepost's to set: with others a command might be repeated, or an answer misread.

    Raises: RedisUrlError.
    """
    for name, _ in parse_qsl(_split(url).query, keep_blank_values=True):
        if name in names or name in _NOT_OURS_TO_SET:
            raise RedisUrlError(
                f"store.url: {name} is set by Safepost; leave it out (store.timeout is its own)"
            )


def without_option(url: str, name: str) -> tuple[str, str | None]:
    """The URL without one of Safepost's own options, and that option's value.

    Raises: RedisUrlError.
    """
    split = _split(url)
    pairs = parse_qsl(split.query, keep_blank_values=True)
    value = next((v for k, v in pairs if k == name), None)
    if value is None:
        return url, None
    query = urlencode([(k, v) for k, v in pairs if k != name])
    return urlunsplit(split._replace(query=query)), value
