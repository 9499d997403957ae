"""Redis under trouble: replies lost, scripts flushed, servers full, demoted, frozen, restarted, emptied."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from proxy.core.messages import Reserved
from proxy.core.model import Now, Operation, OperationId, Owner, Scope, State, replace
from proxy.core.reserve import WithdrawClaim
from proxy.core.settle import RecordNextAttempt
from proxy.core.tables import Tables
from proxy.ports import Query, StoreUnavailable
from proxy.stores import redis, redis_guardian, waiters
from proxy.stores.notices import Notice, NoticeKind
from proxy.stores.redis import RedisStore
from proxy.stores.redis_rows import names_of, tag_of
from tests.chaos.failover import FailoverCluster, follows
from tests.contract.values import Bump, PutRows, claim, lead, operation, reserve, settled
from tests.core.payhub import SCOPE
from tests.stores.forwarder import Forwarder
from tests.stores.opened import CLOCK, Stores, outside
from tests.stores.redis_server import ClusterTrio, SentinelTrio, Server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    durable = ("--appendonly", "yes", "--appendfsync", "always")
    server = Server(tmp_path / "server", *durable, "--repl-diskless-sync-delay", "0").start()
    yield server
    server.thaw()
    server.stop()


@pytest.fixture
async def forwarder(server: Server) -> AsyncIterator[Forwarder]:
    forwarder = await Forwarder(server.port).start()
    yield forwarder
    await forwarder.close()


async def test_script_flush_is_not_noticed(server: Server, stores: Stores) -> None:
    """O-50."""
    store = await stores.open(server.url)
    leading = await lead(store, "K-1")
    outside(server, "SCRIPT", "FLUSH")
    await store.transact(settled(leading, 1))
    await lead(store, "K-2")


async def test_reply_lost_after_the_commit_still_leads_once(
    server: Server, forwarder: Forwarder, stores: Stores
) -> None:
    """The claim happened; sent again, it recognises itself."""
    store = await stores.open(forwarder.url)
    await lead(store, "K-0")
    forwarder.swallow_reply = b"K-1"
    leading = await lead(store, "K-1")
    assert forwarder.swallowed == 1
    assert leading.attempt_count == 1
    assert await store.load(leading.id) == leading


async def test_reply_lost_after_an_attempt_is_recorded_records_it_once(
    server: Server, forwarder: Forwarder, stores: Stores
) -> None:
    store = await stores.open(forwarder.url)
    leading = await lead(store, "K-1")
    note = settled(leading, 1).ended
    assert note is not None
    forwarder.swallow_reply = b"K-1"
    await store.transact(RecordNextAttempt(leading, note, 10_000))
    found = await store.load(leading.id)
    assert forwarder.swallowed == 1
    assert found is not None
    assert found.attempt_count == 2


async def test_request_lost_before_it_arrived_is_sent_again(
    server: Server, forwarder: Forwarder, stores: Stores
) -> None:
    store = await stores.open(forwarder.url)
    await lead(store, "K-0")
    forwarder.swallow_request = b"K-1"
    leading = await lead(store, "K-1")
    assert forwarder.swallowed == 1
    assert await store.load(leading.id) == leading


async def test_reply_lost_and_the_record_changed_since_may_have_happened(
    server: Server, forwarder: Forwarder, stores: Stores
) -> None:
    """Neither yes nor no can be said: it is not said."""
    store, other = await stores.open(forwarder.url), await stores.open(server.url)
    row = await lead(store, "K-1")
    forwarder.swallow_reply = b"EVALSHA"
    bump = asyncio.ensure_future(store.transact(Bump(SCOPE, row.id)))
    await forwarder.has_swallowed.wait()
    forwarder.port = 1  # nobody is there until the other has written
    await other.transact(Bump(SCOPE, row.id))
    forwarder.port = server.port
    (end,) = await asyncio.gather(bump, return_exceptions=True)
    assert isinstance(end, StoreUnavailable)
    assert end.may_have_happened
    found = await store.load(row.id)
    assert found is not None
    assert found.fence == 3


async def test_memory_full_refuses_at_once_and_recovers(server: Server, stores: Stores) -> None:
    """O-52."""
    store = await stores.open(server.url)
    kept = await lead(store, "K-0")
    outside(server, "CONFIG", "SET", "maxmemory", "1mb")
    with pytest.raises(StoreUnavailable, match="memory is full") as raised:
        await lead(store, "K-1")
    assert not raised.value.may_have_happened
    assert await store.load(kept.id) == kept
    with pytest.raises(StoreUnavailable, match="memory is full"):
        await store.ping()
    outside(server, "CONFIG", "SET", "maxmemory", "0")
    await lead(store, "K-1")


async def test_demoted_primary_is_left_for_the_new_one(
    tmp_path: Path, server: Server, forwarder: Forwarder, stores: Stores
) -> None:
    """O-51: open connections still lead to the old primary."""
    store = await stores.open(forwarder.url, timeout_ms=3_000)
    await lead(store, "K-0")
    second = Server(tmp_path / "second").start()
    try:
        outside(server, "REPLICAOF", "127.0.0.1", str(second.port))
        forwarder.port = second.port
        leading = await lead(store, "K-1")
        assert await store.load(leading.id) == leading
    finally:
        second.stop()


async def test_replica_without_primary_refuses_with_nothing_written(server: Server, stores: Stores) -> None:
    store = await stores.open(server.url, timeout_ms=1_500)
    outside(server, "REPLICAOF", "127.0.0.1", "1")
    with pytest.raises(StoreUnavailable, match="replica now") as raised:
        await lead(store, "K-1")
    assert not raised.value.may_have_happened
    outside(server, "REPLICAOF", "NO", "ONE")
    await lead(store, "K-1")


async def test_server_away_refuses_with_nothing_written_and_comes_back(
    server: Server, stores: Stores
) -> None:
    store = await stores.open(server.url, timeout_ms=1_500)
    kept = await lead(store, "K-0")
    server.kill()
    with pytest.raises(StoreUnavailable) as raised:
        await lead(store, "K-1")
    assert not raised.value.may_have_happened
    with pytest.raises(StoreUnavailable):
        await store.load(kept.id)
    server.start()
    await lead(store, "K-1")
    assert await store.load(kept.id) == kept


async def test_server_away_for_a_moment_is_waited_for(server: Server, stores: Stores) -> None:
    store = await stores.open(server.url, timeout_ms=5_000)
    await lead(store, "K-0")
    server.kill()
    claiming = asyncio.ensure_future(lead(store, "K-1"))
    await asyncio.to_thread(server.start)
    assert (await claiming).state is State.IN_FLIGHT


async def test_frozen_server_may_have_happened_and_answers_don_t_mix_up(
    server: Server, stores: Stores
) -> None:
    store = await stores.open(server.url, timeout_ms=1_500)
    first = await lead(store, "K-0")
    server.freeze()
    with pytest.raises(StoreUnavailable) as raised:
        await lead(store, "K-1")
    assert raised.value.may_have_happened
    with pytest.raises(StoreUnavailable):
        await store.load(first.id)
    server.thaw()
    await store.transact(WithdrawClaim(claim("K-1"), Owner("me")))
    again = await lead(store, "K-1", owner="other")
    assert await store.load(first.id) == first
    assert await store.load(again.id) == again


async def test_wait_is_woken_by_notification_without_the_poll(
    server: Server, stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiters, "POLL_MS_FIRST", 60_000)
    here, there = await stores.open(server.url), await stores.open(server.url)
    leading = await lead(here, "K-1", lease_ms=60_000)
    waiting = asyncio.ensure_future(there.wait(leading, timeout_ms=60_000))
    await asyncio.to_thread(
        server.wait_until, lambda client: len(client.pubsub_channels("safepost:ended:*")) == 1
    )
    await here.transact(settled(leading, 1))
    async with asyncio.timeout(30):
        record = await waiting
    assert record is not None
    assert record.state is State.EXECUTED


async def test_wait_outlives_a_server_that_is_away_for_a_moment(server: Server, stores: Stores) -> None:
    here, there = await stores.open(server.url), await stores.open(server.url)
    leading = await lead(here, "K-1", lease_ms=60_000)
    waiting = asyncio.ensure_future(there.wait(leading, timeout_ms=600_000))
    await asyncio.sleep(0)
    server.kill()
    await asyncio.to_thread(server.start)
    await here.transact(settled(leading, 1))
    async with asyncio.timeout(60):
        record = await waiting
    assert record is not None
    assert record.state is State.EXECUTED


@pytest.mark.parametrize(
    ("setting", "value", "says"),
    [
        ("maxmemory-policy", "allkeys-lru", "maxmemory-policy is allkeys-lru"),
        ("appendonly", "no", "appendonly is no"),
        ("appendfsync", "everysec", "appendfsync is everysec"),
    ],
)
async def test_unsafe_setting_is_reported(
    server: Server, stores: Stores, setting: str, value: str, says: str
) -> None:
    """O-53."""
    safe = RedisStore(server.url, clock=CLOCK, timeout_ms=2_000)
    assert (await safe.open()).warnings == ()
    await safe.close()
    outside(server, "CONFIG", "SET", setting, value)
    store = RedisStore(server.url, clock=CLOCK, timeout_ms=2_000)
    report = await store.open()
    assert [says in warning for warning in report.warnings] == [True]
    assert store.warnings() == report.warnings
    await store.close()


async def test_hidden_settings_are_reported_as_unknown(tmp_path: Path, stores: Stores) -> None:
    server = Server(tmp_path / "managed", "--rename-command", "CONFIG", "").start()
    try:
        store = RedisStore(server.url, clock=CLOCK, timeout_ms=2_000)
        report = await store.open()
        assert "CONFIG can't be read" in report.warnings[0]
        await lead(store, "K-1")
        await store.close()
    finally:
        server.stop()


async def test_least_rights_suffice(server: Server, stores: Stores) -> None:
    """The user that docs/operating.md tells to make."""
    outside(
        server,
        *("ACL", "SETUSER", "safepost", "on", ">pass", "~safepost:*", "&safepost:*", "-@all"),
        *(
            "+eval",
            "+evalsha",
            "+get",
            "+set",
            "+del",
            "+sadd",
            "+smembers",
            "+zadd",
            "+zrem",
            "+zrangebyscore",
        ),
        *("+zrevrangebyscore", "+zrangebylex", "+hset", "+hdel", "+hvals", "+time", "+publish", "+subscribe"),
        *("+unsubscribe", "+ping", "+info", "+config|get", "+client|setname", "+client|setinfo", "+select"),
    )
    store = await stores.open(f"redis://safepost:pass@127.0.0.1:{server.port}/0")
    leading = await lead(store, "K-1")
    waiting = asyncio.ensure_future(store.wait(leading, timeout_ms=5_000))
    await store.transact(settled(leading, 1))
    await waiting
    await store.ping()
    assert len((await store.find(Query())).operations) == 1
    assert await store.holdings() == ()


@pytest.mark.parametrize("user", ["nobody:wrong@", "default:wrong@"])
async def test_wrong_password_is_told_without_repeating_it(server: Server, user: str) -> None:
    outside(server, "CONFIG", "SET", "requirepass", "right")
    store = RedisStore(server.url.replace("//", f"//{user}"), clock=CLOCK, timeout_ms=1_000)
    with pytest.raises(StoreUnavailable, match="refuses the user or password") as raised:
        await store.open()
    assert "wrong" not in str(raised.value)


async def test_server_that_is_starting_too_is_waited_for(
    tmp_path: Path, stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A supervisor that starts both at once would count quick failures, and give up."""
    monkeypatch.setattr(redis, "OPEN_S", 60.0)
    server = Server(tmp_path / "late")
    opening = asyncio.create_task(stores.open(server.url))
    try:
        await asyncio.wait([opening], timeout=0.3)
        assert not opening.done()
        await asyncio.to_thread(server.start)
        await lead(await opening, "K-1")
    finally:
        opening.cancel()
        server.stop()


