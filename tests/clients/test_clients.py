"""Merchants' programs in many languages, unchanged but for the base URL."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.platforms import ok
from tests.e2e.stage import Stage

pytestmark = pytest.mark.slow

PROGRAMS = Path(__file__).parent / "programs"
PATIENCE_S = 100.0
"""Go compiles its standard library on a first run, which takes most of this on a small machine."""


@dataclass(frozen=True, slots=True)
class Client:
    """A program and what runs it. `probe`: a command that fails where the machine lacks a part of it."""

    program: str
    runner: tuple[str, ...]
    probe: tuple[str, ...] = ()


CLIENTS = {
    "curl": Client("with_curl.sh", ("sh",), ("curl", "--version")),
    "Python requests": Client("with_requests.py", (sys.executable,)),
    "Python httpx": Client("with_httpx.py", (sys.executable,)),
    "Python aiohttp": Client("with_aiohttp.py", (sys.executable,)),
    "Python urllib": Client("with_urllib.py", (sys.executable,)),
    "Node fetch": Client("with_fetch.mjs", ("node",)),
    "Node http": Client("with_http.mjs", ("node",)),
    "Java HttpClient": Client("WithHttpClient.java", ("java", "-Xshare:auto", "-XX:TieredStopAtLevel=1")),
    "PHP file_get_contents": Client("with_file_get_contents.php", ("php",)),
    "PHP curl": Client(
        "with_curl.php", ("php",), ("php", "-r", "exit((int) !function_exists('curl_init'));")
    ),
    "Ruby net/http": Client("with_net_http.rb", ("ruby",)),
    "Go net/http": Client("with_net_http.go", ("go", "run")),
}
EACH = pytest.mark.parametrize("name", CLIENTS)


async def _ran(*command: str) -> tuple[int, str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.upper().endswith("_PROXY")}
    process = await asyncio.create_subprocess_exec(
        *command,
        env={**clean, "GO111MODULE": "off", "GOFLAGS": "", "GOTOOLCHAIN": "local"},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(PATIENCE_S):
            said, complained = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode or 0, said.decode(), complained.decode()


async def _installed(client: Client) -> None:
    for tool in (client.runner[0], *client.probe[:1]):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    if client.probe and (await _ran(*client.probe))[0] != 0:
        pytest.skip(f"{' '.join(client.probe)} fails on this machine")


async def _told(client: Client, url: str, order: str) -> Sequence[Sequence[Any]]:
    """What the program was told: two payments with one key, then a lookup."""
    program = str(PROGRAMS / client.program)
    code, said, complained = await _ran(*client.runner, program, url, order, f"payment.create:{order}:1")
    assert code == 0, complained
    found: Sequence[Sequence[Any]] = json.loads(said)
    return found


@EACH
async def test_program_pays_through_the_proxy_as_it_pays_directly(stage: Stage, name: str) -> None:
    client = CLIENTS[name]
    await _installed(client)
    sandbox = await stage.sandbox()
    proxy = await stage.proxy(sandbox.url, retry={"attempt_timeout": "5s", "deadline": "60s"})

    direct = await _told(client, sandbox.url, "ORDER-DIRECT")
    through = await _told(client, f"http://{proxy.address}", "ORDER-PROXY")

    assert direct == [[201, "succeeded", None], [200, "succeeded", None], [200, "succeeded"]]
    assert through == [[201, "succeeded", "executed"], [200, "succeeded", "executed"], [200, "succeeded"]]
    assert len(sandbox.ledger.charges("ORDER-PROXY")) == 1
    (operation,) = await proxy.operations()
    assert operation.key == "payment.create:ORDER-PROXY:1"


@EACH
async def test_program_gets_its_payment_though_the_answer_was_lost(stage: Stage, name: str) -> None:
    """The bank charged and the connection broke: without the proxy the program has nothing to go by."""
    client = CLIENTS[name]
    await _installed(client)
    sandbox = await stage.sandbox()
    proxy = await stage.proxy(sandbox.url, retry={"attempt_timeout": "5s", "deadline": "60s"})
    order = "ORDER-1~reset_after~503"

    told = await _told(client, f"http://{proxy.address}", order)

    assert [one[:2] for one in told] == [[200, "succeeded"]] * 3
    assert len(sandbox.ledger.charges(order)) == 1
    assert (await proxy.operations())[0].attempt_count >= 3


# --- what is peculiar to one client ------------------------------------------------------------------------------


def _curl(url: str, *more: str, body: str) -> tuple[str, ...]:
    headers = ("Authorization: Bearer sk_test_A", "Content-Type: application/json", "Idempotency-Key: K")
    given = [part for header in headers for part in ("-H", header)]
    return ("curl", "-s", "-v", "-m", "20", *given, *more, "--data-binary", body, f"{url}/v1/payments")


async def test_curl_waits_for_100_continue_before_a_large_body(stage: Stage) -> None:
    await _installed(CLIENTS["curl"])
    sandbox = await stage.sandbox()
    proxy = await stage.proxy(sandbox.url, limits={"body": "2MiB"}, retry={"attempt_timeout": "5s"})
    fields = {"merchant_order_no": "O-1", "amount": 1, "currency": "USD", "padding": "x" * 1_100_000}
    large = stage.folder / "large.json"
    large.write_text(json.dumps(fields), encoding="utf-8")

    _, said, traced = await _ran(*_curl(f"http://{proxy.address}", body=f"@{large}"))

    assert "> Expect: 100-continue" in traced
    assert "< HTTP/1.1 100 " in traced
    assert "< HTTP/1.1 201 " in traced
    assert json.loads(said)["status"] == "succeeded"
    assert sandbox.requests.seen[0].body_bytes == large.stat().st_size
    assert "expect" not in sandbox.requests.seen[0].headers


async def test_curl_with_a_body_past_the_limit_is_told_before_it_sends(stage: Stage) -> None:
    await _installed(CLIENTS["curl"])
    platform = await stage.platform(ok())
    proxy = await stage.proxy(platform.url)
    large = stage.folder / "large.json"
    large.write_text(json.dumps({"padding": "x" * 1_100_000}), encoding="utf-8")

    _, said, traced = await _ran(*_curl(f"http://{proxy.address}", body=f"@{large}"))

    assert "< HTTP/1.1 413 " in traced
    assert json.loads(said)["error"]["code"] == "body_too_large"
    assert platform.streams == []


async def test_curl_that_offers_http_2_is_answered_in_http_1_1(stage: Stage) -> None:
    await _installed(CLIENTS["curl"])
    platform = await stage.platform(ok())
    proxy = await stage.proxy(platform.url)
    body = '{"merchant_order_no":"O-1","amount":1,"currency":"USD"}'

    _, said, traced = await _ran(*_curl(f"http://{proxy.address}", "--http2", body=body))

    assert "> Upgrade: h2c" in traced
    assert "< HTTP/1.1 201 " in traced
    assert json.loads(said)["status"] == "succeeded"
    for name in (b"upgrade", b"http2-settings"):
        assert platform.received[0].header(name) == []


async def test_curl_that_insists_on_http_2_gets_a_clear_400_and_sends_nothing(stage: Stage) -> None:
    await _installed(CLIENTS["curl"])
    platform = await stage.platform(ok())
    proxy = await stage.proxy(platform.url)

    code, _, _ = await _ran(*_curl(f"http://{proxy.address}", "--http2-prior-knowledge", body="{}"))

    assert code != 0
    assert platform.streams == []


async def test_java_that_offers_http_2_is_answered_in_http_1_1(stage: Stage) -> None:
    client = CLIENTS["Java HttpClient"]
    await _installed(client)
    platform = await stage.platform(ok(data=[{"status": "succeeded"}]))
    proxy = await stage.proxy(platform.url)

    told = await _told(client, f"http://{proxy.address}", "ORDER-T-001")

    assert told[0][0] == 201
    assert platform.hits > 0
    for seen in platform.received:
        assert seen.header(b"upgrade") == []
        assert seen.header(b"http2-settings") == []


async def test_php_that_reads_until_the_end_is_not_kept_waiting(stage: Stage) -> None:
    """`file_get_contents` asks for `close` and waits for it; a server that stays open costs it minutes."""
    client = CLIENTS["PHP file_get_contents"]
    await _installed(client)
    sandbox = await stage.sandbox()
    proxy = await stage.proxy(sandbox.url)
    loop = asyncio.get_running_loop()
    began = loop.time()

    await _told(client, f"http://{proxy.address}", "ORDER-1")

    assert loop.time() - began < 50, "a connection of ours may be idle for two minutes, and PHP waits for one"
