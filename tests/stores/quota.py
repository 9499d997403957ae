"""What a full disk or a quota does to the files of this process: the kernel itself refuses to let them grow."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator

LIMIT = resource.RLIMIT_FSIZE


@contextlib.contextmanager
def no_file_beyond(limit_bytes: int) -> Iterator[None]:
    """A write that crosses the limit is cut there, the next one is refused; what lies below it can be written."""
    before = resource.getrlimit(LIMIT)
    resource.setrlimit(LIMIT, (limit_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(LIMIT, before)
