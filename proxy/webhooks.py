"""The platform's events (U4): checked, read, and put to the ledger as evidence, or taken as a hint.

An event settles only when its signature was checked. Without a configured secret it is a hint: what it tells is
thrown away, and a lookup, within its own limits, asks the platform itself.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from proxy.core.bodies import BodyKind, Json, Mistake, Parsed, at, read_json, written_json
from proxy.core.classify import read_object
from proxy.core.evidence import ApplyEvidence, Change
from proxy.core.http import Headers, values
from proxy.core.keys import Unfilled, handle, handle_of
from proxy.core.model import Handle, Operation, Scope, Seen
from proxy.core.rules import EventRule, Platform, Route
from proxy.ports import Query, Store

SIGNATURES_MAX = 16  # of one event, for rotation; more is somebody's try to make us count
HINTED_MAX = 20  # operations on one thing that one unsigned event may have looked up


class Verdict(StrEnum):
    """What became of an event."""

    APPLIED = "applied"  # it changed an operation
    KEPT = "kept"  # it was checked and changed nothing now: known already, or for an operation still to come
    HINT = "hint"  # not checked, or of a merchant that it does not name: a lookup was asked for
    IGNORED = "ignored"  # it tells of nothing that the preset tracks
    REFUSED = "refused"  # the signature is missing, wrong or old
    FAILED = "failed"  # it can't be read


@dataclass(frozen=True, slots=True)
class EventVerdict:
    """`status` is the HTTP answer; a platform sends again what did not get a 2xx."""

    verdict: Verdict
    status: int
    detail: str
    changed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EventPolicy:
    """How events are checked. `scope` None: each belongs to the merchant whose operation it tells of."""

    header: bytes
    secret: bytes | None
    tolerance_ms: int
    scope: Scope | None


@dataclass(frozen=True, slots=True)
class PlatformEvent:
    """What an event tells: a state of a resource, and the names that the ledger has for it, its id's first."""

    id: str
    type: str
    handles: tuple[Handle, ...]
    seen: Seen


def signature_fault(
    header_values: Iterable[bytes], body: bytes, *, secret: bytes, now_ms: int, tolerance_ms: int
) -> str | None:
    """Why a signature does not hold, None where it does: `t=UNIX_SECONDS,v1=HEX[,v1=HEX]` over `t.BODY`.

    Compares in constant time, and every candidate, so that time tells nothing of which one was near.
    """
    found = list(header_values)
    if len(found) != 1:
        return "the signature header is missing" if not found else "the signature header occurs twice"
    stamps: list[bytes] = []
    candidates: list[bytes] = []
    for part in found[0].split(b","):
        name, _, value = part.strip().partition(b"=")
        if name == b"t":
            stamps.append(value)
        elif name == b"v1":
            candidates.append(value.lower())
    if len(stamps) != 1 or not stamps[0].isdigit() or len(stamps[0]) > 12:
        return "the signature header holds no t=UNIX_SECONDS"
    if not candidates or len(candidates) > SIGNATURES_MAX:
        return "the signature header holds no v1=HEX"
    expected = hmac.new(secret, stamps[0] + b"." + body, hashlib.sha256).hexdigest().encode("ascii")
    if sum(hmac.compare_digest(expected, candidate) for candidate in candidates) == 0:
        return "the signature does not match: another secret, or a body that was changed on its way"
    if abs(now_ms - int(stamps[0]) * 1000) > tolerance_ms:
        return "the signature is too old, or from a clock that is wrong"
    return None


def read_event(body: bytes, platform: Platform, *, now_ms: int) -> PlatformEvent | Mistake | None:
    """What an event's body tells; None where it is of no kind that the preset tracks."""
    rule = platform.events
    value = read_json(body)
    if isinstance(value, Mistake):
        return value
    if rule is None:
        return None
    word = at(value, rule.type)
    if not isinstance(word, str):
        return Mistake(".".join(rule.type), "is no event's type")
    kind = next((kind for prefix, kind in rule.kinds.items() if word.startswith(prefix)), None)
    routes = [route for route in platform.routes if route.object.kind == kind]
    if kind is None or not routes:
        return None
    return _told(value, rule, word, routes, platform, now_ms)


