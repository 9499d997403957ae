"""The application: the only place where concrete classes meet. It holds no rule about payments."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from proxy import loops, signals
from proxy.admin import Admin
from proxy.clock import SystemClock
from proxy.config import ConfigError, Settings
from proxy.config.rules import Address
from proxy.core.http import Headers, Response
from proxy.core.problem import Problem, render
from proxy.generation import Generation, platform_tls
from proxy.observe import Observer
from proxy.owed import OwedWrites
from proxy.ports import Clock, Exchange, Store, StoreUnavailable
from proxy.resolver import Resolver
from proxy.stores import make_store
from proxy.stores.metered import MeteredStore
from proxy.stores.tasks import stop
from proxy.wire import descriptors
from proxy.wire.caller import TOO_MANY_CONNECTIONS, ListenerLimits
from proxy.wire.heads import HeadLimits
from proxy.wire.listener import Listener, listen
from proxy.wire.sockets import Endpoint
from proxy.wire.tls import TlsFiles, TlsFilesUnusable, client_context
from proxy.workers import Worker, supervise

DRAIN_GRACE_MS = 250
"""Between failing readiness and refusing connections: a balancer that looks often enough goes first."""
RESOLVER_PAUSE_MS = 1_000  # after a fault in it: what caused it may be there still
PAY_PAUSE_MS = 500  # between two tries to write what the store could not take (D3)
ANSWER_GRACE_MS = 2_000  # for the last answers to leave, once nothing runs any more


@dataclass(slots=True)
class App:
    """One running process: listeners, driver, store, resolver, admin. Made by `start`, ended by `stop`."""

    clock: Clock
    store: Store
    observer: Observer
    owed: OwedWrites
    now: Generation
    retired: list[Generation] = field(default_factory=list)
    admin: Admin | None = None
    listeners: list[Listener] = field(default_factory=list)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _resolving: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, settings: Settings, *, worker: Worker | None = None) -> Self:
        """Open the store, then the listeners.

        Args: worker: which of several processes this is; None for a process of its own.
        Raises: StoreUnavailable, OSError for an address that can't be had, TlsFilesUnusable.
        """
        clock = SystemClock()
        share = worker.share if worker else None
        observer = Observer(settings=settings, clock=clock, share=share)
        made = make_store(
            settings.store.url,
            clock=clock,
            timeout_ms=settings.store.timeout_ms,
            secret=settings.store.secret.reveal().encode() if settings.store.secret else None,
            journal=Path(settings.store.journal) if settings.store.journal else None,
            notify=observer.store_notice,
        )
        store = MeteredStore(made, clock, observer.store_step)
        observer.store_opened(await store.open())
        owed = OwedWrites(store)
        now = Generation.of(settings, clock=clock, store=store, observer=observer, owed=owed)
        app = cls(clock, store, observer, owed, now)
        try:
            await app._open(worker)
        except BaseException:
            await app.stop()
            raise
        return app

    async def _open(self, worker: Worker | None) -> None:
        settings = self.now.settings
        try:
            await self._refresh_holdings()  # before the first scrape: money in doubt is never said to be none
            await self.now.resolver.count_backlog()
        except StoreUnavailable as error:
            self.observer.store_down(str(error))
        if worker is None or worker.serves_admin:
            self.admin = Admin(self)
            await self.admin.start()
        limits = ListenerLimits(
            head=HeadLimits(head_bytes_max=settings.limits.headers_bytes),
            connections_max=_callers_max(settings),
        )
        protected = frozenset({route.key.header.lower() for route in settings.platform.routes})
        for where in settings.listen:
            tls = TlsFiles(cert_file=where.cert_file, key_file=where.key_file) if where.cert_file else None
            listener = await listen(
                _endpoint(where.address, tls),
                self._handle,
                limits,
                refusal=self._refusal,
                on_error=self.observer.fault,
                protected=protected or frozenset({b"idempotency-key"}),
                reuse_port=worker is not None,
                sock=worker.sockets.get(str(where.address)) if worker else None,
            )
            self.listeners.append(listener)
        self.observer.watch(driver=self.now.driver, resolver=self.now.resolver)
        self._every(max(50, settings.store.lease_ms // 9), self._renew_leases)
        self._every(PAY_PAUSE_MS, self._pay_owed)
        self._every(2_000, self._refresh_holdings)
        self._every(3_600_000, self._purge)
        self._resolving = asyncio.create_task(self._resolve(self.now.resolver), name="resolver")

    async def _handle(self, exchange: Exchange) -> None:
        await self.now.handle(exchange)

    def _refusal(self, status: int, code: str, message: str, field: str | None) -> Response:
        """The listener's own answers. From 500 on they are about calls whose ledger nobody read (H8).

        Over the cap not even the call was read, so nothing is said about its knowledge.
        """
        is_ours = status >= 500
        retry_after_ms = 1_000 if is_ours else None
        told = Problem(
            status=status,
            code=code,
            message=message,
            field=field,
            retryable=is_ours,
            retry_after_ms=retry_after_ms,
        )
        response = render(told, self.now.settings.platform.error_shape)
        if not is_ours or code == TOO_MANY_CONNECTIONS:
            return response
        unread: Headers = ((b"Safepost-Knowledge", b"unknown"), (b"Safepost-Attempts", b"0"))
        return Response(response.status, (*response.headers, *unread), response.body, response.reason)

    def _every(self, period_ms: int, step: Callable[[], Awaitable[object]]) -> None:
        """Repeat a step for the process's life. Neither a store that is down nor a bug of ours ends it."""

        async def repeat() -> None:
            while True:
                await asyncio.sleep(period_ms / 1000)
                try:
                    await step()
                except StoreUnavailable as error:
                    self.observer.store_down(str(error))
                except Exception as error:  # noqa: BLE001 -- told; without this loop leases would run out
                    self.observer.fault(error)

        task = asyncio.create_task(repeat(), name=step.__name__)
        task.add_done_callback(self.observer.task_ended)
        self._tasks.append(task)

    async def _resolve(self, resolver: Resolver) -> None:
        """Look doubt up for the process's life: a bug met on one operation must not end it for all others."""
        while True:
            try:
                await resolver.run()
            except Exception as error:  # noqa: BLE001 -- told; without this loop no doubt would ever end
                self.observer.fault(error)
            await asyncio.sleep(RESOLVER_PAUSE_MS / 1000)

    @property
    def generations(self) -> list[Generation]:
        """The current one first, then those whose calls still run."""
        return [self.now, *self.retired]

    async def _renew_leases(self) -> None:
        for generation in self.generations:
            await generation.driver.renew_leases()

    async def _pay_owed(self) -> None:
        if len(self.owed):
            await self.owed.pay()
        for generation in [one for one in self.retired if not one.under_way]:
            self.retired.remove(generation)
            await generation.upstream.close()

    async def _refresh_holdings(self) -> None:
        held = await self.store.holdings()
        self.observer.holds(held, store_ahead_ms=self.store.now().wall_ms - self.clock.wall_ms())
        if not self.observer.is_store_up:
            await self.store.ping()  # no call may come for hours that would show that it takes writes again

    async def _purge(self) -> None:
        routes = self.now.settings.platform.routes
        await self.store.purge(record_ms={route.name: route.record_ms for route in routes})

    @property
    def urls(self) -> list[str]:
        """Where callers reach it: `host:port`, `[v6]:port` or `unix:/path`."""
        return [listener.address for listener in self.listeners]

    @property
    def is_draining(self) -> bool:
        return self.now.driver.is_draining

    async def reload(self, settings: Settings) -> tuple[str, ...]:
        """Use another configuration from the next call on (O4).

        Returns: the keys whose change needs a restart; they keep their old values.
        """
        settings, kept = _as_reloaded(settings, self.now.settings)
        now = Generation.of(
            settings,
            clock=self.clock,
            store=self.store,
            observer=self.observer,
            owed=self.owed,
            before=self.now,
        )
        if now.resolver.is_enabled:
            now.resolver.backlog = self.now.resolver.backlog  # until its own first pass
        self.retired.append(self.now)
        self.now = now
        before, self._resolving = (
            self._resolving,
            asyncio.create_task(self._resolve(now.resolver), name="resolver"),
        )
        self.observer.reloaded(settings)
        self.observer.watch(driver=now.driver, resolver=now.resolver)
        await stop(before)
        return kept

    async def drain(self) -> None:
        """O3: readiness fails, back-offs end, attempts in flight finish, every caller is answered."""
        drivers = [generation.driver for generation in self.generations]
        for driver in drivers:
            driver.start_drain()
        await asyncio.sleep(DRAIN_GRACE_MS / 1000)
        for listener in self.listeners:
            listener.drain()
        ends_ms = self.clock.monotonic_ms() + self.now.settings.drain_timeout_ms
        for driver in drivers:
            await driver.runs_ended(within_ms=max(0, ends_ms - self.clock.monotonic_ms()))
        left = sum(len(driver.runs) for driver in drivers)
        if left:
            self.observer.drain_cut_short(left)
            for driver in drivers:
                driver.give_up()
        for listener in self.listeners:
            left_ms = ends_ms - self.clock.monotonic_ms()  # for calls on no guarded route, which have no run
            await listener.close(grace_ms=max(ANSWER_GRACE_MS, left_ms))
        while not await self.owed.pay():
            if self.clock.monotonic_ms() >= ends_ms:
                break  # what is left becomes unknown when its lease ends, or was never recorded (D3)
            await asyncio.sleep(PAY_PAUSE_MS / 1000)

    async def stop(self) -> None:
        """Close everything. What was in flight is unknown from now on, and found again at the next start."""
        for listener in self.listeners:
            await listener.close(grace_ms=0)
        await asyncio.gather(*(stop(task) for task in (*self._tasks, self._resolving)))
        if self.admin is not None:
            await self.admin.close()
        for generation in self.generations:
            await generation.upstream.close()
        await self.store.close()
        await self.observer.end_traces()
        self.observer.close()


