"""The rows of the fidelity matrix. A new row is a few lines; what it leaves out travels unchanged."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

import brotli

from tests.wire.peers import Close, Step, chunked

STREAMED, GUARDED = "streamed", "guarded"
_ALWAYS = (b"X-Request-Id: row-1", b"Authorization: Bearer sk_test_A")
"""Brought by every call, so that the product has nothing to add (H1)."""
_JSON = b'{"merchant_order_no":"%b","amount":10000,"currency":"USD"}'
_OBJECT = b'{"id":"pay_t1","status":"succeeded","merchant_order_no":"ORDER-T-001"}'


@dataclass(frozen=True, kw_only=True)
class RequestRow:
    """A request. Each `arrives_*` is what the platform must see, None where it is what was sent.

    `refused`: the status of a request that must not travel. `times`: sent so often on one connection.
    """

    name: str
    kind: str = STREAMED
    line: bytes = b"GET /v1/x HTTP/1.1"
    fields: tuple[bytes, ...] = ()
    host: bytes = b"Host: sut.test"
    framing: tuple[bytes, ...] = ()
    body: bytes = b""
    arrives_line: bytes | None = None
    arrives_fields: tuple[bytes, ...] | None = None
    arrives_framing: tuple[bytes, ...] | None = None
    arrives_body: bytes | None = None
    refused: int | None = None
    waits_for_100: bool = False
    times: int = 1
    in_one_write: bool = False
    closes: bool = False

    @property
    def answered_with(self) -> bytes:
        """The platform's answer to the row."""
        return b"" if self.line.startswith(b"HEAD") else _OBJECT

    def sent(self) -> bytes:
        """The request on the wire, less a body that waits for the 100."""
        head = (self.line, self.host, *_ALWAYS, *self.fields, *self.framing)
        body = b"" if self.waits_for_100 else self.body
        return b"\r\n".join(line for line in head if line) + b"\r\n\r\n" + body

    @property
    def answer_wanted(self) -> bytes:
        status = b"%d" % (self.refused or 201)
        return b"HTTP/1.1 100 Continue\r\n\r\n" + status if self.waits_for_100 else status

    def wanted(self, host: bytes) -> list[bytes]:
        """The head and the body at the platform."""
        line = self.line if self.arrives_line is None else self.arrives_line
        fields = self.fields if self.arrives_fields is None else self.arrives_fields
        framing = self.framing if self.arrives_framing is None else self.arrives_framing
        body = self.body if self.arrives_body is None else self.arrives_body
        head = (line, b"Host: " + host, *_ALWAYS, *fields, b"Via: 1.1 safepost", *framing)
        return [b"\r\n".join(head) + b"\r\n\r\n", body]


