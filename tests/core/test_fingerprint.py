"""Fingerprints: an honest retry is the same, another business value never is (P1, P2, O-04 to O-06)."""

from __future__ import annotations

import json

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from proxy.core.bodies import Json, Number, Parsed, parse
from proxy.core.fingerprint import WHOLE_BODY, canonical, differing, make
from proxy.core.model import Fingerprint, replace
from proxy.core.rules import Route
from tests.core.payhub import CONFIRM, CREATE, REFUNDS
from tests.core.test_bodies import FORM_TYPE, JSON_TYPE, JSON_VALUES

SECRET = b"s" * 32


def printed(
    body: bytes | str, *, route: Route = CREATE, content_type: bytes = JSON_TYPE, **params: str
) -> Fingerprint:
    parsed = parse(body.encode("utf-8", "surrogatepass") if isinstance(body, str) else body, content_type)
    assert isinstance(parsed, Parsed)
    return make(parsed, params, route, secret_id="s1", secret=SECRET, preset="payhub@1")


def conflict(record: bytes | str, call: bytes | str, *, route: Route = CREATE) -> tuple[str, ...]:
    return differing(printed(record, route=route), (printed(call, route=route),))


RECORD = '{"merchant_order_no":"ORDER-T-001","amount":10000,"currency":"USD"}'


@pytest.mark.parametrize(
    "call",
    [
        ' {"currency" : "\\u0055SD","amount":10000 ,"merchant_order_no":"ORDER-T-001"}\n',
        RECORD.replace("10000", "10000.0"),
        RECORD.replace("10000", "1e4"),
        RECORD.replace("}", ',"card":{"number":"4242424242424242","cvc":"987"},"client_ts":2}'),
    ],
)
def test_honest_retry_differs_in_nothing(call: str) -> None:
    assert conflict(RECORD, call) == ()


@pytest.mark.parametrize(
    ("record", "call", "fields"),
    [
        (RECORD, RECORD.replace("10000", "12000"), ("amount",)),
        (RECORD, RECORD.replace("10000", '"10000"'), ("amount",)),
        (RECORD, RECORD.replace("10000", "10000.01"), ("amount",)),
        (RECORD, RECORD.replace("USD", "usd"), ("currency",)),
        (RECORD, RECORD.replace('"USD"', "null"), ("currency",)),
        (RECORD, RECORD.replace("10000", "true"), ("amount",)),
        (
            RECORD.replace("10000", "9007199254740993"),
            RECORD.replace("10000", "9007199254740992"),
            ("amount",),
        ),
        (RECORD, "{}", ("merchant_order_no", "amount", "currency")),
    ],
)
def test_other_business_value_is_named(record: str, call: str, fields: tuple[str, ...]) -> None:
    assert conflict(record, call) == fields


def test_missing_field_equals_null() -> None:
    assert conflict('{"merchant_order_no":"A","amount":null}', '{"merchant_order_no":"A"}') == ()


def test_field_paths_reach_into_objects_and_into_the_path() -> None:
    route = replace(CONFIRM, fields=("path.payment_id", "fee.amount", "path.nothing", "path"))
    record = printed('{"fee":{"amount":1},"path":"x"}', route=route, payment_id="pay%2F1")
    assert (
        differing(record, (printed('{"fee":{"amount":1},"path":"x"}', route=route, payment_id="pay%2F1"),))
        == ()
    )
    call = printed('{"fee":{"amount":2},"path":"y"}', route=route, payment_id="pay_2")
    assert differing(record, (call,)) == ("path.payment_id", "fee.amount", "path")


def test_form_of_the_same_fields_in_any_order_and_encoding_is_the_same() -> None:
    record = printed(b"merchant_order_no=A+1&amount=100&currency=USD", content_type=FORM_TYPE)
    same = printed(b"currency=USD&amount=%3100&merchant_order_no=A%201", content_type=FORM_TYPE)
    other = printed(b"currency=USD&amount=100.0&merchant_order_no=A%201", content_type=FORM_TYPE)
    assert differing(record, (same,)) == ()
    assert differing(record, (other,)) == ("amount",)


def test_form_group_is_compared_as_a_whole() -> None:
    route = replace(CREATE, fields=("items",))
    record = printed(b"items[0]=a&items[1]=b", route=route, content_type=FORM_TYPE)
    assert differing(record, (printed(b"items[1]=b&items[0]=a", route=route, content_type=FORM_TYPE),)) == ()
    swapped = printed(b"items[0]=b&items[1]=a", route=route, content_type=FORM_TYPE)
    assert differing(record, (swapped,)) == ("items",)


