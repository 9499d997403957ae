"""Who may ask for what (A4), and what never reaches a log."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from aiohttp import ClientSession, UnixConnector

from tests.admin.conftest import Client, Stage, staged

RESOLVE = "/operations/op_x/resolve"


@pytest.fixture
async def guarded(tmp_path: Path, session: ClientSession) -> AsyncIterator[Stage]:
    """A stage whose admin listener asks for a token."""
    made = await staged(tmp_path, session, config="admin_token: s3cret-token\n")
    yield made
    await made.app.stop()
    await made.sandbox.close()


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8081", "10.0.0.1", "localhost.evil.example", ""]
)
async def test_refuses_to_be_called_by_a_public_name(stage: Stage, host: str) -> None:
    """A page whose name was pointed at this machine must read nothing."""
    answer = await stage.admin.get("/operations", Host=host)

    assert answer.status in (400, 403)
    assert "operations" not in answer.text


@pytest.mark.parametrize("host", ["localhost", "localhost:8081", "127.0.0.1:1", "[::1]:80", "a.localhost"])
async def test_answers_to_private_names(stage: Stage, host: str) -> None:
    assert (await stage.admin.get("/operations", Host=host)).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "http://["},
    ],
)
@pytest.mark.parametrize("path", [RESOLVE, "/operations/op_x/lookup", "/events"])
async def test_refuses_posts_of_other_sites(stage: Stage, path: str, headers: dict[str, str]) -> None:
    answer = await stage.admin.post(path, {}, **headers)

    assert (answer.status, answer.code) == (403, "cross_site")


async def test_takes_posts_of_its_own_page(stage: Stage) -> None:
    own = {"Origin": stage.admin.url, "Sec-Fetch-Site": "same-origin"}

    answer = await stage.admin.post(RESOLVE, {}, **own)

    assert answer.status == 404


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
async def test_refuses_what_a_form_of_a_page_could_send(stage: Stage, kind: str) -> None:
    answer = await stage.admin.send("POST", RESOLVE, data=b"{}", headers={"Content-Type": kind})

    assert (answer.status, answer.code) == (415, "unsupported_media_type")


@pytest.mark.parametrize(
    "token", ["", "Bearer", "Bearer wrong", "s3cret-token", "Basic s3cret-token", "Bearer é"]
)
@pytest.mark.parametrize("path", ["/operations", "/metrics", "/holdings", "/events", "/operations/op_x"])
async def test_asks_for_the_token(guarded: Stage, path: str, token: str) -> None:
    headers = {"Authorization": token} if token else {}

    answer = await guarded.admin.get(path, **headers)

    assert (answer.status, answer.code) == (401, "unauthorized")
    assert answer.headers["WWW-Authenticate"].startswith("Bearer")
    assert "s3cret" not in answer.text


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "Bearer "])
async def test_lets_the_token_in(guarded: Stage, scheme: str) -> None:
    assert (await guarded.admin.get("/operations", Authorization=f"{scheme} s3cret-token")).status == 200


async def test_probes_need_no_token_and_learn_no_detail(guarded: Stage) -> None:
    ready = await guarded.admin.get("/readyz?for=payments")

    assert (await guarded.admin.get("/healthz")).status == 200
    assert ready.body == {"ready": True, "listening": True, "draining": False, "store": {"answers": True}}


async def test_answers_carry_the_headers_of_a_private_page(stage: Stage) -> None:
    answer = await stage.admin.get("/operations")

    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Server"] == "safepost"
    assert "Access-Control-Allow-Origin" not in answer.headers


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nope", 404, "not_found"),
        ("DELETE", "/operations", 405, "method_not_allowed"),
        ("POST", "/metrics", 405, "method_not_allowed"),
    ],
)
async def test_own_shape_for_what_is_not_there(
    stage: Stage, method: str, path: str, status: int, code: str
) -> None:
    answer = await stage.admin.send(method, path)

    assert (answer.status, answer.code) == (status, code)


async def test_body_beyond_the_limit_is_refused(stage: Stage) -> None:
    answer = await stage.admin.send("POST", "/events", data=io.BytesIO(b"x" * ((1 << 20) + 1)))

    assert (answer.status, answer.code) == (413, "body_too_large")


async def test_raw_request_never_reaches_the_log(
    stage: Stage, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """aiohttp logs the bytes of what it can't parse; they may hold a card or a credential (O-64)."""
    parts = urlsplit(stage.admin.url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(
        b"POST /events HTTP/1.1\r\nHost: localhost\r\nBad Name: sk_test_SECRET1\r\n\r\n4242424242424242"
    )
    answer = await asyncio.wait_for(reader.read(), 5)
    writer.close()
    await writer.wait_closed()
    await stage.app.stop()

    assert b" 400 " in answer.split(b"\r\n", 1)[0]
    logged = "".join(capfd.readouterr()) + caplog.text
    assert "SECRET1" not in logged
    assert "4242" not in logged


async def test_unix_socket_is_only_its_owners(tmp_path: Path, session: ClientSession) -> None:
    sock = tmp_path / "admin.sock"
    made = await staged(tmp_path, session, admin=f"unix:{sock}")
    try:
        async with ClientSession(connector=UnixConnector(str(sock))) as local:
            answer = await Client(local, "http://safepost").get("/healthz")
        assert answer.status == 200
        assert sock.stat().st_mode & 0o077 == 0
    finally:
        await made.app.stop()
        await made.sandbox.close()
