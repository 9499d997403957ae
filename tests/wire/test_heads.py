"""Request heads without sockets: what is refused, what travels on, and that strict means strict (H4, H9)."""

from __future__ import annotations

import contextlib
import re

import h11
import httptools
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from proxy.wire.fields import is_token
from proxy.wire.heads import HeadLimits, HeadRefused, ParsedHead, head_end, parse_request_head

LIMITS = HeadLimits()
PROTECTED = frozenset((b"idempotency-key",))
HOST = b"Host: sut.test\r\n"


def parse(raw: bytes) -> ParsedHead:
    """As the connection does it: find the end, then parse what is before it."""
    end = head_end(raw, 0, LIMITS)
    assert end == len(raw), "the head is not at its end"
    return parse_request_head(raw, LIMITS, PROTECTED)


def request(line: bytes = b"GET / HTTP/1.1", *fields: bytes, host: bytes = HOST) -> bytes:
    return line + b"\r\n" + host + b"".join(field + b"\r\n" for field in fields) + b"\r\n"


REFUSED = {
    "length and coding": request(b"POST / HTTP/1.1", b"Content-Length: 3", b"Transfer-Encoding: chunked"),
    "coding and length": request(b"POST / HTTP/1.1", b"Transfer-Encoding: chunked", b"Content-Length: 0"),
    "two lengths": request(b"POST / HTTP/1.1", b"Content-Length: 3", b"Content-Length: 4"),
    "two equal lengths": request(b"POST / HTTP/1.1", b"Content-Length: 3", b"Content-Length: 3"),
    "length list": request(b"POST / HTTP/1.1", b"Content-Length: 3, 3"),
    "length plus": request(b"POST / HTTP/1.1", b"Content-Length: +3"),
    "length minus": request(b"POST / HTTP/1.1", b"Content-Length: -3"),
    "length hex": request(b"POST / HTTP/1.1", b"Content-Length: 0x3"),
    "length underscore": request(b"POST / HTTP/1.1", b"Content-Length: 1_0"),
    "length inner blank": request(b"POST / HTTP/1.1", b"Content-Length: 1 0"),
    "length empty": request(b"POST / HTTP/1.1", b"Content-Length:"),
    "length fraction": request(b"POST / HTTP/1.1", b"Content-Length: 3.0"),
    "length too long": request(b"POST / HTTP/1.1", b"Content-Length: " + b"9" * 19),
    "length arabic digit": request(b"POST / HTTP/1.1", b"Content-Length: \xd9\xa3"),
    "coding gzip": request(b"POST / HTTP/1.1", b"Transfer-Encoding: gzip"),
    "coding gzip, chunked": request(b"POST / HTTP/1.1", b"Transfer-Encoding: gzip, chunked"),
    "coding chunked, gzip": request(b"POST / HTTP/1.1", b"Transfer-Encoding: chunked, gzip"),
    "coding chunked twice": request(b"POST / HTTP/1.1", b"Transfer-Encoding: chunked, chunked"),
    "coding in two fields": request(
        b"POST / HTTP/1.1", b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"
    ),
    "coding identity": request(b"POST / HTTP/1.1", b"Transfer-Encoding: identity"),
    "coding empty": request(b"POST / HTTP/1.1", b"Transfer-Encoding:"),
    "coding with vertical tab": request(b"POST / HTTP/1.1", b"Transfer-Encoding: \x0bchunked"),
    "coding quoted": request(b"POST / HTTP/1.1", b'Transfer-Encoding: "chunked"'),
    "coding xchunked": request(b"POST / HTTP/1.1", b"Transfer-Encoding: xchunked"),
    "coding in HTTP/1.0": request(b"POST / HTTP/1.0", b"Transfer-Encoding: chunked"),
    "bare CR in value": request(b"GET / HTTP/1.1", b"X: a\rb"),
    "bare CR at line end": request(b"GET / HTTP/1.1", b"X: a\r"),
    "bare LF in value": request(b"GET / HTTP/1.1", b"X: a\nY: b"),
    "NUL in value": request(b"GET / HTTP/1.1", b"X: a\0b"),
    "NUL in name": request(b"GET / HTTP/1.1", b"X\0: a"),
    "control byte in value": request(b"GET / HTTP/1.1", b"X: a\x01b"),
    "DEL in value": request(b"GET / HTTP/1.1", b"X: a\x7fb"),
    "obs-fold blank": request(b"GET / HTTP/1.1", b"X: a", b" b"),
    "obs-fold tab": request(b"GET / HTTP/1.1", b"X: a", b"\tb"),
    "first field folded": b"GET / HTTP/1.1\r\n Host: sut.test\r\n\r\n",
    "blank before colon": request(b"GET / HTTP/1.1", b"X : a"),
    "tab before colon": request(b"GET / HTTP/1.1", b"X\t: a"),
    "name with blank": request(b"GET / HTTP/1.1", b"X Y: a"),
    "name empty": request(b"GET / HTTP/1.1", b": a"),
    "name with parenthesis": request(b"GET / HTTP/1.1", b"X(a): Y: b"),
    "name not ASCII": request(b"GET / HTTP/1.1", b"X\xe9: a"),
    "no colon": request(b"GET / HTTP/1.1", b"nonsense"),
    "absolute form": request(b"GET http://169.254.169.254/latest HTTP/1.1"),
    "absolute form https": request(b"GET https://sut.test/ HTTP/1.1"),
    "authority form": request(b"CONNECT sut.test:443 HTTP/1.1"),
    "CONNECT to a path": request(b"CONNECT / HTTP/1.1"),
    "authority for GET": request(b"GET sut.test:443 HTTP/1.1"),
    "relative target": request(b"GET v1/payments HTTP/1.1"),
    "asterisk for GET": request(b"GET * HTTP/1.1"),
    "asterisk with path": request(b"OPTIONS *x HTTP/1.1"),
    "method in lower case": request(b"post /v1/payments HTTP/1.1"),
    "method mixed": request(b"Post /v1/payments HTTP/1.1"),
    "method not a token": request(b"GE(T / HTTP/1.1"),
    "method too long": request(b"A" * 33 + b" / HTTP/1.1"),
    "method missing": request(b" / HTTP/1.1"),
    "Host missing": request(b"GET / HTTP/1.1", host=b""),
    "Host twice": request(b"GET / HTTP/1.1", b"Host: other"),
    "Host twice in HTTP/1.0": request(b"GET / HTTP/1.0", b"Host: other"),
    "Host with path": request(b"GET / HTTP/1.1", host=b"Host: a/b\r\n"),
    "Host with user": request(b"GET / HTTP/1.1", host=b"Host: u@h\r\n"),
    "Host with blank": request(b"GET / HTTP/1.1", host=b"Host: a b\r\n"),
    "Host list": request(b"GET / HTTP/1.1", host=b"Host: a, b\r\n"),
    "Host with odd port": request(b"GET / HTTP/1.1", host=b"Host: a:8x\r\n"),
    "dot segment": request(b"GET /v1/../v1/payments HTTP/1.1"),
    "dot segment single": request(b"GET /v1/./payments HTTP/1.1"),
    "dot segment at end": request(b"GET /v1/payments/.. HTTP/1.1"),
    "dot segment single at end": request(b"GET /v1/payments/. HTTP/1.1"),
    "dot segment before query": request(b"GET /v1/payments/..?a=b HTTP/1.1"),
    "dot segment encoded": request(b"GET /v1/%2e%2e/payments HTTP/1.1"),
    "dot segment encoded upper": request(b"GET /v1/%2E%2E/payments HTTP/1.1"),
    "dot segment half encoded": request(b"GET /v1/.%2e/payments HTTP/1.1"),
    "dot segment single encoded": request(b"GET /v1/%2e/payments HTTP/1.1"),
    "dot segment with encoded slash": request(b"GET /v1/x%2f..%2fpayments HTTP/1.1"),
    "dot segment with encoded backslash": request(b"GET /v1/x%5c..%5cpayments HTTP/1.1"),
    "dot segment with backslash": request(b"GET /v1/x\\..\\payments HTTP/1.1"),
    "dot segment with parameter": request(b"GET /v1/x/..;a=1/payments HTTP/1.1"),
    "dot segment with encoded parameter": request(b"GET /v1/x/..%3ba/payments HTTP/1.1"),
    "backslash in path": request(b"GET /v1\\payments HTTP/1.1"),
    "fragment": request(b"GET /v1/payments#x HTTP/1.1"),
    "fragment in query": request(b"GET /v1/payments?a#x HTTP/1.1"),
    "control byte in target": request(b"GET /v1/\x01 HTTP/1.1"),
    "tab in target": request(b"GET /v1/\tx HTTP/1.1"),
    "NUL in target": request(b"GET /v1/\0 HTTP/1.1"),
    "DEL in target": request(b"GET /v1/\x7f HTTP/1.1"),
    "blank in target": request(b"GET /v1/a b HTTP/1.1"),
    "non-ASCII in target": request(b"GET /v1/\xe9 HTTP/1.1"),
    "UTF-8 in target": request("GET /v1/订单 HTTP/1.1".encode()),
    "two blanks before target": request(b"GET  / HTTP/1.1"),
    "two blanks after target": request(b"GET /  HTTP/1.1"),
    "tab as separator": request(b"GET\t/ HTTP/1.1"),
    "blank at line end": request(b"GET / HTTP/1.1 "),
    "Connection names the key": request(b"POST / HTTP/1.1", b"Connection: Idempotency-Key"),
    "Connection names the key in a list": request(
        b"POST / HTTP/1.1", b"Idempotency-Key: k", b"Connection: close, idempotency-KEY"
    ),
    "Connection twice, key in the second": request(
        b"POST / HTTP/1.1", b"Connection: close", b"Connection: Idempotency-Key"
    ),
    "Connection not a token": request(b"GET / HTTP/1.1", b"Connection: clo se"),
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\n",
    "HTTP/1.2": request(b"GET / HTTP/1.2"),
    "HTTP/0.9": request(b"GET / HTTP/0.9"),
    "HTTP/2.0": request(b"GET / HTTP/2.0"),
    "HTTP/1.10": request(b"GET / HTTP/1.10"),
    "lower-case protocol": request(b"GET / http/1.1"),
    "no version": request(b"GET /"),
    "bare LF everywhere": b"GET / HTTP/1.1\nHost: sut.test\n\r\n\r\n",
    "TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
}


