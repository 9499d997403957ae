"""The platform's health, as its clients see it: how attempts end, what it answers, how long it asks to wait."""

from __future__ import annotations

from dashboards.source.panels import (
    BAD,
    OK,
    WARN,
    Board,
    Row,
    bars,
    graph,
    grown,
    quantile,
    rate,
    stat,
    total,
)
from proxy.core.http import MaybeSentReason, NotSentReason

_NOT_SENT = "|".join(reason.value for reason in NotSentReason)
_MAYBE_SENT = "|".join(reason.value for reason in MaybeSentReason)


def _share(outcomes: str) -> str:
    """Nothing while nothing is sent: 0 by 0 is no number, and would be shown in red."""
    some = total("attempts_total", f'outcome=~"{outcomes}"')
    return f"{some} / ({total('attempts_total')} > 0)"


def _answered(statuses: str) -> str:
    return rate("attempt_ends_total", "reason", f'reason=~"http_{statuses}"')


NOW = Row(
    "Now",
    (
        stat(
            "Definite answers",
            "Share of attempts that ended with an answer that settles something: executed, pending, refused.",
            _share("executed|pending|released|refused"),
            unit="percentunit",
            steps=((None, BAD), (0.8, WARN), (0.95, OK)),
            width=6,
        ),
        stat(
            "In doubt",
            "Share of attempts that may have had an effect without a definite answer.",
            _share("in_doubt"),
            unit="percentunit",
            steps=((None, OK), (0.01, WARN), (0.05, BAD)),
            runbook="unknowns-growing",
            width=6,
        ),
        stat(
            "Never left",
            "Share of attempts of which no byte left: DNS, refused, TLS, no free connection, the breaker.",
            _share("not_sent"),
            unit="percentunit",
            steps=((None, OK), (0.01, WARN), (0.05, BAD)),
            runbook="breaker-open",
            width=6,
        ),
        stat(
            "Turned away",
            "Share of attempts that the platform declined to take: 429, 503 with its own code, 425. "
            "Certainly not executed.",
            _share("not_executed"),
            unit="percentunit",
            steps=((None, OK), (0.01, WARN), (0.1, BAD)),
            width=6,
        ),
    ),
)

PHASES = Row(
    "How attempts end, by phase",
    (
        graph(
            "All attempts by outcome",
            "Attempts a second, by what they prove.",
            (rate("attempts_total", "outcome"), "{{outcome}}"),
            unit="ops",
            stacked=True,
            width=12,
        ),
        graph(
            "Time to an end",
            "The 95 % of attempts' durations, by outcome. In doubt at `attempt_timeout`: the platform is "
            "silent.",
            (quantile(0.95, "attempt_duration_seconds", "outcome"), "{{outcome}}"),
            unit="s",
            steps=((None, OK), (15, WARN)),
            width=12,
        ),
        graph(
            "Before a byte left",
            "Attempts a second that certainly did not reach the platform, by reason.",
            (rate("attempt_ends_total", "reason", f'reason=~"{_NOT_SENT}"'), "{{reason}}"),
            unit="ops",
            runbook="breaker-open",
        ),
        graph(
            "After a byte left, without an answer",
            "Attempts a second that may have had an effect, by reason.",
            (rate("attempt_ends_total", "reason", f'reason=~"{_MAYBE_SENT}"'), "{{reason}}"),
            unit="ops",
            steps=((None, OK), (1, WARN)),
            runbook="unknowns-growing",
        ),
        graph(
            "Answered",
            "Whole answers a second by status, where the platform gave no error code of its own.",
            (_answered("[123].."), "{{reason}}"),
            unit="ops",
            stacked=True,
        ),
    ),
)

ERRORS = Row(
    "What the platform says",
    (
        graph(
            "Refusals and errors by code",
            "Answers a second by the platform's own error code.",
            (
                rate("attempt_ends_total", "reason", f'reason!~"http_.*|{_NOT_SENT}|{_MAYBE_SENT}"') + " > 0",
                "{{reason}}",
            ),
            unit="ops",
        ),
        graph(
            "4xx without a known code",
            "Answers a second by status. 401 and 403: a credential. 404: a path, or something in between.",
            (_answered("4.."), "{{reason}}"),
            unit="ops",
        ),
        graph(
            "5xx without a known code",
            "Answers a second by status. They prove nothing: the platform may have acted before something "
            "in between gave up.",
            (_answered("5.."), "{{reason}}"),
            unit="ops",
            steps=((None, OK), (1, WARN)),
            runbook="unknowns-growing",
        ),
    ),
)

WAITS = Row(
    "What it asks for",
    (
        graph(
            "Waits before retries",
            "Back-offs, or what Retry-After asked. Above the back-off's own range (1 to 30 s): the "
            "platform asks.",
            (quantile(0.5, "retry_wait_seconds"), "half of them"),
            (quantile(0.95, "retry_wait_seconds"), "95 %"),
            unit="s",
            steps=((None, OK), (30, WARN)),
        ),
        graph(
            "Retries after 429 and 503",
            "Retries a second after answers that may carry Retry-After.",
            (
                rate(
                    "retries_total",
                    "reason",
                    'reason=~"http_429|http_503|temporarily_unavailable"',
                ),
                "{{reason}}",
            ),
            unit="ops",
            steps=((None, OK), (1, WARN)),
            runbook="retry-budget-spent",
        ),
        bars(
            "Attempts of the last hour by route",
            "How many attempts each route sent, so that a share above can be weighed.",
            grown("attempts_total", over="1h", by="route"),
            legend="{{route}}",
        ),
    ),
)

PLATFORM = Board(
    "safepost-platform",
    "Safepost: platform health",
    "How attempts end, what the platform answers, and how long it asks to wait.",
    (NOW, PHASES, ERRORS, WAITS),
)
