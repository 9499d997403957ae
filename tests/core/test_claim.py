"""From a request's bytes to the claim (architecture section 4, K1-K6, P1, P3, H3)."""

from __future__ import annotations

import json

import pytest

from proxy.core.claim import Understood, make_claim
from proxy.core.fingerprint import WHOLE_BODY
from proxy.core.http import Headers, RequestHead
from proxy.core.messages import Claim, SeqKey
from proxy.core.model import replace
from proxy.core.problem import Problem
from proxy.core.routes import RouteTable, normalise
from proxy.core.rules import Platform, Route
from tests.core.payhub import CANCEL, CONFIRM, CREATE, PAYHUB, REFUNDS, SCOPE, SECRETS, injecting

JSON: Headers = ((b"Content-Type", b"application/json"),)
FORM: Headers = ((b"Content-Type", b"application/x-www-form-urlencoded"),)
KEY: Headers = ((b"Idempotency-Key", b"K1"),)
ORDER = b'{"merchant_order_no":"ORDER-T-001","amount":10000,"currency":"USD"}'


def call(
    body: bytes = ORDER,
    *,
    route: Route = CREATE,
    headers: Headers = JSON + KEY,
    target: bytes = b"/v1/payments?x=1",
    platform: Platform = PAYHUB,
    secrets: tuple[tuple[str, bytes], ...] = SECRETS,
    observe: bool = False,
    request_id: str = "r-1",
) -> Understood | Problem:
    path, _ = normalise(target)
    match = RouteTable((route,)).match("POST", path)
    assert match is not None
    head = RequestHead(b"POST", target, ((b"Host", b"pay.test"), *headers))
    return make_claim(
        head,
        body,
        match=match,
        path=path,
        platform=platform,
        scope=SCOPE,
        secrets=secrets,
        request_id=request_id,
        observe=observe,
    )


def claimed(understood: Understood | Problem) -> Claim:
    assert isinstance(understood, Understood)
    return understood.claim


def refused(understood: Understood | Problem) -> Problem:
    assert isinstance(understood, Problem)
    return understood


def test_create_is_understood_whole() -> None:
    claim = claimed(call())
    assert (claim.scope, claim.route, claim.method, claim.path) == (SCOPE, CREATE, "POST", "/v1/payments")
    assert (claim.key, claim.key_injected, claim.request_id) == ("K1", False, "r-1")
    assert (claim.subject, claim.handles) == ("order:ORDER-T-001", ("order:ORDER-T-001",))
    assert (claim.twin, claim.resource_id) == (None, None)
    assert (claim.amount, claim.currency) == (10_000, "USD")
    [printed] = claim.fingerprints
    assert (printed.secret_id, printed.preset) == ("s1", "payhub@1")
    assert set(printed.fields) == {"merchant_order_no", "amount", "currency", WHOLE_BODY}


def test_refund_names_its_twin() -> None:
    body = b'{"merchant_refund_no":"R-1","payment_id":"pay_1","amount":500,"currency":"USD"}'
    claim = claimed(call(body, route=REFUNDS, target=b"/v1/refunds"))
    assert (claim.subject, claim.twin) == ("refund:R-1", "twin:pay_1:500")


def test_confirm_acts_on_the_payment_of_its_path() -> None:
    claim = claimed(call(b'{"card":{}}', route=CONFIRM, target=b"/v1/payments/pay%5f1/confirm"))
    assert (claim.resource_id, claim.subject) == ("pay_1", "payment:pay_1")
    assert claim.handles == ("payment:pay_1",)
    assert (claim.amount, claim.currency, claim.fingerprints[0].fields) == (None, None, {})


def test_confirm_with_another_subject_has_both_handles() -> None:
    route = replace(CONFIRM, subject="order:{body.o}")
    claim = claimed(call(b'{"o":"O-1"}', route=route, target=b"/v1/payments/p%2F1/confirm"))
    assert claim.handles == ("order:O-1", "payment:p%2F1")
    assert claim.resource_id == "p/1"


