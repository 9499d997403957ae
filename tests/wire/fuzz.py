"""Conversations that nobody wrote, through both parsers and all that is around them (`make fuzz`).

Bytes become a conversation: requests that are mostly lawful, mangled here and there, cut anywhere; answers
likewise. Afterwards a strict parser reads what the caller sent, what the platform saw, what the platform said and
what the caller got, and the four have to tell one story.

`tests/wire/fuzzing.py` makes the bytes.
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass

import h11

from tests.wire.memory import Ends, Planned
from tests.wire.strict import End, Message, read_answers, read_requests

_INNER = b"GET /v1/internal HTTP/1.1\r\nHost: x\r\n\r\n"
_METHODS = (b"GET", b"POST", b"HEAD", b"PUT", b"DELETE", b"OPTIONS", b"post", b"P\0ST")
_TARGETS = (b"/a", b"/b%2F?x=1", b"/v1/payments", b"/../x", b"*", b"http://x/", b"/ a", b"/\xff", b"/c;d#e")
_VERSIONS = (b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.0", b"HTTP/1.2", b"http/1.1")
_FIELDS = (
    b"X-A: 1",
    b"x-a: caf\xe9",
    b"X-Empty:",
    b"X-B:  a \t b  ",
    b"Cookie: a=b",
    b"Connection: close",
    b"Connection: keep-alive, X-A",
    b"Connection: x-b",
    b"Connection: a b",
    b"Keep-Alive: 5",
    b"TE: trailers",
    b"Expect: 100-continue",
    b"Upgrade: h2c",
    b"Safepost-X: 1",
    b"Content-Length: 3",
    b"Content-Length: 0",
    b"Content-Length: +3",
    b"Content-Length: 3, 3",
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: Chunked",
    b"Transfer-Encoding: gzip, chunked",
    b"Transfer-Encoding: identity",
    b"Transfer-Encoding : chunked",
    b"Transfer-Encoding: \x0bchunked",
    b"Host: other",
    b" folded",
    b"\tfolded",
    b"nonsense",
    b": nameless",
    b"X-Nul: a\0b",
    b"X-Cr: a\rb",
    b"X-Lf: a\nTransfer-Encoding: chunked",
)
_TOKENS = (
    b"\r",
    b"\n",
    b"\r\n",
    b"\r\n\r\n",
    b" ",
    b"\t",
    b"\0",
    b":",
    b";",
    b",",
    b"0",
    b"f",
    b"\xff",
    b"0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n\r\n",
    _INNER,
    b"Content-Length: 3\r\n",
    b"Transfer-Encoding: chunked\r\n",
)
_STATUSES = (b"200 OK", b"201 Made", b"204 No", b"304 Not", b"404 ", b"500 X", b"101 Up", b"20 OK", b"099 X")


class Choices:
    """Turns bytes into decisions; past their end every decision is the first one."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def below(self, bound: int) -> int:
        """A number from 0 to `bound` - 1."""
        byte = self._data[self._at] if self._at < len(self._data) else 0
        self._at += 1
        return byte % bound

    def one_in(self, bound: int) -> bool:
        """True once in `bound`; False past the end."""
        return self.below(bound) == bound - 1

    def of(self, many: tuple[bytes, ...]) -> bytes:
        return many[self.below(len(many))]

    def rarely(self, usual: int, many: tuple[bytes, ...]) -> bytes:
        """Mostly one of the first `usual`, now and then any."""
        return self.of(many) if self.one_in(8) else many[self.below(usual)]


def _chunks(choices: Choices, body: bytes) -> bytes:
    wire = b""
    at = 0
    while at < len(body):
        size = min(len(body) - at, 1 + choices.below(7))
        sign = choices.rarely(1, (b"", b"00", b"+", b"0x", b" ", b"f"))
        extension = choices.rarely(2, (b"", b";a=b", b" ;x", b" ", b";\n", b";\0"))
        ending = choices.rarely(1, (b"\r\n", b"\n", b"", b"xx", b"\r"))
        wire += sign + b"%x" % size + extension + b"\r\n" + body[at : at + size] + ending
        at += size
    return wire + b"0\r\n" + choices.rarely(2, (b"", b"X-T: 1\r\n", b"bad\r\n", b" f: 1\r\n")) + b"\r\n"


