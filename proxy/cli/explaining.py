"""What the proxy would do with a call, told without sending anything (C6)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from proxy.config import Settings
from proxy.config.model import Mode
from proxy.config.settings import ScopePart
from proxy.config.units import shown_duration
from proxy.core import keys
from proxy.core.claim import Understood, make_claim
from proxy.core.http import RequestHead, first
from proxy.core.messages import Claim, SeqKey
from proxy.core.model import Key, Scope
from proxy.core.problem import NEAR_MISS, Problem, body_too_large, invalid_request
from proxy.core.retry import retry_times
from proxy.core.routes import Match, RouteTable, near_miss, normalise
from proxy.core.rules import KeyMode, Platform, Route
from proxy.core.scopes import scope_name
from proxy.wire.heads import HeadLimits, HeadRefused, parse_request_head

Told = dict[str, Any]

_READS = frozenset({"GET", "HEAD", "OPTIONS"})
_UNSEEN = "?"


def explained(settings: Settings, head: RequestHead, body: bytes) -> tuple[Told, Claim | None]:
    """Route, key, scope, subject, fingerprint, retry plan; `problem` where the call would be refused.

    The claim is None where there is nothing to look up: the call is not guarded, or refused, or nobody's.
    """
    path, query = normalise(head.target)
    method = head.method.decode("latin-1")
    told: Told = {
        "method": method,
        "path": path,
        "query": query.decode("latin-1") or None,
        "mode": str(settings.mode),
        "upstream": str(settings.upstream.url),
    }
    routes = RouteTable(settings.platform.routes)
    match = routes.match(method, path)
    taken = _taken(settings, head)
    if not isinstance(taken, Problem) and match is None and _is_near_miss(settings, routes, head, path):
        taken = invalid_request(NEAR_MISS, field="path")
    if isinstance(taken, Problem):
        told |= {"route": None, "guarded": False, "problem": _shown(taken)}
        return told, None
    if match is None:
        told |= {"route": None, "guarded": False, "retry": _unguarded_retry(settings.platform, method)}
        return told, None
    more, claim = _guarded(settings, taken, body, match, path)
    return told | more, claim


def _taken(settings: Settings, head: RequestHead) -> RequestHead | Problem:
    """The head as the wire hands it on, or why it refuses it, whatever the call is about (H4, H9)."""
    fields = head.headers
    if first(fields, b"host") is None:
        fields = ((b"Host", b"explained"), *fields)
    line = b"%b %b HTTP/1.1" % (head.method, head.target)
    raw = b"\r\n".join([line, *(b"%b: %b" % field for field in fields), b"", b""])
    protected = frozenset(route.key.header.lower() for route in settings.platform.routes)
    try:
        return parse_request_head(raw, HeadLimits(), protected).head
    except HeadRefused as refused:
        return Problem(
            status=refused.status,
            code="invalid_request",
            message=f"{refused.message}.",
            field=refused.field,
        )


def _is_near_miss(settings: Settings, routes: RouteTable, head: RequestHead, path: str) -> bool:
    return settings.mode is not Mode.OBSERVE and near_miss(routes, head.method, path)


def _shown(problem: Problem) -> Told:
    return {
        "status": problem.status,
        "code": problem.code,
        "field": problem.field,
        "message": problem.message,
    }


def _unguarded_retry(platform: Platform, method: str) -> Told:
    reads = platform.reads
    if method not in _READS:
        return {"attempts": 2, "retried": ["not_sent"], "attempt_timeout_ms": reads.attempt_timeout_ms}
    retried = ["not_sent", "maybe_sent", *map(str, sorted(reads.statuses))]
    return {"attempts": reads.attempts, "retried": retried, "attempt_timeout_ms": reads.attempt_timeout_ms}


def _guarded(
    settings: Settings, head: RequestHead, body: bytes, match: Match, path: str
) -> tuple[Told, Claim | None]:
    route = match.route
    merchant = _part(head, settings.merchant)
    environment = _part(head, settings.environment)
    understood: Understood | Problem
    if len(body) > settings.limits.body_bytes:
        understood = body_too_large(settings.limits.body_bytes)
    else:
        understood = make_claim(
            head,
            body,
            match=match,
            path=path,
            platform=settings.platform,
            scope=Scope(merchant or _UNSEEN, environment or _UNSEEN),
            secrets=(),
            request_id="",
        )
    told: Told = {
        "route": route.name,
        "guarded": True,
        "scope": {"merchant": merchant, "environment": environment},
        "missing_scope_headers": [
            part.header
            for part, found in ((settings.merchant, merchant), (settings.environment, environment))
            if found is None
        ],
        "fingerprint": list(route.fields),
        "guard": {"on": route.guard.on, "twin": "reject" if route.guard.twin_rejects else "warn"},
        "replay": str(route.replay),
        "on_failure": str(route.on_failure),
    }
    if isinstance(understood, Problem):
        told |= {
            "key": _key_rule(route, head),
            "problem": _shown(understood),
            "retry": _plan(route, Key("example")),
        }
        return told, None
    is_somebody_s = merchant is not None and environment is not None
    return told | _claimed(route, understood), understood.claim if is_somebody_s else None


def _part(head: RequestHead, part: ScopePart) -> str | None:
    name = scope_name(head.headers, fixed=part.name, header=part.header)
    return None if isinstance(name, Problem) else name


def _claimed(route: Route, understood: Understood) -> Told:
    claim = understood.claim
    key = claim.key
    shown = f"{key.before}{{seq}}{key.after}" if isinstance(key, SeqKey) else str(key)
    sample = keys.key_for(key, 1) if isinstance(key, SeqKey) else key
    return {
        "key": {
            "header": route.key.header.decode("latin-1"),
            "value": shown,
            "from": f"the template {route.key.template}" if claim.key_injected else "the caller",
            "looks_like": understood.sensitive,
        },
        "subject": claim.subject,
        "twin": claim.twin,
        "amount": claim.amount,
        "currency": claim.currency,
        "operation": _operation(claim),
        "retry": _plan(route, sample),
    }


def _operation(claim: Claim) -> str | None:
    """The operation's id; None where its key holds a number that only the ledger knows."""
    if isinstance(claim.key, SeqKey) or _UNSEEN in (claim.scope.merchant, claim.scope.environment):
        return None
    return keys.operation_id(claim.scope, claim.method, claim.path, claim.key)


