"""The configuration file, as contract section 3 writes it: every key, its kind, default and meaning.

The descriptions are the ones that `safepost schema` prints and docs/configuration.md repeats.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

from proxy.config.rules import Address, AddressKind, Choice, Duration, Flag, Number, Text, Whole
from proxy.config.sections import (
    DurationOrNone,
    DurationValue,
    Events,
    FlagValue,
    Limits,
    Listener,
    Log,
    LookupSchedule,
    OneOrList,
    ScopeSource,
    SecretOrNone,
    Section,
    Store,
    Traces,
    Upstream,
    as_list,
    setting,
)
from proxy.core.rules import Jitter, KeyMode, OnFailure, Replay


class Mode(StrEnum):
    GUARD = "guard"
    OBSERVE = "observe"


class Sensitive(StrEnum):
    """What happens to a key that looks like a card number or an e-mail address (K5)."""

    LOG = "log"
    REJECT = "reject"


class Twin(StrEnum):
    """What happens to a same-amount refund under another number while one is unknown (U1)."""

    REJECT = "reject"
    WARN = "warn"


class Budget(Section):
    enabled: FlagValue = setting(default=True, description="Limit retries across all calls.")
    ratio: Annotated[float, Number(low=0, high=1)] = setting(
        default=0.2, description="Retries per call, at most, over ten seconds."
    )
    floor: Annotated[int, Whole(low=0, high=10_000)] = setting(
        default=10, description="Retries in ten seconds that are always allowed."
    )


class Retry(Section):
    """Null means the preset's value."""

    attempts: Annotated[int | None, Whole(low=1, high=10, nullable=True)] = setting(
        default=None, description="Of one call, the first included."
    )
    attempt_timeout: DurationOrNone = setting(
        default=None, description="From the first byte written to the answer's last."
    )
    base: Annotated[int | None, Duration(low="0s", nullable=True)] = setting(
        default=None, description="The wait after the first attempt."
    )
    multiplier: Annotated[float | None, Number(low=1, high=10, nullable=True)] = setting(
        default=None, description="How much longer each further wait is."
    )
    cap: Annotated[int | None, Duration(low="0s", nullable=True)] = setting(
        default=None, description="The longest wait, jitter aside."
    )
    jitter: Annotated[Jitter | None, Choice(of=Jitter, nullable=True)] = setting(
        default=None,
        description="How waits are spread: additive adds up to jitter_max, full draws from 0 on.",
    )
    jitter_max: Annotated[int | None, Duration(low="0s", nullable=True)] = setting(
        default=None, description="With additive jitter."
    )
    deadline: DurationOrNone = setting(default=None, description="Bounds attempts and waits together.")


class GlobalRetry(Retry):
    """For all routes. Null means the preset's value."""

    budget: Budget = setting(default_factory=Budget, description="The retry budget (R7).")


class Breaker(Section):
    enabled: FlagValue = setting(default=True, description="Stop sending while the platform is out of reach.")
    failures: Annotated[int, Whole(low=1, high=10_000)] = setting(
        default=20, description="Connections failed or timed out, within the window, that open it."
    )
    window: DurationValue = setting(default="10s", description="How far back failures count.")
    open_for: DurationValue = setting(default="5s", description="Until one call may try again.")


class RouteKey(Section):
    mode: Annotated[KeyMode, Choice(of=KeyMode)] = setting(
        default="require", description="A call without a key: 400, or a key made from the template."
    )
    template: Annotated[str | None, Text(what="a key template", nullable=True)] = setting(
        default=None, description="Text with {body.FIELD}, {path.NAME} and {seq}; null: the preset's."
    )
    sensitive: Annotated[Sensitive, Choice(of=Sensitive)] = setting(
        default="log", description="A key that looks like a card number or an e-mail address."
    )


class RouteGuard(Section):
    on: Annotated[bool | None, Flag(nullable=True)] = setting(
        default=None,
        description="Refuse another key while the subject's result is unknown (U1); null: the preset's.",
    )
    twin: Annotated[Twin, Choice(of=Twin)] = setting(
        default="reject", description="A same-amount refund under another number while one is unknown."
    )


def _field_list(value: Any) -> Any:
    if value is None or (
        isinstance(value, list)
        and all(isinstance(name, str) and name.strip() == name != "" for name in value)
    ):
        return None if value is None else tuple(value)
    expected = "a list of field paths, such as [amount, currency]"
    raise PydanticCustomError("expected", "{expected}", {"expected": expected})