def _as_reloaded(settings: Settings, old: Settings) -> tuple[Settings, tuple[str, ...]]:
    """The new settings with what a running process keeps, and the keys that they would have changed (O4)."""
    fixed = ("listen", "admin", "admin_token", "store", "workers", "events")
    kept = tuple(name for name in fixed if getattr(settings, name) != getattr(old, name))
    return replace(settings, **{name: getattr(old, name) for name in fixed}), kept


def _callers_max(settings: Settings) -> int:
    wanted, upstream = settings.limits.connections, settings.upstream.max_connections
    return descriptors.callers_max(wanted, upstream=upstream, limit=descriptors.allowed())


def _endpoint(address: Address, tls: TlsFiles | None) -> Endpoint:
    return Endpoint(host=address.host or "", port=address.port or 0, path=address.path, tls=tls)


ReadAgain = Callable[[], Settings]
"""Reads the configuration anew (O4); raises ConfigError."""


def run(settings: Settings, *, announce: Callable[[str], None], read_again: ReadAgain | None = None) -> int:
    """Run the proxy, in one process or in `workers` of them; the process's exit code (C1).

    Raises: StoreUnavailable, OSError for an address that can't be had, TlsFilesUnusable.
    """
    signals.ignore_meaningless()
    signals.hold_reload()
    if settings.workers == 1:
        signals.end_at_once()
        return loops.run(serve(settings, announce=announce, read_again=read_again))

    def work(worker: Worker) -> int:
        say = announce if worker.serves_admin else _unsaid
        try:
            return loops.run(serve(worker.settings, announce=say, read_again=read_again, worker=worker))
        except (StoreUnavailable, OSError, TlsFilesUnusable) as error:
            announce(f"worker {worker.number}: {error}")
            return 1

    def read_for_successors(old: Settings) -> Settings:
        if read_again is None:
            return old
        settings, _kept = _as_reloaded(read_again(), old)
        client_context(platform_tls(settings))
        return settings

    return supervise(
        settings,
        work=work,
        read_again=read_for_successors,
        now_ms=SystemClock().monotonic_ms,
        say=announce,
    )


