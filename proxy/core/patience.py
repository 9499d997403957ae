"""How long a caller waits: `answer_within`, or its own `Prefer: wait=N` (W1)."""

from __future__ import annotations

import re

from proxy.core.http import Headers, values


def patience_ms(headers: Headers, answer_within_ms: int | None) -> int | None:
    """The smaller of the configured limit and the caller's preference; None where there is neither.

    Source: RFC 7240 section 4.3; a `wait` that is no number of seconds is no preference.
    """
    preferences = values(headers, b"prefer")
    if not preferences:
        return answer_within_ms
    asked = [int(seconds) * 1000 for value in preferences for seconds in _WAIT.findall(value)]
    return min((*asked, *(() if answer_within_ms is None else (answer_within_ms,))), default=None)


_WAIT = re.compile(rb'(?i)(?:^|,)[ \t]*wait[ \t]*=[ \t]*"?([0-9]{1,9})"?[ \t]*(?=;|,|$)')
