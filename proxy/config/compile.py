"""The configuration and its preset, joined into what the product runs on."""

from __future__ import annotations

import hashlib
from importlib.util import find_spec

from proxy.config.model import Config
from proxy.config.platform import compile_platform, lag_ms
from proxy.config.preset import Preset
from proxy.config.problems import ConfigProblem, Problems, suggestion
from proxy.config.rules import Address, Url, is_loopback
from proxy.config.sections import CREDENTIAL_HEADERS, HOP_HEADERS, ScopeSource, Upstream
from proxy.config.settings import (
    BreakerSettings,
    BudgetSettings,
    EventsSettings,
    LimitSettings,
    Listen,
    LookupSettings,
    PlatformAdvice,
    ScopePart,
    Settings,
    StoreSettings,
    UpstreamSettings,
)
from proxy.core.rules import Platform

SCHEMES = ("sqlite", "redis", "rediss", "unix", "redis+sentinel", "redis+cluster", "memory")
"""The stores' own, which the configuration must not import; a test compares."""
LEASE_MS_MIN = 500
"""A renewal is due after a third of it and looked for every ninth (at least 50 ms): several tries are left, even
where a busy host or a far store takes a fifth of a second for one."""


def compile_settings(
    config: Config, preset: Preset, *, file: str, version: str
) -> tuple[Settings, list[ConfigProblem]]:
    """The settings, and what is wrong with them: they may be used only where that is nothing."""
    problems = Problems(file)
    platform = compile_platform(config, preset, problems)
    _check_store(config, problems)
    _check_addresses(config, problems)
    _check_scope(config, preset, problems)
    _check_traces(config, problems)
    if config.wait_timeout < 2 * config.store.lease:
        problems.add(
            "wait_timeout",
            "expected at least twice store.lease: a waiter has to outlast a dead leader's lease (F4)",
        )
    if sorted(set(config.lookups.schedule)) != config.lookups.schedule:
        problems.add("lookups.schedule", "expected durations that grow from one to the next")
    return _settings(config, preset, platform, file=file, version=version), problems.found


def _check_traces(config: Config, problems: Problems) -> None:
    if config.traces.endpoint is not None and not _has_exporter():
        problems.add("traces.endpoint", "expected null, or an installation with pip install 'safepost[otel]'")


def _has_exporter() -> bool:
    """Whether spans can be sent; other libraries bring OpenTelemetry's API alone."""
    try:
        return find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:
        return False


def _check_store(config: Config, problems: Problems) -> None:
    scheme = config.store.url.partition(":")[0]
    if scheme not in SCHEMES:
        text = "expected a store's URL, such as sqlite:safepost.db or redis://host:6379/0, found another"
        problems.add("store.url", text + suggestion(scheme, SCHEMES))
    elif scheme == "sqlite":
        _check_sqlite(config.store.url.removeprefix("sqlite:"), problems)
    if config.store.lease < LEASE_MS_MIN:
        text = (
            "expected at least 500ms: a living leader could not renew it in time, and would be replaced (P5)"
        )
        problems.add("store.lease", text)
    if config.store.journal is not None and scheme in ("sqlite", "memory"):
        problems.add("store.journal", "expected null: SQLite loses nothing; the journal is for Redis (D6)")


def _check_sqlite(place: str, problems: Problems) -> None:
    if place.startswith("//") and not place.startswith("///"):
        problems.add("store.url", "expected sqlite:PATH, found a host name where the path begins")
    elif not place.strip("/") or place.startswith(":memory:") or "?" in place:
        problems.add("store.url", "expected sqlite:PATH with the path of a file, without options")


def _check_addresses(config: Config, problems: Problems) -> None:
    if not config.admin.is_private and config.admin_token is None:
        problems.add("admin_token", f"expected a token, since admin ({config.admin}) is off loopback (A4)")
    events = config.events.listen
    if events is not None and _meet(events, config.admin):
        problems.add("events.listen", "expected an address of its own, found the admin listener's")
    taken = [("admin", config.admin), *([("events.listen", events)] if events is not None else [])]
    for listener in config.listen:
        address = listener.address
        holder = next((name for name, other in taken if _meet(address, other)), None)
        if holder is not None:
            problems.add("listen", f"{address} is taken by {holder}")
        taken.append(("listen", address))
    for name, address in taken:
        if _leads_to(config.upstream.url, address):
            text = f"expected the platform's address, found our own {name} {address}: calls would come round"
            problems.add("upstream.url", f"{text} to us, and none would reach the platform")
            break
    tls = config.upstream.tls
    if (tls.cert_file is None) != (tls.key_file is None):
        missing = "key_file" if tls.key_file is None else "cert_file"
        problems.add(f"upstream.tls.{missing}", "expected both cert_file and key_file, or neither")


_WILDCARDS = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared, not bound
_LOCALHOST = frozenset({"localhost", "127.0.0.1", "::1"})


