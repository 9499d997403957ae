"""Imports point one way: core <- ports <- driver and adapters <- app <- cli (architecture section 1)."""

from __future__ import annotations

import re
import sys
import tomllib
from typing import Final

import pytest

from tests.tidy.tree import ROOT, Source, package

PURE: Final = frozenset(
    {
        "__future__",
        "abc",
        "base64",
        "bisect",
        "calendar",
        "collections",
        "dataclasses",
        "datetime",
        "decimal",
        "enum",
        "functools",
        "hashlib",
        "heapq",
        "hmac",
        "itertools",
        "json",
        "math",
        "operator",
        "re",
        "string",
        "struct",
        "typing",
        "urllib",
        "zlib",
    }
)
"""What core may import of the standard library: nothing that waits, reads a clock, draws a number, opens a
file."""

MAY_IMPORT: Final[dict[str, frozenset[str]]] = {
    "core": frozenset(),
    "ports": frozenset({"core"}),
    "presets": frozenset(),
    "clock": frozenset({"core", "ports"}),
    "config": frozenset({"core", "ports", "presets"}),
    "decoders": frozenset({"core"}),
    "loops": frozenset(),
    "signals": frozenset(),
    "run": frozenset({"core"}),
    "owed": frozenset({"core", "ports"}),
    "driver": frozenset({"core", "ports", "decoders", "owed", "run"}),
    "calls": frozenset({"core", "ports", "driver", "run"}),
    "shadowing": frozenset({"core", "ports", "calls", "decoders"}),
    "resolver": frozenset({"core", "ports"}),
    "webhooks": frozenset({"core", "ports"}),
    "wire": frozenset({"core", "ports"}),
    "stores": frozenset({"core", "ports"}),
    "observe": frozenset({"core", "ports", "config", "run"}),
    "admin": frozenset({"core", "ports", "config", "run", "webhooks"}),
    "sandbox": frozenset(),
}
"""By area of the package, the other areas that it may import. Areas that are not here join concrete classes
and may import any; nothing but them and `cli` may import them."""

JOIN: Final = frozenset({"app", "generation", "workers", "demo", "drill", "cli", "__main__"})
"""Where concrete classes meet, and what starts them."""

ADAPTERS: Final = frozenset({"wire", "stores", "observe", "admin"})


def _area(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def _edges(source: Source) -> frozenset[str]:
    own = _area(source.module)
    areas = {_area(name) for name in source.imports() if name == "proxy" or name.startswith("proxy.")}
    return frozenset(areas - {own, ""})


def test_every_area_of_the_package_has_a_row_in_the_table() -> None:
    areas = {_area(source.module) for source in package()} - {""}

    assert areas - MAY_IMPORT.keys() - JOIN == set(), "name here what the new area may import"


@pytest.mark.parametrize("area", MAY_IMPORT)
def test_area_imports_only_what_its_row_allows(area: str) -> None:
    wrong = [
        f"{source.name}: imports proxy.{edge}"
        for source in package()
        if _area(source.module) == area
        for edge in sorted(_edges(source) - MAY_IMPORT[area])
    ]

    assert wrong == []


def test_adapters_never_import_each_other() -> None:
    rows = {area: MAY_IMPORT[area] & (ADAPTERS - {area}) for area in ADAPTERS}

    assert rows == dict.fromkeys(ADAPTERS, frozenset())


def test_core_imports_nothing_that_waits_or_chooses() -> None:
    wrong = [
        f"{source.name}: {name}"
        for source in package()
        if _area(source.module) == "core"
        for name in sorted(source.imports())
        if not name.startswith("proxy") and name.split(".")[0] not in PURE | VALUES
    ]

    assert wrong == []


VALUES: Final = frozenset({"msgspec"})
"""The one library of the core: a library of values, which waits for nothing (decision 0009)."""


def test_core_uses_urllib_only_to_split_and_unquote() -> None:
    wrong = [
        source.name
        for source in package()
        if _area(source.module) == "core"
        for name in source.imports()
        if name.startswith("urllib") and name != "urllib.parse"
    ]

    assert wrong == []


NAMES: Final = {
    "PyYAML": "yaml",
    "hiredis": "redis",
    "prometheus-client": "prometheus_client",
    "pydantic-core": "pydantic_core",
    "opentelemetry-sdk": "opentelemetry",
    "opentelemetry-exporter-otlp-proto-http": "opentelemetry",
}
"""Packages whose module has another name."""


def test_dependencies_are_what_the_product_imports() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = (*project["dependencies"], *project["optional-dependencies"]["otel"])
    named = {re.split(r"[\[<>=;! ]", line, maxsplit=1)[0] for line in lines}
    modules = {NAMES.get(name, name) for name in named}
    imported = {name.split(".")[0] for source in package() for name in source.imports()}
    foreign = imported - set(sys.stdlib_module_names) - {"proxy", "pydantic_core"}

    assert foreign - modules == set(), "imported, and not in pyproject.toml"
    assert modules - foreign == set(), "in pyproject.toml, and never imported"


def test_product_imports_no_test() -> None:
    wrong = [s.name for s in package() for name in s.imports() if name.split(".")[0] == "tests"]

    assert wrong == []


def test_sandbox_is_a_platform_of_its_own() -> None:
    """It must judge the product, so it shares none of the product's code."""
    wrong = [s.name for s in package() if _area(s.module) == "sandbox" and _edges(s)]

    assert wrong == []
