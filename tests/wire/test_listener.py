"""A caller's connection on raw sockets: order, keep-alive, framing, expectations, early answers (H5)."""

from __future__ import annotations

import asyncio
import errno
import socket

import pytest

from proxy.core.http import Response
from proxy.ports import BodyTooLarge, CallerGone, Exchange
from proxy.wire.caller import CallerConnection, ListenerLimits
from proxy.wire.listener import Listener, listen
from proxy.wire.sockets import Endpoint, bound_tcp_sockets

from .conftest import Bench, saying
from .peers import LIMIT_S, RawCaller, chunked, turned
from .test_heads import REFUSED

GET = b"GET /a HTTP/1.1\r\nHost: sut.test\r\n\r\n"
HOST = b"Host: sut.test\r\n"


def post(body: bytes, *fields: bytes) -> bytes:
    extra = b"".join(field + b"\r\n" for field in fields)
    return b"POST /p HTTP/1.1\r\n" + HOST + extra + b"Content-Length: %d\r\n\r\n" % len(body) + body


async def echo(exchange: Exchange) -> None:
    """Answers with the target and body of the call."""
    body = await exchange.read_body(bytes_max=1_000_000)
    await exchange.reply(Response(200, (), exchange.head.target + b" " + body))


@pytest.mark.parametrize("raw", REFUSED.values(), ids=REFUSED.keys())
async def test_refused_request_gets_one_400_and_a_closed_connection(bench: Bench, raw: bytes) -> None:
    listener = await bench.listener(saying())
    caller = await bench.caller(listener)
    await caller.send(raw + GET)
    answer = await caller.answer()
    assert answer.status == 400
    assert answer.header(b"connection") == [b"close"]
    assert answer.header(b"cache-control") == [b"no-store"]
    assert b'"code": "invalid_request"' in answer.body
    assert b"Nothing was sent to the platform" in answer.body
    assert await caller.to_end() == b""


async def test_calls_on_one_connection_are_answered_one_after_the_other(bench: Bench) -> None:
    caller = await bench.caller(await bench.listener(echo))
    for body in (b"one", b"two", b""):
        await caller.send(post(body))
        assert (await caller.answer()).body == b"/p " + body


async def test_pipelined_calls_are_answered_in_order_and_never_at_once(bench: Bench) -> None:
    running = most = 0

    async def slowest_first(exchange: Exchange) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(20 - int(exchange.head.target[2:])):
            await asyncio.sleep(0)
        running -= 1
        await exchange.reply(Response(200, (), exchange.head.target))

    caller = await bench.caller(await bench.listener(slowest_first))
    await caller.send(b"".join(b"GET /%02d HTTP/1.1\r\n" % n + HOST + b"\r\n" for n in range(20)))
    assert [(await caller.answer()).body for _ in range(20)] == [b"/%02d" % n for n in range(20)]
    assert most == 1


async def test_pipelined_flood_stops_being_read_until_there_is_room(bench: Bench) -> None:
    gate = asyncio.Event()

    async def wait(exchange: Exchange) -> None:
        await gate.wait()
        await exchange.reply(Response(200, (), exchange.head.target))

    listener = await bench.listener(wait, ListenerLimits(read_ahead_bytes_max=1_000))
    caller = await bench.caller(listener)
    caller.stream.writer.write(GET * 400_000)
    (connection,) = await _connections(listener)
    await turned(lambda: connection._reading_paused)
    assert len(connection._buffer) < 500_000
    caller.reset()
    gate.set()


async def _connections(listener: Listener) -> set[CallerConnection]:
    await turned(lambda: listener.connections_open > 0)
    return listener._connections


async def test_request_cut_anywhere_is_one_request(bench: Bench) -> None:
    listener = await bench.listener(echo)
    caller = await bench.caller(listener)
    wire = post(b"body", b"X: y") + b"POST /c HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
    wire += chunked([b"ab", b"cd"])
    for byte in wire:
        await caller.send(bytes([byte]))
        await asyncio.sleep(0)
    assert (await caller.answer()).body == b"/p body"
    assert (await caller.answer()).body == b"/c abcd"


