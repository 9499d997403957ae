"""When the next attempt starts: Retry-After, back-off, deadline, budget, breaker (R4-R7; O-43 to O-48)."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from proxy.core.model import State
from tests.e2e.callers import payment, request
from tests.e2e.platforms import JSON, ok, page, refuses
from tests.e2e.stage import Stage, until
from tests.wire.peers import Hang, Reset, Script, Send, When, answer

OTHERWISE_S = 15.0
"""What a call must not take: what would hold it up here takes longer, and a busy machine doesn't."""


async def _gap_after(
    stage: Stage, status: int, *headers: tuple[bytes, bytes], own_wait: str = "150ms"
) -> float:
    """How long after an answer with these headers the next attempt came; the payment then succeeds.

    The deadline of 20 s bounds it: a wait that would not fit is not begun.
    """
    code = "rate_limited" if status == 429 else "temporarily_unavailable"
    platform = await stage.platform(ok())
    platform.plan(refuses(status, code, *headers))
    proxy = await stage.proxy(
        platform.url, retry={"base": own_wait, "cap": own_wait, "jitter": "none", "deadline": "20s"}
    )
    calling = asyncio.create_task(proxy.call(payment()))
    loop = asyncio.get_running_loop()
    await platform.got(1)
    began = loop.time()
    await platform.got(2)
    gap = loop.time() - began
    told = await calling
    assert (told.status, told.knowledge, told.attempts) == (201, "executed", 2)
    assert {tuple(seen.header(b"idempotency-key")) for seen in platform.received} == {(b"K",)}
    return gap


BAD_ADVICE = [
    b"Wed, 21 Oct 2015 07:28:00 GMT",
    b"-1",
    b"NaN",
    b"inf",
    b"",
    b"soon",
    b"1e9999",
    b"0x10",
    b"Wednesday, 21-Oct-15 07:28:00 GMT",
]


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("value", BAD_ADVICE, ids=lambda value: value.decode() or "empty")
async def test_o43_advice_that_is_none_leaves_the_own_wait(stage: Stage, status: int, value: bytes) -> None:
    assert await _gap_after(stage, status, (b"Retry-After", value)) > 0.1


@pytest.mark.parametrize("status", [429, 503])
async def test_o43_seconds_replace_the_own_wait(stage: Stage, status: int) -> None:
    assert await _gap_after(stage, status, (b"Retry-After", b"1")) > 0.95


async def test_o43_fractional_seconds_count(stage: Stage) -> None:
    assert await _gap_after(stage, 429, (b"Retry-After", b"0.5")) > 0.45


async def test_o43_zero_means_at_once(stage: Stage) -> None:
    """Our own wait would not fit before the deadline."""
    assert await _gap_after(stage, 429, (b"Retry-After", b"0"), own_wait="60s") < OTHERWISE_S


FORMS = ["%a, %d %b %Y %H:%M:%S GMT", "%A, %d-%b-%y %H:%M:%S GMT", "%a %b %d %H:%M:%S %Y"]


@pytest.mark.parametrize("form", FORMS, ids=["IMF-fixdate", "RFC 850", "asctime"])
async def test_o43_date_is_measured_against_the_answers_own_date(stage: Stage, form: str) -> None:
    """The platform's clock may be wrong by hours; only its two dates count."""
    then = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=5)
    later = then + timedelta(seconds=1)
    headers = (
        (b"Date", format_datetime(then, usegmt=True).encode()),
        (b"Retry-After", later.strftime(form).encode()),
    )
    assert await _gap_after(stage, 429, *headers) > 0.95


async def test_retry_after_on_other_statuses_is_not_followed(stage: Stage) -> None:
    platform = await stage.platform(ok())
    platform.plan(page(500, (b"Retry-After", b"30")))
    proxy = await stage.proxy(platform.url)

    told = await asyncio.wait_for(proxy.call(payment()), OTHERWISE_S)

    assert (told.status, platform.hits) == (201, 2)


