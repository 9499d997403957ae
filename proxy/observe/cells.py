"""Where the counts are kept: one flat run of numbers, so that counting is one addition.

A counter is one cell; a histogram is one cell for each bucket and one for the sum. A series is opened once and
known by the index of its first cell from then on. Measured (ns of CPU an update): a cell 50, a
prometheus-client counter 360, its histogram 850 (docs/decisions/0012).
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

Labels = tuple[str, ...]
Series = dict[tuple[str, Labels], tuple[float, ...]]
"""Every series by its metric's name and its label values: the cells' values."""

CELLS_MAX = 65_536  # of one process: some hundred series a route, twenty times over; 512 KiB when shared


class Cells(Protocol):
    """Numbers by their place: a list, or memory that other processes see too."""

    def __getitem__(self, at: int, /) -> float: ...

    def __setitem__(self, at: int, value: float, /) -> None: ...


class Book(Protocol):
    """One process's series."""

    @property
    def cells(self) -> Cells: ...

    def open(self, name: str, labels: Labels, *, width: int) -> int:
        """The first cell of a series, zeros if it is new. `width`: how many cells it has."""
        ...

    def series(self) -> Series: ...


@dataclass(slots=True)
class LocalBook:
    """A book in this process's memory."""

    cells: list[float] = field(default_factory=list)
    _places: dict[tuple[str, Labels], tuple[int, int]] = field(default_factory=dict)

    def open(self, name: str, labels: Labels, *, width: int) -> int:
        place = self._places.get((name, labels))
        if place is None:
            place = self._places[name, labels] = (len(self.cells), width)
            self.cells.extend([0.0] * width)
        return place[0]

    def series(self) -> Series:
        return {key: tuple(self.cells[at : at + width]) for key, (at, width) in self._places.items()}


class SharedBook:
    """A book that other processes can read, also after this one was killed.

    Two files: the numbers, mapped into memory, and the series' names, one JSON line each, appended. The worker
    that takes a dead one's place opens the same files and counts on from there, so that no counter ever falls.
    Names that a full disk does not take are kept for the next time: no payment ends for one.

    Args: folder: holds the books of one fleet of workers and nothing else. worker: this one's number.
    """

    def __init__(self, folder: Path, *, worker: int) -> None:
        self._names = folder / f"{worker}.names"
        numbers = folder / f"{worker}.cells"
        with numbers.open("ab") as file:
            _reserve(file.fileno(), numbers)
        with numbers.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), CELLS_MAX * 8)
        self.cells = memoryview(self._map).cast("d")
        _end_with_a_line(self._names)
        self._unwritten = b""
        self._places = dict(_places(self._names))
        self._used = max((at + width for at, width in self._places.values()), default=0)

    def open(self, name: str, labels: Labels, *, width: int) -> int:
        place = self._places.get((name, labels))
        if place is None:
            if self._used + width > CELLS_MAX:
                raise MemoryError(f"metrics: more than {CELLS_MAX} cells: a label is not bounded")
            place = self._places[name, labels] = (self._used, width)
            self._used += width
            line = json.dumps([name, labels, *place], separators=(",", ":")) + "\n"
            self._unwritten += line.encode("utf-8")
            with contextlib.suppress(OSError), self._names.open("ab", buffering=0) as file:
                self._unwritten = self._unwritten[file.write(self._unwritten) :]
        return place[0]

    def series(self) -> Series:
        return {key: tuple(self.cells[at : at + width]) for key, (at, width) in self._places.items()}


def books_in(folder: Path, *, but: int) -> list[Series]:
    """What the other workers' books say now. A line that is still being written is left for the next time."""
    return [_read(names) for names in sorted(folder.glob("*.names")) if names.stem != str(but)]


def _read(names: Path) -> Series:
    places = dict(_places(names))
    with names.with_suffix(".cells").open("rb") as file:
        numbers = memoryview(file.read()).cast("d")
    return {key: tuple(numbers[at : at + width]) for key, (at, width) in places.items()}


def _places(names: Path) -> Iterator[tuple[tuple[str, Labels], tuple[int, int]]]:
    if not names.exists():
        return
    for line in names.read_text(encoding="utf-8").splitlines(keepends=True):
        if line.endswith("\n"):
            name, labels, at, width = json.loads(line)
            yield (name, tuple(labels)), (at, width)


def _reserve(fd: int, numbers: Path) -> None:
    """Have the disk hold all of it: a hole that is written through memory would end the process on a full one.

    Raises: OSError that names the file.
    """
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, CELLS_MAX * 8)
        else:  # macOS
            os.truncate(fd, CELLS_MAX * 8)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(numbers)) from None


def _end_with_a_line(names: Path) -> None:
    """Cut off what a worker that was killed had begun to write: the next name would be lost with it."""
    if names.exists():
        os.truncate(names, names.read_bytes().rfind(b"\n") + 1)


def clear(folder: Path) -> None:
    """Forget the books of an earlier run. The one who starts the workers calls it, before the first."""
    for file in folder.glob("*.*"):
        if file.suffix in (".names", ".cells"):
            file.unlink()


def total(books: Iterable[Series], merged_by: dict[str, str]) -> Series:
    """The fleet's series. `merged_by` names, for a metric, how: sum (the default), max or min."""
    found: Series = {}
    for series in books:
        for key, cells in series.items():
            before = found.get(key)
            if before is None:
                found[key] = cells
                continue
            how = merged_by.get(key[0], "sum")
            pairs = zip(before, cells, strict=True)
            if how == "sum":
                found[key] = tuple(a + b for a, b in pairs)
            else:
                pick = max if how == "max" else min
                found[key] = tuple(pick(a, b) for a, b in pairs)
    return found