async def test_empty_line_before_a_request_is_ignored_once(bench: Bench) -> None:
    caller = await bench.caller(await bench.listener(saying()))
    await caller.send(b"\r\n" + GET + b"\r\n" + GET)
    assert (await caller.answer()).status == 200
    assert (await caller.answer()).status == 200
    await caller.send(b"\r\n\r\n" + GET)
    assert (await caller.answer()).status == 400


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        b"GET / HTTP/1.0\r\n\r\n",
        b"GET / HTTP/1.0\r\nHost: a\r\nConnection: close\r\n\r\n",
    ],
)
async def test_caller_that_reads_to_close_is_closed(bench: Bench, request_bytes: bytes) -> None:
    """PHP's file_get_contents hung for two minutes on a server that ignored its close."""
    caller = await bench.caller(await bench.listener(saying(b"hello")))
    await caller.send(request_bytes)
    answer = await caller.to_end()
    assert answer.endswith(b"\r\n\r\nhello")
    assert b"\r\nConnection: close\r\n" in answer


@pytest.mark.parametrize("value", [b"100-continue", b"100-Continue"])
async def test_caller_that_waits_for_100_gets_it(bench: Bench, value: bytes) -> None:
    caller = await bench.caller(await bench.listener(echo))
    head, body = post(b"body", b"Expect: " + value).split(b"\r\n\r\n")
    await caller.send(head + b"\r\n\r\n")
    assert await caller.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    await caller.send(body)
    assert (await caller.answer()).body == b"/p body"


async def test_caller_that_sends_its_body_at_once_gets_no_100(bench: Bench) -> None:
    caller = await bench.caller(await bench.listener(echo))
    await caller.send(post(b"body", b"Expect: 100-continue"))
    answer = await caller.answer()
    assert (answer.body, answer.interims) == (b"/p body", [])


async def test_caller_with_an_empty_body_gets_no_100(bench: Bench) -> None:
    caller = await bench.caller(await bench.listener(echo))
    await caller.send(post(b"", b"Expect: 100-continue"))
    answer = await caller.answer()
    assert (answer.body, answer.interims) == (b"/p ", [])


async def test_old_caller_gets_no_100(bench: Bench) -> None:
    caller = await bench.caller(await bench.listener(echo))
    await caller.send(b"POST /p HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n")
    await caller.send(b"x")
    assert (await caller.answer()).interims == []


async def test_unknown_expectation_is_refused_with_417(bench: Bench) -> None:
    caller = await bench.caller(await bench.listener(echo))
    await caller.send(post(b"body", b"Expect: a-miracle"))
    assert (await caller.answer()).status == 417
    assert await caller.to_end() == b""


