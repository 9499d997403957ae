"""The product under load that is meant to hurt: `make pressure` prints the figures (H3, H10, O-36).

A real process each time; its memory is what the kernel says of it. Far ends are plain sockets in threads, which
keep nothing, since what is measured here would drown the recorded bytes of `peers`.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proxy import loops
from tests.e2e.callers import Told, payment, request
from tests.e2e.platforms import ok
from tests.e2e.processes import ROOT, Process
from tests.e2e.stage import Stage
from tests.wire.peers import Hang, Hold, RawCaller, Script, Send, answer

MIB = 1 << 20
PATIENT: dict[str, Any] = {
    "retry": {"attempts": 1, "attempt_timeout": "20s", "deadline": "60s"},
    "log": {"level": "error", "format": "json"},
}


@asynccontextmanager
async def staged() -> AsyncIterator[Stage]:
    """A stage in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        async with AsyncExitStack() as stack:
            yield Stage(stack, Path(folder))


def memory_mib(process: Process, *, peak: bool = False) -> float:
    """Resident memory now, or the most since `forget_peak`."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    found = re.search(rf"Vm{'HWM' if peak else 'RSS'}:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) / 1024


def forget_peak(process: Process) -> None:
    Path(f"/proc/{process.pid}/clear_refs").write_text("5")


@contextmanager
def many_files() -> Iterator[None]:
    """As many descriptors for this process as it may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


# --- idle connections -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Idle:
    """What so many idle connections cost, and how long a payment takes beside them."""

    connections: int
    before_mib: float
    memory_mib: float
    payment_ms: float
    status: int


async def idle_connections(count: int) -> Idle:
    """Half of them have had an answer, half never said a word."""
    with many_files():
        async with staged() as stage:
            platform = await stage.platform(ok())
            process = await stage.process(platform.url, limits={"connections": count + 100}, **PATIENT)
            await process.call(payment("K0", order="O-0"))
            before = memory_mib(process)
            callers = await asyncio.to_thread(_connected, _address(process.address), count)
            try:
                taken = memory_mib(process)
                began = time.monotonic()
                told = await process.call(payment("K1", order="O-1"))
                return Idle(count, before, taken, (time.monotonic() - began) * 1000, told.status)
            finally:
                for caller in callers:
                    caller.close()


def _connected(address: tuple[str, int], count: int) -> list[socket.socket]:
    callers: list[socket.socket] = []
    for n in range(count):
        caller = socket.create_connection(address, timeout=60)
        callers.append(caller)
        if n % 2:
            caller.sendall(request("GET", "/v1/x"))
    for n, caller in enumerate(callers):
        if n % 2:
            assert caller.recv(4_096).startswith(b"HTTP/1.1 201 "), "a caller got no answer"
    return callers


# --- streams ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Streamed:
    """A body of so many bytes to the platform and one back."""

    bytes_each_way: int
    arrived: int
    came_back: int
    peak_mib: float
    seconds: float


class PlainPlatform:
    """Takes one upload and sends as many bytes back; keeps neither."""

    def __init__(self, size: int) -> None:
        self.arrived = 0
        self._size = size
        self._server = socket.create_server(("127.0.0.1", 0))
        self._server.settimeout(30)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.getsockname()[1]}"

    def _serve(self) -> None:
        connection, _ = self._server.accept()
        with connection:
            connection.settimeout(60)
            self.arrived = _drained(connection, self._size)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % self._size)
            _sent(connection, self._size)
            connection.recv(1)

    def close(self) -> None:
        self._server.close()
        self._thread.join(10)


def _drained(connection: socket.socket, size: int) -> int:
    """Read a head and the `size` bytes behind it; how many came."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(MIB)
    came = len(data) - data.index(b"\r\n\r\n") - 4
    room = bytearray(MIB)
    while came < size and (taken := connection.recv_into(room)):
        came += taken
    return came


def _sent(connection: socket.socket, size: int) -> None:
    block = bytes(MIB)
    for _ in range(size // MIB):
        connection.sendall(block)


async def streamed(size: int) -> Streamed:
    """`size` bytes (whole MiB) up, then as many down, in one call."""
    platform = PlainPlatform(size)
    try:
        async with staged() as stage:
            process = await stage.process(platform.url, **PATIENT)
            forget_peak(process)
            began = time.monotonic()
            back = await asyncio.to_thread(_uploaded, _address(process.address), size)
            seconds = time.monotonic() - began
            return Streamed(size, platform.arrived, back, memory_mib(process, peak=True), seconds)
    finally:
        platform.close()


def _uploaded(address: tuple[str, int], size: int) -> int:
    with socket.create_connection(address, timeout=60) as caller:
        caller.sendall(b"POST /v1/files HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size)
        _sent(caller, size)
        return _drained(caller, size)


@dataclass(frozen=True, slots=True)
class HeldBack:
    """How much a sender got rid of while nobody read."""

    sent_mib: float
    peak_mib: float


async def held_back(*, downwards: bool) -> HeldBack:
    """A caller that does not read its answer, or a platform that does not read the upload."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        async with staged() as stage:
            process = await stage.process(f"http://127.0.0.1:{server.getsockname()[1]}", **PATIENT)
            forget_peak(process)
            sent = await asyncio.to_thread(
                _until_held, server, _address(process.address), downwards=downwards
            )
            return HeldBack(sent / MIB, memory_mib(process, peak=True))


