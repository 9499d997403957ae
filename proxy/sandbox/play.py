"""Plays scenarios through Safepost against a sandbox, and judges them by what both sides saw."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, assert_never

from aiohttp import ClientError, ClientSession, ClientTimeout

from proxy.sandbox.ledger import SeenRequest
from proxy.sandbox.rules import read_rule
from proxy.sandbox.scenarios import (
    SCENARIOS,
    Arm,
    Disarm,
    Expect,
    HangUp,
    Hit,
    Scenario,
    Send,
    SendTogether,
    Settle,
    Step,
)
from proxy.sandbox.server import Sandbox

CALL_TIMEOUT_S: Final = 30.0
"""How long the merchant's program waits; a proxy under demo answers within a few seconds."""

SEEN_TIMEOUT_S: Final = 20.0
POLL_S: Final = 0.005
GAP_TOLERANCE_S: Final = 0.01
"""Timers may fire a clock tick early."""

HOLDS: Final = "holds"
BROKEN: Final = "broken"

_ENDINGS: Final = {
    "hang_after": "executed, no answer",
    "hang_before": "no answer",
    "reset_after": "executed, connection reset",
    "close_after": "executed, connection closed",
}


@dataclass(frozen=True, slots=True)
class ScenarioResult:
    """How one scenario went.

    Args: wire: each request that reached the platform, in order. failures: what was not as it must be; empty
        exactly if the verdict is `holds`.
    """

    name: str
    title: str
    wire: list[str]
    charges: int
    refunds: int
    cancels: int
    failures: list[str]

    @property
    def verdict(self) -> str:
        return BROKEN if self.failures else HOLDS


@dataclass(frozen=True, slots=True)
class Given:
    """What the caller was given: an answer, or (status 0) the reason why there was none."""

    status: int
    headers: Mapping[str, str]
    body: object
    text: str = ""


async def play_all(
    proxy_urls: Sequence[str],
    sandbox: Sandbox,
    *,
    admin_urls: Sequence[str] = (),
    run: str = "001",
    token: str = "sk_test_demo",  # noqa: S107 -- the sandbox takes any key, and this is none
    scenarios: Sequence[Scenario] = SCENARIOS,
) -> list[ScenarioResult]:
    """Play all scenarios at once, each with numbers and keys of its own, and judge each.

    Args: proxy_urls: where the merchant's program sends its calls, in turn. admin_urls: of the proxies; with
        one, the ledger's knowledge of each operation is compared, too. run: part of every number and key; a
        second run on the same sandbox or ledger needs another.
    """
    turns = itertools.cycle(proxy_urls)
    timeout = ClientTimeout(total=CALL_TIMEOUT_S)
    headers = {"Authorization": f"Bearer {token}"}
    async with ClientSession(timeout=timeout, headers=headers, trust_env=False) as session:
        plays = [Play(scenario, sandbox, session=session, turns=turns, run=run) for scenario in scenarios]
        return list(await asyncio.gather(*(play.result(admin_urls) for play in plays)))