def _meet(one: Address, other: Address) -> bool:
    """Whether two listeners would want the same socket: the same address, or one in the other's wildcard."""
    if one.path is not None or other.path is not None:
        return one.path == other.path
    if one.port != other.port or one.port == 0:
        return False
    hosts = {_host(one), _host(other)}
    same_family = len({":" in host for host in hosts}) == 1
    if "localhost" in hosts:
        return hosts <= _LOCALHOST | _WILDCARDS
    return len(hosts) == 1 or (same_family and not hosts.isdisjoint(_WILDCARDS))


def _leads_to(url: Url, address: Address) -> bool:
    """Whether calls to the URL would come to the listener at the address."""
    there = Address(url.host, url.port, None)
    is_here = is_loopback(url.host) or url.host in _WILDCARDS or _host(there) == _host(address)
    return is_here and _meet(there, address)


def _host(address: Address) -> str:
    host = (address.host or "").lower()
    return "localhost" if host.endswith(".localhost") else host


def _check_scope(config: Config, preset: Preset, problems: Problems) -> None:
    """The header that names a merchant or an environment reaches calls, and what it holds may be written down."""
    for place, source in (("merchant", config.merchant), ("environment", config.environment)):
        name = (source.header or "").lower()
        expected = f"expected a header that names the {place}, found {source.header}"
        if name in CREDENTIAL_HEADERS:
            problems.add(f"{place}.header", f"{expected}: a credential, which the ledger must not hold (D4)")
        elif name in HOP_HEADERS or name.startswith("safepost-"):
            problems.add(f"{place}.header", f"{expected}, which no call carries: each would get 400 (H1)")
        elif name == preset.key.header.lower():
            problems.add(f"{place}.header", f"{expected}: the key, which is another for each submission")


def _listen(config: Config) -> tuple[Listen, ...]:
    return tuple(
        Listen(
            address=listener.address,
            cert_file=listener.tls.cert_file if listener.tls else None,
            key_file=listener.tls.key_file if listener.tls else None,
        )
        for listener in config.listen
    )


def _settings(config: Config, preset: Preset, platform: Platform, *, file: str, version: str) -> Settings:
    store, lookups = config.store, config.lookups
    return Settings(
        file=file,
        version=version,
        mode=config.mode,
        listen=_listen(config),
        admin=config.admin,
        admin_token=config.admin_token,
        admin_url=config.admin_url.rstrip("/") if config.admin_url else _admin_url(config.admin),
        events=EventsSettings(
            listen=config.events.listen,
            header=config.events.header,
            secret=config.events.secret,
            tolerance_ms=config.events.tolerance,
        ),
        workers=config.workers,
        merchant=_scope_part(config.merchant),
        environment=_scope_part(config.environment),
        platform=platform,
        advice=PlatformAdvice(
            attempt_timeout_ms_min=preset.retry.attempt_timeout_min,
            lookup_interval_ms_min=preset.lookup_interval_min,
            lookup_lag_ms_min=preset.lookup_lag,
        ),
        upstream=_upstream(config.upstream),
        store=StoreSettings(
            url=store.url,
            on_failure=store.on_failure,
            timeout_ms=store.timeout,
            lease_ms=store.lease,
            secret=store.secret,
            journal=store.journal,
        ),
        budget=BudgetSettings(**dict(config.retry.budget)),
        breaker=BreakerSettings(
            enabled=config.breaker.enabled,
            failures=config.breaker.failures,
            window_ms=config.breaker.window,
            open_for_ms=config.breaker.open_for,
        ),
        answer_within_ms=config.answer_within,
        wait_timeout_ms=config.wait_timeout,
        lookups=LookupSettings(
            enabled=lookups.enabled,
            schedule_ms=tuple(lookups.schedule),
            then_every_ms=lookups.then_every,
            until_ms=lookups.until,
            min_interval_ms=lookups.min_interval,
            lag_ms=lag_ms(config, preset),
            misses=lookups.misses,
            rate=lookups.rate,
        ),
        limits=LimitSettings(
            body_bytes=config.limits.body,
            headers_bytes=config.limits.headers,
            stored_response_bytes=config.limits.stored_response,
            connections=config.limits.connections,
        ),
        drain_timeout_ms=config.drain_timeout,
        traces_endpoint=config.traces.endpoint,
        traces_service=config.traces.service,
        log_level=config.log.level,
        log_format=config.log.format,
        log_successes=config.log.successes,
    )


def _upstream(upstream: Upstream) -> UpstreamSettings:
    return UpstreamSettings(
        url=upstream.url,
        credentials=dict(upstream.authorization or {}),
        connect_timeout_ms=upstream.connect_timeout,
        max_connections=upstream.max_connections,
        ca_file=upstream.tls.ca_file,
        cert_file=upstream.tls.cert_file,
        key_file=upstream.tls.key_file,
        verify=upstream.tls.verify,
    )


def _scope_part(source: ScopeSource) -> ScopePart:
    return ScopePart(name=source.name, header=source.header)


def _admin_url(admin: Address) -> str:
    return "http://localhost" if admin.path is not None else f"http://{admin}"


def digest(*texts: str) -> str:
    """A short name for this very configuration and preset (O5)."""
    return hashlib.sha256("\x00".join(texts).encode("utf-8", "surrogatepass")).hexdigest()[:12]
