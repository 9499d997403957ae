"""Several processes that share the port and the store (`workers: N`).

The parent holds the ports, starts the workers, passes signals on and replaces a worker that died: its calls in
flight are unknown from then on, and any other worker takes them over by their leases (P5). Each worker binds its
own socket to the port, so that the kernel spreads the connections; a unix socket is shared. The first worker
serves the admin listener, with everyone's counts.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from proxy.config import Settings
from proxy.config.rules import Address
from proxy.observe import Share
from proxy.wire.sockets import bound_tcp_sockets

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
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
    now_ms: Callable[[], int],
    say: Callable[[str], None],
) -> int:
    """Run `settings.workers` processes until told to stop.

    Args: work: a worker's whole life, in its own process; its result is the exit code.
    Returns: 0 if every worker drained well. Raises: OSError for an address that can't be had.
    """
    with tempfile.TemporaryDirectory(prefix="safepost-") as folder, held_addresses(settings) as held:
        fixed, sockets = held
        crew = _Crew(
            tuple(
                Worker(number, fixed, Share(Path(folder), number), sockets)
                for number in range(settings.workers)
            ),
            work,
            now_ms,
            say,
        )
        return crew.run()


class _Crew:
    def __init__(
        self,
        workers: tuple[Worker, ...],
        work: Callable[[Worker], int],
        now_ms: Callable[[], int],
        say: Callable[[str], None],
    ) -> None:
        self._workers = workers
        self._work = work
        self._now_ms = now_ms
        self._say = say
        self._alive: dict[int, tuple[Worker, int]] = {}
        self._is_stopping = False
        self._early_deaths = 0
        self._code = 0

    def run(self) -> int:
        before = {number: signal.signal(number, self._pass_on) for number in FORWARDED}
        try:
            for worker in self._workers:
                self._start(worker)
            while self._alive:
                pid, status = os.wait()
                if pid in self._alive:
                    self._ended(pid, os.waitstatus_to_exitcode(status))
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        return self._code

    def _pass_on(self, number: int, _frame: object) -> None:
        if number != signal.SIGHUP:
            self._is_stopping = True
        for pid in tuple(self._alive):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM if number == signal.SIGINT else number)

    def _start(self, worker: Worker) -> None:
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._live(worker, parent)
        self._alive[pid] = (worker, self._now_ms())

    def _live(self, worker: Worker, parent: int) -> NoReturn:
        """In the child: nothing of the parent's handlers, and no way back into its stack."""
        code = 1
        try:
            for number in FORWARDED:
                signal.signal(number, signal.SIG_DFL)
            drain_with(parent)
            code = self._work(worker)
        finally:
            os._exit(code)

    def _ended(self, pid: int, code: int) -> None:
        worker, started_ms = self._alive.pop(pid)
        if self._is_stopping:
            # A worker that was told to stop before it began has nothing to drain: the signal ends it.
            self._code = self._code or (0 if code == -signal.SIGTERM else abs(code))
            return
        self._say(
            f"worker {worker.number} ended with {code}; its calls in flight are unknown until looked up"
        )
        if self._now_ms() - started_ms < EARLY_DEATH_MS:
            self._early_deaths += 1
        if self._early_deaths >= EARLY_DEATHS_MAX:
            self._say(f"{EARLY_DEATHS_MAX} workers ended right after their start: giving up")
            self._code = 1
            self._pass_on(signal.SIGTERM, None)
            return
        self._start(worker)


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
    sock = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    Path(path).unlink(missing_ok=True)
    sock.bind(path)
    stack.callback(lambda: Path(path).unlink(missing_ok=True))
    return sock
