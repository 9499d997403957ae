"""What attempts' ends mean (R2 to R4, R6, R8, R9, O-29, O-46)."""

from __future__ import annotations

import gzip
import json
import zlib

import pytest

from proxy.core.classify import DECODED_BYTES_MAX, Classifier, Verdict, plain_body, read_object
from proxy.core.http import (
    Answered,
    Headers,
    MaybeSent,
    MaybeSentReason,
    NotSent,
    NotSentReason,
    Phase,
    Response,
    WireResult,
)
from proxy.core.model import Outcome, replace
from proxy.core.rules import OutcomeRule, Platform, Route, Shape
from tests.core.payhub import (
    CHECKOUT,
    CONFIRM,
    CREATE,
    PAYHUB,
    PAYMENT,
    REFUNDS,
    SESSION,
)

NOW_MS = 1_790_000_000_000
HTML = b"<html><h1>502 Bad Gateway</h1></html>"

EXECUTED = Outcome.EXECUTED
PENDING = Outcome.PENDING
RELEASED = Outcome.RELEASED
REFUSED = Outcome.REFUSED
NOT_EXECUTED = Outcome.NOT_EXECUTED
IN_DOUBT = Outcome.IN_DOUBT


def payment(status: str, **more: object) -> bytes:
    return json.dumps({"id": "pay_1", "status": status, **more}).encode()


def error(code: str) -> bytes:
    return json.dumps({"error": {"code": code, "retryable": True}}).encode()


def judged(
    result: WireResult, *, route: Route = CREATE, platform: Platform = PAYHUB, after_doubt: bool = False
) -> Verdict:
    return Classifier(route, platform).classify(result, after_doubt=after_doubt, received_wall_ms=NOW_MS)


def answer(
    status: int,
    body: bytes = b"",
    *headers: tuple[bytes, bytes],
    route: Route = CREATE,
    platform: Platform = PAYHUB,
    after_doubt: bool = False,
) -> Verdict:
    result = Answered(Response(status, headers, body))
    return judged(result, route=route, platform=platform, after_doubt=after_doubt)


# status, body, after doubt (None: either way), outcome, retry, passes
ANSWERS: tuple[tuple[int, bytes, bool | None, Outcome, bool, bool], ...] = (
    (201, payment("succeeded"), None, EXECUTED, False, False),
    (200, payment("failed"), None, EXECUTED, False, False),
    (200, payment("canceled"), None, EXECUTED, False, False),
    (200, payment("processing"), None, PENDING, False, False),
    (201, payment("requires_action"), None, PENDING, False, False),
    (200, payment("settling_maybe"), None, PENDING, False, False),
    (202, payment("succeeded"), None, PENDING, False, False),
    (202, b"", None, PENDING, False, False),
    (200, HTML, None, IN_DOUBT, True, False),
    (200, b"", None, IN_DOUBT, True, False),
    (204, b"", None, IN_DOUBT, True, False),
    (200, b"{}", None, IN_DOUBT, True, False),
    (200, b'[{"id":"pay_1","status":"succeeded"}]', None, IN_DOUBT, True, False),
    (200, b'{"id":1,"status":"succeeded"}', None, IN_DOUBT, True, False),
    (200, b'{"id":"","status":"succeeded"}', None, IN_DOUBT, True, False),
    (200, b'{"id":"pay_1","status":null}', None, IN_DOUBT, True, False),
    (200, b'{"id":"pay_1","status":""}', None, IN_DOUBT, True, False),
    (200, b'{"id":"pay_1","status":"succeeded"', None, IN_DOUBT, True, False),
    (200, b'{"id":"pay_1","status":"failed","status":"succeeded"}', None, IN_DOUBT, True, False),
    (302, b"", None, IN_DOUBT, False, False),
    (307, HTML, None, IN_DOUBT, False, False),
    (304, b"", None, IN_DOUBT, False, False),
    (400, error("invalid_request"), None, RELEASED, False, False),
    (401, b"", None, RELEASED, False, False),
    (403, HTML, None, RELEASED, False, False),
    (422, error("invalid_currency"), None, RELEASED, False, False),
    (402, error("card_declined"), None, EXECUTED, False, False),
    (404, error("not_found"), None, REFUSED, False, False),
    (405, b"", None, REFUSED, False, False),
    (410, b"", None, REFUSED, False, False),
    (408, b"", None, IN_DOUBT, True, True),
    (409, error("order_no_conflict"), None, EXECUTED, False, False),
    (409, error("payment_in_progress"), False, REFUSED, False, False),
    (409, error("payment_in_progress"), True, PENDING, False, False),
    (409, error("idempotency_conflict"), False, RELEASED, False, False),
    (409, error("idempotency_conflict"), True, IN_DOUBT, False, False),
    (409, error("operation_in_progress"), None, IN_DOUBT, True, True),
    (409, error("some_new_code"), False, IN_DOUBT, False, True),
    (409, error("some_new_code"), True, IN_DOUBT, False, False),
    (409, error("refund_no_conflict"), False, IN_DOUBT, False, True),
    (409, HTML, False, IN_DOUBT, False, True),
    (409, b"", True, IN_DOUBT, False, False),
    (425, b"", None, NOT_EXECUTED, True, False),
    (429, error("rate_limited"), None, NOT_EXECUTED, True, False),
    (429, HTML, None, NOT_EXECUTED, True, False),
    (503, error("temporarily_unavailable"), None, NOT_EXECUTED, True, False),
    (503, error("internal_error"), None, IN_DOUBT, True, True),
    (503, HTML, None, IN_DOUBT, True, True),
    (500, error("internal_error"), None, IN_DOUBT, True, True),
    (500, error("temporarily_unavailable"), None, IN_DOUBT, True, True),
    (502, HTML, None, IN_DOUBT, True, True),
    (504, b"", None, IN_DOUBT, True, True),
    (522, b"", None, IN_DOUBT, True, True),
    (501, b"", None, IN_DOUBT, False, True),
    (505, b"", None, IN_DOUBT, False, True),
    (600, b"", None, IN_DOUBT, True, False),
)


