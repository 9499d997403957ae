"""HTTP carried through the whole product (H1-H10; part B of the failure cases, and O-59, O-61)."""

from __future__ import annotations

import asyncio
import gzip
import re
import socket

import pytest

from tests.e2e.callers import Told, call, cancel, lookup, payment, post, request
from tests.e2e.platforms import JSON, ok, thing
from tests.e2e.stage import LOOKUPS, PATIENCE_S, Proxy, Stage, until
from tests.wire.peers import Close, Hang, Hold, RawCaller, Reset, Script, Send, answer, chunked

TARGETS = [
    "/v1/payments/a%2Fb",
    "/v1/x%252Fy",
    "/v1/pay%5Fment",
    "/v1/a;b=1/c%3B",
    "/v1/%E8%AE%A2%E5%8D%95",
    "/v1/payments?merchant_order_no=A%2BB+C%20D%26E",
    "/v1/payments/a%2fb",
    "/http://127.0.0.1:6379/",
    "/v1/payments/pay_1?",
]


@pytest.mark.parametrize("base", ["", "/api/v2"])
@pytest.mark.parametrize("target", TARGETS)
async def test_o19_target_arrives_byte_for_byte(stage: Stage, target: str, base: str) -> None:
    platform = await stage.platform()
    proxy = await stage.proxy(platform.url + base)

    told = await proxy.call(request("GET", target))

    assert told.status == 200
    assert platform.received[0].target == (base + target).encode()


async def test_o19_guarded_target_with_a_query_arrives_byte_for_byte(stage: Stage) -> None:
    platform = await stage.platform(ok())
    proxy = await stage.proxy(platform.url)

    await proxy.call(payment().replace(b"/v1/payments", b"/v1/%70ayments?a=%2F&b=+"))

    assert platform.received[0].target == b"/v1/%70ayments?a=%2F&b=+"


@pytest.mark.parametrize(
    "target",
    [
        "/v1/x/../payments",
        "/v1/%2e%2e/v1/payments",
        "/v1/./payments",
        "/v1/payments/",
        "//v1/payments",
        "/v1//payments",
        "/V1/Payments",
        "/v1/payments;x=1",
        "/v1%2Fpayments",
    ],
)
async def test_h9_ways_around_the_guard_are_refused(stage: Stage, target: str) -> None:
    platform = await stage.platform(ok())
    proxy = await stage.proxy(platform.url)

    told = await proxy.call(payment().replace(b"POST /v1/payments ", f"POST {target} ".encode()))

    assert told.status == 400
    assert platform.streams == []


HOPS = (
    ("Connection", "keep-alive, X-Drop-Me"),
    ("X-Drop-Me", "1"),
    ("Keep-Alive", "timeout=5"),
    ("TE", "trailers"),
    ("Upgrade", "h2c"),
    ("Proxy-Connection", "keep-alive"),
    ("HTTP2-Settings", "AAMAAABkAAQAoAAAAAIAAAAA"),
    ("Safepost-Knowledge", "executed"),
    ("X-Keep-Me", "1"),
)


@pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "streamed"])
async def test_o20_hop_by_hop_fields_stay_on_their_hop(stage: Stage, guarded: bool) -> None:
    back = (b"Connection", b"X-R"), (b"X-R", b"1"), (b"X-S", b"2"), (b"Keep-Alive", b"timeout=9")
    platform = await stage.platform(Script(Send(answer(200, thing(), JSON, *back))))
    proxy = await stage.proxy(platform.url)

    told = await proxy.call(payment("K", 1, *HOPS) if guarded else request("GET", "/v1/x", None, *HOPS))

    sent = platform.received[0]
    assert sent.header(b"x-keep-me") == [b"1"]
    for name in (b"x-drop-me", b"keep-alive", b"te", b"upgrade", b"proxy-connection", b"http2-settings"):
        assert sent.header(name) == []
    assert sent.header(b"safepost-knowledge") == []
    assert sent.header(b"via") == [b"1.1 safepost"]
    assert (told.header("x-s"), told.header("x-r"), told.header("keep-alive")) == ("2", None, None)


