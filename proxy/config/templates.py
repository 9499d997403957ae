"""Path templates, and the templates that keys and subjects are made of: what they may hold (F6)."""

from __future__ import annotations

import re
from collections.abc import Iterable

from proxy.config.preset import Preset, RoutePreset
from proxy.config.problems import Problems

VARIABLE = re.compile(r"\{([^{}]*)\}")
_BODY = re.compile(r"body\.[^\s.{}]+(\.[^\s.{}]+)*")
_NUMBERED = re.compile(r"[^:{}]*:\{[^{}]+\}")
_PLAIN = re.compile(r"[!-~]*")


def variables(text: str | None) -> list[str]:
    return VARIABLE.findall(text or "")


def check_path(place: str, template: str, problems: Problems) -> None:
    for segment in template.split("/"):
        if ("{" in segment or "}" in segment) and not re.fullmatch(r"\{[a-z][a-z0-9_]*\}", segment):
            problems.add(place, f"expected segments that are plain or a whole {{name}}, found {segment}")
        elif segment in (".", "..") or "?" in segment or "#" in segment:
            problems.add(place, f"expected a path without query or dot segments, found {segment}")
        elif "%" in segment:
            problems.add(place, f"expected plain characters, as paths are normalised (H9), found {segment}")
    names = variables(template)
    if len(set(names)) < len(names):
        problems.add(place, f"expected variables of different names, found one twice in {template}")


def check_template(place: str, text: str | None, path: str, problems: Problems, *, seq: bool) -> None:
    """A template's variables exist (F6), and it has one that tells one business thing from another."""
    if text is None:
        return
    names = variables(text)
    params = {f"path.{name}" for name in variables(path)}
    allowed = ["{body.FIELD}", *(f"{{{param}}}" for param in sorted(params)), *(["{seq}"] if seq else [])]
    wrong = [
        name for name in names if not (_BODY.fullmatch(name) or name in params or (seq and name == "seq"))
    ]
    around = VARIABLE.sub("", text)
    if wrong:
        problems.add(place, f"expected variables of {', '.join(allowed)}, found {{{wrong[0]}}}")
    elif "{" in around or "}" in around:
        problems.add(place, "expected every { to have its }, and no braces inside")
    elif not _PLAIN.fullmatch(around):
        found = next(one for one in around if not _PLAIN.fullmatch(one))
        problems.add(place, f"expected visible ASCII characters around the variables, found {found!r}")
    elif all(name == "seq" for name in names):
        text = "expected a variable such as {body.order_no}: without one all calls would be one submission"
        problems.add(place, text)
    if names.count("seq") > 1:
        problems.add(place, "expected {seq} at most once")


def check_no_card(place: str, paths: Iterable[str], card_fields: Iterable[str], problems: Problems) -> None:
    """Card data is neither compared nor written: another card is no other submission (P1, D4, S7)."""
    names = {"card", *(name.lower() for name in card_fields)}
    for path in paths:
        if not names.isdisjoint(path.lower().split(".")):
            text = f"expected no card data, found {path}: it is neither compared nor written down (P1, D4)"
            problems.add(place, text)


def check_number(
    place: str, subject: str | None, route: RoutePreset, preset: Preset, problems: Problems
) -> None:
    """A lookup asks for what follows the subject's colon: more than the number there finds nothing, and looks
    like absence (U8)."""
    lookup = preset.lookups.get(route.lookup or "")
    if subject is None or lookup is None or lookup.by_number is None or route.acts_on_existing:
        return
    if not _NUMBERED.fullmatch(subject):
        text = (
            f"expected one variable behind the first colon, such as order:{{body.order_no}}, found {subject!r}: "
            f"lookup {route.lookup} asks the platform for what stands there, and would find nothing (U8)"
        )
        problems.add(place, text)