def _unsaid(_line: str) -> None:
    """The first worker speaks for all."""


async def serve(
    settings: Settings,
    *,
    announce: Callable[[str], None],
    read_again: ReadAgain | None = None,
    worker: Worker | None = None,
) -> int:
    """Run until SIGTERM or SIGINT, then drain. Announces each listener when it accepts connections (C1)."""
    descriptors.allow_all()
    stopping, reloading = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in signals.RELOAD:
        loop.add_signal_handler(number, reloading.set)
    signals.take_reload()
    app = await App.start(settings, worker=worker)
    loops.tell_faults(app.observer.fault)
    _spare_the_collector()
    for number in signals.STOP:
        loop.add_signal_handler(number, stopping.set)
    reloader = asyncio.create_task(_reload_when_asked(app, reloading, read_again), name="reload")
    if settings.store.url.startswith("sqlite:"):
        announce(f"store {settings.store.url} guards this host only; several hosts need Redis")
    for url in app.urls:
        announce(f"listening on {url}")
    fits, wanted = _callers_max(settings), settings.limits.connections
    if fits < wanted:
        announce(f"the limit of open files holds {fits} callers' connections; limits.connections is {wanted}")
    if app.admin is not None:
        if app.admin.events_url is not None:
            announce(f"events on {app.admin.events_url}")
        announce(f"admin on {app.admin.url}")
    try:
        await stopping.wait()
        reloader.cancel()  # a generation made from here on would take calls, and nobody would wait for their end
        await app.drain()
    finally:
        reloader.cancel()
        await app.stop()
    return 0


def _spare_the_collector() -> None:
    """What start-up made stays for good: the cycle collector need not walk it, nor come every 700 objects.

    The hot path makes values without cycles, which die by their counts: 6 % of its time went to looking.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


async def _reload_when_asked(app: App, asked: asyncio.Event, read_again: ReadAgain | None) -> None:
    """An invalid file changes nothing and is reported (O4)."""
    while True:
        await asked.wait()
        asked.clear()
        if read_again is None:
            continue
        try:
            kept = await app.reload(read_again())
        except ConfigError as error:
            app.observer.reload_refused(tuple(str(problem) for problem in error.problems))
            continue
        except TlsFilesUnusable as error:
            app.observer.reload_refused((str(error),))
            continue
        if kept:
            app.observer.reload_incomplete(kept)
