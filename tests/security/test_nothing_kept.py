"""Card data and credentials through every path, at debug level: not a byte of them is kept (D4, K5, M3, O-64)."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from tests.e2e.callers import Told, call, payment, post, request
from tests.e2e.platforms import JSON, ok, refuses, says, thing
from tests.e2e.processes import Process
from tests.e2e.stage import LOOKUPS, Stage
from tests.stores.redis_server import Server
from tests.wire.peers import Close, Hang, RawPlatform, Reset, Script, Send, answer, chunked

NUMBER, GROUPED, HOLDER = "4242424242424242", "4242 4242 4242 4242", "TEST HOLDER"
CODE = "Cvc98761"  # with letters: five digits alone also stand in some sum of seconds, or some instant, by chance
TOKEN, COOKIE, CONFIGURED = "sk_test_SECRET1", "session=SECRET2", "sk_test_SECRET3"
ADMIN, SIGNING, FINGERPRINTS = "admin-SECRET4", "whsec_SECRET5", "fingerprint-secret-SECRET6-of-32-bytes"
UNWANTED = (NUMBER, GROUPED, CODE, HOLDER, "SECRET")
CARD: dict[str, Any] = {"number": NUMBER, "cvc": CODE, "holder": HOLDER}
ECHO: dict[str, Any] = {"card": CARD, "authorization": f"Bearer {TOKEN}"}


def _paying(key: str, *headers: tuple[str, str]) -> bytes:
    """A payment full of what must not be kept."""
    raw = payment(
        key,
        10_000,
        ("Cookie", COOKIE),
        ("X-Card", NUMBER),
        *headers,
        order=f"O-{key}",
        card=CARD,
        card_number=NUMBER,
        security_code=CODE,
    )
    return raw.replace(b"sk_test_A", TOKEN.encode())


def _packed(body: bytes) -> Script:
    return says(201, gzip.compress(body), (b"Content-Encoding", b"gzip"))


ENDINGS: dict[str, Script] = {
    "success": ok(),
    "success, pending": ok(202, status="processing"),
    "400": refuses(400, "invalid_request"),
    "402": refuses(402, "card_declined"),
    "409": refuses(409, "order_no_conflict"),
    "422": refuses(422, "validation_error"),
    "429": refuses(429, "rate_limited"),
    "500": refuses(500, "internal_error"),
    "302": says(302, b"moved", (b"Location", f"/pay?card={NUMBER}&token={TOKEN}".encode())),
    "time-out": Script(Hang()),
    "reset": Script(Reset()),
    "garbage": Script(Send(f"{NUMBER} {CODE} {TOKEN}\r\n\r\n".encode()), Close()),
    "bad header": Script(Send(f"HTTP/1.1 200 OK\r\nbad {NUMBER} {TOKEN}\r\n\r\n".encode()), Close()),
    "bad status line": Script(Send(f"HTTP/1.1 200OK {NUMBER} {TOKEN}\r\n\r\n".encode()), Close()),
    "cut": Script(Send(answer(201, thing(**ECHO), JSON, length=9_000)), Close()),
    "echo": ok(**ECHO),
    "echo of the number in groups": ok(note=f"paid with {GROUPED}"),
    "echo of the token alone": ok(note=f"key {TOKEN}"),
    "echo of the token, packed": _packed(thing(note=f"key {TOKEN}")),
    "echo of the card, packed": _packed(thing(card=CARD)),
    "echo in headers": says(201, thing(), (b"X-Card", NUMBER.encode()), (b"X-Key", TOKEN.encode())),
    "echo in Set-Cookie": says(201, thing(), (b"Set-Cookie", COOKIE.encode())),
    "echo in a refusal": refuses(422, "validation_error", param="card", value=NUMBER, cvc=CODE, key=TOKEN),
    "echo in a decline": refuses(402, "card_declined", detail=f"{GROUPED} of {HOLDER}, {TOKEN}"),
    "echo in an error": refuses(500, "internal_error", trace=f"card={NUMBER} cvc={CODE} {TOKEN}"),
    "echo in a code": refuses(409, NUMBER),
    "echo in HTML": Script(Send(answer(502, f"<p>{NUMBER} {CODE} {TOKEN}</p>".encode()))),
    "echo in the reason": Script(Send(answer(500, b"{}", JSON, reason=f"{NUMBER} {TOKEN}".encode()))),
    "echo in trailers": Script(
        Send(answer(201, b"", JSON, (b"Transfer-Encoding", b"chunked"), length=None)),
        Send(chunked([thing()], f"X-Card: {NUMBER}\r\nX-Key: {TOKEN}\r\n".encode())),
    ),
}

BROKEN = [
    f"POST /v1/payments HTTP/1.1\r\nHost: x\r\nbad header {NUMBER} {TOKEN}\r\n\r\n".encode(),
    f"POST /v1/payments HTTP/1.1\r\nHost: {NUMBER} {TOKEN}\r\n\r\n".encode(),
    f"{NUMBER} {TOKEN}\r\n\r\n".encode(),
    f"GET /{NUMBER} {TOKEN} HTTP/1.1\r\n\r\n".encode(),
    f"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n{NUMBER}".encode(),
    f"POST /v1/payments HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n{NUMBER}\r\n".encode(),
    _paying("KB1").replace(b'"amount":10000', b'"amount":10000,"amount":1'),
    _paying("KB2").replace(b'{"merchant', b'{"merchant_order_no'),
    _paying("KB3").replace(b"Idempotency-Key: KB3\r\n", b""),
    _paying("KB4", ("Content-Encoding", "gzip")),
    _paying("KB5", ("Connection", "Idempotency-Key")),
    _paying("KB6", ("Expect", f"{NUMBER}")),
    _paying("KB7").replace(b"/v1/payments", f"//v1/payments?card={NUMBER}&t={TOKEN}".encode(), 1),
]
"""What a parser might print while it complains."""


@pytest.fixture(params=["sqlite", "valkey"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[str, Server | None]]:
    """A store's URL, and the server behind it."""
    if request.param == "sqlite":
        yield f"sqlite:{tmp_path}/ledger.db", None
        return
    server = Server(tmp_path / "valkey", "--appendonly", "yes")
    await asyncio.to_thread(server.start)
    with closing(server.client()) as client:
        client.config_set("requirepass", "SECRET7")
    try:
        yield f"redis://:SECRET7@127.0.0.1:{server.port}/0", server
    finally:
        server.stop()