@pytest.mark.parametrize("raw", REFUSED.values(), ids=REFUSED.keys())
def test_request_that_could_be_read_two_ways_is_refused_with_400(raw: bytes) -> None:
    with pytest.raises(HeadRefused) as refused:
        parse(raw)
    assert refused.value.status == 400


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (REFUSED["HTTP/2 preface"], "HTTP/2 is not served here"),
        (REFUSED["TLS hello"], "speaks TLS"),
        (REFUSED["blank before colon"], "blank before its colon"),
        (REFUSED["obs-fold tab"], "folded"),
        (REFUSED["absolute form"], "must be a path"),
        (REFUSED["dot segment encoded"], "dot segment"),
        (REFUSED["Connection names the key"], "must not name idempotency-key"),
        (REFUSED["method in lower case"], "upper-case"),
    ],
)
def test_refusal_says_what_is_wrong(raw: bytes, said: str) -> None:
    with pytest.raises(HeadRefused) as refused:
        parse(raw)
    assert said in refused.value.message


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (request(b"GET /" + b"a" * 20_000 + b" HTTP/1.1"), 414),
        (b"GET /" + b"a" * 70_000, 414),
        (request(b"GET / HTTP/1.1", b"X: " + b"a" * 70_000), 431),
        (request(b"GET / HTTP/1.1")[:-2] + b"X: " + b"a" * 70_000, 431),
        (request(b"GET / HTTP/1.1", *[b"X: a"] * 300), 431),
        (request(b"GET / HTTP/1.1", b"Expect: 200-ok"), 417),
    ],
    ids=["long target", "endless target", "large header", "endless header", "many headers", "expectation"],
)
def test_request_past_a_limit_is_refused_with_its_status(raw: bytes, status: int) -> None:
    with pytest.raises(HeadRefused) as refused:
        parse(raw)
    assert refused.value.status == status


