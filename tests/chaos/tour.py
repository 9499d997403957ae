"""All variants in turn, sharing a given time: one line for each, then what they come to together.

Each is a process of its own, so that a slice that falls over costs that slice alone and gives its memory back.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from tests.chaos.run import LINE_MAX, REST_S_MAX, Report
from tests.chaos.settings import ROOT, Variant

VARIANTS: Final = (
    Variant(store="sqlite"),
    Variant(store="redis"),
    Variant(store="cluster"),
    Variant(store="sentinel"),
    Variant(store="sqlite", forward=True, tls=True),
    Variant(store="redis", forward=True),
    Variant(store="sqlite", careless=True, workers=2),
    Variant(store="redis", careless=True, tls=True),
)
REST_S: Final = 75.0  # what a run usually takes besides its chaos: the start, the last callers, the calm
CHAOS_S_MIN: Final = 10.0
VIOLATIONS_TOLD: Final = 20  # of each slice; their number is told anyway
GRACE_S: Final = 30.0
EXIT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Slice:
    """What one run came to. `trouble`: why it counts as failed though no violation was found."""

    name: str
    seed: int
    seconds: float
    calls: int = 0
    charges: int = 0
    refunds: int = 0
    disasters: dict[str, int] = field(default_factory=dict)
    by_hand: int = 0
    violations: tuple[str, ...] = ()
    trouble: str | None = None

    @classmethod
    def of(cls, report: Report) -> Self:
        entries = Counter(entry.kind for entry in report.logs.bank.entries)
        return cls(
            name=str(report.plan.variant),
            seed=report.plan.seed,
            seconds=report.plan.seconds,
            calls=len(report.logs.calls),
            charges=entries["charge"],
            refunds=entries["refund"],
            disasters=dict(report.disasters),
            by_hand=report.by_hand,
            violations=tuple(str(one) for one in report.violations),
            trouble=None if report.settle_s is not None else "not everything came to rest",
        )

    @classmethod
    def read(cls, file: Path) -> Self:
        given: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return cls(**given | {"violations": tuple(given["violations"])})

    def write(self, file: Path) -> None:
        file.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @property
    def is_clean(self) -> bool:
        return not self.violations and self.trouble is None

    def line(self) -> str:
        return (
            f"{self.name:<42} seed {self.seed:<4} {self.seconds:4.0f} s  calls {self.calls:<6}"
            f" charges {self.charges:<6} refunds {self.refunds:<5} disasters {sum(self.disasters.values()):<5}"
            f" looked up by hand {self.by_hand:<3} violations {len(self.violations)}"
            + (f"  FAILED: {self.trouble}" if self.trouble else "")
        )


async def tour(seconds: float, seed: int, say: Callable[[str], None], *, keep: Path | None) -> bool:
    """Run every variant within `seconds`, each for its share of what is left; whether all were clean.

    Args: keep: a folder where the files of those stay that were not.
    """
    loop = asyncio.get_running_loop()
    ends = loop.time() + seconds
    slices: list[Slice] = []
    for n, variant in enumerate(VARIANTS):
        share_s = (ends - loop.time()) / (len(VARIANTS) - n)
        kept = keep / f"{n + 1}" if keep is not None else None
        one = await _run(variant, seed + n, max(CHAOS_S_MIN, share_s - REST_S), kept)
        slices.append(one)
        if kept is not None and one.is_clean:
            shutil.rmtree(kept)
        say(f"{n + 1}/{len(VARIANTS)} {one.line()}")
        for violation in one.violations[:VIOLATIONS_TOLD]:
            say(f"    {violation[:LINE_MAX]}")
    for line in summary(slices):
        say(line)
    return all(one.is_clean for one in slices)


def summary(slices: list[Slice]) -> list[str]:
    """The total, a line for each thing."""
    disasters = sum((Counter(one.disasters) for one in slices), Counter[str]())
    failed = [one.name for one in slices if not one.is_clean]
    return [
        f"total     {sum(one.seconds for one in slices):.0f} s of chaos in {len(slices)} runs",
        f"calls     {sum(one.calls for one in slices)}",
        f"money     {sum(one.charges for one in slices)} charges, {sum(one.refunds for one in slices)} refunds",
        f"disasters {disasters.total()}: "
        + ", ".join(f"{name} {count}" for name, count in disasters.most_common()),
        f"by hand   {sum(one.by_hand for one in slices)} looked up, unresolved half a minute after the last fault",
        f"verdict   {sum(len(one.violations) for one in slices)} violations"
        + (f"; failed: {'; '.join(failed)}" if failed else ""),
    ]


async def _run(variant: Variant, seed: int, seconds: float, keep: Path | None) -> Slice:
    with tempfile.TemporaryDirectory(prefix="chaos-tour-") as folder:
        file = Path(folder) / "slice.json"
        command = [
            *(sys.executable, "-m", "tests.chaos", "--result", str(file)),
            *("--seconds", f"{seconds:.0f}", "--seed", str(seed), "--store", variant.store),
            *("--workers", str(variant.workers)),
            *(("--keep", str(keep)) if keep is not None else ()),
            *(f"--{name}" for name in ("careless", "forward", "tls") if getattr(variant, name)),
        ]
        child = await asyncio.create_subprocess_exec(
            *command, cwd=ROOT, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
        )
        try:
            async with asyncio.timeout(seconds + REST_S_MAX + GRACE_S):
                _, errors = await child.communicate()
        except TimeoutError:
            errors = b"did not end in time"
        finally:
            await _ended(child)
        if file.exists():
            return Slice.read(file)
        last = errors.decode(errors="replace").strip().splitlines()[-1:]
        return Slice(str(variant), seed, seconds, trouble=f"exit {child.returncode}: {' '.join(last)[:300]}")


async def _ended(child: asyncio.subprocess.Process) -> None:
    """Its own way to end takes down what it started; a kill would leave that behind."""
    if child.returncode is None:
        child.terminate()
        try:
            await asyncio.wait_for(child.wait(), EXIT_S)
        except TimeoutError:
            child.kill()
            await child.wait()
