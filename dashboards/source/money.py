"""Money in doubt: how much, since when, and what is bringing certainty."""

from __future__ import annotations

from dashboards.source.panels import (
    BAD,
    NOTICE,
    OK,
    WARN,
    Board,
    Row,
    bars,
    graph,
    grown,
    held,
    of,
    quantile,
    rate,
    stat,
    total,
)

_ANY: tuple[tuple[float | None, str], ...] = ((None, OK), (1, WARN))
_ALARM: tuple[tuple[float | None, str], ...] = ((None, OK), (1, BAD))

NOW = Row(
    "Now",
    (
        stat(
            "Amount at risk, in minor units",
            "The amounts of all unknown operations, by currency, in minor units (cents). `other` also "
            "holds operations without an amount of their own.",
            f"{held('unknown_amount', 'currency')} > 0 or {held('unknown_amount')} == 0",
            unit="locale",
            steps=_ANY,
            legend="{{currency}}",
            runbook="unknown-old",
            width=12,
        ),
        stat(
            "Oldest unknown",
            "Age of the oldest operation whose effect is unknown; 0 for none.",
            f"max({of('oldest_unknown_seconds')})",
            unit="s",
            steps=((None, OK), (900, WARN), (3600, BAD)),
            runbook="unknown-old",
            width=6,
        ),
        stat(
            "Handed to people, 24 h",
            "Operations whose lookups ended without evidence within the last day: somebody must ask the "
            "platform.",
            grown("manual_reviews_total", over="24h"),
            steps=_ALARM,
            runbook="needs-person",
            width=6,
        ),
    ),
)

DOUBT = Row(
    "Doubt",
    (
        graph(
            "Unknown operations",
            "Operations whose effect is unknown now, by route.",
            (held("unknown_operations", "route"), "{{route}}"),
            steps=_ANY,
            runbook="unknowns-growing",
            stacked=True,
        ),
        graph(
            "Pending operations",
            "Accepted by the platform and not final: not doubt, but not money either.",
            (held("pending_operations", "route"), "{{route}}"),
            steps=((None, OK), (100, NOTICE)),
            stacked=True,
        ),
        graph(
            "Amount at risk, in minor units",
            "Unknown operations' amounts by currency, in minor units (cents).",
            (held("unknown_amount", "currency"), "{{currency}}"),
            unit="locale",
            steps=((None, OK), (1_000_000, WARN)),
            runbook="unknown-old",
        ),
        graph(
            "Calls that ended unknown",
            "Calls a second that ended without knowing whether money moved. The shop shows 'confirming', "
            "repeats with the same key, and never makes a new one.",
            (rate("unknown_results_total", "route"), "{{route}}"),
            unit="ops",
            runbook="unknowns-growing",
        ),
        graph(
            "Age of the oldest",
            "Seconds since the oldest unknown operation began. A straight line upwards: its lookups bring "
            "nothing.",
            (f"max by (instance) ({of('oldest_unknown_seconds')})", "{{instance}}"),
            unit="s",
            steps=((None, OK), (900, WARN), (3600, BAD)),
            runbook="unknown-old",
        ),
        graph(
            "Calls whose process or store went away",
            "Runs a second that a dead leader left behind: taken over by a later call, or noticed when "
            "their lease was over (`lapse`). They are unknown, and looked up.",
            (total("lease_takeovers_total"), "taken over"),
            (total("store_duration_seconds_count", 'operation="lapse"'), "noticed"),
            unit="ops",
            runbook="calls-abandoned",
        ),
    ),
)

