"""Which Safepost this is, as its package says."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def _read() -> str:
    try:
        return version("safepost")
    except PackageNotFoundError:
        return "unpackaged"


VERSION = _read()