def _until_held(server: socket.socket, address: tuple[str, int], *, downwards: bool) -> int:
    with contextlib.ExitStack() as stack:
        caller = stack.enter_context(socket.create_connection(address, timeout=10))
        caller.sendall(b"POST /v1/files HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\nx" % (1 << 40))
        platform, _ = server.accept()
        stack.enter_context(platform)
        platform.recv(16)  # an answer before its request is nobody's
        sender = caller
        if downwards:
            platform.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (1 << 40))
            sender = platform
        sender.settimeout(1.5)
        sent, block = 0, bytes(65_536)
        with contextlib.suppress(TimeoutError):
            while sent < 512 * MIB:
                sent += sender.send(block)
        return sent


# --- slow senders -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Slow:
    """How slow senders fared, and a good caller beside them."""

    senders: int
    slowest_payment_ms: float
    hits: int
    operations: int
    all_cut_after_s: float
    memory_mib: float


async def slow_senders(count: int) -> Slow:
    """`count` connections that drip a head and as many that drip a body, one byte a second (O-36)."""
    with many_files():
        async with staged() as stage:
            platform = await stage.platform(ok())
            process = await stage.process(platform.url, **PATIENT)
            head, _, _ = payment("KS").partition(b"\r\n\r\n")
            head = re.sub(rb"Content-Length: \d+", b"Content-Length: 1000", head) + b"\r\n\r\n"
            began = time.monotonic()
            drip = asyncio.create_task(asyncio.to_thread(_drip, _address(process.address), count, head))
            slowest = 0.0
            for n in range(20):
                at = time.monotonic()
                told = await process.call(payment(f"K{n}", order=f"O-{n}"))
                assert told.status == 201, told.body
                slowest = max(slowest, time.monotonic() - at)
                await asyncio.sleep(0.1)
            await drip
            seconds = time.monotonic() - began
            operations = len(await process.operations())
            return Slow(2 * count, slowest * 1000, platform.hits, operations, seconds, memory_mib(process))


def _drip(address: tuple[str, int], count: int, head: bytes) -> None:
    """One byte a second on each connection, until the last of them is cut."""
    senders = []
    for n in range(2 * count):
        sender = socket.create_connection(address, timeout=60)
        sender.setblocking(False)
        if n % 2:
            sender.sendall(head)
        senders.append(sender)
    ends_at = time.monotonic() + 120
    pause = threading.Event()
    while senders:
        assert time.monotonic() < ends_at, f"{len(senders)} slow senders were never cut"
        senders = [sender for sender in senders if _dripped(sender)]
        pause.wait(1)


def _dripped(sender: socket.socket) -> bool:
    """Whether the connection still stands."""
    try:
        with contextlib.suppress(BlockingIOError):
            while sender.recv(4_096):
                pass
            sender.close()
            return False
        sender.send(b"G")
    except OSError:
        sender.close()
        return False
    return True


# --- limits of the machine --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Starved:
    """What callers were told while the machine had nothing left, and afterwards."""

    told: dict[str, int]
    hits: int
    afterwards: int
    faults: int
    """Lines of the product's that tell of a failure of its own."""


def _faults(process: Process) -> int:
    return sum("Traceback" in line or '"level":"error"' in line for line in process.said)


async def few_files(limit: int, callers: int) -> Starved:
    """More callers than the process may have open files."""
    async with staged() as stage:
        platform = await stage.platform(ok())
        process = await stage.process(platform.url, before=("prlimit", f"--nofile={limit}"), **PATIENT)
        dialled = [caller for _ in range(callers) if (caller := await _dialled(process.address))]
        told: dict[str, int] = {}
        for n, caller in enumerate(dialled):
            heard = await _heard(caller, payment(f"K{n}", order=f"O-{n}"))
            told[heard] = told.get(heard, 0) + 1
        for caller in dialled:
            caller.reset()
        hits = platform.hits
        afterwards = await _served_again(process)
        return Starved(told, hits, afterwards, _faults(process))


