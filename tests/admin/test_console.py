"""The console in a real browser (A3): live doubt, lookups, resolving by hand, keys, languages, themes."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from aiohttp import ClientSession

from proxy.admin.console import page as console_page
from proxy.core.http import MaybeSentReason, NotSentReason
from tests.admin.conftest import Stage, staged, until

playwright = pytest.importorskip("playwright.async_api")
from playwright.async_api import (  # noqa: E402 -- may be missing
    Browser,
    ConsoleMessage,
    Page,
    Request,
    async_playwright,
    expect,
)

CHROMIUM = shutil.which("chromium")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

in_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium")


# --- without a browser --------------------------------------------------------------------------------------


def css() -> str:
    return console_page()[0].decode().split("<style>")[1].split("</style>")[0]


def tokens(scheme: str) -> dict[str, str]:
    light, dark = css().split("@media (prefers-color-scheme: dark)")
    found = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", light))
    if scheme == "dark":
        found |= dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", dark.split("}\n}")[0]))
    return found


def contrast(one: str, other: str) -> float:
    """WCAG 2.2, relative luminance."""

    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    ("text", "ground"),
    [
        ("text", "card"),
        ("text", "page"),
        ("text", "soft"),
        ("quiet", "card"),
        ("quiet", "page"),
        ("quiet", "soft"),
        ("quiet", "unknown-soft"),
        ("card", "accent"),
        ("card", "unknown"),
        ("unknown", "unknown-soft"),
        ("unknown", "card"),
        ("pending", "pending-soft"),
        ("executed", "executed-soft"),
        ("not_executed", "not_executed-soft"),
    ],
)
def test_texts_can_be_read(scheme: str, text: str, ground: str) -> None:
    colours = tokens(scheme)

    assert contrast(colours[text], colours[ground]) >= 4.5


async def test_page_may_run_nothing_but_its_own_script(stage: Stage) -> None:
    answer = await stage.admin.get("/")

    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    assert not re.search(r"(src|href)=\"(https?:)?//|url\(|@import|innerHTML", answer.text)


# --- in a browser -------------------------------------------------------------------------------------------


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as started:
        opened = await started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield opened
        await opened.close()


Open = Callable[..., Awaitable[Page]]


@pytest.fixture
async def opened(browser: Browser) -> AsyncIterator[Open]:
    """Opens the console. What its script fails at, and what it asks of others, fails the test."""
    faults: list[str] = []

    async def page_of(stage: Stage, *, width: int = 1280, language: str = "en-US") -> Page:
        context = await browser.new_context(viewport={"width": width, "height": 800}, locale=language)
        page = await context.new_page()
        base = stage.admin.url

        def asked(request: Request) -> None:
            if not request.url.startswith((f"{base}/", "data:")):
                faults.append(f"asked {request.url}")

        def said(message: ConsoleMessage) -> None:
            if "Content Security Policy" in message.text or "TrustedHTML" in message.text:
                faults.append(message.text)

        page.on("request", asked)
        page.on("console", said)
        page.on("pageerror", lambda error: faults.append(str(error)))
        await page.goto(f"{base}/")
        return page

    yield page_of
    assert faults == []


@in_browser
async def test_shows_what_is_in_doubt_and_settles_it_by_a_lookup(opened: Open, stage: Stage) -> None:
    await stage.unknown("ORDER-1~reset_after", amount=129_900)
    page = await opened(stage)
    tile = page.get_by_role("region", name="Money in doubt")
    await expect(tile).to_contain_text("1")
    await expect(tile).to_contain_text("USD 1,299.00")

    await page.get_by_role("link", name="order:ORDER-1").click()
    await page.get_by_role("button", name="Look up now").click()

    await expect(page.locator("#detail")).to_contain_text("The platform gave a definite, final answer.")
    await expect(page.locator("#detail svg")).to_have_attribute("role", "img")
    await expect(tile).to_contain_text("No money is in doubt")
    told = (await page.locator("#detail").inner_text()).split()
    assert not {"false", "null", "undefined"} & set(told)


@in_browser
async def test_next_step_and_the_last_lookup_s_result_come_first(opened: Open, stage: Stage) -> None:
    stage.sandbox.add_fault({"fault": "lookup_status", "status": 503, "times": "always"})
    await stage.unknown("ORDER-1~reset_after")

    async def was_looked_up() -> bool:
        return all(row["next_lookup"] > row["updated"] for row in await stage.listed())

    await until(was_looked_up)  # a page from before it would say "lookup due" until it asks again
    page = await opened(stage)
    await expect(page.locator("[data-id]").first).to_contain_text("next lookup in ")
    await page.get_by_role("link", name="order:ORDER-1").click()
    detail = page.locator("#detail")
    await expect(detail).to_contain_text("What happens next")
    assert (await detail.inner_text()).index("What happens next") < (await detail.inner_text()).index("Key")

    await page.get_by_role("button", name="Look up now").click()

    await expect(detail.locator(".steps li").first).to_contain_text("ago: failed (http_503)")


@in_browser
@pytest.mark.parametrize(
    ("minor", "currency", "shown"),
    [(129_900, "USD", "USD 1,299.00"), (98_000, "JPY", "JPY 98,000"), (12_345, "KWD", "KWD 12.345")],
)
async def test_amount_is_shown_in_its_currency_s_units(
    opened: Open, stage: Stage, minor: int, currency: str, shown: str
) -> None:
    page = await opened(stage)

    assert await page.evaluate(f"money({minor}, '{currency}').replaceAll('\u00a0', ' ')") == shown


@in_browser
async def test_ages_do_not_depend_on_the_browser_s_clock(opened: Open, stage: Stage) -> None:
    await stage.unknown()
    page = await opened(stage)
    await page.clock.install(time=datetime.now(UTC) + timedelta(hours=2))
    await page.reload()

    await expect(page.get_by_role("region", name="Money in doubt")).to_contain_text("oldest")

    shown = await page.get_by_role("region", name="Money in doubt").inner_text()
    assert not re.search(r"oldest \d+ (h|d)", shown)


@in_browser
async def test_new_doubt_appears_by_itself(opened: Open, stage: Stage) -> None:
    page = await opened(stage)
    await expect(page.locator("#list")).to_contain_text("Nothing is in doubt.")
    await expect(page.locator("#live")).to_have_text("live")

    await stage.unknown("ORDER-7~reset_after")

    await expect(page.get_by_role("link", name="order:ORDER-7")).to_be_visible(
        timeout=10_000
    )  # the page asks by itself every 15 s
    await expect(page).to_have_title("(1) Safepost")


@in_browser
async def test_backlog_of_lookups_is_told_with_its_end(opened: Open, stage: Stage) -> None:
    resolver = stage.app.now.resolver
    resolver.is_enabled = False  # its loop would count anew
    await resolver.step()
    resolver.backlog = 3_000

    page = await opened(stage)

    await expect(page.locator("#backlog")).to_contain_text("3000 lookups wait for their turn")


@in_browser
async def test_resolve_by_hand_asks_twice_and_keeps_the_name(opened: Open, stage: Stage) -> None:
    identity = await stage.unknown("ORDER-1~reset_before")
    page = await opened(stage)
    await page.get_by_role("link", name="order:ORDER-1").click()
    await page.get_by_role("button", name="Resolve by hand").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("radio", name="failed").check()
    await dialog.get_by_role("textbox", name="Your name").fill("Li Wei")
    await dialog.get_by_role("textbox", name="How you know").fill("bank: declined")
    await dialog.get_by_role("button", name="Continue").click()
    assert (await stage.admin.get(f"/operations/{identity}")).body["knowledge"] == "unknown"

    await dialog.get_by_role("button", name="Yes, settle it").click()

    await expect(page.locator("#detail")).to_contain_text("A person settled it as “failed”.")
    told = (await stage.admin.get(f"/operations/{identity}")).body
    assert (told["settled_by_hand"], told["history"][-1]["by"]) == ("failed", "Li Wei")


@in_browser
async def test_works_with_keys_alone(opened: Open, stage: Stage) -> None:
    for n in (1, 2):
        await stage.unknown(f"ORDER-{n}~reset_before")
    page = await opened(stage)
    await expect(page.locator("[data-id]")).to_have_count(2)
    detail, keys = page.locator("#detail"), page.keyboard

    await keys.press("j")
    await keys.press("Enter")
    await expect(detail).to_contain_text("order:ORDER-1")
    await keys.press("j")
    await expect(detail).to_contain_text("order:ORDER-2")
    await keys.press("r")
    await expect(page.get_by_role("dialog")).to_be_visible()
    await keys.press("Escape")
    await expect(page.get_by_role("dialog")).to_be_hidden()
    await keys.press("Escape")
    await expect(detail).to_be_hidden()
    await keys.press("/")
    await expect(page.locator("#query")).to_be_focused()
    await keys.type("ORDER-2")
    await expect(page.locator("[data-id]")).to_have_count(1)
    await keys.press("Escape")
    await keys.press("?")
    await expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()


@in_browser
async def test_search_finds_what_the_tab_does_not_show(opened: Open, stage: Stage) -> None:
    await stage.pay("ORDER-55")
    page = await opened(stage)

    await page.get_by_role("searchbox").fill("ORDER-55")
    await page.get_by_role("button", name="Search").click()

    await expect(page.get_by_role("link", name="order:ORDER-55")).to_be_visible()


@in_browser
async def test_search_takes_any_order_number_and_follows_what_it_found(opened: Open, stage: Stage) -> None:
    order = "(A*) it's $& {1}: 50%~reset_after"
    identity = await stage.unknown(order)
    page = await opened(stage)
    await page.get_by_role("button", name="All").click()
    await page.get_by_role("searchbox").fill(order)
    await page.get_by_role("button", name="Search").click()
    row = page.get_by_role("link", name=f"order:{order}")
    await row.click()
    await page.get_by_role("button", name="Resolve by hand").click()
    await expect(page.get_by_role("heading", name=f"Resolve order:{order} by hand")).to_be_visible()
    await page.keyboard.press("Escape")

    await stage.admin.post(f"/operations/{identity}/lookup", {})
    await page.evaluate("refresh()")

    await expect(row).to_contain_text("Executed")


@in_browser
async def test_longer_list_and_the_focus_stay_when_news_come(opened: Open, stage: Stage) -> None:
    stage.sandbox.add_fault({"fault": "reset_before", "times": "always"})
    await asyncio.gather(*(stage.pay(f"ORDER-{n}") for n in range(205)))
    page = await opened(stage)
    rows, more = page.locator("[data-id]"), page.get_by_role("button", name="Show more")
    await expect(rows).to_have_count(100)
    await more.focus()

    await page.evaluate("refresh()")
    await expect(more).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(rows).to_have_count(200)
    await page.evaluate("refresh()")

    await expect(rows).to_have_count(200)


@in_browser
async def test_text_of_a_caller_is_only_text(opened: Open, stage: Stage) -> None:
    evil = "<img src=x onerror=document.title='owned'>\"'"
    await stage.unknown(f"{evil}~reset_before", key=f"K {evil}")
    page = await opened(stage)

    await page.locator("[data-id]").first.click()

    await expect(page.locator("#detail")).to_contain_text(f"K {evil}")
    assert await page.locator("img").count() == 0
    assert "owned" not in await page.title()


@in_browser
async def test_speaks_chinese_throughout(opened: Open, stage: Stage) -> None:
    await stage.unknown()
    page = await opened(stage, language="zh-CN")
    assert await page.locator("html").get_attribute("lang") == "zh-CN"
    await expect(page.get_by_role("region", name="结果未知的资金")).to_be_visible()

    await page.get_by_role("button", name="Switch to English").click()

    await expect(page.get_by_role("region", name="Money in doubt")).to_be_visible()
    for here, there in (("en", "zh"), ("zh", "en")):
        missing = f"[WORDS, KINDS].flatMap((w) => Object.keys(w.{here}).filter((k) => !(k in w.{there})))"
        assert await page.evaluate(missing) == []


@in_browser
async def test_story_is_told_in_chinese_too(opened: Open, stage: Stage) -> None:
    stage.sandbox.add_fault({"fault": "lookup_status", "status": 503, "times": "always"})
    identity = await stage.unknown("ORDER-1~reset_after")
    await stage.admin.post(f"/operations/{identity}/lookup", {})
    page = await opened(stage, language="zh-CN")
    await page.locator("[data-id]").first.click()
    await expect(page.locator(".story")).to_contain_text("查询失败")

    told = await page.locator(".story, .steps, .meaning").all_inner_texts()

    words = set(re.findall(r"[A-Za-z_]{3,}", " ".join(told)))
    assert words <= {"Safepost", "HTTP", "http_"}


@in_browser
async def test_every_reason_of_the_wire_has_words_in_both_languages(opened: Open, stage: Stage) -> None:
    page = await opened(stage)

    told = await page.evaluate("Object.values(REASONS).map((words) => Object.keys(words).sort())")

    reasons = sorted({*MaybeSentReason, *NotSentReason})
    assert told == [reasons, reasons]


@in_browser
@pytest.mark.parametrize("width", [320, 390, 768, 1440])
async def test_fits_every_width(opened: Open, stage: Stage, width: int) -> None:
    identity = await stage.unknown("ORDER-" + "9" * 60 + "~reset_before", amount=10**12)
    page = await opened(stage, width=width)
    await expect(page.locator("[data-id]")).to_have_count(1)
    overflow = "document.documentElement.scrollWidth - innerWidth"
    assert await page.evaluate(overflow) <= 0

    await page.goto(f"{stage.admin.url}/#{identity}")

    await expect(page.locator("#detail")).to_be_visible()
    assert await page.evaluate(overflow) <= 0


@in_browser
async def test_everything_that_acts_has_a_name(opened: Open, stage: Stage) -> None:
    await stage.unknown()
    page = await opened(stage)
    await page.locator("[data-id]").first.click()
    await page.get_by_role("button", name="Resolve by hand").click()

    nameless = await page.evaluate(
        """[...document.querySelectorAll('button, a, input, textarea')]
            .filter((one) => !one.innerText?.trim() && !one.getAttribute('aria-label') && !one.labels?.length)
            .map((one) => one.outerHTML)"""
    )

    assert nameless == []


@in_browser
async def test_says_when_safepost_is_away(opened: Open, stage: Stage) -> None:
    await stage.unknown()
    page = await opened(stage)
    await expect(page.locator("[data-id]")).to_have_count(1)
    await expect(page.locator("#live")).to_have_text("live")

    await stage.app.stop()

    await expect(page.locator("#live")).to_have_text("reconnecting")
    await page.evaluate("refresh()")
    await expect(page.get_by_role("alert")).to_contain_text("can't be reached")
    await expect(page.locator("[data-id]")).to_have_count(1)


@in_browser
async def test_asks_for_the_token_and_keeps_it_in_the_tab(
    opened: Open, tmp_path: Path, session: ClientSession
) -> None:
    made = await staged(tmp_path, session, config="admin_token: s3cret-token\n")
    try:
        await made.unknown("ORDER-3~reset_before")
        page = await opened(made)
        dialog = page.get_by_role("dialog", name="Admin token")
        await dialog.get_by_label("Admin token").fill("another")
        await dialog.get_by_role("button", name="Continue").click()
        await expect(dialog.get_by_role("alert")).to_have_text("This token was refused.")

        await dialog.get_by_label("Admin token").fill("s3cret-token")
        await dialog.get_by_role("button", name="Continue").click()

        await expect(page.get_by_role("link", name="order:ORDER-3")).to_be_visible()
        await expect(page.locator("#live")).to_have_text("live")
        assert await page.evaluate("JSON.stringify(localStorage)") == "{}"
    finally:
        await made.app.stop()
        await made.sandbox.close()
