"""`python -m tests.chaos --seconds 300 --seed 7 --store sqlite`: a chaos run with its summary and verdict.

`--store all` shares the time out among all variants, start and calm included.
"""

from __future__ import annotations

import argparse
import asyncio
import pickle
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from tests.chaos.run import Plan, play
from tests.chaos.settings import STORES, Variant
from tests.chaos.tour import Slice, tour

Result = TypeVar("Result")


def main() -> int:
    """Returns: 0 if nothing in the logs contradicts a promise and everything came to rest."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="of chaos; the calm after it comes on top"
    )
    parser.add_argument("--seed", type=int, default=1, help="what is planned; not when it happens")
    parser.add_argument("--store", choices=(*STORES, "all"), default="sqlite")
    parser.add_argument("--sidecars", type=int, default=3)
    parser.add_argument("--workers", type=int, default=1, help="processes of the last sidecar")
    parser.add_argument("--orders", type=float, default=7.0, help="new orders a second")
    parser.add_argument("--careless", action="store_true", help="a bank without order uniqueness")
    parser.add_argument("--forward", action="store_true", help="calls are sent while the store is away (D3)")
    parser.add_argument("--tls", action="store_true", help="the platform speaks TLS")
    parser.add_argument("--result", type=Path, help="a file for the figures, as JSON")
    parser.add_argument(
        "--keep",
        type=Path,
        help="an empty folder for the run's files and its logs; of all variants, for those that failed",
    )
    given = parser.parse_args()
    if given.store == "all":
        return 0 if asyncio.run(_until_told(tour(given.seconds, given.seed, _say, keep=given.keep))) else 1
    variant = Variant(
        store=given.store,
        sidecars=given.sidecars,
        workers=given.workers,
        careless=given.careless,
        forward=given.forward,
        tls=given.tls,
    )
    plan = Plan(seconds=given.seconds, seed=given.seed, variant=variant, orders_per_s=given.orders)
    if given.keep:
        given.keep.mkdir(parents=True, exist_ok=True)
    report = asyncio.run(_until_told(play(plan, given.keep)))
    if given.keep:
        (given.keep / "logs.pickle").write_bytes(pickle.dumps(report.logs))
    if given.result:
        Slice.of(report).write(given.result)
    _say("\n".join(report.lines()))
    return 0 if Slice.of(report).is_clean else 1


async def _until_told(work: Coroutine[Any, Any, Result]) -> Result:
    """The work; SIGTERM ends it as Ctrl-C does, with everything that it started."""
    task = asyncio.ensure_future(work)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        raise SystemExit("told to end; what was started has been taken down") from None


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
