"""Unguarded calls: streamed both ways, in bounded memory, and broken visibly (H3, H5, O-24, O-25, O-39, O-40)."""

from __future__ import annotations

import asyncio
import hashlib

import pytest

from proxy.core.http import MaybeSent, MaybeSentReason, NotSent, Response, WireRequest
from proxy.ports import Exchange, Streamed
from proxy.wire.bodies import READ_BUFFER_BYTES
from proxy.wire.caller import ListenerLimits
from proxy.wire.exchange import HALF_CLOSED_MS_MAX
from proxy.wire.listener import Listener
from proxy.wire.pool import PoolLimits
from proxy.wire.upstream import HttpUpstream

from .conftest import Bench, through
from .peers import (
    Close,
    HalfClose,
    Hang,
    Hold,
    Mark,
    RawCaller,
    RawPlatform,
    Reset,
    Script,
    Send,
    Step,
    When,
    answer,
    chunked,
    turned,
)

HOST = b"Host: sut.test\r\n"
GET = b"GET /a HTTP/1.1\r\n" + HOST + b"\r\n"
CHUNKED_HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class Line:
    """A caller, the product's two ends, and a platform, joined."""

    def __init__(
        self, platform: RawPlatform, upstream: HttpUpstream, listener: Listener, caller: RawCaller
    ) -> None:
        self.platform = platform
        self.upstream = upstream
        self.listener = listener
        self.caller = caller
        self.ended: list[Streamed] = []


async def line(bench: Bench, *steps: Step, timeout_ms: int = 5_000, when: When = When.WHOLE) -> Line:
    """A line whose platform runs `steps` for each request."""
    platform = await bench.platform(Script(*steps, when=when) if steps else None)
    upstream = bench.upstream(platform.url)
    ended: list[Streamed] = []

    async def pass_on(exchange: Exchange) -> None:
        head = exchange.head
        streamed = await upstream.stream(
            WireRequest(head.method, head.target, head.headers, b""),
            exchange.body_chunks() if exchange.body_length != 0 else None,
            body_length=exchange.body_length,
            sink=exchange,
            timeout_ms=timeout_ms,
        )
        ended.append(streamed)
        if streamed.result is not None:
            if streamed.head_passed:
                exchange.abort()
            else:
                await exchange.reply(Response(502, (), b"bad gateway"))

    listener = await bench.listener(pass_on)
    made = Line(platform, upstream, listener, await bench.caller(listener))
    made.ended = ended
    return made


async def test_large_body_passes_whole_in_both_directions(bench: Bench) -> None:
    big = hashlib.sha256(b"seed").digest() * 200_000
    got = await line(bench, Send(answer(200, big)))
    await got.caller.send(b"PUT /up HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n\r\n" % len(big) + big)
    read = await got.caller.answer()
    assert read.body == big
    assert got.platform.received[0].body == big
    assert got.platform.received[0].header(b"content-length") == [b"%d" % len(big)]


async def test_chunked_body_stays_chunked_in_both_directions(bench: Bench) -> None:
    got = await line(bench, Send(CHUNKED_HEAD + chunked([b"ab", b"cd"], b"X-Checksum: 1\r\n")))
    head = b"POST /up HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n"
    for _ in range(2):
        await got.caller.send(head)
        assert await got.caller.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await got.caller.send(chunked([b"hello ", b"world"], b"X-Dropped: 1\r\n"))
        read = await got.caller.answer()
        assert (read.body, read.trailers) == (b"abcd", b"X-Checksum: 1\r\n")
        assert read.header(b"x-checksum") == []
    received = got.platform.received[1]
    assert (received.body, received.connection) == (b"hello world", 0)
    assert received.header(b"transfer-encoding") == [b"chunked"]
    assert received.header(b"expect") == []