def _told(
    value: Json, rule: EventRule, word: str, routes: list[Route], platform: Platform, now_ms: int
) -> PlatformEvent | Mistake:
    shown = at(value, rule.object)
    seen = read_object(
        written_json(shown).encode("utf-8", "surrogatepass"),
        shown,
        routes[0].object,
        source="event",
        seen_ms=now_ms,
        card_fields=platform.card_fields,
    )
    if seen is None or seen.resource_id is None:
        return Mistake(".".join(rule.object), "is not the platform's object, with an id and a status")
    handles = {handle(routes[0].object.kind, seen.resource_id): None}
    parsed = Parsed(BodyKind.JSON, shown)
    for route in routes:
        # A route that makes the resource names it by the merchant's number, which the object repeats.
        named = None if route.subject is None else handle_of(route.subject, parsed, {})
        if named is not None and not isinstance(named, Unfilled):
            handles[named] = None
    identity = at(value, rule.id)
    return PlatformEvent(identity if isinstance(identity, str) else "", word, tuple(handles), seen)


@dataclass(slots=True)
class Webhooks:
    """What the admin listener calls for each event.

    Args: hint: asks for a lookup of an operation soon. announce: told of every change (U7).
        tell: (verdict, detail), for metrics and log.
    """

    platform: Platform
    policy: EventPolicy
    store: Store
    hint: Callable[[Operation], None]
    announce: Callable[[tuple[Change, ...]], None]
    tell: Callable[[str, str], None]

    async def __call__(self, headers: Headers, body: bytes) -> EventVerdict:
        """Judge one event. Raises: StoreUnavailable; the platform is to send it again."""
        verdict = await self._judge(headers, body)
        self.tell(verdict.verdict.value, verdict.detail)
        return verdict

    async def _judge(self, headers: Headers, body: bytes) -> EventVerdict:
        now_ms = self.store.now().wall_ms
        policy = self.policy
        if policy.secret is not None:
            fault = signature_fault(
                values(headers, policy.header.lower()),
                body,
                secret=policy.secret,
                now_ms=now_ms,
                tolerance_ms=policy.tolerance_ms,
            )
            if fault is not None:
                return EventVerdict(Verdict.REFUSED, 401, fault)
        event = read_event(body, self.platform, now_ms=now_ms)
        if event is None:
            return EventVerdict(Verdict.IGNORED, 200, "the preset tracks no events of this kind")
        if isinstance(event, Mistake):
            return EventVerdict(Verdict.FAILED, 400, f"{event.place}: {event.what}")
        if policy.secret is None:
            return await self._hinted(event)
        return await self._applied(event)

    async def _applied(self, event: PlatformEvent) -> EventVerdict:
        scopes = await self._scopes(event)
        if (
            not scopes
        ):  # nobody is named by it, so that nothing of it can be kept: whoever it may be of is asked for
            return await self._hinted(event)
        changes: list[Change] = []
        for scope in scopes:
            verb = ApplyEvidence(scope, event.handles, event.seen)
            changes += await self.store.transact(verb)
        self.announce(tuple(changes))
        if changes:
            return EventVerdict(Verdict.APPLIED, 200, event.type, len(changes))
        return EventVerdict(Verdict.KEPT, 200, event.type)

    async def _scopes(self, event: PlatformEvent) -> list[Scope]:
        """Whose resource it is. An id is the platform's own; an order's number may be several merchants'."""
        if self.policy.scope is not None:
            return [self.policy.scope]
        by_id = await self._operations(event.handles[:1])
        return list(dict.fromkeys(operation.scope for operation in by_id))

    async def _hinted(self, event: PlatformEvent) -> EventVerdict:
        found = [one for one in await self._operations(event.handles) if one.is_unresolved]
        for operation in found[:HINTED_MAX]:
            self.hint(operation)
        return EventVerdict(Verdict.HINT, 202, event.type, len(found[:HINTED_MAX]))

    async def _operations(self, handles: tuple[Handle, ...]) -> list[Operation]:
        found: dict[str, Operation] = {}
        for one in handles:
            page = await self.store.find(Query(subject=one, limit=HINTED_MAX))
            found |= {operation.id: operation for operation in page.operations}
        return [one for one in found.values() if self.policy.scope in (None, one.scope)]
