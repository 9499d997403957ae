"""A long fuzz run: `python -m tests.wire.fuzzing SECONDS` (`make fuzz`).

atheris makes the inputs, guided by which lines of proxy/wire they reach; where it is not installed (it has wheels
for Linux only) hypothesis makes them. Either prints what disagreed and the input to replay it with.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

INPUT_BYTES_MAX = 400
"""Enough decisions for four requests and four answers, cut and mangled."""
BATCH = 2_000
SEEDS = 200
"""Inputs to begin with: nothing is learned from ones of a few bytes."""


def by_atheris(seconds: int) -> None:
    """Run until time is over or something disagrees; the process ends here."""
    atheris: Any = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["proxy.wire"]):
        fuzz = importlib.import_module("tests.wire.fuzz")
    with tempfile.TemporaryDirectory() as corpus:
        for n in range(SEEDS):
            data = hashlib.shake_256(b"%d" % n).digest(INPUT_BYTES_MAX // 2)
            Path(corpus, str(n)).write_bytes(data)
        sizes = [f"-max_len={INPUT_BYTES_MAX}", "-len_control=0"]
        options = [f"-max_total_time={seconds}", "-timeout=20", "-artifact_prefix=fuzz-", *sizes]
        atheris.Setup([sys.argv[0], *options, corpus], fuzz.Fuzzer())
        atheris.Fuzz()


def by_hypothesis(seconds: int) -> int:
    """The same without guidance; the number of conversations."""
    from hypothesis import Phase, given, seed, settings
    from hypothesis import strategies as st

    from tests.wire.fuzz import Fuzzer

    fuzzer = Fuzzer()
    ends_at = time.monotonic() + seconds
    batch = 0
    while time.monotonic() < ends_at:

        @seed(batch)
        @settings(max_examples=BATCH, database=None, deadline=None, phases=[Phase.generate, Phase.shrink])
        @given(st.binary(max_size=INPUT_BYTES_MAX))
        def converse(data: bytes) -> None:
            if time.monotonic() < ends_at:
                fuzzer(data)

        converse()
        batch += 1
    fuzzer.close()
    return fuzzer.count


def main() -> int:
    """Fuzz for so many seconds; 0 if nothing disagreed. An input in hex after them is replayed instead."""
    if len(sys.argv) == 3:
        from tests.wire.fuzz import Fuzzer

        Fuzzer()(bytes.fromhex(sys.argv[2]))
        sys.stdout.write("the four ends tell one story\n")
        return 0
    seconds = int(sys.argv[1])
    if importlib.util.find_spec("atheris") is not None:
        by_atheris(seconds)
    sys.stdout.write(f"{by_hypothesis(seconds)} conversations, nothing disagreed\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
