"""R2 through the whole product: how each way to fail on the wire is counted, known and told."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from proxy.core.model import State
from tests.e2e.callers import call, lookup, payment
from tests.e2e.certificates import Authority
from tests.e2e.platforms import JSON, ok, thing
from tests.e2e.stage import LOOKUPS, Proxy, Stage
from tests.wire.peers import Close, HalfClose, Hang, RawPlatform, Reset, Script, Send, When, answer

BODY = thing()
AFTER_BYTES = {
    "reset at the first byte": Script(Reset(), when=When.BYTE),
    "FIN at the first byte": Script(Close(), when=When.BYTE),
    "reset after the head, before the body": Script(Reset(), when=When.HEAD),
    "reset after the whole request": Script(Reset()),
    "FIN after the whole request": Script(Close()),
    "half-close without an answer": Script(HalfClose(), Hang()),
    "no answer": Script(Hang()),
    "1xx and then nothing": Script(Send(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"), Hang()),
    "1xx and then FIN": Script(Send(b"HTTP/1.1 100 Continue\r\n\r\n"), Close()),
    "half a status line": Script(Send(b"HTTP/1.1 20"), Close()),
    "head without its end": Script(Send(b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n"), Close()),
    "body shorter than its length": Script(Send(answer(201, BODY, JSON, length=400)), Close()),
    "body that stops coming": Script(Send(answer(201, BODY, JSON, length=400)), Hang()),
    "chunks without their end": Script(
        Send(b'HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{"id"\r\n'), Close()
    ),
    "reset inside the body": Script(Send(answer(201, BODY, JSON, length=400)), Reset()),
    "garbage": Script(Send(b"\x16\x03\x01 this is not HTTP\r\n\r\n"), Close()),
    "two framings at once": Script(
        Send(
            b"HTTP/1.1 201 Created\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"2\r\n{}\r\n0\r\n\r\n"
        ),
        Close(),
    ),
}
"""What may happen once a byte of the request has left: all of it is doubt."""


@pytest.mark.parametrize("script", AFTER_BYTES.values(), ids=AFTER_BYTES)
async def test_attempt_broken_after_bytes_left_is_repeated_with_its_key_and_succeeds(
    stage: Stage, script: Script
) -> None:
    platform = await stage.platform(ok(200))
    platform.plan(script)
    proxy = await stage.proxy(platform.url)

    told = await proxy.call(payment())

    assert (told.status, told.knowledge, told.attempts) == (200, "executed", 2)
    assert told.body == BODY
    assert {tuple(seen.header(b"idempotency-key")) for seen in platform.received} == {(b"K",)}
    assert len({seen.body for seen in platform.received if seen.body}) == 1
    operation = await proxy.operation()
    assert [attempt.outcome for attempt in operation.attempts] == ["in_doubt", "executed"]


@pytest.mark.parametrize("script", AFTER_BYTES.values(), ids=AFTER_BYTES)
async def test_attempts_that_all_break_after_bytes_left_end_unknown_and_never_failed(
    stage: Stage, script: Script
) -> None:
    platform = await stage.platform(script)
    proxy = await stage.proxy(platform.url, retry={"attempts": 2, "attempt_timeout": "800ms"})

    told = await proxy.call(payment())

    assert (told.status, told.code, told.knowledge, told.attempts) == (504, "result_unknown", "unknown", 2)
    assert told.header("retry-after") is not None
    assert told.error["retryable"] is True
    assert told.error["idempotency_key"] == "K"
    assert not told.reads_as_failed
    operation = await proxy.operation()
    assert (operation.state, operation.doubt, operation.attempt_count) == (State.UNKNOWN, True, 2)


async def test_connection_closed_between_calls_is_no_attempt(stage: Stage) -> None:
    """A pooled connection that the platform closed while idle is seen before a byte is written."""
    platform = await stage.platform(ok())
    proxy = await stage.proxy(platform.url)
    platform.plan(Script(Send(answer(200, thing(), JSON)), Close()))
    await proxy.call(lookup("ORDER-T-001"))
    await platform.gone(0)

    told = await proxy.call(payment())

    assert (told.status, told.attempts) == (201, 1)


async def test_o17_post_onto_a_connection_that_is_being_closed_is_repeated(stage: Stage) -> None:
    platform = await stage.platform(ok())
    platform.plan(ok(200), Script(Close(), when=When.BYTE))
    proxy = await stage.proxy(platform.url)
    await proxy.call(lookup("ORDER-T-001"))

    told = await proxy.call(payment())

    assert (told.status, told.knowledge, told.attempts) == (201, "executed", 2)
    assert platform.received[-1].header(b"idempotency-key") == [b"K"]
    assert platform.received[-1].connection != 0
    assert (await proxy.operations(knowledge="unknown")) == ()


async def test_interim_answers_before_the_final_one_are_not_the_answer(stage: Stage) -> None:
    hints = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
    platform = await stage.platform(
        Script(Send(b"HTTP/1.1 100 Continue\r\n\r\n" + hints + answer(201, BODY, JSON)))
    )
    proxy = await stage.proxy(platform.url)

    told = await proxy.call(payment())

    assert (told.status, told.body, told.attempts, platform.hits) == (201, BODY, 1, 1)


# --- nothing left ------------------------------------------------------------------------------------------------


@contextmanager
def _full_backlog() -> Iterator[str]:
    """An address on which nobody accepts: connecting to it takes for ever."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        for one in waiting:
            one.close()


