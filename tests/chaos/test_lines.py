"""The lines do what they say: each flaw, seen from both ends of a real connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random  # noqa: TID251 -- seeded

import pytest

from tests.chaos.lines import SOUND, UPWARD, Flaw, Line

REQUEST = b"r" * 20_000
ANSWER = b"a" * 20_000
SOON_S = 0.4


class Peer:
    """A server that reads a whole request and answers it; what it got, and how its stream ended."""

    def __init__(self) -> None:
        self.got = bytearray()
        self.ended = asyncio.Event()
        self.fault: Exception | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while len(self.got) < len(REQUEST) and (chunk := await reader.read(4_096)):
                self.got += chunk
            if len(self.got) == len(REQUEST):
                writer.write(ANSWER)
                await writer.drain()
            await reader.read()
        except OSError as error:
            self.fault = error
        finally:
            self.ended.set()
            writer.close()


@asynccontextmanager
async def line_with(flaw: Flaw) -> AsyncIterator[tuple[Line, Peer]]:
    peer = Peer()
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
    line = await Line.open(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", Random(1))
    line.mood = {flaw: 1}
    try:
        yield line, peer
    finally:
        await line.close()
        server.close()


async def exchange(line: Line) -> tuple[bytes, str]:
    """What a client gets, and how it ends: `whole`, `end`, `reset`, `silence`."""
    got = bytearray()
    reader, writer = await asyncio.open_connection("127.0.0.1", line.port)
    try:
        async with asyncio.timeout(SOON_S):
            writer.write(REQUEST)
            while len(got) < len(ANSWER):
                chunk = await reader.read(4_096)
                if not chunk:
                    return bytes(got), "end"
                got += chunk
        return bytes(got), "whole"
    except TimeoutError:
        return bytes(got), "silence"
    except OSError:
        return bytes(got), "reset"
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("flaw", "ending"),
    [
        (Flaw.NONE, "whole"),
        (Flaw.REFUSE, "reset"),
        (Flaw.RESET_UP, "reset"),
        (Flaw.RESET_DOWN, "reset"),
        (Flaw.HALF_CLOSE_UP, "end"),
        (Flaw.CLOSE_DOWN, "end"),
        (Flaw.HOLE_UP, "silence"),
        (Flaw.HOLE_DOWN, "silence"),
    ],
)
async def test_flaw_is_what_its_name_says(flaw: Flaw, ending: str) -> None:
    async with line_with(flaw) as (line, peer):
        got, ended = await exchange(line)

        assert ended == ending
        assert (got == ANSWER) is (flaw is Flaw.NONE)
        assert ANSWER.startswith(got)
        if flaw in UPWARD:
            assert len(peer.got) < len(REQUEST)
        elif flaw is not Flaw.REFUSE:
            assert bytes(peer.got) == REQUEST


@pytest.mark.parametrize("flaw", [Flaw.ALTER_UP, Flaw.ALTER_DOWN])
async def test_altered_line_changes_one_byte_of_one_direction(flaw: Flaw) -> None:
    async with line_with(flaw) as (line, peer):
        got, _ = await exchange(line)

        up, down = bytes(peer.got), got
        changed = (up, REQUEST) if flaw is Flaw.ALTER_UP else (down, ANSWER)
        assert sum(one != other for one, other in zip(*changed, strict=True)) == 1
        assert (down == ANSWER) if flaw is Flaw.ALTER_UP else (up == REQUEST)


async def test_late_bytes_are_all_of_them() -> None:
    async with line_with(Flaw.DELAY) as (line, peer):
        reader, writer = await asyncio.open_connection("127.0.0.1", line.port)
        writer.write(REQUEST)

        assert await asyncio.wait_for(reader.readexactly(len(ANSWER)), 5) == ANSWER
        assert bytes(peer.got) == REQUEST
        writer.close()


async def test_mended_line_ends_what_hangs_and_carries_anew() -> None:
    async with line_with(Flaw.HOLE_DOWN) as (line, peer):
        reader, writer = await asyncio.open_connection("127.0.0.1", line.port)
        writer.write(REQUEST)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.readexactly(len(ANSWER)), SOON_S)

        line.mend()

        with pytest.raises((asyncio.IncompleteReadError, OSError)):
            await asyncio.wait_for(reader.readexactly(len(ANSWER)), SOON_S)
        writer.close()
        await asyncio.wait_for(peer.ended.wait(), SOON_S)
        peer.got.clear()
        assert line.mood == SOUND
        assert (await exchange(line))[1] == "whole"


async def test_same_seed_draws_the_same_fates() -> None:
    lines = [Line("127.0.0.1:1", Random(7), mood=dict.fromkeys(Flaw, 1)) for _ in range(2)]

    first, second = ([line._draw() for _ in range(50)] for line in lines)

    assert first == second
    assert len({fate.flaw for fate in first}) == len(Flaw)
