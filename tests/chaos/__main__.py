"""`python -m tests.chaos --seconds 300 --seed 7 --store sqlite`: a chaos run with its summary and verdict."""

from __future__ import annotations

import argparse
import asyncio
import pickle
import sys
from pathlib import Path

from tests.chaos.run import Plan, play


def main() -> int:
    """Returns: 0 if nothing in the logs contradicts a promise and everything came to rest."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="of chaos; the calm after it comes on top"
    )
    parser.add_argument("--seed", type=int, default=1, help="what is planned; not when it happens")
    parser.add_argument("--store", choices=("sqlite", "redis", "sentinel"), default="sqlite")
    parser.add_argument("--sidecars", type=int, default=3)
    parser.add_argument("--workers", type=int, default=1, help="processes of the last sidecar")
    parser.add_argument("--orders", type=float, default=7.0, help="new orders a second")
    parser.add_argument("--careless", action="store_true", help="a bank without order uniqueness")
    parser.add_argument("--keep", type=Path, help="an empty folder for the run's files and its logs")
    given = parser.parse_args()
    plan = Plan(
        seconds=given.seconds,
        seed=given.seed,
        store=given.store,
        sidecars=given.sidecars,
        workers=given.workers,
        orders_per_s=given.orders,
        careless=given.careless,
    )
    if given.keep:
        given.keep.mkdir(parents=True, exist_ok=True)
    report = asyncio.run(play(plan, given.keep))
    if given.keep:
        (given.keep / "logs.pickle").write_bytes(pickle.dumps(report.logs))
    sys.stdout.write("\n".join(report.lines()) + "\n")
    return 0 if not report.violations and report.settle_s is not None else 1


if __name__ == "__main__":
    sys.exit(main())
