"""One operation on one screen: a stranger can read what it is, what is known and what to do."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from proxy.admin.story import render
from tests.admin.conftest import Stage


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
