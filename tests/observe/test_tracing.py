"""Spans of calls and attempts, made of the same facts as the log lines (M3's sibling; H7)."""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from proxy.config import ConfigError, settings_of
from proxy.core.messages import AttemptFinished, CallEnded
from proxy.core.model import Key, Knowledge, OperationId, Outcome
from proxy.observe.tracing import ANSWERED_MAX, PENDING_MAX, Tracer

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"
WALL_MS = 1_800_000_000_000


TRACED = """
upstream: {url: https://api.test}
platform: payhub
traces: {endpoint: "http://127.0.0.1:4318/v1/traces"}
"""


class WithoutExporter(MetaPathFinder):
    """Python where something else brought OpenTelemetry's API alone."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname.startswith("opentelemetry.exporter"):
            raise ModuleNotFoundError(fullname)


class Told:
    """A tracer and what it exported."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracer = Tracer(endpoint="", service="shop", server="api.test", exporter=self.exporter)
        self.tracer._provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    def spans(self) -> dict[str, list[ReadableSpan]]:
        found: dict[str, list[ReadableSpan]] = {}
        for span in self.exporter.get_finished_spans():
            found.setdefault(span.kind.name, []).append(span)
        self.tracer.close()
        return found


def attempt(n: int, outcome: Outcome, status: int | None, reason: str) -> AttemptFinished:
    return AttemptFinished(OperationId("op_1"), "create_payment", Key("K"), n, outcome, reason, status)


def note(
    told: Told, fact: AttemptFinished, *, request_id: str = "r-1", us: int = 10_000, ago_ms: int = 0
) -> None:
    told.tracer.attempt(fact, method="PUT", request_id=request_id, duration_us=us, wall_ms=WALL_MS - ago_ms)


def call(status: int = 200, traceparent: str = PARENT) -> CallEnded:
    return CallEnded(
        route="create_payment",
        method="POST",
        status=status,
        knowledge=Knowledge.EXECUTED if status < 500 else Knowledge.UNKNOWN,
        duration_us=50_000,
        overhead_us=100,
        request_id="r-1",
        traceparent=traceparent,
        operation=OperationId("op_1"),
        key=Key("K"),
        attempts=2,
    )


@pytest.fixture
def told() -> Told:
    return Told()


def test_a_call_is_a_child_of_the_callers_span_and_its_attempts_are_under_it(told: Told) -> None:
    note(told, attempt(1, Outcome.IN_DOUBT, None, "timeout"), us=20_000, ago_ms=30)
    note(told, attempt(2, Outcome.EXECUTED, 200, "http_200"))
    told.tracer.call(call(), request_id="r-1", wall_ms=WALL_MS)

    spans = told.spans()
    (server,) = spans[SpanKind.SERVER.name]
    first, second = spans[SpanKind.CLIENT.name]
    assert server.parent is not None and f"{server.parent.span_id:016x}" == SPAN
    assert {f"{span.context.trace_id:032x}" for span in (server, first, second)} == {TRACE}
    assert first.parent is not None and first.parent.span_id == server.context.span_id
    assert server.end_time is not None and server.start_time is not None
    assert server.end_time - server.start_time == 50_000_000
    assert second.attributes is not None and first.attributes is not None
    assert second.attributes["http.request.resend_count"] == 1
    assert "http.request.resend_count" not in first.attributes
    assert first.attributes["error.type"] == "timeout"
    assert first.status.status_code is StatusCode.ERROR
    assert second.status.status_code is StatusCode.UNSET


@pytest.mark.parametrize("status", [504, 0])
def test_attempt_that_ends_after_its_caller_was_answered_is_in_the_call_s_trace(
    told: Told, status: int
) -> None:
    """W1, H6: money in doubt is what a trace is asked about."""
    told.tracer.call(call(status), request_id="r-1", wall_ms=WALL_MS)
    note(told, attempt(1, Outcome.IN_DOUBT, None, "timeout"), ago_ms=-9_000)

    spans = told.spans()
    (server,), (client,) = spans[SpanKind.SERVER.name], spans[SpanKind.CLIENT.name]
    assert client.parent is not None and client.parent.span_id == server.context.span_id
    assert client.name == "PUT"


def test_calls_that_were_answered_early_are_bounded(told: Told) -> None:
    for number in range(ANSWERED_MAX + 50):
        told.tracer.call(call(504), request_id=str(number), wall_ms=WALL_MS)

    assert len(told.tracer._answered) == ANSWERED_MAX
    told.tracer.close()


def test_no_key_is_an_attribute(told: Told) -> None:
    note(told, attempt(1, Outcome.EXECUTED, 200, "http_200"))
    told.tracer.call(call(), request_id="r-1", wall_ms=WALL_MS)

    spans = [span for group in told.spans().values() for span in group]
    values = [value for span in spans for value in (span.attributes or {}).values()]
    assert "K" not in values


@pytest.mark.parametrize("traceparent", ["", "garbage", "00-0-0-00"])
def test_a_call_without_a_usable_parent_begins_a_trace(told: Told, traceparent: str) -> None:
    told.tracer.call(call(504, traceparent), request_id="r-1", wall_ms=WALL_MS)

    (server,) = told.spans()[SpanKind.SERVER.name]
    assert server.parent is None
    assert server.status.status_code is StatusCode.ERROR


def test_attempts_of_calls_that_never_end_are_bounded(told: Told) -> None:
    for number in range(PENDING_MAX + 50):
        note(told, attempt(1, Outcome.EXECUTED, 200, "x"), request_id=str(number))

    assert len(told.tracer._attempts) == PENDING_MAX
    told.tracer.close()


def test_traces_without_the_extra_are_a_mistake_of_the_configuration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [one for one in sys.modules if one.startswith("opentelemetry.exporter")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [WithoutExporter(), *sys.meta_path])

    with pytest.raises(ConfigError, match=r"traces\.endpoint: .*safepost\[otel\]"):
        settings_of(TRACED, file="config.yaml")
