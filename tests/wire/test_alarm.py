"""The deadline that is moved often: it rings once, at the last time set, and never after it was cleared."""

from __future__ import annotations

import asyncio

import pytest

from proxy.wire.alarm import Alarm

from .peers import LIMIT_S


class Bell:
    """An alarm, and when it rang."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.rang = asyncio.Event()
        self.times: list[float] = []
        self.alarm = Alarm(self.loop, self._ring)
        self.began_at = self.loop.time()

    def _ring(self) -> None:
        self.times.append((self.loop.time() - self.began_at) * 1000)
        self.rang.set()

    async def wait(self) -> None:
        async with asyncio.timeout(LIMIT_S):
            await self.rang.wait()


@pytest.mark.parametrize("delays_ms", [(20,), (5, 20), (60_000, 20), (60_000, 5, 20), (20, 20, 20)])
async def test_alarm_rings_at_the_last_time_set(delays_ms: tuple[int, ...]) -> None:
    bell = Bell()
    for delay_ms in delays_ms:
        bell.alarm.set_in(delay_ms)
    await bell.wait()
    assert bell.times[0] > 15
    await asyncio.sleep(0.01)
    assert len(bell.times) == 1


@pytest.mark.parametrize("ending", [Alarm.clear, Alarm.close])
async def test_alarm_that_was_cleared_is_silent(ending: object) -> None:
    bell = Bell()
    bell.alarm.set_in(5)
    assert callable(ending)
    ending(bell.alarm)
    await asyncio.sleep(0.02)
    assert bell.times == []


async def test_alarm_rings_again_when_set_again() -> None:
    bell = Bell()
    for _ in range(3):
        bell.rang.clear()
        bell.alarm.set_in(2)
        await bell.wait()
    assert len(bell.times) == 3


async def test_moving_an_alarm_makes_no_timers() -> None:
    bell = Bell()
    bell.alarm.set_in(50_000)
    armed = bell.alarm._timer
    for delay_ms in range(60_000, 60_100):
        bell.alarm.set_in(delay_ms)
    assert bell.alarm._timer is armed
    bell.alarm.close()
