"""Who may ask the admin listener for what (A4): by token, by the name it is called, by where a page came from."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Middleware

from proxy.admin.refusals import Refused, refusal
from proxy.ports import StoreUnavailable

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

OPEN_PATHS = frozenset({"/", "/healthz", "/readyz", "/openapi.json"})
"""What needs no token: probes can't send one, and the page and the description hold no data."""

_FROM_HERE = frozenset({"same-origin", "none"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """Args: token: None: no token is asked for, which only a private address allows.
    is_private: on loopback or a Unix socket: then requests must name it by a private name, so that a page
        whose name was pointed at this machine reads nothing. admin_url: a name more that is right.
    events_are_signed: events prove themselves, so they need no token.
    """

    token: str | None
    is_private: bool
    is_unix: bool
    admin_url: str
    events_are_signed: bool

    @property
    def middleware(self) -> Middleware:
        @web.middleware
        async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
            try:
                self.check(request)
                return await handler(request)
            except Refused as refused:
                return refusal(refused)
            except StoreUnavailable as error:
                return refusal(Refused(503, "store_unavailable", str(error), retry_after_ms=1_000))
            except web.HTTPException as raised:
                return refusal(_named(raised))

        return guarded

    def check(self, request: web.Request) -> None:
        """Raises: Refused."""
        self._check_name(request)
        if request.method not in ("GET", "HEAD"):
            self._check_origin(request)
        self._check_token(request)

    def is_trusted(self, request: web.Request) -> bool:
        """Whether the asker may see details: it brought the token, or none is asked for."""
        return self.token is None or self._brings_token(request)

    def _check_token(self, request: web.Request) -> None:
        is_event = request.method == "POST" and request.path == "/events" and self.events_are_signed
        if self.token is None or is_event or request.path in OPEN_PATHS:
            return
        if not self._brings_token(request):
            raise Refused(
                401,
                "unauthorized",
                "this needs the admin token: send Authorization: Bearer ADMIN_TOKEN",
            )

    def _brings_token(self, request: web.Request) -> bool:
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        is_equal = hmac.compare_digest(
            given.strip(" ").encode("utf-8", "surrogateescape"), f"{self.token}".encode()
        )
        return is_equal and scheme.lower() == "bearer"  # a scheme has no case (RFC 9110 section 11.1)

    def _check_name(self, request: web.Request) -> None:
        if not self.is_private or self.is_unix:
            return
        name = _host_of(request.headers.get("Host", ""))
        if name is None or not (_is_private_name(name) or name == _host_of(_authority(self.admin_url))):
            raise Refused(
                403,
                "wrong_host",
                "the admin listener answers to localhost, a loopback address or admin_url's name only",
            )

    def _check_origin(self, request: web.Request) -> None:
        """A page of another site must not act through a browser that can reach this listener."""
        site = request.headers.get("Sec-Fetch-Site")
        origin = request.headers.get("Origin")
        host = request.headers.get("Host", "").lower()
        own = {host, _authority(self.admin_url).lower()} - {""}
        is_foreign = origin is not None and _authority(origin).lower() not in own
        if is_foreign or (site is not None and site not in _FROM_HERE):
            raise Refused(403, "cross_site", "requests from pages of other sites are refused")


def _authority(url: str) -> str:
    try:
        return urlsplit(url).netloc
    except ValueError:
        return ""


def _host_of(authority: str) -> str | None:
    """The host of `host:port`, `[::1]:port` or `host`, in lower case; None where it is none."""
    try:
        return urlsplit(f"//{authority}").hostname
    except ValueError:
        return None


def _is_private_name(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


_CODES = {404: "not_found", 405: "method_not_allowed", 413: "body_too_large", 415: "unsupported_media_type"}


def _named(raised: web.HTTPException) -> Refused:
    """What aiohttp raises itself, in our shape."""
    code = _CODES.get(raised.status, "invalid_request")
    message = {
        404: "no such page; GET /openapi.json lists them",
        405: f"allowed here: {raised.headers.get('Allow', 'another method')}",
        413: "the body is larger than is taken here",
    }.get(raised.status, raised.reason or "the request can't be done")
    return Refused(raised.status, code, message)
