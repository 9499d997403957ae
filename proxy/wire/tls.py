"""TLS contexts from files, built anew when a file changes, so that certificates rotate without a restart."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_Stamp = tuple[tuple[int, int, int] | None, ...]

LOOK_S = 300.0
"""Between two looks at a connection's session. Each loses some 5 KB for good in Python before 3.12.8 and 3.13.1
(python/cpython 116810), which with one for each connection takes all memory in the end; so does this, in years.
Many servers honour a session for as long (nginx: 5 min)."""


class TlsFilesUnusable(ValueError):
    """A certificate, key or CA file that can't be used; the message names it."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of PEM files. Towards the platform `cert_file` is our own (mTLS), and `ca_file` replaces the
    system's authorities; on a listener `ca_file` makes a caller's certificate compulsory.
    """

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    verify: bool = True

    def stamp(self) -> _Stamp:
        """What changes when a file is replaced or rewritten; None for one that can't be looked at."""
        return tuple(
            _stamp(path) for path in (self.ca_file, self.cert_file, self.key_file) if path is not None
        )


class FreshContext:
    """A TLS context that follows its files. A bad replacement is reported once; the old one stays in use."""

    def __init__(
        self,
        files: TlsFiles,
        build: Callable[[TlsFiles], ssl.SSLContext],
        on_error: Callable[[BaseException], None],
    ) -> None:
        """Raises: TlsFilesUnusable, so that a start with bad files fails at once."""
        self._files = files
        self._build = build
        self._on_error = on_error
        self._stamp = files.stamp()
        self._context = build(files)

    def current(self) -> ssl.SSLContext:
        """The context for a new connection."""
        stamp = self._files.stamp()
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                self._context = self._build(self._files)
            except TlsFilesUnusable as unusable:
                self._on_error(unusable)
        return self._context


class ResumingContext(ssl.SSLContext):
    """A client's context that offers the last session again, which spares the platform a full handshake.

    Of one platform only, since a session is of the name that was verified when it began. A context built
    anew from changed files remembers none, so nothing outlives the authorities it was verified with.
    """

    _session: ssl.SSLSession | None = None
    _looked_at_s = float("-inf")

    def remember(self, connection: ssl.SSLObject, *, now_s: float) -> None:
        """Offer the connection's session from now on, where the one that is offered did not serve.

        TLS 1.3 sends its tickets after the handshake: call it late. Args: now_s: of a monotonic clock.
        """
        if connection.session_reused or now_s - self._looked_at_s < LOOK_S:
            return
        self._looked_at_s = now_s
        session = connection.session
        if session is not None and (session.has_ticket or self._session is None):
            self._session = session

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """As `ssl.SSLContext` has it; both loops make their connections by it."""
        return super().wrap_bio(incoming, outgoing, server_side, server_hostname, session or self._session)


def client_context(files: TlsFiles) -> ssl.SSLContext:
    """For connections to the platform: TLS 1.2 or later, certificate and name verified.

    `ssl.create_default_context` is not used, since it writes the session's secrets where SSLKEYLOGFILE says.

    Raises: TlsFilesUnusable.
    """
    context = ResumingContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    if not files.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif files.ca_file is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        _load_authorities(context, files.ca_file)
    if files.cert_file is not None:
        _load_chain(context, files.cert_file, files.key_file)
    return context


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """For a listener: TLS 1.2 or later; callers need a certificate where `ca_file` is given.

    Raises: TlsFilesUnusable.
    """
    if files.cert_file is None:
        raise TlsFilesUnusable("tls.cert_file: a TLS listener needs a certificate")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    if files.ca_file is not None:
        _load_authorities(context, files.ca_file)
        context.verify_mode = ssl.CERT_REQUIRED
    _load_chain(context, files.cert_file, files.key_file)
    return context


def following_server_context(fresh: FreshContext) -> ssl.SSLContext:
    """A context to open a server with, which hands each new connection on to `fresh`'s current one."""

    def swap(connection: ssl.SSLObject, _name: str | None, _first: ssl.SSLContext) -> None:
        connection.context = fresh.current()

    first = fresh.current()
    first.sni_callback = swap
    return first


def _load_authorities(context: ssl.SSLContext, path: str) -> None:
    try:
        context.load_verify_locations(cafile=path)
    except (ssl.SSLError, OSError, ValueError) as error:
        raise TlsFilesUnusable(
            f"{path}: can't be used as a file of certificate authorities: {error}"
        ) from error


def _load_chain(context: ssl.SSLContext, cert_file: str, key_file: str | None) -> None:
    for path in (cert_file, key_file):
        if path is not None and not Path(path).is_file():
            raise TlsFilesUnusable(f"{path}: no such file")
    try:
        # An encrypted key would otherwise ask for its password on the terminal.
        context.load_cert_chain(cert_file, key_file, password="")
    except (ssl.SSLError, OSError, ValueError) as error:
        pair = cert_file if key_file is None else f"{cert_file} with {key_file}"
        raise TlsFilesUnusable(f"{pair}: can't be used as certificate and key: {error}") from error


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
