"""Each ending of an attempt, at socket level: not sent, or maybe sent, and never the wrong one (R2)."""

from __future__ import annotations

import asyncio
import resource
import socket

import pytest

from proxy.core.http import (
    Answered,
    MaybeSent,
    MaybeSentReason,
    NotSent,
    NotSentReason,
    Phase,
    Response,
    WireRequest,
    WireResult,
)
from proxy.wire.upstream import HttpUpstream

from .conftest import Bench, monotonic_ms
from .peers import Close, HalfClose, Hang, Hold, Mark, RawPlatform, Reset, Script, Send, When, answer, chunked

PAYMENT = WireRequest(b"POST", b"/v1/payments", ((b"Idempotency-Key", b"k"),), b'{"amount":10000}')
BIG = WireRequest(b"POST", b"/v1/payments", ((b"Idempotency-Key", b"k"),), b"x" * 20_000_000)
HEAD_201 = b"HTTP/1.1 201 Created\r\nContent-Length: 400\r\n\r\n"
VIA = (b"Via", b"1.1 safepost")


async def send(upstream: HttpUpstream, request: WireRequest = PAYMENT, timeout_ms: int = 5_000) -> WireResult:
    return await upstream.send(request, timeout_ms=timeout_ms)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


async def test_answer_comes_whole(bench: Bench) -> None:
    platform = await bench.platform(Script(Send(answer(201, b"{}", (b"X-A", b"1"), reason=b"Created"))))
    result = await send(bench.upstream(platform.url))
    assert result == Answered(Response(201, ((b"X-A", b"1"), VIA), b"{}", b"Created"))


async def test_request_leaves_byte_for_byte(bench: Bench) -> None:
    platform = await bench.platform()
    upstream = bench.upstream(platform.url + "/base/path/")
    headers = ((b"x-B", b"1"), (b"X-b", b"2"), (b"X-Name", b"caf\xe9"), (b"Via", b"1.1 other"))
    await upstream.send(WireRequest(b"PUT", b"//a%2Fb/?q=%zz", headers, b"\0body"), timeout_ms=5_000)
    assert bytes(platform.streams[0].log) == (
        b"PUT /base/path//a%%2Fb/?q=%%zz HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nx-B: 1\r\nX-b: 2\r\nX-Name: caf\xe9\r\n"
        b"Via: 1.1 other\r\nVia: 1.1 safepost\r\nContent-Length: 5\r\n\r\n\0body" % platform.port
    )


@pytest.mark.parametrize(
    ("method", "lengths"), [(b"POST", [b"0"]), (b"PUT", [b"0"]), (b"GET", []), (b"DELETE", []), (b"HEAD", [])]
)
async def test_empty_body_says_its_length_where_one_is_expected(
    bench: Bench, method: bytes, lengths: list[bytes]
) -> None:
    platform = await bench.platform(Script(Send(answer(204, length=None))))
    await send(bench.upstream(platform.url), WireRequest(method, b"/", (), b""))
    assert platform.received[0].header(b"content-length") == lengths


async def test_headers_of_the_wire_are_its_own(bench: Bench) -> None:
    """Framing that slipped in from above would let a second request be smuggled."""
    platform = await bench.platform()
    slipped = (
        (b"Host", b"evil"),
        (b"content-length", b"0"),
        (b"Transfer-Encoding", b"chunked"),
        (b"Connection", b"close"),
        (b"Expect", b"100-continue"),
        (b"HTTP2-Settings", b"x"),
        (b"Upgrade", b"h2c"),
    )
    await send(bench.upstream(platform.url), WireRequest(b"POST", b"/", slipped, b"ab"))
    received = platform.received[0]
    assert [name for name, _ in received.headers] == [b"Host", b"Via", b"Content-Length"]
    assert received.body == b"ab"


async def test_line_break_in_a_header_is_never_sent(bench: Bench) -> None:
    """O-42: nothing leaves, and no connection or slot is lost by it."""
    platform = await bench.platform()
    upstream = bench.upstream(platform.url)
    for value in (b"a\r\nX-Evil: 1", b"a\nb", b"a\rb", b"a\0b"):
        with pytest.raises(ValueError, match="nothing was sent"):
            await send(upstream, WireRequest(b"POST", b"/", ((b"Idempotency-Key", value),), b""))
    assert platform.streams == []
    assert upstream.pool.connections_open == 0


async def test_unresolved_name_is_not_sent(bench: Bench) -> None:
    result = await send(bench.upstream("http://no-such-host.invalid:9"))
    assert isinstance(result, NotSent)
    assert result.reason is NotSentReason.DNS


async def test_refused_connection_is_not_sent(bench: Bench) -> None:
    result = await send(bench.upstream(f"http://127.0.0.1:{free_port()}"))
    assert isinstance(result, NotSent)
    assert result.reason is NotSentReason.REFUSED


