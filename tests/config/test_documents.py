"""The pages and the files say what the code does: every key, its default, its meaning."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from proxy import presets
from proxy.config import load_settings, warnings
from proxy.config.compile import LEASE_MS_MIN
from proxy.config.load import preset_of
from proxy.config.model import Config
from proxy.config.preset import Preset
from proxy.config.text import Value, parse
from proxy.core.model import Outcome
from proxy.core.rules import KeyMode

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| `([^`]+)` \| (.+?) \| (.+) \|$", re.MULTILINE)


def inner_model(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    parts = typing.get_args(annotation)
    return next((found for part in parts if (found := inner_model(part)) is not None), None)


def written(default: object) -> str:
    """A default as the file would have it."""
    if default is PydanticUndefined:
        return "required"
    if default is None or isinstance(default, bool):
        return f"`{'null' if default is None else str(default).lower()}`"
    if isinstance(default, list):
        return f"`[{', '.join(map(str, default))}]`"
    return f"`{default}`"


def keys_of(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """(path, default, description) of every key that holds a value."""
    for name, field in model.model_fields.items():
        path = f"{prefix}{name}"
        inner = inner_model(field.annotation)
        is_map = typing.get_origin(field.annotation) is dict
        shorthand = isinstance(field.default, str)
        if path == "routes.NAME.retry":
            yield path, "`{}`", field.description or ""
            continue
        if inner is None or shorthand:
            yield path, written(field.default), field.description or ""
        if inner is not None and path != "environment" and not (shorthand and path == "merchant"):
            yield from keys_of(inner, f"{path}.NAME." if is_map else f"{path}.")


def rows() -> list[tuple[str, str, str]]:
    return [row for row in keys_of(Config) if not row[0].startswith("listen.")]


def test_configuration_page_lists_every_key_with_default_and_meaning() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    found = ROW.findall(text)
    wanted = "\n".join(f"| `{path}` | {default} | {description} |" for path, default, description in rows())
    assert sorted(found) == sorted(rows()), f"docs/configuration.md should hold:\n{wanted}"


def test_shortest_lease_is_said_where_the_lease_is() -> None:
    """In the JSON Schema; the page repeats it."""
    said = Config.model_json_schema()["$defs"]["Store"]["properties"]["lease"]["description"]
    assert f"At least {LEASE_MS_MIN}ms" in said


def test_configuration_page_shows_the_presets_numbers() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    for name in presets.names():
        raw = parse(presets.text(name), file=name)["retry"]
        assert isinstance(raw, dict)
        for key in ("attempts", "attempt_timeout", "base", "multiplier", "cap", "deadline"):
            given = raw[key]
            assert isinstance(given, dict)
            line = next(line for line in text.splitlines() if line.startswith(f"| {name} |"))
            assert f" {given['value']} |" in line, (name, key)


def examples(page: str) -> list[str]:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)


@pytest.mark.parametrize("text", examples("configuration.md"))
def test_example_of_the_configuration_page_is_valid(text: str, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text, encoding="utf-8")
    environ = {"PAYHUB_API_KEY": "k", "SAFEPOST_ADMIN_TOKEN": "t", "SHOP_1_KEY": "k", "SHOP_2_KEY": "k"}
    assert load_settings(file, environ).platform.name


def test_example_of_the_presets_page_is_a_valid_preset() -> None:
    (example,) = [text for text in examples("presets.md") if text.startswith("name:")]
    preset = preset_of(example, file="example.yaml")
    assert preset.routes


def test_presets_page_names_every_field_and_outcome() -> None:
    text = (ROOT / "docs" / "presets.md").read_text(encoding="utf-8")
    names = set(Preset.model_fields) | {str(outcome) for outcome in Outcome} - {"not_sent"}
    for model in ("routes", "objects", "lookups", "outcomes", "retry", "reads", "events", "key", "error"):
        inner = inner_model(Preset.model_fields[model].annotation)
        assert inner is not None
        names |= set(inner.model_fields)
    assert {name for name in names if f"`{name}`" not in text} == set()


def test_root_configuration_runs_as_it_is_and_warns_of_nothing() -> None:
    settings = load_settings(ROOT / "config.yaml", {})
    assert warnings(settings) == []
    assert str(settings.upstream.url) == "http://127.0.0.1:9000"
    injected = {r.name for r in settings.platform.routes if r.key.mode is KeyMode.INJECT}
    assert injected == {"create_payment", "create_refund"}


def leaves(value: Value) -> Iterator[str]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield name
            yield from leaves(item)


def test_root_configuration_mentions_every_key() -> None:
    """It is the manual that people read first."""
    text = (ROOT / "config.yaml").read_text(encoding="utf-8")
    names = {part for path, _, _ in rows() for part in path.split(".")} - {"NAME", "method", "path"}
    missing = {name for name in names if not re.search(rf"\b{name}\b", text)}
    assert missing <= {"fingerprint", "subject", "replay", "twin"}