async def _told_by_every_path(process: Process, platform: RawPlatform) -> dict[str, bytes]:
    """Send everything; the bodies and heads of the answers that the product made itself."""
    own: dict[str, bytes] = {}
    for n, (name, script) in enumerate(ENDINGS.items()):
        for again in range(2):
            platform.plan(script)
            told = await process.call(_paying(f"K{n}"))
            if told.raw.header(b"x-request-id") and told.code in ("result_unknown", "upstream_unavailable"):
                own[f"{name} {again}"] = told.raw.head + told.body
    conflict = await process.call(_paying("K0").replace(b'"amount":10000', b'"amount":10001'))
    assert conflict.code == "idempotency_conflict"
    own["conflict"] = conflict.raw.head + conflict.body
    for n, raw in enumerate(BROKEN):
        told = await process.call(raw)
        assert 400 <= told.status < 500, raw
        own[f"broken {n}"] = told.raw.head + told.body
    await _streamed(process, platform)
    return own


async def _streamed(process: Process, platform: RawPlatform) -> None:
    """Calls outside the guarded routes: the target, the headers and both bodies."""
    secret = ("X-Token", TOKEN), ("Cookie", COOKIE), ("X-Request-Id", NUMBER)
    for script in (ok(**ECHO), refuses(500, "x", **ECHO), Script(Reset()), Script(Close())):
        platform.plan(script, script)
        raw = post(f"/v1/things/{NUMBER}?token={TOKEN}&cvc={CODE}", ECHO, *secret)
        await process.call(raw)
        await process.call(request("GET", f"/v1/things/{NUMBER}?token={TOKEN}", None, *secret))