def _framed(choices: Choices, body: bytes) -> tuple[list[bytes], bytes]:
    """Framing fields and the body on the wire."""
    kind = choices.below(4)
    if kind == 0:
        return [], b""
    if kind == 1:
        return [b"Transfer-Encoding: chunked"], _chunks(choices, body)
    said = len(body) + (choices.below(5) - 2 if choices.one_in(6) else 0)
    return [b"Content-Length: %d" % max(0, said)], body


def _mangled(choices: Choices, wire: bytes) -> bytes:
    while choices.one_in(4):
        at = choices.below(256) * 256 + choices.below(256)
        at %= len(wire) + 1
        wire = wire[:at] + choices.of(_TOKENS) + wire[at + choices.below(4) :]
    return wire


def _request(choices: Choices, number: int) -> bytes:
    target = choices.rarely(3, _TARGETS)
    line = b"%b %b %b" % (choices.rarely(6, _METHODS), target, choices.rarely(4, _VERSIONS))
    fields = [choices.rarely(9, _FIELDS) for _ in range(choices.below(4))]
    framing, body = _framed(choices, b"body-of-%d" % number if choices.below(3) else _INNER)
    head = b"\r\n".join([line, b"Host: sut.test", b"X-Number: %d" % number, *fields, *framing])
    return _mangled(choices, head + b"\r\n\r\n" + body)


