"""A step is atomic, durable, alone, and gives back the record as it then is: over every store."""

from __future__ import annotations

import asyncio

import pytest

from proxy.core.messages import Conflicting, Reserved, Running, Settled
from proxy.core.model import (
    Attempt,
    Baseline,
    Entry,
    EntryKind,
    Fence,
    Guard,
    Handle,
    Knowledge,
    Lookups,
    Operation,
    OperationId,
    Outcome,
    Owner,
    Scope,
    Seen,
    State,
    StoredAnswer,
    Subject,
    replace,
)
from proxy.core.reserve import ReserveOperation, WithdrawClaim
from proxy.ports import Store, StoreUnavailable
from tests.contract.conftest import House
from tests.contract.values import (
    LEASE_MS,
    START_MS,
    Bump,
    PutRows,
    ReadRow,
    claim,
    lead,
    operation,
    reserve,
    settled,
)
from tests.core.payhub import SCOPE

SEEN = Seen(
    status="processing",
    is_final=False,
    is_failure=False,
    source="lookup",
    seen_ms=9,
    resource_id="pay_1",
    version=3,
    attempt_count=2,
    failure_attempt_id="fa_1",
    resolution_status="known",
    body=b'{"id":"pay_1"}',
)


def full(name: str) -> Operation:
    """An operation with every member set to something."""
    answer = StoredAnswer(
        fence=Fence(3),
        status=201,
        headers=((b"Content-Type", b"application/json"), (b"X-Latin", b"\xe9")),
        body=b"\x00\xff",
        ended_ms=8,
        from_platform=True,
        knowledge=Knowledge.EXECUTED,
        reason=b"Created",
        outcome=Outcome.EXECUTED,
    )
    return replace(
        operation(name),
        kind="payment",
        acts_on_existing=True,
        tracked=False,
        key_injected=True,
        seq=4,
        twin=Handle("twin:1"),
        resource_id="pay_1",
        status="succeeded",
        resolution_status="known",
        version=2**40,
        doubt=True,
        accepted=True,
        released=True,
        owner=Owner("me"),
        lease_until_ms=77,
        lease_epoch="boot-1",
        prior=State.ABSENT,
        absent_at_attempt=1,
        doubt_since_absent=True,
        attempts=(
            Attempt(n=1, fence=Fence(1), begun_ms=5, ended_ms=6, outcome=Outcome.IN_DOUBT, status=504),
        ),
        attempt_count=1,
        last_attempt_end_ms=6,
        answer=answer,
        answer_before=replace(answer, body=None),
        newest=SEEN,
        baseline=Baseline(1, 2, "fa"),
        lookups=Lookups(next_ms=5, done=1, misses=2, last_ms=4),
        by_hand="succeeded",
        settled_by="person",
        failure_delivered=True,
        unknown_since_ms=3,
        settled_ms=7,
        history=(Entry(at_ms=1, kind=EntryKind.DOUBT, text="é 支付", by="person"),),
    )


async def test_reserve_free_key_leads_and_is_loaded(store: Store) -> None:
    leading = await lead(store, "K-1")
    assert leading.state is State.IN_FLIGHT
    assert leading.fence == 1
    assert await store.load(leading.id) == leading


async def test_load_unknown_id_is_none(store: Store) -> None:
    assert await store.load(OperationId("nobody")) is None


async def test_reserve_taken_key_tells_who_runs(store: Store) -> None:
    leading = await lead(store, "K-1")
    assert await store.transact(reserve("K-1", "another")) == Running(leading)


async def test_reserve_asked_again_by_its_owner_is_reserved_once(store: Store) -> None:
    leading = await lead(store, "K-1")
    assert await store.transact(reserve("K-1")) == Reserved(leading)


async def test_reserve_other_fields_conflicts_while_in_flight(store: Store) -> None:
    leading = await lead(store, "K-1")
    answer = await store.transact(ReserveOperation(claim("K-1", amount="bb"), Owner("another"), LEASE_MS))
    assert answer == Conflicting(leading, ("amount",))


async def test_settle_executed_is_durable(house: House, store: Store) -> None:
    leading = await lead(store, "K-1")
    answer = await store.transact(settled(leading, START_MS))
    assert isinstance(answer, Settled)
    assert answer.operation.state is State.EXECUTED
    if house.is_durable:
        await house.leave(store)
    again = await house.enter()
    assert await again.load(leading.id) == answer.operation


async def test_withdraw_leaves_no_record(store: Store) -> None:
    leading = await lead(store, "K-1")
    await store.transact(WithdrawClaim(claim("K-1"), Owner("me")))
    assert await store.load(leading.id) is None
    _, subject = await store.transact(ReadRow(SCOPE, leading.id, Handle("order:K-1")))
    assert subject is not None
    assert subject.operations == ()


async def test_rows_come_back_member_for_member(house: House, store: Store) -> None:
    whole = full("K-1")
    thing = Subject(
        scope=SCOPE,
        handle=Handle("order:1"),
        updated_ms=5,
        operations=(whole.id,),
        guards={"create_payment": Guard(holder=whole.id, seq=3)},
        alias=Handle("payment:pay_1"),
        latest=SEEN,
        looked_up_ms=4,
        lookup_owner=Owner("w"),
        lookup_until_ms=6,
        lookup_epoch="boot-1",
    )
    await store.transact(PutRows((whole, thing)))
    another = await house.enter()
    assert await another.transact(ReadRow(SCOPE, whole.id, thing.handle)) == (whole, thing)