async def _asked(process: Process, path: str, *, method: str = "GET", body: bytes = b"") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: {process.admin}\r\nAuthorization: Bearer {ADMIN}\r\n"
    told = await call(process.admin, f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return told.raw.head + told.body


async def _told_by_admin(process: Process) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for path in (
        "/",
        "/healthz",
        "/readyz?for=payments",
        "/metrics",
        "/openapi.json",
        "/operations?limit=200",
    ):
        found[path] = await _asked(process, path)
    listed = json.loads(found["/operations?limit=200"].partition(b"\r\n\r\n")[2])["operations"]
    for one in listed:
        path = f"/operations/{one['id']}"
        found[path] = await _asked(process, path)
        found[f"{path} export"] = await _asked(process, f"{path}?export=1")
    event = json.dumps({"type": "payment.succeeded", "data": {"object": ECHO}}).encode()
    found["event"] = await _asked(process, "/events", method="POST", body=event)
    found["bad token"] = (await process.ask("/operations")).body
    assert len(listed) > 10, "the ledger holds too little for this test to tell anything"
    return found


def _kept_in_files(folder: Path, server: Server | None) -> dict[str, bytes]:
    if server is not None:
        with closing(Redis(unix_socket_path=str(server.socket), password="SECRET7")) as client:
            client.save()
    files = [file for file in folder.rglob("*") if file.is_file() and file.name != "config.yaml"]
    kept = {str(file.relative_to(folder)): file.read_bytes() for file in files}
    return {name: text.replace(b"SECRET7", b"") for name, text in kept.items()}


def _leaks(found: dict[str, bytes]) -> list[tuple[str, str]]:
    return [(place, word) for place, text in found.items() for word in UNWANTED if word.encode() in text]


SETTINGS: dict[str, Any] = {
    "retry": {"attempts": 2, "attempt_timeout": "1s", "base": "5ms", "cap": "10ms"},
    "lookups": LOOKUPS,
    "admin_token": ADMIN,
    "events": {"secret": SIGNING},
}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["guard", "observe"])
@pytest.mark.parametrize("form", ["json", "text"])
async def test_no_byte_of_a_card_or_a_credential_is_kept_on_any_path(
    stage: Stage, tmp_path: Path, store: tuple[str, Server | None], mode: str, form: str
) -> None:
    url, server = store
    platform = await stage.platform(ok(200, **ECHO))
    process = await stage.process(
        platform.url,
        mode=mode,
        upstream={"authorization": CONFIGURED},
        store={"url": url, "secret": FINGERPRINTS},
        routes={"create_refund": {"replay": "stored"}},
        log={"level": "debug", "format": form},
        **SETTINGS,
    )
    found: dict[str, bytes] = {}
    if mode == "guard":
        found = await _told_by_every_path(process, platform)
        found |= await _told_by_admin(process)
    else:
        scripts = [script for name, script in ENDINGS.items() if name != "time-out"]
        for n, script in enumerate(scripts):  # an unguarded call has the platform's own patience
            platform.plan(script)
            with suppress(EOFError):  # an answer that the platform cut is cut for the caller too
                await process.call(_paying(f"K{n}"))
        found["/metrics"] = await _asked(process, "/metrics")
    found |= _kept_in_files(tmp_path, None if server is None else server)
    await process.kill()
    found["said"] = "\n".join(process.said).encode()

    assert found["said"].count(b"POST") > 20, "the log says nothing: this test tells nothing"
    assert mode == "observe" or any(b"O-K0" in text for name, text in found.items() if "/" not in name[:1])
    assert _leaks(found) == []


@pytest.mark.slow
async def test_no_byte_is_kept_where_nothing_listens(stage: Stage, tmp_path: Path) -> None:
    process = await stage.process("http://127.0.0.1:1", log={"level": "debug", "format": "json"})

    told: Told = await process.call(_paying("K0"))

    assert told.code == "upstream_unavailable"
    found = _kept_in_files(tmp_path, None) | {"answer": told.raw.head + told.body}
    await process.kill()
    assert _leaks(found | {"said": "\n".join(process.said).encode()}) == []


def test_check_finds_what_it_looks_for() -> None:
    """A sweep that finds nothing because it looks for nothing would be worth nothing."""
    assert _leaks({"a": f"x{NUMBER}y".encode(), "b": b"clean", "c": TOKEN.encode()}) == [
        ("a", NUMBER),
        ("c", "SECRET"),
    ]
