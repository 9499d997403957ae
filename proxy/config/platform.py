"""A preset's rules and the configuration's overrides, joined into the `Platform` that core runs on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from proxy.config.model import Config, Retry, RouteConfig, Sensitive, Twin
from proxy.config.preset import LookupPreset, ObjectPreset, OutcomeTable, Preset, RoutePreset
from proxy.config.problems import Problems, suggestion
from proxy.config.templates import (
    VARIABLE,
    check_no_card,
    check_number,
    check_path,
    check_template,
    variables,
)
from proxy.core.rules import (
    EventRule,
    GuardRule,
    KeyMode,
    KeyRule,
    LookupRule,
    ObjectRule,
    OnFailure,
    OutcomeRule,
    Platform,
    ReadPolicy,
    RetryPolicy,
    Route,
)

DAY_MS = 86_400_000
RECORD_EXTRA_MS = DAY_MS  # a record outlives the platform's memory of its key (P9)
RECORD_ALONE_MS = 30 * DAY_MS  # where the platform has no other uniqueness (P9)


def compile_platform(config: Config, preset: Preset, problems: Problems) -> Platform:
    routes = [
        _route(name, route, config.routes.get(name, RouteConfig()), config, preset, problems)
        for name, route in preset.routes.items()
    ]
    for name, own in config.routes.items():
        if name in preset.routes:
            if own.path is not None or own.method is not None:
                problems.add(f"routes.{name}", f"expected no path or method: preset {preset.name} has them")
        elif preset.own_routes is None:
            text = f'expected the name of a route of preset {preset.name}, found "{name}"'
            problems.add(f"routes.{name}", text + suggestion(name, preset.routes))
        elif own.path is None:
            problems.add(f"routes.{name}.path", "expected the path template of this route of your own")
        else:
            route = preset.own_routes.model_copy(update={"path": own.path, "method": own.method or "POST"})
            routes.append(_route(name, route, own, config, preset, problems))
    _check_twins(routes, problems)
    return Platform(
        name=preset.name,
        version=preset.version,
        routes=tuple(routes),
        error_shape=preset.error.shape,
        error_code=preset.error.code,
        error_related_id=preset.error.related_id,
        reads=ReadPolicy(
            attempts=preset.reads.attempts,
            attempt_timeout_ms=preset.reads.attempt_timeout,
            statuses=preset.reads.statuses or frozenset(),
        ),
        card_fields=frozenset(preset.card_fields),
        signed=preset.signed,
        signature_window_ms=preset.signature_window,
        should_retry_header=_header(preset.should_retry_header),
        lookup_lag_ms=lag_ms(config, preset),
        next_steps=tuple(preset.next_steps),
        events=None
        if preset.events is None
        else EventRule(
            object=preset.events.object,
            kinds=dict(preset.events.kinds),
            type=preset.events.type,
            id=preset.events.id,
        ),
        sweeps=tuple(preset.sweeps),
    )


def _check_twins(routes: Iterable[Route], problems: Problems) -> None:
    """Two routes that fit the same calls can't be told apart."""
    seen: dict[tuple[str, str], str] = {}
    for route in routes:
        shape = (route.method, VARIABLE.sub("{}", route.template))
        if shape in seen:
            text = f"expected calls of its own, found the method and path of {seen[shape]}"
            problems.add(f"routes.{route.name}", text)
        seen.setdefault(shape, route.name)


def _route(
    name: str, preset_route: RoutePreset, own: RouteConfig, config: Config, preset: Preset, problems: Problems
) -> Route:
    template = preset_route.path or ""
    subject = own.subject if own.subject is not None else preset_route.subject
    guard_on = preset_route.guard if own.guard.on is None else own.guard.on
    alone = not preset_route.unique_beyond_key
    route = Route(
        name=name,
        method=preset_route.method,
        template=template,
        key=_key(name, preset_route, own, preset, subject=subject, problems=problems),
        fields=preset_route.fields if own.fingerprint is None else own.fingerprint,
        subject=subject,
        retry=_retry(preset, config.retry, own.retry),
        outcomes=outcome_rules([preset.outcomes[table] for table in preset_route.outcomes]),
        object=object_rule(preset_route.object, preset.objects[preset_route.object]),
        guard=GuardRule(
            on=guard_on and subject is not None,
            platform_is_unique=not preset.second_key_executes,
            twin_rejects=own.guard.twin is Twin.REJECT,
        ),
        replay=preset_route.replay if own.replay is None else own.replay,
        on_failure=_on_failure(name, own, config, alone=alone, problems=problems),
        retention_ms=preset.retention,
        record_ms=_record_ms(preset, alone=alone),
        lookup=None if preset_route.lookup is None else lookup_rule(preset.lookups[preset_route.lookup]),
        twin=preset_route.twin,
        amount=preset_route.amount,
        currency=preset_route.currency,
        acts_on_existing=preset_route.acts_on_existing,
        tracked=preset_route.tracked,
        polled_while_pending=preset_route.polled_while_pending,
        key_expires=alone,
        body_required=preset_route.body_required,
        fresh_connection=preset_route.fresh_connection,
        left_out=frozenset(name.lower() for name in preset.card_fields),
    )
    place = f"routes.{name}"
    _check_texts(place, route, preset_route, own, preset, problems)
    if own.guard.on and subject is None:
        problems.add(f"{place}.guard.on", "expected a subject on this route: the guard is about one")
    return route


