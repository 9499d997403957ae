"""The configuration: a file becomes `Settings`, or one `ConfigError` that lists every mistake."""

from proxy.config.advice import warnings
from proxy.config.load import load_preset, load_settings, settings_of
from proxy.config.problems import ConfigError, ConfigProblem
from proxy.config.settings import Settings

__all__ = [
    "ConfigError",
    "ConfigProblem",
    "Settings",
    "load_preset",
    "load_settings",
    "settings_of",
    "warnings",
]
