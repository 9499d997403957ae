"""The corpus of hostile requests against nginx, to see where the product is stricter (docs/security.md)."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from proxy import loops
from tests.wire.corpus import REQUESTS
from tests.wire.peers import RawCaller, RawPlatform

CONFIG = """
daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log crit;
events {{ worker_connections 256; }}
http {{
  access_log off;
  client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;
  uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
  server {{
    listen unix:{folder}/nginx.sock;
    location / {{ proxy_pass http://127.0.0.1:{port}; proxy_http_version 1.1; }}
  }}
}}
"""
"""As shipped, but for where files lie: what a proxy in front of a platform does without further advice."""
SILENCE_S = 0.4
"""nginx waits for the rest of a request that it takes for unfinished; longer tells nothing more."""


@dataclass(frozen=True, slots=True)
class Reference:
    """What nginx did with a request: the targets that the platform saw, the status that its caller got."""

    targets: tuple[bytes, ...]
    status: int | None


def installed() -> str | None:
    """nginx's version; None without it."""
    binary = shutil.which("nginx")
    if binary is None:
        return None
    said = subprocess.run([binary, "-v"], capture_output=True, text=True, check=True, timeout=10).stderr
    found = re.search(r"nginx/([\d.]+)", said)
    return found[1] if found else None


@asynccontextmanager
async def _nginx(folder: Path, port: int) -> AsyncIterator[str]:
    config = folder / "nginx.conf"
    config.write_text(CONFIG.format(folder=folder, port=port), encoding="utf-8")
    process = await asyncio.create_subprocess_exec("nginx", "-p", str(folder), "-c", str(config))
    address = f"unix:{folder}/nginx.sock"
    try:
        async with asyncio.timeout(10):
            while True:
                with suppress(OSError):
                    async with await RawCaller.dial(address):
                        break
                await asyncio.sleep(0.02)
        yield address
    finally:
        process.terminate()
        await process.wait()


async def compared() -> dict[str, Reference]:
    """Every request of the corpus against nginx in front of a raw platform."""
    found: dict[str, Reference] = {}
    with tempfile.TemporaryDirectory() as folder:
        async with RawPlatform() as platform, _nginx(Path(folder), platform.port) as address:
            for name, raw in REQUESTS.items():
                before = platform.hits
                status = await _status(address, raw)
                seen = platform.received[before:]
                found[name] = Reference(tuple(one.target for one in seen), status)
    return found


async def _status(address: str, raw: bytes) -> int | None:
    async with await RawCaller.dial(address) as caller:
        with suppress(ConnectionError):
            await caller.send(raw)
        status: int | None = None
        with suppress(TimeoutError, EOFError, ValueError):
            async with asyncio.timeout(SILENCE_S):
                status = (await caller.answer()).status
                # What it forwards besides has to be here before the next request is sent.
                await caller.to_end()
        return status


def main() -> int:
    """Print what nginx forwards of that which the product refuses."""
    version = installed()
    if version is None:
        sys.stderr.write("nginx is not installed\n")
        return 1
    found = loops.run(compared())
    passed = {name: one for name, one in found.items() if one.targets}
    sys.stdout.write(
        f"nginx {version} forwards {len(passed)} of {len(found)} requests that are refused here\n"
    )
    for name, one in passed.items():
        targets = ", ".join(target[:40].decode("latin-1") for target in one.targets)
        sys.stdout.write(f"  {name}: {one.status}; {targets}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