@pytest.mark.parametrize(
    "target",
    [
        b"/",
        b"//",
        b"/v1/payments/a%2Fb",
        b"/v1/x%252Fy",
        b"/v1/x%252e%252e%252fy",
        b"/v1/pay%5Fment",
        b"/v1/a;b=1/c%3B",
        b"/v1/%E8%AE%A2%E5%8D%95",
        b"/v1/payments?merchant_order_no=A%2BB+C%20D%26E",
        b"/v1/a%2fb",
        b"/v1/...",
        b"/v1/..a/.b/a..",
        b"/v1/a.b",
        b"/v1/x?next=/../y",
        b"/http://127.0.0.1:6379/",
        b'/v1/a|b{c}"<>^`',
        b"/v1/%zz%",
        b"/?",
    ],
)
def test_target_that_names_one_path_stays_as_it_is(target: bytes) -> None:
    assert parse(request(b"GET " + target + b" HTTP/1.1")).head.target == target


def test_header_of_12000_bytes_passes() -> None:
    parsed = parse(request(b"GET / HTTP/1.1", b"X-Token: " + b"t" * 12_000))
    assert parsed.head.headers == ((b"X-Token", b"t" * 12_000),)


def test_order_case_duplicates_and_bytes_of_headers_stay() -> None:
    parsed = parse(
        request(b"GET / HTTP/1.1", b"x-B: 1", b"X-b:2", b"X-Name: caf\xe9", b"Empty:", b"Blank: \t a \t b\t ")
    )
    assert parsed.head.headers == (
        (b"x-B", b"1"),
        (b"X-b", b"2"),
        (b"X-Name", b"caf\xe9"),
        (b"Empty", b""),
        (b"Blank", b"a \t b"),
    )