@pytest.mark.parametrize("after_doubt", [False, True])
@pytest.mark.parametrize(("status", "body", "only", "outcome", "retry", "passes"), ANSWERS)
def test_answer_is_read_by_the_contracts_list(
    status: int,
    body: bytes,
    only: bool | None,
    outcome: Outcome,
    retry: bool,
    passes: bool,
    after_doubt: bool,
) -> None:
    if only is None or only is after_doubt:
        verdict = answer(status, body, after_doubt=after_doubt)
        assert (verdict.outcome, verdict.retry, verdict.passes) == (outcome, retry, passes)
        assert verdict.detail == f"http_{status}"


@pytest.mark.parametrize("reason", NotSentReason)
def test_not_sent_is_retried_but_for_a_bad_certificate_and_an_open_breaker(reason: NotSentReason) -> None:
    verdict = judged(NotSent(reason, "detail", retry_after_ms=5), after_doubt=True)
    is_final = reason in (NotSentReason.CERTIFICATE, NotSentReason.BREAKER_OPEN)
    assert (verdict.outcome, verdict.retry, verdict.passes) == (Outcome.NOT_SENT, not is_final, False)
    assert (verdict.detail, verdict.retry_after_ms) == (reason, 5)


@pytest.mark.parametrize("reason", MaybeSentReason)
def test_maybe_sent_is_in_doubt_and_retried(reason: MaybeSentReason) -> None:
    verdict = judged(MaybeSent(reason, Phase.READING, status=201))
    assert (verdict.outcome, verdict.retry, verdict.passes) == (IN_DOUBT, True, False)
    assert verdict.detail == reason


def test_refunds_own_number_conflict_is_executed() -> None:
    assert answer(409, error("refund_no_conflict"), route=REFUNDS).outcome is EXECUTED


@pytest.mark.parametrize(
    ("status", "body", "outcome"),
    [
        (201, b'{"id":"cs_1"}', EXECUTED),
        (200, b'{"id":"cs_1","status":"open"}', EXECUTED),
        (202, b'{"id":"cs_1","status":"open"}', EXECUTED),
        (200, b'{"status":"open"}', IN_DOUBT),
        (200, HTML, IN_DOUBT),
    ],
)
def test_checkout_session_of_any_status_is_executed(status: int, body: bytes, outcome: Outcome) -> None:
    assert answer(status, body, route=CHECKOUT).outcome is outcome


