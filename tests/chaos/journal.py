"""The callers' journal: each request that was sent, and word for word what came back."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from tests.chaos.logs import Call, Witness
from tests.e2e.callers import Told, post, request
from tests.wire.peers import RawCaller

CANCEL_FRAMING: Final = ("Content-Length", "0")


def wall_ms() -> int:
    return round(datetime.now(UTC).timestamp() * 1000)


def request_id_of(n: int) -> str:
    """Each call's own `X-Request-Id`, by which its traces are found at the bank and in the sidecars' logs."""
    return f"call-{n}"


def call_of(request_id: str) -> int | None:
    number = request_id.removeprefix("call-")
    return int(number) if number != request_id and number.isdigit() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a caller is about to send. `fields` None: no body, as a cancel has it."""

    caller: str
    submission: str
    order: str
    path: str
    key: str | None
    fields: Mapping[str, Any] | None
    headers: tuple[tuple[str, str], ...] = ()
    group: int | None = None

    def raw(self, n: int) -> bytes:
        headers = (("X-Request-Id", request_id_of(n)), *self.headers)
        if self.fields is None:
            return request("POST", self.path, None, CANCEL_FRAMING, *headers, key=self.key)
        return post(self.path, self.fields, *headers, key=self.key)


@dataclass(slots=True)
class Journal:
    """What all callers of a run sent and heard."""

    calls: list[Call] = field(default_factory=list)
    witnesses: list[Witness] = field(default_factory=list)
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    async def call(self, address: str, ask: Ask, *, leave_after_s: float | None = None) -> Call:
        """Send a request and write down what came back.

        Args: leave_after_s: hang up after that long, answered or not.
        """
        n, began_ms = next(self._numbers), wall_ms()
        told: Told | None = None
        has_left = False
        try:
            async with asyncio.timeout(leave_after_s):
                async with await RawCaller.dial(address) as caller:
                    await caller.send(ask.raw(n))
                    told = Told.of(await caller.answer())
        except TimeoutError:
            has_left = True
        except (OSError, EOFError):
            told = None  # the connection broke: the caller knows nothing
        made = _call(n, ask, told, began_ms=began_ms, has_left=has_left, sidecar=address)
        self.calls.append(made)
        return made


def _call(n: int, ask: Ask, told: Told | None, *, began_ms: int, has_left: bool, sidecar: str) -> Call:
    raw_body = ask.raw(n).partition(b"\r\n\r\n")[2]
    amount = ask.fields.get("amount") if ask.fields else None
    body = _object(told)
    version = body.get("version")
    return Call(
        n=n,
        caller=ask.caller,
        submission=ask.submission,
        order=ask.order,
        path=ask.path,
        key=ask.key,
        body_sha256=hashlib.sha256(raw_body).hexdigest(),
        amount=amount if isinstance(amount, int) else None,
        began_ms=began_ms,
        ended_ms=wall_ms(),
        status=told.status if told else 0,
        code=told.code if told else None,
        knowledge=told.knowledge if told else None,
        told_key=told.header("idempotency-key") if told else None,
        operation=told.header("safepost-operation") if told else None,
        attempts=max(0, told.attempts) if told else 0,
        object_id=_text(body.get("id")),
        object_status=_text(body.get("status")),
        version=version if isinstance(version, int) else None,
        body=json.dumps(body, sort_keys=True) if body else "",
        group=ask.group,
        hung_up=has_left,
        sidecar=sidecar,
    )


def _object(told: Told | None) -> dict[str, Any]:
    """The platform's object in a success; empty where there is none."""
    if told is None or not 200 <= told.status < 300 or not told.body:
        return {}
    try:
        body = told.json
    except ValueError:
        return {}  # a page of something in between, which no caller should have been given as a success
    return body if isinstance(body, dict) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
