"""The ledger's commands ask a real listener over loopback and print what it tells (C5)."""

from __future__ import annotations

import json
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from proxy.admin.views import operation_json
from proxy.cli import main
from tests.contract.values import START_MS, operation
from tests.core.payhub import PAYHUB

OPERATION = {
    "id": "op_1",
    "route": "create_payment",
    "subject": "order:ORDER-1",
    "knowledge": "unknown",
    "status": None,
    "amount": 10_000,
    "currency": "USD",
    "attempt_count": 2,
    "updated": "2027-01-15T08:00:00.123Z",
    "attempts": [
        {"n": 1, "begun": "2027-01-15T08:00:00.000Z", "outcome": "in_doubt"},
        {"n": 2, "outcome": None},
    ],
    "history": [],
}


def story() -> dict[str, object]:
    """What the admin listener tells of one operation."""
    told = operation_json(operation("N1"), now_ms=START_MS, platform=PAYHUB)
    return {**told, "made_by": {}, "related": [], "resolvable_as": ["succeeded", "absent"]}


Capture = pytest.CaptureFixture[str]


class Listener(BaseHTTPRequestHandler):
    """Answers like an admin listener, and remembers what it was asked."""

    asked: list[tuple[str, str, str | None, bytes]]
    answer: tuple[int, bytes]

    def do_GET(self) -> None:
        self._reply()

    def do_POST(self) -> None:
        self._reply()

    def _reply(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.asked.append((self.command, self.path, self.headers.get("Authorization"), body))
        status, content = self.answer
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """The tests' output stays clean."""


class UnixServer(socketserver.UnixStreamServer):
    def get_request(self) -> tuple[socket.socket, tuple[str, int]]:
        connection, _ = super().get_request()
        return connection, ("unix", 0)


@contextmanager
def serving(server: socketserver.BaseServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def listener() -> type[Listener]:
    answer = (200, json.dumps({"operations": [OPERATION], "cursor": "next"}).encode())
    return type("Fresh", (Listener,), {"asked": [], "answer": answer})


@pytest.fixture
def admin(listener: type[Listener]) -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), listener)
    with serving(server):
        yield f"http://127.0.0.1:{server.server_port}"


def run(capsys: Capture, *arguments: str) -> tuple[int, str, list[str]]:
    code = main(arguments)
    said = capsys.readouterr()
    return code, said.out, said.err.splitlines()


def test_operations_asks_with_its_filters_and_prints_a_table(
    admin: str, listener: type[Listener], capsys: Capture
) -> None:
    code, out, errors = run(
        capsys,
        "operations",
        "--admin",
        admin,
        "--knowledge",
        "unknown",
        "--subject",
        "order:A 1",
        "--token",
        "t",
        "--oldest-first",
    )
    assert (code, errors) == (0, [])
    assert listener.asked == [
        ("GET", "/operations?knowledge=unknown&subject=order%3AA+1&order=oldest&limit=50", "Bearer t", b"")
    ]
    row = next(line for line in out.splitlines() if line.startswith("op_1"))
    assert row.split()[:5] == ["op_1", "create_payment", "order:ORDER-1", "unknown", "10000"]
    assert "2027-01-15T08:00:00.123Z" in row
    assert "more: --cursor next" in out


def test_json_is_the_listener_s_own(admin: str, capsys: Capture) -> None:
    code, out, _ = run(capsys, "operations", "--admin", admin, "--json")
    assert code == 0
    assert json.loads(out)["operations"] == [OPERATION]


def test_operation_tells_its_story_on_one_screen(
    admin: str, listener: type[Listener], capsys: Capture
) -> None:
    listener.answer = 200, json.dumps(story()).encode()
    code, out, errors = run(capsys, "operation", "op/1", "--admin", admin)
    assert (code, errors) == (0, [])
    assert listener.asked[0][1] == "/operations/op%2F1"
    assert "unknown: The platform may have acted" in out
    assert "What happened" in out
    assert "order:N1" in out


def test_lookup_asks_now_and_shows_the_story(admin: str, listener: type[Listener], capsys: Capture) -> None:
    listener.answer = 200, json.dumps(story()).encode()
    code, out, _ = run(capsys, "lookup", "op_1", "--admin", admin)
    assert code == 0
    assert listener.asked == [("POST", "/operations/op_1/lookup", None, b"{}")]
    assert "What happened" in out
    code, out, _ = run(capsys, "lookup", "op_1", "--json", "--admin", admin)
    assert (code, json.loads(out)) == (0, story())