def test_hop_by_hop_and_own_headers_do_not_travel_on() -> None:
    parsed = parse(
        request(
            b"GET / HTTP/1.1",
            b"Connection: keep-alive, X-Drop-Me",
            b"X-Drop-Me: 1",
            b"Keep-Alive: timeout=5",
            b"TE: trailers",
            b"Trailer: X-T",
            b"Upgrade: h2c",
            b"HTTP2-Settings: AAMAAABkAAQAAP__",
            b"Proxy-Connection: keep-alive",
            b"Proxy-Authorization: Basic eA==",
            b"Expect: 100-continue",
            b"sAfEpOsT-Knowledge: executed",
            b"X-Keep-Me: 1",
        )
    )
    assert parsed.head.headers == ((b"X-Keep-Me", b"1"),)
    assert parsed.keep_alive


@pytest.mark.parametrize(
    ("fields", "length", "framed"),
    [
        ((), 0, False),
        ((b"Content-Length: 0",), 0, True),
        ((b"Content-Length:  12 ",), 12, True),
        ((b"content-length: 007",), 7, True),
        ((b"Transfer-Encoding: chunked",), None, True),
        ((b"transfer-encoding: Chunked",), None, True),
    ],
)
def test_body_framing_is_known(fields: tuple[bytes, ...], length: int | None, framed: bool) -> None:
    parsed = parse(request(b"POST / HTTP/1.1", *fields))
    assert (parsed.body_length, parsed.has_body_framing) == (length, framed)


@pytest.mark.parametrize(
    ("line", "fields", "keeps"),
    [
        (b"GET / HTTP/1.1", (), True),
        (b"GET / HTTP/1.1", (b"Connection: Close",), False),
        (b"GET / HTTP/1.1", (b"Connection: keep-alive,, close",), False),
        (b"GET / HTTP/1.0", (), False),
        (b"GET / HTTP/1.0", (b"Connection: keep-alive",), False),
    ],
)
def test_keep_alive_is_known(line: bytes, fields: tuple[bytes, ...], keeps: bool) -> None:
    assert parse(request(line, *fields)).keep_alive is keeps


@pytest.mark.parametrize(
    ("line", "value", "expects"),
    [
        (b"POST / HTTP/1.1", b"100-continue", True),
        (b"POST / HTTP/1.1", b"100-Continue", True),
        (b"POST / HTTP/1.0", b"100-continue", False),
        (b"POST / HTTP/1.0", b"nonsense", False),
    ],
)
def test_expectation_is_known(line: bytes, value: bytes, expects: bool) -> None:
    assert parse(request(line, b"Expect: " + value)).expects_continue is expects


def test_http_1_0_needs_no_host() -> None:
    assert parse(request(b"GET / HTTP/1.0", host=b"")).head.http_minor == 0


def test_asterisk_is_for_options() -> None:
    assert parse(request(b"OPTIONS * HTTP/1.1")).head.target == b"*"


@pytest.mark.parametrize("host", [b"", b"sut.test", b"sut.test:80", b"[::1]", b"[::1]:8080", b"127.0.0.1:"])
def test_host_of_any_lawful_form_is_taken(host: bytes) -> None:
    assert parse(request(b"GET / HTTP/1.1", host=b"Host: " + host + b"\r\n")).head.headers == ()


def test_head_end_is_found_whatever_way_the_bytes_came() -> None:
    raw = request(b"GET / HTTP/1.1", b"X: a")
    for cut in range(1, len(raw)):
        assert head_end(raw[:cut], 0, LIMITS) == -1
        assert head_end(raw, cut, LIMITS) == len(raw)


