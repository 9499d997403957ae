"""How the platform is asked, and what its answer shows: only the documented empty answer is a miss (U2, U8)."""

from __future__ import annotations

import json

import pytest

from proxy.core.http import WireResult, without
from proxy.core.lookups import listed_ids, lookup_target, read_lookup
from proxy.core.model import Handle, Operation, replace
from proxy.core.resolve import Found, LookupFailed, LookupResult, Missed
from proxy.core.rules import Route, StatusRule
from tests.core.payhub import CHECKOUT, CONFIRM, CREATE, PAYHUB
from tests.core.play import (
    Book,
    answered,
    breaker_open,
    confirm,
    create,
    error,
    led,
    payment,
    read_timeout,
    seen,
)


def created(*, order: str = "ORDER-1", resource_id: str | None = None) -> Operation:
    return replace(led(Book(), create(order=order)), resource_id=resource_id)


def confirmed() -> Operation:
    return led(Book(), confirm())


def read(result: WireResult, operation: Operation, route: Route = CREATE) -> LookupResult:
    return read_lookup(result, operation, route, PAYHUB, seen_ms=7)


def listed(*items: dict[str, object]) -> WireResult:
    return answered(200, {"data": list(items)})


ITEM: dict[str, object] = {"id": "pay_1", "status": "succeeded", "merchant_order_no": "ORDER-1", "version": 2}


# --- asking -------------------------------------------------------------------------------------------------


def test_target_is_by_id_where_that_is_known() -> None:
    assert lookup_target(created(resource_id="pay/1"), CREATE) == b"/v1/payments/pay%2F1"
    assert lookup_target(confirmed(), CONFIRM) == b"/v1/payments/pay_1"


def test_target_is_else_by_the_merchants_number_encoded_once() -> None:
    assert lookup_target(created(order="A B/ü"), CREATE) == b"/v1/payments?merchant_order_no=A%20B%2F%C3%BC"


def test_target_is_none_where_there_is_no_way_to_ask() -> None:
    assert lookup_target(created(), CHECKOUT) is None
    assert lookup_target(replace(created(), subject=None), CREATE) is None
    assert lookup_target(replace(confirmed(), resource_id=None), CONFIRM) is None


@pytest.mark.parametrize("number", ["%B6%A9", "%ED%A0%BD"])
def test_number_that_is_no_text_is_not_asked_for_by_another(number: str) -> None:
    """U8: the empty list for another number would be a false miss."""
    operation = replace(created(), subject=Handle(f"order:{number}"))
    assert lookup_target(operation, CREATE) is None


@pytest.mark.parametrize(("note", "kept"), [("paid", True), ("key sk_live_12345", False)])
def test_object_that_repeats_the_lookups_credential_is_not_kept(note: str, kept: bool) -> None:
    shown = read_lookup(
        listed(ITEM | {"note": note}), created(), CREATE, PAYHUB, seen_ms=7, secret=b"sk_live_12345"
    )
    assert isinstance(shown, Found)
    assert (shown.seen.status, shown.seen.body is not None) == ("succeeded", kept)


# --- reading ------------------------------------------------------------------------------------------------


def test_read_list_with_the_order_shows_it() -> None:
    found = read(listed(ITEM), created())
    assert isinstance(found, Found)
    assert (found.seen.status, found.seen.version, found.seen.source, found.seen.seen_ms) == (
        "succeeded",
        2,
        "lookup",
        7,
    )
    assert json.loads(found.seen.body or b"") == ITEM


def test_read_object_by_id_shows_it() -> None:
    assert isinstance(read(payment("failed"), created(resource_id="pay_1")), Found)


def test_read_empty_list_is_a_miss() -> None:
    assert read(listed(), created()) == Missed()


def test_read_404_of_an_id_that_was_never_confirmed_is_a_miss() -> None:
    assert read(error(404, "not_found"), confirmed(), CONFIRM) == Missed()