@dataclass(slots=True)
class Play:
    """One scenario on stage."""

    scenario: Scenario
    sandbox: Sandbox
    session: ClientSession = field(kw_only=True)
    turns: Iterator[str] = field(kw_only=True)
    run: str = field(kw_only=True)
    names: dict[str, str] = field(default_factory=dict)
    armed: dict[str, list[int]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    known: dict[str, str] = field(default_factory=dict)

    async def result(self, admin_urls: Sequence[str]) -> ScenarioResult:
        order = f"ORDER-{self.scenario.name}-{self.run}"
        self.names |= {"order": order, "refund": f"REFUND-{self.scenario.name}-{self.run}"}
        self.names["create"] = f"payment.create:{order}:1"
        for step in self.scenario.steps:
            await self._take(step)
            if self.failures:
                break  # what follows a failure says nothing new
        if admin_urls and not self.failures:
            await self._compare_ledger(admin_urls[0])
        return self._judged()

    async def _take(self, step: Step) -> None:
        if isinstance(step, Send):
            self._check(step, await self._call(step))
        elif isinstance(step, SendTogether):
            await self._send_together(step)
        elif isinstance(step, HangUp):
            await self._hang_up(step.send)
        elif isinstance(step, Arm):
            rule_id = self.sandbox.add_fault(read_rule(self._filled(step.rule)))
            self.armed.setdefault(step.name, []).append(rule_id)
        elif isinstance(step, Disarm):
            for rule_id in self.armed.pop(step.name, []):
                self.sandbox.remove_fault(rule_id)
        elif isinstance(step, Settle):
            self.sandbox.settle_payment(self.names["payment"], status=step.status)
        else:
            assert_never(step)

    async def _call(self, send: Send) -> Given:
        headers = {} if send.key is None else {"Idempotency-Key": self._text(send.key)}
        body = None if send.body is None else json.dumps(self._filled(send.body)).encode()
        if body is not None:
            headers["Content-Type"] = "application/json"
        url = next(self.turns) + self._text(send.path)
        try:
            async with self.session.request(
                send.method, url, data=body, headers=headers, allow_redirects=False
            ) as answer:
                text = await answer.text()
                return Given(answer.status, dict(answer.headers), _parsed(text), text)
        except (ClientError, TimeoutError, OSError) as lost:
            return Given(0, {}, None, f"{type(lost).__name__}: {lost}")

    async def _send_together(self, step: SendTogether) -> None:
        answers = await asyncio.gather(*(self._call(step.send) for _ in range(step.times)))
        for given in answers:
            status = given.status if given.status in step.statuses else step.send.expect.status
            self._check(step.send, given, status=status)
        ids = {str(_at(given.body, "id")) for given in answers}
        if len(ids) != 1:
            self.failures.append(f"together: expected one object, found {', '.join(sorted(ids))}")

    async def _hang_up(self, send: Send) -> None:
        """Leave once the platform has the request: from then on only Safepost knows of it."""
        key = self._text(send.key or "")
        call = asyncio.ensure_future(self._call(send))
        try:
            async with asyncio.timeout(SEEN_TIMEOUT_S):
                while not any(seen.key == key for seen in self.sandbox.requests.seen):  # noqa: ASYNC110 -- the log has no event to wait for
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            self.failures.append(f"{send.method} {self._text(send.path)}: never reached the platform")
        finally:
            call.cancel()
            await asyncio.wait([call])

    def _check(self, send: Send, given: Given, *, status: int | None = None) -> None:
        where = f"{send.method} {self._text(send.path)}"
        expect, expected = send.expect, status or send.expect.status
        if given.status != expected:
            found = given.text[:300] if given.status == 0 else f"{given.status} {given.text[:300]}"
            self.failures.append(f"{where}: expected {expected}, found {found}")
            return
        for path, value in expect.body.items():
            self._same(where, path, self._filled(value), _at(given.body, path))
        if expect.knowledge is not None:
            self._check_headers(where, send, expect, given)
        for name, path in send.save.items():
            self.names[name] = str(_at(given.body, path))

    def _check_headers(self, where: str, send: Send, expect: Expect, given: Given) -> None:
        """H8: the key that was used, what is known, how many attempts, and the operation."""
        key = self._text(send.key or "")
        self._same(where, "Idempotency-Key", key, given.headers.get("Idempotency-Key"))
        self._same(where, "Safepost-Knowledge", expect.knowledge, given.headers.get("Safepost-Knowledge"))
        attempts = given.headers.get("Safepost-Attempts", "")
        if not attempts.isdigit():
            self.failures.append(f"{where}: Safepost-Attempts: expected a number, found {attempts!r}")
        elif expect.attempts is not None:
            self._same(where, "Safepost-Attempts", expect.attempts, int(attempts))
        operation = given.headers.get("Safepost-Operation", "")
        if not operation:
            self.failures.append(f"{where}: Safepost-Operation is missing")
        self.known[operation] = str(expect.knowledge)

    def _same(self, where: str, what: str, expected: object, found: object) -> None:
        if expected != found:
            self.failures.append(f"{where}: {what}: expected {expected!r}, found {found!r}")

    async def _compare_ledger(self, admin_url: str) -> None:
        """The ledger must know what the callers were told."""
        for operation, knowledge in self.known.items():
            where = f"GET /operations/{operation}"
            try:
                async with self.session.get(f"{admin_url}{where.removeprefix('GET ')}") as answer:
                    body = _parsed(await answer.text())
            except (ClientError, TimeoutError, OSError) as lost:
                self.failures.append(f"{where}: {type(lost).__name__}: {lost}")
            else:
                self._same(where, "knowledge", knowledge, _at(body, "knowledge"))

    def _judged(self) -> ScenarioResult:
        scenario, ledger, order = self.scenario, self.sandbox.ledger, self.names["order"]
        refund = self.names["refund"]
        wire = [seen for seen in self.sandbox.requests.seen if seen.order == order or seen.refund == refund]
        charges = ledger.charges(order)
        refunds, cancels = len(ledger.refunds(order)), len(ledger.cancels(order))
        if not self.failures:
            self._check_hits([seen for seen in wire if seen.method == "POST"])
        cards = tuple(charge.card_fingerprint for charge in charges)
        self._same("ledger", "charges, by card", scenario.cards, cards)
        self._same("ledger", "refunds", scenario.refunds, refunds)
        self._same("ledger", "cancels", scenario.cancels, cancels)
        lines = [_line(seen) for seen in wire]
        return ScenarioResult(
            scenario.name, scenario.title, lines, len(charges), refunds, cancels, self.failures
        )

    def _check_hits(self, wire: list[SeenRequest]) -> None:
        left = deque(wire)
        last: SeenRequest | None = None
        for hit in self.scenario.hits:
            count = 0
            while left and self._is_hit(hit, left[0], last) and (hit.is_repeated or not count):
                last = left.popleft()
                count += 1
            if not count:
                found = _line(left[0]) if left else "nothing more"
                retry = ", with the same bytes as before" if hit.is_retry else ""
                self.failures.append(
                    f"wire: expected {self._text(hit.path)} -> {hit.answer}{retry}, found {found}"
                )
                return
        if left:
            self.failures.append(f"wire: expected nothing more, found {_line(left[0])}")
        if self.scenario.gap_s and len(wire) > 1:
            gap_s = (wire[1].at_ms - wire[0].at_ms) / 1000
            if gap_s < self.scenario.gap_s - GAP_TOLERANCE_S:
                self.failures.append(f"wire: expected a gap of {self.scenario.gap_s} s, found {gap_s} s")

    def _is_hit(self, hit: Hit, seen: SeenRequest, last: SeenRequest | None) -> bool:
        wanted = (self._text(hit.path), self._text(hit.key), hit.answer)
        is_same = not hit.is_retry or (last is not None and last.body_sha256 == seen.body_sha256)
        return is_same and (seen.path, seen.key, seen.answer) == wanted

    def _text(self, template: str) -> str:
        return template.format_map(self.names)

    def _filled(self, value: object) -> object:
        """`value` with the names in its strings filled in."""
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, Mapping):
            return {name: self._filled(item) for name, item in value.items()}
        return value


def _parsed(text: str) -> object:
    try:
        parsed: object = json.loads(text)
    except ValueError:
        return None
    return parsed


def _at(body: object, path: str) -> object:
    """The member at a dotted path; None where there is none."""
    for part in path.split("."):
        if isinstance(body, Mapping):
            body = body.get(part)
        elif isinstance(body, list) and part.isdigit() and int(part) < len(body):
            body = body[int(part)]
        else:
            return None
    return body


def _line(seen: SeenRequest) -> str:
    answer = seen.answer or "being worked on"
    if seen.executed and answer[0] == "5":
        answer += ", though executed"
    key = f"  {seen.key}" if seen.key else ""
    return f"{seen.method} {seen.path}{key} -> {_ENDINGS.get(answer, answer)}"