@pytest.mark.parametrize("cut", [1, 17, 18, 19, 30])
def test_bare_lf_is_refused_before_the_head_is_whole(cut: int) -> None:
    raw = b"GET / HTTP/1.1\r\nHost: sut.test\nX: a"
    if cut <= raw.index(b"\nX"):
        assert head_end(raw[:cut], 0, LIMITS) == -1
    with pytest.raises(HeadRefused):
        head_end(raw, cut if cut <= raw.index(b"\nX") else 0, LIMITS)


# A second, slow and literal reading of RFC 9112's grammar to hold the fast one against.

_TCHAR = set(b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


def is_lawful(raw: bytes) -> bool:
    """Whether the head keeps the grammar of RFC 9112, byte by byte."""
    if not raw.endswith(b"\r\n\r\n"):
        return False
    line, *fields = raw[:-4].split(b"\r\n")
    if any(byte in b"\r\n" for part in (line, *fields) for byte in part):
        return False
    parts = line.split(b" ")
    if len(parts) != 3 or not parts[0] or not set(parts[0]) <= _TCHAR:
        return False
    if not parts[1] or any(not 0x21 <= byte <= 0x7E for byte in parts[1]):
        return False
    if parts[2] not in (b"HTTP/1.1", b"HTTP/1.0"):
        return False
    for field in fields:
        name, colon, value = field.partition(b":")
        if not colon or not name or not set(name) <= _TCHAR:
            return False
        if any(byte != 9 and (byte < 0x20 or byte == 0x7F) for byte in value):
            return False
    return True


def accepted(raw: bytes) -> ParsedHead | None:
    try:
        if head_end(raw, 0, LIMITS) != len(raw):
            return None
        return parse_request_head(raw, LIMITS, PROTECTED)
    except HeadRefused:
        return None


_NASTY = st.sampled_from(
    [
        *(bytes([byte]) for byte in b"\r\n\0 \t:,\x0b\x7f\xff/#"),
        b"\r\n",
        b"..",
        b"%2e",
        b"Host: a",
        b"Content-Length: 1",
        b"Transfer-Encoding: chunked",
        b"Connection: close",
        b"HTTP/1.1",
    ]
)


@st.composite
def mangled_heads(draw: st.DrawFn) -> bytes:
    """A lawful head with a few bytes put in, taken out or replaced."""
    raw = bytearray(draw(st.sampled_from(SEEDS)))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(raw)))
        taken = draw(st.integers(0, 3))
        raw[at : at + taken] = draw(_NASTY | st.binary(max_size=2))
    return bytes(raw)


SEEDS = [
    request(),
    request(b"POST /v1/payments?a=b HTTP/1.1", b"Content-Length: 10", b"Idempotency-Key: k"),
    request(b"POST /v1/payments HTTP/1.1", b"Transfer-Encoding: chunked", b"Connection: keep-alive"),
    request(b"GET /a HTTP/1.0", b"X: a", b"Y: b c"),
]


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(mangled_heads() | st.binary(max_size=60).map(lambda noise: noise + b"\r\n\r\n"))
@example(b"GET / HTTP/1.1\r\nHost: a\r\nbad(name: v\r\n\r\n")
@example(b"GET / HTTP/1.1\r\nHost: a\r\nX: a\nY: b\r\n\r\n")
def test_scanner_takes_nothing_that_the_grammar_refuses(raw: bytes) -> None:
    parsed = accepted(raw)
    if parsed is not None:
        assert is_lawful(raw)
        assert is_token(parsed.head.method)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(mangled_heads())
def test_scanner_reads_what_other_parsers_read(raw: bytes) -> None:
    """Two well-kept parsers agree with ours on every head that ours takes."""
    parsed = accepted(raw)
    if parsed is None:
        return
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=100_000)
    connection.receive_data(raw)
    event = connection.next_event()
    assert isinstance(event, h11.Request)
    assert (event.method, event.target) == (parsed.head.method, parsed.head.target)
    theirs = [(name, value) for name, value in event.headers.raw_items()]
    assert set(parsed.head.headers) <= set(theirs)
    if re.fullmatch(rb"GET|POST", parsed.head.method):
        seen: list[tuple[bytes, bytes]] = []
        llhttp = httptools.HttpRequestParser(_Fields(seen))
        with contextlib.suppress(httptools.HttpParserUpgrade):
            llhttp.feed_data(raw)
        assert set(parsed.head.headers) <= {(name, value.rstrip(b" \t")) for name, value in seen}


class _Fields:
    def __init__(self, seen: list[tuple[bytes, bytes]]) -> None:
        self._seen = seen

    def on_header(self, name: bytes, value: bytes) -> None:
        self._seen.append((name, value))
