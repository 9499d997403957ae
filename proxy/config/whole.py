"""A preset's parts against each other: what each is by itself may still make no sense of the whole (C2)."""

from __future__ import annotations

from collections.abc import Iterable

from proxy.config.preset import ObjectPreset, Preset, RoutePreset, RowPreset
from proxy.config.problems import Problems, suggestion
from proxy.config.sections import CREDENTIAL_HEADERS, HOP_HEADERS
from proxy.config.templates import check_no_card, check_number, check_path, check_template, variables

_PASSING = frozenset({408, 409, *range(500, 600)})


def check_whole(preset: Preset, problems: Problems) -> None:
    _check_key_header(preset.key.header, problems)
    for name, one in preset.objects.items():
        _check_object(f"objects.{name}", one, problems)
    for name, lookup in preset.lookups.items():
        if lookup.by_id is None and lookup.by_number is None:
            problems.add(f"lookups.{name}", "expected by_id or by_number, found neither")
        if lookup.absent_statuses and not preset.error.code:
            text = "expected none where error.code is empty: nothing tells the platform's own answer by (U8)"
            problems.add(f"lookups.{name}.absent_statuses", text)
    for name, table in preset.outcomes.items():
        _check_rows(f"outcomes.{name}.rows", table.rows, problems)
    _check_references(preset, problems)
    for name, route in preset.routes.items():
        _check_texts(f"routes.{name}", route, preset, problems)


def _check_key_header(header: str, problems: Problems) -> None:
    """The key is written down, and is the caller's alone to say."""
    expected = f"expected a header that holds nothing but the key, found {header}"
    if header.lower() in CREDENTIAL_HEADERS:
        problems.add("key.header", f"{expected}: a credential, which the ledger must not hold (D4)")
    elif header.lower() in HOP_HEADERS or header.lower().startswith("safepost-"):
        problems.add("key.header", f"{expected}, which does not travel to the platform (H1)")


def _check_texts(place: str, route: RoutePreset, preset: Preset, problems: Problems) -> None:
    """The route's path and templates; those of `own_routes` are checked with the path that each route has."""
    path = route.path or ""
    check_path(f"{place}.path", path, problems)
    check_template(f"{place}.subject", route.subject, path, problems, seq=False)
    check_number(f"{place}.subject", route.subject, route, preset, problems)
    check_template(f"{place}.twin", route.twin, path, problems, seq=False)
    check_template(f"{place}.key_template", route.key_template, path, problems, seq=True)
    check_no_card(f"{place}.fields", route.fields, preset.card_fields, problems)
    for part, text in (
        ("subject", route.subject),
        ("twin", route.twin),
        ("key_template", route.key_template),
    ):
        check_no_card(f"{place}.{part}", variables(text), preset.card_fields, problems)


def _check_object(place: str, one: ObjectPreset, problems: Problems) -> None:
    if one.statuses and not one.status:
        problems.add(
            f"{place}.status", "expected a dotted path to the status that statuses explain, found none"
        )
    elif not one.status and not one.any_is_executed:
        text = "expected a dotted path to its status, or any_is_executed: true: without either no answer holds it"
        problems.add(f"{place}.status", text)
    elif one.status and not one.any_is_executed and not any(s.is_final for s in one.statuses.values()):
        problems.add(
            f"{place}.statuses",
            "expected one that is final or failure, found none",
        )


def _check_rows(place: str, rows: list[RowPreset], problems: Problems) -> None:
    """The first row that fits decides, so one behind a row that takes all of its answers is never read."""
    for index, row in enumerate(rows):
        wrong = sorted(row.status - _PASSING) if row.passes else []
        if wrong:
            text = f"expected it on 408, 409 and 5xx alone, found it on {wrong[0]}: callers read any other status"
            problems.add(f"{place}[{index}].passes", f"{text} as success or as failure (R8)")
        for earlier in range(index):
            if _takes_all(rows[earlier], row):
                text = f"expected answers that no earlier row takes, found rows[{earlier}] to take them"
                problems.add(f"{place}[{index}]", text)
                break


def _takes_all(earlier: RowPreset, row: RowPreset) -> bool:
    return (
        row.status <= earlier.status
        and (earlier.code is None or (row.code is not None and set(row.code) <= set(earlier.code)))
        and earlier.body in ("any", row.body)
        and earlier.final in (None, row.final)
        and earlier.after_doubt in (None, row.after_doubt)
        and earlier.header in (None, row.header)
    )


def _check_references(preset: Preset, problems: Problems) -> None:
    """What a route names has to be there."""
    routes = {f"routes.{name}": route for name, route in preset.routes.items()}
    if preset.own_routes is not None:
        routes["own_routes"] = preset.own_routes
    for place, route in routes.items():
        named: list[tuple[str, str | None, Iterable[str]]] = [
            ("object", route.object, tuple(preset.objects)),
            ("lookup", route.lookup, tuple(preset.lookups)),
            *(("outcomes", table, tuple(preset.outcomes)) for table in route.outcomes),
        ]
        for field, name, known in named:
            if name is not None and name not in known:
                text = f'expected one of {field} defined in this preset, found "{name}"'
                problems.add(f"{place}.{field}", text + suggestion(name, known))
        if route.object in preset.objects:
            _check_meanings(route, preset, problems)
        if place != "own_routes" and route.path is None:
            problems.add(f"{place}.path", "expected a path template such as /v1/payments/{id}")
    for prefix, kind in (preset.events.kinds if preset.events else {}).items():
        if kind not in preset.objects:
            text = f'expected an object defined in this preset, found "{kind}"'
            problems.add(f"events.kinds.{prefix}", text + suggestion(kind, preset.objects))


def _check_meanings(route: RoutePreset, preset: Preset, problems: Problems) -> None:
    """What an answer without an object stands for is a status that the route's object can end with."""
    final = [name for name, status in preset.objects[route.object].statuses.items() if status.is_final]
    told = {problem.path for problem in problems.found}
    for table in route.outcomes:
        for index, row in enumerate(preset.outcomes[table].rows if table in preset.outcomes else ()):
            place = f"outcomes.{table}.rows[{index}].means"
            if row.means is not None and final and row.means not in final and place not in told:
                text = f'expected a final status of {route.object}, found "{row.means}"'
                problems.add(place, text + suggestion(row.means, final))
