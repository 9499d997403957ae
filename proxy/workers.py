"""Several processes that share the port and the store (`workers: N`).

The parent holds the ports, starts the workers, passes signals on and replaces a worker that died: its calls in
flight are unknown from then on, and any other worker takes them over by their leases (P5). Each worker binds its
own socket to the port, so that the kernel spreads the connections; a unix socket is shared. The first worker
serves the admin listener, with everyone's counts.

The parent waits for signals, the death of a worker among them, and is never interrupted by one: no worker is
started between a stop and its being passed on.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn

from proxy import signals
from proxy.config import ConfigError, Settings
from proxy.config.rules import Address
from proxy.observe import Share
from proxy.wire.sockets import bound_tcp_sockets, bound_unix_socket, inode, remove_socket
from proxy.wire.tls import TlsFilesUnusable

AWAITED = signals.STOP | signals.RELOAD | {signal.SIGCHLD}
EARLY_DEATH_MS = 2_000  # a worker that dies sooner than this after its start can't start at all
EARLY_DEATHS_MAX = 5
PR_SET_PDEATHSIG = 1  # linux/prctl.h


@dataclass(frozen=True, slots=True)
class Worker:
    """What one worker is told: which it is, and where the counts are shared."""

    number: int
    settings: Settings
    share: Share
    sockets: dict[str, socket.socket]

    @property
    def serves_admin(self) -> bool:
        return self.number == 0


def supervise(
    settings: Settings,
    *,
    work: Callable[[Worker], int],
    read_again: Callable[[Settings], Settings],
    now_ms: Callable[[], int],
    say: Callable[[str], None],
) -> int:
    """Run `settings.workers` processes until told to stop.

    Args: work: a worker's whole life, in its own process; its result is the exit code.
        read_again: the configuration for workers that are started after a reload, given the one before (O4);
            raises ConfigError, TlsFilesUnusable.
    Returns: 0 if every worker drained well. Raises: OSError for an address that can't be had.
    """
    with tempfile.TemporaryDirectory(prefix="safepost-") as folder, held_addresses(settings) as held:
        fixed, sockets = held
        crew = _Crew(fixed, Path(folder), sockets, work, read_again, now_ms, say)
        return crew.run()


@dataclass(slots=True)
class _Crew:
    _settings: Settings
    _folder: Path
    _sockets: dict[str, socket.socket]
    _work: Callable[[Worker], int]
    _read_again: Callable[[Settings], Settings]
    _now_ms: Callable[[], int]
    _say: Callable[[str], None]
    _alive: dict[int, tuple[int, int]] = field(default_factory=dict)  # by process: its number, its start
    _is_stopping: bool = False
    _early_deaths: int = 0
    _code: int = 0

    def run(self) -> int:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # whoever started us may have ignored it
        before = signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED)
        try:
            for number in range(self._settings.workers):
                self._start(number)
            while self._alive:
                # The system gives SIGHUP out before others: a storm of it would keep a stop waiting.
                heard = {signal.sigwait(AWAITED)}
                while waiting := signal.sigpending() & (AWAITED - heard):
                    heard.add(signal.sigwait(waiting))
                for number in sorted(heard, key=lambda one: one in signals.RELOAD):
                    self._hear(signal.Signals(number))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return self._code

    def _hear(self, number: signal.Signals) -> None:
        if number == signal.SIGCHLD:
            self._look_for_dead()
        elif number in signals.RELOAD:
            self._reload()
        else:
            self._stop()

    def _look_for_dead(self) -> None:
        """One signal may stand for several."""
        for pid in tuple(self._alive):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self._ended(pid, os.waitstatus_to_exitcode(status))

    def _reload(self) -> None:
        # Where it can't be used every worker reports that, and goes on with what it has, as do its successors.
        with contextlib.suppress(ConfigError, TlsFilesUnusable):
            self._settings = self._read_again(self._settings)
        self._pass_on(signal.SIGHUP)

    def _stop(self) -> None:
        self._is_stopping = True
        self._pass_on(signal.SIGTERM)

    def _pass_on(self, number: signal.Signals) -> None:
        for pid in self._alive:
            os.kill(pid, number)  # dead ones are there, too, until they are waited for

    def _start(self, number: int) -> None:
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._live(Worker(number, self._settings, Share(self._folder, number), self._sockets), parent)
        self._alive[pid] = (number, self._now_ms())

    def _live(self, worker: Worker, parent: int) -> NoReturn:
        """In the child: no way back into the parent's stack. A reload waits until it can be heard."""
        code = 1
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, AWAITED - signals.RELOAD)
            drain_with(parent)
            code = self._work(worker)
        finally:
            os._exit(code)

    def _ended(self, pid: int, code: int) -> None:
        number, started_ms = self._alive.pop(pid)
        if self._is_stopping:
            # A worker that was told to stop before it began has nothing to drain: the signal ends it.
            self._code = self._code or (0 if code == -signal.SIGTERM else abs(code))
            return
        left = (
            "its calls in flight are unknown until looked up" if code else "it was told to, and had drained"
        )
        self._say(f"worker {number} ended with {code}; {left}")
        if self._now_ms() - started_ms < EARLY_DEATH_MS:
            self._early_deaths += 1
        if self._early_deaths >= EARLY_DEATHS_MAX:
            self._say(f"{EARLY_DEATHS_MAX} workers ended right after their start: giving up")
            self._code = 1
            self._stop()
            return
        self._start(number)


def drain_with(parent: int) -> None:
    """Have the kernel send SIGTERM when the parent dies, however it dies; where it has died already, end now.

    Orphans would go on taking calls on the port of whoever is started in the parent's place, and hold the admin
    listener against it.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "prctl"):  # Linux alone
        libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM))
    if os.getppid() != parent:
        os._exit(1)


@contextlib.contextmanager
def held_addresses(settings: Settings) -> Iterator[tuple[Settings, dict[str, socket.socket]]]:
    """The settings with real ports in them, held so that nobody else takes them, and the shared unix sockets."""
    with contextlib.ExitStack() as stack:
        listen, sockets = [], {}
        for where in settings.listen:
            address = where.address
            if address.path is None:
                address = replace(address, port=_held(stack, address))
            else:
                sockets[str(address)] = _unix(stack, address.path)
            listen.append(replace(where, address=address))
        yield replace(settings, listen=tuple(listen)), sockets


def _held(stack: contextlib.ExitStack, address: Address) -> int:
    """The port, bound on every address of the name and never listened on: the kernel gives its connections to
    those who listen.

    Raises: OSError that names the address.
    """
    try:
        found = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        where = [(family, place) for family, _, _, _, place in found]
        held = bound_tcp_sockets(where, reuse_port=True)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(address)) from error
    for sock in held:
        stack.enter_context(sock)
    port: int = held[0].getsockname()[1]
    return port


def _unix(stack: contextlib.ExitStack, path: str) -> socket.socket:
    """Raises: OSError that names the address, where another process listens there."""
    try:
        sock = stack.enter_context(bound_unix_socket(path))
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), f"unix:{path}") from error
    stack.callback(remove_socket, path, only_inode=inode(path))
    return sock