@dataclass(frozen=True, kw_only=True)
class AnswerRow:
    """An answer of the platform, and what of it the caller must get."""

    name: str
    kind: str = STREAMED
    method: bytes = b"GET"
    guarded_line: bytes = b"POST /v1/payments HTTP/1.1"
    interims: bytes = b""
    line: bytes = b"HTTP/1.1 200 OK"
    fields: tuple[bytes, ...] = ()
    framing: tuple[bytes, ...] = ()
    body: bytes = b""
    then: tuple[Step, ...] = ()
    arrives_interims: tuple[bytes, ...] = ()
    arrives_line: bytes | None = None
    arrives_fields: tuple[bytes, ...] | None = None
    arrives_framing: tuple[bytes, ...] | None = None
    arrives_body: bytes | None = None
    arrives_trailers: bytes = b""
    via: bytes = b"Via: 1.1 safepost"
    is_early: bool = False
    closes: bool = False

    @property
    def has_no_body(self) -> bool:
        return self.method == b"HEAD" or self.line.split(b" ")[1] in (b"204", b"304")

    def asked(self) -> bytes:
        """The request that the answer is to."""
        if self.kind == GUARDED:
            row = _guarded_call(RequestRow(name=f"answer {self.name}", line=self.guarded_line))
        elif self.is_early:
            size = 4_000_000
            row = RequestRow(
                name="", line=b"PUT /v1/x HTTP/1.1", framing=(b"Content-Length: %d" % size,), body=b"x" * size
            )
        else:
            row = RequestRow(name="", line=self.method + b" /v1/x HTTP/1.1")
        return row.sent()

    def sent(self) -> bytes:
        head = (self.line, b"X-Request-Id: row-1", *self.fields, *self.framing)
        return self.interims + b"\r\n".join(head) + b"\r\n\r\n" + self.body

    def wanted(self) -> list[bytes]:
        """What the caller must get: interim heads, head, body, trailers."""
        line = self.line if self.arrives_line is None else self.arrives_line
        fields = self.fields if self.arrives_fields is None else self.arrives_fields
        framing = self.framing if self.arrives_framing is None else self.arrives_framing
        body = self.body if self.arrives_body is None else self.arrives_body
        ending = (b"Connection: close",) if self.closes else ()
        if self.has_no_body and self.kind == STREAMED:
            # What a length says of another answer is a field like any other here, in front of Via.
            head = (line, b"X-Request-Id: row-1", *fields, *framing, self.via, *ending)
        else:
            head = (line, b"X-Request-Id: row-1", *fields, self.via, *framing, *ending)
        return [*self.arrives_interims, b"\r\n".join(head) + b"\r\n\r\n", body, self.arrives_trailers]


def _guarded_call(row: RequestRow) -> RequestRow:
    """The same row as a payment: with a key, an order of its own, and a body."""
    number = b"".join(b"%02x" % byte for byte in zlib.crc32(row.name.encode()).to_bytes(4, "big"))
    body = row.body or _JSON % (b"O-" + number)
    key = b"Idempotency-Key: K-" + number
    framing = row.framing or (b"Content-Length: %d" % len(body),)
    arrives = None if row.arrives_fields is None else (*row.arrives_fields, key)
    return replace(
        row,
        kind=GUARDED,
        line=b"POST /v1/payments HTTP/1.1" if row.line.startswith(b"GET /v1/x ") else row.line,
        fields=(*row.fields, key),
        arrives_fields=arrives,
        framing=framing,
        body=body,
    )


def _both(*rows: RequestRow) -> Iterator[RequestRow]:
    for row in rows:
        yield row
        yield _guarded_call(row)


def _target(name: str, target: bytes, *, refused: int | None = None) -> RequestRow:
    return RequestRow(
        name=f"target {name}", line=b"GET %b HTTP/1.1" % target, refused=refused, closes=refused is not None
    )


_TARGETS = (
    _target("with %2F", b"/v1/payments/a%2Fb"),
    _target("with %2f in lower case", b"/v1/payments/a%2fb"),
    _target("with //", b"//v1//x///y"),
    _target("with ; parameters", b"/v1/a;b=1/c%3B;d"),
    _target("with +", b"/v1/a+b?c=d+e"),
    _target("with an empty query", b"/v1/payments/pay_1?"),
    _target("with ? in the query", b"/v1/x?a=?&b=/?"),
    _target("with an empty path segment at its end", b"/v1/x/"),
    _target("encoded twice", b"/v1/x%252Fy%2520"),
    _target("with unreserved bytes encoded", b"/v1/pay%5Fment%7e%41"),
    _target("with non-ASCII percent forms", b"/v1/%E8%AE%A2%E5%8D%95?q=%C3%A9%ff"),
    _target("with a broken percent form", b"/v1/100%?x=%zz"),
    _target("with sub-delimiters and brackets", b"/v1/a!$&'()*,=:@b[c]|{d}^`\"<e>"),
    _target("that looks like a URL", b"/http://127.0.0.1:6379/"),
    _target("of 8 KB", b"/v1/x?" + b"q=%41&" * 1_365),
    _target("with dots that are no segment", b"/v1/.../a..b/.c/d.?e=../f"),
    _target("with a dot segment", b"/v1/x/../payments", refused=400),
    _target("with an encoded dot segment", b"/v1/%2e%2e/payments", refused=400),
    _target("with a fragment", b"/v1/x#y", refused=400),
    _target("in absolute form", b"http://sut.test/v1/x", refused=400),
    RequestRow(name="target * for OPTIONS", line=b"OPTIONS * HTTP/1.1"),
    RequestRow(name="method that nobody knows", line=b"PURGE-ALL /v1/x HTTP/1.1"),
    _guarded_call(RequestRow(name="target with a query", line=b"POST /v1/payments?a=%2F&b=+& HTTP/1.1")),
    _guarded_call(RequestRow(name="target encoded", line=b"POST /v1/%70ayments HTTP/1.1")),
)