async def test_open_without_server_says_where_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis, "OPEN_S", 0.5)
    store = RedisStore("redis://u:hidden@127.0.0.1:1/0", clock=CLOCK, timeout_ms=500)
    with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:1: opening the ledger") as raised:
        await store.open()
    assert "hidden" not in str(raised.value)
    assert "Check store.url" in str(raised.value)


async def test_emptied_store_is_noticed_by_every_sidecar(server: Server, stores: Stores) -> None:
    """D6."""
    here, there = await stores.open(server.url), await stores.open(server.url)
    secrets = here.secrets()
    await lead(here, "K-1")
    outside(server, "FLUSHALL")
    await here.ping()
    await there.ping()
    assert stores.kinds() == [NoticeKind.LOST_DATA] * 2
    assert any("lost its data" in warning for warning in here.warnings())
    await here.ping()
    await there.ping()
    assert len(stores.notices) == 2
    third = await stores.open(server.url)
    assert third.secrets() == secrets
    assert third.warnings() == ()


async def test_loss_is_told_although_the_look_that_found_it_failed(
    server: Server, stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D6: the marker was made anew, and the next look found nothing wrong."""
    monkeypatch.setattr(redis_guardian, "WATCH_S", 3_600)
    store = await stores.open(server.url)
    outside(server, "FLUSHALL")
    outside(server, "ACL", "SETUSER", "default", "resetkeys", "~safepost:marker", "~safepost:ping")
    with pytest.raises(StoreUnavailable):
        await store.ping()
    outside(server, "ACL", "SETUSER", "default", "allkeys")
    await store.ping()
    assert stores.kinds() == [NoticeKind.LOST_DATA]


async def test_look_that_ran_out_of_time_leaves_it_to_the_next_to_put_the_rest_back(
    tmp_path: Path, server: Server
) -> None:
    """D6: readiness asks within `store.timeout`; to put back what a day of trouble left takes longer."""

    def hold_up(notice: Notice) -> None:
        if notice.kind is NoticeKind.LOST_DATA:
            server.freeze()
        elif notice.kind is NoticeKind.PUT_BACK:
            is_back.set()

    is_back = asyncio.Event()
    store = RedisStore(server.url, clock=CLOCK, timeout_ms=500, journal=tmp_path / "journal", notify=hold_up)
    await store.open()
    try:
        await lead(store, "K-1")
        outside(server, "FLUSHALL")
        with pytest.raises(StoreUnavailable):
            await store.ping()
        server.thaw()
        async with asyncio.timeout(60):
            await is_back.wait()
    finally:
        await store.close()


async def test_damaged_record_keeps_no_other_from_being_listed_or_put_back(
    tmp_path: Path, server: Server, stores: Stores
) -> None:
    """U2, D6: an older sidecar stopped all lookups for one record that a newer release had written."""
    store = await stores.open(server.url, journal=tmp_path / "journal")
    rows = [operation(f"K-{n}", at_ms=n) for n in range(6)]
    await store.transact(PutRows(tuple(rows)))
    names = names_of(tag_of(SCOPE))
    for row in rows[1:3]:
        outside(server, "SET", names.operation(row.id), b"\0" * 200)
    listed: list[Operation] = []
    query = Query(oldest_first=True, limit=2)
    while True:
        page = await store.find(query)
        listed += page.operations
        if page.cursor is None:
            break
        query = replace(query, cursor=page.cursor)

    assert [one.key for one in listed] == ["K-0", "K-3", "K-4", "K-5"]
    with pytest.raises(StoreUnavailable, match="in row format 0"):
        await store.find(Query(key=rows[1].key))
    (notice,) = stores.notices
    assert (notice.kind, notice.warnings) == (NoticeKind.DAMAGED, store.warnings())
    assert "2 records can't be read" in notice.text
    outside(server, "DEL", names.operation(rows[4].id))
    assert await store._refill()
    assert await store.load(rows[4].id) is not None
    outside(server, "CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    await store._check_settings()
    assert stores.notices[-1].warnings == store.warnings()


async def test_settle_of_a_lost_record_writes_it_anew_and_it_is_listed(
    server: Server, stores: Stores
) -> None:
    store = await stores.open(server.url)
    leading = await lead(store, "K-1")
    outside(server, "FLUSHALL")
    await store.ping()
    await store.transact(settled(leading, 1))
    (found,) = (await store.find(Query())).operations
    assert found.state is State.EXECUTED


async def test_journal_puts_back_what_a_living_store_lost(
    tmp_path: Path, server: Server, stores: Stores
) -> None:
    store = await stores.open(server.url, journal=tmp_path / "journal")
    leading = await lead(store, "K-1")
    done = await lead(store, "K-2")
    await store.transact(settled(done, 1))
    outside(server, "FLUSHALL")
    await store.ping()
    assert stores.kinds() == [NoticeKind.LOST_DATA, NoticeKind.PUT_BACK]
    found = await store.load(leading.id)
    assert found is not None
    assert found.state is State.IN_FLIGHT
    assert await store.load(done.id) is None
    answer = await store.transact(reserve("K-3", "other", lease_ms=10_000))
    assert isinstance(answer, Reserved)


async def test_journal_of_a_killed_sidecar_is_adopted_by_the_next(
    tmp_path: Path, server: Server, stores: Stores
) -> None:
    store = await stores.open(server.url, journal=tmp_path / "journal")
    leading = await lead(store, "K-1", lease_ms=50)
    await stores.close(store)
    outside(server, "FLUSHALL")
    again = await stores.open(server.url, journal=tmp_path / "journal")
    assert stores.kinds() == [NoticeKind.PUT_BACK]
    assert await again.load(leading.id) is not None
    (found,) = (await again.find(Query(subject="order:K-1"))).operations
    assert found.id == leading.id


@pytest.fixture
def unwilling(server: Server) -> Iterator[Server]:
    """It answers, and runs no script until the rights for that are given back."""
    yield server
    outside(server, *WILLING)


WILLING = ("ACL", "SETUSER", "default", "+@scripting")
UNWILLING = ("ACL", "SETUSER", "default", "-@scripting")


async def heard(stores: Stores, kind: NoticeKind) -> None:
    async with asyncio.timeout(60):
        while kind not in stores.kinds():  # noqa: ASYNC110 -- notices come by a plain call
            await asyncio.sleep(0.01)


async def test_start_waits_until_the_journal_is_put_back(
    tmp_path: Path, unwilling: Server, stores: Stores
) -> None:
    """D6, U1: before that, another key for an order in doubt would be sent."""
    store = await stores.open(unwilling.url, journal=tmp_path / "journal")
    leading = await lead(store, "K-1")
    await stores.close(store)
    outside(unwilling, "FLUSHALL")
    outside(unwilling, *UNWILLING)
    opening = asyncio.create_task(stores.open(unwilling.url, journal=tmp_path / "journal"))
    await heard(stores, NoticeKind.AWAY)
    assert not opening.done()
    outside(unwilling, *WILLING)
    assert await (await opening).load(leading.id) is not None


async def test_server_that_took_over_without_the_last_writes_is_noticed_by_its_history(
    tmp_path: Path, server: Server, forwarder: Forwarder, stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D6: the marker is old enough to be there still, and a quick failover lets no look at the store fail."""
    monkeypatch.setattr(redis_guardian, "WATCH_S", 3_600)
    store = await stores.open(forwarder.url, journal=tmp_path / "journal")
    second = Server(tmp_path / "second", "--replicaof", f"127.0.0.1 {server.port}").start()
    try:
        second.wait_until(follows)
        outside(second, "REPLICAOF", "NO", "ONE")
        leading = await lead(store, "K-1", lease_ms=60_000)
        forwarder.port = second.port
        outside(server, "CLIENT", "KILL", "TYPE", "normal")
        await lead(store, "K-2", lease_ms=60_000)
        assert await store.load(leading.id) is None
        await store.ping()
        assert stores.kinds() == []
        assert await store._check_settings()
        assert not await store._check_settings()
    finally:
        second.stop()


async def test_what_could_not_be_put_back_after_a_loss_is_put_back_later(
    tmp_path: Path, unwilling: Server, stores: Stores
) -> None:
    store = await stores.open(unwilling.url, journal=tmp_path / "journal")
    leading = await lead(store, "K-1")
    outside(unwilling, *UNWILLING)
    outside(unwilling, "FLUSHALL")
    await store.ping()
    assert stores.kinds() == [NoticeKind.LOST_DATA, NoticeKind.AWAY]
    outside(unwilling, *WILLING)
    await heard(stores, NoticeKind.PUT_BACK)
    assert await store.load(leading.id) is not None


async def test_wait_replicas_needs_the_replica(tmp_path: Path, server: Server, stores: Stores) -> None:
    replica = Server(tmp_path / "replica", "--replicaof", f"127.0.0.1 {server.port}").start()
    try:
        replica.wait_until(lambda client: client.info("replication")["master_link_status"] == "up")
        store = await stores.open(f"{server.url}?wait_replicas=1", timeout_ms=3_000)
        await lead(store, "K-1")
        replica.freeze()
        with pytest.raises(StoreUnavailable, match="0 of 1 replicas") as raised:
            await lead(store, "K-2")
        assert raised.value.may_have_happened
        replica.thaw()
        await lead(store, "K-3")
    finally:
        replica.thaw()
        replica.stop()


async def test_indexes_hold_what_is_there_and_nothing_else(server: Server, stores: Stores) -> None:
    store = await stores.open(server.url)
    done = await lead(store, "K-1")
    running = await lead(store, "K-2")
    await store.transact(settled(done, 1))
    base = "safepost:{default/live}:i:"
    listed = {
        name: outside(server, "ZRANGE", f"{base}{name}", "0", "-1")
        for name in ("created", "unresolved", "flight", "due", "purge:create_payment")
    }
    alive, ended = running.id.encode(), done.id.encode()
    assert listed == {
        "created": sorted([ended, alive]) if done.created_ms == running.created_ms else [ended, alive],
        "unresolved": [alive],
        "flight": [alive],
        "due": [],
        "purge:create_payment": [ended],
    }
    assert outside(server, "HLEN", f"{base}held") == 1


async def test_purged_operation_leaves_no_key_behind(server: Server, stores: Stores) -> None:
    store = await stores.open(server.url)
    leading = await lead(store, "K-1")
    await store.transact(settled(leading, 1))
    await store.transact(WithdrawRows(SCOPE, leading.id))
    names = outside(server, "KEYS", "safepost:{default/live}:*")
    assert isinstance(names, list)
    assert sorted(names) == [
        b"safepost:{default/live}:s:order:K-1",
        b"safepost:{default/live}:s:payment:pay_K-1",
    ]


@dataclass(frozen=True, slots=True)
class WithdrawRows:
    """Drop an operation as a purge does."""

    scope: Scope
    operation: OperationId
    name: str = "drop"

    def apply(self, tables: Tables, now: Now) -> None:
        found = tables.operation(self.scope, self.operation)
        assert found is not None
        tables.drop(found)


@pytest.mark.slow
async def test_sentinel_failover_is_followed(tmp_path: Path, stores: Stores) -> None:
    """The primary dies: within seconds claims are made at the new one, and what it did not have is put back."""
    trio = SentinelTrio(tmp_path / "trio")
    try:
        await asyncio.to_thread(trio.start)
        store = await stores.open(trio.url, timeout_ms=40_000, journal=tmp_path / "journal")
        before = await lead(store, "K-0", lease_ms=60_000)
        trio.primary.kill()
        async with asyncio.timeout(60):
            after = await lead(store, "K-1", lease_ms=60_000)
        await store.purge(record_ms={})
        assert await store.load(before.id) is not None
        assert await store.load(after.id) == after
    finally:
        trio.stop()


@pytest.mark.slow
async def test_closing_leaves_no_connection_to_a_cluster_that_lost_a_node(
    tmp_path: Path, stores: Stores
) -> None:
    """redis-py's own close does nothing after a command failed for a lost connection."""
    trio = ClusterTrio(tmp_path / "cluster")
    try:
        await asyncio.to_thread(trio.start)
        store = await stores.open(trio.url)
        await lead(store, "K-0", lease_ms=60_000)
        ours = [_connections(node) for node in trio.nodes]
        serving = [len(outside(node, "KEYS", "safepost:{*}:o:*")) > 0 for node in trio.nodes].index(True)
        others = [node for n, node in enumerate(trio.nodes) if n != serving]
        trio.nodes[serving].kill()
        with pytest.raises(StoreUnavailable):
            await lead(store, "K-1", lease_ms=60_000)
        await stores.close(store)
        for node in others:
            node.wait_until(lambda client: not _ours(client))
    finally:
        trio.stop()
    assert all(ours)


def _connections(node: Server) -> int:
    with contextlib.closing(node.client()) as client:
        return len(_ours(client))


def _ours(client: Any) -> list[Any]:
    return [one for one in client.client_list() if one["name"] == "safepost"]


@pytest.mark.slow
async def test_cluster_failover_is_followed(tmp_path: Path, stores: Stores) -> None:
    """The node that serves the ledger dies: its replica takes over, and each claim is made and kept (D1, D2).

    A Cluster can't be waited for: what its replica had not got yet is put back from the journal, and says so (D6).
    """
    cluster = FailoverCluster(tmp_path / "cluster", tag=tag_of(SCOPE), may_lose=True)
    try:
        await asyncio.to_thread(cluster.start)
        store = await stores.open(cluster.url, timeout_ms=10_000, journal=tmp_path / "journal")
        served_by = cluster.primary().port
        failing = asyncio.create_task(asyncio.to_thread(cluster.fail_over))
        made = [await lead(store, "K-0", lease_ms=60_000)]
        while not failing.done():
            made.append(await lead(store, f"K-{len(made)}", lease_ms=60_000))
        assert await failing
        assert cluster.primary().port != served_by
        await store.purge(record_ms={})
        for one in made:
            found = await store.load(one.id)
            assert found is not None
            assert replace(found, history=one.history) == one
    finally:
        cluster.stop()
