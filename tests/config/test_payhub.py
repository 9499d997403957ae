"""The compiled payhub preset is the contract: R3's table, U1's subjects, P9's times (F4, F6)."""

from __future__ import annotations

import json

import pytest

from proxy.core.classify import Classifier
from proxy.core.http import Answered, Headers, Response
from proxy.core.model import Outcome
from proxy.core.rules import ErrorShape, GuardRule, KeyMode, Replay, RetryPolicy, Route
from tests.config.files import route, settings
from tests.core import payhub

DAY_MS = 86_400_000
HTML = b"<html><body>Bad gateway</body></html>"
MONEY = ("create_payment", "confirm_payment", "cancel_payment", "create_refund")
EVERY = (*MONEY, "create_checkout_session")

EXECUTED, PENDING, RELEASED = Outcome.EXECUTED, Outcome.PENDING, Outcome.RELEASED
REFUSED, NOT_EXECUTED, IN_DOUBT = Outcome.REFUSED, Outcome.NOT_EXECUTED, Outcome.IN_DOUBT


def error(code: str) -> bytes:
    return json.dumps({"error": {"code": code, "message": "m", "retryable": True}}).encode()


def thing(status: str) -> bytes:
    return json.dumps({"id": "x_1", "status": status, "version": 3}).encode()


def judged(
    name: str, status: int, body: bytes, *, after_doubt: bool = False, headers: Headers = ()
) -> tuple[Outcome, bool, bool]:
    """(outcome, is retried, passes to the caller) of an answer on a route."""
    classifier = Classifier(route(name), settings().platform)
    answered = Answered(Response(status, headers, body))
    verdict = classifier.classify(answered, after_doubt=after_doubt, received_wall_ms=0)
    return verdict.outcome, verdict.retry, verdict.passes


BOTH = (False, True)

R3 = [
    # status, body, after doubt, (outcome, retried, passes)
    (202, thing("processing"), BOTH, (PENDING, False, False)),
    (202, thing("succeeded"), BOTH, (PENDING, False, False)),
    (202, b"", BOTH, (PENDING, False, False)),
    (200, thing("processing"), BOTH, (PENDING, False, False)),
    (200, thing("a-status-of-next-year"), BOTH, (PENDING, False, False)),
    (201, thing("succeeded"), BOTH, (EXECUTED, False, False)),
    (200, thing("failed"), BOTH, (EXECUTED, False, False)),
    (402, error("card_declined"), BOTH, (EXECUTED, False, False)),
    (402, b"", BOTH, (EXECUTED, False, False)),
    (400, error("invalid_request"), BOTH, (RELEASED, False, False)),
    (401, error("unauthorized"), BOTH, (RELEASED, False, False)),
    (403, HTML, BOTH, (RELEASED, False, False)),
    (422, error("validation_error"), BOTH, (RELEASED, False, False)),
    (404, error("resource_not_found"), BOTH, (REFUSED, False, False)),
    (404, HTML, BOTH, (REFUSED, False, False)),
    (405, b"", BOTH, (REFUSED, False, False)),
    (413, HTML, BOTH, (REFUSED, False, False)),
    (415, b"", BOTH, (REFUSED, False, False)),
    (410, b"", BOTH, (REFUSED, False, False)),
    (499, b"", BOTH, (REFUSED, False, False)),
    (409, error("payment_in_progress"), (False,), (REFUSED, False, False)),
    (409, error("payment_in_progress"), (True,), (PENDING, False, False)),
    (409, error("order_no_conflict"), BOTH, (EXECUTED, False, False)),
    (409, error("refund_no_conflict"), BOTH, (EXECUTED, False, False)),
    (409, error("idempotency_conflict"), (False,), (RELEASED, False, False)),
    (409, error("idempotency_conflict"), (True,), (IN_DOUBT, False, False)),
    (409, error("operation_in_progress"), BOTH, (IN_DOUBT, True, True)),
    (409, error("something_new"), (False,), (IN_DOUBT, False, True)),
    (409, error("something_new"), (True,), (IN_DOUBT, False, False)),
    (409, HTML, (False,), (IN_DOUBT, False, True)),
    (409, HTML, (True,), (IN_DOUBT, False, False)),
    (429, error("rate_limited"), BOTH, (NOT_EXECUTED, True, False)),
    (429, HTML, BOTH, (NOT_EXECUTED, True, False)),
    (425, b"", BOTH, (NOT_EXECUTED, True, False)),
    (503, error("temporarily_unavailable"), BOTH, (NOT_EXECUTED, True, False)),
    (503, error("internal_error"), BOTH, (IN_DOUBT, True, True)),
    (503, HTML, BOTH, (IN_DOUBT, True, True)),
    (503, b"temporarily_unavailable", BOTH, (IN_DOUBT, True, True)),
    (408, b"", BOTH, (IN_DOUBT, True, True)),
    (500, error("internal_error"), BOTH, (IN_DOUBT, True, True)),
    (502, HTML, BOTH, (IN_DOUBT, True, True)),
    (504, b"", BOTH, (IN_DOUBT, True, True)),
    (524, HTML, BOTH, (IN_DOUBT, True, True)),
    (501, b"", BOTH, (IN_DOUBT, False, True)),
    (505, b"", BOTH, (IN_DOUBT, False, True)),
    (302, b"", BOTH, (IN_DOUBT, False, False)),
    (307, HTML, BOTH, (IN_DOUBT, False, False)),
    (200, HTML, BOTH, (IN_DOUBT, True, False)),
    (200, b"", BOTH, (IN_DOUBT, True, False)),
    (200, b'{"id": 5, "status": "succeeded"}', BOTH, (IN_DOUBT, True, False)),
    (200, b'{"id": "x_1"}', BOTH, (IN_DOUBT, True, False)),
]


