"""Events in and out: signatures, hints, evidence; the stream and its resume (U4, A2)."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientResponse, ClientSession
from hypothesis import given
from hypothesis import strategies as st

from proxy.config import settings_of
from proxy.core.bodies import Mistake
from proxy.webhooks import PlatformEvent, read_event, signature_fault
from tests.admin.conftest import SECRET, Client, Stage, staged, until

NOW_S = 1_800_000_000
PLATFORM = settings_of('upstream: {url: "http://127.0.0.1:9"}\nplatform: payhub\n', file="c.yaml").platform


def signed(body: bytes, *, at_s: int = NOW_S, secret: str = SECRET) -> str:
    mac = hmac.new(secret.encode(), str(at_s).encode() + b"." + body, hashlib.sha256)
    return f"t={at_s},v1={mac.hexdigest()}"


def fault(value: str, body: bytes = b"{}", *, now_s: int = NOW_S) -> str | None:
    return signature_fault(
        [value.encode("latin-1")],
        body,
        secret=SECRET.encode(),
        now_ms=now_s * 1000,
        tolerance_ms=300_000,
    )


GOOD = signed(b"{}")
HEX = GOOD.partition("v1=")[2]


@pytest.mark.parametrize(
    "value",
    [
        GOOD,
        f"t={NOW_S}, v1={HEX}",
        f"t={NOW_S},v1={'0' * 64},v1={HEX}",
        f"v1={HEX},t={NOW_S},v0=old",
        f"t={NOW_S},v1={HEX.upper()}",
    ],
)
def test_signature_holds(value: str) -> None:
    assert fault(value) is None


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("", "no t="),
        ("t=,v1=x", "no t="),
        (f"v1={HEX}", "no t="),
        (f"t=-1,v1={HEX}", "no t="),
        (f"t={NOW_S},t={NOW_S},v1={HEX}", "no t="),
        (f"t={'9' * 13},v1={HEX}", "no t="),
        (f"t={NOW_S}", "no v1="),
        (f"t={NOW_S}," + ",".join(["v1=00"] * 17), "no v1="),
        (f"t={NOW_S},v1=", "does not match"),
        (f"t={NOW_S},v1={HEX[:-1]}", "does not match"),
        (f"t={NOW_S},v1={HEX}0", "does not match"),
        (f"t={NOW_S},v1=\xe9", "does not match"),
        (f"t={NOW_S + 1},v1={HEX}", "does not match"),
        (signed(b"{}", secret="other"), "does not match"),
        (signed(b"{} "), "does not match"),
        (signed(b"{}", at_s=NOW_S - 301), "too old"),
        (signed(b"{}", at_s=NOW_S + 301), "too old"),
    ],
)
def test_signature_fault_is_named(value: str, told: str) -> None:
    assert told in (fault(value) or "")


def test_signature_must_be_there_once() -> None:
    def told(values: list[bytes]) -> str | None:
        return signature_fault(
            values, b"{}", secret=SECRET.encode(), now_ms=NOW_S * 1000, tolerance_ms=300_000
        )

    assert "missing" in (told([]) or "")
    assert "twice" in (told([GOOD.encode(), GOOD.encode()]) or "")


@given(st.binary(max_size=80), st.binary(max_size=40))
def test_no_bytes_pass_for_a_signature(value: bytes, body: bytes) -> None:
    assert signature_fault([value], body, secret=SECRET.encode(), now_ms=NOW_S * 1000, tolerance_ms=300_000)


def payment(**changes: object) -> dict[str, object]:
    made: dict[str, object] = {
        "id": "pay_1",
        "object": "payment",
        "merchant_order_no": "ORDER/1",
        "amount": 100,
        "currency": "USD",
        "status": "succeeded",
        "version": 3,
        "attempt_count": 1,
    }
    return made | changes


def event(told: dict[str, object] | object, kind: str = "payment.succeeded") -> bytes:
    return json.dumps({"id": "evt_1", "type": kind, "data": {"object": told}}).encode()


def test_event_is_read_by_the_presets_rule() -> None:
    found = read_event(event(payment()), PLATFORM, now_ms=5)

    assert isinstance(found, PlatformEvent)
    assert found.handles == ("payment:pay_1", "order:ORDER%2F1")
    assert (found.seen.status, found.seen.version, found.seen.source) == ("succeeded", 3, "event")
    assert found.seen.is_final


def test_event_with_a_card_keeps_no_body() -> None:
    found = read_event(event(payment(card={"number": "4242424242424242"})), PLATFORM, now_ms=5)

    assert isinstance(found, PlatformEvent)
    assert found.seen.body is None


@pytest.mark.parametrize("kind", ["settlement.paid", "payments", "", "PAYMENT.succeeded"])
def test_event_of_another_kind_is_none_of_ours(kind: str) -> None:
    assert read_event(event(payment(), kind), PLATFORM, now_ms=5) is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"type": 1}',
        b'{"type": "payment.succeeded"}',
        event({"id": "pay_1"}),
        event({"status": "succeeded"}),
        event([]),
        b'{"type": "payment.x", "type": "payment.y"}',
        b"\xff\xfe",
        b"[" * 100_000,
    ],
)
def test_event_that_can_not_be_read_names_the_place(body: bytes) -> None:
    found = read_event(body, PLATFORM, now_ms=5)

    assert isinstance(found, Mistake)
    assert found.place


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader(body: bytes) -> None:
    assert isinstance(read_event(body, PLATFORM, now_ms=5), Mistake | None)


# --- on a live process --------------------------------------------------------------------------------------


@pytest.fixture
async def trusted(tmp_path: Path, session: ClientSession) -> AsyncIterator[Stage]:
    """A stage that knows the platform's secret."""
    more = f"events: {{secret: {SECRET}, listen: 127.0.0.1:0}}\n"
    made = await staged(tmp_path, session, config=more)
    yield made
    await made.app.stop()
    await made.sandbox.close()