@pytest.mark.parametrize(
    ("record", "call", "content_type", "fields"),
    [
        (b"<a>1</a>", b"<a>1</a>", b"text/xml", ()),
        (b"<a>1</a>", b"<a>2</a>", b"text/xml", (WHOLE_BODY,)),
        (b"[1, 2]", b"[1,2.0]", JSON_TYPE, ()),
        (b"[1, 2]", b"[2,1]", JSON_TYPE, (WHOLE_BODY,)),
        (b"<a>1</a>", b"", b"text/xml", (WHOLE_BODY,)),
        (b"", b"<a>1</a>", b"text/xml", (WHOLE_BODY,)),
    ],
)
def test_body_without_names_is_compared_as_one(
    record: bytes, call: bytes, content_type: bytes, fields: tuple[str, ...]
) -> None:
    before, after = (printed(body, content_type=content_type) for body in (record, call))
    assert differing(before, (after,)) == fields


def test_json_after_xml_under_one_key_differs_in_all_fields() -> None:
    xml = printed(b"<amount>10000</amount>", content_type=b"text/xml")
    assert differing(printed(RECORD), (xml,)) == ("merchant_order_no", "amount", "currency", WHOLE_BODY)


def test_route_without_fields_compares_nothing() -> None:
    assert printed(b"<a>1</a>", route=CONFIRM, content_type=b"text/xml").fields == {}


def test_record_of_another_secret_is_not_compared() -> None:
    call = printed(RECORD.replace("10000", "1"))
    assert differing(replace(printed(RECORD), secret_id="gone"), (call,)) == ()
    assert differing(printed(RECORD), ()) == ()


def test_record_of_an_older_secret_is_compared_with_that_one() -> None:
    call = printed(RECORD.replace("10000", "1"))
    newer = replace(call, secret_id="s2", fields=dict.fromkeys(call.fields, "0"))
    assert differing(printed(RECORD), (newer, call)) == ("amount",)


def test_fields_that_only_one_of_two_preset_versions_has_are_not_compared() -> None:
    record = printed(RECORD)
    fewer = replace(
        record, fields={name: digest for name, digest in record.fields.items() if name != "amount"}
    )
    assert differing(record, (fewer,)) == ()
    assert differing(fewer, (record,)) == ()


def test_digest_hides_the_value_and_differs_by_secret_and_by_field() -> None:
    parsed = parse(b'{"a":1,"b":1}', JSON_TYPE)
    assert isinstance(parsed, Parsed)
    route = replace(CREATE, fields=("a", "b"))
    one, two = (make(parsed, {}, route, secret_id="s", secret=s, preset="p").fields for s in (b"1", b"2"))
    assert len({*one.values(), *two.values()}) == 6
    assert all(len(digest) == 32 for digest in one.values())


def test_canonical_nested_null_is_missing_but_a_null_item_is_not() -> None:
    assert canonical({"a": None}) == canonical({})
    assert canonical([None]) != canonical([])


@given(JSON_VALUES, st.booleans(), st.sampled_from([None, 1]))
def test_any_value_reserialised_is_the_same(value: object, ascii_only: bool, indent: int | None) -> None:
    route = replace(CREATE, fields=("amount",))
    body = json.dumps({"amount": value, "other": 1})
    turned = json.dumps({"other": 2, "amount": _turned(value)}, ensure_ascii=ascii_only, indent=indent)
    assume(ascii_only or _is_utf8(turned))
    assert conflict(body, turned, route=route) == ()


def _is_utf8(text: str) -> bool:
    return not any(0xD800 <= ord(char) < 0xE000 for char in text)


def _turned(value: object) -> object:
    """The same value with every object's members the other way round."""
    if isinstance(value, dict):
        return {name: _turned(member) for name, member in reversed(value.items())}
    return [_turned(item) for item in value] if isinstance(value, list) else value


REFUND = st.fixed_dictionaries(
    {},
    optional={
        "merchant_refund_no": st.text(),
        "payment_id": st.text(),
        "amount": st.integers() | st.floats(allow_nan=False, allow_infinity=False),
        "currency": st.sampled_from(["USD", "usd", "EUR", ""]),
    },
)


@given(REFUND, st.sampled_from(REFUNDS.fields), st.none() | st.text() | st.integers() | st.booleans())
def test_change_of_one_field_is_found_and_only_that_one(
    fields: dict[str, object], name: str, value: object
) -> None:
    changed = {**fields, name: value}
    before, after = fields.get(name), value
    same = type(before) is type(after) and before == after
    if isinstance(before, int | float) and not isinstance(before, bool):
        same = isinstance(after, int | float) and not isinstance(after, bool) and before == after
    found = conflict(json.dumps(fields), json.dumps(changed), route=REFUNDS)
    assert found == (() if same else (name,))


CANONICAL_VALUES = st.recursive(
    st.none() | st.booleans() | st.text() | st.integers().map(lambda number: Number(str(number))),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(CANONICAL_VALUES, CANONICAL_VALUES)
def test_canonical_forms_are_equal_only_for_equal_values(left: Json, right: Json) -> None:
    assert (canonical(left) == canonical(right)) == (_plain(left) == _plain(right))


def _plain(value: Json) -> object:
    """The value with its type beside it (True is not 1), without null members."""
    if isinstance(value, dict):
        return {name: _plain(member) for name, member in value.items() if member is not None}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return type(value).__name__, value
