"""What attackers and broken programs send, at both ends (H4, H9, H10; O-22, O-23, O-24, O-30).

`REQUESTS` must each end in one refusal and a closed connection, with nothing at the platform. `ANSWERS` must
each stay with the call that they were given to: the next call gets its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.wire.peers import Close, Hang, Step, chunked

EVIL = b"evil-answer"
"""In every hostile answer that could be taken for another call's."""
INNER = b"GET /v1/internal HTTP/1.1\r\nHost: x\r\n\r\n"
"""The request that a smuggler wants the platform to see."""

_HOST = b"Host: sut.test"
_KEY = b"Idempotency-Key: K-corpus"
_CHUNKED = b"Transfer-Encoding: chunked"
_PAYMENT = b'{"merchant_order_no":"O-corpus","amount":1,"currency":"USD"}'


def _post(*fields: bytes, body: bytes = b"", path: bytes = b"/v1/payments", host: bytes = _HOST) -> bytes:
    head = (b"POST %b HTTP/1.1" % path, host, _KEY, *fields)
    return b"\r\n".join(line for line in head if line) + b"\r\n\r\n" + body


def _get(line: bytes = b"GET /v1/x HTTP/1.1", *fields: bytes, host: bytes = _HOST) -> bytes:
    return b"\r\n".join(part for part in (line, host, *fields) if part) + b"\r\n\r\n"


_SMUGGLED = b"0\r\n\r\n" + INNER
_IN_CHUNK = chunked([INNER])
_SHORT = b"Content-Length: 5"

SMUGGLING = {
    "CL.TE": _post(b"Content-Length: %d" % len(_SMUGGLED), _CHUNKED, body=_SMUGGLED),
    "TE.CL": _post(_CHUNKED, b"Content-Length: 4", body=_IN_CHUNK),
    "CL.TE, length 0": _post(b"Content-Length: 0", _CHUNKED, body=_IN_CHUNK),
    "CL.TE on a streamed route": _post(_SHORT, _CHUNKED, body=_SMUGGLED, path=b"/v1/things"),
    "CL.TE on GET": _get(b"GET /v1/x HTTP/1.1", _SHORT, _CHUNKED) + _SMUGGLED,
    "TE.TE, second identity": _post(_CHUNKED, b"Transfer-Encoding: identity", body=_SMUGGLED),
    "TE.TE, first identity": _post(b"Transfer-Encoding: identity", _CHUNKED, body=_SMUGGLED),
    "TE.TE, twice chunked": _post(_CHUNKED, _CHUNKED, body=_SMUGGLED),
    "TE list, identity last": _post(b"Transfer-Encoding: chunked, identity", body=_SMUGGLED),
    "TE list, identity first": _post(b"Transfer-Encoding: identity, chunked", body=_SMUGGLED),
    "TE list, gzip first": _post(b"Transfer-Encoding: gzip, chunked", body=_SMUGGLED),
    "TE list, chunked twice": _post(b"Transfer-Encoding: chunked, chunked", body=_SMUGGLED),
    "TE list, empty member": _post(b"Transfer-Encoding: ,chunked", body=_SMUGGLED),
    "TE with a parameter": _post(b"Transfer-Encoding: chunked;q=1", body=_SMUGGLED),
    "TE quoted": _post(b'Transfer-Encoding: "chunked"', body=_SMUGGLED),
    "TE misspelt": _post(b"Transfer-Encoding: xchunked", _SHORT, body=_SMUGGLED),
    "TE cut": _post(b"Transfer-Encoding: chunke", _SHORT, body=_SMUGGLED),
    "TE empty": _post(b"Transfer-Encoding:", _SHORT, body=_SMUGGLED),
    "TE with a vertical tab": _post(b"Transfer-Encoding: \x0bchunked", _SHORT, body=_SMUGGLED),
    "TE with a form feed": _post(b"Transfer-Encoding: chunked\x0c", _SHORT, body=_SMUGGLED),
    "TE with a NUL": _post(b"Transfer-Encoding: chunked\0", _SHORT, body=_SMUGGLED),
    "TE with a Latin-1 blank": _post(b"Transfer-Encoding: \xa0chunked", _SHORT, body=_SMUGGLED),
    "TE, blank before the colon": _post(b"Transfer-Encoding : chunked", _SHORT, body=_SMUGGLED),
    "TE, tab before the colon": _post(b"Transfer-Encoding\t: chunked", _SHORT, body=_SMUGGLED),
    "TE, blank before the name": _post(b"X: y", b" Transfer-Encoding: chunked", _SHORT, body=_SMUGGLED),
    "TE folded": _post(b"Transfer-Encoding:\r\n chunked", _SHORT, body=_SMUGGLED),
    "TE behind a bare LF": _post(b"X: y\nTransfer-Encoding: chunked", _SHORT, body=_SMUGGLED),
    "TE behind a bare CR": _post(b"X: y\rTransfer-Encoding: chunked", _SHORT, body=_SMUGGLED),
    "TE ended by a bare LF": _post(b"Transfer-Encoding: chunked\nX: y", _SHORT, body=_SMUGGLED),
    "TE in HTTP/1.0": _post(_CHUNKED, body=_SMUGGLED).replace(b"HTTP/1.1", b"HTTP/1.0", 1),
    "CL twice, other": _post(b"Content-Length: 0", b"Content-Length: %d" % len(INNER), body=INNER),
    "CL twice, equal": _post(_SHORT, _SHORT, body=b"hello"),
    "CL list": _post(b"Content-Length: 5, 5", body=b"hello"),
    "CL list, other": _post(b"Content-Length: 5, 0", body=b"hello"),
    "CL plus": _post(b"Content-Length: +5", body=b"hello"),
    "CL minus": _post(b"Content-Length: -5", body=b"hello"),
    "CL hex": _post(b"Content-Length: 0x5", body=b"hello"),
    "CL fraction": _post(b"Content-Length: 5.0", body=b"hello"),
    "CL exponent": _post(b"Content-Length: 1e1", body=b"hello"),
    "CL underscore": _post(b"Content-Length: 1_0", body=b"hello"),
    "CL empty": _post(b"Content-Length:", body=b"hello"),
    "CL inner blank": _post(b"Content-Length: 1 0", body=b"hello"),
    "CL past 64 bits": _post(b"Content-Length: 18446744073709551621", body=b"hello"),
    "CL not ASCII": _post(b"Content-Length: \xd9\xa5", body=b"hello"),
    "CL with a NUL": _post(b"Content-Length: 5\0", body=b"hello"),
    "CL, blank before the colon": _post(b"Content-Length : 5", body=b"hello"),
    "CL folded": _post(b"Content-Length: 5\r\n 0", body=b"hello"),
    "CL behind a bare LF": _post(b"X: y\nContent-Length: 5", body=b"hello"),
}

