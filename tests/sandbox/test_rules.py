"""Rules as they are written: in JSON, and inside business numbers."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from proxy.sandbox import Fault, FaultRule, Match, RefusedError
from proxy.sandbox.rules import read_directives, read_rule


def of(number: str, **more: object) -> FaultRule:
    """The single rule inside an order number."""
    (rule,) = read_directives(number)
    return rule


@pytest.mark.parametrize(
    ("directive", "expected"),
    [
        ("~timeout_after", FaultRule(Fault.HANG_AFTER)),
        ("~timeout_before", FaultRule(Fault.HANG_BEFORE)),
        ("~reset_beforex3", FaultRule(Fault.RESET_BEFORE, times=3)),
        ("~close_afterxalways", FaultRule(Fault.CLOSE_AFTER, times=None)),
        ("~hang_after:0.5", FaultRule(Fault.HANG_AFTER, seconds=0.5)),
        ("~500", FaultRule(Fault.STATUS, status=500, executed=False)),
        ("~502_before", FaultRule(Fault.STATUS, status=502, executed=False)),
        ("~500_afterx2", FaultRule(Fault.STATUS, status=500, executed=True, times=2)),
        ("~429:2", FaultRule(Fault.STATUS, status=429, executed=False, headers={"Retry-After": "2"})),
        ("~202", FaultRule(Fault.ACCEPT_202)),
        ("~202:failed:0.5", FaultRule(Fault.ACCEPT_202, final_status="failed", final_after_s=0.5)),
        ("~lag:2", FaultRule(Fault.LOOKUP_LAG, seconds=2.0)),
        ("~delay:1.5", FaultRule(Fault.DELAY, seconds=1.5)),
        ("~hints", FaultRule(Fault.EARLY_HINTS)),
    ],
)
def test_directive_of_an_order_is_a_rule_for_its_create(directive: str, expected: FaultRule) -> None:
    number = f"ORDER-1{directive}"
    match = Match(route="create_payment", order=number)
    assert of(number) == replace_match(expected, match)


def replace_match(rule: FaultRule, match: Match) -> FaultRule:
    return FaultRule(
        rule.fault,
        match,
        times=rule.times,
        status=rule.status,
        headers=rule.headers,
        executed=rule.executed,
        final_status=rule.final_status,
        final_after_s=rule.final_after_s,
        seconds=rule.seconds,
    )


def test_directive_with_a_route_is_for_that_route() -> None:
    assert of("O~confirm.500").match == Match(route="confirm_payment", order="O~confirm.500")
    assert of("O~lookup.503").match == Match(method="GET", order="O~lookup.503")
    (rule,) = read_directives("R~decline", is_refund=True)
    assert rule.match == Match(route="create_refund", refund="R~decline")


@pytest.mark.parametrize(
    "number",
    ["ORDER-1", "ORDER~1", "A~", "A~~", "A~before_read", "A~status", "A~999", "A~nonsense:1", "A~x3"],
)
def test_number_without_a_directive_has_no_rules(number: str) -> None:
    assert list(read_directives(number)) == []


@settings(deadline=None)
@given(st.text(alphabet="~.:x023459abcdefhlmorstuy_-"))
@example("O-1~decline")
def test_any_number_is_read_without_an_error(number: str) -> None:
    for rule in read_directives(number):
        assert rule.match.order == number


def test_rule_in_full_is_read() -> None:
    assert read_rule(
        {
            "match": {"method": "POST", "path": "/v1/payments/{id}/confirm", "order": "O-*"},
            "times": "always",
            "skip": 2,
            "fault": "status",
            "status": 503,
            "headers": {"Retry-After": "1"},
            "executed": True,
        }
    ) == FaultRule(
        Fault.STATUS,
        Match(method="POST", path="/v1/payments/{id}/confirm", order="O-*"),
        times=None,
        skip=2,
        status=503,
        headers={"Retry-After": "1"},
        executed=True,
    )


@pytest.mark.parametrize(
    ("given_rule", "field"),
    [
        ([], "rule"),
        ({}, "fault"),
        ({"fault": "explode"}, "fault"),
        ({"fault": ["status"]}, "fault"),
        ({"fault": "garbage", "times": 0}, "times"),
        ({"fault": "garbage", "times": True}, "times"),
        ({"fault": "garbage", "skip": -1}, "skip"),
        ({"fault": "garbage", "often": 1}, "often"),
        ({"fault": "garbage", "match": []}, "match"),
        ({"fault": "garbage", "match": {"orders": "O"}}, "match.orders"),
        ({"fault": "garbage", "match": {"order": 1}}, "match.order"),
        ({"status": 99}, "status"),
        ({"status": "500"}, "status"),
        ({"status": 500, "headers": {"A": "b\r\nC: d"}}, "headers"),
        ({"status": 500, "html": 1}, "html"),
        ({"fault": "delay", "seconds": -1}, "seconds"),
        ({"fault": "accept_202", "final_status": "processing"}, "final_status"),
        ({"fault": "accept_202", "first_status": {}}, "first_status"),
    ],
)
def test_bad_rule_is_refused_naming_the_member(given_rule: object, field: str) -> None:
    with pytest.raises(RefusedError) as refused:
        read_rule(given_rule)
    body = refused.value.answer.body
    assert body is not None
    error = body["error"]
    assert isinstance(error, dict)
    assert error["field"] == field