async def test_o44_wait_beyond_the_deadline_is_not_begun(stage: Stage) -> None:
    wait = (b"Retry-After", b"30")
    platform = await stage.platform(refuses(503, "temporarily_unavailable", wait))
    proxy = await stage.proxy(platform.url)

    told = await asyncio.wait_for(proxy.call(payment()), OTHERWISE_S)

    assert (told.status, told.code, told.header("retry-after")) == (503, "temporarily_unavailable", "30")
    assert (told.knowledge, platform.hits) == ("not_executed", 1)
    assert (await proxy.operation()).state is State.NOT_EXECUTED
    platform.usual = ok()
    assert (await proxy.call(payment())).status == 201


async def test_o44_wait_beyond_the_deadline_after_doubt_tells_unknown(stage: Stage) -> None:
    """The 429 says nothing of the attempt before it."""
    platform = await stage.platform(refuses(429, "rate_limited", (b"Retry-After", b"600")))
    platform.plan(Script(Reset()))
    proxy = await stage.proxy(platform.url)

    told = await asyncio.wait_for(proxy.call(payment()), OTHERWISE_S)

    assert (told.status, told.code, told.knowledge) == (504, "result_unknown", "unknown")
    assert told.header("retry-after") == "600"
    assert told.error["last_answer"] == {"status": 429, "code": "rate_limited"}


async def test_deadline_bounds_attempts_and_waits_together(stage: Stage) -> None:
    platform = await stage.platform(Script(Hang()))
    proxy = await stage.proxy(platform.url, retry={"attempts": 10, "attempt_timeout": "1s", "deadline": "3s"})
    loop = asyncio.get_running_loop()
    began = loop.time()

    told = await proxy.call(payment())

    assert loop.time() - began < 9, "ten attempts take ten seconds"
    assert told.code == "result_unknown"
    assert platform.hits in (2, 3), "a fourth would end after the deadline"


async def test_o45_many_attempts_never_overflow_their_wait(stage: Stage) -> None:
    platform = await stage.platform(refuses(503, "temporarily_unavailable"))
    proxy = await stage.proxy(
        platform.url,
        retry={"attempts": 10, "base": "1ms", "cap": "50ms", "multiplier": 10, "jitter_max": "5ms"},
    )
    told = await asyncio.wait_for(proxy.call(payment()), OTHERWISE_S)

    assert (told.status, platform.hits, told.attempts) == (503, 10, 10)


