"""The application: the only place where concrete classes meet. It holds no rule about payments."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Self

from proxy.admin import Admin
from proxy.calls import Calls, CallSettings
from proxy.clock import SystemClock
from proxy.config import ConfigError, Settings, load_settings
from proxy.config.model import Mode
from proxy.config.rules import Address
from proxy.core.budget import Breaker, RetryBudget
from proxy.core.http import RequestHead, Response, first
from proxy.core.messages import Fact
from proxy.core.model import Scope
from proxy.core.problem import Problem, invalid_request, render
from proxy.core.resolve import LookupPolicy
from proxy.core.routes import RouteTable
from proxy.core.rules import OnFailure
from proxy.driver import Driver, DriverSettings, Run
from proxy.observe import Observer
from proxy.ports import Clock, Store, StoreUnavailable
from proxy.resolver import Resolver
from proxy.stores import make_store
from proxy.stores.metered import MeteredStore
from proxy.wire.caller import ListenerLimits
from proxy.wire.heads import HeadLimits
from proxy.wire.listener import Listener, listen
from proxy.wire.pool import PoolLimits
from proxy.wire.sockets import Endpoint
from proxy.wire.tls import TlsFiles
from proxy.wire.upstream import HttpUpstream

DRAIN_GRACE_MS = 250
"""Between failing readiness and refusing connections, so that a balancer that looks often enough goes first."""


@dataclass(slots=True)
class App:
    """One running process: listeners, driver, store, resolver, admin. Made by `start`, ended by `stop`."""

    settings: Settings
    clock: Clock
    store: Store
    upstream: HttpUpstream
    observer: Observer
    driver: Driver
    calls: Calls
    resolver: Resolver
    admin: Admin | None = None
    listeners: list[Listener] = field(default_factory=list)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    @classmethod
    async def start(cls, settings: Settings, *, reuse_port: bool = False, with_admin: bool = True) -> Self:
        """Open the store, then the listeners.

        Raises: StoreUnavailable, OSError for an address that can't be had, TlsFilesUnusable.
        """
        clock = SystemClock()
        instance = secrets.token_hex(6)
        observer = Observer(settings=settings, clock=clock)
        made = make_store(
            settings.store.url,
            clock=clock,
            timeout_ms=settings.store.timeout_ms,
            secret=settings.store.secret.reveal().encode() if settings.store.secret else None,
            notify=observer.store_notice,
        )
        store = MeteredStore(made, clock, observer.store_step)
        report = await store.open()
        observer.store_opened(report)
        upstream = _upstream(settings, clock, observer)
        driver = _driver(settings, clock, store, upstream, observer, instance)
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
        app = cls(settings, clock, store, upstream, observer, driver, calls, resolver)
        try:
            await app._open(reuse_port=reuse_port, with_admin=with_admin, report_of=lambda: report)
        except BaseException:
            await app.stop()
            raise
        return app

    async def _open(self, *, reuse_port: bool, with_admin: bool, report_of: Callable[[], object]) -> None:
        if with_admin:
            self.admin = Admin(
                settings=self.settings,
                store=self.store,
                clock=self.clock,
                observer=self.observer,
                resolver=self.resolver,
                is_draining=lambda: self.driver.is_draining,
            )
            await self.admin.start()
        limits = ListenerLimits(
            head=HeadLimits(head_bytes_max=self.settings.limits.headers_bytes),
            connections_max=self.settings.limits.connections,
        )
        protected = frozenset({route.key.header.lower() for route in self.settings.platform.routes})
        for where in self.settings.listen:
            tls = TlsFiles(cert_file=where.cert_file, key_file=where.key_file) if where.cert_file else None
            self.listeners.append(
                await listen(
                    _endpoint(where.address, tls),
                    self.calls,
                    limits,
                    refusal=self._refusal,
                    on_error=self.observer.fault,
                    protected=protected or frozenset({b"idempotency-key"}),
                    reuse_port=reuse_port,
                )
            )
        self.observer.watch(
            driver=self.driver, upstream=self.upstream, store=self.store, resolver=self.resolver
        )
        self._every(max(50, self.settings.store.lease_ms // 9), self.driver.renew_leases)
        self._every(500, self._pay_owed)
        self._every(2_000, self._refresh_holdings)
        self._every(3_600_000, self._purge)
        self._tasks.append(asyncio.create_task(self.resolver.run(), name="resolver"))

    def _refusal(self, status: int, code: str, message: str, field: str | None) -> Response:
        told = Problem(status=status, code=code, message=message, field=field)
        return render(told, self.settings.platform.error_shape)

    def _every(self, period_ms: int, step: Callable[[], Awaitable[object]]) -> None:
        """Repeat a step for the process's life. A fault in it is reported and never ends the repetition."""

        async def repeat() -> None:
            while True:
                await asyncio.sleep(period_ms / 1000)
                try:
                    await step()
                except StoreUnavailable as error:
                    self.observer.store_down(str(error))

        name = getattr(step, "__name__", "step")
        task = asyncio.create_task(repeat(), name=name)
        task.add_done_callback(self.observer.task_ended)
        self._tasks.append(task)

    async def _pay_owed(self) -> None:
        if self.driver.owed:
            await self.driver.pay_owed()

    async def _refresh_holdings(self) -> None:
        self.observer.holdings = await self.store.holdings()

    async def _purge(self) -> None:
        await self.store.purge(record_ms={r.name: r.record_ms for r in self.settings.platform.routes})

    @property
    def urls(self) -> list[str]:
        """Where callers reach it, as base URLs; `unix:` paths as they are."""
        return [listener.address for listener in self.listeners]

    async def drain(self) -> None:
        """O3: readiness fails, back-offs end, attempts in flight finish, every caller is answered."""
        self.driver.start_drain()
        await asyncio.sleep(DRAIN_GRACE_MS / 1000)
        for listener in self.listeners:
            listener.drain()
        ends_ms = self.clock.monotonic_ms() + self.settings.drain_timeout_ms
        while self.driver.runs and self.clock.monotonic_ms() < ends_ms:
            await asyncio.sleep(0.02)
        if self.driver.runs:
            self.observer.drain_cut_short(len(self.driver.runs))
            self.driver.give_up()
        for listener in self.listeners:
            await listener.close(grace_ms=2_000)
        await self.driver.pay_owed()

    async def stop(self) -> None:
        """Close everything. What was in flight is unknown from now on, and is found again at the next start."""
        for listener in self.listeners:
            await listener.close(grace_ms=0)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.admin is not None:
            await self.admin.close()
        await self.upstream.close()
        await self.store.close()
        self.observer.close()