def test_id_in_the_path_that_is_no_text_is_no_resource_id() -> None:
    claim = claimed(call(b"{}", route=CONFIRM, target=b"/v1/payments/%FF/confirm"))
    assert (claim.resource_id, claim.subject) == (None, "payment:%FF")


def test_route_on_no_resource_of_its_path_has_no_resource_id() -> None:
    route = replace(CONFIRM, template="/v1/confirm", subject=None)
    claim = claimed(call(b"{}", route=route, target=b"/v1/confirm"))
    assert (claim.resource_id, claim.subject, claim.handles) == (None, None, ())


def test_cancel_without_a_body_is_a_call_like_any() -> None:
    claim = claimed(call(b"", route=CANCEL, headers=KEY, target=b"/v1/payments/pay_1/cancel"))
    assert claim.subject == "payment:pay_1"


def test_create_without_a_body_is_a_400() -> None:
    problem = refused(call(b" \n"))
    assert (problem.status, problem.field) == (400, "body")


def test_given_key_needs_no_field_of_the_template() -> None:
    claim = claimed(call(b'{"amount":1}'))
    assert (claim.key, claim.subject, claim.handles) == ("K1", None, ())


def test_missing_key_is_a_400_naming_the_header() -> None:
    problem = refused(call(headers=JSON))
    assert (problem.status, problem.code, problem.field) == (400, "invalid_request", "Idempotency-Key")


def test_bad_key_is_a_400_before_the_body_is_looked_at() -> None:
    problem = refused(call(b"{oops", headers=(*JSON, (b"Idempotency-Key", b""))))
    assert problem.field == "Idempotency-Key"


def test_injected_key_is_the_same_whatever_else_is_in_the_body() -> None:
    one, two = (
        claimed(call(json.dumps(json.loads(ORDER) | extra).encode(), route=injecting(CREATE), headers=JSON))
        for extra in (
            {"client_ts": 1, "card": {"token": "tok_a"}},
            {"client_ts": 2, "card": {"token": "tok_b"}},
        )
    )
    assert one.key == two.key == "payment.create:ORDER-T-001:1"
    assert one.key_injected
    assert one.fingerprints == two.fingerprints


def test_given_key_wins_over_injection() -> None:
    claim = claimed(call(route=injecting(CREATE)))
    assert (claim.key, claim.key_injected) == ("K1", False)


def test_injection_without_its_field_is_a_400_naming_it() -> None:
    problem = refused(call(b'{"merchant_order_no":null}', route=injecting(CREATE), headers=JSON))
    assert (problem.status, problem.field) == (400, "merchant_order_no")


def test_injection_with_seq_leaves_the_number_to_the_store() -> None:
    claim = claimed(call(b"{}", route=injecting(CONFIRM), headers=JSON, target=b"/v1/payments/pay_1/confirm"))
    assert claim.key == SeqKey("payment.confirm:pay_1:", "")


def test_injection_with_seq_needs_the_subject_that_it_counts_on() -> None:
    route = injecting(CREATE, "pay:{body.amount}:{seq}")
    problem = refused(call(b'{"amount":1}', route=route, headers=JSON))
    assert problem.field == "merchant_order_no"


def test_signed_platform_never_injects() -> None:
    signed = replace(PAYHUB, signed=True)
    assert refused(call(route=injecting(CREATE), headers=JSON, platform=signed)).field == "Idempotency-Key"
    assert claimed(call(route=injecting(CREATE), platform=signed)).key == "K1"


def test_observing_makes_the_key_that_injection_would() -> None:
    claim = claimed(call(headers=JSON, observe=True))
    assert (claim.key, claim.key_injected) == ("payment.create:ORDER-T-001:1", True)
    bare = replace(CREATE, key=replace(CREATE.key, template=None))
    assert refused(call(route=bare, headers=JSON, observe=True)).field == "Idempotency-Key"


@pytest.mark.parametrize(
    ("body", "field"), [(b'{"amount":1,"amount":2}', "/amount"), (b'{"amount":}', "body"), (b"\xff", "body")]
)
def test_json_that_cannot_be_trusted_is_a_400_naming_the_place(body: bytes, field: str) -> None:
    problem = refused(call(body))
    assert (problem.status, problem.code, problem.field) == (400, "invalid_request", field)