async def test_caller_is_not_asked_for_a_body_that_goes_nowhere(bench: Bench) -> None:
    """100 is sent when somebody waits for the body, not before the platform was reached."""
    handler = through(bench.upstream("http://127.0.0.1:9"))
    caller = await bench.caller(await bench.listener(handler))
    await caller.send(b"PUT / HTTP/1.1\r\n" + HOST + b"Content-Length: 9\r\nExpect: 100-continue\r\n\r\n")
    read = await caller.answer()
    assert (read.status, read.interims) == (502, [])


async def test_old_caller_gets_a_body_until_close(bench: Bench) -> None:
    got = await line(bench, Send(CHUNKED_HEAD + chunked([b"ab", b"cd"])))
    await got.caller.send(b"GET / HTTP/1.0\r\n\r\n")
    everything = await got.caller.to_end()
    assert everything.endswith(b"\r\n\r\nabcd")
    assert b"Transfer-Encoding" not in everything


async def test_answer_until_close_is_chunked_for_the_caller(bench: Bench) -> None:
    got = await line(bench, Send(b"HTTP/1.1 200 OK\r\n\r\nabcd"), Close())
    await got.caller.send(GET)
    read = await got.caller.answer()
    assert (read.body, read.header(b"transfer-encoding")) == (b"abcd", [b"chunked"])


async def test_event_reaches_the_caller_before_the_next_is_sent(bench: Bench) -> None:
    """O-40: a stream is not held until its end."""
    gate = asyncio.Event()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    got = await line(bench, Send(head), Hold(gate), Send(b"9\r\ndata: 1\n\n\r\n"), Hang())
    await got.caller.send(GET)
    assert b"text/event-stream" in await got.caller.until(b"\r\n\r\n")
    gate.set()
    assert b"data: 1\n\n" in await got.caller.until(b"\n\n\r\n")
    assert not got.ended


async def test_caller_that_leaves_a_quiet_stream_closes_the_platforms_connection(bench: Bench) -> None:
    got = await line(bench, Send(CHUNKED_HEAD + b"1\r\na\r\n"), Hang(), timeout_ms=600_000)
    await got.caller.send(GET)
    await got.caller.until(b"1\r\na\r\n")
    got.caller.reset()
    await got.platform.gone(0)
    await turned(lambda: len(got.ended) == 1)
    assert isinstance(got.ended[0].result, MaybeSent)
    assert got.upstream.pool.connections_open == 0


async def test_caller_that_leaves_before_any_answer_closes_the_platforms_connection(bench: Bench) -> None:
    got = await line(bench, Hang(), timeout_ms=60_000)
    await got.caller.send(GET)
    await got.platform.got(1)
    got.caller.reset()
    await got.platform.gone(0)


@pytest.mark.parametrize("begun", [True, False], ids=["inside the answer", "before the answer"])
async def test_caller_that_closes_its_side_of_a_quiet_stream_is_taken_for_gone(
    bench: Bench, begun: bool
) -> None:
    """FIN is all that a program which ends sends; the kernel tells no more until bytes are sent to it."""
    steps = (Send(CHUNKED_HEAD + b"1\r\na\r\n"), Hang()) if begun else (Hang(),)
    got = await line(bench, *steps, timeout_ms=60_000)
    await got.caller.send(GET)
    await got.platform.got(1)
    if begun:
        await got.caller.until(b"1\r\na\r\n")
    async with asyncio.timeout(2):
        got.caller.half_close()
        await got.platform.gone(0)


async def test_caller_that_half_closes_gets_the_stream_that_comes_soon(bench: Bench) -> None:
    rest = asyncio.Event()
    got = await line(bench, Send(CHUNKED_HEAD + b"1\r\na\r\n"), Hold(rest), Send(b"1\r\nb\r\n0\r\n\r\n"))
    await got.caller.send(GET)
    got.caller.half_close()
    await got.caller.until(b"1\r\na\r\n")
    rest.set()
    assert await got.caller.to_end() == b"1\r\nb\r\n0\r\n\r\n"


