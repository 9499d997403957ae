"""File descriptors: every connection is one, and who has none left can't even refuse (H10)."""

from __future__ import annotations

import resource

RESERVED = 48
"""For the store, the log, the admin listener and its readers, the loop, and refusals on their way."""
_ENOUGH = 1 << 20
"""Where the limit is "unlimited", or as good as that."""


def allow_all() -> int:
    """Raise this process's limit of open files as far as it may; the limit from now on.

    Shells and service managers start programs with 1,024 for the sake of `select`, which nothing here uses.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else hard
    if soft not in (wanted, resource.RLIM_INFINITY):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return allowed()


def allowed() -> int:
    """How many files this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _ENOUGH if soft == resource.RLIM_INFINITY else min(soft, _ENOUGH)


def callers_max(wanted: int, *, upstream: int, limit: int) -> int:
    """How many callers' connections may be open at once, at most `wanted`.

    Where `limit` doesn't hold them all, callers get no more than half of what is left, so that each has a
    descriptor towards the platform: a caller over the cap is told so instead of waiting unaccepted.

    Args: upstream: connections that may be open to the platform.
    """
    left = limit - RESERVED
    if wanted + upstream <= left:
        return wanted
    return max(1, min(wanted, max(left - upstream, left // 2)))
