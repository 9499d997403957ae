"""Matching calls to routes by the normalised path (H9, O-19)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.model import replace
from proxy.core.routes import RouteTable, decoded, near_miss, normalise
from proxy.core.rules import Route
from tests.core.payhub import CANCEL, CONFIRM, CREATE, PAYHUB


@pytest.mark.parametrize(
    ("target", "path"),
    [
        (b"/v1/payments", "/v1/payments"),
        (b"/v1/%70ayments", "/v1/payments"),
        (b"/v1/pay%5Fment", "/v1/pay_ment"),
        (b"/v1/a%2fb", "/v1/a%2Fb"),
        (b"/v1/x%252Fy", "/v1/x%252Fy"),
        (b"/v1/a;b=1/c%3b", "/v1/a;b=1/c%3B"),
        (b"/v1/%e8%ae%a2", "/v1/%E8%AE%A2"),
        ("/v1/订".encode(), "/v1/%E8%AE%A2"),
        (b"/v1/a b\x00", "/v1/a%20b%00"),
        (b"/v1/100%", "/v1/100%"),
        (b"/v1/%zz%4", "/v1/%zz%4"),
        (b"", ""),
        (b"*", "*"),
    ],
)
def test_normalise_decodes_unreserved_only_and_upper_cases_hex(target: bytes, path: str) -> None:
    assert normalise(target) == (path, b"")


def test_normalise_splits_the_query_off_untouched() -> None:
    assert normalise(b"/v1/%70?order=A%2bB&x=%61?y") == ("/v1/p", b"order=A%2bB&x=%61?y")


@given(st.binary(max_size=60))
def test_normalise_of_any_bytes_is_visible_ascii_and_stable(target: bytes) -> None:
    path, query = normalise(target)
    assert path.isascii()
    assert not set(path) & {chr(byte) for byte in (*range(33), 127)}
    assert normalise(path.encode() + b"?" + query) == (path, query)


@pytest.mark.parametrize(
    ("method", "path", "name", "params"),
    [
        ("POST", "/v1/payments", "create_payment", {}),
        ("POST", "/v1/payments/pay_1/confirm", "confirm_payment", {"payment_id": "pay_1"}),
        ("POST", "/v1/payments/a%2Fb/cancel", "cancel_payment", {"payment_id": "a%2Fb"}),
        ("POST", "/v1/checkout/sessions", "create_checkout_session", {}),
    ],
)
def test_match_finds_the_route_and_its_parameters(
    method: str, path: str, name: str, params: dict[str, str]
) -> None:
    match = RouteTable(PAYHUB.routes).match(method, path)
    assert match is not None
    assert (match.route.name, match.params) == (name, params)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/payments"),
        ("post", "/v1/payments"),
        ("POST", "/v1/payments/"),
        ("POST", "/v1/payments/pay_1"),
        ("POST", "/v1/payments//confirm"),
        ("POST", "/v1/payments/pay_1/capture"),
        ("POST", "/V1/payments"),
        ("POST", ""),
    ],
)
def test_match_of_anything_else_is_none(method: str, path: str) -> None:
    assert RouteTable(PAYHUB.routes).match(method, path) is None


def _route(name: str, template: str) -> Route:
    return replace(CREATE, name=name, template=template)


@pytest.mark.parametrize("order", [1, -1])
def test_match_prefers_a_literal_over_a_parameter(order: int) -> None:
    routes = (_route("any", "/v1/{kind}/{id}"), _route("one", "/v1/refunds/{id}"))[::order]
    table = RouteTable(routes)
    names = [
        match.route.name for path in ("/v1/refunds/r", "/v1/x/r") if (match := table.match("POST", path))
    ]
    assert names == ["one", "any"]


@pytest.mark.parametrize(
    ("routes", "message"),
    [
        ((CONFIRM, replace(CANCEL, template="/v1/payments/{id}/confirm")), "fit the same calls"),
        ((_route("a", "/v1/x{id}"),), "neither plain nor"),
        ((_route("a", "/v1/{id"),), "neither plain nor"),
        ((_route("a", "/v1/id}"),), "neither plain nor"),
        ((_route("a", "/v1/%61"),), "neither plain nor"),
        ((_route("a", "/v1/é"),), "neither plain nor"),
        ((_route("a", "v1/x"),), "has to start with /"),
        ((_route("a", "/v1/{id}/x/{id}"),), "name nothing twice"),
    ],
)
def test_table_of_templates_that_can_never_work_is_refused(routes: tuple[Route, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RouteTable(routes)


def test_table_takes_the_same_template_under_two_methods() -> None:
    table = RouteTable((CREATE, replace(CREATE, name="put", method="PUT")))
    assert table.match("PUT", "/v1/payments") is not None


@pytest.mark.parametrize(
    ("param", "value"),
    [("pay_1", "pay_1"), ("a%2Fb", "a/b"), ("%E8%AE%A2", "订"), ("%FF", "\udcff"), ("+", "+")],
)
def test_decoded_parameter_is_the_value_that_a_body_holds(param: str, value: str) -> None:
    assert decoded(param) == value


@pytest.mark.parametrize(
    ("path", "is_near"),
    [
        ("/v1/payments/", True),
        ("//v1//payments", True),
        ("/V1/Payments", True),
        ("/v1%2Fpayments", True),
        ("/v1/payments;v=1", True),
        ("/v1/payments%3Bv=1/pay_1/confirm", True),
        ("/v1/payments/pay_1//confirm/", True),
        ("/v1/payments%00.png", True),
        ("/v1/payments%20", True),
        ("/v1/payments%0D%0A", True),
        ("/v1/payments%3Fa=b", True),
        ("/v1/payments%23a", True),
        ("/v1/p%2561yments", True),
        ("/v1/x/%252E%252E/payments", True),
        ("/v1%255Cpayments", True),
        ("/v1/payments.", True),
        ("/v1/payments.json", True),
        ("/v1/payments/pay_1/confirm.xml", True),
        ("/v1/payments/export.csv", False),
        ("/v1/payments.d/x", False),
        ("/v1/%25", False),
        ("/v1/payments/pay_1", False),
        ("/v1/customers", False),
        ("/", False),
        ("", False),
    ],
)
def test_near_miss_is_what_some_server_takes_for_a_guarded_call(path: str, is_near: bool) -> None:
    table = RouteTable(PAYHUB.routes)
    assert table.match("POST", path) is None
    assert near_miss(table, b"POST", path) is is_near
    assert not near_miss(table, b"GET", path)
