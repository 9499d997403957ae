"""The description of the admin listener for tools. A test compares it with real answers."""

from __future__ import annotations

Schema = dict[str, object]


def description() -> Schema:
    return {"openapi": "3.1.0", "info": {"title": "Safepost admin", "version": "1"}, "paths": {}}