async def _dialled(address: str) -> RawCaller | None:
    try:
        return await RawCaller.dial(address)
    except ConnectionError:
        return None


async def _heard(caller: RawCaller, raw: bytes) -> str:
    if caller.stream.writer.is_closing():
        return "closed"
    try:
        await caller.send(raw)
        told = Told.of(await caller.answer())
    except (ConnectionError, EOFError):
        return "closed"
    return _told(told)


def _told(told: Told) -> str:
    return " ".join(part for part in (str(told.status), told.code, told.knowledge) if part)


async def _served_again(process: Process) -> int:
    """The status of the first call that is let in again."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(ConnectionError, EOFError):
                told = await process.call(payment("K-after", order="O-after"))
                if told.status == 201:
                    return told.status
            await asyncio.sleep(0.05)


async def few_ports(callers: int) -> Starved:
    """More calls at once than local ports. Run it by `in_a_network_of_its_own`."""
    gate = asyncio.Event()
    async with staged() as stage:
        platform = await stage.platform(Script(Hold(gate), *ok().steps))
        process = await stage.process(platform.url, listen=f"unix:{stage.folder}/calls.sock", **PATIENT)
        calls = [asyncio.create_task(process.call(payment(f"K{n}", order=f"O-{n}"))) for n in range(callers)]
        done: set[asyncio.Task[Told]] = set()
        while len(done) + platform.hits < callers:
            done, _ = await asyncio.wait(calls, timeout=0.2)
        hits = platform.hits
        gate.set()
        told: dict[str, int] = {}
        for call in calls:
            one = await call
            told[_told(one)] = told.get(_told(one), 0) + 1
        return Starved(told, hits, await _served_again(process), _faults(process))


PORTS = 24


def in_a_network_of_its_own(callers: int) -> str | None:
    """`few_ports` in a network namespace with `PORTS` local ports; what it prints, None where that can't be."""
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        return None
    script = (
        f"ip link set lo up && echo '40000 {40_000 + PORTS - 1}' > /proc/sys/net/ipv4/ip_local_port_range"
        f" && exec {sys.executable} -m tests.wire.pressure ports {callers}"
    )
    may = subprocess.run(["unshare", "-n", "true"], capture_output=True, check=False, timeout=20)
    if may.returncode:
        return None
    ran = subprocess.run(
        ["unshare", "-n", "sh", "-c", script],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


async def full_pool() -> tuple[list[Told], Told]:
    """Two connections that hang; the third payment, which gets none in time, and one after they are free."""
    async with staged() as stage:
        platform = await stage.platform(Script(Hang()))
        limits = {"max_connections": 2, "connect_timeout": "500ms"}
        proxy = await stage.proxy(
            platform.url, upstream=limits, retry={"attempts": 1, "attempt_timeout": "10s", "deadline": "20s"}
        )
        hanging = [asyncio.create_task(proxy.call(payment(f"H{n}", order=f"H-{n}"))) for n in range(2)]
        await platform.got(2)
        waiting = await asyncio.gather(*(proxy.call(payment(f"W{n}", order=f"W-{n}")) for n in range(3)))
        platform.usual = Script(Send(answer(201, b'{"id":"p","status":"succeeded"}')))
        await asyncio.gather(*hanging)
        return waiting, await proxy.call(payment("W0", order="W-0"))


def _say(what: str, figures: object) -> None:
    sys.stdout.write(f"{what}: {figures}\n")
    sys.stdout.flush()


def main() -> int:
    """Print every figure, at full size."""
    if len(sys.argv) == 3:
        sys.stdout.write(f"{loops.run(few_ports(int(sys.argv[2])))}\n")
        return 0
    _say("10,000 idle connections", loops.run(idle_connections(10_000)))
    _say("2 GiB each way", loops.run(streamed(2_048 * MIB)))
    _say("a caller that does not read", loops.run(held_back(downwards=True)))
    _say("a platform that does not read", loops.run(held_back(downwards=False)))
    _say("500 + 500 slow senders", loops.run(slow_senders(500)))
    _say("100 open files", loops.run(few_files(100, 300)))
    _say(f"{PORTS} local ports", (in_a_network_of_its_own(80) or "not possible here").strip())
    waiting, afterwards = loops.run(full_pool())
    _say("a full pool", [(told.status, told.code, told.knowledge) for told in [*waiting, afterwards]])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