_MANY = tuple(b"X-N%d: %d" % (n, n) for n in range(200))
_HEADERS = _both(
    RequestRow(name="headers in their order", fields=(b"B: 1", b"A: 2", b"C: 3", b"Accept: */*")),
    RequestRow(name="header names in their case", fields=(b"x-lower: 1", b"X-UPPER: 2", b"x-MiXeD: 3")),
    RequestRow(
        name="duplicates apart, order kept", fields=(b"X-D: b", b"X-E: 1", b"x-d: a", b"X-D: b", b"Cookie: a")
    ),
    RequestRow(name="two Cookie fields", fields=(b"Cookie: a=1; b=2", b"Cookie: c=3")),
    RequestRow(name="Latin-1 and UTF-8 bytes", fields=(b"X-Name: caf\xe9", b"X-Utf: \xe8\xae\xa2\xff\x80")),
    RequestRow(
        name="empty values",
        fields=(b"X-Empty: ", b"X-After: 1"),
        arrives_fields=(b"X-Empty: ", b"X-After: 1"),
    ),
    RequestRow(
        name="blanks around values go, inside stay",
        fields=(b"X-A:1", b"X-B:  \t 2 \t ", b"X-C: a  b\tc"),
        arrives_fields=(b"X-A: 1", b"X-B: 2", b"X-C: a  b\tc"),
    ),
    RequestRow(name="odd but lawful names", fields=(b"!#$%&'*+-.^_`|~: 1", b"0: 2")),
    RequestRow(
        name="values that look like framing", fields=(b"X-A: Content-Length: 5", b'X-B: "a\\"b", c;d=e')
    ),
    RequestRow(name="200 headers", fields=_MANY),
    RequestRow(name="a header of 12 KB", fields=(b"X-Token: " + b"t" * 12_000,)),
    RequestRow(name="64 KB of headers", fields=tuple(b"X-L%02d: " % n + b"v" * 2_000 for n in range(32))),
    RequestRow(
        name="Host last in the head",
        host=b"",
        fields=(b"X-A: 1", b"Host: sut.test"),
        arrives_fields=(b"X-A: 1",),
    ),
    RequestRow(
        name="proxies' and tracing headers",
        fields=(
            b"Forwarded: for=1",
            b"X-Forwarded-For: 1.2.3.4",
            b"traceparent: 00-a-b-01",
            b"Via: 1.0 other",
        ),
    ),
    RequestRow(
        name="hop-by-hop fields stay behind",
        fields=(
            b"Connection: keep-alive, X-Drop-Me",
            b"X-Drop-Me: 1",
            b"Keep-Alive: timeout=5",
            b"TE: trailers",
            b"Trailer: X-T",
            b"Proxy-Connection: keep-alive",
            b"Proxy-Authorization: Basic eA==",
            b"X-Keep-Me: 1",
        ),
        arrives_fields=(b"X-Keep-Me: 1",),
    ),
    RequestRow(
        name="offer of h2c is dropped",
        fields=(b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABkAAQA"),
        arrives_fields=(),
    ),
    RequestRow(
        name="Safepost-* is dropped",
        fields=(b"Safepost-Knowledge: executed", b"safepost-x: 1"),
        arrives_fields=(),
    ),
    RequestRow(
        name="Connection names the key", fields=(b"Connection: Idempotency-Key",), refused=400, closes=True
    ),
    RequestRow(
        name="Connection names the key among others",
        fields=(b"Connection: close,\tIDEMPOTENCY-KEY ",),
        refused=400,
        closes=True,
    ),
    RequestRow(name="Connection: close", fields=(b"Connection: close",), arrives_fields=(), closes=True),
)

_CHUNKED = (b"Transfer-Encoding: chunked",)
_POST = b"POST /v1/things HTTP/1.1"
_PAYMENT = _JSON % b"O-chunked"
_EXTENDED = b'3;a=b\r\n%b\r\n00%x ; c="d e";f\r\n%b\r\n0;last\r\n\r\n' % (
    _PAYMENT[:3],
    len(_PAYMENT) - 3,
    _PAYMENT[3:],
)
_TRAILED = chunked([b"ab", b"c"], b"X-Sum: 1\r\nHost: evil\r\n")
_ZIPPED = gzip.compress(b"plain " * 50, mtime=0)


def _post(name: str, body: bytes, *fields: bytes, line: bytes = _POST) -> RequestRow:
    return RequestRow(
        name=name, line=line, fields=fields, framing=(b"Content-Length: %d" % len(body),), body=body
    )


def _whole(name: str, body: bytes, arrives: bytes, *, framing: bytes = _CHUNKED[0]) -> RequestRow:
    """A chunked body that is here at once: its length is known, so it travels on with one."""
    return RequestRow(
        name=name,
        line=_POST,
        framing=(framing,),
        body=body,
        arrives_framing=(b"Content-Length: %d" % len(arrives),),
        arrives_body=arrives,
    )


_LONG = bytes(range(256)) * 12_000

_BODIES = (
    _post("body of every byte", bytes(range(256)) * 40),
    _post("body of zero bytes that says so", b""),
    _post("body with a GET", b"odd", line=b"GET /v1/x HTTP/1.1"),
    _post("body in gzip", _ZIPPED, b"Content-Encoding: gzip"),
    _post("body in Brotli", brotli.compress(b"plain " * 50), b"Content-Encoding: br"),
    _post("body that looks like a request", b"GET /v1/internal HTTP/1.1\r\nHost: x\r\n\r\n"),
    _post("body of 3 MB", b"\0\r\n" * 1_000_000),
    RequestRow(name="POST without any framing", line=_POST, arrives_framing=(b"Content-Length: 0",)),
    _whole("chunked, with extensions", _EXTENDED, _PAYMENT),
    _whole("chunked, empty", b"0\r\n\r\n", b""),
    _whole("chunked, trailers stay behind", _TRAILED, b"abc"),
    _whole("chunked in another case", chunked([b"abc"]), b"abc", framing=b"transfer-encoding: Chunked"),
    RequestRow(
        name="chunked, too long to be held",
        line=_POST,
        framing=_CHUNKED,
        body=chunked([_LONG[at : at + 70_000] for at in range(0, len(_LONG), 70_000)], b"X-Sum: 1\r\n"),
        arrives_body=_LONG,
    ),
    replace(
        _guarded_call(RequestRow(name="chunked, with extensions", framing=_CHUNKED, body=_EXTENDED)),
        arrives_framing=(b"Content-Length: %d" % len(_PAYMENT),),
        arrives_body=_PAYMENT,
    ),
    _guarded_call(
        RequestRow(
            name="JSON with odd spacing and escapes",
            body=b' {"amount" : 1e2,\n "merchant_order_no":"\\u00e9",\t"currency":"USD", '
            b'"x":9007199254740993}\r\n',
        )
    ),
    RequestRow(
        name="cancel with Content-Length: 0",
        kind=GUARDED,
        line=b"POST /v1/payments/pay_t1/cancel HTTP/1.1",
        fields=(b"Idempotency-Key: K-cancel",),
        framing=(b"Content-Length: 0",),
    ),
    RequestRow(
        name="cancel without any framing",
        kind=GUARDED,
        line=b"POST /v1/payments/pay_t2/cancel HTTP/1.1",
        fields=(b"Idempotency-Key: K-cancel",),
        arrives_framing=(b"Content-Length: 0",),
    ),
    replace(
        _guarded_call(
            RequestRow(name="compressed body of a payment", fields=(b"Content-Encoding: gzip",), body=_ZIPPED)
        ),
        refused=415,
    ),
)

_EXPECTED = _JSON % b"O-expect"


def _expects(value: bytes, **more: object) -> Iterator[RequestRow]:
    told = value.decode()
    fields = (b"Expect: " + value,)
    length = (b"Content-Length: %d" % len(_EXPECTED),)
    for row in (
        RequestRow(name=f"Expect: {told}, waits", line=_POST, waits_for_100=True),
        RequestRow(name=f"Expect: {told}, sends at once", line=_POST),
    ):
        plain = replace(row, fields=fields, arrives_fields=(), framing=length, body=_EXPECTED)
        yield plain
        yield _guarded_call(replace(plain, line=b"GET /v1/x "))


_EXPECTS = (
    *(
        replace(row, line=b"POST /v1/payments HTTP/1.1" if row.kind == GUARDED else row.line)
        for value in (b"100-continue", b"100-Continue")
        for row in _expects(value)
    ),
    *_both(
        RequestRow(name="Expect of something else", fields=(b"Expect: 200-ok",), refused=417, closes=True)
    ),
    *_both(
        RequestRow(
            name="Expect without a body", fields=(b"Expect: 100-continue",), arrives_fields=(), framing=()
        )
    ),
)


def _old(row: RequestRow) -> RequestRow:
    """The row as an HTTP/1.0 caller sends it."""
    line = row.line.replace(b"HTTP/1.1", b"HTTP/1.0")
    return replace(row, line=line, arrives_line=row.line, closes=True)


_CONNECTIONS = (
    *(_old(row) for row in _both(RequestRow(name="HTTP/1.0 caller"))),
    *(_old(row) for row in _both(RequestRow(name="HTTP/1.0 caller without a Host", host=b""))),
    *(
        _old(row)
        for row in _both(
            RequestRow(
                name="HTTP/1.0 caller that wants to stay",
                fields=(b"Connection: keep-alive",),
                arrives_fields=(),
            )
        )
    ),
    *(replace(row, times=3) for row in _both(RequestRow(name="three calls kept alive"))),
    *(replace(row, times=3, in_one_write=True) for row in _both(RequestRow(name="three calls pipelined"))),
    replace(_post("three calls with bodies pipelined", b"b\r\n\r\n"), times=3, in_one_write=True),
    replace(_whole("three chunked calls pipelined", _EXTENDED, _PAYMENT), times=3, in_one_write=True),
    RequestRow(name="HEAD", line=b"HEAD /v1/x HTTP/1.1"),
)

REQUESTS: tuple[RequestRow, ...] = (*_TARGETS, *_HEADERS, *_BODIES, *_EXPECTS, *_CONNECTIONS)


# --- answers ----------------------------------------------------------------------------------------------------


def _length(body: bytes) -> tuple[bytes, ...]:
    return (b"Content-Length: %d" % len(body),)


def _says(name: str, *fields: bytes, **more: object) -> Iterator[AnswerRow]:
    """An ordinary answer with these fields, streamed and guarded."""
    row = AnswerRow(name=name, fields=fields, framing=_length(_OBJECT), body=_OBJECT)
    row = replace(row, **more)  # type: ignore[arg-type] # the fields of a row, by name
    yield row
    yield replace(row, kind=GUARDED)


_COOKIES = (
    b"Set-Cookie: a=1; Expires=Wed, 21 Oct 2026 07:28:00 GMT; Path=/",
    b"Set-Cookie: b=2, c",
    b"set-cookie: ",
)
_ANSWER_HEADERS = (
    *_says("Set-Cookie lines apart", *_COOKIES),
    *_says("headers in order, case and number", b"B: 1", b"a: 2", b"Link: </a>", b"link: </b>", b"B: 1"),
    *_says("two WWW-Authenticate", b"WWW-Authenticate: A realm=x", b"WWW-Authenticate: B"),
    *_says("Latin-1 and UTF-8 bytes", b"X-Name: caf\xe9", b"X-Utf: \xe8\xae\xa2\xff"),
    *_says("empty values", b"X-Empty: ", b"X-After: 1"),
    *_says("200 headers", *_MANY),
    *_says("60 KB of headers", *(b"X-L%02d: " % n + b"v" * 2_000 for n in range(30))),
    *_says(
        "validators and dates",
        b'ETag: W/"v1"',
        b"Date: Wed, 21 Oct 2015 07:28:00 GMT",
        b"Age: 3",
        b"Server: x/1",
    ),
    *_says("Location", b"Location: http://other.test:9/%2F?a=+"),
    *_says(
        "hop-by-hop fields stay behind",
        b"Connection: keep-alive, X-R",
        b"X-R: 1",
        b"Keep-Alive: timeout=9",
        b"Proxy-Authenticate: x",
        b"Upgrade: h2c",
        b"X-S: 2",
        arrives_fields=(b"X-S: 2",),
    ),
    *_says("Proxy-Status stays, it is end to end", b"Proxy-Status: edge; error=x"),
    *_says(
        "the platform's own Safepost-* is dropped",
        b"Safepost-Knowledge: executed",
        b"X-S: 2",
        arrives_fields=(b"X-S: 2",),
    ),
    *_says("blanks around values go", b"X-A:1", b"X-B: \t 2  ", arrives_fields=(b"X-A: 1", b"X-B: 2")),
    *_says("own reason phrase", line=b"HTTP/1.1 201 Made \xe9 for you"),
    *_says("no reason phrase", line=b"HTTP/1.1 201 ", arrives_line=b"HTTP/1.1 201 Created"),
    *_says("status that nobody knows", line=b"HTTP/1.1 299 Odd"),
)

_OUT_CHUNKED = chunked([_OBJECT[:9], _OBJECT[9:]])
_OUT_EXTENDED = b"9;a=b\r\n%b\r\n0%x\r\n%b\r\n0;z\r\nX-Sum: 1\r\n\r\n" % (
    _OBJECT[:9],
    len(_OBJECT) - 9,
    _OBJECT[9:],
)
_PACKED = gzip.compress(_OBJECT, mtime=0)
_BROTLI = brotli.compress(_OBJECT)
_ANSWER_BODIES = (
    *_says("gzip untouched", b"Content-Encoding: gzip", framing=_length(_PACKED), body=_PACKED),
    *_says("Brotli untouched", b"Content-Encoding: br", framing=_length(_BROTLI), body=_BROTLI),
    AnswerRow(name="every byte", framing=_length(bytes(range(256)) * 9), body=bytes(range(256)) * 9),
    AnswerRow(name="Content-Length: 0", framing=(b"Content-Length: 0",)),
    AnswerRow(name="chunked", framing=_CHUNKED, body=_OUT_CHUNKED, arrives_body=_OBJECT),
    AnswerRow(
        name="chunked, gzip",
        fields=(b"Content-Encoding: gzip",),
        framing=_CHUNKED,
        body=chunked([_PACKED]),
        arrives_body=_PACKED,
    ),
    AnswerRow(
        name="chunked, with extensions and trailers",
        framing=_CHUNKED,
        body=_OUT_EXTENDED,
        arrives_body=_OBJECT,
        arrives_trailers=b"X-Sum: 1\r\n",
    ),
    AnswerRow(
        name="chunked, with extensions and trailers",
        kind=GUARDED,
        framing=_CHUNKED,
        body=_OUT_EXTENDED,
        arrives_framing=_length(_OBJECT),
        arrives_body=_OBJECT,
    ),
    AnswerRow(name="until the connection ends", body=_OBJECT, then=(Close(),), arrives_framing=_CHUNKED),
    AnswerRow(
        name="until the connection ends",
        kind=GUARDED,
        body=_OBJECT,
        then=(Close(),),
        arrives_framing=_length(_OBJECT),
    ),
    AnswerRow(
        name="HTTP/1.0 platform",
        line=b"HTTP/1.0 200 OK",
        arrives_line=b"HTTP/1.1 200 OK",
        framing=_length(_OBJECT),
        body=_OBJECT,
        then=(Close(),),
        via=b"Via: 1.0 safepost",
    ),
)

_BODYLESS = (
    AnswerRow(name="HEAD keeps the length it tells", method=b"HEAD", framing=(b"Content-Length: 1234",)),
    AnswerRow(name="HEAD of a chunked resource", method=b"HEAD", framing=_CHUNKED, arrives_framing=()),
    AnswerRow(name="204", line=b"HTTP/1.1 204 No Content", fields=(b"ETag: x",)),
    AnswerRow(
        name="204 to a cancel",
        kind=GUARDED,
        guarded_line=b"POST /v1/payments/pay_t1/cancel HTTP/1.1",
        line=b"HTTP/1.1 204 No Content",
        fields=(b"ETag: x",),
    ),
    AnswerRow(
        name="304 keeps the length it tells",
        line=b"HTTP/1.1 304 Not Modified",
        framing=(b"Content-Length: 77",),
    ),
)

_HINT = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\nlink: </b>\r\n\r\n"
_HINT_2 = b"HTTP/1.1 103 Early Hints\r\nLink: </c>\r\n\r\n"
_HINTED = AnswerRow(name="103", framing=_length(_OBJECT), body=_OBJECT)
_LARGE = AnswerRow(
    name="413 before the body was read",
    line=b"HTTP/1.1 413 Too Large",
    fields=(b"Content-Type: application/json",),
    framing=_length(b"{}"),
    body=b"{}",
    then=(Close(),),
    is_early=True,
    closes=True,
)
_INTERIMS = (
    replace(_HINTED, name="103 before the answer", interims=_HINT, arrives_interims=(_HINT,)),
    replace(_HINTED, name="two of 103", interims=_HINT + _HINT_2, arrives_interims=(_HINT, _HINT_2)),
    replace(_HINTED, name="100 unasked is dropped", interims=b"HTTP/1.1 100 Continue\r\n\r\n"),
    replace(_HINTED, name="103 before a payment's answer is dropped", kind=GUARDED, interims=_HINT + _HINT_2),
    _LARGE,
)

_STATUSES = tuple(
    AnswerRow(name=f"{status}", line=b"HTTP/1.1 %d As Told" % status, framing=_length(b"told"), body=b"told")
    for status in (200, 202, 206, 300, 302, 307, 400, 401, 404, 409, 418, 429, 500, 502, 503, 504, 599, 999)
)
_REFUSALS = tuple(
    AnswerRow(
        name=f"{status} to a payment",
        kind=GUARDED,
        line=b"HTTP/1.1 %d As Told" % status,
        fields=(b"Retry-After: 7",),
        framing=_length(b'{"error":{"code":"x"}}'),
        body=b'{"error":{"code":"x"}}',
    )
    for status in (400, 401, 402, 403, 404, 422, 429, 500)
)

ANSWERS: tuple[AnswerRow, ...] = (
    *_ANSWER_HEADERS,
    *_ANSWER_BODIES,
    *_BODYLESS,
    *_INTERIMS,
    *_STATUSES,
    *_REFUSALS,
)
