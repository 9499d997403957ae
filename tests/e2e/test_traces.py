"""Spans of a real call reach a collector over OTLP; the caller's trace reaches the platform (H7)."""

from __future__ import annotations

from tests.e2e.callers import payment
from tests.e2e.platforms import ok
from tests.e2e.stage import Stage

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


async def test_spans_of_a_call_leave_for_the_collector_without_a_secret(stage: Stage) -> None:
    collector = await stage.platform(ok(200))
    platform = await stage.platform(ok())
    proxy = await stage.proxy(
        platform.url, traces={"endpoint": f"{collector.url}/v1/traces", "service": "shop"}
    )

    answered = await proxy.call(payment("K", 10_000, ("traceparent", PARENT)))
    await proxy.app.stop()

    assert answered.status == 201
    assert platform.received[0].header(b"traceparent") == [PARENT.encode()]
    assert {seen.target for seen in collector.received} == {b"/v1/traces"}
    assert all(b"sk_test_A" not in seen.head + seen.raw_body for seen in collector.received)


async def test_the_callers_trace_passes_through_while_spans_are_off(stage: Stage) -> None:
    platform = await stage.platform(ok())
    proxy = await stage.proxy(platform.url)

    await proxy.call(payment("K", 10_000, ("traceparent", PARENT), ("tracestate", "a=1")))

    assert platform.received[0].header(b"traceparent") == [PARENT.encode()]
    assert platform.received[0].header(b"tracestate") == [b"a=1"]
