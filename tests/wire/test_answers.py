"""The platform's answers without sockets: whole at every cut, garbage called so (R2, O-23, O-27, O-39)."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxy.wire.answers import AnswerReader, AnswerTooLarge, BadAnswer

from .peers import answer, chunked

VIA = (b"Via", b"1.1 safepost")


def read(wire: bytes, *, method: bytes = b"POST", step: int | None = None) -> tuple[AnswerReader, bytes]:
    reader = AnswerReader(method, 65_536)
    body = b""
    step = step or len(wire)
    for at in range(0, len(wire), step):
        body += b"".join(reader.feed(wire[at : at + step]))
    return reader, body


CHUNKED = b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\nX-A: 1\r\n\r\n" + chunked(
    [b"ab", b"c"], b"X-Sum: 1\r\n"
)


@pytest.mark.parametrize("step", [1, 2, 3, 5, 1_000])
def test_chunked_answer_is_whole_at_every_cut(step: int) -> None:
    reader, body = read(CHUNKED, step=step)
    assert (reader.status, reader.reason, body) == (201, b"Created", b"abc")
    assert reader.headers == ((b"X-A", b"1"), VIA)
    assert reader.trailers == ((b"X-Sum", b"1"),)
    assert reader.is_whole
    assert reader.keeps_alive


@pytest.mark.parametrize("step", [1, 7, 1_000])
def test_interim_answers_come_before_the_final_one(step: int) -> None:
    wire = (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\nConnection: close\r\n\r\n"
        + answer(200, b"ok")
    )
    reader, body = read(wire, step=step)
    assert reader.interims == [(103, ((b"Link", b"</a>"),))]
    assert (reader.status, body, reader.keeps_alive) == (200, b"ok", True)


@pytest.mark.parametrize(
    ("method", "wire", "length"),
    [
        (b"HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n", [b"1234"]),
        (b"HEAD", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", []),
        (b"GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 77\r\n\r\n", [b"77"]),
        (b"POST", b"HTTP/1.1 204 No Content\r\n\r\n", []),
    ],
)
def test_bodyless_answer_ends_with_its_head(method: bytes, wire: bytes, length: list[bytes]) -> None:
    reader, body = read(wire, method=method)
    assert reader.is_whole
    assert reader.is_bodyless
    assert reader.keeps_alive
    assert body == b""
    assert [value for name, value in reader.headers if name == b"Content-Length"] == length


def test_answer_without_framing_runs_until_close() -> None:
    reader, body = read(b"HTTP/1.1 200 OK\r\n\r\nabc")
    assert (body, reader.is_whole, reader.keeps_alive) == (b"abc", False, False)
    assert reader.end()
    assert reader.is_whole


def test_answer_with_a_length_is_not_ended_by_close() -> None:
    reader, _ = read(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabc")
    assert not reader.end()


def test_hop_by_hop_and_own_headers_of_an_answer_do_not_travel_on() -> None:
    reader, _ = read(
        b"HTTP/1.1 200 OK\r\nConnection: X-R\r\nX-R: 1\r\nKeep-Alive: timeout=5\r\nUpgrade: h2c\r\n"
        b"Proxy-Authenticate: x\r\nProxy-Status: a\r\nSafepost-Knowledge: executed\r\n"
        b"Set-Cookie: a=1; Expires=Wed, 21 Oct 2026 07:28:00 GMT\r\nset-cookie: b=2\r\nX-Name: caf\xe9\r\n"
        b"Content-Length: 0\r\n\r\n"
    )
    assert reader.headers == (
        (b"Proxy-Status", b"a"),
        (b"Set-Cookie", b"a=1; Expires=Wed, 21 Oct 2026 07:28:00 GMT"),
        (b"set-cookie", b"b=2"),
        (b"X-Name", b"caf\xe9"),
        VIA,
    )
    assert reader.keeps_alive


@pytest.mark.parametrize(
    ("wire", "keeps"),
    [
        (answer(200, b"ok"), True),
        (answer(200, b"ok", (b"Connection", b"close")), False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", False),
        (answer(200, b"ok") + b"x", False),
        (b"HTTP/1.1 204 No Content\r\n\r\nx", False),
        (b"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", True),
    ],
)
def test_connection_is_kept_only_after_a_clean_answer(wire: bytes, keeps: bool) -> None:
    reader, _ = read(wire)
    assert reader.is_whole
    assert reader.keeps_alive is keeps


GARBAGE = {
    "not HTTP": b"SSH-2.0-OpenSSH_9\r\n",
    "HTTP/2": b"HTTP/2 200 OK\r\n\r\n",
    "HTTP/1.2": b"HTTP/1.2 200 OK\r\n\r\n",
    "HTTP/0.9": b"<html>hello</html>",
    "two digits": b"HTTP/1.1 20 OK\r\n\r\n",
    "four digits": b"HTTP/1.1 2000 OK\r\n\r\n",
    "status zero": b"HTTP/1.1 000 OK\r\n\r\n",
    "status glued": b"HTTP/1.1 200OK\r\n\r\n",
    "NUL in reason": b"HTTP/1.1 200 O\0K\r\n\r\n",
    "bare LF": b"HTTP/1.1 200 OK\nContent-Length: 0\n\r\n\r\n",
    "folded header": b"HTTP/1.1 200 OK\r\nX: a\r\n b\r\n\r\n",
    "blank before colon": b"HTTP/1.1 200 OK\r\nContent-Length : 0\r\n\r\n",
    "length and coding": b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
    "length list": b"HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\n\r\n",
    "length negative": b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
    "unknown coding": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
    "coding in 1.0": b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
    "chunk size": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "switching": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\n\r\n",
    "interim flood": b"HTTP/1.1 102 Processing\r\n\r\n" * 40,
}


@pytest.mark.parametrize("wire", GARBAGE.values(), ids=GARBAGE.keys())
@pytest.mark.parametrize("step", [1, 1_000])
def test_answer_that_must_not_be_guessed_about_is_garbage(wire: bytes, step: int) -> None:
    with pytest.raises(BadAnswer):
        read(wire, step=step)


def test_same_length_twice_is_one_length() -> None:
    reader, body = read(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok")
    assert reader.is_whole
    assert body == b"ok"


@pytest.mark.parametrize("end", [b"", b"\r\n\r\n"])
def test_endless_head_is_cut_off(end: bytes) -> None:
    with pytest.raises(AnswerTooLarge):
        read(b"HTTP/1.1 200 OK\r\nX: " + b"a" * 70_000 + end)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(max_size=60), st.sampled_from([b"", b"HTTP/1.1 200 OK\r\n"]))
def test_noise_never_crashes_the_reader(noise: bytes, start: bytes) -> None:
    try:
        read(start + noise + b"\r\n\r\n")
    except BadAnswer:
        return
