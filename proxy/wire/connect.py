"""Opening connections to the platform: names, addresses of both families, TLS; each failure by its reason.

Nothing here sends a byte of a request, so every failure is `NotSent` (R2). Addresses of both families are
tried in turn, the next one after a quarter of a second or at once when one fails (RFC 8305, O-41).
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlsplit

from proxy.core.http import NotSent, NotSentReason
from proxy.wire.tls import FreshContext

STAGGER_S = 0.25
"""RFC 8305 section 5, recommended connection attempt delay."""

_P = TypeVar("_P", bound=asyncio.Protocol)
Address = tuple[int, tuple[str | int | bytes, ...]]
"""Family, and where, as `socket` has them."""
LookUp = Callable[[str, int], Awaitable[list[Address]]]

_REASONS = {
    errno.ECONNREFUSED: NotSentReason.REFUSED,
    errno.ETIMEDOUT: NotSentReason.CONNECT_TIMEOUT,
    errno.EMFILE: NotSentReason.RESOURCES,
    errno.ENFILE: NotSentReason.RESOURCES,
    errno.ENOBUFS: NotSentReason.RESOURCES,
    errno.ENOMEM: NotSentReason.RESOURCES,
    errno.EADDRNOTAVAIL: NotSentReason.RESOURCES,
    errno.EADDRINUSE: NotSentReason.RESOURCES,
    errno.EAGAIN: NotSentReason.RESOURCES,
}


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the platform is: what its URL says, and nothing that a caller says (O-33)."""

    host: str
    port: int
    is_tls: bool
    base_path: bytes
    """Put before every target as it is; without a slash at its end."""

    @property
    def host_header(self) -> bytes:
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = 443 if self.is_tls else 80
        return (host if self.port == usual else f"{host}:{self.port}").encode("ascii")

    @classmethod
    def parse(cls, url: str) -> Origin:
        """Read `http(s)://host[:port][/base/path]`.

        Raises: ValueError that says what is allowed.
        """
        wanted = "expected http://host[:port][/path] or https://..."
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{wanted}, found {url!r}")
        if parts.query or parts.fragment or "?" in url or "#" in url or parts.username is not None:
            raise ValueError(f"{wanted} without user, query or fragment")
        is_tls = parts.scheme == "https"
        host = parts.hostname
        if not host.isascii():
            host = host.encode("idna").decode("ascii")
        port = parts.port if parts.port is not None else (443 if is_tls else 80)
        path = parts.path.rstrip("/")
        if not path.isascii() or not path.isprintable() or " " in path:
            raise ValueError(f"{wanted}; percent-encode other characters in its path")
        return cls(host, port, is_tls, path.encode("ascii"))


async def system_look_up(host: str, port: int) -> list[Address]:
    """The system's resolver. Raises: socket.gaierror."""
    answers = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(family, address) for family, _, _, _, address in answers]


class Connector:
    """Opens connections to one origin, within one time limit for name, TCP and TLS together."""

    def __init__(
        self,
        origin: Origin,
        *,
        context: FreshContext | None,
        timeout_ms: int,
        dns_ttl_ms: int,
        look_up: LookUp,
    ) -> None:
        """Args: dns_ttl_ms: how long a looked-up name serves further connections (O-34)."""
        self._look_up = look_up
        self._origin = origin
        self._context = context
        self._timeout_ms = timeout_ms
        self._dns_ttl_s = dns_ttl_ms / 1000
        self._literal = _literal(origin)
        self._found: list[Address] = []
        self._found_at = float("-inf")

    async def open(self, protocol: Callable[[], _P]) -> _P | NotSent:
        """A connected protocol, or why there is none."""
        try:
            async with asyncio.timeout(self._timeout_ms / 1000):
                return await self._open(protocol)
        except TimeoutError:
            self._found_at = float("-inf")
            detail = f"no connection to {self._origin.host}:{self._origin.port} within {self._timeout_ms} ms"
            return NotSent(NotSentReason.CONNECT_TIMEOUT, detail)

    async def _open(self, protocol: Callable[[], _P]) -> _P | NotSent:
        loop = asyncio.get_running_loop()
        try:
            addresses = self._literal or await self._resolved(loop)
        except (socket.gaierror, UnicodeError) as error:
            return NotSent(NotSentReason.DNS, f"{self._origin.host}: {error}")
        sock = await _first_connected(loop, addresses)
        if isinstance(sock, NotSent):
            self._found_at = float("-inf")
            return sock
        return await self._started(loop, sock, protocol)

    async def _resolved(self, loop: asyncio.AbstractEventLoop) -> list[Address]:
        if loop.time() - self._found_at > self._dns_ttl_s:
            self._found = _alternating(await self._look_up(self._origin.host, self._origin.port))
            self._found_at = loop.time()
        return self._found

    async def _started(
        self, loop: asyncio.AbstractEventLoop, sock: socket.socket, protocol: Callable[[], _P]
    ) -> _P | NotSent:
        context = None if self._context is None else self._context.current()
        name = self._origin.host
        try:
            _, started = await loop.create_connection(
                protocol,
                sock=sock,
                ssl=context,
                server_hostname=None if context is None else name,
                # Twice ours, so that it is ours that ends it.
                ssl_handshake_timeout=None if context is None else self._timeout_ms / 500,
            )
        except BaseException as error:
            _let_go(loop, sock)
            if not isinstance(error, OSError):
                raise
            return _not_started(error, name)
        return started