CHUNKS = {
    f"chunk: {name}": _post(_CHUNKED, body=body, path=path)
    for path, bodies in (
        (
            b"/v1/payments",
            {
                "size with a sign": b"+5\r\nhello\r\n0\r\n\r\n",
                "size below zero": b"-1\r\nhello\r\n0\r\n\r\n",
                "size with 0x": b"0x5\r\nhello\r\n0\r\n\r\n",
                "size with an underscore": b"0_5\r\nhello\r\n0\r\n\r\n",
                "size past 64 bits": b"10000000000000005\r\nhello\r\n0\r\n\r\n",
                "size missing": b"\r\nhello\r\n0\r\n\r\n",
                "size missing before an extension": b";a=b\r\nhello\r\n0\r\n\r\n",
                "blank before the size": b" 5\r\nhello\r\n0\r\n\r\n",
                "blank behind the size": b"5 \r\nhello\r\n0\r\n\r\n",
                "size ended by a bare LF": b"5\nhello\r\n0\r\n\r\n",
                "size ended by a bare CR": b"5\rhello\r\n0\r\n\r\n",
                "bare LF in an extension": b"5;a\nb\r\nhello\r\n0\r\n\r\n",
                "NUL in an extension": b"5;a=\0\r\nhello\r\n0\r\n\r\n",
                "extension without end": b"5;" + b"a" * 2_000,
                "too short": b"6\r\nhello\r\n0\r\n\r\n" + INNER,
                "too long": b"4\r\nhello\r\n0\r\n\r\n" + INNER,
                "ended by a bare LF": b"5\r\nhello\n0\r\n\r\n" + INNER,
            },
        ),
        (
            b"/v1/things",
            {
                "streamed, size with a sign": b"+5\r\nhello\r\n0\r\n\r\n",
                "streamed, too short": b"6\r\nhello\r\n0\r\n\r\n" + INNER,
                "trailer without a colon": b"0\r\nnonsense\r\n\r\n" + INNER,
                "trailer folded": b"0\r\nA: b\r\n c\r\n\r\n" + INNER,
                "trailer with a bare LF": b"0\r\nA: b\nC: d\r\n\r\n" + INNER,
                "trailer with a blank before its colon": b"0\r\nA : b\r\n\r\n" + INNER,
            },
        ),
    )
    for name, body in bodies.items()
}

