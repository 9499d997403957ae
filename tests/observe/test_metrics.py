"""The metrics page: names, labels, zeros from the start, bounds, formats (M1, O-59, O-61)."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics

from proxy.core.messages import (
    AttemptFinished,
    BecameKnown,
    BecameUnknown,
    CallEnded,
    Collapsed,
    ConflictFound,
    Fact,
    GuardBlocked,
    LeaseTakenOver,
    LedgerDisagreed,
    LookupMade,
    OutcomeConflict,
    Replayed,
    RetryPlanned,
    SensitiveKey,
    SentUnrecorded,
)
from proxy.core.model import Fence, Key, Knowledge, OperationId, Outcome, State
from proxy.observe.catalogue import METRICS, Kind
from proxy.observe.cells import LocalBook
from proxy.observe.counts import Counts
from proxy.observe.gauges import TOLD_BY_STORE
from proxy.ports import Holdings
from tests.observe import metrics_page
from tests.observe.conftest import Make, Seen, operation, samples_of, settings

M1 = {
    "requests_total": "route method status knowledge",
    "attempts_total": "route outcome",
    "attempt_duration_seconds": "route outcome",
    "request_duration_seconds": "route",
    "overhead_seconds": "route",
    "retries_total": "route reason",
    "unknown_results_total": "route",
    "unknown_operations": "route",
    "oldest_unknown_seconds": "",
    "collapsed_total": "route",
    "replayed_total": "route",
    "conflicts_total": "route",
    "guard_blocked_total": "route",
    "in_flight": "route",
    "lease_wait_seconds": "",
    "lookups_total": "route result",
    "settled_total": "route status by",
    "store_errors_total": "operation",
    "store_duration_seconds": "operation",
    "breaker_state": "",
    "retry_budget_remaining": "",
    "build_info": "version platform platform_version config",
    "unknown_amount": "currency",
    "duplicates_prevented_total": "cause",
    "time_to_certainty_seconds": "route",
}
ROUTES = {"create_payment", "confirm_payment", "cancel_payment", "create_checkout_session", "create_refund"}


def call(**changes: object) -> CallEnded:
    told: dict[str, object] = {
        "route": "create_payment",
        "method": "POST",
        "status": 201,
        "knowledge": Knowledge.EXECUTED,
        "duration_us": 1_500,
        "overhead_us": 300,
        "request_id": "r-1",
    }
    return CallEnded(**told | changes)  # type: ignore[arg-type]  # a table of changes


def test_catalogue_holds_every_metric_of_the_contract() -> None:
    found = {name: " ".join(metric.labels) for name, metric in METRICS.items()}

    assert found | M1 == found


@pytest.mark.parametrize("name", METRICS)
async def test_every_metric_is_on_the_page_from_the_start(seen: Seen, name: str) -> None:
    names = {name for name, _ in await seen.samples()}

    suffix = "_count" if METRICS[name].kind is Kind.HISTOGRAM else ""
    assert f"safepost_{name}{suffix}" in names


async def test_counters_are_zero_for_every_route_and_word(seen: Seen) -> None:
    samples = await seen.samples()

    def labels(name: str, *wanted: str) -> set[tuple[str, ...]]:
        return {
            tuple(dict(pairs)[label] for label in wanted)
            for found, pairs in samples
            if found == f"safepost_{name}"
        }

    assert labels("attempts_total", "route", "outcome") == {(r, o.value) for r in ROUTES for o in Outcome}
    assert {k for _, k in labels("requests_total", "route", "knowledge")} == {k.value for k in Knowledge} | {
        ""
    }
    for name in ("unknown_results_total", "conflicts_total", "guard_blocked_total", "in_flight"):
        assert labels(name, "route") == {(route,) for route in ROUTES}
    for reason in ("reset", "timeout", "refused", "http_503", "temporarily_unavailable", "other"):
        assert ("create_payment", reason) in labels("retries_total", "route", "reason")
    for by in ("answer", "lookup", "event", "late_answer", "person"):
        assert ("create_payment", "succeeded", by) in labels("settled_total", "route", "status", "by")
    assert ("create_payment", "found") in labels("lookups_total", "route", "result")
    gauges = ("build_info", "store_up", "retry_budget_remaining", "counts_start_time_seconds")
    exceptions = {f"safepost_{name}" for name in gauges}
    rest = {v for (n, _), v in samples.items() if n not in exceptions and "process_" not in n}
    assert rest == {0.0}


async def test_names_are_prefixed_and_none_is_a_created_stamp(seen: Seen) -> None:
    for accept in ("", "application/openmetrics-text"):
        _, page = await seen.observer.metrics(accept)
        names = set(re.findall(r"(?m)^([a-z_]+)[{ ]", page.decode()))
        assert all(name.startswith("safepost_") for name in names)
        assert not any(name.endswith("_created") for name in names)


async def test_random_traffic_makes_no_new_series_and_leaks_no_id(seen: Seen) -> None:
    """O-59: scanners' methods, wild statuses, platform codes with ids in them."""
    before = len(await seen.samples())
    for n in range(3_000):
        status = (200, 404, 503, -1, 1_000, 10_000)[n % 6]
        seen.observer.fact(
            call(route=f"/v1/payments/{n}", method=f"M{n}", status=status, key=Key(f"K{n}")), None
        )
        identity, code = OperationId(f"op_{n}"), f"e_{n}"
        ended = AttemptFinished(identity, "create_payment", Key(""), 1, Outcome.IN_DOUBT, code, 500)
        seen.observer.fact(ended, None)
        seen.observer.fact(RetryPlanned("create_payment", identity, 2, code, 10), None)
        seen.observer.fact(BecameKnown(operation(status=f"s{n}", currency=f"C{n}"), "lookup"), None)

    _, page = await seen.observer.metrics("")
    text = page.decode()
    assert len(samples_of(page)) - before < 50
    assert not re.search(r"/v1/|K\d|M\d|e_\d|op_|s\d+\"", text)