@pytest.mark.parametrize("name", MONEY)
@pytest.mark.parametrize(("status", "body", "doubts", "expected"), R3)
def test_answer_is_classed_as_the_contract_says(
    name: str,
    status: int,
    body: bytes,
    doubts: tuple[bool, ...],
    expected: tuple[Outcome, bool, bool],
) -> None:
    for after_doubt in doubts:
        assert judged(name, status, body, after_doubt=after_doubt) == expected


def test_bodyless_answer_of_a_cancel_is_executed_and_of_anything_else_in_doubt() -> None:
    """O-27: a 204 has no body, and for a cancel nothing to show."""
    assert judged("cancel_payment", 204, b"")[0] is EXECUTED
    assert {judged(name, 204, b"")[0] for name in EVERY if name != "cancel_payment"} == {IN_DOUBT}


def test_any_session_is_executed() -> None:
    """R3: checkout sessions have no final status; their object is the answer."""
    session = b'{"id": "cs_1", "url": "https://pay.example"}'
    assert judged("create_checkout_session", 201, session)[0] is EXECUTED
    assert judged("create_checkout_session", 202, session)[0] is EXECUTED
    assert judged("create_checkout_session", 200, HTML)[0] is IN_DOUBT


def test_declined_card_stands_for_a_failed_payment() -> None:
    rows = [row for row in route("create_payment").outcomes if row.statuses == {402}]
    assert [row.means for row in rows] == ["failed"]


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("after_doubt", BOTH)
def test_every_status_of_every_class_has_a_row(name: str, after_doubt: bool) -> None:
    """Nothing falls through to a default: the table says it all."""
    covered = {
        status
        for row in route(name).outcomes
        if row.codes is None and row.shape == "any" and row.after_doubt in (None, after_doubt)
        for status in row.statuses
    }
    assert covered == set(range(200, 600))


@pytest.mark.parametrize(
    ("name", "by_hand"),
    [
        ("create_payment", payhub.CREATE),
        ("confirm_payment", payhub.CONFIRM),
        ("create_refund", payhub.REFUNDS),
    ],
)
def test_verdicts_agree_with_the_route_written_by_hand(name: str, by_hand: Route) -> None:
    """R3 was read twice: as YAML here, as values for core's own tests."""
    ours, theirs = Classifier(route(name), settings().platform), Classifier(by_hand, payhub.PAYHUB)
    for status, body, doubts, _ in R3:
        if b"_no_conflict" in body:
            continue  # by hand, each route knows only its own number's code
        for after_doubt in doubts:
            answered = Answered(Response(status, (), body))
            found = [
                (verdict.outcome, verdict.retry, verdict.passes)
                for each in (ours, theirs)
                for verdict in [each.classify(answered, after_doubt=after_doubt, received_wall_ms=0)]
            ]
            assert found[0] == found[1], (status, body)


def test_routes_have_the_contract_s_names_methods_and_paths() -> None:
    """F6."""
    assert {found.name: f"{found.method} {found.template}" for found in settings().platform.routes} == {
        "create_payment": "POST /v1/payments",
        "confirm_payment": "POST /v1/payments/{payment_id}/confirm",
        "cancel_payment": "POST /v1/payments/{payment_id}/cancel",
        "create_checkout_session": "POST /v1/checkout/sessions",
        "create_refund": "POST /v1/refunds",
    }


def test_retry_policy_is_the_contract_s() -> None:
    """R5: one policy for all guarded routes."""
    assert {found.retry.deadline_ms for found in settings().platform.routes} == {120_000}
    retry = route("create_payment").retry
    assert isinstance(retry, RetryPolicy)
    assert (retry.attempts, retry.attempt_timeout_ms, retry.base_ms) == (5, 20_000, 1_000)
    assert (retry.multiplier, retry.cap_ms, str(retry.jitter), retry.jitter_max_ms) == (
        2,
        30_000,
        "additive",
        250,
    )


