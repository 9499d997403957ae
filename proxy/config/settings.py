"""The configuration, checked and compiled: what the product runs on. Durations are integer milliseconds."""

from __future__ import annotations

from dataclasses import dataclass, field

from proxy.config.model import Mode
from proxy.config.rules import Address, Rate, Secret, Url
from proxy.config.sections import LogFormat, LogLevel
from proxy.core.model import Scope
from proxy.core.rules import OnFailure, Platform


@dataclass(frozen=True, slots=True, kw_only=True)
class Listen:
    """One address that is listened on; the files are None without TLS."""

    address: Address
    cert_file: str | None = None
    key_file: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopePart:
    """A merchant or an environment: `name` for every call, or the value of each call's `header`."""

    name: str | None = None
    header: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsSettings:
    """The platform's webhooks (U4). `secret` None: every event is only a hint."""

    listen: Address | None
    header: str
    secret: Secret | None
    tolerance_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamSettings:
    """The platform's address, credentials and TLS. `credentials` has the key `""` for one that fits all."""

    url: Url
    credentials: dict[str, Secret]
    connect_timeout_ms: int
    max_connections: int
    ca_file: str | None
    cert_file: str | None
    key_file: str | None
    verify: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """The ledger's place and limits. `url` may hold a password, and is left out of any repr."""

    url: str = field(repr=False)
    on_failure: OnFailure
    timeout_ms: int
    lease_ms: int
    secret: Secret | None
    journal: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetSettings:
    enabled: bool
    ratio: float
    floor: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerSettings:
    enabled: bool
    failures: int
    window_ms: int
    open_for_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupSettings:
    """U2 and U8. `schedule_ms` counts from the operation's first attempt."""

    enabled: bool
    schedule_ms: tuple[int, ...]
    then_every_ms: int
    until_ms: int
    min_interval_ms: int
    lag_ms: int
    misses: int
    rate: Rate


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSettings:
    body_bytes: int
    headers_bytes: int
    stored_response_bytes: int
    connections: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformAdvice:
    """What the platform asks of its callers; `warnings` compares the configuration with it (F4)."""

    attempt_timeout_ms_min: int | None
    lookup_interval_ms_min: int
    lookup_lag_ms_min: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The whole configuration. `version` is a short digest of the file and its preset (O5)."""

    file: str
    version: str
    mode: Mode
    listen: tuple[Listen, ...]
    admin: Address
    admin_token: Secret | None
    admin_url: str
    events: EventsSettings
    workers: int
    merchant: ScopePart
    environment: ScopePart
    platform: Platform
    advice: PlatformAdvice
    upstream: UpstreamSettings
    store: StoreSettings
    budget: BudgetSettings
    breaker: BreakerSettings
    answer_within_ms: int | None
    wait_timeout_ms: int
    lookups: LookupSettings
    limits: LimitSettings
    drain_timeout_ms: int
    traces_endpoint: str | None
    traces_service: str
    log_level: LogLevel
    log_format: LogFormat
    log_successes: float

    @property
    def has_fixed_scope(self) -> bool:
        """Whether every call belongs to one merchant and one environment."""
        return self.merchant.header is None and self.environment.header is None

    def authorization_of_call(self, scope: Scope) -> bytes | None:
        """The Authorization of a call that carries none; None: it goes without (H1)."""
        found = self.upstream.credentials.get(scope.tag) or self.upstream.credentials.get("")
        return found.reveal().encode("ascii") if found else None

    def authorization_of_lookup(self, scope: Scope) -> bytes | None:
        """The Authorization of a lookup; None: nothing of this scope is looked up here (U8).

        One credential proves nothing of a merchant whose name only a call's header tells, nor of another sidecar's
        merchant in the same store.
        """
        found = self.upstream.credentials.get(scope.tag)
        if found is None and (scope.merchant, scope.environment) == (
            self.merchant.name,
            self.environment.name,
        ):
            found = self.upstream.credentials.get("")
        return found.reveal().encode("ascii") if found else None