async def test_unreachable_address_is_not_sent(bench: Bench) -> None:
    result = await send(bench.upstream("http://255.255.255.255:9"))
    assert isinstance(result, NotSent)
    assert result.reason is NotSentReason.UNREACHABLE


async def test_connection_that_takes_too_long_is_not_sent(bench: Bench) -> None:
    """A full accept queue: the kernel answers no further handshake."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
        try:
            result = await send(bench.upstream(f"http://127.0.0.1:{port}", connect_timeout_ms=50))
        finally:
            for filler in fillers:
                filler.close()
    assert isinstance(result, NotSent)
    assert result.reason is NotSentReason.CONNECT_TIMEOUT
    assert "50 ms" in result.detail


async def test_no_file_descriptor_is_not_sent(bench: Bench) -> None:
    platform = await bench.platform()
    upstream = bench.upstream(platform.url)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as last:
        resource.setrlimit(resource.RLIMIT_NOFILE, (last.fileno(), hard))
        try:
            result = await send(upstream)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert isinstance(result, NotSent)
    assert result.reason is NotSentReason.RESOURCES
    assert isinstance(await send(upstream), Answered)


async def test_instant_that_passed_is_not_sent_and_the_connection_stays(bench: Bench) -> None:
    platform = await bench.platform()
    now = monotonic_ms()
    upstream = bench.upstream(platform.url, clock=lambda: now)
    assert isinstance(await send(upstream), Answered)
    began: list[int] = []
    late = await upstream.send(
        PAYMENT, timeout_ms=5_000, not_after_ms=now - 1, on_first_byte=lambda: began.append(1)
    )
    assert isinstance(late, NotSent)
    assert late.reason is NotSentReason.TOO_LATE
    assert began == []
    just = await upstream.send(
        PAYMENT, timeout_ms=5_000, not_after_ms=now, on_first_byte=lambda: began.append(1)
    )
    assert isinstance(just, Answered)
    assert began == [1]
    assert (platform.hits, len(platform.streams)) == (2, 1)


async def maybe(
    bench: Bench, script: Script, *, request: WireRequest = PAYMENT, timeout_ms: int = 5_000
) -> MaybeSent:
    """How the attempt broke; and that it was one attempt and left no connection behind."""
    platform = await bench.platform()
    platform.plan(script)
    upstream = bench.upstream(platform.url)
    result = await send(upstream, request, timeout_ms)
    assert isinstance(result, MaybeSent)
    assert len(platform.streams) == 1
    assert upstream.pool.connections_open == 0
    return result


@pytest.mark.parametrize(
    ("script", "reason", "phase", "status"),
    [
        (Script(Reset(), when=When.BYTE), MaybeSentReason.RESET, Phase.WAITING, None),
        (Script(Reset()), MaybeSentReason.RESET, Phase.WAITING, None),
        (Script(Close()), MaybeSentReason.EOF, Phase.WAITING, None),
        (Script(HalfClose(), Hang()), MaybeSentReason.EOF, Phase.WAITING, None),
        (Script(Send(b"HTTP/1.1 100 Continue\r\n\r\n"), Close()), MaybeSentReason.EOF, Phase.WAITING, None),
        (Script(Send(b"HTTP/1.1 20"), Close()), MaybeSentReason.EOF, Phase.WAITING, None),
        (Script(Send(HEAD_201 + b"x" * 30), Close()), MaybeSentReason.TRUNCATED, Phase.READING, 201),
        (Script(Send(HEAD_201 + b"x" * 30), Reset()), MaybeSentReason.TRUNCATED, Phase.READING, 201),
        (Script(Send(HEAD_201), Close()), MaybeSentReason.TRUNCATED, Phase.READING, 201),
        (
            Script(Send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc"), Close()),
            MaybeSentReason.TRUNCATED,
            Phase.READING,
            200,
        ),
        (
            Script(Send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n"), Close()),
            MaybeSentReason.TRUNCATED,
            Phase.READING,
            200,
        ),
        (Script(Send(b"SSH-2.0-OpenSSH_9\r\n"), Hang()), MaybeSentReason.GARBAGE, Phase.WAITING, None),
        (
            Script(
                Send(b"HTTP/1.1 201 C\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n"), Hang()
            ),
            MaybeSentReason.GARBAGE,
            Phase.WAITING,
            None,
        ),
        (
            Script(Send(b"HTTP/1.1 201 C\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"), Hang()),
            MaybeSentReason.GARBAGE,
            Phase.READING,
            201,
        ),
        (
            Script(Send(b"HTTP/1.1 200 OK\r\nX: " + b"a" * 70_000), Hang()),
            MaybeSentReason.TOO_LARGE,
            Phase.WAITING,
            None,
        ),
    ],
)
async def test_attempt_that_broke_is_maybe_sent(
    bench: Bench, script: Script, reason: MaybeSentReason, phase: Phase, status: int | None
) -> None:
    result = await maybe(bench, script)
    assert (result.reason, result.phase, result.status) == (reason, phase, status)


@pytest.mark.parametrize(
    ("script", "phase", "status"),
    [
        (Script(Hang()), Phase.WAITING, None),
        (Script(Hang(), when=When.BYTE), Phase.WAITING, None),
        (Script(Send(b"HTTP/1.1 103 Early Hints\r\n\r\n"), Hang()), Phase.WAITING, None),
        (Script(Send(HEAD_201 + b"x"), Hang()), Phase.READING, 201),
    ],
)
async def test_attempt_that_ran_out_of_time_is_maybe_sent(
    bench: Bench, script: Script, phase: Phase, status: int | None
) -> None:
    result = await maybe(bench, script, timeout_ms=500)
    assert (result.reason, result.phase, result.status) == (MaybeSentReason.TIMEOUT, phase, status)


async def test_time_runs_for_the_whole_answer_not_for_each_read(bench: Bench) -> None:
    gate = asyncio.Event()
    drip = [step for _ in range(350) for step in (Send(b"x"), Hold(gate))]

    async def turn() -> None:
        for _ in range(1_000):
            await asyncio.sleep(0.005)
            gate.set()
            gate.clear()

    turning = asyncio.ensure_future(turn())
    result = await maybe(bench, Script(Send(HEAD_201), *drip), timeout_ms=500)
    turning.cancel()
    assert (result.reason, result.phase) == (MaybeSentReason.TIMEOUT, Phase.READING)


@pytest.mark.parametrize(
    ("end", "reason"),
    [(Reset(), MaybeSentReason.RESET), (Close(), MaybeSentReason.RESET), (Hang(), MaybeSentReason.TIMEOUT)],
)
async def test_attempt_that_broke_while_sending_is_maybe_sent(
    bench: Bench, end: Reset | Close | Hang, reason: MaybeSentReason
) -> None:
    never = asyncio.Event()
    script = Script(Hold(never) if isinstance(end, Hang) else end, when=When.HEAD)
    timeout_ms = 300 if isinstance(end, Hang) else 10_000
    result = await maybe(bench, script, request=BIG, timeout_ms=timeout_ms)
    assert (result.reason, result.phase) == (reason, Phase.SENDING)


async def test_answer_past_the_limit_is_maybe_sent(bench: Bench) -> None:
    for body in (
        answer(200, b"x" * 101),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked([b"x" * 101]),
    ):
        platform = await bench.platform(Script(Send(body), Hang()))
        result = await send(bench.upstream(platform.url, response_bytes_max=100))
        assert isinstance(result, MaybeSent)
        assert (result.reason, result.phase, result.status) == (MaybeSentReason.TOO_LARGE, Phase.READING, 200)
    platform = await bench.platform(Script(Send(answer(200, b"x" * 100))))
    assert isinstance(await send(bench.upstream(platform.url, response_bytes_max=100)), Answered)


async def test_early_answer_is_an_answer_and_its_connection_not_used_again(bench: Bench) -> None:
    """O-25: 413 after the head alone, then FIN, while the body is still on its way."""
    platform = await bench.platform()
    never = asyncio.Event()
    early = answer(413, b"too large", (b"Connection", b"close"), reason=b"Too Large")
    platform.plan(Script(Send(early), HalfClose(), Hold(never), when=When.HEAD))
    upstream = bench.upstream(platform.url)
    result = await send(upstream, BIG)
    assert isinstance(result, Answered)
    assert (result.response.status, result.response.body) == (413, b"too large")
    assert isinstance(await send(upstream), Answered)
    assert len(platform.streams) == 2


async def test_early_answer_without_close_is_not_followed_by_another_call(bench: Bench) -> None:
    platform = await bench.platform()
    never = asyncio.Event()
    platform.plan(Script(Send(answer(401, b"no")), Hold(never), when=When.HEAD))
    upstream = bench.upstream(platform.url)
    result = await send(upstream, BIG)
    assert isinstance(result, Answered)
    assert result.response.status == 401
    assert isinstance(await send(upstream), Answered)
    assert len(platform.streams) == 2


@pytest.mark.parametrize(
    "wire",
    [
        answer(200, b"ok"),
        b"HTTP/1.1 100 Continue\r\n\r\n" + answer(200, b"ok"),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        + chunked([b"o", b"k"], b"X-Checksum: 1\r\n"),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\nok\r\n0\r\n\r\n",
    ],
)
async def test_connection_is_used_again_after_a_clean_answer(bench: Bench, wire: bytes) -> None:
    platform = await bench.platform(Script(Send(wire)))
    upstream = bench.upstream(platform.url)
    for _ in range(3):
        result = await send(upstream)
        assert isinstance(result, Answered)
        assert result.response.body == b"ok"
        assert result.response.headers == (VIA,)
    assert (platform.hits, len(platform.streams)) == (3, 1)


@pytest.mark.parametrize(
    "script",
    [
        Script(Send(answer(200, b"ok", (b"Connection", b"close")))),
        Script(Send(b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok")),
        Script(Send(b"HTTP/1.1 200 OK\r\n\r\nok"), Close()),
        Script(Send(answer(200, b"ok") + b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")),
        Script(Send(answer(200, b"ok")), Close()),
    ],
)
async def test_connection_is_not_used_again_after_any_other(bench: Bench, script: Script) -> None:
    platform = await bench.platform(script)
    upstream = bench.upstream(platform.url)
    for at in range(3):
        result = await send(upstream)
        assert isinstance(result, Answered)
        assert result.response.body == b"ok"
        await platform.gone(at)
    assert len(platform.streams) == 3


async def test_bytes_that_came_late_are_never_the_next_calls_answer(bench: Bench) -> None:
    gate, sent = asyncio.Event(), asyncio.Event()
    stray = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"
    platform = await bench.platform()
    platform.plan(Script(Send(answer(200, b"ok")), Hold(gate), Send(stray), Mark(sent), Hang()))
    upstream = bench.upstream(platform.url)
    assert isinstance(await send(upstream), Answered)
    gate.set()
    await sent.wait()
    result = await send(upstream)
    assert isinstance(result, Answered)
    assert result.response.body == b"ok"
    assert len(platform.streams) == 2


async def test_connection_that_the_platform_closed_is_not_written_to(bench: Bench) -> None:
    """The kernel is asked before each use; the loop need not have noticed yet."""
    closed = asyncio.Event()
    platform = await bench.platform()
    platform.plan(Script(Send(answer(200, b"ok")), HalfClose(), Mark(closed), Hang()))
    upstream = bench.upstream(platform.url)
    assert isinstance(await send(upstream), Answered)
    await closed.wait()
    assert isinstance(await send(upstream), Answered)
    assert (platform.hits, len(platform.streams)) == (2, 2)


async def test_connection_closed_at_the_first_byte_is_maybe_sent_and_sent_once(bench: Bench) -> None:
    """O-17: whether to try again is not the wire's to say."""
    platform = await bench.platform()
    platform.plan(Script(Send(answer(200, b"ok"))), Script(Close(), when=When.BYTE))
    upstream = bench.upstream(platform.url)
    assert isinstance(await send(upstream), Answered)
    result = await send(upstream)
    assert isinstance(result, MaybeSent)
    assert result.reason in (MaybeSentReason.EOF, MaybeSentReason.RESET)
    assert len(platform.streams) == 1


