"""YAML as plain values: every mistake with its line, nothing guessed, nothing executed.

YAML 1.1's surprises are left out: only `true` and `false` are booleans (`on` is a word, and a key of ours),
there are no dates, no octal or base-60 numbers (`8080:80` is text). Duplicate keys, foreign tags, several
documents and structures that hold themselves are mistakes, with their place.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import yaml

from proxy.config.problems import ConfigError, ConfigProblem

Value: TypeAlias = "bool | int | float | str | list[Value] | dict[str, Value] | None"

FILE_BYTES_MAX = 1 << 20  # thousands of times a real one; a device or a log given by mistake is refused
DEPTH_MAX = 40
NODES_MAX = 50_000  # aliases repeat their anchor each time: a few lines can otherwise stand for billions

_VARIABLE = re.compile(r"\$\$\{|\$\{([^}]*)\}|\$\{")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HALF = re.compile("[\\ud800-\\udfff]")
_HALF_FOUND = "expected whole characters, found half of one (an escape from \\ud800 to \\udfff)"


class Substituted(str):
    """A value that came from the environment. `written` is what the file says: it is never shown (F2)."""

    written: str
    __slots__ = ("written",)


class _Loader(yaml.SafeLoader):
    """YAML 1.2's core words instead of YAML 1.1's."""


_Loader.yaml_implicit_resolvers = {}


for _tag, _pattern, _starts in (
    ("bool", r"true|false|True|False|TRUE|FALSE", "tfTF"),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("int", r"[-+]?[0-9]+", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan", "-+.0123456789"),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), list(_starts))


def read_text(path: Path) -> str:
    """A file's text. Raises: ConfigError, in one line, whatever stands in the way."""
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except IsADirectoryError:
        raise _unreadable(path, "expected a file, found a directory") from None
    except FileNotFoundError:
        raise _unreadable(path, "no such file") from None
    except PermissionError:
        raise _unreadable(path, "this user may not read it") from None
    except (OSError, ValueError) as problem:
        raise _unreadable(path, f"can't be read: {problem}") from None
    if len(content) > FILE_BYTES_MAX:
        raise _unreadable(path, "expected a configuration of at most 1MiB, found a larger file")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise _unreadable(path, f"expected UTF-8 text, found other bytes at offset {problem.start}") from None


def _unreadable(path: Path, text: str) -> ConfigError:
    return ConfigError([ConfigProblem(str(path), "", text)])


def parse(text: str, *, file: str) -> dict[str, Value]:
    """The document's top-level mapping. An empty document is an empty one.

    Raises: ConfigError, with line and column; duplicate keys are all listed.
    """
    try:
        node = yaml.compose(text, Loader=_Loader)
        reader = _Reader(file)
        value = reader.value(node, depth=0) if node is not None else {}
    except yaml.MarkedYAMLError as problem:
        raise ConfigError([_syntax(file, problem)]) from None
    except yaml.reader.ReaderError as problem:
        line = text.count("\n", 0, problem.position) + 1
        detail = f"the character #x{problem.character:04x} is not allowed in YAML"
        raise ConfigError([ConfigProblem(file, f"line {line}", detail)]) from None
    except RecursionError:
        raise ConfigError([ConfigProblem(file, "", f"nested deeper than {DEPTH_MAX} levels")]) from None
    if reader.problems:
        raise ConfigError(reader.problems)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(
            [ConfigProblem(file, "", f"expected a mapping of settings, found {kind_of(value)}")]
        )
    return value


def _syntax(file: str, problem: yaml.MarkedYAMLError) -> ConfigProblem:
    mark = problem.problem_mark or problem.context_mark
    place = f"line {mark.line + 1}, column {mark.column + 1}" if mark else ""
    detail = " ".join(part for part in (problem.context, problem.problem) if part)
    return ConfigProblem(file, place, f"not valid YAML: {detail}")


