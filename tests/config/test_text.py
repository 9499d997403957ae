"""YAML as plain values: each mistake with its place, nothing guessed (C2, F1, F2)."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.config.problems import ConfigError, ConfigProblem
from proxy.config.text import Substituted, Value, parse, read_text, substituted


def problems_of(text: str) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        parse(text, file="c.yaml")
    return [str(problem) for problem in raised.value.problems]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: on", "on"),
        ("a: yes", "yes"),
        ("a: true", True),
        ("a: FALSE", False),
        ("a: ~", None),
        ("a:", None),
        ("a: 8080:80", "8080:80"),
        ("a: 0777", 777),
        ("a: 0x1f", "0x1f"),
        ("a: 2026-11-29", "2026-11-29"),
        ("a: 1.5", 1.5),
        ("a: '1'", "1"),
        ("a: 20s", "20s"),
        ("a: 1_000", "1_000"),
        ("a: <<", "<<"),
    ],
)
def test_scalar_is_what_it_looks_like(text: str, value: Value) -> None:
    assert parse(text, file="c.yaml") == {"a": value}


def test_key_named_on_is_a_word() -> None:
    assert parse("guard: {on: false}", file="c.yaml") == {"guard": {"on": False}}


def test_empty_document_is_an_empty_mapping() -> None:
    assert parse("", file="c.yaml") == {}
    assert parse("# nothing\n", file="c.yaml") == {}


def test_anchor_is_repeated_where_it_is_named() -> None:
    assert parse("a: &x {k: 1}\nb: *x", file="c.yaml") == {"a": {"k": 1}, "b": {"k": 1}}


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("a: [1", "line 1, column 6", "not valid YAML"),
        ("a: 1\n b: 2", "line 2, column 3", "not valid YAML"),
        ("a: 1\na: 2", "line 2, column 1", 'the key "a" is given twice'),
        ("a: {b: 1, b: 2}", "line 1, column 11", 'the key "b" is given twice'),
        ("a: !!python/object:os.system x", "line 1, column 4", "can't be read as"),
        ("a: !mine {}", "line 1, column 4", "the tag !mine is not supported"),
        ("a: &x [*x]", "line 1, column 4", "holds itself"),
        ("? [1, 2]\n: 3", "line 1, column 3", "expected a name"),
        ("a: 1\n---\nb: 2", "line 2, column 1", "not valid YAML"),
        ("a: .inf", "line 1, column 4", "finite"),
        ("a: !!int x", "line 1, column 4", "can't be read as"),
        ("a: !!bool maybe", "line 1, column 4", "can't be read as"),
        ("a: !!float x", "line 1, column 4", "finite"),
        ("a: " + "9" * 40, "line 1, column 4", "can't be read as"),
        ("\na: \x07", "line 2", "not allowed in YAML"),
        ('a: "x\\ud800"', "line 1, column 4", "half of one"),
        ('"\\udfff": 1', "line 1, column 1", "half of one"),
    ],
)
def test_mistake_is_told_with_its_place(text: str, place: str, words: str) -> None:
    first, *_ = problems_of(text)
    assert first.startswith(f"c.yaml: {place}: ")
    assert words in first


def test_duplicate_keys_are_all_listed() -> None:
    assert len(problems_of("a: 1\na: 2\nb: {c: 1, c: 2}")) == 2


@pytest.mark.parametrize("text", ["- a", "7", "plain words"])
def test_document_that_is_no_mapping_is_refused(text: str) -> None:
    assert problems_of(text)[0].startswith("c.yaml: expected a mapping of settings, found ")


def test_deep_nesting_is_refused() -> None:
    assert problems_of("a: " + "[" * 3000 + "]" * 3000) == ["c.yaml: nested deeper than 40 levels"]
    assert problems_of("a: " + "[" * 60 + "]" * 60) == ["c.yaml: nested deeper than 40 levels"]


def test_aliases_that_multiply_are_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    assert "too many values" in problems_of("\n".join(lines))[0]


def test_unreadable_files_are_one_line_each(tmp_path: Path) -> None:
    (tmp_path / "bytes.yaml").write_bytes(b"a: \xff")
    (tmp_path / "large.yaml").write_bytes(b"#" * ((1 << 20) + 1))
    for name, words in [
        ("nothing.yaml", "no such file"),
        (".", "found a directory"),
        ("bytes.yaml", "expected UTF-8 text, found other bytes at offset 3"),
        ("large.yaml", "at most 1MiB"),
        ("nul\0.yaml", "can't be read"),
    ]:
        with pytest.raises(ConfigError) as raised:
            read_text(tmp_path / name)
        assert len(raised.value.problems) == 1
        assert words in str(raised.value)


def test_variables_are_read_in_values_at_any_depth() -> None:
    problems: list[ConfigProblem] = []
    value: Value = {"a": ["x-${ONE}-${TWO}"], "b": "$${ONE}", "${ONE}": 1, "c": "$ONE"}
    found = substituted(value, {"ONE": "1", "TWO": "2"}, problems, file="c.yaml")
    assert found == {"a": ["x-1-2"], "b": "${ONE}", "${ONE}": 1, "c": "$ONE"}
    assert problems == []


def test_variable_holding_yaml_stays_text() -> None:
    found = substituted({"a": "${ONE}"}, {"ONE": "{b: [1]}"}, [], file="c.yaml")
    assert found == {"a": "{b: [1]}"}


def test_unset_and_misnamed_variables_are_named() -> None:
    problems: list[ConfigProblem] = []
    substituted({"a": {"b": ["${NOPE}", "${1X}", "${}", "x${NOPE"]}}, {}, problems, file="c.yaml")
    assert [str(problem) for problem in problems] == [
        "c.yaml: a.b[0]: expected the environment variable NOPE to be set, found it unset",
        "c.yaml: a.b[1]: expected ${NAME}, a variable of letters, digits and _, found '${1X}'",
        "c.yaml: a.b[2]: expected ${NAME}, a variable of letters, digits and _, found '${}'",
        "c.yaml: a.b[3]: expected ${NAME}, found ${ without its }",
    ]


def test_substituted_value_remembers_what_was_written() -> None:
    found = substituted("${ONE}", {"ONE": "secret"}, [], file="c.yaml")
    assert isinstance(found, Substituted)
    assert found.written == "${ONE}"
