"""Shadow mode says what the guard would have done, and changes nothing (C9)."""

from __future__ import annotations

import pytest

from proxy.core.claim import Understood, make_claim
from proxy.core.http import Headers, RequestHead
from proxy.core.messages import Claim, SeqKey
from proxy.core.model import Key, Outcome, replace
from proxy.core.problem import Problem
from proxy.core.routes import RouteTable, normalise
from proxy.core.shadow import REMEMBERED_MAX, RETRY_WINDOW_MS, WINDOW_MS, Finding, Shadow
from tests.core.payhub import PAYHUB, SCOPE, SECRETS

ROUTES = RouteTable(PAYHUB.routes)
NOW_MS = 1_000_000


def understood(
    key: str | None, *, order: str = "O-1", amount: int = 100, headers: Headers = ()
) -> Understood | Problem:
    given = ((b"Idempotency-Key", key.encode()),) if key is not None else ()
    head = RequestHead(b"POST", b"/v1/payments", (*given, *headers))
    body = b'{"merchant_order_no":"%s","amount":%d,"currency":"USD"}' % (order.encode(), amount)
    path, _ = normalise(head.target)
    match = ROUTES.match("POST", path)
    assert match is not None
    return make_claim(
        head,
        body,
        match=match,
        path=path,
        platform=PAYHUB,
        scope=SCOPE,
        secrets=SECRETS,
        request_id="r",
        observe=True,
    )


def passed(
    shadow: Shadow,
    key: str | None,
    *,
    order: str = "O-1",
    amount: int = 100,
    headers: Headers = (),
    at_ms: int = NOW_MS,
    outcome: Outcome | None = Outcome.EXECUTED,
) -> tuple[Finding, ...]:
    call = understood(key, order=order, amount=amount, headers=headers)
    assert isinstance(call, Understood)
    found = shadow.passed(call.claim, headers, sensitive=call.sensitive, now_ms=at_ms)
    if outcome is not None:
        shadow.ended(call.claim, outcome)
    return found


def test_a_good_call_and_its_repeat_say_nothing() -> None:
    shadow = Shadow()
    assert passed(shadow, "K") == ()
    assert passed(shadow, "K") == ()


def test_a_call_without_key_would_have_had_one_made() -> None:
    assert passed(Shadow(), None) == (Finding.MISSING_KEY,)


@pytest.mark.parametrize("outcome", [Outcome.IN_DOUBT, Outcome.PENDING, None])
def test_a_new_key_while_the_result_is_open_is_the_mistake_that_pays_twice(outcome: Outcome | None) -> None:
    shadow = Shadow()
    passed(shadow, "K1", outcome=outcome)
    assert passed(shadow, "K2") == (Finding.NEW_KEY_AFTER_DOUBT,)


def test_the_same_submission_under_another_key_is_an_unstable_key() -> None:
    shadow = Shadow()
    passed(shadow, "K1")
    assert passed(shadow, "K2") == (Finding.UNSTABLE_KEY,)


def test_a_new_key_for_a_changed_submission_says_nothing() -> None:
    shadow = Shadow()
    passed(shadow, "K1", outcome=Outcome.RELEASED)
    assert passed(shadow, "K2", amount=200) == ()


def test_one_key_with_two_amounts_is_a_conflict() -> None:
    shadow = Shadow()
    passed(shadow, "K")
    assert passed(shadow, "K", amount=200) == (Finding.CONFLICT,)


@pytest.mark.parametrize(
    ("count", "at_ms", "told"),
    [(b"2", 1, True), (b"1", 1, False), (b"x", 1, False), (b"2", RETRY_WINDOW_MS + 1, False)],
)
def test_retries_of_retries_are_told_where_somebody_counts_them(count: bytes, at_ms: int, told: bool) -> None:
    shadow = Shadow()
    passed(shadow, "K")
    found = passed(shadow, "K", headers=((b"X-Envoy-Attempt-Count", count),), at_ms=NOW_MS + at_ms)
    assert found == ((Finding.STACKED_RETRIES,) if told else ())


def test_a_card_number_as_key_is_told() -> None:
    assert Finding.SENSITIVE_KEY in passed(Shadow(), "4242424242424242")


def test_what_is_older_than_the_window_is_forgotten() -> None:
    shadow = Shadow()
    passed(shadow, "K1", outcome=Outcome.IN_DOUBT)
    assert passed(shadow, "K2", at_ms=NOW_MS + WINDOW_MS + 1) == ()
    assert passed(shadow, "K1", amount=7, at_ms=NOW_MS + 2 * WINDOW_MS + 2) == ()


def test_memory_is_bounded() -> None:
    shadow = Shadow()
    passed(shadow, "K1", order="first", outcome=Outcome.IN_DOUBT)
    for number in range(REMEMBERED_MAX):
        passed(shadow, f"K{number}", order=f"O{number}", outcome=None)
    assert passed(shadow, "K-other", order="first") == ()


@pytest.mark.parametrize(("key", "finding"), [("", Finding.INVALID_CALL), ("\xe9", Finding.INVALID_CALL)])
def test_a_call_that_would_have_been_refused_is_told(key: str, finding: Finding) -> None:
    told = understood(key)
    assert isinstance(told, Problem)
    assert Shadow().refused(told, key_header="Idempotency-Key") is finding


def test_a_missing_key_that_no_template_makes_is_told() -> None:
    told = Problem(
        status=400, code="invalid_request", message="The header is missing", field="idempotency-key"
    )
    assert Shadow().refused(told, key_header="Idempotency-Key") is Finding.MISSING_KEY


def test_an_end_that_was_never_seen_to_begin_says_nothing() -> None:
    call = understood("K")
    assert isinstance(call, Understood)
    Shadow().ended(call.claim, Outcome.EXECUTED)


def test_a_key_that_the_store_would_number_is_not_remembered() -> None:
    claim = replace(call_of("K"), key=SeqKey("payment.confirm:pay_1:", ""), key_injected=True)
    shadow = Shadow()
    assert shadow.passed(claim, (), sensitive=None, now_ms=NOW_MS) == (Finding.MISSING_KEY,)
    shadow.ended(claim, Outcome.EXECUTED)


def test_a_thing_without_name_is_judged_by_its_key_alone() -> None:
    claim = replace(call_of("K"), subject=None)
    shadow = Shadow()
    assert shadow.passed(claim, (), sensitive=None, now_ms=NOW_MS) == ()
    assert shadow.passed(replace(claim, key=Key("K2")), (), sensitive=None, now_ms=NOW_MS) == ()


def call_of(key: str) -> Claim:
    call = understood(key)
    assert isinstance(call, Understood)
    return call.claim