@pytest.mark.parametrize("command", ["operation", "lookup"])
def test_listener_of_another_release_is_one_line_and_exit_1(
    command: str, admin: str, listener: type[Listener], capsys: Capture
) -> None:
    listener.answer = 200, json.dumps(OPERATION).encode()
    code, _, errors = run(capsys, command, "op_1", "--admin", admin)
    assert code == 1
    assert len(errors) == 1
    assert "--json prints it as it is" in errors[0]


def test_export_is_the_whole_story_as_json(admin: str, listener: type[Listener], capsys: Capture) -> None:
    """O5."""
    listener.answer = 200, json.dumps(OPERATION).encode()
    code, out, _ = run(capsys, "operation", "op_1", "--export", "--admin", admin)
    assert (code, json.loads(out)) == (0, OPERATION)


def test_export_of_a_range_is_one_line_for_each_story(
    admin: str, listener: type[Listener], capsys: Capture
) -> None:
    listener.answer = 200, json.dumps({**OPERATION, "operations": [OPERATION], "cursor": None}).encode()
    code, out, _ = run(capsys, "operation", "--export", "--since", "2026-11-29T00:00:00Z", "--admin", admin)
    assert code == 0
    assert [path for _, path, _, _ in listener.asked] == [
        "/operations?since=2026-11-29T00%3A00%3A00Z&order=oldest&limit=200",
        "/operations/op_1",
    ]
    assert [json.loads(line)["id"] for line in out.splitlines()] == ["op_1"]


@pytest.mark.parametrize(
    "arguments",
    [[], ["--export"], ["op_1", "--since", "x"], ["--since", "x"], ["op_1", "--export", "--until", "x"]],
)
def test_operation_without_an_id_or_a_range_to_export_is_refused(
    arguments: list[str], admin: str, capsys: Capture
) -> None:
    code, _, errors = run(capsys, "operation", *arguments, "--admin", admin)
    assert code == 2
    assert errors == ["safepost: operation: expected an ID, or --export with --since or --until"]


def test_resolve_posts_status_name_and_note(admin: str, listener: type[Listener], capsys: Capture) -> None:
    listener.answer = 200, json.dumps(OPERATION | {"settled_by_hand": "failed"}).encode()
    code, out, _ = run(
        capsys, "resolve", "op_1", "--status", "failed", "--by", "Li Wei", "--note", "bank", "--admin", admin
    )
    assert (code, out) == (0, "op_1 is settled as failed by Li Wei\n")
    method, path, _, body = listener.asked[0]
    assert (method, path) == ("POST", "/operations/op_1/resolve")
    assert json.loads(body) == {"status": "failed", "by": "Li Wei", "note": "bank"}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            (401, b'{"error": {"code": "unauthorized", "message": "a token is needed"}}'),
            "401: a token is needed",
        ),
        ((404, b'{"detail": "no such operation"}'), "404: no such operation"),
        ((404, b"{}"), "404: no reason given"),
        ((200, b"<html>"), "answered 200, and not as an admin listener does"),
        ((200, b"[]"), "not as an admin listener does"),
    ],
)
def test_refusal_of_the_listener_is_one_line_and_exit_1(
    answer: tuple[int, bytes], words: str, admin: str, listener: type[Listener], capsys: Capture
) -> None:
    listener.answer = answer
    code, _, errors = run(capsys, "operation", "op_1", "--admin", admin)
    assert code == 1
    assert len(errors) == 1
    assert words in errors[0]