async def test_upgrade_is_answered_as_ordinary_http(bench: Bench) -> None:
    """As curl --http2 and Java's HttpClient send it, with the body at once."""
    caller = await bench.caller(await bench.listener(echo))
    await caller.send(
        post(b"body", b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABkAAQ")
    )
    assert (await caller.answer()).body == b"/p body"
    await caller.send(GET)
    assert (await caller.answer()).body == b"/a "


@pytest.mark.parametrize(
    ("method", "response", "length"),
    [
        (b"HEAD", Response(200, ((b"Content-Length", b"1234"),), b""), [b"1234"]),
        (b"HEAD", Response(400, (), b"own words"), [b"9"]),
        (b"GET", Response(304, ((b"Content-Length", b"77"),), b""), [b"77"]),
        (b"POST", Response(204, ((b"Content-Length", b"0"),), b""), []),
    ],
)
async def test_bodyless_answer_ends_with_its_head(
    bench: Bench, method: bytes, response: Response, length: list[bytes]
) -> None:
    async def say(exchange: Exchange) -> None:
        await exchange.reply(response if exchange.head.target == b"/x" else Response(200, (), b"next"))

    caller = await bench.caller(await bench.listener(say))
    await caller.send(method + b" /x HTTP/1.1\r\n" + HOST + b"\r\n" + GET)
    answer = await caller.answer(head_only=True)
    assert (answer.status, answer.header(b"content-length")) == (response.status, length)
    assert answer.header(b"transfer-encoding") == []
    assert (await caller.answer()).body == b"next"


async def test_reply_has_one_framing_whatever_its_headers_say(bench: Bench) -> None:
    headers = (
        (b"content-length", b"99"),
        (b"Transfer-Encoding", b"chunked"),
        (b"Connection", b"x"),
        (b"A", b"1"),
    )
    caller = await bench.caller(await bench.listener(saying(b"body", *headers)))
    await caller.send(GET)
    answer = await caller.answer()
    assert answer.headers == [(b"A", b"1"), (b"Content-Length", b"4")]
    assert answer.body == b"body"


async def test_answer_before_the_body_was_read_arrives_and_closes(bench: Bench) -> None:
    """Closing with unread bytes would reset the connection, and the answer with it."""

    async def refuse(exchange: Exchange) -> None:
        await exchange.reply(Response(413, (), b"too large"))

    caller = await bench.caller(await bench.listener(refuse))
    head = b"POST /p HTTP/1.1\r\n" + HOST + b"Content-Length: 5000000\r\n\r\n"
    await caller.send(head + b"x" * 100_000)
    answer = await caller.answer()
    assert (answer.status, answer.body) == (413, b"too large")
    assert answer.header(b"connection") == [b"close"]
    await caller.send(b"x" * 100_000)
    assert await caller.to_end() == b""


async def test_body_of_a_call_that_was_answered_early_is_at_its_end(bench: Bench) -> None:
    told = asyncio.Event()

    async def refuse(exchange: Exchange) -> None:
        await exchange.reply(Response(401, (), b"no"))
        try:
            await exchange.read_body(bytes_max=100)
        except CallerGone:
            told.set()

    caller = await bench.caller(await bench.listener(refuse))
    await caller.send(post(b"body")[:-1])
    assert (await caller.answer()).status == 401
    async with asyncio.timeout(LIMIT_S):
        await told.wait()


@pytest.mark.parametrize("framing", [b"Content-Length: 11", b"Transfer-Encoding: chunked"])
async def test_body_past_the_limit_is_told_before_it_is_whole(bench: Bench, framing: bytes) -> None:
    async def read(exchange: Exchange) -> None:
        try:
            await exchange.read_body(bytes_max=10)
        except BodyTooLarge:
            await exchange.reply(Response(413, (), b"limit"))

    caller = await bench.caller(await bench.listener(read))
    await caller.send(b"POST /p HTTP/1.1\r\n" + HOST + framing + b"\r\nExpect: 100-continue\r\n\r\n")
    if framing.startswith(b"Transfer"):
        await caller.until(b"100 Continue\r\n\r\n")
        await caller.send(b"b\r\nhello world\r\n")
    answer = await caller.answer()
    assert (answer.status, answer.interims) == (413, [])


async def test_body_too_large_that_the_call_does_not_catch_gets_413(bench: Bench) -> None:
    async def read(exchange: Exchange) -> None:
        await exchange.read_body(bytes_max=3)

    caller = await bench.caller(await bench.listener(read))
    await caller.send(post(b"body"))
    answer = await caller.answer()
    assert answer.status == 413
    assert b"body_too_large" in answer.body
    assert bench.errors == []


async def test_malformed_chunk_is_refused_and_the_call_told(bench: Bench) -> None:
    told: list[str] = []

    async def read(exchange: Exchange) -> None:
        try:
            await exchange.read_body(bytes_max=100)
        except CallerGone as gone:
            told.append(str(gone))
            raise

    caller = await bench.caller(await bench.listener(read))
    coding = b"Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n"
    await caller.send(b"POST / HTTP/1.1\r\n" + HOST + coding)
    await caller.until(b"100 Continue\r\n\r\n")
    await caller.send(b"3\r\nabcd\r\n")
    assert (await caller.answer()).status == 400
    assert await caller.to_end() == b""
    assert len(told) == 1
    assert bench.errors == []


async def test_half_closed_caller_is_answered(bench: Bench) -> None:
    caller = await bench.caller(await bench.listener(echo))
    await caller.send(post(b"one") + post(b"two"))
    caller.half_close()
    assert (await caller.answer()).body == b"/p one"
    assert (await caller.answer()).body == b"/p two"
    assert await caller.to_end() == b""


async def test_half_closed_caller_is_answered_however_late(bench: Bench) -> None:
    gate = asyncio.Event()
    given: list[bool] = []

    async def wait(exchange: Exchange) -> None:
        await gate.wait()
        given.append(await exchange.reply(Response(200, (), b"late")))

    listener = await bench.listener(wait)
    caller = await bench.caller(listener)
    await caller.send(GET)
    caller.half_close()
    await turned(lambda: any(connection.at_end for connection in listener._connections))
    gate.set()
    assert (await caller.answer()).body == b"late"
    # A FIN is all that a caller which is gone sends too: its answer does not count as given (K3).
    assert given == [False]


async def test_caller_that_ends_inside_its_request_is_gone(bench: Bench) -> None:
    gone = asyncio.Event()

    async def read(exchange: Exchange) -> None:
        try:
            await exchange.read_body(bytes_max=100)
        except CallerGone:
            gone.set()

    caller = await bench.caller(await bench.listener(read))
    await caller.send(post(b"whole body")[:-3])
    caller.half_close()
    async with asyncio.timeout(LIMIT_S):
        await gone.wait()
    assert await caller.to_end() == b""
    assert bench.errors == []


async def test_caller_that_resets_never_cancels_its_call(bench: Bench) -> None:
    """Contract H6, O-12."""
    began, gate, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
    seen: list[bool] = []

    async def work(exchange: Exchange) -> None:
        began.set()
        await gate.wait()
        seen.append(exchange.is_open)
        seen.append(await exchange.reply(Response(200, (), b"x")))
        ended.set()

    listener = await bench.listener(work)
    caller = await bench.caller(listener)
    await caller.send(GET)
    async with asyncio.timeout(LIMIT_S):
        await began.wait()
        caller.reset()
        await turned(lambda: not listener.connections_open)
        gate.set()
        await ended.wait()
    assert seen == [False, False]
    assert bench.errors == []


async def test_reply_is_true_when_the_last_byte_was_taken(bench: Bench) -> None:
    given: list[bool] = []

    async def say(exchange: Exchange) -> None:
        given.append(await exchange.reply(Response(200, (), b"x" * 5_000_000)))

    caller = await bench.caller(await bench.listener(say))
    await caller.send(GET)
    assert len((await caller.answer()).body) == 5_000_000
    await caller.send(GET)
    await caller.answer()
    assert given[:1] == [True]


async def test_reply_is_false_when_the_caller_leaves_inside_it(bench: Bench) -> None:
    given: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    async def say(exchange: Exchange) -> None:
        given.set_result(await exchange.reply(Response(200, (), b"x" * 20_000_000)))

    caller = await bench.caller(await bench.listener(say))
    await caller.send(GET)
    await caller.until(b"\r\n\r\n")
    caller.reset()
    async with asyncio.timeout(LIMIT_S):
        assert await given is False


@pytest.mark.parametrize("fault", ["raises", "says nothing", "answers twice", "smuggles a line"])
async def test_call_that_fails_gets_500_and_is_reported(bench: Bench, fault: str) -> None:
    async def fail(exchange: Exchange) -> None:
        if fault == "raises":
            raise LookupError("a secret")
        if fault == "smuggles a line":
            await exchange.reply(Response(200, ((b"X", b"a\r\nEvil: 1"),), b""))
        if fault == "answers twice":
            await exchange.reply(Response(500, (), b"first"))
            await exchange.reply(Response(500, (), b"second"))

    caller = await bench.caller(await bench.listener(fail))
    await caller.send(GET)
    answer = await caller.answer()
    assert answer.status == 500
    assert b"secret" not in answer.body
    assert b"Evil" not in answer.head
    await caller.send(GET)
    await turned(lambda: len(bench.errors) > 0)


@pytest.mark.parametrize("address", ["127.0.0.1:0", "[::1]:0", "localhost:0"])
async def test_listener_serves_either_family(bench: Bench, address: str) -> None:
    listener = await bench.listener(saying(b"here"), address=address)
    async with await RawCaller.dial(listener.address) as caller:
        await caller.send(GET)
        assert (await caller.answer()).body == b"here"


async def test_name_of_two_addresses_is_served_on_both(bench: Bench) -> None:
    """A client takes whichever of localhost's addresses it likes."""
    found = {str(one[4][0]) for one in socket.getaddrinfo("localhost", 0, type=socket.SOCK_STREAM)}
    listener = await bench.listener(saying(b"here"), address="localhost:0")
    _, _, port = listener.address.rpartition(":")
    for host in found:
        async with await RawCaller.dial(f"[{host}]:{port}" if ":" in host else f"{host}:{port}") as caller:
            await caller.send(GET)
            assert (await caller.answer()).body == b"here"


async def test_port_is_the_same_on_every_address_of_a_name() -> None:
    both = [(socket.AF_INET, ("127.0.0.1", 0)), (socket.AF_INET6, ("::1", 0, 0, 0))]
    bound = bound_tcp_sockets(both, reuse_port=False)
    try:
        assert len({sock.getsockname()[1] for sock in bound}) == 1
    finally:
        for sock in bound:
            sock.close()


async def test_address_that_can_not_be_had_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(OSError, match=address) as refused:
            await listen(Endpoint.parse(address), saying(), on_error=lambda _error: None)
    assert refused.value.errno == errno.EADDRINUSE
