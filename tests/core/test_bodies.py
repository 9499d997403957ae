"""Reading bodies: strict JSON, forms, everything else (P1, P3, O-05, O-06, O-28)."""

from __future__ import annotations

import json
from urllib.parse import quote_plus, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.bodies import (
    DEPTH_MAX,
    BodyKind,
    Json,
    Mistake,
    Number,
    Parsed,
    at,
    get,
    parse,
    parse_headed,
    read_json,
    written_json,
)

JSON_TYPE = b"application/json"
FORM_TYPE = b"application/x-www-form-urlencoded"


def form(body: bytes) -> Json:
    parsed = parse(body, FORM_TYPE)
    assert isinstance(parsed, Parsed)
    assert parsed.kind is BodyKind.FORM
    return parsed.root


@pytest.mark.parametrize(
    ("body", "content_type", "kind"),
    [
        (b'{"a":1}', JSON_TYPE, BodyKind.JSON),
        (b'{"a":1}', b"Application/JSON; charset=utf-8", BodyKind.JSON),
        (b'{"a":1}', b"application/vnd.api+json", BodyKind.JSON),
        (b'{"a":1}', None, BodyKind.JSON),
        (b' \n{"a":1}', FORM_TYPE, BodyKind.JSON),
        (b'\xef\xbb\xbf{"a":1}', b"text/plain", BodyKind.JSON),
        (b'[{"a":1}]', JSON_TYPE, BodyKind.JSON),
        (b"a=1", FORM_TYPE, BodyKind.FORM),
        (b"{a=1&b=2", FORM_TYPE, BodyKind.FORM),
        (b"a=1", None, BodyKind.OPAQUE),
        (b"<a>1</a>", b"application/xml", BodyKind.OPAQUE),
        (b"{oops", b"text/x-script", BodyKind.OPAQUE),
        (b"", JSON_TYPE, BodyKind.EMPTY),
        (b" \r\n", FORM_TYPE, BodyKind.EMPTY),
        (b"", None, BodyKind.EMPTY),
    ],
)
def test_parse_tells_the_kind_by_type_and_first_character(
    body: bytes, content_type: bytes | None, kind: BodyKind
) -> None:
    parsed = parse(body, content_type)
    assert isinstance(parsed, Parsed)
    assert parsed.kind is kind


@pytest.mark.parametrize("content_type", [JSON_TYPE, None, b"application/merge-patch+json"])
@pytest.mark.parametrize(
    "body", [b"{", b"{oops}", b'{"a":1}}', b'{"a":01}', b"{'a':1}", b'{"a":1,}', b'{"a":"\n"}']
)
def test_parse_of_broken_json_is_a_mistake_with_its_place(body: bytes, content_type: bytes | None) -> None:
    mistake = parse(body, content_type)
    assert isinstance(mistake, Mistake)
    assert mistake.is_syntax
    assert mistake.what.startswith("is not valid JSON at line ")


@pytest.mark.parametrize("name", ["NaN", "Infinity", "-Infinity"])
def test_parse_of_what_is_no_number_is_a_mistake(name: str) -> None:
    mistake = parse(f'{{"amount":{name}}}'.encode(), JSON_TYPE)
    assert mistake == Mistake("body", f"is not valid JSON: {name} is no JSON number", is_syntax=True)


def test_parse_of_bytes_that_are_not_utf8_names_the_byte() -> None:
    assert parse(b'{"a":"\xe9"}', JSON_TYPE) == Mistake("body", "is not UTF-8 at byte 6", is_syntax=True)


@pytest.mark.parametrize("content_type", [JSON_TYPE, FORM_TYPE, None, b"text/plain"])
@pytest.mark.parametrize(
    ("body", "place"),
    [
        ('{"amount":1,"amount":2}', "/amount"),
        ('{"amount":1,"\\u0061mount":2}', "/amount"),
        ('{"a":{"b":[0,{"c":1,"c":1}]}}', "/a/b/1/c"),
        ('{"a/b":{"~":{},"~":1}}', "/a~1b/~0"),
        ('{"x":{},"a":{"k":1},"x":{"b":1,"b":2}}', "/x"),
        ('{"":1,"":2}', "/"),
        ('{"n":1.5,"i":[{"a":0}],"z":1,"z":2}', "/z"),
    ],
)
def test_parse_of_a_duplicate_name_names_its_place(body: str, place: str, content_type: bytes | None) -> None:
    mistake = parse(body.encode(), content_type)
    assert mistake == Mistake(place, "is a member name that occurs twice")