HEADS = {
    "bare LF for every line end": _get().replace(b"\r\n", b"\n"),
    "bare LF behind the request line": _get().replace(b"\r\n", b"\n", 1),
    "two empty lines in front": b"\r\n\r\n" + _get(),
    "first header folded": b"GET /v1/x HTTP/1.1\r\n Host: sut.test\r\n\r\n",
    "header folded": _get(b"GET /v1/x HTTP/1.1", b"X: a", b"\tb"),
    "header without a colon": _get(b"GET /v1/x HTTP/1.1", b"nonsense"),
    "header without a name": _get(b"GET /v1/x HTTP/1.1", b": a"),
    "header with a blank in its name": _get(b"GET /v1/x HTTP/1.1", b"X Y: a"),
    "header with a NUL": _get(b"GET /v1/x HTTP/1.1", b"X: a\0b"),
    "header with a control byte": _get(b"GET /v1/x HTTP/1.1", b"X: a\x01b"),
    "header with a bare CR": _get(b"GET /v1/x HTTP/1.1", b"X: a\rb"),
    "Connection names the key": _post(b"Connection: Idempotency-Key", b"Content-Length: 0"),
    "Connection is no list of tokens": _get(b"GET /v1/x HTTP/1.1", b"Connection: a b"),
    "Host missing": _get(host=b""),
    "Host twice": _get(b"GET /v1/x HTTP/1.1", b"Host: other.test"),
    "Host with a path": _get(host=b"Host: sut.test/v1"),
    "Host with a user": _get(host=b"Host: a@sut.test"),
    "Expect of something else": _get(b"GET /v1/x HTTP/1.1", b"Expect: 100-continue, x"),
    "target past 16 KB": _get(b"GET /" + b"x" * 16_384 + b" HTTP/1.1"),
    "header past 64 KB": _get(b"GET /v1/x HTTP/1.1", b"X: " + b"x" * 66_000),
    "300 headers": _get(b"GET /v1/x HTTP/1.1", *(b"X: y" for _ in range(300))),
}

LINES = {
    f"line: {name}": _get(line)
    for name, line in {
        "absolute form": b"GET http://169.254.169.254/latest/meta-data/ HTTP/1.1",
        "absolute form to ourselves": b"POST http://sut.test/v1/payments HTTP/1.1",
        "authority form": b"CONNECT 127.0.0.1:6379 HTTP/1.1",
        "authority for GET": b"GET 127.0.0.1:6379 HTTP/1.1",
        "asterisk for GET": b"GET * HTTP/1.1",
        "relative path": b"GET v1/x HTTP/1.1",
        "dot segment": b"POST /v1/x/../payments HTTP/1.1",
        "dot segment, encoded": b"POST /v1/x/%2E%2e/payments HTTP/1.1",
        "dot segment, behind %2F": b"POST /v1/x%2F..%2Fpayments HTTP/1.1",
        "dot segment, with a parameter": b"POST /v1/x/..;a/payments HTTP/1.1",
        "backslash": b"POST /v1\\payments HTTP/1.1",
        "fragment": b"GET /v1/x#/v1/payments HTTP/1.1",
        "control byte in the target": b"GET /v1/\x01 HTTP/1.1",
        "byte past ASCII in the target": b"GET /v1/\xff HTTP/1.1",
        "two blanks": b"GET  /v1/x HTTP/1.1",
        "tab for a blank": b"GET\t/v1/x\tHTTP/1.1",
        "blank in front": b" GET /v1/x HTTP/1.1",
        "blank at its end": b"GET /v1/x HTTP/1.1 ",
        "blank in the target": b"GET /v1/x y HTTP/1.1",
        "HTTP/0.9": b"GET /v1/x",
        "HTTP/1.2": b"GET /v1/x HTTP/1.2",
        "HTTP/2.0": b"GET /v1/x HTTP/2.0",
        "version in lower case": b"GET /v1/x http/1.1",
        "version with a zero": b"GET /v1/x HTTP/1.01",
        "method in lower case": b"post /v1/payments HTTP/1.1",
        "method with a NUL": b"G\0T /v1/x HTTP/1.1",
        "method too long": b"G" * 40 + b" /v1/x HTTP/1.1",
        "no method": b"/v1/x HTTP/1.1",
    }.items()
}