def _answer(choices: Choices, number: int) -> Planned:
    fields = [choices.rarely(6, _FIELDS) for _ in range(choices.below(3))]
    framing, body = _framed(choices, b"answer-%d" % number)
    line = choices.rarely(2, (b"HTTP/1.1 ", b"HTTP/1.1 ", b"HTTP/1.0 ", b"HTTP/2 ")) + choices.rarely(
        5, _STATUSES
    )
    wire = b"\r\n".join([line, b"X-Answer: %d" % number, *fields, *framing]) + b"\r\n\r\n" + body
    if choices.one_in(8):
        wire = b"HTTP/1.1 103 Early\r\nLink: a\r\n\r\n" + wire
    if choices.one_in(6):
        wire += choices.of((b"\r\n", b"x", b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"))
    pieces = tuple(_cut(choices, _mangled(choices, wire)))
    return Planned(pieces, ends=choices.one_in(3), is_early=choices.one_in(4))


def _cut(choices: Choices, wire: bytes) -> list[bytes]:
    """Anywhere, and just behind a head: what comes apart there is what parsers get wrong."""
    cuts = []
    for _ in range(choices.below(4)):
        at = choices.below(256) * 4 % (len(wire) + 1)
        if choices.below(2):
            at = max(at, wire.find(b"\r\n\r\n", at) + 4)
        cuts.append(min(at, len(wire)))
    cuts.sort()
    parts = [wire[start:end] for start, end in zip([0, *cuts], [*cuts, len(wire)], strict=True)]
    return [part for part in parts if part]


@dataclass(frozen=True, slots=True)
class Conversation:
    """What one input means."""

    said: tuple[bytes, ...]
    plans: tuple[Planned, ...]
    hangs_up: bool
    pauses: bool = False
    """Between two pieces everything else comes to rest first."""

    @classmethod
    def of(cls, data: bytes) -> Conversation:
        choices = Choices(data)
        count = 1 + choices.below(4)
        plans = tuple(_answer(choices, number) for number in range(count))
        wire = b"".join(_request(choices, number) for number in range(count))
        return cls(tuple(_cut(choices, wire)), plans, choices.one_in(4), pauses=bool(choices.below(2)))


class Disagreement(AssertionError):
    """The four ends do not tell one story."""


def _require(holds: bool, what: str, *details: object) -> None:
    if not holds:
        raise Disagreement("\n  ".join([what, *(repr(detail) for detail in details)]))


def check(conversation: Conversation, ends: Ends) -> None:
    """Compare what was said at the four ends. Raises: Disagreement."""
    _require(not ends.errors, "the product failed", *ends.errors)
    sent, _ = read_requests(b"".join(conversation.said))
    for platform in ends.platforms:
        log = bytes(platform.log)
        requests, ending = read_requests(log)
        _require(ending is not End.BAD, "the platform got something that is no request", log)
        _check_by_h11(log, requests)
    # A call begins once the one before has its answer, so they arrive in their order, whatever the connection.
    for at, seen in enumerate(ends.seen):
        if seen.message is not None:
            _require(at < len(sent), "more requests arrived than were sent", seen, conversation)
            _same_request(sent[at], seen.message)
        else:
            _require(at <= len(sent), "a request began that nobody sent", seen, conversation)
    _check_answers(conversation, ends)
    _check_reuse(ends)


def _check_by_h11(log: bytes, requests: list[Message]) -> None:
    """A third reader at the platform's end."""
    at = 0
    for request in requests:
        connection = h11.Connection(h11.SERVER)
        connection.receive_data(log[at : at + request.size])
        at += request.size
        try:
            body = b""
            event = connection.next_event()
            while isinstance(event := connection.next_event(), h11.Data):
                body += bytes(event.data)
        except h11.RemoteProtocolError as error:
            raise Disagreement(f"h11 refuses what arrived: {error}\n  {log!r}") from error
        _require(isinstance(event, h11.EndOfMessage), "h11 reads no whole request", log)
        _require(body == request.body, "h11 reads another body", body, request)


def _same_request(meant: Message, arrived: Message) -> None:
    method, target, _ = meant.start.split(b" ")
    _require(arrived.start == b"%b %b HTTP/1.1" % (method, target), "another request line", meant, arrived)
    _require(arrived.body == meant.body, "another body", meant, arrived)
    fields = [field for field in arrived.end_to_end if field != (b"via", b"1.1 safepost")]
    _require(fields == meant.end_to_end, "other fields", meant, arrived)


def _check_answers(conversation: Conversation, ends: Ends) -> None:
    """Each answer that looks like the platform's is what a strict reader finds in what it said to that call."""
    log = bytes(ends.caller.log)
    methods = [seen.method for seen in ends.seen]
    got, ending = read_answers(log, methods, at_end=ends.caller.is_ended)
    _require(ending is not End.BAD, "the caller got something that is no answer", log)
    for number, answer in enumerate(got):
        if (b"refused", b"invalid_request") in answer.end_to_end:
            _require(number == len(got) - 1, "an answer behind a refusal", log)
        elif not answer.start.startswith(b"HTTP/1.1 502"):
            _require(number < len(ends.seen), "an answer to a call that did not arrive", log, conversation)
            _same_answer(ends.seen[number].plan, methods[number], answer)


def _same_answer(plan: Planned, method: bytes, got: Message) -> None:
    meant, _ = read_answers(plan.data, [method], at_end=plan.ends)
    _require(bool(meant), "an answer was believed that is none", plan.data, got)
    _require(got.body == meant[0].body, "another answer's body", plan.data, got)
    status = meant[0].start.split(b" ")[1]
    _require(got.start.split(b" ")[1] == status, "another status", plan.data, got)
    fields = [field for field in got.end_to_end if field[0] != b"via"]
    _require(fields == meant[0].end_to_end, "other fields of an answer", plan.data, got)


def _check_reuse(ends: Ends) -> None:
    """A connection carries another call only after an answer that ended cleanly."""
    for platform in ends.platforms:
        for seen in platform.answered[:-1]:
            answers, ending = read_answers(seen.plan.data, [seen.method], at_end=False)
            is_clean = len(answers) == 1 and ending is End.CLEAN and seen.message is not None
            _require(is_clean and not seen.plan.ends, "a connection was used again after", seen)


class Fuzzer:
    """Runs inputs on one loop; keeps count."""

    def __init__(self) -> None:
        self.count = 0
        self._loop = asyncio.new_event_loop()
        self._sock, self._other = socket.socketpair()
        self._faults: list[object] = []
        self._loop.set_exception_handler(lambda _loop, context: self._faults.append(context))

    def __call__(self, data: bytes) -> None:
        """One conversation. Raises: Disagreement."""
        self.count += 1
        try:
            self._loop.run_until_complete(self._converse(Conversation.of(data)))
        except Exception as error:
            error.add_note(f"replay: python -m tests.wire.fuzzing 0 {data.hex()}")
            raise

    async def _converse(self, conversation: Conversation) -> None:
        ends = Ends(self._sock, conversation.plans)
        await ends.say(conversation.said, hangs_up=conversation.hangs_up, pauses=conversation.pauses)
        try:
            check(conversation, ends)
        finally:
            await ends.close()
        _require(not self._faults, "the loop caught", *self._faults)

    def close(self) -> None:
        self._loop.close()
        self._sock.close()
        self._other.close()