class _Reader:
    """Turns YAML nodes into plain values and gathers what is wrong with them."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.problems: list[ConfigProblem] = []
        self._open: set[int] = set()
        self._nodes = 0

    def value(self, node: yaml.Node, *, depth: int) -> Value:
        self._nodes += 1
        if self._nodes > NODES_MAX:
            raise yaml.MarkedYAMLError(problem="too many values", problem_mark=node.start_mark)
        if depth > DEPTH_MAX:
            raise RecursionError
        if id(node) in self._open:
            return self._mistake(node, "this value holds itself")
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode) and node.tag == "tag:yaml.org,2002:map":
                return self._mapping(node, depth=depth)
            if isinstance(node, yaml.SequenceNode) and node.tag == "tag:yaml.org,2002:seq":
                return [self.value(item, depth=depth + 1) for item in node.value]
            if isinstance(node, yaml.ScalarNode):
                return self._scalar(node)
            return self._mistake(node, f"the tag {node.tag} is not supported")
        finally:
            self._open.discard(id(node))

    def _mapping(self, node: yaml.MappingNode, *, depth: int) -> Value:
        found: dict[str, Value] = {}
        for key, item in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self._mistake(key, "expected a name before the colon, found a structure")
            elif _HALF.search(key.value):
                self._mistake(key, _HALF_FOUND)
            elif key.value in found:
                self._mistake(key, f'the key "{key.value}" is given twice')
            else:
                found[key.value] = self.value(item, depth=depth + 1)
        return found

    def _scalar(self, node: yaml.ScalarNode) -> Value:
        text: str = node.value
        if _HALF.search(text):
            return self._mistake(node, _HALF_FOUND)
        match node.tag.removeprefix("tag:yaml.org,2002:"):
            case "str":
                return text
            case "null":
                return None
            case "bool" if text.lower() in ("true", "false"):
                return text.lower() == "true"
            case "int" if len(text) <= 30 and re.fullmatch(r"[-+]?[0-9]+", text):
                return int(text)
            case "float" if len(text) <= 30:
                return self._float(node)
            case _:
                return self._mistake(node, f"can't be read as {node.tag}")

    def _float(self, node: yaml.ScalarNode) -> Value:
        try:
            number = float(node.value.replace(".inf", "inf").replace(".nan", "nan"))
        except ValueError:
            number = math.nan
        return number if math.isfinite(number) else self._mistake(node, "expected a finite number")

    def _mistake(self, node: yaml.Node, text: str) -> Value:
        place = f"line {node.start_mark.line + 1}, column {node.start_mark.column + 1}"
        self.problems.append(ConfigProblem(self.file, place, text))
        return None


def kind_of(value: object) -> str:
    """What a value is, without showing it."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "text"
        case list() | tuple():
            return "a list"
        case _:
            return "a mapping"


def substituted(
    value: Value, environ: Mapping[str, str], problems: list[ConfigProblem], *, file: str, path: str = ""
) -> Value:
    """`value` with each `${NAME}` read from the environment; `$${` stands for `${` itself (F2).

    Values only, never keys, and after parsing: what a variable holds is text, whatever it looks like.
    """
    if isinstance(value, dict):
        return {
            key: substituted(item, environ, problems, file=file, path=f"{path}.{key}" if path else key)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [
            substituted(item, environ, problems, file=file, path=f"{path}[{index}]")
            for index, item in enumerate(value)
        ]
    if not isinstance(value, str) or "${" not in value:
        return value

    def from_environment(match: re.Match[str]) -> str:
        name = match[1]
        if match[0] == "$${":
            return "${"
        if name is None:
            problems.append(ConfigProblem(file, path, "expected ${NAME}, found ${ without its }"))
        elif not _NAME.fullmatch(name):
            text = f"expected ${{NAME}}, a variable of letters, digits and _, found {match[0]!r}"
            problems.append(ConfigProblem(file, path, text))
        elif name not in environ:
            text = f"expected the environment variable {name} to be set, found it unset"
            problems.append(ConfigProblem(file, path, text))
        return environ.get(name or "", "")

    result = Substituted(_VARIABLE.sub(from_environment, value))
    result.written = value
    return result
