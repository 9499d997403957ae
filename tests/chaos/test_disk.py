"""The disk does what its disasters say, under files that are open."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.disk import Disk, small_disk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with small_disk(tmp_path / "disk") as disk:
        if not disk.is_own:
            pytest.skip("needs root and a loop device")
        yield disk


@pytest.fixture
def opened(disk: Disk) -> Iterator[int]:
    file = os.open(disk.folder / "ledger", os.O_RDWR | os.O_CREAT)
    os.pwrite(file, b"kept", 0)
    os.fsync(file)
    yield file
    os.close(file)


def write_through(file: int) -> None:
    os.pwrite(file, b"lost" * 10_000, 4)
    os.fsync(file)


def error_of_write(file: int) -> int:
    try:
        os.pwrite(file, b"more", 0)
    except OSError as error:
        return error.errno or -1
    return 0


def error_of_opening(disk: Disk) -> int:
    try:
        os.close(os.open(disk.folder / "ledger", os.O_RDWR))
    except OSError as error:
        return error.errno or -1
    return 0


def test_failed_disk_refuses_open_files_until_it_is_mended(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        if not disk.is_own:
            pytest.skip("needs root and a loop device")
        file = os.open(disk.folder / "ledger", os.O_RDWR | os.O_CREAT)
        os.pwrite(file, b"kept", 0)
        os.fsync(file)

        assert disk.die()
        with pytest.raises(OSError, match="Input/output"):
            write_through(file)
        disk.fail()

        assert error_of_write(file) == errno.EROFS
        assert error_of_opening(disk) == errno.EROFS
        assert not disk.mend()
        os.close(file)
        assert disk.mend()
        assert (disk.folder / "ledger").read_bytes()[:4] == b"kept"
        assert error_of_opening(disk) == 0


def test_disk_that_was_sealed_or_filled_before_it_died_is_usable_when_mended(disk: Disk) -> None:
    """What was taken back a moment before never reached the device."""
    disk.seal()
    os.sync()
    disk.open_up()
    assert disk.die()
    disk.fail()

    assert disk.mend()

    (disk.folder / "new").write_bytes(b"x" * 1_000_000)


def test_sealed_disk_refuses_open_files_and_heals_under_them(disk: Disk, opened: int) -> None:
    disk.seal()

    assert error_of_write(opened) == errno.EPERM
    assert error_of_opening(disk) == errno.EPERM
    disk.open_up()
    assert error_of_write(opened) == 0


def test_covered_disk_refuses_those_who_come(disk: Disk, opened: int) -> None:
    disk.cover()

    assert error_of_write(opened) == 0
    assert error_of_opening(disk) == errno.EROFS
    disk.open_up()
    assert error_of_opening(disk) == 0


def test_full_disk_is_full_and_empty_again(disk: Disk) -> None:
    disk.fill()

    with pytest.raises(OSError, match="No space"):
        (disk.folder / "new").write_bytes(b"x" * 1_000_000)
    disk.empty()
    (disk.folder / "new").write_bytes(b"x" * 1_000_000)
