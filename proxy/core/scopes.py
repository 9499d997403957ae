"""Whose payment a call is: a merchant and an environment, fixed or named by the call's own headers (K6)."""

from __future__ import annotations

import re

from proxy.core.http import Headers, values
from proxy.core.problem import Problem, invalid_request

NAME = re.compile(rb"[A-Za-z0-9._-]{1,64}")
"""As in the configuration. A slash would make two scopes one: merchant and environment are joined by it."""


def scope_name(headers: Headers, *, fixed: str | None, header: str | None) -> str | Problem:
    """The merchant or the environment of a call: `fixed`, or what its one `header` says.

    Two values are refused: the platform might go by the other one.
    """
    if header is None:
        return fixed or ""
    found = list(values(headers, header.lower().encode("latin-1")))
    if len(found) == 1 and NAME.fullmatch(found[0]):
        return found[0].decode("ascii")
    if not any(found):
        what = "is missing"
    elif len(found) > 1:
        what = f"occurs {len(found)} times"
    else:
        what = "holds no name"
    return invalid_request(
        f"The {header} header, which names whose payment it is, {what}, so nothing was sent and no money moved."
        " Send one name of 1 to 64 letters, digits, dots, dashes and underscores.",
        field=header,
    )
