"""How the admin listener says no: one shape, and messages that name what is allowed."""

from __future__ import annotations

import json

from aiohttp import web

JSON_TYPE = "application/json; charset=utf-8"


class Refused(Exception):
    """The request can't be done. `field` names the parameter or member that is wrong."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        field: str | None = None,
        retry_after_ms: int | None = None,
        operation: dict[str, object] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.field = field
        self.retry_after_ms = retry_after_ms
        self.operation = operation


def answered(body: object, *, status: int = 200) -> web.Response:
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    # Lone surrogates, from a caller's bytes that were no UTF-8, become escapes.
    return web.Response(status=status, body=text.encode("utf-8", "backslashreplace"), headers=_HEADERS)


_HEADERS = {"Content-Type": JSON_TYPE}


def refusal(refused: Refused) -> web.Response:
    members: dict[str, object] = {"code": refused.code, "message": refused.message}
    if refused.field is not None:
        members["field"] = refused.field
    if refused.operation is not None:
        members["operation"] = refused.operation
    response = answered({"error": members}, status=refused.status)
    if refused.retry_after_ms is not None:
        response.headers["Retry-After"] = str(max(1, -(-refused.retry_after_ms // 1000)))
    if refused.status == 401:
        response.headers["WWW-Authenticate"] = 'Bearer realm="safepost admin"'
    return response
