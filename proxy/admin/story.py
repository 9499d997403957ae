"""One operation as a screen that tells a stranger the whole story: what it is, what is known, why, what next.

Made from the JSON of `views.operation_json`, so that the command line shows what the API says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

Told = Mapping[str, Any]

_COLOURS = {"executed": "green", "pending": "yellow", "not_executed": "cyan", "unknown": "bold red"}
_MEANS = {
    "executed": "The platform gave a definite, final answer.",
    "pending": "The platform accepted it; the business result is not final.",
    "not_executed": "It is certain that the platform did not act.",
    "unknown": "The platform may have acted: the money may have moved. Do not pay again under another key.",
}
_BY_HAND = "A person settled it. It is never sent again; the platform's own evidence would still override it."
_FAILED = (
    "The platform said for good that it failed: this submission moved no money. Another try, such as with "
    "another card, needs a new key."
)
_SETTLERS = {
    "answer": "by the platform's answer",
    "late_answer": "by a late answer of the platform",
    "lookup": "by a lookup at the platform",
    "event": "by the platform's event",
    "person": "by a person",
}


def render(told: Told) -> RenderableType:
    """The story. `told`: the answer of `GET /operations/{id}`."""
    knowledge = str(told["knowledge"])
    parts: list[RenderableType] = [_what(told), Text(), _known(told), Text(), _timeline(told)]
    if told.get("related"):
        parts += [Text(), _related(told["related"])]
    steps = [_step(one) for one in told["next_steps"]]
    if steps:
        parts += [Text(), Text("What happens next", style="bold"), *steps]
    if told.get("resolvable_as"):
        parts.append(_resolving(told))
    title = Text(f"{told['id']}  {knowledge}", style=_COLOURS.get(knowledge, ""))
    return Panel(Group(*parts), title=title, title_align="left", border_style=_COLOURS.get(knowledge, ""))


def money(told: Told) -> str:
    """`12345 USD (minor units)`: how many of them make a unit is the currency's own."""
    if told.get("amount") is None:
        return ""
    return f"{told['amount']} {told.get('currency') or ''}".rstrip() + " (minor units)"


def _what(told: Told) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column(overflow="fold")
    made = "made by Safepost" if told["key_injected"] else "the caller's"
    rows = (
        ("request", f"{told['method']} {told['path']}  ({told['route']})"),
        ("for", f"{told['merchant']} / {told['environment']}"),
        ("subject", told["subject"]),
        ("at the platform", told["resource_id"]),
        ("amount", money(told)),
        ("key", f"{told['key']}  ({made})"),
        ("first seen", _time(told["created"])),
    )
    for name, value in rows:
        if value:
            grid.add_row(name, Text(str(value)))
    return grid


def _known(told: Told) -> Text:
    knowledge = str(told["knowledge"])
    by_hand = told["settled_by_hand"]
    failed = knowledge == "executed" and bool((told["newest"] or {}).get("is_failure"))
    means = _BY_HAND if by_hand else _FAILED if failed else _MEANS.get(knowledge, "")
    text = Text.assemble((knowledge, _COLOURS.get(knowledge, "")), f": {means}")
    if told["state"] == "absent":
        text.append(" The platform shows no record of it, which is not proof; only the same key may be sent.")
    if told["state"] == "in_flight":
        text.append(" A call for it is under way.")
    if told["needs_person"]:
        text.append(" The lookups' time is over: a person should look.")
    if by_hand:
        text.append(f"\nSettled as {by_hand}.")
    elif told["status"]:
        resolution = f" (resolution_status: {told['resolution_status']})" if told["resolution_status"] else ""
        text.append(f"\nThe platform's status: {told['status']}{resolution}.")
    if told["settled"]:
        text.append(f"\nSettled {_SETTLERS.get(str(told['settled_by']), '')}, {_time(told['settled'])}.")
    elif told["unknown_since"]:
        text.append(f"\nUnknown since {_time(told['unknown_since'])}.")
    if not told["is_settled"] and told["lookups"]["done"]:
        text.append(_looked_up(told["lookups"]))
    if told["doubt"]:
        text.append(
            "\nAn attempt had been in doubt; this ended the doubt."
            if told["is_settled"]
            else "\nIn doubt: at least one attempt may have had its effect without a definite answer."
        )
    return text


