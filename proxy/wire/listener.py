"""The listener: accepts callers' connections, owns the tasks of their calls, drains and closes (H10, O3)."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from proxy.ports import BodyTooLarge, CallerGone, CallHandler
from proxy.wire.answer_head import Refusal, refusal_in_payhub_shape
from proxy.wire.caller import CallerConnection, ListenerLimits
from proxy.wire.exchange import CallerExchange
from proxy.wire.sockets import Endpoint, bound_tcp_sockets, bound_unix_socket, inode, remove_socket
from proxy.wire.tls import FreshContext, following_server_context, server_context

BACKLOG = 1_024
CANCELLED_S = 5.0
"""For cancelled calls to end, each with the store's time limit to say so; one that clings delays no drain (O3)."""
REFUSED_AT_ONCE_MAX = 256
"""Connections over the cap that are being told so at one time; more are dropped without a word."""


class Listener:
    """Made by `listen`. Every call's task is owned here and outlives its caller (H6)."""

    def __init__(
        self,
        endpoint: Endpoint,
        handler: CallHandler,
        limits: ListenerLimits,
        *,
        refusal: Refusal,
        on_error: Callable[[BaseException], None],
        protected: frozenset[bytes],
    ) -> None:
        self.endpoint = endpoint
        self.limits = limits
        self.refusal = refusal
        self.protected = protected
        self.loop = asyncio.get_running_loop()
        self.is_draining = False
        self._handler = handler
        self._on_error = on_error
        self._servers: list[asyncio.AbstractServer] = []
        self._connections: set[CallerConnection] = set()
        self._refused: set[CallerConnection] = set()
        self._calls: set[asyncio.Task[None]] = set()
        self._all_gone: asyncio.Future[None] | None = None
        self._socket_inode: int | None = None

    @property
    def address(self) -> str:
        """The address as it can be dialled; a port of 0 is replaced by the real one."""
        return str(self.endpoint)

    @property
    def connections_open(self) -> int:
        return len(self._connections)

    @property
    def calls_running(self) -> int:
        return len(self._calls)

    def stop_accepting(self) -> None:
        """Refuse new connections; those that stand go on."""
        if self._servers:
            for server in self._servers:
                server.close()
            self._servers.clear()
            if self.endpoint.path is not None:
                remove_socket(self.endpoint.path, only_inode=self._socket_inode)

    def drain(self) -> None:
        """Stop accepting, close idle connections, and close every other one after its answer."""
        self.stop_accepting()
        self.is_draining = True
        for connection in tuple(self._connections):
            connection.close_if_idle()

    async def open(self, *, reuse_port: bool, sock: socket.socket | None) -> None:
        """Begin to accept. Called once, by `listen`."""
        endpoint = self.endpoint
        context = None
        if endpoint.tls is not None:
            context = following_server_context(FreshContext(endpoint.tls, server_context, self._on_error))
        shutdown_s = None if context is None else self.limits.linger_ms / 1000
        socks = [sock] if sock is not None else await self._bound_sockets(reuse_port=reuse_port)
        is_unix = socks[0].family == socket.AF_UNIX
        accept = self.loop.create_unix_server if is_unix else self.loop.create_server
        # Else one worker of several that ends would take the name of the socket that the others share with it.
        keeps_file: dict[str, Any] = (
            {"cleanup_socket": False} if is_unix and sys.version_info >= (3, 13) else {}
        )
        for bound in socks:
            server = await accept(
                partial(CallerConnection, self),
                sock=bound,
                ssl=context,
                backlog=BACKLOG,
                ssl_handshake_timeout=None if context is None else self.limits.first_byte_ms / 1000,
                ssl_shutdown_timeout=shutdown_s,
                **keeps_file,
            )
            self._servers.append(server)
        if endpoint.path is None and not is_unix:
            host, port = socks[0].getsockname()[:2]
            self.endpoint = replace(endpoint, host=endpoint.host or host, port=port)

    async def _bound_sockets(self, *, reuse_port: bool) -> list[socket.socket]:
        """Sockets for every address of the endpoint's name. Raises: OSError that names the endpoint."""
        endpoint = self.endpoint
        try:
            if endpoint.path is not None:
                sock = bound_unix_socket(endpoint.path)
                self._socket_inode = inode(endpoint.path)
                return [sock]
            found = await self.loop.getaddrinfo(
                endpoint.host, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            where = [(family, address) for family, _, _, _, address in found]
            return bound_tcp_sockets(where, reuse_port=reuse_port)
        except OSError as error:
            raise OSError(error.errno, error.strerror or str(error), str(endpoint)) from error

    async def close(self, *, grace_ms: int) -> bool:
        """Drain, then end what is left after `grace_ms`.

        Returns: whether every call had ended by itself. Those that had not are cancelled here.
        """
        self.drain()
        clean = await self._wait_until_gone(grace_ms)
        left = tuple(self._calls)
        for call in left:
            call.cancel()
        if left:
            await asyncio.wait(left, timeout=CANCELLED_S)
            await self._wait_until_gone(self.limits.linger_ms)
        for connection in (*self._connections, *self._refused):
            connection.abort()
        await self._wait_until_gone(1_000)
        return clean

    async def _wait_until_gone(self, limit_ms: int) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_ms / 1000):
                while self._connections or self._calls:
                    self._all_gone = self.loop.create_future()
                    await self._all_gone
        return not self._calls

    def _note_gone(self) -> None:
        if self._connections or self._calls:
            return
        if self._all_gone is not None and not self._all_gone.done():
            self._all_gone.set_result(None)

    def admit(self, connection: CallerConnection) -> bool:
        """Whether the connection is within the cap; otherwise it is to say so and go."""
        if len(self._connections) < self.limits.connections_max:
            self._connections.add(connection)
            return True
        if len(self._refused) >= min(REFUSED_AT_ONCE_MAX, 1 + self.limits.connections_max // 4):
            connection.abort()
        self._refused.add(connection)
        return False

    def forget(self, connection: CallerConnection) -> None:
        self._connections.discard(connection)
        self._refused.discard(connection)
        self._note_gone()

    def start(self, exchange: CallerExchange) -> None:
        """Run a call in a task of its own."""
        call = self.loop.create_task(self._run(exchange))
        self._calls.add(call)
        call.add_done_callback(partial(self._ended, exchange))

    async def _run(self, exchange: CallerExchange) -> None:
        try:
            await self._handler(exchange)
        except BodyTooLarge:
            message = "The request's body is too large. Nothing was sent to the platform."
            exchange.end_unanswered(self.refusal(413, "body_too_large", message, None))
        except CallerGone:
            exchange.abort()

    def _ended(self, exchange: CallerExchange, call: asyncio.Task[None]) -> None:
        self._calls.discard(call)
        self._note_gone()
        if call.cancelled():
            if exchange.is_owed:
                exchange.end_unanswered(self.refusal(504, "result_unknown", _STOPPED, None))
            return
        error = call.exception()
        if error is None and exchange.is_owed:
            error = RuntimeError("a call ended without an answer")
        if error is not None:
            self._on_error(error)
            exchange.end_unanswered(self.refusal(500, "internal_error", _OUR_FAULT, None))


_STOPPED = (
    "The proxy stopped before this call had ended; the platform may have acted. If the call had a key, ask again "
    "with the same one; if not, ask the platform for the state first: sent again, it may act twice."
)
_OUR_FAULT = (
    "The proxy failed on this call; the platform may have acted. Ask again with the same key, "
    "and do not change the key or the order number."
)


async def listen(
    endpoint: Endpoint,
    handler: CallHandler,
    limits: ListenerLimits | None = None,
    *,
    refusal: Refusal = refusal_in_payhub_shape,
    on_error: Callable[[BaseException], None],
    protected: frozenset[bytes] = frozenset((b"idempotency-key",)),
    reuse_port: bool = False,
    sock: socket.socket | None = None,
) -> Listener:
    """Accept calls at `endpoint`, each handed to `handler`.

    Args: refusal: shapes the wire's own refusals. on_error: told of every exception that escapes a call; its
        caller gets a 500. protected: lower-case headers that `Connection` must not name (H9).
        reuse_port: share the port with other processes. sock: an already bound socket, used as it is.
    Raises: OSError, with the address as its `filename`, where that can't be had; TlsFilesUnusable for unusable
        TLS files.
    """
    listener = Listener(
        endpoint,
        handler,
        limits or ListenerLimits(),
        refusal=refusal,
        on_error=on_error,
        protected=protected,
    )
    await listener.open(reuse_port=reuse_port, sock=sock)
    return listener