CERTAINTY = Row(
    "Certainty",
    (
        graph(
            "Became known, by evidence",
            "Operations a second that became known: by an answer, a late answer of an earlier attempt, a "
            "lookup, the platform's event, or a person.",
            (rate("settled_total", "by"), "{{by}}"),
            unit="ops",
            stacked=True,
        ),
        graph(
            "Became known, by status",
            "What operations turned out to be.",
            (rate("settled_total", "status") + " > 0", "{{status}}"),
            unit="ops",
            stacked=True,
        ),
        graph(
            "Time to certainty",
            "From an operation's first attempt to knowing its effect. The tail is what lookups brought.",
            (quantile(0.5, "time_to_certainty_seconds"), "half of them"),
            (quantile(0.95, "time_to_certainty_seconds"), "95 %"),
            (quantile(0.99, "time_to_certainty_seconds"), "99 %"),
            unit="s",
            steps=((None, OK), (900, WARN)),
        ),
        graph(
            "Lookups by result",
            "Questions to the platform a second. Found: an object that tells something new. Missed: "
            "nothing new. Failed: no usable answer, and no evidence.",
            (rate("lookups_total", "result"), "{{result}}"),
            unit="ops",
            runbook="lookups-failing",
        ),
        graph(
            "Failed lookups",
            "Share of lookups without a usable answer. Above a half, unknown results stay unknown.",
            (
                total("lookups_total", 'result="failed"') + " / " + total("lookups_total"),
                "failed",
            ),
            unit="percentunit",
            steps=((None, OK), (0.5, BAD)),
            runbook="lookups-failing",
        ),
        bars(
            "The platform's events of the last hour",
            "By what became of them. Hints only start a lookup: no events.secret is set. Refused: a "
            "signature that does not fit.",
            grown("events_total", over="1h", by="verdict"),
            legend="{{verdict}}",
            steps=((None, OK),),
        ),
    ),
)

CALLERS = Row(
    "Callers' mistakes and contradictions",
    (
        graph(
            "Blocked by the guard",
            "Calls a second with another key for an order, payment or refund whose result is open. Each "
            "would have been a second charge on a platform that does not know better.",
            (rate("guard_blocked_total", "route"), "{{route}}"),
            unit="ops",
            steps=((None, OK), (0.001, WARN)),
            runbook="guard-blocks",
            width=6,
        ),
        graph(
            "Conflicts",
            "Calls a second with a key that is bound to other values: a bug in how the caller makes keys.",
            (rate("conflicts_total", "route"), "{{route}}"),
            unit="ops",
            steps=((None, OK), (0.001, WARN)),
            runbook="conflicts",
            width=6,
        ),
        graph(
            "Evidence against evidence",
            "Increase over the rate interval of contradictions: what was told or settled by hand against "
            "what the platform says.",
            (grown("outcome_conflicts_total", by="route"), "{{route}}"),
            steps=_ALARM,
            runbook="outcomes-disagree",
            width=6,
        ),
        graph(
            "Sent without a record",
            "Calls a second forwarded while the store was down (`store.on_failure: forward`).",
            (rate("sent_unrecorded_total", "route"), "{{route}}"),
            unit="ops",
            steps=((None, OK), (0.001, WARN)),
            runbook="sent-unrecorded",
            width=6,
        ),
    ),
)

BESIDES = Row(
    "Besides",
    (
        graph(
            "Lookups that wait",
            "Lookups that are due and stand in line for their turn, and how many seconds that takes at the "
            "configured rate.",
            (f"max({of('lookups_backlog')})", "lookups"),
            (f"max({of('lookups_backlog_seconds')})", "seconds"),
            steps=((None, OK), (300, WARN)),
            runbook="lookups-failing",
            width=12,
        ),
        graph(
            "Shadow mode: what the guard would have said",
            "Findings a second with `mode: observe`: nothing is changed or refused then.",
            (rate("observed_total", "finding"), "{{finding}}"),
            unit="ops",
            width=12,
        ),
    ),
)

MONEY = Board(
    "safepost-money",
    "Safepost: money in doubt",
    "How much money is in doubt, since when, and what is bringing certainty.",
    (NOW, DOUBT, CERTAINTY, CALLERS, BESIDES),
)
