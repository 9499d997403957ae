"""The ports that several workers share (`workers: N`), held by their parent."""

from __future__ import annotations

import errno
import socket
from pathlib import Path

import pytest

from proxy.config import settings_of
from proxy.workers import held_addresses
from tests.e2e.stage import configuration

BOTH = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))


@pytest.fixture
def named_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """`localhost` is both loopback addresses, whatever this machine's hosts file says."""

    def look_up(_host: str, port: int, **_hints: object) -> list[tuple[object, ...]]:
        return [(family, socket.SOCK_STREAM, 6, "", (host, port)) for family, host in BOTH]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)


def is_free(family: int, host: str, port: int) -> bool:
    """Whether a stranger, who doesn't share ports, could take it."""
    with socket.socket(family, socket.SOCK_STREAM) as other:
        try:
            other.bind((host, port))
        except OSError as error:
            assert error.errno == errno.EADDRINUSE
            return False
    return True


@pytest.mark.usefixtures("named_twice")
def test_parent_holds_every_address_of_the_name_on_one_port(tmp_path: Path) -> None:
    """Else a stranger could take the other family before a worker does, or while one is replaced."""
    text = configuration({"listen": "localhost:0", "workers": 2})
    with held_addresses(settings_of(text, file=str(tmp_path / "config.yaml"))) as (fixed, _sockets):
        port = fixed.listen[0].address.port
        assert port
        assert [is_free(family, host, port) for family, host in BOTH] == [False, False]


def test_address_that_workers_can_not_have_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        text = configuration({"listen": address, "workers": 2})
        settings = settings_of(text, file=str(tmp_path / "config.yaml"))
        with pytest.raises(OSError, match=address) as refused, held_addresses(settings):
            pass
    assert refused.value.errno == errno.EADDRINUSE


def test_unix_socket_that_another_process_serves_is_left_to_it(tmp_path: Path) -> None:
    """It was taken away from a running instance, whose callers then reached the newcomer or nobody."""
    path = tmp_path / "s.sock"
    settings = settings_of(
        configuration({"listen": f"unix:{path}", "workers": 2}), file=str(tmp_path / "config.yaml")
    )
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        with pytest.raises(OSError, match=f"unix:{path}") as refused, held_addresses(settings):
            pass
        assert refused.value.errno == errno.EADDRINUSE
        assert path.is_socket()
    with held_addresses(settings) as (_fixed, sockets):
        assert list(sockets) == [f"unix:{path}"]
    assert not path.exists()
