"""`safepost run` as a process: listeners announced, signals heeded, one line for what the machine refuses (C1)."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path

from tests.cli.processes import PATIENCE_S, run, started

CONFIG = """
platform: payhub
upstream: {{url: "http://127.0.0.1:9", authorization: k}}
listen: 127.0.0.1:{port}
admin: 127.0.0.1:0
store: {{url: "{store}"}}
log: {{level: error}}
"""


def test_proxy_announces_its_listeners_and_drains_on_sigterm(tmp_path: Path) -> None:
    text = (
        CONFIG.format(port=0, store="sqlite:s.db")
        + 'events: {listen: "127.0.0.1:0", secret: a-long-enough-secret}\n'
    )
    (tmp_path / "config.yaml").write_text(text, encoding="utf-8")
    with started("run", cwd=tmp_path) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(4)]
        admin = lines[-1].removeprefix("admin on ").strip()
        listed = run("operations", "--admin", admin, "--json", cwd=tmp_path)
        missing = run("operation", "op_none", "--admin", admin, cwd=tmp_path)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)
    assert [line for line in lines if line.startswith("listening on ") and "127.0.0.1:" in line]
    assert [line for line in lines if line.startswith("events on http://127.0.0.1:")]
    assert [line for line in lines if line.startswith("admin on http://127.0.0.1:")]
    assert process.returncode == 0
    assert json.loads(listed.stdout) == {"operations": [], "cursor": None}
    assert (missing.returncode, len(missing.stderr.splitlines())) == (1, 1)
    assert "404: no such operation" in missing.stderr


def test_proxy_without_its_port_or_store_is_one_line_and_exit_1(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (tmp_path / "config.yaml").write_text(CONFIG.format(port=port, store="sqlite:s.db"), encoding="utf-8")
        ended = run("run", cwd=tmp_path)
    assert (ended.returncode, len(ended.stderr.splitlines())) == (1, 1)
    assert f"Address already in use: 127.0.0.1:{port}\n" in ended.stderr
    text = CONFIG.format(port=0, store="sqlite:no/such/directory/s.db")
    (tmp_path / "config.yaml").write_text(text, encoding="utf-8")
    ended = run("run", cwd=tmp_path)
    assert (ended.returncode, len(ended.stderr.splitlines())) == (1, 1)
    assert "safepost: " in ended.stderr
