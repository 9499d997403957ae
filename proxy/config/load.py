"""From files to settings: read, substitute, validate, compile; every mistake of one run in one error (C2)."""

from __future__ import annotations

import os
import re
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from proxy import presets
from proxy.config.compile import compile_settings, digest
from proxy.config.model import Config
from proxy.config.preset import Preset
from proxy.config.problems import ConfigError, ConfigProblem, Problems, suggestion
from proxy.config.settings import Settings
from proxy.config.text import Substituted, Value, kind_of, parse, read_text, substituted
from proxy.config.whole import check_whole

Model = TypeVar("Model", bound=BaseModel)
Location = tuple[int | str, ...]

_SECRET_WORDS = re.compile(r"secret|token|authorization|password|credential|store\.url", re.IGNORECASE)
_SHOWN_CHARACTERS_MAX = 60
_STAND_INS: dict[Location, Value] = {
    ("upstream",): {"url": "http://127.0.0.1:1"},
    ("upstream", "url"): "http://127.0.0.1:1",
    ("platform",): "payhub",
}
"""What stands in for a missing required key, so that the rest of the file is still checked."""


def load_settings(path: Path, environ: Mapping[str, str] | None = None) -> Settings:
    """The settings of a configuration file.

    Args: environ: where `${NAME}` is read from; None: the process's environment.
    Raises: ConfigError, listing every mistake.
    """
    return settings_of(read_text(path), file=str(path), environ=environ)


def settings_of(text: str, *, file: str, environ: Mapping[str, str] | None = None) -> Settings:
    """The settings of a configuration's text; `file` names it in errors, and preset paths start beside it.

    Raises: ConfigError, listing every mistake.
    """
    problems = Problems(file)
    written = parse(text, file=file)
    value = substituted(written, os.environ if environ is None else environ, problems.found, file=file)
    config = _partly_valid(Config, value, problems)
    if config is None:
        raise ConfigError(problems.found)
    try:
        preset, preset_text = load_preset(config.platform, beside=Path(file).parent)
    except ConfigError as error:
        found = [_in_config(problem, file) for problem in error.problems]
        raise ConfigError([*problems.found, *found]) from None
    version = digest(text, preset_text)
    settings, found_late = compile_settings(config, preset, file=file, version=version)
    told = {problem.path for problem in problems.found}
    problems.found += [problem for problem in found_late if problem.path not in told]
    if problems.found:
        raise ConfigError(problems.found)
    return settings


def _in_config(problem: ConfigProblem, file: str) -> ConfigProblem:
    """A preset that is not there is the configuration's mistake; one that is wrong is its own file's."""
    return ConfigProblem(file, problem.path, problem.text) if not problem.file else problem


def load_preset(name: str, *, beside: Path) -> tuple[Preset, str]:
    """A preset and its text: by name, or by a file's path (`./my.yaml`), relative to the configuration's.

    Raises: ConfigError, listing every mistake.
    """
    if "/" not in name and not name.endswith((".yaml", ".yml")):
        if name not in presets.names():
            text = f'expected a preset\'s name or a path to a preset file, found "{name}"'
            raise ConfigError([ConfigProblem("", "platform", text + suggestion(name, presets.names()))])
        return _known_preset(name)
    path = beside / name
    try:
        text = read_text(path)
    except ConfigError as error:
        raise ConfigError([ConfigProblem("", "platform", str(error))]) from None
    return preset_of(text, file=str(path)), text


@lru_cache(maxsize=16)
def _known_preset(name: str) -> tuple[Preset, str]:
    text = presets.text(name)
    return preset_of(text, file=f"{name}.yaml"), text


def preset_of(text: str, *, file: str) -> Preset:
    """A preset from its text. Raises: ConfigError, listing every mistake."""
    problems = Problems(file)
    preset = _validated(Preset, parse(text, file=file), problems)
    if preset is not None:
        check_whole(preset, problems)
    if preset is None or problems.found:
        raise ConfigError(problems.found)
    return preset


