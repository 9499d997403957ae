"""Health and metrics (A1): what probes and scrapers ask."""

from __future__ import annotations

import asyncio

from aiohttp import web

from proxy.admin import params
from proxy.admin.gate import Gate
from proxy.admin.house import House
from proxy.admin.refusals import answered
from proxy.ports import StoreUnavailable

PING_S = 1.0  # a probe's usual patience


class Health:
    """One method an endpoint."""

    def __init__(self, house: House, gate: Gate) -> None:
        self._house = house
        self._gate = gate

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/healthz", self.alive),
            web.get("/readyz", self.ready),
            web.get("/metrics", self.metrics),
        ]

    async def alive(self, request: web.Request) -> web.Response:
        """The process turns its loop."""
        return answered({"status": "alive", "version": self._house.observer.version})

    async def ready(self, request: web.Request) -> web.Response:
        """Listening and not draining; `?for=payments`: the store answers too."""
        params.only(request.query.keys(), {"for"})
        wanted = request.query.get("for")
        if wanted not in (None, "payments"):
            raise params.wrong("for", "payments, or nothing", wanted)
        is_ready = bool(self._house.urls) and not self._house.is_draining
        told: dict[str, object] = {"listening": bool(self._house.urls), "draining": self._house.is_draining}
        if wanted is not None:
            fault = await self._store_fault()
            is_ready = is_ready and fault is None
            told["store"] = self._store(fault, in_detail=self._gate.is_trusted(request))
        return answered({"ready": is_ready, **told}, status=200 if is_ready else 503)

    async def metrics(self, request: web.Request) -> web.Response:
        kind, page = await self._house.observer.metrics(request.headers.get("Accept", ""))
        return web.Response(body=page, headers={"Content-Type": kind})

    async def _store_fault(self) -> str | None:
        try:
            async with asyncio.timeout(PING_S):
                await self._house.store.ping()
        except StoreUnavailable as error:
            return str(error)
        except TimeoutError:
            return f"the store did not answer within {PING_S:g} s"
        return None

    def _store(self, fault: str | None, *, in_detail: bool) -> dict[str, object]:
        """What D1, D5 and D6 ask to be told. Without the token only whether it answers."""
        told: dict[str, object] = {"answers": fault is None}
        report = self._house.observer.store_report
        if in_detail and report is not None:
            warnings = list(self._house.store.warnings())
            told |= {"kind": report.kind, "detail": report.detail, "warnings": warnings}
        if in_detail and fault is not None:
            told["fault"] = fault
        return told