async def test_redirect_is_an_answer(bench: Bench) -> None:
    async with RawPlatform() as elsewhere:
        moved = answer(
            302, b"moved", (b"Location", elsewhere.url.encode() + b"/x"), (b"Set-Cookie", b"sid=A")
        )
        platform = await bench.platform(Script(Send(moved)))
        upstream = bench.upstream(platform.url)
        result = await send(upstream)
        assert isinstance(result, Answered)
        assert (result.response.status, result.response.body) == (302, b"moved")
        await send(upstream, WireRequest(b"GET", b"/", (), b""))
        assert elsewhere.streams == []
    assert platform.received[1].header(b"cookie") == []


@pytest.mark.parametrize("method", [b"GET", b"HEAD", b"PUT", b"DELETE", b"OPTIONS"])
async def test_nothing_is_repeated_behind_our_back(bench: Bench, method: bytes) -> None:
    platform = await bench.platform(Script(Close()))
    result = await send(bench.upstream(platform.url), WireRequest(method, b"/", (), b""))
    assert isinstance(result, MaybeSent)
    assert platform.hits == 1


async def test_environments_proxies_are_not_used(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    platform = await bench.platform()
    assert isinstance(await send(bench.upstream(platform.url)), Answered)


async def test_cancelled_attempt_closes_its_connection(bench: Bench) -> None:
    platform = await bench.platform(Script(Hang()))
    upstream = bench.upstream(platform.url)
    sending = asyncio.ensure_future(send(upstream))
    await platform.got(1)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    await platform.gone(0)
    assert upstream.pool.connections_open == 0


@pytest.mark.parametrize(
    "url",
    [
        "ftp://a",
        "a:80",
        "http://",
        "http://u:p@a/",
        "http://a/?q",
        "http://a/#f",
        "http://a/b c",
        "https://a:x/",
    ],
)
async def test_url_that_is_none_is_refused(bench: Bench, url: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        bench.upstream(url)
