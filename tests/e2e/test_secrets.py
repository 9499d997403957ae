"""Card data and credentials are nowhere but on the wire (D4, K5, M3; O-64)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.callers import Told, payment, request
from tests.e2e.platforms import ok, refuses
from tests.e2e.processes import Process
from tests.e2e.stage import LOOKUPS, Stage
from tests.wire.peers import Close, Hang, Reset, Script, Send

NUMBER, CODE, TOKEN = "4242424242424242", "9876", "sk_test_SECRET1"
CARD: dict[str, Any] = {"number": NUMBER, "cvc": CODE, "holder": "TEST USER"}
NAMED: dict[str, Any] = {"card_number": NUMBER, "security_code": CODE}
UNWANTED = (NUMBER, f'"{CODE}"', TOKEN, "SECRET_OF_FILE", "TEST USER")
DEBUG: dict[str, Any] = {"log": {"level": "debug", "format": "json"}}


def _with_card(key: str, order: str) -> bytes:
    raw = payment(key, order=order, card=CARD, **NAMED)
    return raw.replace(b"sk_test_A", TOKEN.encode())


def _files(folder: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in folder.iterdir() if file.name.startswith("ledger.db")}


async def _everything_kept(process: Process, folder: Path) -> dict[str, bytes]:
    """All that an operator or a thief could read afterwards."""
    found = _files(folder)
    found["said"] = "\n".join(process.said).encode()
    for path in ("/metrics", "/operations?limit=200", "/openapi.json", "/readyz"):
        found[path] = (await process.ask(path)).body
    for one in await process.operations():
        path = f"/operations/{one['id']}"
        found[path] = (await process.ask(path)).body
    return found


def _holds_nothing(found: dict[str, bytes]) -> None:
    leaks = [(place, word) for place, text in found.items() for word in UNWANTED if word.encode() in text]
    assert leaks == []


ENDINGS = {
    "success": ok(),
    "422": refuses(422, "validation_error"),
    "402": refuses(402, "card_declined"),
    "500": refuses(500, "internal_error"),
    "time-out": Script(Hang()),
    "reset": Script(Reset()),
    "echo": ok(card=CARD, **NAMED),
    "garbage": Script(Send(f"{NUMBER} {CODE}\r\n\r\n".encode()), Close()),
}


@pytest.mark.slow
async def test_o64_nothing_of_a_card_or_a_credential_is_kept(stage: Stage) -> None:
    platform = await stage.platform(ok())
    process = await stage.process(
        platform.url,
        retry={"attempts": 1, "attempt_timeout": "1s"},
        upstream={"authorization": "SECRET_OF_FILE"},
        lookups=LOOKUPS,
        routes={"create_refund": {"replay": "stored"}},
        **DEBUG,
    )
    ours: dict[str, bytes] = {}
    for n, (name, script) in enumerate(ENDINGS.items()):
        platform.plan(script)
        told = await process.call(_with_card(f"K{n}", f"O-{n}"))
        if told.code in ("result_unknown", "upstream_unavailable"):
            ours[name] = told.raw.head + told.body
    other_amount = await process.call(_with_card("K0", "O-other"))
    ours["conflict"] = other_amount.raw.head + other_amount.body
    assert other_amount.code == "idempotency_conflict"
    await _malformed(process)
    process.said.append("")  # a line that the reader may still hold
    await asyncio.sleep(0.3)

    kept = await _everything_kept(process, stage.folder)
    assert b'"K0"' in kept["said"], "the log says nothing: this test tells nothing"
    assert any(b"O-0" in text for place, text in kept.items() if "ledger.db" in place)
    _holds_nothing(kept | ours)


async def _malformed(process: Process) -> None:
    """What a parser might print while it complains."""
    broken = [
        f"POST /v1/payments HTTP/1.1\r\nHost: x\r\nbad header {NUMBER}\r\n\r\n".encode(),
        f"{NUMBER} {TOKEN}\r\n\r\n".encode(),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + NUMBER.encode(),
        _with_card("KM", "O-M").replace(b'"amount":10000', b'"amount":10000,"amount":1'),
        _with_card("KM", "O-M").replace(b'{"merchant', b'{"merchant_order_no'),
        _with_card("", "O-M"),
    ]
    told: list[Told] = [await process.call(raw) for raw in broken]
    assert [one.status for one in told] == [400] * len(broken)
    assert [one for one in told if NUMBER in one.body.decode(errors="replace")] == []


@pytest.mark.slow
async def test_o64_refused_connection_keeps_nothing_either(stage: Stage) -> None:
    process = await stage.process("http://127.0.0.1:1", retry={"attempts": 2}, **DEBUG)

    told = await process.call(_with_card("K", "O"))

    assert told.code == "upstream_unavailable"
    _holds_nothing(await _everything_kept(process, stage.folder) | {"answer": told.body})


async def test_o64_other_card_under_the_same_key_is_no_conflict(stage: Stage) -> None:
    platform = await stage.platform(ok())
    proxy = await stage.proxy(platform.url, routes={"create_payment": {"replay": "stored"}})
    first = await proxy.call(payment(card=CARD))

    again = await proxy.call(payment(card={"number": "4000000000000002", "cvc": "111"}))

    assert (again.status, again.body, again.replayed) == (201, first.body, True)
    assert platform.hits == 1


async def test_s7_follower_with_another_card_never_sends_it(stage: Stage) -> None:
    sandbox = await stage.sandbox()
    sandbox.add_fault({"fault": "delay", "seconds": 0.3})
    proxy = await stage.proxy(sandbox.url, retry={"attempt_timeout": "5s"})

    first, second = await asyncio.gather(
        proxy.call(payment(card={"number": NUMBER})), proxy.call(payment(card={"number": "4000000000000002"}))
    )

    assert first.body == second.body
    assert len(sandbox.requests) == 1


async def test_echoed_card_reaches_its_caller_and_no_store(stage: Stage) -> None:
    platform = await stage.platform(ok(card=CARD))
    proxy = await stage.proxy(platform.url)

    told = await proxy.call(payment(card=CARD))

    assert NUMBER.encode() in told.body
    operation = await proxy.operation()
    assert operation.answer is not None
    assert operation.answer.body is None
    assert operation.newest is not None
    assert operation.newest.body is None


async def test_request_id_is_made_passed_and_echoed(stage: Stage) -> None:
    """H7, on guarded and on streamed calls."""
    platform = await stage.platform(ok(200))
    proxy = await stage.proxy(platform.url)
    trace = ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")

    given = await proxy.call(payment("K", 1, ("X-Request-Id", "mine-1"), trace))
    made = await proxy.call(request("GET", "/v1/payments/pay_t1"))

    assert given.header("x-request-id") == "mine-1"
    assert platform.received[0].header(b"x-request-id") == [b"mine-1"]
    assert platform.received[0].header(b"traceparent") == [trace[1].encode()]
    assert made.header("x-request-id") == platform.received[1].header(b"x-request-id")[0].decode()