async def test_facts_add_up(seen: Seen) -> None:
    facts: list[Fact] = [
        call(),
        call(status=504, knowledge=Knowledge.UNKNOWN),
        call(route="other", method="GET", status=200, knowledge=None),
        AttemptFinished(OperationId("op_1"), "create_payment", Key("K"), 1, Outcome.IN_DOUBT, "reset", None),
        RetryPlanned("create_payment", OperationId("op_1"), 2, "reset", 1_000),
        BecameUnknown(operation()),
        BecameKnown(
            operation(state=State.EXECUTED, status="succeeded", settled_ms=1_800_000_000_000), "lookup"
        ),
        OutcomeConflict(operation(), "text"),
        Collapsed("create_payment"),
        Replayed("create_payment"),
        ConflictFound("create_payment", ("amount",)),
        GuardBlocked("create_payment", twin=False),
        GuardBlocked("create_refund", twin=True),
        SentUnrecorded("create_payment"),
        LeaseTakenOver(OperationId("op_1"), "create_payment"),
        SensitiveKey("create_payment", "card"),
        LedgerDisagreed(OperationId("op_1"), "create_payment", Fence(2)),
        LookupMade("create_payment", "failed", "http_503"),
    ]

    for fact in facts:
        seen.observer.fact(fact, None)

    pay = {"route": "create_payment"}
    expected = [
        ("requests_total", pay | {"method": "POST", "status": "201", "knowledge": "executed"}),
        ("requests_total", pay | {"method": "POST", "status": "504", "knowledge": "unknown"}),
        ("requests_total", {"route": "other", "method": "GET", "status": "200", "knowledge": ""}),
        ("attempts_total", pay | {"outcome": "in_doubt"}),
        ("retries_total", pay | {"reason": "reset"}),
        ("unknown_results_total", pay),
        ("settled_total", pay | {"status": "succeeded", "by": "lookup"}),
        ("outcome_conflicts_total", pay),
        ("collapsed_total", pay),
        ("replayed_total", pay),
        ("conflicts_total", pay),
        ("guard_blocked_total", pay),
        ("guard_blocked_total", {"route": "create_refund"}),
        ("duplicates_prevented_total", {"cause": "collapsed"}),
        ("duplicates_prevented_total", {"cause": "replayed"}),
        ("duplicates_prevented_total", {"cause": "guard"}),
        ("duplicates_prevented_total", {"cause": "twin"}),
        ("sent_unrecorded_total", pay),
        ("lease_takeovers_total", pay),
        ("sensitive_keys_total", pay | {"what": "card"}),
        ("ledger_disagreements_total", pay),
        ("lookups_total", pay | {"result": "failed"}),
    ]
    for name, labels in expected:
        assert await seen.value(name, **labels) == 1.0, (name, labels)
    assert await seen.value("request_duration_seconds_count", **pay) == 2.0
    assert await seen.value("time_to_certainty_seconds_sum", **pay) == 10.0