async def test_verb_that_raises_leaves_nothing_and_spoils_no_other(store: Store) -> None:
    one, two = operation("K-1"), operation("K-2")
    await store.transact(PutRows((one, two)))

    def refuse() -> None:
        raise ArithmeticError("a bug in a verb")

    failed, fine = await asyncio.gather(
        store.transact(Bump(SCOPE, one.id, then=refuse)),
        store.transact(Bump(SCOPE, two.id)),
        return_exceptions=True,
    )
    assert isinstance(failed, ArithmeticError)
    assert fine == 2
    assert await store.load(one.id) == one


@pytest.mark.parametrize("amount", [2**53 + 1, 2**63, 2**64, -(2**70), 10**40])
async def test_amount_of_any_size_is_kept_or_refused_alone(store: Store, amount: int) -> None:
    """A caller may send any number; it must not stop the store for the others."""
    absurd = replace(operation("K-1"), amount=amount)
    end, fine = await asyncio.gather(
        store.transact(PutRows((absurd,))),
        store.transact(PutRows((operation("K-2"),))),
        return_exceptions=True,
    )
    assert not isinstance(fine, Exception)
    assert isinstance(end, OverflowError) or await store.load(absurd.id) == absurd
    await store.transact(PutRows((operation("K-3"),)))
    await store.holdings()


async def test_many_verbs_on_one_row_each_see_the_one_before(store: Store) -> None:
    one = operation("K-1")
    await store.transact(PutRows((one,)))
    fences = await asyncio.gather(*(store.transact(Bump(SCOPE, one.id)) for _ in range(40)))
    assert sorted(fences) == list(range(2, 42))


async def test_many_verbs_of_two_processes_on_one_row_lose_no_update(house: House, store: Store) -> None:
    one = operation("K-1")
    await store.transact(PutRows((one,)))
    another = await house.enter()
    fences = await asyncio.gather(
        *(side.transact(Bump(SCOPE, one.id)) for _ in range(20) for side in (store, another))
    )
    assert sorted(fences) == list(range(2, 42))


async def test_hundred_callers_of_one_key_make_one_leader(house: House, store: Store) -> None:
    another = await house.enter()
    answers = await asyncio.gather(
        *(
            side.transact(reserve("K-1", f"{name}-{n}"))
            for n in range(50)
            for name, side in (("a", store), ("b", another))
        )
    )
    assert sum(isinstance(answer, Reserved) for answer in answers) == 1


async def test_broken_verb_stops_nobody(store: Store) -> None:
    """Not even one that can't say what it is about."""
    for _ in range(6):
        ends = await asyncio.gather(
            store.transact(PutRows(())), store.transact(PutRows((operation("K-1"),))), return_exceptions=True
        )
        assert not isinstance(ends[0], asyncio.CancelledError)
    await store.transact(PutRows((operation("K-2"),)))
    assert await store.load(operation("K-2").id) is not None


async def test_cancelled_caller_does_not_harm_those_after_it(store: Store) -> None:
    one = operation("K-1")
    await store.transact(PutRows((one,)))
    tasks = [asyncio.ensure_future(store.transact(Bump(SCOPE, one.id))) for _ in range(10)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    await asyncio.gather(*tasks[::2], return_exceptions=True)
    fences = await asyncio.gather(*tasks[1::2])
    assert len(set(fences)) == 5
    assert await store.transact(Bump(SCOPE, one.id)) > max(fences)


@pytest.mark.parametrize("name", ["a{b}c", "}{", "{}x", "{user}", "商户/一", "a:b*c?[d]", "x" * 200])
async def test_any_scope_and_key_name_is_a_name_of_its_own(store: Store, name: str) -> None:
    scope, other = Scope(name, "live"), Scope(name, "test")
    here = await store.transact(reserve(name, scope=scope))
    there = await store.transact(reserve(name, scope=other))
    assert isinstance(here, Reserved)
    assert isinstance(there, Reserved)
    assert here.operation.id != there.operation.id
    assert await store.load(here.operation.id) == here.operation
    _, subject = await store.transact(ReadRow(scope, here.operation.id, Handle(f"order:{name}")))
    assert subject is not None
    assert subject.operations == (here.operation.id,)


async def test_lease_over_is_taken_over_with_doubt(house: House, store: Store) -> None:
    leading = await lead(store, "K-1", lease_ms=100)
    house.clock.advance(150)
    await store.wait(leading, timeout_ms=3_000)
    answer = await store.transact(reserve("K-1", "another"))
    assert isinstance(answer, Reserved)
    assert answer.operation.fence > leading.fence
    assert answer.operation.doubt


async def test_secret_is_made_once_and_kept(house: House, store: Store) -> None:
    another = await house.enter()
    assert store.secrets() == another.secrets()
    ((name, secret),) = store.secrets()
    assert len(secret) >= 32
    assert secret.hex() not in name


async def test_configured_secret_is_the_current_one_and_the_made_one_is_kept(durable: House) -> None:
    first = await durable.enter()
    (made,) = first.secrets()
    await durable.leave(first)
    second = await durable.enter(secret=b"of the configuration")
    current, kept = second.secrets()
    assert current[1] == b"of the configuration"
    assert kept == made


async def test_ping_answers(store: Store) -> None:
    await store.ping()


async def test_closed_store_refuses(durable: House) -> None:
    store = await durable.enter()
    await durable.leave(store)
    with pytest.raises(StoreUnavailable) as raised:
        await store.transact(reserve("K-1"))
    assert not raised.value.may_have_happened
    with pytest.raises(StoreUnavailable):
        await store.load(OperationId("x"))