@pytest.mark.parametrize(
    "known", [{"newest": seen()}, {"accepted": True}, {"acts_on_existing": False}, {"resource_id": None}]
)
def test_read_404_of_an_id_that_the_platform_gave_out_is_a_failed_lookup(known: dict[str, object]) -> None:
    assert isinstance(read(error(404, "not_found"), replace(confirmed(), **known), CONFIRM), LookupFailed)


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (read_timeout(), "timeout"),
        (breaker_open(), "breaker_open"),
        (error(401, "unauthorized"), "http_401"),
        (error(429, "rate_limited"), "http_429"),
        (answered(404, b"<html>no such page</html>"), "http_404 without the platform's JSON"),
        (answered(200, b""), "http_200 without the platform's JSON"),
        (answered(200, {"items": []}), "no list"),
        (listed(ITEM, ITEM), "more than one resource for one number"),
        (listed({**ITEM, "merchant_order_no": "ORDER-2"}), "another resource than was asked for"),
        (listed({"merchant_order_no": "ORDER-1", "id": "pay_1"}), "not the platform's object"),
    ],
)
def test_read_anything_else_is_a_failed_lookup_and_no_evidence(result: WireResult, reason: str) -> None:
    """Why 7: a 401, a gateway's page or another merchant's list prove no absence."""
    assert read(result, created()) == LookupFailed(reason)


def test_read_404_without_the_platforms_error_is_a_failed_lookup() -> None:
    assert isinstance(read(answered(404, {"oops": 1}), confirmed(), CONFIRM), LookupFailed)


def test_read_of_a_route_that_is_not_looked_up_is_a_failed_lookup() -> None:
    assert read(listed(ITEM), created(), CHECKOUT) == LookupFailed("no lookup")


def test_read_list_of_a_platform_without_numbers_in_its_objects_takes_the_only_one() -> None:
    nameless = replace(CREATE, object=replace(CREATE.object, number=()))
    assert isinstance(read(listed(ITEM), created(), nameless), Found)


def test_read_the_object_itself_where_the_platform_answers_a_number_without_a_list() -> None:
    """U2. What is not the order asked for is no evidence, and no object is no miss (U8)."""
    assert CREATE.lookup is not None
    route = replace(CREATE, lookup=replace(CREATE.lookup, list_path=()))
    assert isinstance(read(answered(200, ITEM), created(), route), Found)
    another = read(answered(200, {**ITEM, "merchant_order_no": "ORDER-2"}), created(), route)
    assert another == LookupFailed("another resource than was asked for")
    nothing = read(error(404, "not_found"), created(), route)
    assert nothing == LookupFailed("http_404")


def test_read_object_whose_names_are_numbers_shows_it() -> None:
    """R3, U3. A merchant's number in any case; ids and statuses where the preset says that they are numbers."""
    rule = replace(CREATE.object, numeric=True, statuses={"1": StatusRule(is_final=True)})
    route = replace(CREATE, object=rule)
    item: dict[str, object] = {"id": 77, "status": 1, "merchant_order_no": 1001}
    shown = read(listed(item), created(order="1001"), route)
    assert isinstance(shown, Found)
    assert (shown.seen.resource_id, shown.seen.status, shown.seen.is_final) == ("77", "1", True)
    assert isinstance(read(answered(200, item), created(resource_id="77"), route), Found)
    assert listed_ids(listed(item), route) == frozenset({"77"})
    assert isinstance(read(listed({**ITEM, **item}), created(order="1001"), CREATE), LookupFailed)


# --- the sweep's lists --------------------------------------------------------------------------------------


def test_listed_ids_are_those_of_the_list() -> None:
    assert listed_ids(listed(ITEM, {"id": "pay_2"}, {"id": 3}), CREATE) == frozenset({"pay_1", "pay_2"})


@pytest.mark.parametrize(
    "result",
    [read_timeout(), error(401, "unauthorized"), answered(200, b""), answered(200, b"{"), answered(200, {})],
)
def test_listed_ids_of_no_list_are_none(result: WireResult) -> None:
    assert listed_ids(result, CREATE) is None


def test_listed_ids_of_a_route_that_is_not_looked_up_are_none() -> None:
    assert listed_ids(listed(ITEM), CHECKOUT) is None


def test_without_drops_every_field_of_the_names() -> None:
    headers = ((b"A", b"1"), (b"b", b"2"), (b"a", b"3"))
    assert without(headers, b"a") == ((b"b", b"2"),)


def test_a_number_that_a_hash_shortened_is_not_asked_for() -> None:
    """Another number's empty list would be a false miss."""
    assert lookup_target(created(order="O" * 400), CREATE) is None
    assert lookup_target(created(order="O" * 400, resource_id="pay_1"), CREATE) == b"/v1/payments/pay_1"
