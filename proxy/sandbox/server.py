"""The platform as a real server: sockets, faults and the control endpoints around `Platform`."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestHandler

from proxy.sandbox import endings
from proxy.sandbox.bank import Bank
from proxy.sandbox.control import Control
from proxy.sandbox.faults import FaultPlan, Plan, Subject
from proxy.sandbox.gate import Gate
from proxy.sandbox.keys import KeyBook
from proxy.sandbox.ledger import Ledger, RequestLog, SeenRequest
from proxy.sandbox.objects import Answer, Clock, Json, Terms
from proxy.sandbox.platform import KEY_HEADER, Call, Platform, read_call
from proxy.sandbox.refusals import error_body
from proxy.sandbox.rules import FaultRule, read_rule
from proxy.sandbox.webhooks import Webhooks

BODY_BYTES_MAX: Final = 16 * 1024 * 1024
"""Larger than any limit that a proxy before the sandbox is tested with."""

HEAD_BYTES_MAX: Final = 64 * 1024
CLOSE_TIMEOUT_S: Final = 2.0
CONTROL: Final = "/_sandbox"


class LoopClock:
    """The running loop's clock for durations, the machine's for dates."""

    def monotonic_ms(self) -> int:
        return round(asyncio.get_running_loop().time() * 1000)

    def wall_ms(self) -> int:
        return round(datetime.now(UTC).timestamp() * 1000)


@dataclass(frozen=True, slots=True)
class Settings:
    """How this platform behaves where its contract leaves a choice, or a test wants it shorter.

    Args: tokens: API key to merchant; None takes any key, for `merchant`. The environment is the key's
        prefix: `sk_live_` is live, everything else test. key_retention_s: 7 days by the contract. wait_s: how
        long a second request with a key waits for the first; the contract's synchronous wait is about 15 s.
        webhook_url, webhook_secret, webhook_automatic: see `Webhooks`.
    """

    tokens: Mapping[str, str] | None = None
    merchant: str = "default"
    key_retention_s: float = 7 * 24 * 3600.0
    wait_s: float = 15.0
    terms: Terms = field(default_factory=Terms)
    webhook_url: str | None = None
    webhook_secret: str | None = None
    webhook_automatic: bool = True
    clock: Clock = field(default_factory=LoopClock)


class NoRequestBytes(logging.Filter):
    """Keeps what a client sent out of the log: aiohttp would print a malformed request, card and all."""

    def filter(self, record: logging.LogRecord) -> bool:
        cause = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
        if isinstance(cause, HttpProcessingError):
            record.msg, record.args = "refused a malformed request (%s)", (type(cause).__name__,)
            record.exc_info = record.exc_text = None
        return True


_LOGGER = logging.getLogger("proxy.sandbox.http")
_LOGGER.addFilter(NoRequestBytes())


class Sandbox:
    """A payment platform on a socket. Everything that its control endpoints do can be done here, too."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.ledger = Ledger()
        self.requests = RequestLog()
        self.faults = FaultPlan()
        self.webhooks = Webhooks(
            settings.clock,
            url=settings.webhook_url,
            secret=settings.webhook_secret,
            automatic=settings.webhook_automatic,
        )
        self.url = ""
        self._timers: set[asyncio.TimerHandle] = set()
        self._gates: dict[RequestHandler, Gate] = {}
        self._connections = 0
        self._server: asyncio.Server | None = None
        self._open_books()
        app = web.Application(client_max_size=BODY_BYTES_MAX)
        app.add_routes(Control(self).routes())
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            logger=_LOGGER,
            shutdown_timeout=CLOSE_TIMEOUT_S,
            auto_decompress=False,
            max_line_size=HEAD_BYTES_MAX,
            max_field_size=HEAD_BYTES_MAX,
            max_headers=1000,
        )

    @classmethod
    async def start(
        cls, host: str = "127.0.0.1", port: int = 0, *, settings: Settings | None = None
    ) -> Sandbox:
        """A sandbox that accepts connections; port 0 takes a free one. Raises: OSError."""
        sandbox = cls(settings or Settings())
        await sandbox._runner.setup()
        server = await asyncio.get_running_loop().create_server(sandbox._connect, host, port)
        sandbox._server = server
        bound = server.sockets[0].getsockname()
        name = f"[{bound[0]}]" if ":" in bound[0] else bound[0]
        sandbox.url = f"http://{name}:{bound[1]}"
        return sandbox

    async def close(self) -> None:
        """Stop, whatever hangs."""
        self._drop_timers()
        if self._server is not None:
            self._server.close()
        for gate in tuple(self._gates.values()):
            gate.reset()
        await self._runner.cleanup()
        await self.webhooks.close()

    def add_fault(self, rule: FaultRule | Mapping[str, object]) -> int:
        """Arm a fault; a mapping is read as the control endpoint's JSON. Raises: RefusedError."""
        return self.faults.add(rule if isinstance(rule, FaultRule) else read_rule(dict(rule)))

    def remove_fault(self, rule_id: int) -> None:
        self.faults.remove(rule_id)

    def settle_payment(self, payment_id: str, *, status: str) -> Json:
        """Bring a payment to a final status; its event goes out. Raises: RefusedError."""
        return self.bank.settle_payment(payment_id, status).view()

    def note_resolution(self, payment_id: str, *, resolution_status: str) -> Json:
        """Show how far the platform is with an open payment: `needs_query`, `manual_review`, `known`."""
        return self.bank.note_resolution(payment_id, resolution_status).view()

    def settle_refund(self, refund_id: str, *, status: str) -> Json:
        return self.bank.settle_refund(refund_id, status).view()

    def reset(self) -> None:
        """Start anew: no objects, keys, faults, events or records. Connections stay."""
        self._drop_timers()
        self.ledger.reset()
        self.requests.reset()
        self.faults.reset()
        self.webhooks.reset()
        self._keys.reset()
        self._open_books()

    def _open_books(self) -> None:
        settings = self.settings
        self.bank = Bank(
            settings.clock,
            terms=settings.terms,
            ledger=self.ledger,
            later=self._later,
            announce=self.webhooks.happened,
        )
        self._keys = KeyBook(settings.clock, retention_ms=round(settings.key_retention_s * 1000))
        self._platform = Platform(
            bank=self.bank,
            keys=self._keys,
            tokens=settings.tokens,
            merchant=settings.merchant,
            wait_s=settings.wait_s,
        )

    def _later(self, delay_s: float, act: Callable[[], None]) -> None:
        def due() -> None:
            self._timers.discard(handle)
            act()

        handle = asyncio.get_running_loop().call_later(delay_s, due)
        self._timers.add(handle)

    def _drop_timers(self) -> None:
        for handle in self._timers:
            handle.cancel()
        self._timers.clear()

    def _connect(self) -> Gate:
        server = self._runner.server
        assert server is not None  # noqa: S101 -- `start` has set the runner up before it listens
        return Gate(server(), doorman=self._before_read, on_made=self._made, on_lost=self._lost)

    def _made(self, gate: Gate) -> int:
        self._connections += 1
        self._gates[gate.inner] = gate
        return self._connections

    def _lost(self, gate: Gate) -> None:
        self._gates.pop(gate.inner, None)

    def _before_read(self, gate: Gate, method: str, path: str) -> bool:
        rule = None if path.startswith(CONTROL) else self.faults.take_before_read(method, path)
        if rule is None:
            return False
        seen = self.requests.arrived(
            connection=gate.number,
            at_ms=self.settings.clock.monotonic_ms(),
            method=method,
            path=path,
            key=None,
            order=None,
            refund=None,
            headers={},
            body=b"",
        )
        self.requests.answered(seen, answer=rule.fault, executed=False)
        if rule.reset is False:
            gate.close()
        else:
            gate.reset()
        return True

    async def _serve(self, request: web.Request) -> web.Response:
        gate = self._gates.get(request.protocol)
        try:
            body = await request.read()
        except web.HTTPRequestEntityTooLarge:
            message = f"the body is larger than {BODY_BYTES_MAX} bytes"
            return endings.response(Answer(413, error_body("body_too_large", message)))
        except (web.RequestPayloadError, ConnectionError):
            return web.Response(status=400)  # a part of a request is no request
        if gate is None:
            return web.Response(status=400)  # the client left before anything was read; nobody sees this
        call = read_call(
            request.method,
            request.rel_url.raw_path,
            request.rel_url.query,
            keys=tuple(request.headers.getall(KEY_HEADER, ())),
            authorization=request.headers.get("Authorization", ""),
            body=body,
        )
        if call.path.startswith(CONTROL):
            return endings.response(Answer(404, error_body("resource_not_found", "no such control endpoint")))
        subject = self._subject(call)
        seen = self.requests.arrived(
            connection=gate.number,
            at_ms=self.settings.clock.monotonic_ms(),
            method=call.method,
            path=request.raw_path,
            key=call.key,
            order=subject.order,
            refund=subject.refund,
            headers={name.lower(): value for name, value in request.headers.items()},
            body=body,
        )
        return await self._play(call, self.faults.take(subject), gate, seen)

    async def _play(self, call: Call, plan: Plan, gate: Gate, seen: SeenRequest) -> web.Response:
        """Act on a request as far as its faults let it, note how it ended, and end it so."""
        ending = plan.ending
        executes = ending is None or ending.executes
        if plan.early_hints:
            gate.write(endings.EARLY_HINTS)
        said = web.Response()
        if executes:
            said = endings.response(await self._platform.answer(call, plan.work))
        elif plan.work.delay_s > 0:
            await asyncio.sleep(plan.work.delay_s)
        if plan.answer_late_s > 0:
            await asyncio.sleep(plan.answer_late_s)
        label = str(said.status) if ending is None else endings.label(ending)
        self.requests.answered(seen, answer=label, executed=executes)
        return said if ending is None else await endings.finish(ending, said, gate)

    def _subject(self, call: Call) -> Subject:
        """The order and refund numbers behind a call, whether it names them or an object's id."""
        fields = {**call.query, **(call.body or {})}
        refund = self.bank.refunds.get(call.object_id)
        order = fields.get("merchant_order_no")
        if not isinstance(order, str):
            payment_id = call.object_id or fields.get("payment_id")
            order = self.bank.order_of(payment_id) if isinstance(payment_id, str) else None
        number = refund.number if refund is not None else fields.get("merchant_refund_no")
        return Subject(call, order, number if isinstance(number, str) else None)


async def serve(
    listen: str,
    *,
    announce: Callable[[str], None],
    settings: Settings | None = None,
    stop: asyncio.Event | None = None,
) -> None:
    """Run a sandbox until `stop` is set; without one, until SIGINT or SIGTERM.

    Args: listen: `HOST:PORT` or `[V6]:PORT`. announce: given one line once connections are accepted.
    Raises: ValueError for a `listen` that is neither, OSError where it can't be bound.
    """
    host, port = _address(listen)
    sandbox = await Sandbox.start(host, port, settings=settings)
    ended = stop or asyncio.Event()
    loop = asyncio.get_running_loop()
    signals = () if stop is not None else (signal.SIGINT, signal.SIGTERM)
    for number in signals:
        loop.add_signal_handler(number, ended.set)
    try:
        announce(f"sandbox listening on {sandbox.url}")
        await ended.wait()
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
        await sandbox.close()


def _address(listen: str) -> tuple[str, int]:
    host, colon, port = listen.rpartition(":")
    is_port = port.isascii() and port.isdigit() and int(port) <= 65535
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not is_port:
        raise ValueError(f"listen: expected HOST:PORT, such as 127.0.0.1:9000, found {listen!r}")
    return host, int(port)
