"""Platforms of which little is known: a fingerprint over all fields, an object without a known id."""

from __future__ import annotations

from proxy.core import fingerprint
from proxy.core.bodies import Mistake, parse
from proxy.core.classify import Classifier
from proxy.core.http import Answered, Response
from proxy.core.model import Fingerprint, Outcome, replace
from proxy.core.rules import ObjectRule, OutcomeRule, Shape
from tests.core import payhub

ROUTE = replace(
    payhub.CREATE,
    fields=("*",),
    left_out=frozenset({"card", "cvv"}),
    object=ObjectRule(kind="result", id=(), status=(), statuses={}, any_is_executed=True),
    outcomes=(OutcomeRule(outcome=Outcome.EXECUTED, statuses=frozenset({200}), shape=Shape.OBJECT),),
)


def print_of(body: bytes) -> Fingerprint:
    parsed = parse(body, b"application/json")
    assert not isinstance(parsed, Mistake)
    return fingerprint.make(parsed, {}, ROUTE, secret_id="s", secret=b"secret", preset="p@1")


def outcome_of(body: bytes) -> Outcome:
    answered = Answered(Response(200, (), body))
    classifier = Classifier(ROUTE, payhub.PAYHUB)
    return classifier.classify(answered, after_doubt=False, received_wall_ms=0).outcome


def test_all_fields_other_member_differs() -> None:
    record = print_of(b'{"a": 1, "items": [{"b": 2}]}')
    assert fingerprint.differing(record, (print_of(b'{"a": 1, "items": [{"b": 3}]}'),)) == ("*",)
    assert fingerprint.differing(record, (print_of(b'{"items":[{"b":2.0}],"a":1}'),)) == ()


def test_all_fields_another_card_is_the_same_submission() -> None:
    """Card data never enters a fingerprint, at any depth (P1)."""
    record = print_of(b'{"a": 1, "card": {"number": "4"}, "items": [{"CVV": "1"}]}')
    assert fingerprint.differing(record, (print_of(b'{"a": 1, "card": "x", "items": [{"cvv": "2"}]}'),)) == ()


def test_object_without_known_id_is_any_json_object_and_nothing_else() -> None:
    assert outcome_of(b"{}") is Outcome.EXECUTED
    assert outcome_of(b"[]") is Outcome.IN_DOUBT
    assert outcome_of(b"<html></html>") is Outcome.IN_DOUBT
