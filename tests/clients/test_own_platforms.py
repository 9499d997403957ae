"""Platforms unlike PayHub, by presets made of the one that docs/presets.md shows."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.e2e.callers import post
from tests.e2e.platforms import says
from tests.e2e.stage import Proxy, Stage
from tests.wire.peers import Reset, Script

PAGE = Path(__file__).parents[2] / "docs" / "presets.md"
PAID = {"id": "ch_1", "state": "paid"}


def own(stage: Stage, *changes: tuple[str, str]) -> str:
    """A preset's file: the page's example, with the changes written into it."""
    (text,) = re.findall(r"```yaml\n(name: .*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    file = stage.folder / "own.yaml"
    file.write_text(text, encoding="utf-8")
    return str(file)


async def proxy(stage: Stage, url: str, preset: str) -> Proxy:
    routes = {"create_charge": {"key": {"mode": "inject"}}}
    return await stage.proxy(url, platform=preset, retry={"attempts": None}, routes=routes)


def charge(reference: object = "R-1", *, key: str | None = None, **more: object) -> bytes:
    return post("/charges", {"reference": reference, "amount": 500, "currency": "EUR", **more}, key=key)


async def test_platform_that_knows_no_key_is_sent_no_operation_twice(stage: Stage) -> None:
    """P9, U1: the page's row on it. After a lost answer nothing but silence keeps money from moving twice."""
    once = ("attempts: {value: 3,", "attempts: {value: 1,")
    forgets = ("retention: {value: 24h,", "retention: {value: 1ms,")
    preset = own(stage, once, forgets, ("    lookup: charge\n", ""))
    platform = await stage.platform(says(201, json.dumps(PAID).encode()))
    platform.plan(Script(Reset()))
    sut = await proxy(stage, platform.url, preset)

    lost = await sut.call(charge())
    again = await sut.call(charge())
    another = await sut.call(charge(key="of-its-own"))

    assert (lost.status, lost.code, lost.knowledge) == (504, "result_unknown", "unknown")
    assert "Safepost does not look it up" in lost.error["message"]
    assert (again.status, again.code, again.knowledge) == (409, "key_expired", "unknown")
    assert (another.status, another.code, another.knowledge) == (409, "result_unknown", "unknown")
    assert platform.hits == 1


async def test_platform_with_the_key_in_the_body_and_its_codes_in_a_list(stage: Stage) -> None:
    """K2, R3. Had the code not been found, the reused key would have been told as a refusal: not_executed."""
    released = "- {status: [400, 401, 403, 422], outcome: released}"
    preset = own(
        stage,
        ('"charge:{body.reference}:1"', '"{body.idempotency_key}"'),
        ("code: error.code", "code: errors.0.code"),
        (released, f"- {{status: 400, code: reused, outcome: in_doubt, retry: false}}\n      {released}"),
    )
    platform = await stage.platform(says(201, json.dumps(PAID).encode()))
    platform.plan(Script(Reset()))
    sut = await proxy(stage, platform.url, preset)

    paid = await sut.call(charge(idempotency_key="k-1"))
    platform.plan(says(400, b'{"errors": [{"code": "reused"}]}'))
    reused = await sut.call(charge("R-2", idempotency_key="k-2"))

    assert (paid.status, paid.json, paid.attempts) == (201, PAID, 2)
    assert [seen.header(b"idempotency-key") for seen in platform.received] == [[b"k-1"], [b"k-1"], [b"k-2"]]
    assert (reused.status, reused.code, reused.knowledge) == (504, "result_unknown", "unknown")


async def test_platform_whose_names_are_numbers(stage: Stage) -> None:
    """R3: with `numeric`, a number for an id and a status is the platform's object, and a final one."""
    preset = own(stage, ("    statuses: {paid: final,", "    numeric: true\n    statuses: {3: final,"))
    platform = await stage.platform(says(201, b'{"id": 77, "state": 3}'))
    sut = await proxy(stage, platform.url, preset)

    told = await sut.call(charge(1001))

    assert (told.status, told.knowledge) == (201, "executed")
    (found,) = await sut.operations()
    assert (found.resource_id, found.key) == ("77", "charge:1001:1")