def test_platforms_object_is_seen_with_all_that_the_ledger_needs() -> None:
    body = payment(
        "failed",
        version=4,
        attempt_count=2,
        failure={"code": "card_declined", "attempt_id": "att_2"},
        resolution_status="known",
    )
    seen = answer(200, body).seen
    assert seen is not None
    assert (seen.status, seen.is_final, seen.is_failure) == ("failed", True, True)
    assert (seen.source, seen.seen_ms, seen.resource_id) == ("answer", NOW_MS, "pay_1")
    assert (seen.version, seen.attempt_count, seen.failure_attempt_id) == (4, 2, "att_2")
    assert (seen.resolution_status, seen.body) == ("known", body)


@pytest.mark.parametrize("version", ["4", 1.5, True, None, 10**30])
def test_version_that_is_no_integer_is_none(version: object) -> None:
    seen = answer(200, payment("succeeded", version=version)).seen
    assert seen is not None
    assert seen.version is None


@pytest.mark.parametrize("card", [{"cvc": "987"}, {"number": "4242 4242 4242 4242"}], ids=["field", "number"])
def test_object_that_holds_card_data_is_seen_without_its_body(card: dict[str, str]) -> None:
    seen = answer(200, payment("succeeded", source=card)).seen
    assert seen is not None
    assert (seen.status, seen.body) == ("succeeded", None)


@pytest.mark.parametrize(
    ("status", "body"),
    [(202, b""), (402, error("x")), (500, payment("succeeded")), (409, error("order_no_conflict"))],
)
def test_nothing_is_seen_where_no_object_was_accepted(status: int, body: bytes) -> None:
    assert answer(status, body).seen is None


def test_object_without_statuses_may_end_as_any_and_fails_as_failed_alone() -> None:
    """K3, C5."""
    ends = SESSION.finals
    assert ends == ("succeeded", "failed", "canceled", "expired") == PAYMENT.finals
    assert [status for status in ends if SESSION.fails(status)] == ["failed"]
    assert [status for status in (*ends, None, "parked") if PAYMENT.fails(status)] == ["failed"]


def test_read_object_serves_lookups_and_events_alike() -> None:
    body = b'{"id":"cs_1"}'
    seen = read_object(body, {"id": "cs_1"}, SESSION, source="event", seen_ms=7, card_fields=frozenset())
    assert seen is not None
    assert (seen.status, seen.is_final, seen.is_failure, seen.source) == ("", True, False, "event")
    assert read_object(b"1", True, PAYMENT, source="lookup", seen_ms=7, card_fields=frozenset()) is None


def test_error_names_its_code_and_the_resource_that_exists() -> None:
    body = b'{"error":{"code":"order_no_conflict","related_resource_id":"pay_9"}}'
    verdict = answer(409, body)
    assert (verdict.code, verdict.related_id) == ("order_no_conflict", "pay_9")


@pytest.mark.parametrize("code", [None, 5, "", "two words", "x" * 65, "a\nb"])
def test_code_that_is_no_code_is_not_passed_on(code: object) -> None:
    assert answer(500, json.dumps({"error": {"code": code}}).encode()).code is None


@pytest.mark.parametrize("code", ["704", 704])
def test_row_s_code_fits_whether_the_platform_writes_a_word_or_a_number(code: object) -> None:
    """R3: a number that no row took fell through to a refusal, which says that no money moved."""
    rows = (
        OutcomeRule(outcome=IN_DOUBT, statuses=frozenset({409}), codes=frozenset({"704"}), retry=True),
        OutcomeRule(outcome=REFUSED, statuses=frozenset({409})),
    )
    body = json.dumps({"error": {"code": code}}).encode()

    verdict = answer(409, body, route=ruled(*rows))

    assert (verdict.outcome, verdict.retry) == (IN_DOUBT, True)


OBJECT = payment("succeeded")
BARE_DEFLATE = zlib.compressobj(wbits=-15)
DEFLATED_BARE = BARE_DEFLATE.compress(OBJECT) + BARE_DEFLATE.flush()


def _gzip(plain: bytes) -> bytes:
    """Without a time inside: the bytes name the cases, and every process has to name them alike."""
    return gzip.compress(plain, mtime=0)