async def deliver(stage: Stage, told: dict[str, object], **headers: str) -> Any:
    body = event(told)
    at_s = stage.app.clock.wall_ms() // 1000
    sent = {"Webhook-Signature": signed(body, at_s=at_s)} | headers
    return await stage.admin.send("POST", "/events", data=body, headers=sent)


async def test_signed_event_settles_what_was_unknown(trusted: Stage) -> None:
    identity = await trusted.unknown("ORDER-1~reset_before")

    answer = await deliver(trusted, payment(id="pay_9", merchant_order_no="ORDER-1~reset_before"))

    assert (answer.status, answer.body["verdict"], answer.body["changed"]) == (200, "applied", 1)
    told = (await trusted.admin.get(f"/operations/{identity}")).body
    assert (told["knowledge"], told["settled_by"], told["resource_id"]) == ("executed", "event", "pay_9")


async def test_event_twice_and_an_older_one_change_nothing(trusted: Stage) -> None:
    await trusted.unknown("ORDER-1~reset_before")
    told = payment(merchant_order_no="ORDER-1~reset_before")
    await deliver(trusted, told)

    again = await deliver(trusted, told)
    older = await deliver(trusted, told | {"version": 1, "status": "processing"})

    assert (again.status, again.body["verdict"]) == (200, "kept")
    assert (older.status, older.body["verdict"]) == (200, "kept")


async def test_event_that_came_first_is_kept_for_its_operation(trusted: Stage) -> None:
    early = await deliver(trusted, payment(merchant_order_no="ORDER-1~reset_before"))

    answer = await trusted.pay("ORDER-1~reset_before")

    assert early.body["verdict"] == "kept"
    assert answer.headers["Safepost-Knowledge"] == "executed"


@pytest.mark.parametrize("value", ["", "t=1,v1=00"])
async def test_unsigned_or_forged_event_is_refused_where_a_secret_is_set(trusted: Stage, value: str) -> None:
    identity = await trusted.unknown("ORDER-1~reset_before")

    answer = await deliver(
        trusted, payment(merchant_order_no="ORDER-1~reset_before"), **{"Webhook-Signature": value}
    )

    assert (answer.status, answer.code) == (401, "invalid_signature")
    assert (await trusted.admin.get(f"/operations/{identity}")).body["knowledge"] == "unknown"


