"""The control endpoints under `/_sandbox`: the ledger, the requests, faults, settlements, events."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from aiohttp import web

from proxy.sandbox.endings import response
from proxy.sandbox.faults import ArmedRule
from proxy.sandbox.objects import Answer, Json
from proxy.sandbox.refusals import RefusedError, unknown
from proxy.sandbox.rules import read_rule

if TYPE_CHECKING:
    from proxy.sandbox.server import Sandbox


class Control:
    """One method an endpoint."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/_sandbox/ledger", self.ledger),
            web.get("/_sandbox/requests", self.requests),
            web.delete("/_sandbox", self.reset),
            web.get("/_sandbox/faults", self.faults),
            web.post("/_sandbox/faults", self.add_faults),
            web.delete("/_sandbox/faults", self.drop_faults),
            web.delete("/_sandbox/faults/{id:[0-9]+}", self.drop_fault),
            web.post("/_sandbox/payments/{id}", self.settle_payment),
            web.post("/_sandbox/refunds/{id}", self.settle_refund),
            web.get("/_sandbox/events", self.events),
            web.post("/_sandbox/events", self.send_events),
        ]

    async def ledger(self, _: web.Request) -> web.Response:
        entries = self._sandbox.ledger.view()
        return response(Answer(200, {"entries": entries}))

    async def requests(self, _: web.Request) -> web.Response:
        return response(Answer(200, {"requests": self._sandbox.requests.view()}))

    async def reset(self, _: web.Request) -> web.Response:
        self._sandbox.reset()
        return response(Answer(204, None))

    async def faults(self, _: web.Request) -> web.Response:
        return response(Answer(200, {"rules": [_armed_view(armed) for armed in self._sandbox.faults.armed]}))

    async def add_faults(self, request: web.Request) -> web.Response:
        """One rule, a list of rules, or `{"rules": [...]}`. All are added, or none."""
        try:
            given = await _body(request)
            if isinstance(given, dict) and set(given) == {"rules"}:
                given = given["rules"]
            rules = [read_rule(rule) for rule in (given if isinstance(given, list) else [given])]
        except RefusedError as refused:
            return response(refused.answer)
        ids = [self._sandbox.add_fault(rule) for rule in rules]
        return response(Answer(201, {"ids": ids}))

    async def drop_faults(self, _: web.Request) -> web.Response:
        self._sandbox.faults.reset()
        return response(Answer(204, None))

    async def drop_fault(self, request: web.Request) -> web.Response:
        self._sandbox.remove_fault(int(request.match_info["id"]))
        return response(Answer(204, None))

    async def settle_payment(self, request: web.Request) -> web.Response:
        """`{"status": ...}` brings it to an end, `{"resolution_status": ...}` only says how far it is."""
        payment_id = request.match_info["id"]
        try:
            status, resolution = await _words(request, "status", "resolution_status")
            if resolution is not None and status is None:
                view = self._sandbox.note_resolution(payment_id, resolution_status=resolution)
            else:
                view = self._sandbox.settle_payment(payment_id, status=status or "")
        except RefusedError as refused:
            return response(refused.answer)
        return response(Answer(200, view))

    async def settle_refund(self, request: web.Request) -> web.Response:
        try:
            (status,) = await _words(request, "status")
            view = self._sandbox.settle_refund(request.match_info["id"], status=status or "")
        except RefusedError as refused:
            return response(refused.answer)
        return response(Answer(200, view))

    async def events(self, _: web.Request) -> web.Response:
        events = self._sandbox.webhooks.events
        views: list[Json] = [{**event.view(), "deliveries": event.deliveries} for event in events]
        return response(Answer(200, {"events": views}))

    async def send_events(self, request: web.Request) -> web.Response:
        """`{"ids": [...]}`: sends those events again, in that order, as often as they are named."""
        try:
            given = await _body(request)
            ids = given.get("ids") if isinstance(given, dict) else None
            if not isinstance(ids, list) or not all(isinstance(event_id, str) for event_id in ids):
                raise RefusedError(422, "validation_error", "ids: expected a list of event ids", field="ids")
            missing = self._sandbox.webhooks.send(*ids)
            if missing:
                raise unknown(", ".join(missing))
        except RefusedError as refused:
            return response(refused.answer)
        return response(Answer(202, {"sent": ids}))


def _armed_view(armed: ArmedRule) -> Json:
    rule = asdict(armed.rule)
    rule["times"] = "always" if armed.rule.times is None else armed.rule.times
    shown = {name: value for name, value in rule.items() if value not in (None, {})}
    shown["match"] = {name: value for name, value in rule["match"].items() if value is not None}
    return {"id": armed.id, "seen": armed.seen, "used": armed.used, **shown}


async def _body(request: web.Request) -> object:
    try:
        parsed: object = json.loads(await request.read())
    except ValueError:
        raise RefusedError(400, "invalid_request", "the body must be JSON", field="body") from None
    return parsed


async def _words(request: web.Request, *names: str) -> list[str | None]:
    given = await _body(request)
    found = [given.get(name) if isinstance(given, dict) else None for name in names]
    return [word if isinstance(word, str) else None for word in found]
