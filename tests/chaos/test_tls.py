"""The way over TLS carries what is sent and how it ends; a stranger hears only from those who don't look."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.chaos.tls import NAME, Front, Stranger
from tests.e2e.certificates import Authority

SOON_S = 5.0


async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Says everything louder, until it is told to stop or to break."""
    while said := await reader.read(1_024):
        if said == b"break":
            writer.transport.abort()
            return
        writer.write(said.upper())
        if said == b"stop":
            break
    writer.close()


@pytest.fixture
async def front(tmp_path: Path) -> AsyncIterator[Front]:
    server = await asyncio.start_server(shout, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    front = await Front.open(f"127.0.0.1:{port}", Authority(tmp_path).server(NAME))
    yield front
    await front.close()
    server.close()


def trusting(ca_file: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(ca_file))


async def dial(address: str, context: ssl.SSLContext) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    port = int(address.rpartition(":")[2])
    return await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=NAME)


async def test_front_carries_both_ways_and_ends_with_its_platform(front: Front, tmp_path: Path) -> None:
    reader, writer = await dial(front.address, trusting(tmp_path / "ca.pem"))

    writer.write(b"pay")
    assert await asyncio.wait_for(reader.readexactly(3), SOON_S) == b"PAY"
    writer.write(b"stop")
    assert await asyncio.wait_for(reader.read(), SOON_S) == b"STOP"
    writer.close()


async def test_front_ends_when_its_platform_breaks_off(front: Front, tmp_path: Path) -> None:
    reader, writer = await dial(front.address, trusting(tmp_path / "ca.pem"))

    writer.write(b"break")
    with contextlib.suppress(OSError):  # a reset is as good
        assert await asyncio.wait_for(reader.read(), SOON_S) == b""
    writer.close()


async def test_stranger_hears_nothing_from_who_looks_and_all_from_who_does_not(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.mkdir()
    theirs.mkdir()
    trusted = Authority(ours)
    stranger = await Stranger.open(Authority(theirs).server(NAME))

    with pytest.raises(ssl.SSLCertVerificationError):
        await dial(stranger.address, trusting(trusted.ca_file))
    assert stranger.heard == []

    reader, writer = await dial(stranger.address, trusting(theirs / "ca.pem"))
    writer.write(b"card 4242")
    assert await asyncio.wait_for(reader.read(), SOON_S) == b""  # it closes once it has heard enough
    writer.close()
    await stranger.close()
    assert stranger.heard == [b"card 4242"]
