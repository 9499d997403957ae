"""What the configuration's tests share: a file's text in, settings or problems out."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from proxy.config import ConfigError, Settings, settings_of
from proxy.core.rules import Route

SMALLEST = "upstream: {url: https://api.payhub.example}\nplatform: payhub\n"
SECRET = "hunter2-s3cr3t"


def settings(text: str = "", environ: Mapping[str, str] | None = None) -> Settings:
    """The settings of the smallest file plus `text`."""
    return settings_of(SMALLEST + text, file="c.yaml", environ=environ or {})


def problems(text: str, environ: Mapping[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        settings_of(text, file="c.yaml", environ=environ or {})
    return [str(problem) for problem in raised.value.problems]


def route(name: str, text: str = "") -> Route:
    return next(found for found in settings(text).platform.routes if found.name == name)


def authorized(text: str) -> str:
    """A file whose upstream has this `authorization`."""
    return f"platform: payhub\nupstream: {{url: https://h, authorization: {text}}}\n"