class RouteConfig(Section):
    """One route, by its name in the preset; or, where the preset allows it, a route of your own."""

    method: Annotated[
        str | None, Text(what="POST, PUT, PATCH or DELETE", pattern="POST|PUT|PATCH|DELETE", nullable=True)
    ] = setting(default=None, description="Of a route of your own (default POST).")
    path: Annotated[
        str | None, Text(what="a path template such as /v1/payments/{id}", pattern="/[!-~]*", nullable=True)
    ] = setting(
        default=None, description="Of a route of your own: a template such as /v1/payments/{id}/capture."
    )
    retry: Retry = setting(
        default_factory=Retry, description="The same keys as retry, without budget, for this route."
    )
    key: RouteKey = setting(default_factory=RouteKey, description="Where its key comes from.")
    fingerprint: Annotated[tuple[str, ...] | None, BeforeValidator(_field_list)] = setting(
        default=None, description="The business fields that make two calls the same; null: the preset's."
    )
    subject: Annotated[str | None, Text(what="a template such as order:{body.order_no}", nullable=True)] = (
        setting(default=None, description="The business thing acted on, such as order:{body.order_no}.")
    )
    guard: RouteGuard = setting(default_factory=RouteGuard, description="The unknown-guard (U1).")
    replay: Annotated[Replay | None, Choice(of=Replay, nullable=True)] = setting(
        default=None,
        description="A later call with an executed key: forwarded, or given the stored answer (P6).",
    )
    on_failure: Annotated[OnFailure | None, Choice(of=OnFailure, nullable=True)] = setting(
        default=None, description="Overrides store.on_failure."
    )


class Config(Section):
    """Safepost's configuration file."""

    mode: Annotated[Mode, Choice(of=Mode)] = setting(
        default="guard",
        description="observe forwards everything untouched and reports what the guard would have done.",
    )
    listen: Annotated[tuple[Listener, ...], BeforeValidator(as_list), OneOrList()] = setting(
        default="127.0.0.1:8080", description="Where merchant services call: one address, or a list."
    )
    admin: Annotated[Address, AddressKind()] = setting(
        default="127.0.0.1:8081", description="Health, metrics, ledger; keep it private."
    )
    admin_token: SecretOrNone = setting(
        default=None, description="Bearer token of the admin listener; needed off loopback (A4)."
    )
    admin_url: Annotated[str | None, Text(what="a URL", pattern="https?://[!-~]+", nullable=True)] = setting(
        default=None, description="How callers reach the admin listener, for Location; null: http://ADMIN."
    )
    events: Events = setting(default_factory=Events, description="The platform's webhooks (U4).")
    workers: Annotated[int, Whole(low=1, high=64)] = setting(
        default=1, description="Processes that share the port and the store."
    )
    platform: Annotated[str, Text(what="a preset's name, or a path to a preset file")] = setting(
        description="A preset's name (safepost presets lists them), or a path to your own preset file."
    )
    merchant: ScopeSource = setting(
        default="default", description="Whose operations: a name, or {header: NAME}."
    )
    environment: ScopeSource = setting(
        default="live", description="Which environment: a name, or {header: NAME}."
    )
    upstream: Upstream = setting(description="The payment platform.")
    store: Store = setting(default_factory=Store, description="The ledger.")
    retry: GlobalRetry = setting(
        default_factory=GlobalRetry, description="Overrides the preset's, for all routes."
    )
    breaker: Breaker = setting(default_factory=Breaker, description="The circuit breaker (R7).")
    routes: dict[str, RouteConfig] = setting(default_factory=dict, description="By route name.")
    answer_within: DurationOrNone = setting(
        default=None, description="Answer before the caller's own patience ends; the call goes on (W1)."
    )
    wait_timeout: DurationValue = setting(
        default="20s", description="How long a concurrent same-key call waits for the leader."
    )
    lookups: LookupSchedule = setting(
        default_factory=LookupSchedule, description="How unknown and pending results are looked up (U2)."
    )
    limits: Limits = setting(default_factory=Limits, description="What is refused, and what is not stored.")
    drain_timeout: DurationValue = setting(
        default="25s", description="How long attempts in flight may finish on SIGTERM."
    )
    traces: Traces = setting(default_factory=Traces, description="OpenTelemetry spans; off by default.")
    log: Log = setting(default_factory=Log, description="To standard output.")
