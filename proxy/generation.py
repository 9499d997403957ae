"""What one reading of the configuration becomes: the objects that calls run on, joined (O4).

Like `app`, a place where concrete classes meet; it holds no rule about payments.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Self

from proxy.calls import Calls, CallSettings
from proxy.config import Settings
from proxy.config.model import Mode
from proxy.core.budget import Breaker, RetryBudget
from proxy.core.http import RequestHead
from proxy.core.model import Scope
from proxy.core.problem import Problem
from proxy.core.resolve import LookupPolicy
from proxy.core.routes import RouteTable
from proxy.core.scopes import scope_name
from proxy.driver import Driver, DriverSettings
from proxy.observe import Observer
from proxy.owed import OwedWrites
from proxy.ports import CallHandler, Clock, Exchange, Store
from proxy.resolver import Resolver
from proxy.shadowing import ShadowCalls
from proxy.wire.pool import PoolLimits
from proxy.wire.tls import TlsFiles
from proxy.wire.upstream import HttpUpstream


@dataclass(slots=True)
class Generation:
    """What one reading of the configuration made. A call stays with the generation that it began in (O4)."""

    settings: Settings
    upstream: HttpUpstream
    driver: Driver
    calls: CallHandler
    resolver: Resolver
    under_way: int = 0
    """Calls from their heads on, also those whose bodies still come: its connections are theirs to the end."""

    async def handle(self, exchange: Exchange) -> None:
        self.under_way += 1
        try:
            await self.calls(exchange)
        finally:
            self.under_way -= 1

    @classmethod
    def of(
        cls,
        settings: Settings,
        *,
        clock: Clock,
        store: Store,
        observer: Observer,
        owed: OwedWrites,
        before: Generation | None = None,
    ) -> Self:
        """Join them.

        Args: owed: the process's, since what one generation still has to write holds the next one's calls back.
            before: the generation that this one takes over from.
        """
        # Of this generation alone: calls are numbered from 0 again, and who owns a claim is told by this and the
        # number. Two calls with one owner's token would both lead (P4).
        instance = secrets.token_hex(6)
        upstream = _upstream(settings, clock, observer)
        budget, breaker = _protections(settings, before)
        driver = Driver(
            store=store,
            upstream=upstream,
            clock=clock,
            platform=settings.platform,
            settings=DriverSettings(
                lease_ms=settings.store.lease_ms,
                wait_timeout_ms=settings.wait_timeout_ms,
                stored_bytes_max=settings.limits.stored_response_bytes,
            ),
            budget=budget,
            breaker=breaker,
            instance=instance,
            tell=observer.fact,
            owed=owed,
        )
        resolver = _resolver(settings, clock, store, upstream, observer, instance)
        calls = Calls(
            platform=settings.platform,
            settings=_call_settings(settings),
            driver=driver,
            store=store,
            upstream=upstream,
            clock=clock,
            tell=lambda fact: observer.fact(fact, None),
            routes=RouteTable(settings.platform.routes),
            instance=instance,
            look_up=resolver.hint,
        )
        handler = ShadowCalls(calls, calls.tell) if settings.mode is Mode.OBSERVE else calls
        return cls(settings, upstream, driver, handler, resolver)


def platform_tls(settings: Settings) -> TlsFiles:
    """The files for connections to the platform."""
    given = settings.upstream
    return TlsFiles(
        ca_file=given.ca_file, cert_file=given.cert_file, key_file=given.key_file, verify=given.verify
    )


def _upstream(settings: Settings, clock: Clock, observer: Observer) -> HttpUpstream:
    given = settings.upstream
    return HttpUpstream(
        str(given.url),
        monotonic_ms=clock.monotonic_ms,
        on_error=observer.fault,
        tls=platform_tls(settings),
        connect_timeout_ms=given.connect_timeout_ms,
        pool=PoolLimits(connections_max=given.max_connections),
    )


def _protections(settings: Settings, before: Generation | None) -> tuple[RetryBudget | None, Breaker | None]:
    """What protects the platform (R7). It keeps what it has seen where a reload leaves both of them alone."""
    budget, breaker = settings.budget, settings.breaker
    if before is not None:
        old = before.settings
        if (old.upstream.url, old.budget, old.breaker) == (settings.upstream.url, budget, breaker):
            return before.driver.budget, before.driver.breaker
    return (
        RetryBudget(ratio=budget.ratio, floor=budget.floor) if budget.enabled else None,
        Breaker(failures=breaker.failures, window_ms=breaker.window_ms, open_for_ms=breaker.open_for_ms)
        if breaker.enabled
        else None,
    )


def _resolver(
    settings: Settings,
    clock: Clock,
    store: Store,
    upstream: HttpUpstream,
    observer: Observer,
    instance: str,
) -> Resolver:
    given = settings.lookups
    return Resolver(
        store=store,
        upstream=upstream,
        clock=clock,
        platform=settings.platform,
        policy=LookupPolicy(
            schedule_ms=given.schedule_ms,
            then_every_ms=given.then_every_ms,
            until_ms=given.until_ms,
            min_interval_ms=given.min_interval_ms,
            lag_ms=given.lag_ms,
            misses=given.misses,
        ),
        rate_count=given.rate.count,
        rate_per_ms=given.rate.per_ms * settings.workers,  # of all workers together
        is_enabled=given.enabled,
        authorization=settings.authorization_of_lookup,
        tell=lambda fact: observer.fact(fact, None),
        needs_person=observer.needs_person,
        instance=instance,
    )


def _call_settings(settings: Settings) -> CallSettings:
    fixed = (
        Scope(settings.merchant.name or "", settings.environment.name or "")
        if settings.has_fixed_scope
        else None
    )

    def scope_of(head: RequestHead) -> Scope | Problem:
        if fixed is not None:
            return fixed
        names = []
        for part in (settings.merchant, settings.environment):
            name = scope_name(head.headers, fixed=part.name, header=part.header)
            if isinstance(name, Problem):
                return name
            names.append(name)
        return Scope(names[0], names[1])

    return CallSettings(
        body_bytes_max=settings.limits.body_bytes,
        answer_within_ms=settings.answer_within_ms,
        admin_url=settings.admin_url.rstrip("/"),
        scope_of=scope_of,
        authorization=settings.authorization_of_call,
        is_observing=settings.mode is Mode.OBSERVE,
    )