def _closed_port() -> str:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{found.getsockname()[1]}"


async def _nothing_was_sent(proxy: Proxy, *, attempts: int) -> None:
    told = await proxy.call(payment())

    assert (told.status, told.code) == (503, "upstream_unavailable")
    assert (told.knowledge, told.attempts) == ("not_executed", attempts)
    assert told.error["retryable"] is True
    assert told.header("retry-after") is not None
    assert "no money moved" in told.error["message"]
    operation = await proxy.operation()
    assert (operation.state, operation.doubt) == (State.NOT_EXECUTED, False)
    assert {attempt.outcome for attempt in operation.attempts} == {"not_sent"}


async def test_refused_connection_is_not_executed_and_repeated(stage: Stage) -> None:
    proxy = await stage.proxy(_closed_port())
    await _nothing_was_sent(proxy, attempts=3)


async def test_name_that_does_not_resolve_is_not_executed_and_repeated(stage: Stage) -> None:
    proxy = await stage.proxy("http://nowhere.invalid")
    await _nothing_was_sent(proxy, attempts=3)


async def test_connection_that_takes_too_long_is_not_executed_and_repeated(stage: Stage) -> None:
    with _full_backlog() as url:
        proxy = await stage.proxy(url, upstream={"connect_timeout": "200ms"})
        await _nothing_was_sent(proxy, attempts=3)


async def test_tls_that_fails_is_not_executed_and_repeated(stage: Stage) -> None:
    """A platform that answers the handshake in clear."""
    platform = await stage.platform(Script(Send(answer(400, b"speak clearly")), when=When.BYTE))
    proxy = await stage.proxy(platform.url.replace("http://", "https://"))
    await _nothing_was_sent(proxy, attempts=3)
    assert platform.hits == 0


