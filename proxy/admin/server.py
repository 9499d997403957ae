"""The admin listener: where its endpoints stand and how they are guarded (contract section 11)."""

from __future__ import annotations

import logging
import socket
from collections.abc import Sequence
from pathlib import Path

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from proxy.admin.console import console
from proxy.admin.gate import Gate
from proxy.admin.health import Health
from proxy.admin.house import House, Sees
from proxy.admin.ledger import Ledger
from proxy.admin.openapi import description
from proxy.admin.refusals import answered
from proxy.admin.streams import EVENT_BYTES_MAX, Inbound, Outbound
from proxy.config.rules import Address

BODY_BYTES_MAX = 64 << 10  # of a resolve; events may be larger
SHUTDOWN_S = 2.0

_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Admin:
    """Health, metrics, ledger, events. `url` is known once it was started."""

    def __init__(self, house: House) -> None:
        settings = house.now.settings
        token = settings.admin_token.reveal() if settings.admin_token else None
        self._house = house
        self._address = settings.admin
        self._events_address = settings.events.listen
        self._gate = Gate(
            token=token,
            is_private=settings.admin.is_private,
            is_unix=settings.admin.path is not None,
            admin_url=settings.admin_url,
            events_are_signed=settings.events.secret is not None,
        )
        self._ledger = Ledger(house)
        self._runners: list[web.AppRunner] = []
        self._app: web.Application | None = None
        self.url = ""
        self.events_url: str | None = None

    @property
    def waiting(self) -> int:
        """How many long polls stand open."""
        return self._ledger.waiting

    def routes(self) -> list[web.AbstractRoute]:
        """What the listener serves."""
        return list(self._app.router.routes()) if self._app is not None else []

    async def start(self) -> None:
        """Raises: OSError for an address that can't be had."""
        parts = (Health(self._house, self._gate), self._ledger, Inbound(self._house), Outbound(self._house))
        routes = [route for part in parts for route in part.routes()]
        routes += [web.get("/", console), web.get("/openapi.json", self._describe)]
        self.url = await self._serve(routes, self._gate, self._address)
        self._app = self._runners[0].app
        if self._events_address is not None:
            gate = Gate(token=None, is_private=False, is_unix=False, admin_url="", events_are_signed=True)
            inbound = Inbound(self._house).routes()
            self.events_url = await self._serve(inbound, gate, self._events_address)

    async def close(self) -> None:
        """End streams and long polls, then the listeners."""
        self._ledger.is_closing = True
        self._house.observer.announcements.close()
        for runner in self._runners:
            await runner.cleanup()

    async def _describe(self, _: web.Request) -> web.Response:
        return answered(description(self._house.observer.version))

    async def _serve(self, routes: Sequence[web.RouteDef], gate: Gate, address: Address) -> str:
        takes_events = any(route.path == "/events" and route.method == "POST" for route in routes)
        limit = EVENT_BYTES_MAX if takes_events else BODY_BYTES_MAX
        app = web.Application(middlewares=[gate.middleware], client_max_size=limit)
        app.add_routes(routes)
        app.on_response_prepare.append(_harden)
        runner = web.AppRunner(
            app,
            access_log=None,
            handle_signals=False,
            shutdown_timeout=SHUTDOWN_S,
            keepalive_timeout=75.0,
            logger=_quiet_logger(self._house.observer),
        )
        await runner.setup()
        self._runners.append(runner)
        return await _listen(runner, address)


async def _listen(runner: web.AppRunner, address: Address) -> str:
    if address.path is not None:
        path = Path(address.path)
        _remove_dead_socket(path)
        await web.UnixSite(runner, str(path)).start()
        _only_mine(path)
        return f"unix:{path}"
    await web.TCPSite(runner, address.host, address.port, backlog=128).start()
    host, port = runner.addresses[0][:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _remove_dead_socket(path: Path) -> None:
    """A socket that a killed process left behind; one that answers is somebody's and stays."""
    if not path.is_socket():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()


def _only_mine(path: Path) -> None:
    """Who may open the socket may resolve payments: this user and nobody else."""
    path.chmod(0o600)


async def _harden(_: web.Request, response: web.StreamResponse) -> None:
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)
    response.headers["Server"] = "safepost"


class _Unexpected(logging.Handler):
    """What aiohttp's server logs: our own bugs are told as faults; a malformed request is nobody's business.

    aiohttp logs the raw bytes of what it can't parse, which may hold a card or a credential.
    """

    def __init__(self, observer: Sees) -> None:
        super().__init__(logging.ERROR)
        self._observer = observer

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, HttpProcessingError):
            self._observer.fault(error)


def _quiet_logger(observer: Sees) -> logging.Logger:
    logger = logging.Logger("safepost.admin", logging.ERROR)
    logger.propagate = False
    logger.addHandler(_Unexpected(observer))
    return logger