async def test_order_of_a_caller_that_half_closes_is_waited_for(bench: Bench) -> None:
    """What is no read may have an effect: it is not broken off before its answer begins."""
    gate = asyncio.Event()
    got = await line(bench, Hold(gate), Send(answer(201, b"made")), timeout_ms=60_000)
    await got.caller.send(b"POST /a HTTP/1.1\r\n" + HOST + b"Content-Length: 1\r\n\r\nx")
    got.caller.half_close()
    await got.platform.got(1)
    asyncio.get_running_loop().call_later(HALF_CLOSED_MS_MAX / 1000 + 0.6, gate.set)
    assert (await got.caller.answer()).body == b"made"


async def test_caller_that_leaves_inside_its_upload_breaks_the_platforms_request(bench: Bench) -> None:
    got = await line(bench, timeout_ms=60_000)
    await got.caller.send(b"PUT / HTTP/1.1\r\n" + HOST + b"Content-Length: 1000\r\n\r\nhalf")
    await got.platform.until(
        lambda: b"half" in got.platform.streams[0].log if got.platform.streams else False
    )
    got.caller.reset()
    await got.platform.gone(0)
    assert got.platform.received[0].body == b""


async def test_interim_answers_are_passed_on_and_100_is_not(bench: Bench) -> None:
    interims = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
    got = await line(bench, Send(interims), Send(answer(200, b"ok")))
    await got.caller.send(GET)
    read = await got.caller.answer()
    assert read.body == b"ok"
    assert read.interims == [b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"]
    await got.caller.send(b"GET / HTTP/1.0\r\n\r\n")
    assert (await got.caller.answer()).interims == []


@pytest.mark.parametrize(
    ("request_line", "wire", "length"),
    [
        (b"HEAD /h HTTP/1.1", b"HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n", [b"1234"]),
        (b"GET /n HTTP/1.1", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 77\r\n\r\n", [b"77"]),
        (b"POST /c HTTP/1.1", b"HTTP/1.1 204 No Content\r\n\r\n", []),
    ],
)
async def test_bodyless_answer_ends_with_its_head_and_both_connections_go_on(
    bench: Bench, request_line: bytes, wire: bytes, length: list[bytes]
) -> None:
    """O-27."""
    got = await line(bench)
    got.platform.plan(Script(Send(wire)))
    await got.caller.send(request_line + b"\r\n" + HOST + b"\r\n")
    read = await got.caller.answer(head_only=True)
    assert read.header(b"content-length") == length
    await got.caller.send(GET)
    assert (await got.caller.answer()).body == b"ok"
    assert len(got.platform.streams) == 1


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ((Send(answer(200, b"x" * 30, length=400)), Close()), b"Content-Length: 400"),
        ((Send(answer(200, b"x" * 30, length=400)), Reset()), b"Content-Length: 400"),
        ((Send(CHUNKED_HEAD + b"1e\r\n" + b"x" * 30 + b"\r\n"), Close()), b"Transfer-Encoding: chunked"),
    ],
)
async def test_cut_answer_is_never_passed_off_as_whole(
    bench: Bench, steps: tuple[Step, ...], said: bytes
) -> None:
    """O-24."""
    got = await line(bench, *steps)
    await got.caller.send(GET)
    with pytest.raises(EOFError):
        await got.caller.answer()
    assert said in got.caller.stream.log or not got.caller.stream.log
    (ended,) = got.ended
    assert ended.head_passed
    assert isinstance(ended.result, MaybeSent)
    assert ended.result.reason is MaybeSentReason.TRUNCATED


async def test_cut_answer_is_visible_to_an_old_caller_too(bench: Bench) -> None:
    """A body until close must end with a reset where it was cut."""
    got = await line(bench, Send(CHUNKED_HEAD + b"1e\r\n" + b"x" * 30 + b"\r\n"), Close())
    await got.caller.send(b"GET / HTTP/1.0\r\n\r\n")
    with pytest.raises(ConnectionResetError):
        while await got.caller.stream.reader.read(1_000):
            pass