def _let_go(loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
    """Leave the descriptor to the loop, which has closed it or is about to.

    uvloop closes the descriptor and leaves the socket object as it was where the connection breaks in the moment
    in which it takes it over (a reset that meets the first bytes of TLS). The object would close that number once
    more when it is collected, and by then it may be another file's: the ledger's, or another payment's connection.
    asyncio's own loop closes the object itself.
    """
    if not isinstance(loop, asyncio.BaseEventLoop):
        sock.detach()


def _not_started(error: OSError, name: str) -> NotSent:
    if isinstance(error, ssl.SSLCertVerificationError):
        return NotSent(NotSentReason.CERTIFICATE, f"{name}: {error.verify_message}")
    if isinstance(error, ssl.SSLError | ConnectionError):
        return NotSent(NotSentReason.TLS, f"{name}: TLS handshake failed: {error}")
    return _not_sent(error, name)


def _literal(origin: Origin) -> list[Address]:
    """The address of a URL that holds one, which needs no lookup and hence no thread."""
    try:
        address = ipaddress.ip_address(origin.host)
    except ValueError:
        return []
    if address.version == 4:
        return [(socket.AF_INET, (origin.host, origin.port))]
    return [(socket.AF_INET6, (origin.host, origin.port, 0, 0))]


def _alternating(addresses: list[Address]) -> list[Address]:
    """The families in turn, the resolver's first choice first (RFC 8305 section 4)."""
    if not addresses:
        return []
    first = [address for address in addresses if address[0] == addresses[0][0]]
    second = [address for address in addresses if address[0] != addresses[0][0]]
    mixed: list[Address] = []
    for index in range(max(len(first), len(second))):
        mixed += first[index : index + 1] + second[index : index + 1]
    return mixed


async def _first_connected(
    loop: asyncio.AbstractEventLoop, addresses: list[Address]
) -> socket.socket | NotSent:
    if len(addresses) == 1:
        return await _connected(loop, addresses[0])
    waiting = list(addresses)
    running: set[asyncio.Task[socket.socket | NotSent]] = set()
    failure = NotSent(NotSentReason.DNS, "the name has no address")
    try:
        while waiting or running:
            if waiting:
                running.add(loop.create_task(_connected(loop, waiting.pop(0))))
            done, running = await asyncio.wait(
                running, timeout=STAGGER_S if waiting else None, return_when=asyncio.FIRST_COMPLETED
            )
            winner: socket.socket | None = None
            for task in done:
                ended = task.result()
                if isinstance(ended, NotSent):
                    failure = ended
                elif winner is None:
                    winner = ended
                else:
                    ended.close()
            if winner is not None:
                return winner
        return failure
    finally:
        for task in running:
            task.add_done_callback(_close_late)
            task.cancel()


def _close_late(task: asyncio.Task[socket.socket | NotSent]) -> None:
    """A connection that lost the race and came about all the same."""
    if not task.cancelled() and isinstance(sock := task.result(), socket.socket):
        sock.close()


async def _connected(loop: asyncio.AbstractEventLoop, address: Address) -> socket.socket | NotSent:
    family, where = address
    try:
        sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    except OSError as error:
        return _not_sent(error, str(where[0]))
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        await loop.sock_connect(sock, where)
        if sock.getsockname() == sock.getpeername():
            # A local port that nobody listens on can be dialled from itself; that is no platform.
            raise ConnectionRefusedError(errno.ECONNREFUSED, "connected to itself")
    except OSError as error:
        sock.close()
        return _not_sent(error, f"{where[0]!s}:{where[1]!s}")
    except asyncio.CancelledError:
        sock.close()
        raise
    return sock


def _not_sent(error: OSError, where: str) -> NotSent:
    reason = _REASONS.get(error.errno or 0, NotSentReason.UNREACHABLE)
    return NotSent(reason, f"{where}: {error.strerror or error}")
