"""What callers say of themselves is not believed (H1, K6), and what is stored tells strangers little (P1)."""

from __future__ import annotations

import pytest

from tests.e2e.callers import payment, request
from tests.e2e.platforms import JSON, ok, thing
from tests.e2e.stage import Stage
from tests.wire.peers import Script, Send, answer

CLAIMS = (
    ("Forwarded", "for=10.0.0.1;host=other.test;proto=https"),
    ("X-Forwarded-For", "10.0.0.1"),
    ("X-Forwarded-Host", "other.test"),
    ("X-Forwarded-Proto", "https"),
    ("X-Real-IP", "10.0.0.1"),
    ("X-Original-URL", "/v1/refunds"),
    ("X-Rewrite-URL", "/v1/refunds"),
    ("X-HTTP-Method-Override", "GET"),
    ("Safepost-Knowledge", "not_executed"),
    ("Safepost-Operation", "op_of_another"),
    ("Safepost-Attempts", "9"),
    ("Idempotent-Replayed", "true"),
)


async def test_what_a_caller_claims_changes_neither_route_nor_scope_nor_answer(stage: Stage) -> None:
    """It passes on as it came (H1), less Safepost's own, and Safepost reads none of it."""
    platform = await stage.platform(ok())
    proxy = await stage.proxy(platform.url)

    plain = await proxy.call(payment())
    claimed = await proxy.call(payment("K", 10_000, *CLAIMS))

    assert claimed.operation == plain.operation, "the claims made another operation of it"
    assert (claimed.knowledge, claimed.status) == ("executed", 201)
    sent = platform.received[1]
    host = [b"127.0.0.1:%d" % platform.port]
    assert (sent.method, sent.target, sent.header(b"host")) == (b"POST", b"/v1/payments", host)
    for name, value in CLAIMS:
        is_ours = name.startswith("Safepost-")
        assert sent.header(name.lower().encode()) == ([] if is_ours else [value.encode()])


@pytest.mark.parametrize("is_guarded", [True, False], ids=["guarded", "streamed"])
async def test_platform_can_not_speak_in_safeposts_name(stage: Stage, is_guarded: bool) -> None:
    forged = ((b"Safepost-Knowledge", b"not_executed"), (b"safepost-operation", b"op_forged"))
    platform = await stage.platform(Script(Send(answer(201, thing(), JSON, *forged))))
    proxy = await stage.proxy(platform.url)

    told = await proxy.call(payment() if is_guarded else request("GET", "/v1/x"))

    assert told.knowledge == ("executed" if is_guarded else None)
    assert "op_forged" not in told.raw.head.decode("latin-1")


async def test_merchant_of_a_header_is_a_scope_of_its_own(stage: Stage) -> None:
    """Two merchants behind one sidecar never share a key, nor see each other's answers."""
    platform = await stage.platform()
    platform.plan(ok(id="pay_a"), ok(id="pay_b"))
    proxy = await stage.proxy(platform.url, merchant={"header": "X-Merchant-Id"})

    first = await proxy.call(payment("K", 1, ("X-Merchant-Id", "a")))
    second = await proxy.call(payment("K", 1, ("X-Merchant-Id", "b")))

    assert (first.json["id"], second.json["id"]) == ("pay_a", "pay_b")
    assert first.operation != second.operation


@pytest.mark.parametrize(
    "named",
    [
        [],
        [("X-Merchant-Id", "")],
        [("X-Merchant-Id", "a"), ("X-Merchant-Id", "b")],
        [("X-Merchant-Id", "a, b")],
        [("X-Merchant-Id", "a/b")],
        [("X-Merchant-Id", "caf\u00e9")],
        [("X-Merchant-Id", "m" * 65)],
    ],
    ids=["none", "empty", "two", "list", "slash", "not ascii", "long"],
)
async def test_call_that_does_not_name_one_merchant_is_refused(
    stage: Stage, named: list[tuple[str, str]]
) -> None:
    """The platform might go by the other value, and `a/b` with `c` would be `a` with `b/c`."""
    platform = await stage.platform(ok())
    proxy = await stage.proxy(platform.url, merchant={"header": "X-Merchant-Id"})

    told = await proxy.call(payment("K", 1, *named))

    assert (told.status, told.code, told.error["field"]) == (400, "invalid_request", "X-Merchant-Id")
    assert platform.streams == []
    assert await proxy.operations() == ()


async def test_nothing_but_the_configured_platform_is_ever_dialled(stage: Stage) -> None:
    """Neither a target nor a Host nor a redirect nor a Location leads anywhere else."""
    other = await stage.platform(ok())
    platform = await stage.platform(
        Script(Send(answer(302, b"", (b"Location", f"{other.url}/v1/payments".encode()))))
    )
    proxy = await stage.proxy(platform.url)
    host = f"127.0.0.1:{other.port}"
    targets = (f"http://{host}/v1/x", f"//{host}/v1/x", f"/{other.url}", f"/@{host}/")

    for target in targets:
        raw = request("GET", target).replace(b"Host: sut.test", f"Host: {host}".encode())
        await proxy.call(raw)
    await proxy.call(payment().replace(b"Host: sut.test", f"Host: {host}".encode()))

    assert other.streams == []
    assert all(seen.header(b"host") == [f"127.0.0.1:{platform.port}".encode()] for seen in platform.received)
