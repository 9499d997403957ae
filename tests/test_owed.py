"""Writes owed to the ledger are made before anything else is done for their key or their subject (D3)."""

from __future__ import annotations

import pytest

from proxy import owed as owed_module
from proxy.core.admit import AdmitUnrecorded
from proxy.core.messages import Blocked, Reserved, Running
from proxy.core.model import Handle, Key, Outcome, Owner, State, replace
from proxy.core.reserve import ReserveOperation, WithdrawClaim
from proxy.owed import OwedWrites
from proxy.ports import Query
from proxy.stores.memory import MemoryStore
from tests.contract.values import LEASE_MS, HandClock, claim


def unrecorded(name: str, *, order: str | None = None) -> AdmitUnrecorded:
    """A call that was forwarded while the store was down and got no answer."""
    return AdmitUnrecorded(claim(name, order=order), Key(name), Outcome.IN_DOUBT, None, 1_000, None)


def reserve(name: str, owner: str, *, order: str | None = None) -> ReserveOperation:
    return ReserveOperation(claim(name, order=order), Owner(owner), LEASE_MS)


async def test_a_claim_whose_reply_was_lost_is_taken_back_before_its_key_is_used_again() -> None:
    store = MemoryStore(HandClock())
    owed = OwedWrites(store)
    await store.transact(reserve("K", "lost"))
    owed.withdraw(WithdrawClaim(claim("K"), Owner("lost")))

    assert isinstance(await store.transact(reserve("K", "b")), Running)
    await owed.take_back(claim("K"))

    assert isinstance(await store.transact(reserve("K", "c")), Reserved)
    assert len(owed) == 0


async def test_of_calls_at_once_whose_replies_were_lost_each_claim_is_taken_back() -> None:
    """D3: which of them got it nobody knows; one left would end as a doubt about what was never sent."""
    store = MemoryStore(HandClock())
    owed = OwedWrites(store)
    await store.transact(reserve("K", "first"))
    for owner in ("first", "second"):
        owed.withdraw(WithdrawClaim(claim("K"), Owner(owner)))

    await owed.take_back(claim("K"))

    assert isinstance(await store.transact(reserve("K", "c")), Reserved)
    assert len(owed) == 0


async def test_each_claim_that_is_owed_counts_once_until_it_is_taken_back() -> None:
    """By the count calls are refused once too many writes wait (D3)."""
    owed = OwedWrites(MemoryStore(HandClock()))
    for name, owner in (("K1", "a"), ("K1", "b"), ("K1", "b"), ("K2", "c"), ("K3", "d")):
        owed.withdraw(WithdrawClaim(claim(name), Owner(owner)))
    assert len(owed) == 4

    await owed.take_back(claim("K1"))
    assert len(owed) == 2
    assert await owed.pay()
    assert len(owed) == 0


async def test_what_was_sent_unrecorded_holds_its_order_before_another_key_is_claimed() -> None:
    store = MemoryStore(HandClock())
    owed = OwedWrites(store)
    owed.add(unrecorded("K1", order="O"))

    await owed.take_back(claim("K2", order="O"))

    blocked = await store.transact(reserve("K2", "b", order="O"))
    assert isinstance(blocked, Blocked)
    assert (blocked.holder.key, blocked.holder.state) == ("K1", State.UNKNOWN)
    assert len(owed) == 0


async def test_what_was_sent_for_other_things_waits_its_turn() -> None:
    store = MemoryStore(HandClock())
    owed = OwedWrites(store)
    owed.add(unrecorded("K1", order="O1"))
    owed.add(unrecorded("K2"))

    await owed.take_back(replace(claim("K3", order="O3"), subject=Handle("order:O3")))

    assert len(owed) == 2
    assert await owed.pay()
    assert len(owed) == 0


async def test_what_was_sent_twice_for_one_key_is_written_once_each_and_leaves_nothing() -> None:
    store = MemoryStore(HandClock())
    owed = OwedWrites(store)
    for _ in range(2):
        owed.add(unrecorded("K1", order="O1"))
    owed.add(unrecorded("K2", order="O1"))
    owed.add(unrecorded("K3", order="O3"))

    await owed.take_back(claim("K1", order="O9"))
    assert len(owed) == 2
    await owed.take_back(claim("K9", order="O1"))
    assert len(owed) == 1
    assert await owed.pay()
    assert owed._unrecorded == {}


async def test_what_calls_under_way_add_past_the_limit_drops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what was sent without the store nothing else knows (D3)."""
    monkeypatch.setattr(owed_module, "OWED_MAX", 2)
    store = MemoryStore(HandClock())
    owed = OwedWrites(store)
    for name in ("K1", "K2", "K3"):
        owed.add(unrecorded(name))

    assert owed.is_full
    assert await owed.pay()
    assert len((await store.find(Query())).operations) == 3


async def test_what_is_on_the_wire_is_a_doubt_for_its_key_and_its_order_alone() -> None:
    """D3: whoever asks for them meets it; nobody else needs it before it is known how it ended."""
    store = MemoryStore(HandClock())
    owed = OwedWrites(store)
    owed.sends(unrecorded("K1", order="O1"))

    await owed.take_back(claim("K2", order="O2"))
    assert not await owed.pay()
    assert (await store.find(Query())).operations == ()

    await owed.take_back(claim("K2", order="O1"))
    (found,) = (await store.find(Query())).operations
    assert (found.key, found.state, found.doubt) == ("K1", State.UNKNOWN, True)


async def test_a_claim_that_was_perhaps_made_holds_its_key_while_that_is_on_the_wire_without_the_store() -> (
    None
):
    """H8, D3: taken back, another host would claim the key, and tell of it as not executed."""
    store = MemoryStore(HandClock())
    owed = OwedWrites(store)
    await store.transact(reserve("K", "lost"))
    owed.withdraw(WithdrawClaim(claim("K"), Owner("lost")))
    number = owed.sends(unrecorded("K"))

    assert not await owed.pay()
    assert isinstance(await store.transact(reserve("K", "elsewhere")), Running)

    owed.sent(number, unrecorded("K"))
    assert await owed.pay()
    (found,) = (await store.find(Query())).operations
    assert (found.state, found.doubt, found.attempt_count) == (State.UNKNOWN, True, 1)


async def test_a_claim_that_was_perhaps_made_is_free_once_what_was_sent_left_nothing() -> None:
    store = MemoryStore(HandClock())
    owed = OwedWrites(store)
    await store.transact(reserve("K", "lost"))
    owed.withdraw(WithdrawClaim(claim("K"), Owner("lost")))

    owed.sent(owed.sends(unrecorded("K")), None)

    assert await owed.pay()
    assert (await store.find(Query())).operations == ()


@pytest.mark.parametrize("outcome", [None, Outcome.EXECUTED])
async def test_of_what_was_on_the_wire_its_end_alone_is_written(outcome: Outcome | None) -> None:
    store = MemoryStore(HandClock())
    owed = OwedWrites(store)
    number = owed.sends(unrecorded("K1"))

    owed.sent(number, replace(unrecorded("K1"), outcome=outcome) if outcome else None)

    assert await owed.pay()
    assert [one.state for one in (await store.find(Query())).operations] == [State.EXECUTED][: bool(outcome)]
