"""Keys given and injected, operations' ids, handles (K1-K6, O-14, O-42)."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.bodies import Parsed, parse
from proxy.core.keys import (
    Filled,
    Template,
    Unfilled,
    compile_template,
    fill,
    given_key,
    handle,
    handle_of,
    injected,
    key_for,
    looks_sensitive,
    operation_id,
    shortened,
)
from proxy.core.messages import SeqKey
from proxy.core.model import Key, Scope, replace
from proxy.core.problem import Problem
from tests.core.payhub import SCOPE, key_rule

RULE = key_rule(None)
NAME = b"Idempotency-Key"


@pytest.mark.parametrize(
    ("value", "key"),
    [
        (b"K", "K"),
        (b"k" * 255, "k" * 255),
        (b" \tpayment.create:ORDER-1:1\t ", "payment.create:ORDER-1:1"),
        (b"two words", "two words"),
        (b'"quoted"', '"quoted"'),
        (b"a,b;c={}", "a,b;c={}"),
    ],
)
def test_key_of_visible_characters_is_taken_with_blanks_stripped(value: bytes, key: str) -> None:
    assert given_key(((b"Host", b"x"), (b"IDEMPOTENCY-key", value)), RULE) == key


def test_key_absent_is_none() -> None:
    assert given_key(((b"Host", b"x"),), RULE) is None


@pytest.mark.parametrize(
    ("found", "what"),
    [
        ([b""], "is empty"),
        ([b" \t "], "is empty"),
        ([b"k" * 256], "has 256 characters of at most 255"),
        ([b"a\x00b"], "other bytes"),
        ([b"a\tb"], "other bytes"),
        ([b"caf\xe9"], "other bytes"),
        ([b"a\x7f"], "other bytes"),
        ([b"K1", b"K2"], "occurs 2 times"),
        ([b"K", b"K"], "occurs 2 times"),
    ],
)
def test_key_that_is_no_key_is_a_400_naming_the_header(found: list[bytes], what: str) -> None:
    problem = given_key(tuple((NAME, value) for value in found), RULE)
    assert isinstance(problem, Problem)
    assert (problem.status, problem.code, problem.field) == (400, "invalid_request", "Idempotency-Key")
    assert what in problem.message


@pytest.mark.parametrize(
    ("value", "key"),
    [
        (b'"8e03978e"', "8e03978e"),
        (b'"a \\"b\\" \\\\"', 'a "b" \\'),
        (b"bare", "bare"),
        (b'"half', '"half'),
        (b'"a"b"', '"a"b"'),
    ],
)
def test_key_unquoted_where_the_preset_says_so(value: bytes, key: str) -> None:
    assert given_key(((NAME, value),), replace(RULE, unquote=True)) == key


@pytest.mark.parametrize(
    ("value", "what"), [(b'""', "is empty"), (b'" "', "is empty"), (b'" a"', "blanks around")]
)
def test_key_quoted_around_nothing_is_a_400(value: bytes, what: str) -> None:
    problem = given_key(((NAME, value),), replace(RULE, unquote=True))
    assert isinstance(problem, Problem)
    assert what in problem.message


def test_key_length_is_the_platforms() -> None:
    rule = replace(RULE, header=b"Cko-Idempotency-Key", length_max=64)
    problem = given_key(((b"cko-idempotency-key", b"k" * 65),), rule)
    assert isinstance(problem, Problem)
    assert problem.field == "Cko-Idempotency-Key"


def test_operation_id_is_short_and_the_same_on_every_host() -> None:
    identity = operation_id(SCOPE, "POST", "/v1/payments", Key("K"))
    assert identity == "op_wi6sgaxiaykg27vob3plv5n5zx"
    assert re.fullmatch(r"op_[a-z2-7]{26}", identity)


PARTS = st.tuples(*[st.text("ab1:/", max_size=3)] * 5)


@given(PARTS, PARTS)
def test_operation_ids_differ_whenever_a_part_does(
    one: tuple[str, str, str, str, str], two: tuple[str, str, str, str, str]
) -> None:
    ids = {operation_id(Scope(m, e), method, path, Key(key)) for m, e, method, path, key in (one, two)}
    assert len(ids) == len({one, two})


def body(text: str, content_type: bytes = b"application/json") -> Parsed:
    parsed = parse(text.encode("utf-8", "surrogatepass"), content_type)
    assert isinstance(parsed, Parsed)
    return parsed


TEMPLATE = "payment.create:{body.merchant_order_no}:1"


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ('"ORDER-1"', "payment.create:ORDER-1:1"),
        ('"a:b/c %"', "payment.create:a%3Ab%2Fc%20%25:1"),
        ('"A\\r\\nX-Evil: 1\\u0000\\u2028"', "payment.create:A%0D%0AX-Evil%3A%201%00%E2%80%A8:1"),
        ('"订单~._-"', "payment.create:%E8%AE%A2%E5%8D%95~._-:1"),
        ("10000", "payment.create:10000:1"),
        ("1e4", "payment.create:10000:1"),
        ("10000.0", "payment.create:10000:1"),
        ("-1.5", "payment.create:-1.5:1"),
        ("true", "payment.create:true:1"),
        ("false", "payment.create:false:1"),
        ('"\\ud83d"', "payment.create:%ED%A0%BD:1"),
    ],
)
def test_injected_key_encodes_what_is_not_unreserved(value: str, key: str) -> None:
    assert injected(TEMPLATE, body(f'{{"merchant_order_no":{value}}}'), {}) == key


def test_injected_key_keeps_the_bytes_of_a_form() -> None:
    assert injected("{body.o}", body("o=%FF+x", b"application/x-www-form-urlencoded"), {}) == "%FF%20x"


@pytest.mark.parametrize("value", ["null", '""', "[1]", '{"a":1}'])
def test_injected_key_of_a_field_that_identifies_nothing_names_it(value: str) -> None:
    assert injected(TEMPLATE, body(f'{{"merchant_order_no":{value}}}'), {}) == Unfilled("merchant_order_no")


def test_injected_key_takes_nested_fields_and_path_parameters_decoded_once() -> None:
    template = "x:{body.a.b}:{path.payment_id}:{path.payment_id}"
    key = injected(template, body('{"a":{"b":"p/1"}}'), {"payment_id": "p%2F1"})
    assert key == "x:p%2F1:p%2F1:p%2F1"
    assert injected("{body.a.c}", body('{"a":{"b":1}}'), {}) == Unfilled("a.c")
    assert injected("{path.payment_id}", body("{}"), {}) == Unfilled("payment_id")


def test_injected_key_with_seq_waits_for_the_store() -> None:
    made = injected("payment.confirm:{path.id}:{seq}:x", body("{}"), {"id": "p:1"})
    assert made == SeqKey("payment.confirm:p%3A1:", ":x")
    assert isinstance(made, SeqKey)
    assert [key_for(made, seq) for seq in (1, 12)] == [
        "payment.confirm:p%3A1:1:x",
        "payment.confirm:p%3A1:12:x",
    ]


def test_injected_key_too_long_is_readable_ends_in_a_hash_and_stays_one_per_submission() -> None:
    long = "A" * 4_000
    keys = [injected(TEMPLATE, body(f'{{"merchant_order_no":"{long}{n}"}}'), {}) for n in (1, 2, 1)]
    assert all(isinstance(key, str) and len(key) == 255 for key in keys)
    assert keys[0] == keys[2] != keys[1]
    assert str(keys[0]).startswith("payment.create:AAAA")
    seqs = {key_for(SeqKey("x" * 255, ""), seq) for seq in (1, 2)}
    assert len(seqs) == 2
    assert {len(key) for key in seqs} == {255}


@given(st.text(max_size=400), st.integers(min_value=1, max_value=255))
def test_shortened_text_is_never_too_long_and_never_ends_in_half_an_escape(
    text: str, length_max: int
) -> None:
    key = injected("{body.o}", parsed_of(text), {}, length_max=length_max)
    if isinstance(key, str):
        assert len(key) <= length_max
        assert re.fullmatch(r"(?:[A-Za-z0-9._~-]|%[0-9A-F]{2})+", key)


def parsed_of(text: str) -> Parsed:
    return replace(body("{}"), root={"o": text})


def test_shortened_leaves_what_fits() -> None:
    assert shortened("a" * 255, 255) == "a" * 255
    assert len(shortened("a" * 256, 10)) == 10


@pytest.mark.parametrize(
    ("template", "parts"),
    [
        ("a:{body.x}:1", ("a:", ("body", "x"), ":1")),
        ("{path.id}{seq}", (("path", "id"), ("seq",))),
        ("plain", ("plain",)),
        ("", ()),
    ],
)
def test_template_compiles(template: str, parts: tuple[str | tuple[str, ...], ...]) -> None:
    assert compile_template(template) == Template(parts)


@pytest.mark.parametrize(
    "template",
    [
        "{}",
        "{body}",
        "{body.}",
        "{body.a..b}",
        "{path}",
        "{path.a.b}",
        "{header.x}",
        "{seq.x}",
        "{seq}{seq}",
        "a b",
        "{body.x",
        "}",
        "é",
    ],
)
def test_template_with_a_mistake_is_refused(template: str) -> None:
    with pytest.raises(ValueError, match=r"expected|once"):
        compile_template(template)


def test_fill_tells_texts_before_and_after_seq() -> None:
    assert compile_template("a{seq}").has_seq
    assert not compile_template("a").has_seq
    assert fill("a{seq}", body("{}"), {}) == Filled("a", "")
    assert fill("a", body("{}"), {}) == Filled("a", None)


def test_handle_is_the_same_wherever_its_value_came_from() -> None:
    from_body = handle_of("payment:{body.payment_id}", body('{"payment_id":"p/1"}'), {})
    from_path = handle_of("payment:{path.id}", body("{}"), {"id": "p%2F1"})
    assert from_body == from_path == handle("payment", "p/1") == "payment:p%2F1"


def test_handle_of_a_missing_field_names_it_and_a_long_one_is_shortened() -> None:
    assert handle_of("order:{body.o}", body("{}"), {}) == Unfilled("o")
    assert len(handle("order", "x" * 4_000)) == 255
    assert handle("order", "x" * 4_000) == handle_of("order:{body.o}", parsed_of("x" * 4_000), {})


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("payment.create:ORDER-1:1", None),
        ("pay-4242424242424242", "card"),
        ("pay:4242%204242%204242%204242:1", "card"),
        ("pay:%2534242424242424242", "card"),
        ("pay:%252534242424242424242", "card"),
        ("pay:jane.doe@example.com:1", "email"),
        ("pay:jane%40mail.example.com", "email"),
        ("a@b", None),
        ("@example.com", None),
        ("v1@2026.10", None),
    ],
)
def test_sensitive_text_is_recognised_also_where_it_is_encoded(text: str, what: str | None) -> None:
    assert looks_sensitive(text) == what
