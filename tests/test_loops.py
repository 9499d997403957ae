"""What the event loop has nobody to give to becomes a fault that is told, but for what is none."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import ssl
from typing import Any

import pytest

from proxy import loops


async def error_of_a_write_after_the_end() -> RuntimeError:
    """What uvloop itself says where a connection is written to that broke in the same moment."""
    near, far = socket.socketpair()
    with contextlib.closing(far):
        _, writer = await asyncio.open_connection(sock=near)
        writer.transport.abort()
        await asyncio.sleep(0)  # the loop closes it in its next round
        with pytest.raises(RuntimeError) as caught:
            writer.transport.write(b"x")
    return caught.value


def complaint(message: str, **more: Any) -> None:
    asyncio.get_running_loop().call_exception_handler({"message": message, **more})


def test_connection_lost_under_tls_is_no_fault() -> None:
    """uvloop tells of it with a traceback, beside the protocol that hears of the loss anyway (M3)."""
    faults: list[BaseException] = []

    async def broken() -> None:
        loops.tell_faults(faults.append)
        complaint("Fatal error on SSL protocol", exception=await error_of_a_write_after_the_end())

    loops.run(broken())

    assert faults == []


def test_future_of_a_connection_that_broke_is_no_fault_though_nobody_waits_for_it() -> None:
    """A library's, for the end of a write; collected after its connection it was told as a fault of ours."""
    faults: list[BaseException] = []

    async def broken() -> None:
        loops.tell_faults(faults.append)
        for error in (ConnectionResetError(), ssl.SSLCertVerificationError(), KeyError("ours")):
            asyncio.get_running_loop().create_future().set_exception(error)
        gc.collect()

    loops.run(broken())

    assert [type(one) for one in faults] == [KeyError]


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ("Task exception was never retrieved", ConnectionResetError()),
        ("Fatal error on SSL protocol", RuntimeError("a bug of ours in data_received")),
        ("Fatal error on SSL protocol", KeyError("x")),
        ("Task exception was never retrieved", RuntimeError("unable to perform operation on <X>")),
    ],
)
async def test_anything_else_is_a_fault(message: str, error: Exception) -> None:
    faults: list[BaseException] = []
    loops.tell_faults(faults.append)

    complaint(message, exception=error)

    assert faults == [error]


async def test_complaint_without_an_exception_is_a_fault_with_its_words() -> None:
    faults: list[BaseException] = []
    loops.tell_faults(faults.append)

    complaint("Task was destroyed but it is pending!")

    assert [(type(one), str(one)) for one in faults] == [
        (loops.LoopComplaint, "Task was destroyed but it is pending!")
    ]
