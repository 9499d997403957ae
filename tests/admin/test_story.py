"""One operation on one screen: a stranger can read what it is, what is known and what to do."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from proxy.admin.story import render
from tests.admin.conftest import SECRET, TOKEN, Answer, Stage, until
from tests.admin.test_events import signed


def screen(told: dict[str, object], *, width: int = 110) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(render(told))
    written = console.file
    assert isinstance(written, io.StringIO)
    return written.getvalue()


async def story(stage: Stage, identity: str) -> str:
    return screen((await stage.admin.get(f"/operations/{identity}")).body)


async def test_unknown_payment_says_what_it_means_and_what_next(stage: Stage) -> None:
    told = await story(stage, await stage.unknown())

    for part in (
        "unknown: The platform may have acted: the money may have moved.",
        "order:ORDER-1~reset_after",
        "10000 USD (minor units)",
        "attempt 1",
        "in_doubt: reset",
        "Safepost asks the platform about it again.",
        "same request again with the same key",
        "--status succeeded|failed|canceled|expired|absent",
    ):
        assert part in told


async def test_payment_settled_by_hand_says_by_whom_and_why(stage: Stage) -> None:
    identity = await stage.unknown()
    body = {"status": "failed", "by": "Li Wei", "note": "the bank says declined"}
    await stage.admin.post(f"/operations/{identity}/resolve", body)

    told = await story(stage, identity)

    assert "Settled by a person" in told
    assert "Li Wei: failed: the bank says declined" in told
    assert "What happens next" not in told


async def test_fits_a_screen(stage: Stage) -> None:
    told = await story(stage, await stage.unknown())

    assert len(told.splitlines()) <= 40


@pytest.mark.parametrize("width", [40, 80, 200])
async def test_any_width_and_any_text(stage: Stage, width: int) -> None:
    """A note is a person's text: it colours nothing."""
    identity = await stage.unknown()
    body = {"status": "failed", "by": "[bold]Li[/bold]", "note": "[red]x[/red] [/]"}
    answer = await stage.admin.post(f"/operations/{identity}/resolve", body)

    told = screen(answer.body, width=width)

    assert "[red]x[/red]" in told.replace("\n", "").replace(" ", "").replace("│", "")


@pytest.fixture
def config() -> str:
    return f"events: {{secret: {SECRET}}}\n"


async def told_event(stage: Stage, kind: str, shown: dict[str, object]) -> None:
    """A signed event of the platform."""
    body = json.dumps({"id": "evt_1", "type": kind, "data": {"object": shown}}).encode()
    answer = await stage.admin.send(
        "POST",
        "/events",
        data=body,
        headers={"Webhook-Signature": signed(body, at_s=stage.app.clock.wall_ms() // 1000)},
    )
    assert answer.body["verdict"] == "applied"


async def sent(stage: Stage, path: str, key: str, body: dict[str, object]) -> Answer:
    headers = {"Idempotency-Key": key, "Authorization": f"Bearer {TOKEN}"}
    return await stage.caller.send("POST", path, json=body, headers=headers)


async def test_doubt_that_a_lookup_ended_says_so(stage: Stage) -> None:
    identity = await stage.unknown()
    await stage.admin.post(f"/operations/{identity}/lookup", {})

    told = await story(stage, identity)

    for part in (
        "executed: The platform gave a definite, final answer.",
        "Settled by a lookup at the platform",
        "An attempt had been in doubt; this ended the doubt.",
        "the platform says succeeded (version 1)",
    ):
        assert part in told
    assert "What happens next" not in told


async def test_card_swap_names_the_other_tries_and_that_no_money_moved(stage: Stage) -> None:
    made = await stage.pay("ORDER-2~decline~confirm.decline")
    confirm = f"/v1/payments/{made.body['id']}/confirm"
    first = await sent(stage, confirm, "c1", {"card": {"number": "4242424242424242"}})
    second = await sent(stage, confirm, "c2", {"card": {"number": "5555555555554444"}})

    declined = await story(stage, first.headers["Safepost-Operation"])
    paid = await story(stage, second.headers["Safepost-Operation"])

    assert "this submission moved no money" in declined
    assert "The platform's status: failed" in declined
    assert "The platform's status: succeeded" in paid
    related = paid.partition("Also on it")[2]
    assert "confirm_payment, key c1" in related
    assert made.headers["Safepost-Operation"] in related
    assert "executed, failed" in related
    assert "4242" not in declined + paid


async def test_refund_that_an_event_settled_says_so(stage: Stage) -> None:
    made = await stage.pay("ORDER-3")
    body = {"merchant_refund_no": "R-1~reset_after", "payment_id": made.body["id"], "amount": 1}
    answer = await sent(stage, "/v1/refunds", "r1", {**body, "currency": "USD"})
    shown = {"id": "ref_9", "status": "succeeded", "merchant_refund_no": "R-1~reset_after", "version": 3}
    await told_event(stage, "refund.succeeded", shown)

    told = await story(stage, answer.headers["Safepost-Operation"])

    assert "Settled by the platform's event" in told
    assert "in_doubt: reset" in told
    assert "the platform says succeeded (version 3)" in told


async def test_person_whom_the_platform_overrode_is_still_named(stage: Stage) -> None:
    identity = await stage.unknown()
    body = {"status": "failed", "by": "Li Wei", "note": "ticket 4711"}
    await stage.admin.post(f"/operations/{identity}/resolve", body)
    order = "ORDER-1~reset_after"
    shown = {"id": "pay_9", "status": "succeeded", "merchant_order_no": order, "version": 3}
    await told_event(stage, "payment.succeeded", shown)

    told = await story(stage, identity)

    assert "Li Wei: failed: ticket 4711" in told
    assert "a person settled it as failed; the platform says succeeded" in told
    assert "The platform's status: succeeded" in told


async def test_absence_is_told_as_no_proof(stage: Stage) -> None:
    identity = await stage.unknown("ORDER-5~reset_before")

    async def is_absent() -> bool:
        await stage.admin.post(f"/operations/{identity}/lookup", {})
        return bool((await stage.admin.get(f"/operations/{identity}")).body["state"] == "absent")

    await until(is_absent, within_s=15)
    told = await story(stage, identity)

    assert "no record of it, which is not proof; only the same key may be sent" in told.replace("\n", " ")
    assert "looked up: no record" in told
    assert "Looked up" in told