OTHERS = {
    "HTTP/2 by prior knowledge": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0",
    "TLS hello on a plain port": b"\x16\x03\x01\x00\xc8\x01\x00\x00\xc4\x03\x03" + bytes(200),
    "bytes of no protocol": bytes(range(128, 256)),
}

REQUESTS: dict[str, bytes] = {**SMUGGLING, **CHUNKS, **HEADS, **LINES, **OTHERS}


# --- answers ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hostile:
    """An answer that must not be believed, or not further than `gives`.

    `gives`: the body that its own call may get as a whole one; None where it may get no success from it.
    """

    data: bytes
    then: tuple[Step, ...] = (Hang(),)
    gives: bytes | None = None


_EVIL_OBJECT = b'{"id":"pay_evil","status":"succeeded","note":"%b"}' % EVIL
_SECOND = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
    len(_EVIL_OBJECT),
    _EVIL_OBJECT,
)
_OWN = b'{"id":"pay_own","status":"succeeded","merchant_order_no":"O-first"}'
_OWN_LENGTH = b"Content-Length: %d" % len(_OWN)
_ENDS: tuple[Step, ...] = (Close(),)


def _told(*fields: bytes, body: bytes = b"", line: bytes = b"HTTP/1.1 200 OK") -> bytes:
    return b"\r\n".join((line, b"Content-Type: application/json", *fields)) + b"\r\n\r\n" + body


def _lines(**lines: bytes) -> dict[str, Hostile]:
    return {
        f"status line: {name.replace('_', ' ')}": Hostile(_told(_OWN_LENGTH, body=_OWN, line=line), _ENDS)
        for name, line in lines.items()
    }


FRAMING = {
    "chunked and a length": Hostile(_told(_CHUNKED, _SHORT, body=chunked([_OWN]))),
    "a length and chunked": Hostile(_told(_SHORT, _CHUNKED, body=chunked([_OWN]))),
    "two lengths": Hostile(_told(_OWN_LENGTH, b"Content-Length: 2", body=_OWN)),
    "list of lengths": Hostile(_told(b"Content-Length: 2, 5", body=_OWN)),
    "length with a sign": Hostile(_told(b"Content-Length: +5", body=_OWN)),
    "length below zero": Hostile(_told(b"Content-Length: -1", body=_OWN)),
    "length in hex": Hostile(_told(b"Content-Length: 0x10", body=_OWN)),
    "length empty": Hostile(_told(b"Content-Length:", body=_OWN)),
    "length past 64 bits": Hostile(_told(b"Content-Length: 99999999999999999999", body=_OWN)),
    "length with a NUL": Hostile(_told(b"Content-Length: 5\0", body=_OWN)),
    "coding of two": Hostile(_told(b"Transfer-Encoding: gzip, chunked", body=chunked([_OWN]))),
    "coding twice": Hostile(_told(_CHUNKED, _CHUNKED, body=chunked([_OWN]))),
    "coding identity": Hostile(_told(b"Transfer-Encoding: identity", body=_OWN), _ENDS),
    "coding misspelt": Hostile(_told(b"Transfer-Encoding: xchunked", body=chunked([_OWN]))),
    "coding in HTTP/1.0": Hostile(_told(_CHUNKED, body=chunked([_OWN]), line=b"HTTP/1.0 200 OK")),
    "coding with a blank before its colon": Hostile(
        _told(b"Transfer-Encoding : chunked", _SHORT, body=chunked([_OWN]))
    ),
    "coding folded": Hostile(_told(b"Transfer-Encoding:\r\n chunked", body=chunked([_OWN]))),
    "length behind a bare LF": Hostile(_told(b"X: y\nContent-Length: 2", _OWN_LENGTH, body=_OWN)),
    "header without a colon": Hostile(_told(b"nonsense", _OWN_LENGTH, body=_OWN)),
    "header with a NUL": Hostile(_told(b"X: a\0b", _OWN_LENGTH, body=_OWN)),
    "Connection that is no list": Hostile(_told(b"Connection: a b", _OWN_LENGTH, body=_OWN)),
    "bare LF for every line end": Hostile(_told(_OWN_LENGTH).replace(b"\r\n", b"\n") + _OWN, _ENDS),
    "head without end": Hostile(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000),
}

