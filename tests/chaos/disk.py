"""A small disk of its own, under an embedded store or a journal: it fills up, and it goes read-only.

A real ext4 in a file on a loop device, since a tmpfs can't be remounted read-only while files on it are open for
writing (the kernel says busy), and that is the case that matters. Three ways, each what it says:

- `fail`: the kernel finds an error in the file system and makes all of it read-only under the open files (EROFS),
  as `errors=remount-ro` does on a dying disk. Only `mend` helps: all that use it end, e2fsck, a new mount.
- `seal`: the files and their folder become immutable (chattr +i). Writes through open files fail, too (EPERM), and
  it heals under the running processes. SQLite's memory map is left out: writing to it would end the process.
- `cover`: a read-only bind mount over the folder. Open files go on; whoever opens one now finds EROFS.
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
OPTIONS: Final = "loop,errors=remount-ro"
FIXED: Final = 1  # e2fsck: errors were found, and mended
MEMORY: Final = Path("/dev/shm")  # noqa: S108 -- a busy disk of the machine shall make no disasters of its own
MAPPED: Final = "-shm"


class Disk:
    """The disk at `folder`. `is_own`: whether it is one; else a plain folder, to which nothing can be done."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.is_own = False
        self._image = Path()

    def make(self) -> None:
        """A new file system, where this user may mount one."""
        self.folder.mkdir()
        if os.geteuid() != 0:
            return
        descriptor, image = tempfile.mkstemp(".img", "chaos-", MEMORY if MEMORY.is_dir() else None)
        self._image = Path(image)
        os.truncate(descriptor, DISK_MIB << 20)
        os.close(descriptor)
        _do(
            "chattr", "-f", "+i", str(self.folder)
        )  # while nothing is mounted there, nobody starts a ledger anew
        # No blocks are kept for root: a full disk is full for everybody.
        self.is_own = _do("mkfs.ext4", "-q", "-F", "-m", "0", str(self._image)) and self._mount()

    def drop(self) -> None:
        """Leave nothing mounted behind, whoever may still have files open."""
        if self.is_own:
            self.open_up()
            _do("umount", "-l", str(self.folder))
        _do("chattr", "-f", "-i", str(self.folder))
        if self._image.is_file():
            self._image.unlink()

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

    def fail(self) -> bool:
        """Read-only from now on, by an error that the kernel takes for true; False where it can't be done."""
        device = Path(_said("findmnt", "-no", "SOURCE", str(self.folder)))
        trigger = Path("/sys/fs/ext4") / device.name / "trigger_fs_error"
        try:
            trigger.write_text("1")
        except OSError:
            return False
        return True

    def mend(self) -> bool:
        """Take it off, check it, put it back. False while a process still has files open on it."""
        if _mounts_at(str(self.folder)) and not _do("umount", str(self.folder)):
            return False
        if _said("losetup", "-j", str(self._image)):  # in use by files that were opened while it was covered
            return False
        checked = subprocess.run(("e2fsck", "-fy", str(self._image)), check=False, capture_output=True)
        if checked.returncode > FIXED or not self._mount():
            raise OSError(f"the disk is beyond repair: {checked.stdout.decode(errors='replace')[-300:]}")
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