@pytest.mark.parametrize(
    ("coding", "body", "outcome"),
    [
        (b"gzip", _gzip(OBJECT), EXECUTED),
        (b"GZIP", _gzip(OBJECT), EXECUTED),
        (b"x-gzip", _gzip(OBJECT), EXECUTED),
        (b"deflate", zlib.compress(OBJECT), EXECUTED),
        (b"deflate", DEFLATED_BARE, EXECUTED),
        (b"identity", OBJECT, EXECUTED),
        (b"", OBJECT, EXECUTED),
        (b"gzip", _gzip(OBJECT)[:-9], IN_DOUBT),
        (b"gzip", _gzip(OBJECT) + b"more", IN_DOUBT),
        (b"gzip", OBJECT, IN_DOUBT),
        (b"deflate", b"\xff\xff", IN_DOUBT),
        (b"br", b"\x0b\x02\x80{}\x03", IN_DOUBT),
        (b"gzip, gzip", _gzip(_gzip(OBJECT)), IN_DOUBT),
        (b"gzip", _gzip(OBJECT + b" " * DECODED_BYTES_MAX), IN_DOUBT),
        (b"gzip", b"", IN_DOUBT),
    ],
)
def test_compressed_answer_is_read_on_a_decoded_copy(coding: bytes, body: bytes, outcome: Outcome) -> None:
    assert answer(200, body, (b"Content-Encoding", coding)).outcome is outcome


def test_compressed_bomb_is_not_unpacked() -> None:
    bomb = gzip.compress(b"0" * (64 << 20), compresslevel=9)
    assert plain_body(Response(200, ((b"content-encoding", b"gzip"),), bomb)) is None


def test_answer_too_large_to_be_read_is_in_doubt() -> None:
    assert answer(200, OBJECT + b" " * DECODED_BYTES_MAX).outcome is IN_DOUBT


def test_decoder_that_the_application_brings_is_used() -> None:
    coded = Classifier(CREATE, PAYHUB, {"rot": lambda body, bytes_max: body[::-1][:bytes_max]})
    result = Answered(Response(200, ((b"Content-Encoding", b"rot"),), OBJECT[::-1]))
    assert coded.classify(result, after_doubt=False, received_wall_ms=0).outcome is EXECUTED


@pytest.mark.parametrize(
    ("status", "body", "retry_after", "wait_ms", "paces"),
    [
        (429, b"", b"2", 2_000, True),
        (503, error("temporarily_unavailable"), b"30", 30_000, True),
        (503, HTML, b"1", 1_000, True),
        (429, b"", b"-1", None, True),
        (500, b"", b"2", 2_000, False),
        (409, error("operation_in_progress"), b"2", 2_000, False),
        (403, error("forbidden"), b"600", 600_000, False),
        (202, b"", b"2", None, False),
    ],
)
def test_retry_after_paces_attempts_on_429_and_503_and_is_kept_for_the_caller_of_all_that_settle_nothing(
    status: int, body: bytes, retry_after: bytes, wait_ms: int | None, paces: bool
) -> None:
    """R6, R8 (c)."""
    verdict = answer(status, body, (b"Retry-After", retry_after))
    assert (verdict.retry_after_ms, verdict.paces) == (wait_ms, paces)


HINTED = replace(PAYHUB, should_retry_header=b"Stripe-Should-Retry")


@pytest.mark.parametrize(
    ("status", "body", "hint", "retry"),
    [
        (500, b"", b"false", False),
        (429, b"", b"False", False),
        (501, b"", b"true", True),
        (409, b"", b"true", True),
        (500, b"", b"maybe", True),
        (302, b"", b"", False),
        (200, OBJECT, b"true", False),
        (202, b"", b"true", False),
        (402, b"", b"true", False),
        (400, b"", b"true", False),
        (404, b"", b"true", False),
    ],
)
def test_platforms_hint_decides_for_what_may_be_retried_at_all(
    status: int, body: bytes, hint: bytes, retry: bool
) -> None:
    assert answer(status, body, (b"stripe-should-retry", hint), platform=HINTED).retry is retry


def test_hint_is_ignored_where_the_preset_names_none() -> None:
    assert answer(500, b"", (b"Stripe-Should-Retry", b"false")).retry


def ruled(*rules: OutcomeRule) -> Route:
    return replace(CONFIRM, outcomes=rules)


ANY_200 = frozenset({200})