@pytest.mark.parametrize("status", [200, 302, 401])
async def test_o21_repeated_fields_stay_apart_and_in_order(stage: Stage, status: int) -> None:
    cookies = [b"a=1; Expires=Wed, 21 Oct 2026 07:28:00 GMT; Path=/", b"b=2; Path=/"]
    fields = [(b"Set-Cookie", cookie) for cookie in cookies]
    fields += [
        (b"Link", b"</a>"),
        (b"link", b"</b>"),
        (b"WWW-Authenticate", b"A"),
        (b"WWW-Authenticate", b"B"),
    ]
    platform = await stage.platform(Script(Send(answer(status, b"x", *fields))))
    proxy = await stage.proxy(platform.url)

    told = await proxy.call(request("GET", "/v1/x"))

    assert told.all("set-cookie") == [cookie.decode() for cookie in cookies]
    assert told.all("link") == ["</a>", "</b>"]
    assert told.all("www-authenticate") == ["A", "B"]


INNER = b"GET /v1/internal HTTP/1.1\r\nHost: x\r\n\r\n"
CHUNKED_INNER = b"%x\r\n%b\r\n0\r\n\r\n" % (len(INNER), INNER)


@pytest.mark.parametrize(
    "framing",
    [
        b"Content-Length: 0\r\nTransfer-Encoding: chunked",
        b"Transfer-Encoding: chunked\r\nContent-Length: 0",
        b"Content-Length: 5\r\nContent-Length: 6",
        b"Transfer-Encoding: xchunked",
        b"Transfer-Encoding: chunked, identity",
        b"Transfer-Encoding : chunked",
        b"Content-Length: +5",
        b"X: 1\r\n folded: 2\r\nContent-Length: 0",
    ],
)
async def test_o22_request_with_two_readings_is_refused_and_its_connection_closed(
    stage: Stage, framing: bytes
) -> None:
    platform = await stage.platform(ok())
    proxy = await stage.proxy(platform.url)
    head = b"POST /v1/payments HTTP/1.1\r\nHost: x\r\nIdempotency-Key: K\r\n" + framing + b"\r\n\r\n"
    async with await RawCaller.dial(proxy.address) as caller:
        await caller.send(head + CHUNKED_INNER)
        told = Told.of(await caller.answer())
        assert await caller.to_end() == b""

    assert (told.status, told.code) == (400, "invalid_request")
    assert platform.streams == []


