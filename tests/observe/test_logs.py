"""Log lines: one JSON object each, whatever bytes callers send; nothing secret; a full pipe never waits (M3)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis
from hypothesis import strategies as st
from msgspec.structs import replace

from proxy.core.messages import (
    AttemptFinished,
    BecameKnown,
    BecameUnknown,
    CallEnded,
    ConflictFound,
    Observed,
    OutcomeConflict,
    RetryPlanned,
    SensitiveKey,
)
from proxy.core.model import Key, Knowledge, OperationId, Outcome
from proxy.observe import Observer
from proxy.observe.lines import LineWriter
from proxy.observe.logs import CallLine, Level, Log
from proxy.observe.told import trace_of
from proxy.ports import StoreReport
from tests.observe.conftest import Make, Seen, StillClock, operation, samples_of, settings
from tests.observe.test_metrics import call

EVIL = 'x" 200 \n{"level":"info"}\r\x00\x1b[31m\u2028\ud800\u202e'


def written(folder: Path, record: CallLine | dict[str, str], *, is_text: bool) -> bytes:
    """What a log writes of one record."""
    file = folder / "log"
    fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    writer = LineWriter(fd)
    log = Log(writer, StillClock(), level=Level.DEBUG, is_text=is_text)
    if isinstance(record, CallLine):
        log.record(Level.INFO, "call", record)
    else:
        log.line(Level.INFO, "note", record)
    writer.close()
    os.close(fd)
    return file.read_bytes()


def test_call_line_holds_the_fields_of_the_contract(seen: Seen) -> None:
    seen.observer.fact(
        call(
            request_id="r-7",
            trace_id="0af7651916cd43dd8448eb211c80319c",
            operation=OperationId("op_1"),
            key=Key("payment.create:ORDER-1:1"),
            attempts=2,
        ),
        None,
    )

    (line,) = seen.lines()
    assert line == {
        "time": "2027-01-15T08:00:00.000Z",
        "level": "info",
        "event": "call",
        "request_id": "r-7",
        "trace_id": "0af7651916cd43dd8448eb211c80319c",
        "operation": "op_1",
        "route": "create_payment",
        "key": "payment.create:ORDER-1:1",
        "status": 201,
        "method": "POST",
        "knowledge": "executed",
        "attempts": 2,
        "duration_ms": 1.5,
        "overhead_ms": 0.3,
    }


def test_attempt_and_retry_lines_tell_outcome_and_wait(seen: Seen) -> None:
    identity = OperationId("op_1")
    seen.observer.fact(
        AttemptFinished(identity, "create_payment", Key("K"), 1, Outcome.IN_DOUBT, "timeout", None), None
    )
    seen.observer.fact(RetryPlanned("create_payment", identity, 2, "timeout", 1_100), None)

    attempt, retry = seen.lines()
    assert (attempt["event"], attempt["level"]) == ("attempt", "warning")
    assert (attempt["attempt"], attempt["outcome"], attempt["reason"]) == (1, "in_doubt", "timeout")
    assert (retry["event"], retry["attempt"], retry["wait_ms"]) == ("retry", 2, 1_100)


@pytest.mark.parametrize(
    ("level", "events"),
    [
        ("debug", ["call", "became_known", "became_unknown", "outcome_conflict"]),
        ("info", ["call", "became_unknown", "outcome_conflict"]),
        ("warning", ["became_unknown", "outcome_conflict"]),
        ("error", ["outcome_conflict"]),
    ],
)
def test_level_decides_what_is_written(make: Make, level: str, events: list[str]) -> None:
    seen = make(level=level)

    seen.observer.fact(call(), None)
    seen.observer.fact(BecameKnown(operation(), "answer"), None)
    seen.observer.fact(BecameUnknown(operation()), None)
    seen.observer.fact(OutcomeConflict(operation(), "two truths"), None)

    assert [line["event"] for line in seen.lines()] == events


def test_plain_successes_are_written_by_their_share_and_all_else_always(make: Make) -> None:
    """A call and its attempt go together; who had to retry, was refused or is in doubt is never left out."""
    seen = make(successes=0.25)
    for n in range(400):
        record = call(request_id=f"r-{n}", attempts=1)
        seen.observer.fact(record, None)
        if n < 3:
            seen.observer.fact(replace(record, status=402, request_id=f"refused-{n}"), None)
            seen.observer.fact(replace(record, attempts=2, request_id=f"retried-{n}"), None)
            seen.observer.fact(replace(record, knowledge=Knowledge.UNKNOWN, request_id=f"doubt-{n}"), None)

    told = [line["request_id"] for line in seen.lines()]
    plain = [one for one in told if one.startswith("r-")]
    assert 60 < len(plain) < 140
    assert len(told) - len(plain) == 9


def test_attempt_that_was_no_plain_success_is_written_whatever_the_share(make: Make) -> None:
    """A 200 without the platform's object is in doubt."""
    seen = make(successes=0)
    for n, outcome in ((1, Outcome.EXECUTED), (1, Outcome.IN_DOUBT), (2, Outcome.EXECUTED)):
        seen.observer.fact(
            AttemptFinished(OperationId("op_1"), "create_payment", Key("K"), n, outcome, "http_200", 200),
            None,
        )

    assert [(line["attempt"], line["outcome"]) for line in seen.lines()] == [(1, "in_doubt"), (2, "executed")]