def _looked_up(lookups: Told) -> str:
    times = "once" if lookups["done"] == 1 else f"{lookups['done']} times"
    misses = f"; {lookups['misses']} in a row showed nothing of it" if lookups["misses"] else ""
    return f"\nLooked up {times}, last {_time(lookups['last'])}{misses}."


def _related(related: Iterable[Told]) -> Table:
    table = Table(
        box=None, padding=(0, 2, 0, 0), title="Also on it", title_justify="left", title_style="bold"
    )
    for name in ("since", "operation", "what", "known"):
        table.add_column(name, no_wrap=name == "operation", overflow="fold")
    for one in related:
        knowledge = str(one["knowledge"])
        known = f"{knowledge}, {one['status']}" if one["status"] else knowledge
        table.add_row(
            Text(_time(one["created"])[:19]),
            Text(str(one["id"])),
            Text(f"{one['route']}, key {one['key']}"),
            Text(known, style=_COLOURS.get(knowledge, "")),
        )
    return table


def _timeline(told: Told) -> Table:
    table = Table(
        box=None, padding=(0, 2, 0, 0), title="What happened", title_justify="left", title_style="bold"
    )
    table.add_column("time", no_wrap=True)
    table.add_column("what", no_wrap=True)
    table.add_column("how", overflow="fold")
    lines = sorted((*_attempts(told["attempts"]), *_entries(told["history"])), key=lambda line: line[0])
    begun = told["attempts"][0]["n"] - 1 if told["attempts"] else 0
    if begun:
        table.add_row("", Text("earlier attempts"), Text(f"{begun}, no longer kept", style="dim"))
    day = ""
    for at, what, how, style in lines:
        when = _time(at)
        if when[:10] != day:
            day = when[:10]
            table.add_row(Text(day, style="dim"), "", "")
        table.add_row(when[11:-4], Text(what, style=style), Text(how))
    return table


def _attempts(attempts: Iterable[Told]) -> Iterator[tuple[str, str, str, str]]:
    for one in attempts:
        outcome = one["outcome"] or "on the wire"
        status = f"HTTP {one['status']}" if one["status"] else one["detail"]
        code = f" {one['code']}" if one["code"] else ""
        lasted = f", {one['duration_ms']} ms" if one["duration_ms"] is not None else ""
        style = "red" if outcome == "in_doubt" else ""
        yield str(one["begun"]), f"attempt {one['n']}", f"{outcome}: {status or ''}{code}{lasted}", style


def _entries(history: Iterable[Told]) -> Iterator[tuple[str, str, str, str]]:
    for one in history:
        by = f"{one['by']}: " if one["by"] else ""
        kind = str(one["kind"])
        style = "red" if kind in ("doubt", "lease_lost", "outcome_conflict", "manual_review") else "dim"
        yield str(one["at"]), kind.replace("_", " "), f"{by}{one['text']}", style


def _step(step: Told) -> Text:
    at = f" ({_time(step['at'])})" if step["at"] else ""
    return Text(f"  - {step['text']}{at}")


def _resolving(told: Told) -> Text:
    words = "|".join(told["resolvable_as"])
    command = f"safepost resolve {told['id']} --status {words} --by NAME --note TEXT"
    return Text(f"\nA person who has proof can settle it:\n  {command}", style="dim")


def _time(text: object) -> str:
    """RFC 3339 as people read it, still in UTC."""
    if not text:
        return ""
    when = datetime.fromisoformat(str(text))
    return f"{when:%Y-%m-%d %H:%M:%S}.{when.microsecond // 1000:03d} UTC"