@pytest.mark.parametrize(
    ("reason", "status", "counted"),
    [
        ("temporarily_unavailable", 503, "temporarily_unavailable"),
        ("internal_error", 500, "http_500"),
        ("pay_4711", None, "other"),
        ("http_502", 502, "http_502"),
        ("http_999", None, "other"),
        ("connect_timeout", None, "connect_timeout"),
    ],
)
async def test_retry_counts_by_a_word_of_ours(
    seen: Seen, reason: str, status: int | None, counted: str
) -> None:
    identity = OperationId("op_1")
    ended = AttemptFinished(identity, "create_payment", Key("K"), 1, Outcome.IN_DOUBT, reason, status)
    seen.observer.fact(ended, None)

    seen.observer.fact(RetryPlanned("create_payment", identity, 2, reason, 1), None)

    assert await seen.value("retries_total", route="create_payment", reason=counted) == 1.0


@given(st.lists(st.integers(min_value=0, max_value=200_000_000), max_size=30))
def test_histogram_holds_each_call_once_in_its_bucket(durations_us: list[int]) -> None:
    counts = Counts(LocalBook(), settings().platform)
    for duration_us in durations_us:
        counts.request(
            route="create_payment",
            method="POST",
            status=200,
            knowledge="executed",
            duration_us=duration_us,
            overhead_us=0,
        )

    cells = counts.series([])["request_duration_seconds", ("create_payment",)]
    bounds = METRICS["request_duration_seconds"].bounds
    assert sum(cells[:-1]) == len(durations_us)
    assert cells[-1] == pytest.approx(sum(durations_us) / 1e6)
    for number, bound in enumerate(bounds):
        assert sum(cells[: number + 1]) == sum(us / 1e6 <= bound for us in durations_us)


async def test_gauges_tell_what_is_unknown_and_forget_what_settled(seen: Seen) -> None:
    held = Holdings(
        route="create_payment",
        knowledge="unknown",
        currency="USD",
        count=2,
        amount=700,
        oldest_ms=seen.clock.ms - 90_000,
    )
    odd = Holdings(
        route="create_refund", knowledge="unknown", currency="usd", count=1, amount=5, oldest_ms=seen.clock.ms
    )
    seen.observer.holdings = (held, odd)

    assert await seen.value("unknown_operations", route="create_payment") == 2.0
    assert await seen.value("unknown_amount", currency="USD") == 700.0
    assert await seen.value("unknown_amount", currency="other") == 5.0
    assert await seen.value("oldest_unknown_seconds") == 90.0
    seen.observer.holdings = ()
    assert await seen.value("unknown_amount", currency="USD") == 0.0
    assert await seen.value("oldest_unknown_seconds") == 0.0


