"""The server's clock as a sidecar knows it: never ahead, and back only with the server's own."""

from __future__ import annotations

from proxy.stores.redis_engine import ServerTime
from tests.contract.values import HandClock

SERVER_S = 1_700_000_000


def sampled(clock: HandClock, time: ServerTime, *, server_ms: int, there_ms: int, back_ms: int) -> int:
    """A question answered with the server's time at the end of the way there; the server's true time now."""
    asked_ms = time.asked_ms()
    clock.advance(there_ms)
    at_ms = server_ms + there_ms
    clock.advance(back_ms)
    time.sample(at_ms // 1_000, at_ms % 1_000 * 1_000, asked_ms=asked_ms)
    return at_ms + back_ms


def test_now_goes_on_behind_the_true_time() -> None:
    clock = HandClock()
    time = ServerTime(clock)
    true_ms = sampled(clock, time, server_ms=SERVER_S * 1_000, there_ms=3, back_ms=5)
    assert time.now().wall_ms == true_ms - 5
    clock.advance(1_000)
    assert time.now().lease_ms == true_ms + 1_000 - 5


def test_slow_reply_does_not_set_it_back() -> None:
    clock = HandClock()
    time = ServerTime(clock)
    true_ms = sampled(clock, time, server_ms=SERVER_S * 1_000, there_ms=0, back_ms=1)
    true_ms = sampled(clock, time, server_ms=true_ms, there_ms=10, back_ms=400)
    assert true_ms - 1 <= time.now().wall_ms <= true_ms


def test_quick_reply_brings_it_closer() -> None:
    clock = HandClock()
    time = ServerTime(clock)
    true_ms = sampled(clock, time, server_ms=SERVER_S * 1_000, there_ms=10, back_ms=400)
    true_ms = sampled(clock, time, server_ms=true_ms, there_ms=1, back_ms=1)
    assert time.now().wall_ms == true_ms - 1


def test_server_set_back_is_followed() -> None:
    """A failover to a server whose clock is behind: leases are not cut short by the old one's."""
    clock = HandClock()
    time = ServerTime(clock)
    sampled(clock, time, server_ms=SERVER_S * 1_000, there_ms=1, back_ms=1)
    true_ms = sampled(clock, time, server_ms=SERVER_S * 1_000 - 60_000, there_ms=1, back_ms=1)
    assert time.now().wall_ms == true_ms - 1
