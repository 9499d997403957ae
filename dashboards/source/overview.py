"""The overview: is money safe, is traffic normal, what does Safepost cost, is anything wearing thin."""

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
)

_ANY: tuple[tuple[float | None, str], ...] = ((None, OK), (1, WARN))
_NEVER: tuple[tuple[float | None, str], ...] = ((None, OK), (0.000001, BAD))

NOW = Row(
    "Now",
    (
        stat(
            "Unknown",
            "Operations whose effect nobody knows yet: the money may have moved. Safepost is asking the "
            "platform.",
            held("unknown_operations"),
            steps=_ANY,
            runbook="unknowns-growing",
        ),
        stat(
            "Oldest unknown",
            "Age of the oldest operation whose effect is unknown; 0 for none. Alerts at 15 min, 1 h and "
            "24 h.",
            f"max({of('oldest_unknown_seconds')})",
            unit="s",
            steps=((None, OK), (900, WARN), (3600, BAD)),
            runbook="unknown-old",
        ),
        stat(
            "Pending",
            "Operations that the platform accepted and has not finished: 202, processing, waiting for the "
            "payer. Normal in small numbers.",
            held("pending_operations"),
            steps=((None, OK), (1, NOTICE)),
        ),
        stat(
            "Store",
            "Whether the ledger answers. While it does not, payments are refused and nothing unrecorded "
            "is sent.",
            f"min({of('store_up')})",
            unit="none",
            steps=((None, BAD), (1, OK)),
            runbook="store-fails",
            words=((0, "down", BAD), (1, "up", OK)),
        ),
        stat(
            "Breaker",
            "The circuit breaker towards the platform, the worst of all instances. Open: payments are "
            "answered 503 at once, and nothing is sent.",
            f"max({of('breaker_state')})",
            unit="none",
            steps=((None, OK), (1, WARN), (2, BAD)),
            runbook="breaker-open",
            words=((0, "closed", OK), (1, "trying", WARN), (2, "open", BAD)),
        ),
        stat(
            "Alerts firing",
            "Safepost's alerts that fire now, if this Prometheus evaluates safepost.rules.yml.",
            'count(ALERTS{alertname=~"Safepost.*",alertstate="firing"}) or vector(0)',
            steps=((None, OK), (1, BAD)),
        ),
    ),
)

TRAFFIC = Row(
    "Traffic",
    (
        graph(
            "Calls by route",
            "Calls answered a second, by route. `other` is everything that the preset does not guard.",
            (rate("requests_total", "route"), "{{route}}"),
            unit="reqps",
            stacked=True,
        ),
        graph(
            "What callers were told",
            "Answers a second by what was known of the operation's effect. Unknown answers are the ones "
            "that a shop must show as 'confirming'. Empty: nothing of the ledger was read.",
            (rate("requests_total", "knowledge", 'route!="other"'), "{{knowledge}}"),
            unit="reqps",
            stacked=True,
        ),
        graph(
            "Answers by status",
            "Answers to callers a second, by HTTP status, Safepost's own included. Status 0: the caller "
            "was gone.",
            (rate("requests_total", "status") + " > 0", "{{status}}"),
            unit="reqps",
        ),
        graph(
            "Calls under way",
            "Guarded calls in this moment, waiting for the platform, a back-off or another call with the "
            "same key.",
            (f"sum by (route) ({of('in_flight')})", "{{route}}"),
            stacked=True,
        ),
        graph(
            "Second charges prevented",
            "Calls a second that did not reach the platform a second time: concurrent repeats "
            "(collapsed), later repeats (replayed), another key for the same business (guard), another "
            "number for the same refund (twin).",
            (rate("duplicates_prevented_total", "cause"), "{{cause}}"),
            unit="ops",
        ),
        graph(
            "Waiting for another call's run",
            "How long callers with the same key waited for the one that leads. Near `wait_timeout`: they "
            "get 409.",
            (quantile(0.5, "lease_wait_seconds"), "half of them"),
            (quantile(0.95, "lease_wait_seconds"), "95 %"),
            unit="s",
            steps=((None, OK), (20, BAD)),
        ),
    ),
)

LATENCY = Row(
    "Latency against overhead",
    (
        graph(
            "Calls",
            "From a call's head to its answer's last byte: back-offs and waits are in it.",
            (quantile(0.5, "request_duration_seconds", "", 'route!="other"'), "half of them"),
            (quantile(0.95, "request_duration_seconds", "", 'route!="other"'), "95 %"),
            (quantile(0.99, "request_duration_seconds", "", 'route!="other"'), "99 %"),
            unit="s",
            steps=((None, OK), (20, WARN)),
        ),
        graph(
            "The platform's part",
            "From an attempt's start, connecting included, to its end.",
            (quantile(0.5, "attempt_duration_seconds"), "half of them"),
            (quantile(0.95, "attempt_duration_seconds"), "95 %"),
            (quantile(0.99, "attempt_duration_seconds"), "99 %"),
            unit="s",
            steps=((None, OK), (15, WARN)),
        ),
        graph(
            "Safepost's part",
            "Of a call: what was not waiting for the platform, for another call or in a back-off. The "
            "store is in it.",
            (quantile(0.5, "overhead_seconds", "", 'route!="other"'), "half of them"),
            (quantile(0.95, "overhead_seconds", "", 'route!="other"'), "95 %"),
            (quantile(0.99, "overhead_seconds", "", 'route!="other"'), "99 %"),
            unit="s",
            steps=((None, OK), (0.05, WARN)),
        ),
    ),
)