async def test_o33_certificate_of_another_name_is_not_executed_and_not_repeated(
    stage: Stage, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    platform = await stage.platform(ok(), tls=authority.server("wrong.test"))
    proxy = await stage.proxy(
        f"https://localhost:{platform.port}", upstream={"tls": {"ca_file": str(authority.ca_file)}}
    )
    await _nothing_was_sent(proxy, attempts=1)
    assert platform.hits == 0


async def test_o33_certificate_is_of_the_configured_name_whatever_host_the_caller_says(
    stage: Stage, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    platform = await stage.platform(ok(), tls=authority.server("localhost"))
    proxy = await stage.proxy(
        f"https://localhost:{platform.port}", upstream={"tls": {"ca_file": str(authority.ca_file)}}
    )

    told = await proxy.call(payment().replace(b"Host: sut.test", b"Host: anything.example"))

    assert (told.status, told.knowledge) == (201, "executed")
    assert platform.received[0].header(b"host") == [b"localhost:%d" % platform.port]


async def test_platform_that_comes_up_between_attempts_gets_the_payment_once(stage: Stage) -> None:
    url = _closed_port()
    proxy = await stage.proxy(url, retry={"attempts": 10, "base": "500ms", "cap": "500ms"})
    waiting = asyncio.create_task(proxy.call(payment()))
    await proxy.until("K", lambda operation: operation.attempt_count >= 2)

    platform = await stage.platform(ok(), port=int(url.rpartition(":")[2]))
    told = await waiting

    assert (told.status, told.knowledge, platform.hits) == (201, "executed", 1)
    operation = await proxy.operation()
    assert {attempt.outcome for attempt in operation.attempts} == {"not_sent", "executed"}
    assert not operation.doubt


async def test_nothing_sent_after_doubt_proves_nothing(stage: Stage) -> None:
    """R8 c: the platform is gone after an attempt in doubt."""
    platform = RawPlatform(Script(Reset()))
    async with platform:
        proxy = await stage.proxy(platform.url, retry={"attempts": 1})
        assert (await proxy.call(payment())).knowledge == "unknown"

    told = await proxy.call(payment())

    assert (told.status, told.code, told.knowledge) == (504, "result_unknown", "unknown")
    assert [one.outcome for one in (await proxy.operation()).attempts] == ["in_doubt", "not_sent"]


# --- with a bank behind it ---------------------------------------------------------------------------------------

BEFORE = ("before_read", "reset_before", "close_before", "hang_before")
AFTER = ("reset_after", "close_after", "hang_after", "truncate", "garbage")


@pytest.mark.parametrize(
    ("fault", "status"), [*((fault, 201) for fault in BEFORE), *((fault, 200) for fault in AFTER)]
)
async def test_fault_once_makes_one_charge_and_a_definite_answer(
    stage: Stage, fault: str, status: int
) -> None:
    """The second attempt's answer: made anew, or the platform's replay of the first."""
    sandbox = await stage.sandbox()
    sandbox.add_fault({"fault": fault})
    proxy = await stage.proxy(sandbox.url)

    told = await proxy.call(payment())

    assert (told.status, told.json["status"]) == (status, "succeeded")
    assert (told.knowledge, told.attempts) == ("executed", 2)
    assert len(sandbox.ledger.charges("ORDER-T-001")) == 1


@pytest.mark.parametrize("fault", AFTER)
async def test_fault_for_ever_after_the_charge_is_settled_by_a_lookup(stage: Stage, fault: str) -> None:
    sandbox = await stage.sandbox()
    sandbox.add_fault({"fault": fault, "times": "always"})
    proxy = await stage.proxy(sandbox.url, retry={"attempts": 2, "attempt_timeout": "1s"}, lookups=LOOKUPS)

    told = await proxy.call(payment())

    assert (told.status, told.code, told.knowledge) == (504, "result_unknown", "unknown")
    settled = await proxy.until("K", lambda operation: operation.state is State.EXECUTED)
    assert (settled.status, settled.settled_by, settled.doubt) == ("succeeded", "lookup", True)
    assert len(sandbox.ledger.charges("ORDER-T-001")) == 1


@pytest.mark.parametrize("fault", BEFORE)
async def test_fault_for_ever_before_the_charge_is_believed_absent_and_never_failed(
    stage: Stage, fault: str
) -> None:
    sandbox = await stage.sandbox()
    rule = sandbox.add_fault({"fault": fault, "times": "always"})
    proxy = await stage.proxy(sandbox.url, retry={"attempts": 2, "attempt_timeout": "1s"}, lookups=LOOKUPS)

    told = await proxy.call(payment())

    assert (told.status, told.code, told.knowledge) == (504, "result_unknown", "unknown")
    absent = await proxy.until("K", lambda operation: operation.state is State.ABSENT)
    assert absent.knowledge == "unknown"
    assert len(sandbox.ledger.charges()) == 0
    sandbox.remove_fault(rule)
    assert (await proxy.call(payment("K2"))).code == "result_unknown"
    assert (await call(proxy.address, payment())).status == 201
    assert len(sandbox.ledger.charges()) == 1


async def test_plain_payment_tells_of_no_lookup_in_its_timeline(stage: Stage) -> None:
    """What a run brought is no evidence for itself once more."""
    platform = await stage.platform(ok())
    proxy = await stage.proxy(platform.url)

    await proxy.call(payment())

    operation = await proxy.operation()
    assert (operation.settled_by, operation.history) == ("answer", ())
