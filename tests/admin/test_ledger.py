"""The ledger's endpoints: lists, one operation, waiting, resolving by hand, looking up now (A2, C5)."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.admin.conftest import Stage, until


async def test_list_shows_what_is_unknown_first_page_and_next(stage: Stage) -> None:
    await stage.pay("ORDER-0")
    ids = [await stage.unknown(f"ORDER-{n}~reset_after") for n in range(3)]

    first = await stage.admin.get("/operations?knowledge=unknown&order=oldest&limit=2")
    rest = await stage.admin.get(
        f"/operations?knowledge=unknown&order=oldest&limit=2&cursor={first.body['cursor']}"
    )

    assert [one["id"] for one in first.body["operations"]] == ids[:2]
    assert [one["id"] for one in rest.body["operations"]] == ids[2:]
    assert rest.body["cursor"] is None


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ("subject=order:ORDER-1", 1),
        ("subject=order:ORDER-9", 0),
        ("key=payment.create:ORDER-1:1", 1),
        ("route=create_payment", 2),
        ("route=create_refund", 0),
        ("knowledge=executed", 2),
        ("since=2020-01-01T00:00:00Z", 2),
        ("until=2020-01-01T00:00:00%2B08:00", 0),
        ("until=100000000000", 0),
    ],
)
async def test_list_filters(stage: Stage, query: str, count: int) -> None:
    await stage.pay("ORDER-1")
    await stage.pay("ORDER-2")

    answer = await stage.admin.get(f"/operations?{query}")

    assert len(answer.body["operations"]) == count


@pytest.mark.parametrize(
    ("query", "field", "told"),
    [
        ("limit=0", "limit", "a number from 1 to 1000"),
        ("limit=-1", "limit", "a number from 1 to 1000"),
        ("limit=1e3", "limit", "a number from 1 to 1000"),
        ("limit=99999", "limit", "a number from 1 to 1000"),
        ("limit=%D9%A3", "limit", "a number from 1 to 1000"),
        ("limit=1&limit=2", "limit", "one value"),
        ("cursor=x", "cursor", "one that an earlier page gave"),
        ("cursor=%00", "cursor", "one that an earlier page gave"),
        ("knowledge=maybe", "knowledge", "executed, pending, not_executed, unknown"),
        ("knowledge=", "knowledge", "a value, or no such parameter"),
        ("key=", "key", "a value, or no such parameter"),
        ("route=nope", "route", "create_payment"),
        ("order=up", "order", "newest, oldest"),
        ("since=yesterday", "since", "2026-11-29T20:00:00Z"),
        ("since=2020", "since", "2026-11-29T20:00:00Z"),
        ("since=1796000000", "since", "milliseconds"),
        ("since=2026-11-29T20:00:00", "since", "with its zone"),
        ("since=2026-11-29T20:00:00Z&until=2026-11-28T20:00:00Z", "until", "not before since"),
        ("sort=up", "sort", "allowed: cursor, key"),
    ],
)
async def test_list_refuses_what_it_does_not_understand(
    stage: Stage, query: str, field: str, told: str
) -> None:
    answer = await stage.admin.get(f"/operations?{query}")

    assert (answer.status, answer.code) == (400, "invalid_request")
    assert answer.body["error"]["field"] == field
    assert told in answer.message


async def test_one_operation_tells_its_whole_story_and_no_secret(stage: Stage) -> None:
    body = {"merchant_order_no": "ORDER-1~reset_after", "amount": 12_345, "currency": "USD"}
    card = {"number": "4242424242424242", "cvc": "987"}
    headers = {"Idempotency-Key": "K-1", "Authorization": "Bearer sk_test_SECRET1", "X-Request-Id": "req-7"}
    sent = await stage.caller.send("POST", "/v1/payments", json=body | {"card": card}, headers=headers)

    answer = await stage.admin.get(f"/operations/{sent.headers['Safepost-Operation']}")

    told = answer.body
    assert told["knowledge"] == "unknown"
    assert (told["amount"], told["currency"]) == (12_345, "USD")
    assert [(one["n"], one["outcome"], one["request_id"]) for one in told["attempts"]] == [
        (1, "in_doubt", "req-7")
    ]
    assert told["history"][-1]["kind"] == "doubt"
    assert [step["step"] for step in told["next_steps"]] == ["lookup", "same_key_repeat", "person"]
    assert told["resolvable_as"] == ["succeeded", "failed", "canceled", "expired", "absent"]
    assert told["made_by"]["platform"] == "payhub"
    for secret in ("4242424242424242", "987", "sk_test_SECRET1"):
        assert secret not in answer.text


async def test_masks_a_key_that_looks_like_a_card(stage: Stage) -> None:
    sent = await stage.pay("ORDER-1", key="pay-4242424242424242")

    answer = await stage.admin.get(f"/operations/{sent.headers['Safepost-Operation']}")

    assert answer.body["key"] == "[card, 20 characters, masked]"
    assert "4242424242424242" not in answer.text


@pytest.mark.parametrize("identity", ["op_nope", "%00", "x" * 300, "%E2%82%AC", "..%2f..%2fetc"])
async def test_unknown_id_is_404(stage: Stage, identity: str) -> None:
    answer = await stage.admin.get(f"/operations/{identity}")

    assert (answer.status, answer.code) == (404, "not_found")


async def test_wait_answers_when_a_person_settles(stage: Stage) -> None:
    identity = await stage.unknown()
    waiting = asyncio.ensure_future(stage.admin.get(f"/operations/{identity}?wait=15s"))
    await until(stage.waits)

    body = {"status": "succeeded", "by": "Li Wei", "note": "seen at the bank"}
    await stage.admin.post(f"/operations/{identity}/resolve", body)

    answer = await asyncio.wait_for(waiting, 5)
    assert answer.body["is_settled"] is True


async def test_wait_ends_when_its_time_is_up(stage: Stage) -> None:
    identity = await stage.unknown()

    answer = await stage.admin.get(f"/operations/{identity}?wait=150ms")

    assert (answer.status, answer.body["is_settled"]) == (200, False)


@pytest.mark.parametrize("value", ["", "30", "-1s", "61s", "2m", "1h", "1.5s", "9999999s", "1s&wait=1s"])
async def test_wait_refuses_what_is_no_short_time(stage: Stage, value: str) -> None:
    identity = await stage.unknown()

    answer = await stage.admin.get(f"/operations/{identity}?wait={value}")

    assert (answer.status, answer.body["error"]["field"]) == (400, "wait")
    assert "from 0s to 60s" in answer.message


async def test_resolve_settles_names_who_and_is_never_sent_again(stage: Stage) -> None:
    identity = await stage.unknown()
    body = {"status": "failed", "by": "Li Wei", "note": "bank: declined\ncase 77"}

    answer = await stage.admin.post(f"/operations/{identity}/resolve", body)

    assert answer.status == 200
    assert (answer.body["knowledge"], answer.body["status"]) == ("executed", "failed")
    assert answer.body["settled_by_hand"] == "failed"
    last = answer.body["history"][-1]
    assert (last["kind"], last["by"], last["text"]) == (
        "by_hand",
        "Li Wei",
        "failed: bank: declined\ncase 77",
    )
    hits = len(stage.sandbox.requests.seen)
    again = await stage.pay("ORDER-1~reset_after")
    assert (again.status, again.code) == (409, "settled_by_hand")
    assert len(stage.sandbox.requests.seen) == hits


async def test_resolve_as_absent_frees_the_key(stage: Stage) -> None:
    identity = await stage.unknown("ORDER-1~reset_before")

    answer = await stage.admin.post(
        f"/operations/{identity}/resolve", {"status": "absent", "by": "Li", "note": "not at the platform"}
    )

    assert answer.body["knowledge"] == "not_executed"
    assert (await stage.pay("ORDER-1~reset_before", key="K-2")).status == 201


async def test_resolve_twice_is_refused_with_the_record(stage: Stage) -> None:
    identity = await stage.unknown()
    body = {"status": "succeeded", "by": "Li", "note": "n"}
    await stage.admin.post(f"/operations/{identity}/resolve", body)

    answer = await stage.admin.post(f"/operations/{identity}/resolve", body)

    assert (answer.status, answer.code) == (409, "not_resolvable")
    assert answer.body["error"]["operation"]["status"] == "succeeded"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"status": "paid"}, "status"),
        ({"status": 1}, "status"),
        ({"status": "processing"}, "status"),
        ({"status": None}, "status"),
        ({"by": ""}, "by"),
        ({"by": " " * 3}, "by"),
        ({"by": "x" * 101}, "by"),
        ({"by": "a\nb"}, "by"),
        ({"by": "a\x1b[31m"}, "by"),
        ({"by": 7}, "by"),
        ({"note": None}, "note"),
        ({"note": "x" * 2001}, "note"),
        ({"note": "card 4242 4242 4242 4242"}, "note"),
        ({"amount": 1}, "amount"),
    ],
)
async def test_resolve_names_the_member_that_is_wrong(
    stage: Stage, change: dict[str, object], field: str
) -> None:
    identity = await stage.unknown()
    body = {"status": "failed", "by": "Li", "note": "n"} | change

    answer = await stage.admin.post(f"/operations/{identity}/resolve", body)

    assert (answer.status, answer.body["error"]["field"]) == (400, field)
    assert "4242" not in answer.text
    assert (await stage.admin.get(f"/operations/{identity}")).body["knowledge"] == "unknown"


TWICE = b'{"status":"absent","status":"failed","by":"Li","note":"n"}'
"""Which of the two a reader takes is its own choice: nobody may settle money by it (P3)."""


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"\xff", b"[" * 20_000, TWICE])
async def test_resolve_refuses_what_is_no_json_object(stage: Stage, body: bytes) -> None:
    identity = await stage.unknown()

    answer = await stage.admin.send(
        "POST",
        f"/operations/{identity}/resolve",
        data=body,
        headers={"Content-Type": "application/json"},
    )

    assert answer.status == 400
    assert (await stage.admin.get(f"/operations/{identity}")).body["knowledge"] == "unknown"


async def test_resolve_refuses_a_call_under_way(stage: Stage) -> None:
    body = {"merchant_order_no": "ORDER-1", "amount": 1, "currency": "USD"}
    stage.sandbox.add_fault({"match": {"order": "ORDER-1"}, "fault": "delay", "seconds": 0.8})
    headers = {"Idempotency-Key": "K"}
    paying = asyncio.ensure_future(stage.caller.send("POST", "/v1/payments", json=body, headers=headers))
    found = await until(stage.listed)

    answer = await stage.admin.post(
        f"/operations/{found[0]['id']}/resolve", {"status": "failed", "by": "Li", "note": "n"}
    )

    assert (answer.status, answer.code) == (409, "not_resolvable")
    assert "under way" in answer.message
    assert (await paying).status == 201


async def test_lookup_now_settles_what_the_platform_knows(stage: Stage) -> None:
    identity = await stage.unknown()

    answer = await stage.admin.post(f"/operations/{identity}/lookup", {})

    assert (answer.status, answer.body["knowledge"], answer.body["status"]) == (200, "executed", "succeeded")
    assert answer.body["settled_by"] == "lookup"


async def test_lookup_twice_at_once_is_too_soon(stage: Stage) -> None:
    identity = await stage.unknown("ORDER-1~reset_before")
    first = await stage.admin.post(f"/operations/{identity}/lookup", {})

    second = await stage.admin.post(f"/operations/{identity}/lookup", {})

    assert (first.status, first.body["knowledge"]) == (200, "unknown")
    assert (second.status, second.code) == (409, "too_soon")
    assert (
        second.headers["Retry-After"] == "1"
    )  # min_interval (A2), not the hour until the schedule's next point


async def test_lookup_of_a_settled_one_asks_nobody(stage: Stage) -> None:
    sent = await stage.pay("ORDER-1")
    hits = len(stage.sandbox.requests.seen)

    answer = await stage.admin.post(f"/operations/{sent.headers['Safepost-Operation']}/lookup", {})

    assert (answer.status, answer.code) == (409, "settled")
    assert len(stage.sandbox.requests.seen) == hits


async def test_holdings_add_the_money_up(stage: Stage) -> None:
    await stage.unknown("ORDER-1~reset_after", amount=700)
    await stage.unknown("ORDER-2~reset_after", amount=300)
    await stage.pay("ORDER-3~202", amount=50)

    answer = await stage.admin.get("/holdings")

    assert answer.body["unknown"]["count"] == 2
    assert answer.body["unknown"]["amounts"] == {"USD": 1_000}
    assert answer.body["pending"]["amounts"] == {"USD": 50}
    assert answer.body["unknown"]["oldest_ms"] >= 0


async def test_holdings_tell_the_backlog_of_lookups_and_its_end(stage: Stage) -> None:
    """After an outage: what is left, and how long that takes at the polite rate."""
    resolver = stage.app.now.resolver
    resolver.is_enabled = False  # its loop would count anew
    await resolver.step()
    resolver.backlog = 3_000

    answer = await stage.admin.get("/holdings")

    assert answer.body["lookups"] == {"due": 3_000, "ends_in_ms": 600_000}


async def test_shape_of_a_row_and_of_an_operation_stays(stage: Stage) -> None:
    """Scripts and exports read it: a name may be added, none may go."""
    identity = await stage.unknown()
    row = (await stage.admin.get("/operations")).body["operations"][0]
    whole = (await stage.admin.get(f"/operations/{identity}")).body

    assert {"id", "key", "subject", "knowledge", "state", "status", "amount", "currency"} <= row.keys()
    assert row.keys() <= whole.keys()
    assert {"attempts", "history", "lookups", "newest", "answer", "next_steps"} <= whole.keys()
    assert json.dumps(whole["attempts"][0]).count("request_id") == 1
