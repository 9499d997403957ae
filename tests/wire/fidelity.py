"""What is carried, byte for byte: a raw caller, the real product, a raw platform (contract H1-H5).

Each row says what one end sends and what must come out at the other end. Heads are compared as bytes; bodies
too, once a chunked framing is taken off, which is a hop's own business. `make fidelity` prints the matrix.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from proxy import loops
from tests.e2e.stage import Proxy, Stage
from tests.wire.fidelity_rows import ANSWERS, REQUESTS, AnswerRow, RequestRow
from tests.wire.peers import Answer, RawCaller, RawPlatform, Script, Send, When, answer

OURS = (b"idempotency-key:", b"safepost-")
"""What a guarded answer gains (H8); it must come behind all that is the platform's."""
SHOWN_BYTES = 700


@dataclass(frozen=True, slots=True)
class Verdict:
    """One row: what was sent, what had to arrive, what did."""

    direction: str
    row: str
    kind: str
    sent: bytes
    wanted: list[bytes]
    arrived: list[bytes]

    @property
    def holds(self) -> bool:
        return self.wanted == self.arrived

    def told(self) -> str:
        """The row's failure, for people."""
        lines = [f"    sent:    {_shown(self.sent)}"]
        for at in range(max(len(self.wanted), len(self.arrived))):
            wanted = self.wanted[at] if at < len(self.wanted) else b"(nothing)"
            arrived = self.arrived[at] if at < len(self.arrived) else b"(nothing)"
            if wanted != arrived:
                lines += [f"    wanted:  {_shown(wanted)}", f"    arrived: {_shown(arrived)}"]
        return "\n".join(lines)


def _shown(data: bytes) -> str:
    if len(data) <= SHOWN_BYTES:
        return repr(data)
    return f"{data[:SHOWN_BYTES]!r}... ({len(data)} bytes)"


class Ends:
    """The product with both of its far ends."""

    def __init__(self, platform: RawPlatform, proxy: Proxy) -> None:
        self.platform = platform
        self.proxy = proxy

    @classmethod
    async def made(cls, stage: Stage) -> Ends:
        platform = await stage.platform()
        proxy = await stage.proxy(
            platform.url,
            upstream={"authorization": None},
            retry={"attempts": 1, "attempt_timeout": "5s", "deadline": "6s"},
        )
        return cls(platform, proxy)

    async def check_request(self, row: RequestRow) -> Verdict:
        """Send the row's request; what the platform saw, and how the caller was answered."""
        began = self.platform.hits
        sent = row.sent()
        self.platform.usual = Script(Send(answer(201, row.answered_with)))
        arrived: list[bytes] = []
        async with await RawCaller.dial(self.proxy.address) as caller:
            if row.in_one_write:
                await caller.send(sent * row.times)
            for _ in range(row.times):
                if not row.in_one_write:
                    await caller.send(sent)
                arrived.append(await _answered(caller, row))
            if row.closes:
                arrived.append(b"closed" + await caller.to_end())
        seen = self.platform.received[began:]
        host = b"127.0.0.1:%d" % self.platform.port
        wanted = [row.answer_wanted] * row.times + ([b"closed"] if row.closes else [])
        for _ in range(0 if row.refused else row.times):
            wanted += row.wanted(host)
        for one in seen:
            arrived += [one.head, one.body]
        return Verdict("request", row.name, row.kind, sent, wanted, arrived)

    async def check_answer(self, row: AnswerRow) -> Verdict:
        """Have the platform answer with the row's bytes; what the caller got."""
        when = When.HEAD if row.is_early else When.WHOLE
        self.platform.plan(Script(Send(row.sent()), *row.then, when=when))
        async with await RawCaller.dial(self.proxy.address) as caller:
            await caller.send(row.asked())
            got = await caller.answer(head_only=row.has_no_body)
        arrived = [*got.interims, _without_ours(got), got.body, got.trailers]
        return Verdict("answer", row.name, row.kind, row.sent(), row.wanted(), arrived)


async def _answered(caller: RawCaller, row: RequestRow) -> bytes:
    """The answer's status; the whole of it is the other direction's business."""
    if row.waits_for_100:
        interim = await caller.until(b"\r\n\r\n")
        await caller.send(row.body)
        return interim + b"%d" % (await caller.answer()).status
    return b"%d" % (await caller.answer(head_only=row.line.startswith(b"HEAD"))).status


def _without_ours(got: Answer) -> bytes:
    lines = got.head.split(b"\r\n")
    return b"\r\n".join(line for line in lines if not line.lower().startswith(OURS))


async def verdicts(rows: Iterable[RequestRow | AnswerRow]) -> list[Verdict]:
    """Every row against one product, one after the other."""
    with tempfile.TemporaryDirectory() as folder:
        async with AsyncExitStack() as stack:
            ends = await Ends.made(Stage(stack, Path(folder)))
            return [await _verdict(ends, row) for row in rows]


async def _verdict(ends: Ends, row: RequestRow | AnswerRow) -> Verdict:
    try:
        async with asyncio.timeout(20):
            if isinstance(row, RequestRow):
                return await ends.check_request(row)
            return await ends.check_answer(row)
    except (TimeoutError, EOFError, ConnectionError) as error:
        direction = "request" if isinstance(row, RequestRow) else "answer"
        arrived = [f"broken off: {error!r}".encode()]
        return Verdict(direction, row.name, row.kind, row.sent(), [b"an answer"], arrived)


def matrix(found: Sequence[Verdict]) -> str:
    """The table, and under it what was sent and what arrived where a row does not hold."""
    lines = [f"{'direction':<10}{'route':<11}{'row':<62}verdict"]
    lines += [
        f"{one.direction:<10}{one.kind:<11}{one.row:<62}{'PASS' if one.holds else 'FAIL'}" for one in found
    ]
    broken = [one for one in found if not one.holds]
    lines += [f"\n{one.direction}, {one.kind}, {one.row}\n{one.told()}" for one in broken]
    lines.append(f"\n{len(found) - len(broken)} of {len(found)} rows hold")
    return "\n".join(lines)


def main() -> int:
    """Print the matrix; 0 only if every row holds."""
    found = loops.run(verdicts([*REQUESTS, *ANSWERS]))
    sys.stdout.write(matrix(found) + "\n")
    return 0 if all(one.holds for one in found) else 1


if __name__ == "__main__":
    raise SystemExit(main())