def _endpoint(address: Address, tls: TlsFiles | None) -> Endpoint:
    return Endpoint(host=address.host or "", port=address.port or 0, path=address.path, tls=tls)


def _upstream(settings: Settings, clock: Clock, observer: Observer) -> HttpUpstream:
    given = settings.upstream
    return HttpUpstream(
        str(given.url),
        monotonic_ms=clock.monotonic_ms,
        on_error=observer.fault,
        tls=TlsFiles(
            ca_file=given.ca_file, cert_file=given.cert_file, key_file=given.key_file, verify=given.verify
        ),
        connect_timeout_ms=given.connect_timeout_ms,
        pool=PoolLimits(connections_max=given.max_connections),
    )


def _driver(
    settings: Settings,
    clock: Clock,
    store: Store,
    upstream: HttpUpstream,
    observer: Observer,
    instance: str,
) -> Driver:
    budget, breaker = settings.budget, settings.breaker

    def tell(fact: Fact, run: Run) -> None:
        observer.fact(fact, run)

    return Driver(
        store=store,
        upstream=upstream,
        clock=clock,
        platform=settings.platform,
        settings=DriverSettings(
            lease_ms=settings.store.lease_ms,
            wait_timeout_ms=settings.wait_timeout_ms,
            stored_bytes_max=settings.limits.stored_response_bytes,
        ),
        budget=RetryBudget(ratio=budget.ratio, floor=budget.floor) if budget.enabled else None,
        breaker=Breaker(
            failures=breaker.failures, window_ms=breaker.window_ms, open_for_ms=breaker.open_for_ms
        )
        if breaker.enabled
        else None,
        instance=instance,
        tell=tell,
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
        rate_per_ms=given.rate.per_ms,
        is_enabled=given.enabled,
        authorization=settings.authorization_of_lookup,
        tell=lambda fact: observer.fact(fact, None),
        instance=instance,
    )


def _call_settings(settings: Settings) -> CallSettings:
    def part(head: RequestHead, name: str | None, header: str | None) -> str | None:
        if header is None:
            return name
        value = first(head.headers, header.lower().encode("latin-1"))
        return value.decode("latin-1") if value else None

    fixed = (
        Scope(settings.merchant.name or "", settings.environment.name or "")
        if settings.has_fixed_scope
        else None
    )

    def scope_of(head: RequestHead) -> Scope | Problem:
        if fixed is not None:
            return fixed
        merchant = part(head, settings.merchant.name, settings.merchant.header)
        environment = part(head, settings.environment.name, settings.environment.header)
        if merchant and environment:
            return Scope(merchant, environment)
        missing = settings.environment.header if merchant else settings.merchant.header
        message = f"The {missing} header, which names whose payment it is, is missing, so nothing was sent."
        return invalid_request(message, field=missing)

    return CallSettings(
        body_bytes_max=settings.limits.body_bytes,
        answer_within_ms=settings.answer_within_ms,
        admin_url=settings.admin_url.rstrip("/"),
        scope_of=scope_of,
        authorization=settings.authorization_of_call,
        is_observing=settings.mode is Mode.OBSERVE,
    )


async def serve(settings: Settings, *, announce: Callable[[str], None], reuse_port: bool = False) -> int:
    """Run until SIGTERM or SIGINT, then drain. Prints one line per listener when it accepts connections (C1).

    Returns: the process's exit code.
    """
    app = await App.start(settings, reuse_port=reuse_port)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    loop.add_signal_handler(signal.SIGHUP, lambda: app.observer.reload_asked())
    if settings.store.url.startswith("sqlite:"):
        announce(f"store {settings.store.url} guards this host only; several hosts need Redis")
    for url in app.urls:
        announce(f"listening on {url}")
    if app.admin is not None:
        announce(f"admin on {app.admin.url}")
    try:
        await stopping.wait()
        await app.drain()
    finally:
        await app.stop()
    return 0