async def test_o26_caller_that_waits_for_100_gets_it_at_once(stage: Stage) -> None:
    platform = await stage.platform(ok())
    proxy = await stage.proxy(platform.url)
    head, _, body = payment("K", 10_000, ("Expect", "100-continue")).partition(b"\r\n\r\n")
    async with await RawCaller.dial(proxy.address) as caller:
        await caller.send(head + b"\r\n\r\n")
        async with asyncio.timeout(PATIENCE_S):
            assert (await caller.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        await caller.send(body)
        told = Told.of(await caller.answer())

    assert (told.status, platform.hits) == (201, 1)
    assert platform.received[0].header(b"expect") == []


async def test_o27_answers_without_a_body_do_not_wait_for_one(stage: Stage) -> None:
    platform = await stage.platform()
    platform.plan(
        Script(Send(answer(200, length=1234))),
        Script(Send(answer(304, length=77))),
        Script(Send(answer(204, length=None))),
        ok(),
    )
    proxy = await stage.proxy(platform.url)
    async with asyncio.timeout(3), await RawCaller.dial(proxy.address) as caller:
        await caller.send(request("HEAD", "/v1/x"))
        head = Told.of(await caller.answer(head_only=True))
        await caller.send(request("GET", "/v1/x"))
        unchanged = Told.of(await caller.answer())
        await caller.send(cancel("K"))
        canceled = Told.of(await caller.answer())
        await caller.send(payment("K2"))
        paid = Told.of(await caller.answer())

    assert (head.status, head.header("content-length")) == (200, "1234")
    assert unchanged.status == 304
    assert (canceled.status, canceled.knowledge) == (204, "executed")
    assert paid.status == 201
    assert len(platform.streams) == 1


async def test_o28_empty_post_says_that_it_is_empty(stage: Stage) -> None:
    platform = await stage.platform(ok(200, status="canceled"))
    proxy = await stage.proxy(platform.url)

    told = [await proxy.call(cancel("K")) for _ in range(2)]

    assert [one.status for one in told] == [200, 200]
    assert [seen.header(b"content-length") for seen in platform.received] == [[b"0"], [b"0"]]


@pytest.mark.parametrize("is_chunked", [False, True], ids=["length", "chunked"])
async def test_o29_compressed_answer_passes_unopened_and_is_understood(
    stage: Stage, is_chunked: bool
) -> None:
    packed = gzip.compress(thing())
    coding = (b"Content-Encoding", b"gzip")
    whole = answer(201, packed, JSON, coding)
    if is_chunked:
        head = answer(201, b"", JSON, coding, (b"Transfer-Encoding", b"chunked"), length=None)
        whole = head + chunked([packed[:10], packed[10:]])
    platform = await stage.platform(Script(Send(whole)))
    proxy = await stage.proxy(platform.url)

    told = await proxy.call(payment("K", 10_000, ("Accept-Encoding", "gzip")))
    read = await proxy.call(request("GET", "/v1/payments/pay_t1"))

    assert (told.body, told.header("content-encoding"), told.knowledge) == (packed, "gzip", "executed")
    assert (read.body, read.header("content-encoding")) == (packed, "gzip")
    assert (await proxy.operation()).status == "succeeded"


@pytest.mark.parametrize(
    "start",
    [
        b"GET http://169.254.169.254/latest/meta-data/ HTTP/1.1",
        b"POST http://127.0.0.1:1/v1/payments HTTP/1.1",
        b"CONNECT 127.0.0.1:6379 HTTP/1.1",
        b"GET 127.0.0.1:6379 HTTP/1.1",
    ],
)
async def test_o30_no_open_proxy(stage: Stage, start: bytes) -> None:
    platform = await stage.platform()
    proxy = await stage.proxy(platform.url)

    told = await proxy.call(start + b"\r\nHost: sut.test\r\n\r\n")

    assert told.status == 400
    assert platform.streams == []


async def test_o32_no_cookie_of_one_caller_reaches_another_nor_a_lookup(stage: Stage) -> None:
    cookie = (b"Set-Cookie", b"sid=AAA; Path=/")
    platform = await stage.platform(ok(200, version=2))
    platform.plan(
        Script(Send(answer(200, b"{}", JSON, cookie))), Script(Send(answer(202, thing("processing"), JSON)))
    )
    proxy = await stage.proxy(platform.url.replace("127.0.0.1", "localhost"), lookups=LOOKUPS)

    first = await proxy.call(request("GET", "/v1/x"))
    await proxy.call(payment())
    await platform.got(3)
    await proxy.call(request("GET", "/v1/y"))

    assert first.header("set-cookie") == "sid=AAA; Path=/"
    assert all(seen.header(b"cookie") == [] for seen in platform.received)


async def test_o35_hung_platform_leaves_no_connection_behind(stage: Stage) -> None:
    platform = await stage.platform(Script(Hang()))
    proxy = await stage.proxy(
        platform.url,
        upstream={"max_connections": 10},
        retry={"attempts": 1, "attempt_timeout": "1s", "deadline": "60s"},
    )
    callers = [await RawCaller.dial(proxy.address) for _ in range(50)]
    for n, caller in enumerate(callers):
        await caller.send(payment(f"K{n}", order=f"O-{n}"))
    await platform.got(10)
    for caller in callers:
        caller.reset()
    platform.usual = ok()

    told = await asyncio.gather(*(proxy.call(payment(f"F{n}", order=f"F-{n}")) for n in range(50)))

    assert {one.status for one in told} == {201}
    await until(lambda: not proxy.app.now.driver.runs)
    assert len(platform.streams) - len(platform.ended) <= 10


async def test_o37_sizes_are_refused_by_name(stage: Stage) -> None:
    platform = await stage.platform(ok())
    proxy = await stage.proxy(platform.url)

    big = await proxy.call(payment(padding="x" * (1 << 20)))
    header = await proxy.call(payment("K", 1, ("X-Token", "t" * 12_000)))
    line = await proxy.call(request("GET", "/v1/" + "x" * 16_384))
    many = await proxy.call(payment("K3", 1, *((f"X-{n}", "1") for n in range(300)), order="O-3"))
    huge = await proxy.call(payment("K4", 1, ("X-Token", "t" * 70_000)))

    assert (big.status, big.code) == (413, "body_too_large")
    assert header.status == 201
    assert (line.status, line.code) == (414, "invalid_request")
    assert {many.status, huge.status} == {431}
    assert many.error["message"]
    assert await proxy.operations(key="K3") == ()
    assert await proxy.operations(key="K4") == ()


async def test_o38_latin_1_byte_in_a_header_stays(stage: Stage) -> None:
    name = (b"X-Name", b"caf\xe9")
    platform = await stage.platform(Script(Send(answer(200, thing(), JSON, name))))
    proxy = await stage.proxy(platform.url, log={"level": "debug", "format": "json"})

    told = await proxy.call(payment("K", 1, ("X-Name", "caf\xe9")))

    assert platform.received[0].header(b"x-name") == [b"caf\xe9"]
    assert told.raw.header(b"x-name") == [b"caf\xe9"]


async def test_o39_trailers_do_not_break_the_connection(stage: Stage) -> None:
    head = answer(201, b"", JSON, (b"Transfer-Encoding", b"chunked"), length=None)
    platform = await stage.platform(ok())
    platform.plan(Script(Send(head + chunked([thing()], b"X-Checksum: 1\r\n"))))
    proxy = await stage.proxy(platform.url)

    first = await proxy.call(payment())
    second = await proxy.call(payment("K2", order="O-2"))

    assert (first.status, first.body, first.header("x-checksum")) == (201, thing(), None)
    assert (second.status, len(platform.streams)) == (201, 1)


async def test_o40_events_pass_as_they_come_and_end_with_their_reader(stage: Stage) -> None:
    ticks = [asyncio.Event() for _ in range(400)]
    head = answer(
        200, b"", (b"Content-Type", b"text/event-stream"), (b"Transfer-Encoding", b"chunked"), length=None
    )
    steps = [step for tick in ticks for step in (Hold(tick), Send(b"9\r\ndata: 2\n\n\r\n"))]
    platform = await stage.platform(Script(Send(head + b"9\r\ndata: 1\n\n\r\n"), *steps, Hang()))
    proxy = await stage.proxy(platform.url)
    async with await RawCaller.dial(proxy.address) as caller:
        await caller.send(request("GET", "/v1/events"))
        async with asyncio.timeout(PATIENCE_S):
            await caller.until(b"data: 1\n\n")
        ticks[0].set()
        async with asyncio.timeout(PATIENCE_S):
            await caller.until(b"data: 2\n\n")

    async def go_on_telling() -> None:
        for tick in ticks:
            tick.set()
            await asyncio.sleep(0.2)

    telling = asyncio.create_task(go_on_telling())  # as streams do: no silence ends this one
    await platform.gone(0)
    telling.cancel()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_o41_localhost_is_either_family(stage: Stage, host: str) -> None:
    if host not in {found[4][0] for found in socket.getaddrinfo("localhost", 80)}:
        pytest.skip(f"localhost is not {host} on this machine; tests/wire/test_connect.py has both families")
    platform = await stage.platform(ok(), host=host)
    proxy = await stage.proxy(f"http://localhost:{platform.port}")

    told = await proxy.call(payment())

    assert (told.status, told.attempts, platform.hits) == (201, 1, 1)


async def test_pipelined_calls_are_answered_in_their_order(stage: Stage) -> None:
    platform = await stage.platform(ok())
    proxy = await stage.proxy(platform.url)
    async with await RawCaller.dial(proxy.address) as caller:
        await caller.send(b"".join(payment(f"K{n}", order=f"O-{n}") for n in range(3)))
        told = [Told.of(await caller.answer()) for _ in range(3)]

    assert [one.header("idempotency-key") for one in told] == ["K0", "K1", "K2"]


async def test_h10_caller_that_asks_for_close_is_closed(stage: Stage) -> None:
    platform = await stage.platform(ok())
    proxy = await stage.proxy(platform.url)
    async with await RawCaller.dial(proxy.address) as caller:
        await caller.send(payment("K", 1, ("Connection", "close")))
        told = Told.of(await caller.answer())
        assert await caller.to_end() == b""

    assert (told.status, told.header("connection")) == (201, "close")


async def test_http_1_0_caller_is_served_and_closed(stage: Stage) -> None:
    platform = await stage.platform(ok())
    proxy = await stage.proxy(platform.url)
    async with await RawCaller.dial(proxy.address) as caller:
        await caller.send(payment().replace(b"HTTP/1.1", b"HTTP/1.0"))
        told = Told.of(await caller.answer())
        assert await caller.to_end() == b""

    assert told.status == 201


async def test_large_stream_passes_both_ways_whole(stage: Stage) -> None:
    """H3: outside the guarded routes no size is too large."""
    big = b"y" * 9_000_000
    platform = await stage.platform(Script(Send(answer(200, big))))
    proxy = await stage.proxy(platform.url)

    told = await proxy.call(request("POST", "/v1/files", b"x" * 5_000_000))

    assert (told.status, len(told.body), len(platform.received[0].body)) == (200, 9_000_000, 5_000_000)


async def test_reads_are_tried_once_more_after_a_broken_connection(stage: Stage) -> None:
    platform = await stage.platform()
    platform.plan(Script(Reset()))
    proxy = await stage.proxy(platform.url)

    assert (await proxy.call(lookup("x"))).status == 200
    platform.plan(Script(Reset()), Script(Close()))
    gone = await proxy.call(lookup("x"))
    assert (gone.status, gone.code) == (503, "upstream_unavailable")
    assert "no money moved" not in gone.error["message"]


@pytest.mark.parametrize(
    ("method", "key", "may_repeat"),
    [("POST", "", False), ("PATCH", "", False), ("POST", "Idempotency-Key: K\r\n", True), ("PUT", "", True)],
)
async def test_unguarded_call_in_doubt_is_not_repeated_and_told_what_a_repeat_may_do(
    stage: Stage, method: str, key: str, may_repeat: bool
) -> None:
    """R4: nobody finds its result out, and a client that obeys `retryable` must not pay twice."""
    platform = await stage.platform(Script(Reset()))
    proxy = await stage.proxy(platform.url)

    told = await proxy.call(
        f"{method} /v1/payouts HTTP/1.1\r\nHost: x\r\n{key}Content-Length: 0\r\n\r\n".encode()
    )

    assert (told.status, told.code, platform.hits) == (504, "result_unknown", 1)
    assert told.error["retryable"] is may_repeat
    assert (told.header("retry-after") is not None) is may_repeat


# --- metrics (M1) ------------------------------------------------------------------------------------------------


async def _series(proxy: Proxy) -> dict[str, float]:
    assert proxy.app.admin is not None
    address = proxy.app.admin.url.removeprefix("http://")
    told = await call(address, f"GET /metrics HTTP/1.1\r\nHost: {address}\r\n\r\n".encode())
    assert told.status == 200
    lines = [line for line in told.body.decode().splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


NAMES = (
    *("requests", "attempts", "attempt_duration_seconds", "request_duration_seconds", "overhead_seconds"),
    *("retries", "unknown_results", "unknown_operations", "oldest_unknown_seconds", "collapsed", "replayed"),
    *("conflicts", "guard_blocked", "in_flight", "lease_wait_seconds", "lookups", "settled", "store_errors"),
    *("store_duration_seconds", "breaker_state", "retry_budget_remaining", "build_info", "unknown_amount"),
    *("duplicates_prevented", "time_to_certainty_seconds"),
)


async def test_o61_every_metric_is_there_before_anything_happened(stage: Stage) -> None:
    proxy = await stage.proxy("http://127.0.0.1:1")

    series = await _series(proxy)

    names = {name.partition("{")[0] for name in series}
    missing = [name for name in NAMES if not any(one.startswith(f"safepost_{name}") for one in names)]
    assert [name for name in missing if name != "unknown_amount"] == []
    for name in ("unknown_results_total", "conflicts_total", "guard_blocked_total", "replayed_total"):
        assert series[f'safepost_{name}{{route="create_payment"}}'] == 0


async def test_o59_no_series_for_what_callers_send(stage: Stage) -> None:
    platform = await stage.platform(Script(Send(answer(404, b"{}", JSON))))
    proxy = await stage.proxy(platform.url)
    await proxy.call(request("GET", "/v1/x"))
    await proxy.call(payment("K-first", order="O-first"))
    before = await _series(proxy)

    for n in range(100):
        await proxy.call(request("GET", f"/v1/payments/secret-id-{n}"))
        await proxy.call(request("GET", f"/{n}-scan/.env"))
        await proxy.call(post("/v1/payments", {"merchant_order_no": f"N-{n}", "amount": 1}, key=f"key-{n}"))
        await proxy.call(request(f"M{n}", "/v1/x"))
    after = await _series(proxy)

    assert len(after) - len(before) < 50
    assert not [name for name in after if re.search(r"secret-id|scan|\.env|key-\d|N-\d|M\d", name)]


async def test_metrics_count_what_happened(stage: Stage) -> None:
    platform = await stage.platform(ok(200))
    platform.plan(Script(Reset()))
    proxy = await stage.proxy(platform.url)
    await proxy.call(payment())
    await proxy.call(payment("K", 12_000))

    series = await _series(proxy)

    assert series['safepost_conflicts_total{route="create_payment"}'] == 1
    attempts = {name: value for name, value in series.items() if name.startswith("safepost_attempts_total")}
    assert sum(attempts.values()) == 2
    assert sum(value for name, value in attempts.items() if "in_doubt" in name) == 1
    assert series['safepost_in_flight{route="create_payment"}'] == 0