async def test_event_without_a_secret_is_a_hint_that_starts_a_lookup(stage: Stage) -> None:
    """What it says is not believed: the platform is asked, and says otherwise."""
    identity = await stage.unknown("ORDER-1~reset_after")

    answer = await stage.admin.send(
        "POST", "/events", data=event(payment(merchant_order_no="ORDER-1~reset_after", status="failed"))
    )

    assert (answer.status, answer.body["verdict"], answer.body["changed"]) == (202, "hint", 1)

    async def settled() -> bool:
        told = (await stage.admin.get(f"/operations/{identity}")).body
        return bool(told["is_settled"])

    await until(settled)
    told = (await stage.admin.get(f"/operations/{identity}")).body
    assert (told["status"], told["settled_by"]) == ("succeeded", "lookup")


async def test_events_listener_serves_nothing_else(trusted: Stage, session: ClientSession) -> None:
    assert trusted.app.admin is not None
    assert trusted.app.admin.events_url is not None
    public = Client(session, trusted.app.admin.events_url)

    event_answer = await public.send("POST", "/events", data=b"{}", headers={"Host": "events.example"})

    assert event_answer.status == 401
    for path in ("/", "/operations", "/metrics", "/healthz", "/readyz", "/openapi.json", "/holdings"):
        assert (await public.get(path)).status == 404
    assert (await public.get("/events")).status == 405


async def test_verdicts_are_counted(trusted: Stage) -> None:
    await deliver(trusted, payment())
    await trusted.admin.send("POST", "/events", data=b"{}")

    page = (await trusted.admin.get("/metrics")).text

    assert 'safepost_events_total{verdict="kept"} 1.0' in page
    assert 'safepost_events_total{verdict="refused"} 1.0' in page


# --- the stream ---------------------------------------------------------------------------------------------


async def told_by(answer: ClientResponse, kind: str) -> dict[str, Any]:
    """The next event of this kind: its id and its data."""
    seen: dict[str, str] = {}
    async with asyncio.timeout(5):
        async for raw in answer.content:
            name, _, value = raw.decode().rstrip("\n").partition(": ")
            if name:
                seen[name] = value
            elif seen.get("event") == kind:
                return {"id": seen.get("id"), **json.loads(seen["data"])}
            else:
                seen = {}
    raise AssertionError("the stream ended")


async def test_stream_tells_what_becomes_unknown_and_known(stage: Stage, session: ClientSession) -> None:
    async with session.get(f"{stage.admin.url}/events") as answer:
        assert answer.content_type == "text/event-stream"
        identity = await stage.unknown()
        unknown = await told_by(answer, "became_unknown")
        body = {"status": "succeeded", "by": "Li", "note": "n"}
        await stage.admin.post(f"/operations/{identity}/resolve", body)
        known = await told_by(answer, "became_known")

    assert (unknown["operation"], unknown["amount"], unknown["knowledge"]) == (identity, 10_000, "unknown")
    assert (known["operation"], known["by"]) == (identity, "person")


async def test_stream_resumes_after_the_last_event_seen(stage: Stage, session: ClientSession) -> None:
    async with session.get(f"{stage.admin.url}/events") as answer:
        first = await stage.unknown("ORDER-1~reset_after")
        seen = await told_by(answer, "became_unknown")
    second = await stage.unknown("ORDER-2~reset_after")

    async with session.get(f"{stage.admin.url}/events", headers={"Last-Event-ID": seen["id"]}) as answer:
        missed = await told_by(answer, "became_unknown")

    assert (seen["operation"], missed["operation"]) == (first, second)


async def test_stream_says_when_it_can_not_tell_everything(stage: Stage, session: ClientSession) -> None:
    async with session.get(f"{stage.admin.url}/events?last=5") as answer:
        assert await told_by(answer, "gap") == {"id": None}


@pytest.mark.parametrize("last", ["x", "-1", "1.5", "9" * 30])
async def test_stream_refuses_what_is_no_number(stage: Stage, last: str) -> None:
    answer = await stage.admin.get(f"/events?last={last}")

    assert (answer.status, answer.body["error"]["field"]) == (400, "last")


async def test_stop_ends_open_streams_and_long_polls(tmp_path: Path, session: ClientSession) -> None:
    made = await staged(tmp_path, session)
    identity = await made.unknown()
    polling = asyncio.ensure_future(made.admin.get(f"/operations/{identity}?wait=50s"))
    await until(made.waits)
    answer = await session.get(f"{made.admin.url}/events")

    async with asyncio.timeout(6):
        await made.app.stop()

    assert (await polling).body["is_settled"] is False
    answer.close()
    await made.sandbox.close()
