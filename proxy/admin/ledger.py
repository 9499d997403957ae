"""The ledger's endpoints: list, show, wait, resolve by hand, look up now (A2, C5)."""

from __future__ import annotations

from aiohttp import web

from proxy.admin import params
from proxy.admin.house import House
from proxy.admin.refusals import Refused, answered
from proxy.admin.views import View, holdings_json, is_settled, operation_json, summary_json
from proxy.core.evidence import ABSENT, SettleByHand
from proxy.core.messages import BecameKnown
from proxy.core.model import Operation, OperationId, State
from proxy.core.resolve import NotNow
from proxy.ports import Query

WAITERS_MAX = 500  # long polls at once; each reads the ledger once a second
LOOK_AGAIN_S = 1.0  # what another host did is seen no later than this
RELATED_MAX = 10  # other operations on the same thing that one story names
_ID_MAX = 64


class Ledger:
    """One method an endpoint."""

    def __init__(self, house: House) -> None:
        self._house = house
        self.waiting = 0
        self.is_closing = False

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/operations", self.listed),
            web.get("/operations/{id}", self.one),
            web.post("/operations/{id}/resolve", self.resolve),
            web.post("/operations/{id}/lookup", self.look_up),
            web.get("/holdings", self.holdings),
        ]

    async def listed(self, request: web.Request) -> web.Response:
        routes = [route.name for route in self._house.now.settings.platform.routes]
        query = params.query_of(request, routes=routes)
        try:
            page = await self._house.store.find(query)
        except ValueError:
            if query.cursor is None:
                raise
            raise params.wrong("cursor", "one that an earlier page gave", query.cursor) from None
        now_ms = self._house.store.now().wall_ms
        rows = [summary_json(one, now_ms=now_ms) for one in page.operations]
        return answered({"operations": rows, "cursor": page.cursor})

    async def holdings(self, request: web.Request) -> web.Response:
        params.only(request.query.keys(), ())
        held = await self._house.store.holdings()
        view = holdings_json(held, now_ms=self._house.store.now().wall_ms)
        resolver = self._house.now.resolver
        view["lookups"] = {"due": resolver.backlog, "ends_in_ms": resolver.backlog_ends_in_ms}
        return answered(view)

    async def one(self, request: web.Request) -> web.Response:
        wait_ms = params.wait_ms(request)
        operation = await self._load(request)
        if wait_ms and not is_settled(operation):
            operation = await self._settled(operation, wait_ms=wait_ms)
        return answered(await self._view(operation))

    async def resolve(self, request: web.Request) -> web.Response:
        """C5: a named person settles an operation. Audited in its history; evidence still overrides it."""
        body = await params.json_object(request)
        params.only(body.keys(), {"status", "by", "note"})
        operation = await self._load(request)
        status = body.get("status")
        allowed = self._statuses(operation)
        if not isinstance(status, str) or status not in allowed:
            found = status if isinstance(status, str) else "nothing"
            raise params.wrong("status", f"one of {', '.join(allowed)}", found)
        by = params.line_of(body, "by", length_max=params.BY_MAX)
        note = params.line_of(body, "note", length_max=params.NOTE_MAX, several_lines=True)
        verb = SettleByHand(operation.scope, operation.id, status, by, note)
        settled = await self._house.store.transact(verb)
        if settled is None:
            raise self._unresolvable(await self._load(request))
        self._house.observer.fact(BecameKnown(settled, "person"), None)
        return answered(await self._view(settled))

    async def look_up(self, request: web.Request) -> web.Response:
        """Ask the platform now; still never closer than `lookups.min_interval` (U2)."""
        await params.json_object(request)
        operation = await self._load(request)
        if is_settled(operation):
            raise self._settled_already(operation)
        ended = await self._house.now.resolver.look_up(operation, forced=True)
        if isinstance(ended, NotNow):
            raise self._not_now(operation, ended)
        return answered(await self._view(await self._load(request)))

    # --- parts ----------------------------------------------------------------------------------------------

    async def _load(self, request: web.Request) -> Operation:
        identity = request.match_info["id"]
        found = None
        if len(identity) <= _ID_MAX and identity.isascii():
            found = await self._house.store.load(OperationId(identity))
        if found is None:
            raise Refused(
                404, "not_found", "no such operation; resolved ones are dropped after their retention"
            )
        return found

    async def _settled(self, operation: Operation, *, wait_ms: int) -> Operation:
        """Wait until it settles or the time is up; the record as it is then."""
        if self.waiting >= WAITERS_MAX:
            raise Refused(503, "busy", "too many callers wait; ask again without wait", retry_after_ms=1_000)
        clock, store = self._house.clock, self._house.store
        until_ms = clock.monotonic_ms() + wait_ms
        self.waiting += 1
        try:
            while not is_settled(operation) and not self.is_closing:
                left_ms = until_ms - clock.monotonic_ms()
                if left_ms <= 0:
                    break
                span_ms = min(left_ms, int(LOOK_AGAIN_S * 1000))
                if operation.state is State.IN_FLIGHT:
                    await store.wait(operation, timeout_ms=span_ms)
                else:
                    await self._house.observer.announcements.changed(timeout_s=span_ms / 1000)
                operation = await store.load(operation.id) or operation
        finally:
            self.waiting -= 1
        return operation

    async def _view(self, operation: Operation) -> View:
        settings = self._house.now.settings
        view = operation_json(operation, now_ms=self._house.store.now().wall_ms, platform=settings.platform)
        view["made_by"] = {
            "safepost": self._house.observer.version,
            "config": settings.version,
            "platform": settings.platform.name,
            "platform_version": settings.platform.version,
        }
        view["resolvable_as"] = self._statuses(operation) if _is_resolvable(operation) else []
        view["related"] = await self._related(operation)
        return view

    async def _related(self, operation: Operation) -> list[View]:
        """What else was asked for on the same thing, oldest first: a card swap's confirms, a cancel."""
        found: dict[OperationId, Operation] = {}
        for handle in operation.handles:
            page = await self._house.store.find(Query(subject=handle, limit=RELATED_MAX + 1))
            found |= {one.id: one for one in page.operations if one.scope == operation.scope}
        found.pop(operation.id, None)
        newest = sorted(found.values(), key=lambda one: one.created_ms)[-RELATED_MAX:]
        return [self._short(one) for one in newest]

    def _statuses(self, operation: Operation) -> list[str]:
        """What a person may say of it: the platform's final statuses, and that it never happened."""
        routes = self._house.now.settings.platform.routes
        route = next((one for one in routes if one.name == operation.route), None)
        return [*(route.object.finals if route else ()), ABSENT]

    def _unresolvable(self, operation: Operation) -> Refused:
        if operation.state is State.IN_FLIGHT:
            text = "a call is under way for it; wait for its end, at most a lease, before settling it by hand"
        else:
            text = f"it is settled already: {operation.knowledge.value}, {operation.status or 'no status'}"
        return Refused(409, "not_resolvable", text, operation=self._short(operation))

    def _settled_already(self, operation: Operation) -> Refused:
        text = f"it is settled: {operation.knowledge.value}, {operation.status or 'no status'}; nothing to look up"
        return Refused(409, "settled", text, operation=self._short(operation))

    def _not_now(self, operation: Operation, refused: NotNow) -> Refused:
        if refused.next_ms is None:
            text = "there is no way to ask: the route has no lookup, or its merchant has no credential here"
            return Refused(409, "no_lookup", text, operation=self._short(operation))
        wait_ms = max(0, refused.next_ms - self._house.store.now().wall_ms)
        text = (
            "it was looked up just now, or is at this moment; the platform asks for a pause between lookups"
        )
        return Refused(
            409, "too_soon", text, retry_after_ms=max(1, wait_ms), operation=self._short(operation)
        )

    def _short(self, operation: Operation) -> View:
        return summary_json(operation, now_ms=self._house.store.now().wall_ms)


def _is_resolvable(operation: Operation) -> bool:
    return operation.is_unresolved and operation.state is not State.IN_FLIGHT