@pytest.mark.parametrize("end", [',"c"', ',"c":NaN}'])
def test_parse_of_a_duplicate_name_in_broken_json_tells_that_it_is_broken(end: str) -> None:
    mistake = parse(b'{"a":{"b":1,"b":2}' + end.encode(), JSON_TYPE)
    assert isinstance(mistake, Mistake)
    assert mistake.is_syntax


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_json_nests_to_the_limit_and_no_deeper(opening: bytes, closing: bytes) -> None:
    def nested(depth: int) -> bytes:
        return opening * depth + b"1" + closing * depth

    assert not isinstance(read_json(nested(DEPTH_MAX)), Mistake)
    assert isinstance(read_json(nested(DEPTH_MAX + 1)), Mistake)


def test_json_of_a_hundred_thousand_brackets_is_refused_without_recursion() -> None:
    mistake = read_json(b"[" * 100_000)
    assert isinstance(mistake, Mistake)
    assert mistake.place == "body"


@pytest.mark.parametrize(
    "text",
    [
        '"' + "[" * 100 + '"',
        '"' + r"\"[" * 100 + '"',
        "[" + "[]," * 100 + "[{}]]",
        r'["\\",[]' + ",[]" * 99 + "]",
    ],
)
def test_json_brackets_in_texts_or_side_by_side_are_not_depth(text: str) -> None:
    assert not isinstance(read_json(text.encode()), Mistake)


def test_json_of_a_text_that_never_ends_takes_linear_time() -> None:
    assert isinstance(read_json(b"[" * 65 + b'"' + b'\\"' * 200_000), Mistake)


def test_json_keeps_a_lone_surrogate_as_it_is() -> None:
    assert read_json(rb'"cut \ud83d"') == "cut \ud83d"


def test_json_numbers_keep_their_digits() -> None:
    value = read_json(b'{"amount":9007199254740993,"rate":1.10}')
    assert value == {"amount": Number("9007199254740993"), "rate": Number("1.10")}


@pytest.mark.parametrize(
    ("literal", "canonical", "text"),
    [
        ("0", "0", "0"),
        ("-0", "0", "0"),
        ("0.00e5", "0", "0"),
        ("1", "1e0", "1"),
        ("1.0", "1e0", "1"),
        ("10e-1", "1e0", "1"),
        ("10000", "1e4", "10000"),
        ("1E+4", "1e4", "10000"),
        ("-12.50", "-125e-1", "-12.5"),
        ("0.005", "5e-3", "0.005"),
        ("9007199254740993", "9007199254740993e0", "9007199254740993"),
        ("1e999999999", "1e999999999", "1e999999999"),
        ("1e-41", "1e-41", "1e-41"),
        ("1e40", "1e40", "1e40"),
        ("1e39", "1e39", "1" + "0" * 39),
        ("12345e400", "12345e400", "12345e400"),
        ("1e" + "9" * 5000, "x1e" + "9" * 5000, "x1e" + "9" * 5000),
    ],
)
def test_number_has_one_form_for_one_value(literal: str, canonical: str, text: str) -> None:
    number = Number(literal)
    assert (number.canonical, number.text) == (canonical, text)


@pytest.mark.parametrize(
    ("literal", "value"),
    [
        ("10000", 10_000),
        ("1e4", 10_000),
        ("10000.0", 10_000),
        ("-5", -5),
        ("12.5", None),
        ("9223372036854775807", 2**63 - 1),
        ("9223372036854775808", None),
        ("1e39", None),
        ("1e400", None),
    ],
)
def test_number_integer_is_exact_or_none(literal: str, value: int | None) -> None:
    assert Number(literal).integer == value


@given(st.decimals(allow_nan=False, allow_infinity=False), st.decimals(allow_nan=False, allow_infinity=False))
def test_number_canonical_forms_are_equal_exactly_for_equal_values(left: object, right: object) -> None:
    one, two = Number(str(left).lower()), Number(str(right).lower())
    assert (one.canonical == two.canonical) == (left == right)
    assert (one.text == two.text) == (left == right)


