"""Settings of the server that could lose claims: read now and then, reported, never changed (D5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from redis.asyncio.cluster import ClusterNode

from proxy.stores.redis_link import Link
from proxy.stores.redis_trouble import Trouble

VERSION_MIN = (6, 2)


@dataclass(frozen=True, slots=True)
class Settings:
    """What a server says of itself; None where it keeps that to itself.

    `node`: which one of a cluster; empty for the only one. `history`: of its data; another one after a failover or
    a restart, by which the last writes may have been lost.
    """

    node: str
    version: str
    name: str
    policy: str | None
    appendonly: str | None
    appendfsync: str | None
    save: str | None
    replicas: int
    waited_for: int
    history: str


async def read_settings(link: Link) -> list[Settings]:
    """Of the server, or of each primary of a cluster that answers.

    Raises: Trouble where none does.
    """
    found: list[Settings] = []
    trouble: Trouble | None = None
    for node in await link.primaries():
        try:
            found.append(await _read(link, node))
        except Trouble as one:
            trouble = one
    if trouble is not None and not found:
        raise trouble
    return found


async def _read(link: Link, node: ClusterNode | None) -> Settings:
    server = await _info(link, node, "server")
    replication = await _info(link, node, "replication")
    config = await _config(link, node)
    return Settings(
        node=node.name if node is not None else "",
        version=str(server.get("valkey_version") or server.get("redis_version") or ""),
        name="Valkey" if server.get("server_name") == "valkey" else "Redis",
        policy=config.get("maxmemory-policy"),
        appendonly=config.get("appendonly"),
        appendfsync=config.get("appendfsync"),
        save=config.get("save"),
        replicas=int(replication.get("connected_slaves", 0)),
        waited_for=link.wait_replicas,
        history=str(replication.get("master_replid", "")),
    )


async def _info(link: Link, node: ClusterNode | None, section: str) -> Mapping[str, Any]:
    """INFO is often forbidden where a server is managed; what it would say is then unknown."""
    try:
        found: Mapping[str, Any] = await link.ask("INFO", section, node=node)
    except Trouble as trouble:
        if trouble.is_passing:
            raise
        return {}
    return found


async def _config(link: Link, node: ClusterNode | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in ("maxmemory-policy", "appendonly", "appendfsync", "save"):
        try:
            answer: Mapping[bytes | str, bytes | str] = await link.ask("CONFIG GET", name, node=node)
        except Trouble as trouble:
            if trouble.is_passing:
                raise
            return {}  # hidden, as by most who manage a Redis for others
        found.update((_text(key), _text(value)) for key, value in answer.items())
    return found


def _text(value: bytes | str) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def warnings_of(found: Sequence[Settings], where: str) -> tuple[str, ...]:
    """What is legal but unsafe, each with its reason, and the nodes of a cluster that it is true of."""
    nodes: dict[str, list[str]] = {}
    for settings in found:
        for text in _warnings(settings):
            nodes.setdefault(text, []).append(settings.node)
    everywhere = len(found)
    return tuple(
        f"{where}: {text}" if len(of) == everywhere else f"{where}, {' '.join(sorted(of))}: {text}"
        for text, of in nodes.items()
    )


def _warnings(settings: Settings) -> list[str]:
    found: list[str] = []
    version = tuple(int(part) for part in settings.version.split(".")[:2] if part.isdigit())
    if version and version < VERSION_MIN:
        found.append(f"version {settings.version} is older than 6.2, which Safepost is tested with")
    if settings.policy is None:
        found.append(
            "CONFIG can't be read, so it is not known whether records may be evicted or survive a restart; "
            "maxmemory-policy has to be noeviction, and appendonly yes"
        )
        return found
    if settings.policy != "noeviction":
        found.append(
            f"maxmemory-policy is {settings.policy}: a full server would drop records of payments in doubt. Set "
            "it to noeviction"
        )
    if settings.appendonly != "yes":
        kept = "snapshots alone" if settings.save else "nothing"
        found.append(
            f"appendonly is {settings.appendonly} ({kept} on disk): a restart forgets payments in doubt. Set it "
            "to yes, or set store.journal"
        )
    elif settings.appendfsync != "always":
        found.append(
            f"appendfsync is {settings.appendfsync}: a power cut can lose the last second of claims; always loses "
            "none"
        )
    if settings.replicas and not settings.waited_for:
        found.append(
            "replicas copy asynchronously: a failover can lose the last claims. Set "
            "?wait_replicas=1 in store.url, or store.journal"
        )
    return found