def _partly_valid(model: type[Model], value: Value, problems: Problems) -> Model | None:
    """The model, its wrong parts left out, so that what remains is still checked; None if that fails too."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        mistakes = _mistakes(model, value, error)
    told = {problem.path for problem in problems.found}
    for mistake in mistakes:
        if mistake.path not in told:
            problems.add(mistake.path, mistake.text)
    for mistake in mistakes:
        value = _without(value, mistake.location)
    try:
        return model.model_validate(value)
    except ValidationError:
        return None


def _validated(model: type[Model], value: Value, problems: Problems) -> Model | None:
    try:
        return model.model_validate(value)
    except ValidationError as error:
        for mistake in _mistakes(model, value, error):
            problems.add(mistake.path, mistake.text)
    return None


@dataclass(frozen=True, slots=True)
class _Mistake:
    """One thing that the model did not accept. `location` is cut to what the file holds."""

    location: Location
    path: str
    text: str


def _mistakes(model: type[BaseModel], value: Value, error: ValidationError) -> list[_Mistake]:
    found: dict[str, _Mistake] = {}
    for detail in error.errors(include_url=False):
        context = detail.get("ctx", {})
        location = _written(value, detail["loc"], is_missing=detail["type"] == "missing")
        path = path_of(location)
        inner = context.get("at")
        seen = _at(value, location if inner is None else (*location, inner))
        text = _explained(model, detail["type"], context, detail["loc"], seen, path)
        text += "" if inner is None else f" as {inner}"
        found.setdefault(path, _Mistake(location, path, text))
    return list(found.values())


def _explained(
    model: type[BaseModel], kind: str, context: Mapping[str, Any], location: Location, found: Value, path: str
) -> str:
    if kind == "extra_forbidden":
        known = _fields_at(model, location[:-1])
        return f'unknown key "{location[-1]}"' + suggestion(str(location[-1]), known)
    if kind == "missing":
        description = _description(model, location)
        return f"expected to be given, found nothing{f' ({description})' if description else ''}"
    expected = context.get("expected") if kind == "expected" else _EXPECTED_SHAPES.get(kind)
    shown = _shown(found, path)
    text = f"expected {expected or 'another value'}, found {shown}"
    words = str(expected).split(" or ")
    if isinstance(found, str) and len(words) > 1 and all(word.isidentifier() for word in words):
        close = suggestion(found, words)
        text += close if "did you mean" in close else ""
    return text


_EXPECTED_SHAPES = {
    "model_type": "a mapping of settings",
    "model_attributes_type": "a mapping of settings",
    "dict_type": "a mapping",
    "list_type": "a list",
    "tuple_type": "a list",
}


def _shown(value: Value, path: str) -> str:
    """What was found, so that it can be recognised, and no secret in it (F2)."""
    if isinstance(value, Substituted):
        return f"the value of {value.written}"
    if value is None or isinstance(value, list | dict):
        return kind_of(value)
    if _SECRET_WORDS.search(path):
        return f"{kind_of(value)} that is not shown"
    if isinstance(value, bool):
        return str(value).lower()
    text = str(value) if not isinstance(value, str) else repr(value)
    text = re.sub(r"//[^/@]*@", "//***@", text)
    return text if len(text) <= _SHOWN_CHARACTERS_MAX else f"{text[:_SHOWN_CHARACTERS_MAX]}…"


def path_of(location: Sequence[int | str]) -> str:
    """`routes.create_payment.retry.attempts`, `listen[0].address`."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else (f".{part}" if text else str(part))
    return text


def _written(value: Value, location: Location, *, is_missing: bool) -> Location:
    """The location as far as the file holds it: a shorthand's inner fields are not written there."""
    kept: list[int | str] = []
    current = value
    for part in location:
        if isinstance(current, dict) and part in current:
            current = current[str(part)]
        elif isinstance(current, list) and isinstance(part, int) and part < len(current):
            current = current[part]
        elif isinstance(current, dict) and isinstance(part, int):
            continue
        elif isinstance(current, dict) and is_missing:
            return (*kept, part)
        else:
            break
        kept.append(part)
    return tuple(kept)


def _at(value: Value, location: Location) -> Value:
    for part in location:
        if isinstance(value, dict):
            value = value.get(str(part))
        elif isinstance(value, list) and isinstance(part, int) and part < len(value):
            value = value[part]
    return value


def _without(value: Value, location: Location) -> Value:
    """`value` less what stands at the location, or with a stand-in where it has to be given."""
    if not location:
        return {}
    head, *rest = location
    if isinstance(value, dict):
        copy = dict(value)
        stand_in = _STAND_INS.get(location)
        if rest:
            copy[str(head)] = _without_below(copy.get(str(head)), tuple(rest), whole=location)
        elif stand_in is not None:
            copy[str(head)] = stand_in
        else:
            copy.pop(str(head), None)
        return copy
    return None


def _without_below(value: Value, location: Location, *, whole: Location) -> Value:
    if isinstance(value, list):
        return [item for index, item in enumerate(value) if index != location[0]]
    if whole in _STAND_INS and isinstance(value, dict):
        return {**value, str(location[-1]): _STAND_INS[whole]}
    return _without(value, location)


def _fields_at(model: type[BaseModel], location: Location) -> list[str]:
    """The names that are known at a place of the file."""
    annotation = _walked(model, location)[0]
    found = _model_in(annotation)
    return list(found.model_fields) if found is not None and typing.get_origin(annotation) is not dict else []


def _description(model: type[BaseModel], location: Location) -> str:
    return _walked(model, location)[1].rstrip(".")


def _walked(model: type[BaseModel], location: Location) -> tuple[Any, str]:
    """The annotation and the description of what stands at a place of the file."""
    annotation: Any = model
    description = ""
    for part in location:
        origin = typing.get_origin(annotation)
        if origin is dict or isinstance(part, int):
            annotation = (typing.get_args(annotation) or (None,))[-1 if origin is dict else 0]
            continue
        found = _model_in(annotation)
        field = found.model_fields.get(part) if found is not None else None
        if field is None:
            return None, ""
        annotation, description = field.annotation, field.description or ""
    return annotation, description


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model of `Model` or `Model | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    parts = typing.get_args(annotation) if not isinstance(annotation, type) else ()
    return next((found for part in parts if (found := _model_in(part)) is not None), None)