@pytest.mark.parametrize(
    ("shape", "body", "fits"),
    [
        (Shape.ANY, HTML, True),
        (Shape.OBJECT, OBJECT, True),
        (Shape.OBJECT, error("x"), False),
        (Shape.ERROR, error("x"), True),
        (Shape.ERROR, OBJECT, False),
        (Shape.EMPTY, b"", True),
        (Shape.EMPTY, b" ", False),
    ],
)
def test_rule_holds_for_its_shape_only(shape: Shape, body: bytes, fits: bool) -> None:
    route = ruled(OutcomeRule(outcome=EXECUTED, statuses=ANY_200, shape=shape))
    assert (answer(200, body, route=route).outcome is EXECUTED) is fits


@pytest.mark.parametrize(
    ("headers", "fits"),
    [
        ((), False),
        (((b"x-replayed", b"TRUE"),), True),
        (((b"X-Replayed", b"no"), (b"X-Replayed", b"true")), True),
    ],
)
def test_rule_holds_for_its_header_only(headers: Headers, fits: bool) -> None:
    rule = OutcomeRule(outcome=EXECUTED, statuses=ANY_200, header=(b"X-Replayed", b"true"))
    assert (answer(200, b"", *headers, route=ruled(rule)).outcome is EXECUTED) is fits


def test_rule_for_final_statuses_needs_the_object() -> None:
    rule = OutcomeRule(outcome=PENDING, statuses=ANY_200, statuses_final=False)
    assert answer(200, HTML, route=ruled(rule)).outcome is IN_DOUBT


def test_first_rule_that_fits_decides_and_says_what_it_means() -> None:
    first = OutcomeRule(outcome=EXECUTED, statuses=ANY_200, means="failed")
    second = OutcomeRule(outcome=PENDING, statuses=ANY_200)
    verdict = answer(200, route=ruled(first, second))
    assert (verdict.outcome, verdict.means) == (EXECUTED, "failed")


@pytest.mark.parametrize("retry", [True, False])
def test_rule_may_set_the_retry_itself(retry: bool) -> None:
    rule = OutcomeRule(outcome=NOT_EXECUTED, statuses=ANY_200, retry=retry)
    assert answer(200, route=ruled(rule)).retry is retry


@pytest.mark.parametrize(("codes", "retry"), [(frozenset({"lock_timeout"}), True), (None, False)])
def test_rule_for_a_409_in_doubt_is_retried_where_it_lists_the_code(
    codes: frozenset[str] | None, retry: bool
) -> None:
    rule = OutcomeRule(outcome=IN_DOUBT, statuses=frozenset({409}), codes=codes)
    assert answer(409, error("lock_timeout"), route=ruled(rule)).retry is retry


def test_rule_in_doubt_may_let_its_answer_pass() -> None:
    rule = OutcomeRule(outcome=IN_DOUBT, statuses=ANY_200, passes=True)
    assert answer(200, route=ruled(rule)).passes
    assert not answer(200, route=ruled(replace(rule, passes=False))).passes


@pytest.mark.parametrize("code", ["4242424242424242", "sk_live_12345", "x" * 200, "two words"])
def test_code_that_is_no_word_of_a_platform_is_not_kept(code: str) -> None:
    answered = Answered(Response(500, (), error(code)))

    verdict = Classifier(CREATE, PAYHUB).classify(
        answered, after_doubt=False, received_wall_ms=0, secret=b"sk_live_12345"
    )

    assert (verdict.outcome, verdict.code) == (IN_DOUBT, None)


@pytest.mark.parametrize(
    ("headers", "body", "withheld"),
    [
        ((), OBJECT.replace(b"}", b',"key":"sk_live_12345"}'), True),
        ((), _gzip(OBJECT.replace(b"}", b',"key":"sk_live_12345"}')), True),
        (((b"X-Echo", b"Bearer sk_live_12345"),), OBJECT, True),
        ((), OBJECT, False),
    ],
    ids=["body", "compressed body", "header", "neither"],
)
def test_answer_that_repeats_the_calls_credential_is_not_kept(
    headers: Headers, body: bytes, withheld: bool
) -> None:
    coding = ((b"Content-Encoding", b"gzip"),) if body[:1] == b"\x1f" else ()
    answered = Answered(Response(201, (*headers, *coding), body))

    verdict = Classifier(CREATE, PAYHUB).classify(
        answered, after_doubt=False, received_wall_ms=0, secret=b"sk_live_12345"
    )

    assert verdict.outcome is EXECUTED
    assert verdict.withheld is withheld
    assert verdict.seen is not None
    assert (verdict.seen.body is None) is withheld
