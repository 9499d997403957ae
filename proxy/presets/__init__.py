"""The platforms that come with the product, one YAML file each; docs/presets.md tells how to add one."""

from __future__ import annotations

from importlib import resources


def names() -> tuple[str, ...]:
    """The presets by name, sorted."""
    files = resources.files(__name__).iterdir()
    return tuple(sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml")))


def text(name: str) -> str:
    """A preset's YAML as it was written. Raises: FileNotFoundError."""
    if name not in names():
        raise FileNotFoundError(name)
    return (resources.files(__name__) / f"{name}.yaml").read_text(encoding="utf-8")
