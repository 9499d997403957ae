"""A Redis Cluster at work: nodes that lose their data alone, a slot that moves, settings of each (D1, D5, D6)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from redis import exceptions as failures

from proxy.ports import Query, StoreUnavailable
from proxy.stores.notices import NoticeKind
from proxy.stores.redis_rows import SCOPES, names_of, tag_of
from proxy.stores.redis_trouble import Trouble, trouble_of
from tests.contract.values import lead
from tests.core.payhub import SCOPE
from tests.stores.opened import Stores, outside
from tests.stores.redis_server import ClusterTrio, Server

pytestmark = pytest.mark.slow

LEDGER = names_of(tag_of(SCOPE)).base


@dataclass(frozen=True, slots=True)
class Cluster:
    """Three primaries, and where they keep what."""

    trio: ClusterTrio

    @property
    def url(self) -> str:
        return self.trio.url

    def slot(self, key: str) -> int:
        return int(outside(self.trio.nodes[0], "CLUSTER", "KEYSLOT", key))

    def node(self, key: str) -> Server:
        """The one that serves the key's slot."""
        slot = self.slot(key)
        for first, last, primary, *_ in outside(self.trio.nodes[0], "CLUSTER", "SLOTS"):
            if int(first) <= slot <= int(last):
                return next(one for one in self.trio.nodes if one.port == int(primary[1]))
        raise AssertionError(f"no node serves {key}")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    trio = ClusterTrio(tmp_path / "cluster")
    try:
        yield Cluster(trio.start())
    finally:
        trio.stop()


async def test_node_that_lost_the_ledger_alone_is_noticed_and_the_journal_puts_it_back(
    cluster: Cluster, stores: Stores, tmp_path: Path
) -> None:
    """D6. The store's first marker is on another node, and still there."""
    store = await stores.open(cluster.url, timeout_ms=10_000, journal=tmp_path / "journal")
    leading = await lead(store, "K-1", lease_ms=60_000)
    await store.ping()
    outside(cluster.node(LEDGER), "FLUSHALL")
    await store.ping()
    assert stores.kinds() == [NoticeKind.LOST_DATA, NoticeKind.PUT_BACK]
    assert any("lost its data" in warning for warning in store.warnings())
    assert await store.load(leading.id) is not None
    await store.ping()
    assert len(stores.notices) == 2


async def test_ledger_stays_listed_where_the_node_with_the_list_of_scopes_lost_it(
    cluster: Cluster, stores: Stores
) -> None:
    """Else its unknown payments would be looked up no more, until some call of the scope happened by (U2)."""
    store = await stores.open(cluster.url, timeout_ms=10_000)
    leading = await lead(store, "K-1", lease_ms=60_000)
    await store.ping()
    assert cluster.node(SCOPES) is not cluster.node(LEDGER)
    outside(cluster.node(SCOPES), "FLUSHALL")
    await store.ping()
    assert stores.kinds() == [NoticeKind.LOST_DATA]
    assert [one.id for one in (await store.find(Query())).operations] == [leading.id]


async def test_claim_whose_slot_is_moving_is_not_made_and_goes_on_when_it_has_moved(
    cluster: Cluster, stores: Stores
) -> None:
    """Redis serves no script whose keys may be on either of two nodes (TRYAGAIN)."""
    store = await stores.open(cluster.url, timeout_ms=3_000)
    first = await lead(store, "K-1", lease_ms=60_000)
    slot, old = str(cluster.slot(LEDGER)), cluster.node(LEDGER)
    new = next(one for one in cluster.trio.nodes if one is not old)
    names = {one: outside(one, "CLUSTER", "MYID").decode() for one in cluster.trio.nodes}
    outside(new, "CLUSTER", "SETSLOT", slot, "IMPORTING", names[old])
    outside(old, "CLUSTER", "SETSLOT", slot, "MIGRATING", names[new])

    with pytest.raises(StoreUnavailable):
        await lead(store, "K-2", lease_ms=60_000)
    keys = outside(old, "CLUSTER", "GETKEYSINSLOT", slot, "100")
    outside(old, "MIGRATE", "127.0.0.1", str(new.port), "", "0", "10000", "KEYS", *keys)
    for one in (new, old):
        outside(one, "CLUSTER", "SETSLOT", slot, "NODE", names[new])

    await lead(store, "K-2", lease_ms=60_000)
    assert await store.load(first.id) == first
    await store.ping()
    assert stores.kinds() == []


def test_command_that_every_node_passed_on_was_carried_out_by_none() -> None:
    trouble = trouble_of(failures.ClusterError("TTL exhausted."), was_sent=True)
    assert (trouble.is_passing, trouble.was_sent) == (True, False)


async def test_setting_of_any_node_is_reported(cluster: Cluster, stores: Stores) -> None:
    """D5: each evicts for itself."""
    for node in cluster.trio.nodes:
        outside(node, "CONFIG", "SET", "appendonly", "yes")
        outside(node, "CONFIG", "SET", "appendfsync", "always")
    evicting = cluster.trio.nodes[-1]
    outside(evicting, "CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    store = await stores.open(cluster.url, timeout_ms=10_000)
    (warning,) = store.warnings()
    assert f"Redis Cluster, 127.0.0.1:{evicting.port}: maxmemory-policy is allkeys-lru" in warning


async def test_frozen_node_does_not_take_the_time_of_payments_that_others_serve(
    cluster: Cluster, stores: Stores
) -> None:
    """A command that it left unanswered has the nodes looked for again, and it may not be asked first."""
    for node in cluster.trio.nodes:
        outside(node, "CONFIG", "SET", "cluster-require-full-coverage", "no")
    store = await stores.open(cluster.url, timeout_ms=2_000)
    await lead(store, "K-0", lease_ms=60_000)
    frozen = next(one for one in cluster.trio.nodes if one is not cluster.node(LEDGER))
    key = next(f"K{n}" for n in range(1_000) if cluster.node(f"K{n}") is frozen)
    frozen.freeze()
    try:
        for n in range(4):
            with pytest.raises(Trouble):
                await store._link.run("GET", key)
            await lead(store, f"K-{n + 1}", lease_ms=60_000)
    finally:
        frozen.thaw()