async def test_o47_second_attempt_has_the_whole_body(stage: Stage) -> None:
    """A chunked body of 300 KB, of which the first attempt took only a part."""
    body = payment(padding="x" * 300_000).partition(b"\r\n\r\n")[2]
    head = payment().partition(b"\r\n\r\n")[0].rpartition(b"\r\n")[0]
    pieces = [body[at : at + 50_000] for at in range(0, len(body), 50_000)]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    platform = await stage.platform(ok())
    platform.plan(Script(Reset(), when=When.HEAD))
    proxy = await stage.proxy(platform.url)

    told = await proxy.call(head + b"\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks)

    assert (told.status, told.attempts) == (201, 2)
    assert platform.received[-1].body == body
    framing = platform.received[-1]
    assert len(framing.header(b"content-length")) + len(framing.header(b"transfer-encoding")) == 1


# --- protection of the platform (R7) -----------------------------------------------------------------------------


async def test_o48_budget_bounds_the_retries_of_all_calls(stage: Stage) -> None:
    platform = await stage.platform(refuses(503, "temporarily_unavailable"))
    budget = {"enabled": True, "ratio": 0.2, "floor": 10}
    proxy = await stage.proxy(platform.url, retry={"attempts": 5, "budget": budget})

    told = await asyncio.gather(*(proxy.call(payment(f"K{n}", order=f"O-{n}")) for n in range(100)))

    assert {(one.status, one.knowledge) for one in told} == {(503, "not_executed")}
    assert 100 < platform.hits <= 100 + 10 + 20 + 1
    platform.usual = Script(Send(answer(200, b"[]", JSON)))
    assert (await proxy.call(request("GET", "/v1/payments"))).status == 200


async def test_budget_that_is_spent_ends_with_what_is_known(stage: Stage) -> None:
    platform = await stage.platform(Script(Reset()))
    proxy = await stage.proxy(
        platform.url, retry={"attempts": 5, "budget": {"enabled": True, "ratio": 0, "floor": 0}}
    )

    told = await proxy.call(payment())

    assert (told.status, told.code, told.knowledge, platform.hits) == (504, "result_unknown", "unknown", 1)


async def test_open_breaker_sends_nothing_and_says_so(stage: Stage) -> None:
    platform = await stage.platform(Script(Hang()))
    proxy = await stage.proxy(
        platform.url,
        retry={"attempts": 1, "attempt_timeout": "1s"},
        breaker={"enabled": True, "failures": 3, "window": "60s", "open_for": "2s"},
    )
    await asyncio.gather(*(proxy.call(payment(f"K{n}", order=f"O-{n}")) for n in range(3)))

    fresh = await proxy.call(payment("K-new", order="O-new"))
    doubtful = await proxy.call(payment("K0", order="O-0"))

    assert platform.hits == 3
    assert (fresh.status, fresh.code) == (503, "upstream_unavailable")
    assert fresh.knowledge == "not_executed"
    assert int(fresh.header("retry-after") or 0) >= 1
    assert (doubtful.status, doubtful.code, doubtful.knowledge) == (504, "result_unknown", "unknown")
    assert await proxy.operations(key="K-new") == (), "a claim that sent nothing is taken back"
    platform.usual = ok(200)

    async def recovered() -> bool:
        return (await proxy.call(payment("K-new", order="O-new"))).status == 200

    await until(recovered)


async def test_open_breaker_answers_a_repeat_with_what_is_stored(stage: Stage) -> None:
    """R7, P6: forwarded, it would wait for a platform that does not answer, and load it more."""
    platform = await stage.platform(ok())
    proxy = await stage.proxy(
        platform.url,
        retry={"attempts": 1, "attempt_timeout": "500ms"},
        breaker={"enabled": True, "failures": 1, "window": "60s", "open_for": "60s"},
    )
    first = await proxy.call(payment())
    platform.plan(Script(Hang()))
    await proxy.call(payment("K2", order="O-2"))

    again = await proxy.call(payment())

    assert (again.status, again.body, again.knowledge, again.replayed) == (201, first.body, "executed", True)
    assert platform.hits == 2


async def test_open_breaker_takes_a_retry_that_is_due_after_its_time_as_the_trial(stage: Stage) -> None:
    """The retry asked the breaker twice: it took the trial, was refused for it, and closed the way to all for a
    minute, with nothing sent (R7)."""
    platform = await stage.platform(ok())
    platform.plan(Script(Hang()))
    proxy = await stage.proxy(
        platform.url,
        retry={"attempts": 2, "attempt_timeout": "500ms", "base": "300ms", "cap": "300ms"},
        breaker={"enabled": True, "failures": 1, "window": "60s", "open_for": "100ms"},
    )

    told = await proxy.call(payment())

    assert (told.status, told.knowledge, told.attempts, platform.hits) == (201, "executed", 2, 2)
    other = await proxy.call(payment("K2", order="O-2"))
    assert (other.status, platform.hits) == (201, 3), "its answer closed the breaker"


@pytest.mark.parametrize("deadline", ["10s", "8s"], ids=["as long as one attempt", "shorter"])
async def test_deadline_no_longer_than_an_attempt_still_lets_one_be_made(stage: Stage, deadline: str) -> None:
    platform = await stage.platform(ok())
    proxy = await stage.proxy(platform.url, retry={"attempt_timeout": "10s", "deadline": deadline})

    told = await asyncio.gather(*(proxy.call(payment(f"K{n}", order=f"O-{n}")) for n in range(50)))

    assert {one.status for one in told} == {201}