@pytest.mark.parametrize(
    ("body", "root"),
    [
        (b"a=1&b=2", {"a": "1", "b": "2"}),
        (b"a=x+y&b=x%20y%2B", {"a": "x y", "b": "x y+"}),
        (b"a[b]=1&a%5Bc%5D=2", {"a": {"b": "1", "c": "2"}}),
        (b"a[b][c]=1", {"a": {"b": {"c": "1"}}}),
        (b"a=2&a=1", {"a": ["2", "1"]}),
        (b"a[]=2&a[]=1", {"a": {"": ["2", "1"]}}),
        (b"a=1&a[b]=2", {"a": ["1", {"b": "2"}]}),
        (b"a&b=&&", {"a": "", "b": ""}),
        (b"=1", {"": "1"}),
        (b"a[b=1&c]=2&[d]=3&e[f]g=4", {"a[b": "1", "c]": "2", "[d]": "3", "e[f]g": "4"}),
        (b"a=%zz%", {"a": "%zz%"}),
        (b"a=%ff&b=\xff", {"a": "\udcff", "b": "\udcff"}),
        (b"a=1=2", {"a": "1=2"}),
    ],
)
def test_form_is_read_as_an_object_of_texts(body: bytes, root: Json) -> None:
    assert form(body) == root


def test_form_name_nested_too_deep_is_taken_as_it_is_written() -> None:
    name = "a" + "[b]" * DEPTH_MAX
    assert form(f"{name}=1".encode()) == {name: "1"}
    assert isinstance(at(form(f"a{'[b]' * (DEPTH_MAX - 1)}=1".encode()), ("a", "b")), dict)


@given(st.dictionaries(st.text(st.characters(exclude_characters="[]", codec="utf-8")), st.text(), min_size=1))
def test_form_gives_back_what_was_encoded(fields: dict[str, str]) -> None:
    assert form(urlencode(fields).encode() + b"&") == fields
    assert (
        form("&".join(f"{quote_plus(n)}={quote_plus(v)}" for n, v in fields.items()).encode() + b"&")
        == fields
    )


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(JSON_VALUES, st.sampled_from([None, 2]), st.booleans())
def test_json_of_any_value_is_read_whatever_its_spelling(
    value: object, indent: int | None, ascii_only: bool
) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    read = read_json(text.encode("utf-8", "surrogatepass"))
    assert not isinstance(read, Mistake)


@given(st.binary(max_size=200), st.sampled_from([JSON_TYPE, FORM_TYPE, None, b"text/xml"]))
def test_parse_of_any_bytes_ends_in_a_value(body: bytes, content_type: bytes | None) -> None:
    assert isinstance(parse(body, content_type), Parsed | Mistake)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("a", "b"), Number("1")),
        (("a",), {"b": Number("1")}),
        (("a", "c"), None),
        (("x", "y"), None),
        (("x", "0"), Number("1")),
        (("x", "1"), None),
        (("x", "-1"), None),
        (("x", "00"), None),
        ((), None),
    ],
)
def test_get_follows_a_path_and_takes_missing_for_null(path: tuple[str, ...], value: Json) -> None:
    parsed = parse(b'{"a":{"b":1},"x":[1]}', JSON_TYPE)
    assert isinstance(parsed, Parsed)
    assert get(parsed, path) == (value if path else parsed.root)
    assert at(parsed.root, path) == get(parsed, path)


@pytest.mark.parametrize(
    ("content_types", "kind"),
    [
        ([], BodyKind.OPAQUE),
        ([FORM_TYPE], BodyKind.FORM),
        ([FORM_TYPE, FORM_TYPE], BodyKind.FORM),
        ([FORM_TYPE, JSON_TYPE], BodyKind.OPAQUE),
    ],
)
def test_parse_headed_trusts_one_content_type_only(content_types: list[bytes], kind: BodyKind) -> None:
    parsed = parse_headed(b"a=1", tuple((b"Content-Type", value) for value in content_types))
    assert isinstance(parsed, Parsed)
    assert parsed.kind is kind


def test_written_json_keeps_literals_names_and_order() -> None:
    body = b'{ "b": [1.10, null, true, "\\u8ba2\\""], "a": {"n": 9007199254740993} }'
    value = read_json(body)
    assert not isinstance(value, Mistake)
    assert written_json(value) == '{"b":[1.10,null,true,"\\u8ba2\\""],"a":{"n":9007199254740993}}'


@given(JSON_VALUES)
def test_written_json_is_read_back_as_the_same_value(value: object) -> None:
    read = read_json(json.dumps(value).encode())
    assert not isinstance(read, Mistake)
    assert read_json(written_json(read).encode()) == read
