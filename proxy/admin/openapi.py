"""The description of the admin listener for tools. A test compares it with real answers.

Schemas list every member that an answer has; answers may gain members, and lose none.
"""

from __future__ import annotations

from proxy.admin.params import BY_MAX, LIMIT_MAX, NOTE_MAX, WAIT_MS_MAX
from proxy.core.model import EntryKind, Knowledge, Outcome, State

Schema = dict[str, object]

TEXT: Schema = {"type": "string"}
VALUE: Schema = {"type": "string", "minLength": 1}
FLAG: Schema = {"type": "boolean"}
NUMBER: Schema = {"type": "integer"}
TIME: Schema = {"type": "string", "format": "date-time"}


def description(version: str) -> Schema:
    """OpenAPI 3.1 of `GET /openapi.json`."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Safepost admin",
            "version": version,
            "description": "Health, metrics, the ledger of submissions and its events. Private by default; "
            "elsewhere with the admin token.",
        },
        "security": [{"token": []}, {}],
        "paths": _PATHS,
        "components": {
            "schemas": _SCHEMAS,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _object(members: dict[str, Schema], *, optional: tuple[str, ...] = ()) -> Schema:
    required = [name for name in members if name not in optional]
    return {"type": "object", "properties": members, "required": required}


def _list(of: Schema) -> Schema:
    return {"type": "array", "items": of}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _one_of(words: type[Knowledge] | type[State] | type[Outcome] | type[EntryKind]) -> Schema:
    return {"type": "string", "enum": [word.value for word in words]}


_ROW: dict[str, Schema] = {
    "id": TEXT,
    "merchant": TEXT,
    "environment": TEXT,
    "route": TEXT,
    "method": TEXT,
    "path": TEXT,
    "key": TEXT,
    "key_injected": FLAG,
    "seq": _or_null(NUMBER),
    "subject": _or_null(TEXT),
    "resource_id": _or_null(TEXT),
    "amount": _or_null(NUMBER),
    "currency": _or_null(TEXT),
    "state": _one_of(State),
    "knowledge": _one_of(Knowledge),
    "is_settled": FLAG,
    "needs_person": FLAG,
    "status": _or_null(TEXT),
    "resolution_status": _or_null(TEXT),
    "doubt": FLAG,
    "attempt_count": NUMBER,
    "created": TIME,
    "updated": TIME,
    "settled": _or_null(TIME),
    "settled_by": _or_null(TEXT),
    "unknown_since": _or_null(TIME),
    "next_lookup": _or_null(TIME),
    "open_ms": _or_null(NUMBER),
}

_WHOLE: dict[str, Schema] = {
    **_ROW,
    "version": _or_null(NUMBER),
    "first_attempt": _or_null(TIME),
    "last_attempt_end": _or_null(TIME),
    "settled_by_hand": _or_null(TEXT),
    "failure_delivered": FLAG,
    "attempts": _list(_ref("Attempt")),
    "history": _list(_ref("Entry")),
    "lookups": _object({"done": NUMBER, "misses": NUMBER, "last": _or_null(TIME), "next": _or_null(TIME)}),
    "newest": _or_null(_ref("Seen")),
    "answer": _or_null(_ref("StoredAnswer")),
    "identity": _object({"handles": _list(TEXT), "compared_fields": _list(TEXT), "preset": TEXT}),
    "next_steps": _list(_object({"step": TEXT, "text": TEXT, "at": _or_null(TIME)})),
    "made_by": _object({"safepost": TEXT, "config": TEXT, "platform": TEXT, "platform_version": TEXT}),
    "resolvable_as": _list(TEXT),
    "related": _list(_ref("Row")),
}

_TOTAL = _object(
    {
        "count": NUMBER,
        "amounts": {"type": "object", "additionalProperties": NUMBER},
        "oldest": _or_null(TIME),
        "oldest_ms": _or_null(NUMBER),
    }
)

_SCHEMAS: dict[str, Schema] = {
    "Row": _object(_ROW),
    "Operation": _object(_WHOLE),
    "Attempt": _object(
        {
            "n": NUMBER,
            "fence": NUMBER,
            "begun": TIME,
            "ended": _or_null(TIME),
            "duration_ms": _or_null(NUMBER),
            "outcome": _or_null(_one_of(Outcome)),
            "status": _or_null(NUMBER),
            "code": _or_null(TEXT),
            "detail": TEXT,
            "request_id": TEXT,
        }
    ),
    "Entry": _object({"at": TIME, "kind": _one_of(EntryKind), "text": TEXT, "by": _or_null(TEXT)}),
    "Seen": _object(
        {
            "status": TEXT,
            "is_final": FLAG,
            "is_failure": FLAG,
            "source": TEXT,
            "seen": TIME,
            "resource_id": _or_null(TEXT),
            "version": _or_null(NUMBER),
            "attempt_count": _or_null(NUMBER),
            "resolution_status": _or_null(TEXT),
        }
    ),
    "StoredAnswer": _object(
        {
            "status": NUMBER,
            "content_type": _or_null(TEXT),
            "body_bytes": _or_null(NUMBER),
            "ended": TIME,
            "from_platform": FLAG,
            "knowledge": _one_of(Knowledge),
        }
    ),
    "Page": _object({"operations": _list(_ref("Row")), "cursor": _or_null(TEXT)}),
    "Holdings": _object(
        {
            "unknown": _TOTAL,
            "pending": _TOTAL,
            "lookups": _object({"due": NUMBER, "ends_in_ms": NUMBER}),
            "by_route": _list(
                _object(
                    {
                        "route": TEXT,
                        "knowledge": TEXT,
                        "currency": _or_null(TEXT),
                        "count": NUMBER,
                        "amount": NUMBER,
                        "oldest": TIME,
                    }
                )
            ),
        }
    ),
    "Alive": _object({"status": TEXT, "version": TEXT}),
    "Ready": _object(
        {
            "ready": FLAG,
            "listening": FLAG,
            "draining": FLAG,
            "store": _object(
                {
                    "answers": FLAG,
                    "kind": TEXT,
                    "detail": TEXT,
                    "warnings": _list(TEXT),
                    "fault": TEXT,
                },
                optional=("kind", "detail", "warnings", "fault"),
            ),
        },
        optional=("store",),
    ),
    "EventVerdict": _object({"verdict": TEXT, "detail": TEXT, "changed": NUMBER}),
    "Resolve": {
        **_object(
            {
                "status": {"type": "string", "description": "One of the operation's resolvable_as."},
                "by": {"type": "string", "minLength": 1, "maxLength": BY_MAX},
                "note": {"type": "string", "minLength": 1, "maxLength": NOTE_MAX},
            }
        ),
        "additionalProperties": False,
    },
    "Error": _object(
        {
            "error": _object(
                {"code": TEXT, "message": TEXT, "field": TEXT, "operation": _ref("Row")},
                optional=("field", "operation"),
            )
        }
    ),
}


def _body(schema: Schema) -> Schema:
    return {"application/json": {"schema": schema}}


def _answers(good: Schema, *errors: int, status: int = 200) -> Schema:
    told: Schema = {str(status): {"description": "Done.", "content": _body(good)}}
    for error in (*errors, 401, 403):
        told[str(error)] = {"description": "Refused; the message says why.", "content": _body(_ref("Error"))}
    return told


def _query(name: str, what: str, schema: Schema) -> Schema:
    return {"name": name, "in": "query", "description": what, "schema": schema}


_ID: Schema = {"name": "id", "in": "path", "required": True, "schema": TEXT}
_FILTERS = [
    _query("knowledge", "What is known of its effect.", _one_of(Knowledge)),
    _query("subject", "The business thing, such as order:ORDER-1.", VALUE),
    _query("key", "The idempotency key.", VALUE),
    _query("route", "A route's name.", VALUE),
    _query("since", "Created at or after: RFC 3339 with a zone, or milliseconds since 1970.", VALUE),
    _query("until", "Created before.", VALUE),
    _query("order", "By creation.", {"type": "string", "enum": ["newest", "oldest"], "default": "newest"}),
    _query(
        "limit", "At most so many.", {"type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": 50}
    ),
    _query("cursor", "From the page before.", VALUE),
]
_WAIT = _query("wait", f"Answer when it settles, at most after {WAIT_MS_MAX // 1000}s: 500ms, 30s, 1m.", TEXT)

_PATHS: dict[str, Schema] = {
    "/": {"get": {"summary": "The console.", "responses": {"200": {"description": "A page."}}}},
    "/healthz": {"get": {"summary": "The process is alive.", "responses": _answers(_ref("Alive"))}},
    "/readyz": {
        "get": {
            "summary": "It listens and does not drain; with for=payments, the store answers too.",
            "parameters": [_query("for", "payments, or nothing.", {"type": "string", "enum": ["payments"]})],
            "responses": _answers(_ref("Ready"), 400)
            | {"503": {"description": "Not ready.", "content": _body(_ref("Ready"))}},
        }
    },
    "/metrics": {
        "get": {
            "summary": "Prometheus metrics.",
            "responses": {"200": {"description": "Text or OpenMetrics."}},
        }
    },
    "/openapi.json": {
        "get": {"summary": "This description.", "responses": {"200": {"description": "OpenAPI 3.1."}}}
    },
    "/operations": {
        "get": {
            "summary": "The ledger.",
            "parameters": _FILTERS,
            "responses": _answers(_ref("Page"), 400, 503),
        }
    },
    "/holdings": {
        "get": {
            "summary": "The money that is not settled.",
            "responses": _answers(_ref("Holdings"), 400, 503),
        }
    },
    "/operations/{id}": {
        "get": {
            "summary": "One operation's whole story.",
            "parameters": [_ID, _WAIT],
            "responses": _answers(_ref("Operation"), 400, 404, 503),
        }
    },
    "/operations/{id}/resolve": {
        "post": {
            "summary": "A named person settles it. It is never sent again; evidence still overrides it.",
            "parameters": [_ID],
            "requestBody": {"required": True, "content": _body(_ref("Resolve"))},
            "responses": _answers(_ref("Operation"), 400, 404, 409, 415, 503),
        }
    },
    "/operations/{id}/lookup": {
        "post": {
            "summary": "Ask the platform now. 409 too_soon tells in Retry-After when it may be asked again.",
            "parameters": [_ID],
            "requestBody": {"required": True, "content": _body({"type": "object"})},
            "responses": _answers(_ref("Operation"), 400, 404, 409, 415, 503),
        }
    },
    "/events": {
        "get": {
            "summary": "What this instance announces, as server-sent events; resumes after Last-Event-ID.",
            "parameters": [_query("last", "The last id seen.", NUMBER)],
            "responses": {"200": {"description": "text/event-stream"}},
        },
        "post": {
            "summary": "An event of the platform; settles only when its signature was checked.",
            "requestBody": {"required": True, "content": _body({"type": "object"})},
            "responses": _answers(_ref("EventVerdict"), 400, 413, 503)
            | {"202": {"description": "A hint: a lookup follows.", "content": _body(_ref("EventVerdict"))}},
        },
    },
}