def test_body_that_is_no_json_is_covered_as_a_whole() -> None:
    claim = claimed(call(b"<pay/>", headers=((b"Content-Type", b"text/xml"), *KEY)))
    assert claim.subject is None
    assert claim.fingerprints[0].fields[WHOLE_BODY] != claimed(call()).fingerprints[0].fields[WHOLE_BODY]


@pytest.mark.parametrize("encoding", [b"gzip", b"br", b"identity, gzip"])
def test_encoded_body_is_a_415(encoding: bytes) -> None:
    problem = refused(call(headers=(*JSON, *KEY, (b"content-encoding", encoding))))
    assert (problem.status, problem.code) == (415, "unsupported_encoding")


@pytest.mark.parametrize("encoding", [b"identity", b"Identity", b""])
def test_identity_is_no_encoding(encoding: bytes) -> None:
    claimed(call(headers=(*JSON, *KEY, (b"content-encoding", encoding))))


def test_each_secret_makes_a_fingerprint_the_current_one_first() -> None:
    claim = claimed(call(secrets=(("new", b"n" * 32), *SECRETS)))
    assert [printed.secret_id for printed in claim.fingerprints] == ["new", "s1"]
    assert claim.fingerprints[1] == claimed(call()).fingerprints[0]


@pytest.mark.parametrize(
    ("body", "headers", "amount", "currency"),
    [
        (b'{"amount":1e4,"currency":"usd"}', JSON, 10_000, "usd"),
        (b'{"amount":0,"currency":"ABCDEFGH"}', JSON, 0, "ABCDEFGH"),
        (b'{"amount":100.5,"currency":"US1"}', JSON, None, None),
        (b'{"amount":-1,"currency":"ABCDEFGHI"}', JSON, None, None),
        (b'{"amount":"100","currency":5}', JSON, None, None),
        (b'{"amount":true}', JSON, None, None),
        (b"amount=100&currency=USD", FORM, 100, "USD"),
        (b"amount=1.5&currency=", FORM, None, None),
        ("amount=²".encode(), FORM, None, None),
    ],
)
def test_amount_is_whole_minor_units_or_none(
    body: bytes, headers: Headers, amount: int | None, currency: str | None
) -> None:
    claim = claimed(call(body, headers=headers + KEY))
    assert (claim.amount, claim.currency) == (amount, currency)


@pytest.mark.parametrize(
    ("key", "order", "what"),
    [
        (b"pay-4242424242424242", "O", "card"),
        (b"K1", "jane@mail.example.com", "email"),
        (b"K1", "O", None),
    ],
)
def test_sensitive_key_or_subject_is_reported(key: bytes, order: str, what: str | None) -> None:
    body = json.dumps({"merchant_order_no": order}).encode()
    headers: Headers = (*JSON, (b"Idempotency-Key", key))
    understood = call(body, headers=headers)
    assert isinstance(understood, Understood)
    assert understood.sensitive == what


def test_sensitive_subject_of_a_key_with_seq_is_reported() -> None:
    understood = call(
        b"{}", route=injecting(CONFIRM), headers=JSON, target=b"/v1/payments/4242424242424242/confirm"
    )
    assert isinstance(understood, Understood)
    assert understood.sensitive == "card"


def test_sensitive_key_is_refused_where_configured_but_not_when_observing() -> None:
    strict = replace(CREATE, key=replace(CREATE.key, reject_sensitive=True))
    headers: Headers = (*JSON, (b"Idempotency-Key", b"jane@mail.example.com"))
    problem = refused(call(route=strict, headers=headers))
    assert (problem.status, problem.field) == (400, "Idempotency-Key")
    assert "jane" not in problem.message
    claimed(call(route=strict, headers=headers, observe=True))
    claimed(call(route=strict))


def test_request_id_that_looks_like_a_card_is_not_recorded() -> None:
    """D4: it is the caller's text, and stands in the ledger with each attempt."""
    assert claimed(call(request_id="r 4242424242424242")).request_id == "[card, 18 characters, masked]"
