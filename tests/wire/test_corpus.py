"""The corpora through the whole product: nothing forwarded, and no call gets another one's answer (H4, O-23)."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from proxy import loops
from tests.e2e.callers import Told, payment, request
from tests.e2e.platforms import JSON
from tests.e2e.stage import Proxy, Stage
from tests.wire.corpus import ANSWERS, EVIL, REQUESTS
from tests.wire.peers import RawCaller, Script, Send, answer

QUIET: dict[str, Any] = {
    "retry": {"attempts": 1, "attempt_timeout": "300ms", "deadline": "6s"},
    "log": {"level": "error", "format": "json"},
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """What a hostile request led to."""

    status: int
    code: str | None
    after: bytes
    hits: int


async def _refusals(folder: Path) -> dict[str, Refusal]:
    found: dict[str, Refusal] = {}
    async with AsyncExitStack() as stack:
        stage = Stage(stack, folder)
        platform = await stage.platform()
        proxy = await stage.proxy(platform.url, **QUIET)
        for name, raw in REQUESTS.items():
            before = platform.hits
            async with await RawCaller.dial(proxy.address) as caller:
                with suppress(ConnectionError):
                    await caller.send(raw)
                told = Told.of(await caller.answer())
                found[name] = Refusal(told.status, told.code, await caller.to_end(), platform.hits - before)
        assert await proxy.operations() == ()
        assert (await proxy.call(request("GET", "/v1/x"))).status == 200
    return found


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Refusal]:
    """Every hostile request against one product, one after the other."""
    return loops.run(_refusals(tmp_path_factory.mktemp("corpus")))


@pytest.mark.parametrize("name", REQUESTS)
def test_hostile_request_gets_one_refusal_and_reaches_nobody(refusals: dict[str, Refusal], name: str) -> None:
    found = refusals[name]

    assert found.status in (400, 414, 417, 431)
    assert found.code == "invalid_request"
    assert found.after == b"", "more than one answer"
    assert found.hits == 0


@dataclass(frozen=True, slots=True)
class Pair:
    """What the hostile answer's own call got, and what the next one got."""

    own: Told | None
    following: Told
    connections: int


async def _own(proxy: Proxy, raw: bytes) -> Told | None:
    """The call's answer; None where it was visibly cut."""
    async with await RawCaller.dial(proxy.address) as caller:
        await caller.send(raw)
        try:
            return Told.of(await caller.answer())
        except EOFError:
            return None


def _object(name: str) -> bytes:
    return json.dumps({"id": f"after {name}", "status": "succeeded"}).encode()


async def _pairs(folder: Path, *, guarded: bool) -> dict[str, Pair]:
    """For each hostile answer: its own call, then another one, on one product and one platform."""
    found: dict[str, Pair] = {}
    async with AsyncExitStack() as stack:
        stage = Stage(stack, folder)
        platform = await stage.platform()
        proxy = await stage.proxy(platform.url, **QUIET)
        for n, (name, hostile) in enumerate(ANSWERS.items()):
            before = platform.hits
            platform.plan(Script(Send(hostile.data), *hostile.then))
            platform.usual = Script(Send(answer(200, _object(name), JSON)))
            first = payment(f"K-{n}", order=f"first-{n}") if guarded else request("POST", "/v1/x", b"{}")
            second = payment(f"L-{n}", order=f"second-{n}") if guarded else request("GET", "/v1/x")
            own = await _own(proxy, first)
            following = await proxy.call(second)
            seen = platform.received[before:]
            found[name] = Pair(own, following, len({one.connection for one in seen}))
    return found


@pytest.fixture(scope="module")
def streamed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    return loops.run(_pairs(tmp_path_factory.mktemp("streamed"), guarded=False))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    return loops.run(_pairs(tmp_path_factory.mktemp("guarded"), guarded=True))


def _following_is_its_own(pair: Pair, name: str) -> None:
    assert (pair.following.status, pair.following.body) == (200, _object(name))
    assert EVIL not in pair.following.body
    assert pair.connections == 2, "the hostile answer's connection carried another call"


@pytest.mark.parametrize("name", ANSWERS)
def test_hostile_answer_to_a_payment_is_never_believed_too_far(guarded: dict[str, Pair], name: str) -> None:
    pair, gives = guarded[name], ANSWERS[name].gives
    own = pair.own

    assert own is not None
    assert EVIL not in own.body
    if gives:
        assert (own.status, own.body, own.knowledge) == (200, gives, "executed")
    else:
        assert (own.status, own.code, own.knowledge) == (504, "result_unknown", "unknown")
    _following_is_its_own(pair, name)


@pytest.mark.parametrize("name", ANSWERS)
def test_hostile_answer_to_a_streamed_call_stays_with_it(streamed: dict[str, Pair], name: str) -> None:
    pair, gives = streamed[name], ANSWERS[name].gives
    own = pair.own

    if gives is None:
        assert own is None or (own.status, own.code) == (504, "result_unknown")
    else:
        assert own is not None
        assert (own.status // 100 in (2, 3), own.body) == (True, gives)
    assert own is None or EVIL not in own.body
    _following_is_its_own(pair, name)


def test_corpora_are_as_large_as_they_have_to_be() -> None:
    assert len(REQUESTS) >= 60
    assert len(ANSWERS) >= 40