def _check_texts(
    place: str, route: Route, preset_route: RoutePreset, own: RouteConfig, preset: Preset, problems: Problems
) -> None:
    """What the configuration says of a route; what the preset says was checked in its own file."""
    is_own = route.name not in preset.routes
    template = route.template
    if is_own:
        check_path(f"{place}.path", template, problems)
        check_template(f"{place}.twin", route.twin, template, problems, seq=False)
    if is_own or own.subject is not None:
        check_template(f"{place}.subject", route.subject, template, problems, seq=False)
        check_no_card(f"{place}.subject", variables(route.subject), route.left_out, problems)
        check_number(f"{place}.subject", route.subject, preset_route, preset, problems)
    if is_own or own.key.template is not None:
        check_template(f"{place}.key.template", route.key.template, template, problems, seq=True)
        check_no_card(f"{place}.key.template", variables(route.key.template), route.left_out, problems)
    if is_own or own.fingerprint is not None:
        check_no_card(f"{place}.fingerprint", route.fields, route.left_out, problems)


def _record_ms(preset: Preset, *, alone: bool) -> int:
    usual = preset.retention + RECORD_EXTRA_MS
    return max(usual, RECORD_ALONE_MS) if alone else usual


def _on_failure(name: str, own: RouteConfig, config: Config, *, alone: bool, problems: Problems) -> OnFailure:
    """D3: never forward where the platform's memory of the key is all that there is."""
    if alone and own.on_failure is OnFailure.FORWARD:
        text = "expected reject: on this route the platform has no uniqueness but the key (D3)"
        problems.add(f"routes.{name}.on_failure", text)
    wanted = config.store.on_failure if own.on_failure is None else own.on_failure
    return OnFailure.REJECT if alone else wanted


def _key(
    name: str,
    preset_route: RoutePreset,
    own: RouteConfig,
    preset: Preset,
    *,
    subject: str | None,
    problems: Problems,
) -> KeyRule:
    template = own.key.template if own.key.template is not None else preset_route.key_template
    mode = own.key.mode
    if mode is KeyMode.INJECT:
        place = f"routes.{name}.key.mode"
        if preset.signed:
            problems.add(place, "expected require: this platform signs its calls, nothing is injected (F5)")
        elif not preset_route.injectable:
            problems.add(place, "expected require: only the caller knows when it means a new one (K2)")
        elif template is None:
            problems.add(place, "expected require, or a key.template to make the key from")
        elif "{seq}" in template and subject is None:
            problems.add(f"routes.{name}.subject", "expected a subject: {seq} counts its submissions (K3)")
    return KeyRule(
        header=preset.key.header.encode("ascii"),
        mode=mode,
        template=template,
        reject_sensitive=own.key.sensitive is Sensitive.REJECT,
        unquote=preset.key.unquote,
        length_max=preset.key.length_max,
    )


def _retry(preset: Preset, for_all: Retry, own: Retry) -> RetryPolicy:
    """The route's value, else the one for all routes, else the preset's."""
    chosen = {**_given(for_all), **_given(own)}
    base = preset.retry
    return RetryPolicy(
        attempts=chosen.get("attempts", base.attempts),
        attempt_timeout_ms=chosen.get("attempt_timeout", base.attempt_timeout),
        base_ms=chosen.get("base", base.base),
        multiplier=chosen.get("multiplier", base.multiplier),
        cap_ms=chosen.get("cap", base.cap),
        jitter=chosen.get("jitter", base.jitter),
        jitter_max_ms=chosen.get("jitter_max", base.jitter_max),
        deadline_ms=chosen.get("deadline", base.deadline),
    )


def _given(retry: Retry) -> dict[str, Any]:
    return {name: value for name in Retry.model_fields if (value := getattr(retry, name)) is not None}


def object_rule(kind: str, preset: ObjectPreset) -> ObjectRule:
    return ObjectRule(
        kind=kind,
        id=preset.id,
        status=preset.status,
        statuses=dict(preset.statuses),
        number=preset.number,
        version=preset.version,
        attempt_count=preset.attempt_count,
        failure_attempt_id=preset.failure_attempt_id,
        resolution_status=preset.resolution_status,
        any_is_executed=preset.any_is_executed,
        numeric=preset.numeric,
    )


def lookup_rule(preset: LookupPreset) -> LookupRule:
    return LookupRule(
        by_id=preset.by_id,
        by_number=preset.by_number,
        list_path=preset.list,
        absent_statuses=preset.absent_statuses or frozenset(),
        timeout_ms=preset.timeout,
    )


def outcome_rules(tables: Iterable[OutcomeTable]) -> tuple[OutcomeRule, ...]:
    return tuple(
        OutcomeRule(
            outcome=row.outcome,
            statuses=row.status,
            codes=None if row.code is None else frozenset(row.code),
            shape=row.body,
            statuses_final=row.final,
            after_doubt=row.after_doubt,
            retry=row.retry,
            passes=row.passes,
            means=row.means,
            header=_header_match(row.header),
        )
        for table in tables
        for row in table.rows
    )


def _header(name: str | None) -> bytes | None:
    return None if name is None else name.lower().encode("ascii")


def _header_match(text: str | None) -> tuple[bytes, bytes] | None:
    if text is None:
        return None
    name, _, value = text.partition(": ")
    return name.lower().encode("ascii"), value.encode("ascii")


def lag_ms(config: Config, preset: Preset) -> int:
    return preset.lookup_lag if config.lookups.lag is None else config.lookups.lag