def test_absent_listener_is_one_line_and_exit_1(capsys: Capture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    code, _, errors = run(capsys, "operations", "--admin", f"127.0.0.1:{port}")
    assert code == 1
    assert errors == [f"safepost: no answer from the admin listener 127.0.0.1:{port}: Connection refused"]


def test_listener_and_token_come_from_the_configuration(
    admin: str, listener: type[Listener], capsys: Capture, tmp_path: Path
) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(
        f"platform: payhub\nupstream: {{url: https://h}}\nadmin: {admin.removeprefix('http://')}\n"
        "admin_token: from-file\n",
        encoding="utf-8",
    )
    assert run(capsys, "operations", "-c", str(file))[0] == 0
    assert listener.asked[0][2] == "Bearer from-file"


def test_listener_on_a_unix_socket_is_asked_there(
    listener: type[Listener], capsys: Capture, tmp_path: Path
) -> None:
    path = tmp_path / "a.sock"
    file = tmp_path / "c.yaml"
    file.write_text(f"platform: payhub\nupstream: {{url: https://h}}\nadmin: unix:{path}\n", encoding="utf-8")
    with serving(UnixServer(str(path), listener)):
        assert run(capsys, "operations", "-c", str(file))[0] == 0
    code, _, errors = run(capsys, "operations", "-c", str(file))
    assert code == 1
    assert f"unix:{path}" in errors[0]


@pytest.mark.parametrize(
    "url",
    ["", "foo bar", "http://", "http://h:99999", "http://[::1", "ftp://h", "http://u:p@h:1", "h:1/x?y=z"],
)
def test_admin_url_in_another_form_is_one_line_and_exit_2(url: str, capsys: Capture) -> None:
    code, _, errors = run(capsys, "operations", "--admin", url)
    assert code == 2
    assert errors == ["safepost: --admin: expected a URL such as http://127.0.0.1:8081, or unix:/PATH"]


def test_admin_socket_is_asked_by_its_path(tmp_path: Path, capsys: Capture) -> None:
    code, _, errors = run(capsys, "operations", "--admin", f"unix:{tmp_path}/admin.sock")
    assert code == 1
    assert errors == [
        f"safepost: no answer from the admin listener unix:{tmp_path}/admin.sock: No such file or directory"
    ]


def test_answer_of_another_server_is_no_empty_ledger(
    admin: str, listener: type[Listener], capsys: Capture
) -> None:
    """The proxy's own port passes the question on, and the platform may answer it."""
    listener.answer = 200, b'{"data":[]}'
    code, out, errors = run(capsys, "operations", "--admin", admin)
    assert (code, out) == (1, "")
    assert "is it the proxy's own port?" in errors[0]


@pytest.mark.parametrize("answer", [b"{}", json.dumps(OPERATION).encode()], ids=["empty", "not settled"])
def test_answer_of_another_server_settles_nothing(
    answer: bytes, admin: str, listener: type[Listener], capsys: Capture
) -> None:
    listener.answer = 200, answer
    code, out, errors = run(
        capsys, "resolve", "op_1", "--status", "failed", "--by", "Li", "--note", "bank", "--admin", admin
    )
    assert (code, out) == (1, "")
    assert "is it the proxy's own port?" in errors[0]


def test_listener_that_ends_without_an_answer_may_have_settled_it(capsys: Capture) -> None:
    """C5: a person who reads it looks before settling it otherwise."""

    def swallow(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            asked = b""
            while b'"note"' not in asked:
                asked += connection.recv(65_536)

    with socket.create_server(("127.0.0.1", 0)) as server:
        swallowing = threading.Thread(target=swallow, args=(server,))
        swallowing.start()
        admin = f"127.0.0.1:{server.getsockname()[1]}"
        code, _, errors = run(
            capsys, "resolve", "op_1", "--status", "failed", "--by", "Li", "--note", "bank", "--admin", admin
        )
        swallowing.join()
    assert code == 1
    assert errors[0].endswith("; what was asked for may have been done all the same")


@pytest.mark.parametrize("arguments", [["operations", "--key", "\udcff"], ["operation", "\udcff"]])
def test_argument_that_is_no_text_is_asked_for_by_its_bytes(
    arguments: list[str], admin: str, listener: type[Listener], capsys: Capture
) -> None:
    """C8: never a traceback."""
    listener.answer = 404, b'{"detail": "no such operation"}'
    code, _, errors = run(capsys, *arguments, "--admin", admin)
    assert (code, len(errors)) == (1, 1)
    assert "%FF" in listener.asked[0][1]


@pytest.mark.parametrize("token", ["tok en", "t\nX: 1", "\udcff", "tök"])
def test_token_that_no_header_holds_is_one_line_that_does_not_show_it(token: str, capsys: Capture) -> None:
    """C8, F2."""
    code, _, errors = run(capsys, "operations", "--admin", "127.0.0.1:1", "--token", token)
    assert (code, errors) == (2, ["safepost: --token: expected visible ASCII characters, found others"])
