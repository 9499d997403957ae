"""Platforms that are not who they should be, and TLS callers, through the whole product (O-33, R2, R4)."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from proxy.wire.tls import TlsFiles, client_context, server_context
from tests.e2e.callers import Told, payment
from tests.e2e.platforms import ok
from tests.e2e.stage import Proxy, Stage, until
from tests.wire.peers import Hold, RawCaller, Script, Send, answer
from tests.wire.test_tls import Authority

IMPOSTORS: dict[str, tuple[Callable[[Path], tuple[ssl.SSLContext, str]], str]] = {}
"""By name: what the platform listens with, whom the proxy trusts; and what has to be told."""


def _impostor(
    name: str, told: str
) -> Callable[[Callable[[Path], tuple[ssl.SSLContext, str]]], Callable[[Path], tuple[ssl.SSLContext, str]]]:
    def noted(
        make: Callable[[Path], tuple[ssl.SSLContext, str]],
    ) -> Callable[[Path], tuple[ssl.SSLContext, str]]:
        IMPOSTORS[name] = (make, told)
        return make

    return noted


@_impostor("expired", "certificate has expired")
def _expired(folder: Path) -> tuple[ssl.SSLContext, str]:
    authority = Authority(folder)
    return server_context(authority.issue("localhost", days=1)), authority.file


@_impostor("of another name", "localhost")
def _other_name(folder: Path) -> tuple[ssl.SSLContext, str]:
    authority = Authority(folder)
    return server_context(authority.issue("wrong.test")), authority.file


@_impostor(
    "of an unknown authority", "self-signed certificate in certificate chain|unable to get local issuer"
)
def _untrusted(folder: Path) -> tuple[ssl.SSLContext, str]:
    return server_context(Authority(folder, "other").issue("localhost")), Authority(folder).file


@pytest.mark.parametrize("name", IMPOSTORS)
async def test_certificate_that_does_not_verify_ends_the_call_at_once_and_says_why(
    stage: Stage, tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    make, said = IMPOSTORS[name]
    context, trusted = make(tmp_path)
    platform = await stage.platform(ok(), tls=context)
    proxy = await stage.proxy(
        f"https://localhost:{platform.port}",
        upstream={"tls": {"ca_file": trusted}},
        retry={"attempts": 5},
        log={"level": "info", "format": "json"},
    )

    told = await proxy.call(payment())

    assert (told.status, told.code, told.knowledge) == (503, "upstream_unavailable", "not_executed")
    assert told.attempts == 1, "a certificate does not get better by asking again"
    message = str(told.error["message"])
    assert "certificate (localhost: " in message
    assert any(part in message for part in said.split("|"))
    assert platform.hits == 0
    await proxy.app.stop()
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines() if line.startswith("{")]
    (attempt,) = [line for line in lines if line["event"] == "attempt"]
    assert attempt["cause"].startswith("localhost: ")


async def test_certificate_of_ours_is_read_anew_when_its_file_changes(stage: Stage, tmp_path: Path) -> None:
    """Rotation without a restart, through the whole product; the platform sees the new one."""
    authority = Authority(tmp_path)
    theirs = authority.issue("localhost")
    platform = await stage.platform(
        Script(Send(answer(201, b'{"id":"p","status":"succeeded"}', (b"Connection", b"close")))),
        tls=server_context(TlsFiles(authority.file, theirs.cert_file, theirs.key_file)),
    )
    mine = authority.issue("first.test", at="mine")
    tls = {"ca_file": authority.file, "cert_file": mine.cert_file, "key_file": mine.key_file}
    proxy = await stage.proxy(f"https://localhost:{platform.port}", upstream={"tls": tls})

    first = await proxy.call(payment("K1", order="O-1"))
    authority.issue("second.test", at="mine")
    second = await proxy.call(payment("K2", order="O-2"))

    assert (first.status, second.status) == (201, 201)
    names = [str(stream.writer.get_extra_info("peercert")["subject"]) for stream in platform.streams]
    assert ["first.test" in names[0], "second.test" in names[1]] == [True, True]


async def _over_tls(stage: Stage, tmp_path: Path, url: str) -> tuple[Proxy, ssl.SSLContext]:
    """A proxy that listens with TLS, and what its callers trust."""
    authority = Authority(tmp_path)
    files = authority.issue("proxy.test")
    listen = {
        "address": "127.0.0.1:0",
        "tls": {"cert_file": files.cert_file, "key_file": files.key_file},
    }
    return await stage.proxy(url, listen=[listen]), client_context(TlsFiles(ca_file=authority.file))


async def test_tls_caller_that_says_goodbye_early_does_not_stop_its_payment(
    stage: Stage, tmp_path: Path
) -> None:
    """TLS has no half-close here: a caller that ends its side is gone, and its payment is finished (H6)."""
    gate = asyncio.Event()
    platform = await stage.platform(ok())
    platform.plan(Script(Hold(gate), *ok().steps))
    proxy, trusting = await _over_tls(stage, tmp_path, platform.url)
    async with await RawCaller.dial(proxy.address, tls=trusting, name="proxy.test") as caller:
        await caller.send(payment())
        await platform.got(1)
        caller.stream.writer.close()
        gate.set()
    await until(lambda: not proxy.app.now.driver.runs)

    operation = await proxy.operation()
    assert (operation.knowledge, operation.attempt_count) == ("executed", 1)
    async with await RawCaller.dial(proxy.address, tls=trusting, name="proxy.test") as again:
        await again.send(payment())
        assert Told.of(await again.answer()).status == 201


async def test_plain_caller_on_a_tls_port_gets_nothing_and_reaches_nobody(
    stage: Stage, tmp_path: Path
) -> None:
    platform = await stage.platform(ok())
    proxy, _ = await _over_tls(stage, tmp_path, platform.url)

    async with await RawCaller.dial(proxy.address) as caller:
        await caller.send(payment())
        heard = await caller.to_end()

    assert not heard.startswith(b"HTTP/")
    assert platform.streams == []
