"""OpenTelemetry spans of calls and their attempts, made from the same facts as the log lines.

Off by default; needs `pip install 'safepost[otel]'`. The caller's trace context passes through to the platform
whether this is on or off (H7), so spans are made after the fact, with the times that were measured, and the hot
path pays nothing while it is off. Attributes follow the semantic conventions for HTTP; no key, no order number,
no raw path is ever one of them.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from proxy.core.messages import AttemptFinished, CallEnded
from proxy.observe.version import VERSION

PENDING_MAX = 20_000
"""Calls whose attempts wait for the call's end; the oldest are given up where more are under way."""

ANSWERED_MAX = 1_000
"""Calls whose callers were answered early, or had gone: attempts may follow, and belong under them."""

EXPORT_TIMEOUT_S = 3  # also how long a stop may wait for a collector that is gone

Attributes = dict[str, str | int | bool]
NS_PER_US, NS_PER_MS = 1_000, 1_000_000


@dataclass(frozen=True, slots=True)
class _Attempt:
    started_ns: int
    ended_ns: int
    attributes: Attributes
    failed: bool


class Tracer:
    """Makes and exports the spans of one process.

    Args: endpoint: where OTLP over HTTP is taken, such as http://127.0.0.1:4318/v1/traces.
        exporter: takes the spans instead, in tests.
    """

    def __init__(
        self, *, endpoint: str, service: str, server: str, exporter: SpanExporter | None = None
    ) -> None:
        resource = Resource.create({"service.name": service, "service.version": VERSION})
        self._provider = TracerProvider(resource=resource)
        self._provider.add_span_processor(
            BatchSpanProcessor(exporter or OTLPSpanExporter(endpoint=endpoint, timeout=EXPORT_TIMEOUT_S))
        )
        self._tracer = self._provider.get_tracer("safepost", VERSION)
        self._server = server
        self._propagator = TraceContextTextMapPropagator()
        self._attempts: OrderedDict[str, list[_Attempt]] = OrderedDict()
        self._answered: OrderedDict[str, Context] = OrderedDict()

    def attempt(
        self, fact: AttemptFinished, *, method: str, request_id: str, duration_us: int, wall_ms: int
    ) -> None:
        """Note an attempt; its span is made when its call ends, as a child of the call's.

        The call of one that ends after its caller was answered (W1, H6) has its span already.
        """
        attributes: Attributes = {
            "http.request.method": method,
            "server.address": self._server,
            "safepost.route": fact.route,
            "safepost.outcome": fact.outcome.value,
        }
        if fact.n > 1:
            attributes["http.request.resend_count"] = fact.n - 1
        if fact.status is not None:
            attributes["http.response.status_code"] = fact.status
        failed = fact.status is None or fact.status >= 400
        if failed:
            attributes["error.type"] = fact.reason
        ended_ns = wall_ms * NS_PER_MS
        found = _Attempt(ended_ns - duration_us * NS_PER_US, ended_ns, attributes, failed)
        if (inside := self._answered.get(request_id)) is not None:
            self._attempt_span(found, inside)
            return
        self._attempts.setdefault(request_id, []).append(found)
        if len(self._attempts) > PENDING_MAX:
            self._attempts.popitem(last=False)

    def call(self, fact: CallEnded, *, request_id: str, wall_ms: int) -> None:
        """The call's span, and those of its attempts under it, which know it by `request_id`."""
        ended_ns = wall_ms * NS_PER_MS
        attributes: Attributes = {
            "http.request.method": fact.method,
            "http.route": fact.route,
            "safepost.attempts": fact.attempts,
            "safepost.replayed": fact.replayed,
        }
        if fact.status:
            attributes["http.response.status_code"] = fact.status
        if fact.knowledge is not None:
            attributes["safepost.knowledge"] = fact.knowledge.value
        if fact.operation is not None:
            attributes["safepost.operation"] = fact.operation
        if fact.status >= 500 or fact.status == 0:
            attributes["error.type"] = fact.code or (str(fact.status) if fact.status else "caller_gone")
        span = self._tracer.start_span(
            f"{fact.method} {fact.route}",
            context=self._parent(fact.traceparent),
            kind=SpanKind.SERVER,
            attributes=attributes,
            start_time=ended_ns - fact.duration_us * NS_PER_US,
        )
        if "error.type" in attributes:
            span.set_status(StatusCode.ERROR)
        inside = set_span_in_context(span)
        for attempt in self._attempts.pop(request_id, ()):
            self._attempt_span(attempt, inside)
        span.end(ended_ns)
        if fact.status in (0, 504):
            self._answered[request_id] = inside
            if len(self._answered) > ANSWERED_MAX:
                self._answered.popitem(last=False)

    def _attempt_span(self, attempt: _Attempt, inside: Context) -> None:
        span = self._tracer.start_span(
            str(attempt.attributes["http.request.method"]),
            context=inside,
            kind=SpanKind.CLIENT,
            attributes=attempt.attributes,
            start_time=attempt.started_ns,
        )
        if attempt.failed:
            span.set_status(StatusCode.ERROR)
        span.end(attempt.ended_ns)

    def _parent(self, traceparent: str) -> Context | None:
        """The caller's own span, where it named one (W3C Trace Context)."""
        return self._propagator.extract({"traceparent": traceparent}) if traceparent else None

    def close(self) -> None:
        """Export what is left."""
        self._provider.shutdown()
