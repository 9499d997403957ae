"""Listening sockets: addresses as the configuration writes them, bound and ready for the loop."""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from proxy.wire.tls import TlsFiles


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where to listen: a host and port, or a unix socket's path; with TLS where `tls` is given."""

    host: str = ""
    port: int = 0
    path: str | None = None
    tls: TlsFiles | None = None

    @classmethod
    def parse(cls, text: str, tls: TlsFiles | None = None) -> Self:
        """Read `host:port`, `[v6]:port` or `unix:/path`.

        Raises: ValueError that says what is allowed.
        """
        if text.startswith("unix:"):
            if not text[5:]:
                raise ValueError(f"expected unix:/path/of.sock, found {text!r}")
            return cls(path=text[5:], tls=tls)
        host, colon, port = text.rpartition(":")
        is_bracketed = host.startswith("[") and host.endswith("]")
        bare = host[1:-1] if is_bracketed else host
        is_port = port.isascii() and port.isdigit() and int(port) <= 65_535
        if not colon or not bare or not is_port or (":" in bare and not is_bracketed):
            raise ValueError(f"expected host:port, [::1]:port or unix:/path, found {text!r}")
        return cls(host=bare, port=int(port), tls=tls)

    def __str__(self) -> str:
        if self.path is not None:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def bound_unix_socket(path: str) -> socket.socket:
    """A socket bound to `path`. One left behind by a killed process is replaced, a living one's never.

    Raises: OSError.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if Path(path).is_socket() and not _is_served(path):
            Path(path).unlink()
        sock.bind(path)
    except OSError:
        sock.close()
        raise
    return sock


_Where = tuple[int, tuple[str | int | bytes, ...]]
_PORT_TRIES = 16
"""A port that is free on one address and taken on the next is rare; several in a row are a fault."""


def bound_tcp_sockets(where: Sequence[_Where], *, reuse_port: bool) -> list[socket.socket]:
    """Sockets bound to every address in `where`, on one port also where that is 0.

    `localhost` is two addresses, and a client takes whichever it likes. One that this machine doesn't have
    (no IPv6) is left out, as long as another is there.

    Args: where: family and address each. reuse_port: several processes may share the port.
    Raises: OSError.
    """
    for tries_left in reversed(range(_PORT_TRIES)):
        try:
            return _all_bound(where, reuse_port=reuse_port)
        except OSError as error:
            picks_port = error.errno == errno.EADDRINUSE and where[0][1][1] == 0
            if not (picks_port and tries_left):
                raise
    raise AssertionError("the last try raises")


def _all_bound(where: Sequence[_Where], *, reuse_port: bool) -> list[socket.socket]:
    bound: list[socket.socket] = []
    missing: OSError | None = None
    try:
        for family, (host, asked_port, *rest) in where:
            port = bound[0].getsockname()[1] if bound else asked_port
            try:
                bound.append(_bound(family, (host, port, *rest), reuse_port=reuse_port))
            except OSError as error:
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise
                missing = error
        if not bound and missing is not None:
            raise missing
    except OSError:
        for sock in bound:
            sock.close()
        raise
    return bound


def _bound(family: int, address: tuple[str | int | bytes, ...], *, reuse_port: bool) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
    except OSError:
        sock.close()
        raise
    return sock


def inode(path: str) -> int | None:
    """Which file is at `path`; None where there is none."""
    try:
        return Path(path).stat().st_ino
    except FileNotFoundError:
        return None


def remove_socket(path: str, *, only_inode: int | None) -> None:
    """Remove the socket file unless another process has put its own there since."""
    if only_inode is not None and inode(path) == only_inode:
        Path(path).unlink(missing_ok=True)


def _is_served(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return False
        except BlockingIOError:
            return True
    return True