CUT = {
    "body shorter than its length": Hostile(_told(b"Content-Length: 400", body=_OWN), _ENDS),
    "chunked without its end": Hostile(_told(_CHUNKED, body=chunked([_OWN])[:-5]), _ENDS),
    "chunk cut inside": Hostile(_told(_CHUNKED, body=b"ff\r\n" + _OWN), _ENDS),
    "chunk longer than it says": Hostile(_told(_CHUNKED, body=b"5\r\n" + _OWN + b"\r\n0\r\n\r\n")),
    "chunk size with a sign": Hostile(_told(_CHUNKED, body=b"+5\r\nhello\r\n0\r\n\r\n")),
    "chunk size past 64 bits": Hostile(_told(_CHUNKED, body=b"1ffffffffffffffff\r\nhello\r\n0\r\n\r\n")),
    "chunk size ended by a bare LF": Hostile(_told(_CHUNKED, body=b"5\nhello\r\n0\r\n\r\n")),
    "trailer with a bare LF": Hostile(_told(_CHUNKED, body=chunked([_OWN], b"A: b\nC: d\r\n"))),
    "head cut": Hostile(_told(_OWN_LENGTH)[:30], _ENDS),
    "interim answer, then nothing": Hostile(b"HTTP/1.1 100 Continue\r\n\r\n", _ENDS),
    "nothing": Hostile(b"", _ENDS),
}

ALIEN = {
    "protocols switched": Hostile(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n" + _SECOND),
    "interim answers without end": Hostile(
        b"HTTP/1.1 103 Early Hints\r\n\r\n" * 40 + _told(_OWN_LENGTH, body=_OWN)
    ),
    "another protocol": Hostile(b"SSH-2.0-OpenSSH_9.2\r\n", _ENDS),
    "TLS alert": Hostile(b"\x15\x03\x01\x00\x02\x02\x46", _ENDS),
    "HTTP/0.9": Hostile(b"<html>" + _OWN, _ENDS),
    "a request for an answer": Hostile(INNER),
    **_lines(
        of_two_digits=b"HTTP/1.1 20 OK",
        of_four_digits=b"HTTP/1.1 2000 OK",
        of_letters=b"HTTP/1.1 abc OK",
        below_100=b"HTTP/1.1 099 OK",
        of_HTTP_2=b"HTTP/2 200",
        of_HTTP_1_2=b"HTTP/1.2 200 OK",
        in_lower_case=b"http/1.1 200 ok",
        of_Icecast=b"ICY 200 OK",
        with_two_blanks=b"HTTP/1.1  200 OK",
        with_a_NUL=b"HTTP/1.1 200 O\0K",
        without_a_status=b"HTTP/1.1",
    ),
}

MORE = {
    "a second answer behind": Hostile(_told(_OWN_LENGTH, body=_OWN) + _SECOND, gives=_OWN),
    "a second answer behind chunks": Hostile(_told(_CHUNKED, body=chunked([_OWN])) + _SECOND, gives=_OWN),
    "one byte behind": Hostile(_told(_OWN_LENGTH, body=_OWN) + b"\n", gives=_OWN),
    "an empty line behind": Hostile(_told(_OWN_LENGTH, body=_OWN) + b"\r\n", gives=_OWN),
    "a head that never ends behind": Hostile(_told(_OWN_LENGTH, body=_OWN) + b"HTTP/1.1 200", gives=_OWN),
    "204 with a body": Hostile(_told(b"Content-Length: 11", body=EVIL, line=b"HTTP/1.1 204 No"), gives=b""),
    "204 with chunks": Hostile(_told(_CHUNKED, body=chunked([EVIL]), line=b"HTTP/1.1 204 No"), gives=b""),
    "304 with an answer behind": Hostile(_told(line=b"HTTP/1.1 304 Not Modified") + _SECOND, gives=b""),
    "length 0 with a body": Hostile(_told(b"Content-Length: 0", body=_SECOND), gives=b""),
}

ANSWERS: dict[str, Hostile] = {**FRAMING, **CUT, **ALIEN, **MORE}
