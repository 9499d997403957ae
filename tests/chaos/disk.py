"""A small disk of its own, under an embedded store or a journal: it fills up, and it goes read-only.

A real ext4 in a file on a loop device, since a tmpfs can't be remounted read-only while files on it are open for
writing (the kernel says busy), and that is the case that matters. Three ways, each what it says:

- `die`, then `fail`: the device takes no more writes (EIO); then the kernel makes the file system read-only under
  the open files (EROFS), as `errors=remount-ro` does, in the order in which a disk dies. Only `mend` helps: all
  that use it end, e2fsck, a new mount.
- `seal`: the files and their folder become immutable (chattr +i). Writes through open files fail, too (EPERM), and
  it heals under the running processes. SQLite's memory map is left out: writing to it would end the process.
- `cover`: a read-only bind mount over the folder. Open files go on; whoever opens one now finds EROFS.

The device is a file on another ext4, in memory: only there can it refuse writes, and what else keeps the
machine's disk busy makes no disasters of its own.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

DISK_MIB: Final = 512
SHELF_MIB: Final = DISK_MIB + 64
OPTIONS: Final = "loop,errors=remount-ro"
FIXED: Final = 1  # e2fsck: errors were found, and mended
MEMORY: Final = Path("/dev/shm")  # noqa: S108 -- a file system in memory, where the machine has one
MAPPED: Final = "-shm"


class Disk:
    """The disk at `folder`. `is_own`: whether it is one; else a plain folder, to which nothing can be done."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.is_own = False
        self._shelf = folder.with_suffix(".shelf")  # what the device's file lies on
        self._image = self._shelf / "device"
        self._memory: Path | None = None

    def make(self) -> None:
        """A new file system, where this user may mount one."""
        self.folder.mkdir()
        self._shelf.mkdir()
        if os.geteuid() != 0:
            return
        descriptor, memory = tempfile.mkstemp(".img", "chaos-", MEMORY if MEMORY.is_dir() else None)
        os.close(descriptor)
        self._memory = Path(memory)
        _do(
            "chattr", "-f", "+i", str(self.folder)
        )  # while nothing is mounted there, nobody starts a ledger anew
        if _made(self._memory, SHELF_MIB) and _do("mount", "-o", "loop", memory, str(self._shelf)):
            self.is_own = _made(self._image, DISK_MIB) and self._mount()

    def drop(self) -> None:
        """Leave nothing mounted behind, whoever may still have files open."""
        if self.is_own:
            self.open_up()
            _do("umount", "-l", str(self.folder))
        _do("chattr", "-f", "-i", str(self._image))
        _do("umount", "-l", str(self._shelf))
        _do("chattr", "-f", "-i", str(self.folder))
        if self._memory is not None:
            self._memory.unlink()

    def _mount(self) -> bool:
        return _do("mount", "-o", OPTIONS, str(self._image), str(self.folder))

    def fill(self) -> None:
        """A true ENOSPC: a file takes what is left."""
        with (
            (self.folder / "filler").open("wb") as file,
            contextlib.suppress(OSError),
        ):  # full is what is wanted
            free = os.statvfs(self.folder)
            os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize)

    def empty(self) -> None:
        (self.folder / "filler").unlink(missing_ok=True)

    def die(self) -> bool:
        """The device takes no more writes; False where it can't be done."""
        return _do("chattr", "+i", str(self._image))

    def fail(self) -> None:
        """All of it is read-only from now on, by an error that the kernel takes for true."""
        device = Path(_said("findmnt", "-no", "SOURCE", str(self.folder)))
        (Path("/sys/fs/ext4") / device.name / "trigger_fs_error").write_text("1")

    def mend(self) -> bool:
        """Take it off, check it, put it back. False while a process still has files open on it."""
        if _mounts_at(str(self.folder)) and not _do("umount", str(self.folder)):
            return False
        if _said("losetup", "-j", str(self._image)):  # in use by files that were opened while it was covered
            return False
        _do("chattr", "-i", str(self._image))
        checked = subprocess.run(("e2fsck", "-fy", str(self._image)), check=False, capture_output=True)
        if checked.returncode > FIXED or not self._mount():
            raise OSError(f"the disk is beyond repair: {checked.stdout.decode(errors='replace')[-300:]}")
        self.open_up()  # what was taken back just before the disk died is on it again
        self.empty()
        return True

    def seal(self) -> None:
        """Nothing may be written or made; `open_up` ends it."""
        files = [str(one) for one in self.folder.iterdir() if one.is_file() and not one.name.endswith(MAPPED)]
        _do("chattr", "-f", "+i", *files, str(self.folder))

    def cover(self) -> None:
        """Read-only for whoever opens a file from now on; `open_up` ends it."""
        folder = str(self.folder)
        if _do("mount", "--bind", folder, folder):
            _do("mount", "-o", "remount,bind,ro", folder)

    def open_up(self) -> None:
        """Take back what `seal` and `cover` did."""
        folder = str(self.folder)
        while len(_mounts_at(folder)) > 1 and _do("umount", "-l", folder):
            pass
        _do("chattr", "-R", "-f", "-i", folder)


def _mounts_at(folder: str) -> list[str]:
    lines = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.split()[1] == folder]


def _do(*command: str) -> bool:
    """Whether the command did it. One that is missing on this machine did not."""
    try:
        return subprocess.run(command, check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


def _made(image: Path, mib: int) -> bool:
    """A file with an empty file system. No blocks are kept for root: a full disk is full for everybody."""
    with image.open("wb") as file:
        file.truncate(mib << 20)
    return _do("mkfs.ext4", "-q", "-F", "-m", "0", str(image))


def _said(*command: str) -> str:
    return subprocess.run(command, check=False, capture_output=True, text=True).stdout.strip()


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Disk]:
    """A disk for the block, at the new folder `folder`."""
    disk = Disk(folder)
    disk.make()
    try:
        yield disk
    finally:
        disk.drop()