async def test_failure_before_the_head_leaves_the_answer_to_the_call(bench: Bench) -> None:
    got = await line(bench, Close())
    await got.caller.send(GET)
    assert (await got.caller.answer()).status == 502
    (ended,) = got.ended
    assert not ended.head_passed
    assert isinstance(ended.result, MaybeSent)
    assert got.platform.hits == 1


async def test_body_is_untouched_where_nothing_was_sent(bench: Bench) -> None:
    """So that the call may be sent once more (R4: not_sent)."""
    platform = await bench.platform()
    dead = bench.upstream("http://127.0.0.1:9")
    good = bench.upstream(platform.url)

    async def twice(exchange: Exchange) -> None:
        head = WireRequest(b"POST", b"/", (), b"")
        body = exchange.body_chunks()
        length = exchange.body_length
        first = await dead.stream(head, body, body_length=length, sink=exchange, timeout_ms=5_000)
        assert isinstance(first.result, NotSent)
        await good.stream(head, body, body_length=length, sink=exchange, timeout_ms=5_000)

    caller = await bench.caller(await bench.listener(twice))
    await caller.send(b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 4\r\n\r\nbody")
    assert (await caller.answer()).status == 200
    assert platform.received[0].body == b"body"


async def test_early_answer_reaches_a_caller_that_is_still_sending(bench: Bench) -> None:
    """O-25, streamed."""
    never = asyncio.Event()
    early = answer(413, b"too large", (b"Connection", b"close"))
    got = await line(bench, Send(early), HalfClose(), Hold(never), when=When.HEAD)
    size = 30_000_000
    await got.caller.send(
        b"PUT / HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n\r\n" % size + b"x" * 1_000_000
    )
    read = await got.caller.answer()
    assert (read.status, read.body, read.header(b"connection")) == (413, b"too large", [b"close"])


async def test_silence_ends_a_stream_and_activity_does_not(bench: Bench) -> None:
    gate = asyncio.Event()
    drip = [step for _ in range(17) for step in (Send(b"1\r\nx\r\n"), Hold(gate))]
    got = await line(bench, Send(CHUNKED_HEAD), *drip, Hang(), timeout_ms=1_000)
    await got.caller.send(GET)
    for _ in range(15):
        await got.caller.until(b"1\r\nx\r\n")
        await asyncio.sleep(0.08)
        gate.set()
        gate.clear()
    with pytest.raises(EOFError):
        await got.caller.until(b"0\r\n\r\n")
    (ended,) = got.ended
    assert isinstance(ended.result, MaybeSent)
    assert ended.result.reason is MaybeSentReason.TIMEOUT


async def test_slow_caller_holds_the_platform_back_in_bounded_memory(bench: Bench) -> None:
    wrote = asyncio.Event()
    piece = b"x" * 1_000_000
    steps: list[Step] = [Send(answer(200, piece, length=30_000_000)), *[Send(piece)] * 29, Mark(wrote)]
    got = await line(bench, *steps, timeout_ms=60_000)
    got.caller.stream.writer.write(GET)
    await got.platform.got(1)
    (connection,) = got.listener._connections
    await turned(lambda: connection.is_write_paused)
    for _ in range(500):
        await asyncio.sleep(0)
    assert not wrote.is_set()
    assert got.platform.streams[0].writer.transport.get_write_buffer_size() > 0
    assert connection._transport.get_write_buffer_size() < 4 * READ_BUFFER_BYTES
    assert len((await got.caller.answer()).body) == 30_000_000


async def test_slow_platform_holds_the_caller_back_in_bounded_memory(bench: Bench) -> None:
    gate = asyncio.Event()
    got = await line(bench, Hold(gate), when=When.HEAD, timeout_ms=60_000)
    size = 24_000_000
    sending = asyncio.ensure_future(
        got.caller.send(b"PUT / HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n\r\n" % size + b"x" * size)
    )
    await got.platform.got(1)
    (connection,) = got.listener._connections
    await turned(lambda: connection._reading_paused)
    for _ in range(200):
        await asyncio.sleep(0)
    assert not sending.done()
    exchange = connection._exchange
    assert exchange is not None
    assert exchange.intake.size < 8 * READ_BUFFER_BYTES
    gate.set()
    await got.platform.until(lambda: len(got.platform.received[0].body) == size)
    await sending


async def test_slow_upload_is_not_timed_by_the_answers_limit(bench: Bench) -> None:
    got = await line(bench, timeout_ms=1_000)
    await got.caller.send(b"PUT / HTTP/1.1\r\n" + HOST + b"Content-Length: 20\r\n\r\n")
    for _ in range(20):
        await got.caller.send(b"x")
        await asyncio.sleep(0.06)
    assert (await got.caller.answer()).body == b"ok"


async def test_platform_that_takes_no_upload_ends_the_stream(bench: Bench) -> None:
    never = asyncio.Event()
    got = await line(bench, Hold(never), when=When.HEAD, timeout_ms=500)
    size = 24_000_000
    sending = asyncio.ensure_future(
        got.caller.send(b"PUT / HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n\r\n" % size + b"x" * size)
    )
    read = await got.caller.answer()
    assert read.status == 502
    (ended,) = got.ended
    assert isinstance(ended.result, MaybeSent)
    assert ended.result.reason is MaybeSentReason.TIMEOUT
    got.caller.reset()
    await asyncio.wait([sending])


async def test_cancelled_stream_closes_its_connection_and_slot(bench: Bench) -> None:
    platform = await bench.platform(Script(Hang()))
    upstream = bench.upstream(platform.url, pool=PoolLimits(connections_max=1))
    tasks: list[asyncio.Task[None]] = []
    handler = through(upstream)

    async def owned(exchange: Exchange) -> None:
        tasks.append(asyncio.ensure_future(handler(exchange)))
        await asyncio.wait(tasks)
        await exchange.reply(Response(503, (), b""))

    caller = await bench.caller(await bench.listener(owned))
    await caller.send(GET)
    await platform.got(1)
    tasks[0].cancel()
    await platform.gone(0)
    assert (await caller.answer()).status == 503
    assert upstream.pool.connections_open == 0


async def test_answer_longer_than_its_length_is_cut_off_and_reported(bench: Bench) -> None:
    async def lie(exchange: Exchange) -> None:
        await exchange.begin(200, b"OK", (), body_length=3, bodyless=False)
        await exchange.write(b"four")

    caller = await bench.caller(await bench.listener(lie, ListenerLimits()))
    await caller.send(GET)
    with pytest.raises(EOFError):
        await caller.answer()
    await turned(lambda: len(bench.errors) == 1)


async def test_answer_shorter_than_its_length_is_cut_off(bench: Bench) -> None:
    async def lie(exchange: Exchange) -> None:
        await exchange.begin(200, b"OK", (), body_length=5, bodyless=False)
        await exchange.write(b"four")
        assert await exchange.end() is False

    caller = await bench.caller(await bench.listener(lie))
    await caller.send(GET)
    with pytest.raises(EOFError):
        await caller.answer()


async def test_pieces_of_one_turn_leave_in_one_write(bench: Bench) -> None:
    async def say(exchange: Exchange) -> None:
        await exchange.begin(200, b"OK", (), body_length=None, bodyless=False)
        for piece in (b"a", b"", b"b"):
            await exchange.write(piece)
        assert await exchange.end(((b"X-T", b"1"),))

    caller = await bench.caller(await bench.listener(say))
    await caller.send(GET)
    assert await caller.stream.reader.read(10_000) == (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n1\r\nb\r\n0\r\nX-T: 1\r\n\r\n"
    )