def _key_rule(route: Route, head: RequestHead) -> Told:
    """The key of a call that is refused: the caller's where that is a good one, else none."""
    rule = route.key
    given = keys.given_key(head.headers, rule)
    made = given is None and rule.mode is KeyMode.INJECT
    return {
        "header": rule.header.decode("latin-1"),
        "value": given if isinstance(given, str) else None,
        "from": f"the template {rule.template}" if made else "the caller",
        "looks_like": None,
    }


def _plan(route: Route, key: Key) -> Told:
    """When the attempts start: at the earliest if each fails at once, at the latest if each times out."""
    policy = route.retry
    return {
        "attempts": policy.attempts,
        "attempt_timeout_ms": policy.attempt_timeout_ms,
        "deadline_ms": policy.deadline_ms,
        "starts_ms_earliest": list(retry_times(policy, key)),
        "starts_ms_latest": list(retry_times(policy, key, attempt_ms=policy.attempt_timeout_ms)),
    }


def lines(told: Told) -> Iterator[str]:
    """The same, for people."""
    query = f"?{told['query']}" if told["query"] else ""
    yield f"call         {told['method']} {told['path']}{query}"
    yield f"upstream     {told['upstream']}"
    if not told["guarded"]:
        if "problem" in told:
            yield from _problem_lines(told["problem"])
            return
        plan = told["retry"]
        yield "route        none: streamed through, not recorded"
        yield (
            f"retry        up to {plan['attempts']} attempts, after {', '.join(plan['retried'])}; "
            f"{shown_duration(plan['attempt_timeout_ms'])} each"
        )
        return
    yield f"route        {told['route']}" + (" (mode observe: reported only)" * (told["mode"] == "observe"))
    if "problem" in told:
        yield from _problem_lines(told["problem"])
    yield from _key_lines(told["key"])
    yield from _scope_lines(told)
    if "problem" not in told:
        yield f"subject      {told['subject'] or 'none: another key for the same thing is not noticed'}"
        if told["twin"]:
            yield f"twin         {told['twin']}"
        if told["operation"]:
            yield f"operation    {told['operation']}"
        if "ledger" in told:
            yield f"ledger       {_known(told['ledger'])}"
    yield f"fingerprint  {', '.join(told['fingerprint']) or 'no fields: the same key is the same submission'}"
    yield from _plan_lines(told["retry"])


def _problem_lines(problem: Told) -> Iterator[str]:
    yield f"answer       {problem['status']} {problem['code']}: {problem['message']}"
    yield "             nothing is sent"


def _known(ledger: Told | None) -> str:
    if ledger is None:
        return "nothing is recorded of it yet"
    status = f", {ledger['status']}" if ledger["status"] else ""
    doubt = ", in doubt" if ledger["doubt"] else ""
    return f"{ledger['state']}: {ledger['knowledge']}{status}{doubt}, attempts {ledger['attempt_count']}"


def _key_lines(key: Told) -> Iterator[str]:
    yield f"key          {key['header']}: {key['value'] or '(none)'}, from {key['from']}"
    if key["looks_like"]:
        yield f"             it looks like a card number or an e-mail address ({key['looks_like']}) (K5)"


def _scope_lines(told: Told) -> Iterator[str]:
    scope = told["scope"]
    yield f"scope        {scope['merchant'] or _UNSEEN}/{scope['environment'] or _UNSEEN}"
    for name in told["missing_scope_headers"]:
        yield f"             the header {name} holds no name, or several: the answer is 400, nothing is sent"


def _plan_lines(plan: Told) -> Iterator[str]:
    yield (
        f"retry        up to {plan['attempts']} attempts of {shown_duration(plan['attempt_timeout_ms'])}, "
        f"within {shown_duration(plan['deadline_ms'])}"
    )
    yield f"             starting at {_instants(plan['starts_ms_earliest'])} if each fails at once"
    yield f"             starting at {_instants(plan['starts_ms_latest'])} if each times out"


def _instants(starts_ms: list[int]) -> str:
    return ", ".join(f"{start / 1000:.2f}s" for start in starts_ms)