RETRIES = Row(
    "Retries, budget, breaker",
    (
        graph(
            "Retries by reason",
            "Further attempts planned a second, by what ended the one before: the wire's word, the "
            "platform's code, or its status.",
            (rate("retries_total", "reason") + " > 0", "{{reason}}"),
            unit="ops",
        ),
        graph(
            "Retry budget",
            "Retries that could start now. At 0 calls end with what is known: the platform is spared.",
            (f"min by (instance) ({of('retry_budget_remaining')})", "{{instance}}"),
            steps=((None, BAD), (1, OK)),
            runbook="retry-budget-spent",
        ),
        graph(
            "Breaker",
            "0 closed, 1 one trial on its way, 2 open.",
            (f"max by (instance) ({of('breaker_state')})", "{{instance}}"),
            unit="none",
            steps=((None, OK), (2, BAD)),
            runbook="breaker-open",
        ),
    ),
)

STORE = Row(
    "Store",
    (
        graph(
            "Steps",
            "The 99 % of the store's steps, by step. Each guarded call waits for one `reserve` and one "
            "`settle`.",
            (quantile(0.99, "store_duration_seconds", "operation"), "{{operation}}"),
            unit="s",
            steps=((None, OK), (0.1, WARN)),
            runbook="store-fails",
        ),
        graph(
            "Steps that failed",
            "Steps a second that the store did not do, by step.",
            (rate("store_errors_total", "operation"), "{{operation}}"),
            unit="ops",
            steps=((None, OK), (0.01, BAD)),
            runbook="store-fails",
        ),
        bars(
            "Notices of the last hour",
            "What happened to the store while in use. `lost_data`: a restart or failover forgot claims. "
            "`put_back`: unresolved operations written anew from a journal.",
            grown("store_notices_total", over="1h", by="kind"),
            legend="{{kind}}",
            steps=_ANY,
            runbook="store-lost-data",
        ),
        graph(
            "Writes that wait",
            "Ends of calls that the store could not take yet; they are written when it is back.",
            (f"sum by (instance) ({of('owed_writes')})", "{{instance}}"),
            steps=((None, OK), (1, WARN)),
            runbook="store-fails",
            width=12,
        ),
        graph(
            "Settings that could lose claims",
            "An evicting or non-durable Redis, a file on a memory or network file system; 0 is right.",
            (f"max by (instance) ({of('store_warnings')})", "{{instance}}"),
            steps=((None, OK), (1, WARN)),
            runbook="store-unsafe",
            width=12,
        ),
    ),
)

PROCESS = Row(
    "Processes",
    (
        graph(
            "Processor",
            "Seconds of processor time a second, by instance. One worker uses one core at most.",
            (
                f"sum by (instance) (rate({of('process_cpu_seconds_total')}[$__rate_interval]))",
                "{{instance}}",
            ),
            unit="percentunit",
            steps=((None, OK), (0.8, WARN)),
            width=6,
        ),
        graph(
            "Memory",
            "Resident memory by instance.",
            (f"sum by (instance) ({of('process_resident_memory_bytes')})", "{{instance}}"),
            unit="bytes",
            width=6,
        ),
        graph(
            "Faults, lost lines, reloads refused",
            "Increases over the rate interval: exceptions that nobody expected, log lines dropped because "
            "their reader was slow or the disk full, configurations refused at a reload, calls left on "
            "the wire by a drain. All should be 0.",
            (grown("internal_faults_total"), "faults"),
            (grown("log_lines_dropped_total"), "log lines dropped"),
            (grown("config_reloads_total", 'result="refused"'), "reloads refused"),
            (grown("drain_cut_short_total"), "calls cut by a drain"),
            steps=_NEVER,
            runbook="internal-fault",
            width=6,
        ),
        bars(
            "Versions",
            "Instances by version, preset and configuration. More than one bar for long: a rollout that "
            "stopped.",
            f"count by (version, platform, platform_version, config) ({of('build_info')} == 1)",
            legend="{{version}} {{platform}} {{platform_version}} {{config}}",
            width=6,
        ),
    ),
)

OVERVIEW = Board(
    "safepost-overview",
    "Safepost: overview",
    "Is money safe, is traffic normal, what does Safepost cost, is anything wearing thin.",
    (NOW, TRAFFIC, LATENCY, RETRIES, STORE, PROCESS),
)