@pytest.mark.parametrize("form", ["json", "text"])
def test_what_looks_like_a_card_or_an_address_is_masked(make: Make, form: str) -> None:
    seen = make(form=form)
    for text in ("pay:4242424242424242", "pay:4242-4242-4242-4242", "li@example.com"):
        seen.observer.fact(call(key=Key(text), request_id=text), None)
        seen.observer.fact(BecameUnknown(operation(key=Key(text), subject=f"order:{text}")), None)
        seen.observer.fact(SensitiveKey("create_payment", "card", text), None)
        seen.observer.fact(Observed("create_payment", "missing_key", text), None)

    written = seen.text()

    assert "4242" not in written
    assert "li@" not in written
    assert written.count("masked") == 18


def test_conflict_names_fields_and_no_values(seen: Seen) -> None:
    seen.observer.fact(ConflictFound("create_payment", ("amount", "currency")), None)

    (line,) = seen.lines()
    assert line["fields"] == "amount,currency"


@hypothesis(max_examples=200)
@given(st.text(alphabet=st.characters(exclude_categories=()), max_size=60))
def test_any_text_makes_one_valid_line(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    folder = tmp_path_factory.mktemp("log", numbered=True)
    record = CallLine(request_id=text, method=text, key=text, code=text)

    line = written(folder, record, is_text=False)
    other = written(folder, {"text": text}, is_text=False)
    shown = written(folder, {"text": text}, is_text=True)

    for one in (line, other, shown):
        assert one.count(b"\n") == 1
        one.decode("utf-8")
    assert json.loads(line)["event"] == "call"
    assert not any(ord(char) < 32 or ord(char) == 127 for char in shown.decode()[:-1])


@pytest.mark.parametrize("is_text", [False, True])
def test_no_text_from_outside_breaks_or_colours_a_line(tmp_path: Path, is_text: bool) -> None:
    line = written(tmp_path, {"text": EVIL}, is_text=is_text)

    assert line.count(b"\n") == 1
    assert b"\x1b" not in line
    assert b"\r" not in line
    if not is_text:
        assert json.loads(line)["text"].startswith('x" 200 \n')


def test_readable_line_quotes_what_has_blanks(make: Make) -> None:
    seen = make(form="text")
    seen.observer.store_opened(StoreReport("sqlite", "one host only", ("on tmpfs",)))

    first, second = seen.text().splitlines()
    assert first == '08:00:00.000 INFO    store_opened kind=sqlite detail="one host only"'
    assert second == '08:00:00.000 WARNING store_warning kind=sqlite text="on tmpfs"'


def test_fault_tells_where_and_never_what_a_library_said(seen: Seen) -> None:
    """An exception's text may hold a caller's bytes."""
    try:
        raise KeyError("4242424242424242")
    except KeyError as error:
        seen.observer.fault(error)

    (line,) = seen.lines()
    assert line["error"] == "KeyError"
    assert "test_logs.py" in line["where"]
    assert "4242" not in seen.text()


def test_full_pipe_drops_lines_and_never_waits() -> None:
    reader, writing = os.pipe()
    writer = LineWriter(writing, lines_max=100)

    for n in range(20_000):  # nobody reads: a writer that waited would never come to the end
        writer.put(b"x" * 200 + b"%d\n" % n)

    assert writer.dropped > 0
    begun = time.perf_counter()
    writer.close(timeout_s=0.2)
    assert time.perf_counter() - begun < 30
    os.close(reader)
    writer.close(timeout_s=5.0)
    os.close(writing)


def test_lines_come_out_whole_and_in_order(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    writer = LineWriter(fd)

    for n in range(5_000):
        writer.put(b"%d\n" % n)
    writer.close(timeout_s=5.0)
    os.close(fd)

    assert (tmp_path / "log").read_text().split() == [str(n) for n in range(5_000)]
    assert writer.dropped == 0


def test_reader_that_is_gone_is_counted_and_harmless() -> None:
    reader, writing = os.pipe()
    os.close(reader)
    writer = LineWriter(writing)

    writer.put(b"one\n")
    writer.close(timeout_s=5.0)
    writer.put(b"two\n")

    assert writer.dropped == 2
    os.close(writing)


FULL_FOR_A_WHILE = """
import os, resource, sys, time
from proxy.observe.lines import LineWriter
_, most = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (1_001, most))
writer = LineWriter(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND))
for n in range(100):
    writer.put(b"%099d\\n" % n)
while not writer.dropped:
    time.sleep(0.001)
resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
writer.put(b"%099d\\n" % 100)
writer.close(timeout_s=20.0)
print(writer.dropped)
"""


def test_lines_come_again_whole_once_a_full_disk_has_room(tmp_path: Path) -> None:
    """The tenth line is cut after one byte: its rest comes before what follows."""
    file = tmp_path / "log"
    done = subprocess.run(
        [sys.executable, "-c", FULL_FOR_A_WHILE, str(file)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    lines = file.read_text().splitlines()
    assert {len(line) for line in lines} == {99}
    assert [int(line) for line in lines][:11] == list(range(11))
    assert int(lines[-1]) == 100
    assert len(lines) + int(done.stdout) == 101


def test_pipe_that_does_not_block_is_waited_for(tmp_path: Path) -> None:
    """Another program may have set the shared description to non-blocking."""
    reader, writing = os.pipe()
    os.set_blocking(writing, False)
    writer = LineWriter(writing)
    for n in range(2_000):
        writer.put(b"y" * 100 + b"%06d\n" % n)

    taken = b""
    while taken.count(b"\n") < 2_000:
        taken += os.read(reader, 65_536)
    writer.close(timeout_s=5.0)

    assert taken.endswith(b"%06d\n" % 1_999)
    os.close(reader)
    os.close(writing)


async def test_dropped_lines_are_on_the_page() -> None:
    reader, writing = os.pipe()
    os.close(reader)
    observer = Observer(settings=settings(), clock=StillClock(), log_fd=writing)
    observer.fact(call(), None)
    observer.close()

    _, page = await observer.metrics("")

    assert samples_of(page)["safepost_log_lines_dropped_total", frozenset()] == 1.0
    os.close(writing)


@pytest.mark.parametrize(
    ("value", "trace"),
    [
        (b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "0af7651916cd43dd8448eb211c80319c"),
        (b"00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01", ""),
        (b"00-4242424242424242-b7ad6b7169203331-01", ""),
        (b"0af7651916cd43dd8448eb211c80319c", ""),
        (b"", ""),
    ],
)
def test_trace_is_what_traceparent_names(value: bytes, trace: str) -> None:
    assert trace_of(((b"Host", b"x"), (b"TraceParent", value))) == trace


def test_knowledge_unknown_is_a_warning(seen: Seen) -> None:
    told: CallEnded = call(status=504, knowledge=Knowledge.UNKNOWN)
    seen.observer.fact(told, None)

    assert seen.lines()[0]["level"] == "warning"
