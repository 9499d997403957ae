"""Processes that replace a journal's file and are killed at it, each at a later line than the one before."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from proxy.stores import journal
from proxy.stores.journal import Journal
from tests.contract.values import operation

Tracer = Callable[[FrameType, str, Any], Any]


def killed_at_each_line(path: Path) -> Iterator[int]:
    """Put the file back as it was, have a process replace it that is killed at line N of that, and yield N.

    Ends with the first process that came to its own end.
    """
    before = path.read_bytes()
    for line in itertools.count(1):
        path.write_bytes(before)
        pid = os.fork()
        if pid == 0:
            _replace(path, line)
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        if code != -signal.SIGKILL:
            assert code == 0, code
            return
        yield line


def _replace(path: Path, line: int) -> NoReturn:
    """In the child: one more operation, which makes the file worth replacing."""
    code = 1
    try:
        journal.REWRITE_BYTES = 1
        threading.settrace(_killer(line))
        asyncio.run(_note_one(path))
        code = 0
    finally:
        os._exit(code)


async def _note_one(path: Path) -> None:
    noted = Journal(path, failed=lambda _trouble: None)
    await noted.open()
    row = operation("K-noted")
    noted.note(row.id, row)
    await noted.close()


def _killer(line: int) -> Tracer:
    """A trace function that ends the process at its `line`-th line on the way through the replacing."""
    steps = {Journal._replace.__code__, journal._write_all.__code__, journal._sync_folder.__code__}
    within, left = [False], [line]

    def trace(frame: FrameType, event: str, _arg: object) -> Tracer | None:
        within[0] |= frame.f_code is Journal._replace.__code__
        if not within[0] or frame.f_code not in steps:
            return None
        left[0] -= event == "line"
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace

    return trace


def main(path: Path) -> None:
    """Print what is in the file after each, one line each."""
    for _ in killed_at_each_line(path):
        docs = journal._docs_of(path.read_bytes())
        keys = sorted(one.key for one in journal._operations_of(docs).values())
        sys.stdout.write(" ".join(keys) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