async def test_gauges_of_the_store_are_absent_until_it_has_spoken(seen: Seen) -> None:
    """A scrape that says 0 for what nobody asked yet would end an alert about money in doubt."""
    seen.observer._gauges.holdings = None

    names = {name for name, _ in await seen.samples()}

    assert names & {f"safepost_{name}" for name in TOLD_BY_STORE} == set()
    assert "safepost_store_up" in names


async def test_store_steps_are_timed_and_their_failures_counted(seen: Seen) -> None:
    seen.observer.store_step("reserve", 400, True)
    seen.observer.store_step("reserve", 2_000_000, False, "it took too long")
    seen.observer.store_step("invented", 1, True)

    assert await seen.value("store_duration_seconds_count", operation="reserve") == 2.0
    assert await seen.value("store_errors_total", operation="reserve") == 1.0
    assert await seen.value("store_duration_seconds_count", operation="other") == 1.0


async def test_store_that_takes_no_writes_is_down_though_it_can_be_read(seen: Seen) -> None:
    """M1, M2: on a full disk each read said that it was back, and no scrape saw it down."""
    seen.observer.store_step("reserve", 400, False, "the disk is full")
    seen.observer.store_step("holdings", 400, False, "it took too long")
    seen.observer.store_step("holdings", 400, True)
    assert await seen.value("store_up") == 0.0

    seen.observer.store_step("reserve", 400, True)  # a conflict: it had nothing to write
    assert not seen.observer.is_store_up
    seen.observer.store_step("ping", 400, True)
    assert await seen.value("store_up") == 1.0
    seen.observer.store_step("find", 400, False, "it took too long")
    assert await seen.value("store_up") == 0.0
    seen.observer.store_step("find", 400, True)
    assert await seen.value("store_up") == 1.0


async def test_open_metrics_page_links_a_bucket_to_its_trace(seen: Seen) -> None:
    trace = "0af7651916cd43dd8448eb211c80319c"
    seen.observer.fact(call(trace_id=trace), None)

    kind, page = await seen.observer.metrics("application/openmetrics-text; version=1.0.0, text/plain;q=0.5")

    assert kind.startswith("application/openmetrics-text")
    families = {family.name: family for family in open_metrics(page.decode())}  # type: ignore[no-untyped-call]  # the library's parser
    buckets = families["safepost_request_duration_seconds"].samples
    found = [sample.exemplar for sample in buckets if sample.exemplar]
    assert [(one.labels, one.value) for one in found] == [({"trace_id": trace}, 0.0015)]


@pytest.mark.parametrize("accept", ["", "*/*", "text/plain;version=0.0.4", "application/json"])
async def test_plain_page_is_the_text_format(seen: Seen, accept: str) -> None:
    kind, page = await seen.observer.metrics(accept)

    assert kind.startswith("text/plain; version=0.0.4")
    assert b"# EOF" not in page


async def test_reload_keeps_what_was_counted(seen: Seen) -> None:
    seen.observer.fact(call(), None)

    seen.observer.reloaded(settings())

    labels = {"route": "create_payment", "method": "POST", "status": "201", "knowledge": "executed"}
    assert await seen.value("requests_total", **labels) == 1.0
    assert await seen.value("config_reloads_total", result="applied") == 1.0


async def test_configuration_that_runs_no_more_is_not_said_to_run(seen: Seen) -> None:
    seen.observer.reloaded(settings(level="info"))

    told = [value for (name, _), value in (await seen.samples()).items() if name == "safepost_build_info"]
    assert sorted(told) == [0.0, 1.0]


def test_observers_of_one_process_share_nothing(make: Make) -> None:
    first, second = make(), make()

    first.observer.fact(call(), None)

    key = ("requests_total", ("create_payment", "POST", "201", "executed"))
    assert first.observer.counts.series([])[key] == (1.0,)
    assert second.observer.counts.series([])[key] == (0.0,)


def test_docs_page_has_every_metric_as_it_is() -> None:
    assert metrics_page.FILE.read_text(encoding="utf-8") == metrics_page.text()