def test_keys_are_made_from_the_business_s_own_numbers() -> None:
    """K2: the same on every host and after every restart; a session's key is never made."""
    assert {found.name: found.key.template for found in settings().platform.routes} == {
        "create_payment": "payment.create:{body.merchant_order_no}:1",
        "confirm_payment": "payment.confirm:{path.payment_id}:{seq}",
        "cancel_payment": "payment.cancel:{path.payment_id}:1",
        "create_checkout_session": None,
        "create_refund": "refund.create:{body.merchant_refund_no}:1",
    }
    assert {found.key.mode for found in settings().platform.routes} == {KeyMode.REQUIRE}
    assert {found.key.header for found in settings().platform.routes} == {b"Idempotency-Key"}
    assert not any(found.key.unquote for found in settings().platform.routes)


def test_subjects_guards_and_twins_are_those_of_the_unknown_guard() -> None:
    """U1: on for create, confirm and refund; off for cancel and sessions."""
    found = {each.name: (each.subject, each.guard.on, each.twin) for each in settings().platform.routes}
    assert found == {
        "create_payment": ("order:{body.merchant_order_no}", True, None),
        "confirm_payment": ("payment:{path.payment_id}", True, None),
        "cancel_payment": ("payment:{path.payment_id}", False, None),
        "create_checkout_session": (None, False, None),
        "create_refund": (
            "refund:{body.merchant_refund_no}",
            True,
            "refund-of:{body.payment_id}:{body.amount}",
        ),
    }
    assert route("create_refund").guard == GuardRule(on=True, platform_is_unique=True, twin_rejects=True)
    text = "routes: {create_refund: {guard: {twin: warn}}, create_payment: {guard: {on: false}}}"
    assert not route("create_refund", text).guard.twin_rejects
    assert not route("create_payment", text).guard.on


def test_records_live_as_long_as_the_contract_says() -> None:
    """P9: retention and a day; 30 days where the key is the platform's only uniqueness."""
    found = {each.name: (each.record_ms // DAY_MS, each.key_expires) for each in settings().platform.routes}
    assert found == {
        "create_payment": (8, False),
        "confirm_payment": (30, True),
        "cancel_payment": (30, True),
        "create_checkout_session": (8, False),
        "create_refund": (8, False),
    }
    assert {each.retention_ms for each in settings().platform.routes} == {7 * DAY_MS}


def test_fingerprints_cover_the_safe_fields_and_never_a_card() -> None:
    """P1."""
    fields = {each.name: each.fields for each in settings().platform.routes}
    assert fields["create_payment"] == ("amount", "currency", "merchant_order_no")
    assert fields["create_refund"] == ("amount", "currency", "merchant_refund_no", "payment_id")
    assert not any("card" in name for names in fields.values() for name in names)


def test_lookups_are_by_id_or_by_number_and_not_of_sessions() -> None:
    """U2, U8."""
    payment, refund = route("confirm_payment").lookup, route("create_refund").lookup
    assert payment is not None
    assert refund is not None
    assert payment.by_number == "/v1/payments?merchant_order_no={number}"
    assert refund.by_id == "/v1/refunds/{id}"
    assert payment.absent_statuses == {404}
    assert (payment.list_path, payment.timeout_ms) == (("data",), 10_000)
    session = route("create_checkout_session")
    assert session.lookup is None
    assert not session.tracked
    assert not route("create_refund").polled_while_pending
    assert {each.name for each in settings().platform.routes if each.acts_on_existing} == {
        "confirm_payment",
        "cancel_payment",
    }


def test_platform_wide_rules_are_the_contract_s() -> None:
    platform = settings().platform
    assert (platform.name, platform.version) == ("payhub", "1.0.0")
    assert (platform.error_shape, platform.error_code) == (ErrorShape.ENVELOPE, ("error", "code"))
    assert platform.error_related_id == ("error", "related_resource_id")
    assert (platform.reads.attempt_timeout_ms, platform.lookup_lag_ms) == (10_000, 60_000)
    assert platform.sweeps == ("/v1/refunds?status=pending_review", "/v1/refunds?status=processing")
    assert platform.next_steps == ("same_key_repeat", "list_sweep", "person")
    assert platform.events is not None
    assert platform.events.object == ("data", "object")
    assert platform.events.kinds == {"payment.": "payment", "refund.": "refund_id"}
    assert {each.replay for each in platform.routes} == {Replay.FORWARD}
    assert not platform.signed
