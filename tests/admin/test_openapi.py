"""The description of the admin listener and its real answers agree (A2)."""

from __future__ import annotations

from typing import Any

import pytest
from jsonschema import Draft202012Validator, ValidationError

from proxy.admin.openapi import description
from tests.admin.conftest import Answer, Stage

DESCRIBED: dict[str, Any] = description("1")


def check(answer: Answer, path: str, method: str = "get") -> None:
    """Raises ValidationError where the answer is not as described; unknown members are a fault too."""
    told = DESCRIBED["paths"][path][method]["responses"][str(answer.status)]
    schema = told["content"]["application/json"]["schema"]
    whole = {**schema, "components": _closed(DESCRIBED["components"])}
    Draft202012Validator(whole).validate(answer.body)


def _closed(schema: Any) -> Any:
    """The schema without room for members that it does not name."""
    if isinstance(schema, dict):
        closed = {name: _closed(value) for name, value in schema.items()}
        if "properties" in closed and closed.get("type") == "object":
            closed["additionalProperties"] = False
        return closed
    return [_closed(one) for one in schema] if isinstance(schema, list) else schema


def test_description_is_valid_json_schema_throughout() -> None:
    for schema in DESCRIBED["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    assert DESCRIBED["openapi"].startswith("3.1")


async def test_description_names_every_endpoint_and_no_other(stage: Stage) -> None:
    assert stage.app.admin is not None
    served = {
        (route.resource.canonical, route.method.lower())
        for route in stage.app.admin.routes()
        if route.resource is not None and route.method != "HEAD"
    }

    described = {(path, method) for path, methods in DESCRIBED["paths"].items() for method in methods}
    assert served == described
    assert (await stage.admin.get("/openapi.json")).body["paths"].keys() == DESCRIBED["paths"].keys()


async def test_answers_are_as_described(stage: Stage) -> None:
    identity = await stage.unknown()
    paid = (await stage.pay("ORDER-2")).headers["Safepost-Operation"]
    admin = stage.admin
    resolve = {"status": "failed", "by": "Li", "note": "n"}
    for path, address in (
        ("/healthz", "/healthz"),
        ("/readyz", "/readyz"),
        ("/readyz", "/readyz?for=payments"),
        ("/readyz", "/readyz?for=x"),
        ("/operations", "/operations"),
        ("/operations", "/operations?limit=1"),
        ("/operations", "/operations?limit=x"),
        ("/holdings", "/holdings"),
        ("/operations/{id}", f"/operations/{identity}"),
        ("/operations/{id}", f"/operations/{paid}"),
        ("/operations/{id}", "/operations/op_x"),
    ):
        check(await admin.get(address), path)
    for name, body in (("lookup", {}), ("resolve", resolve | {"by": 1}), ("resolve", resolve)):
        check(await admin.post(f"/operations/{identity}/{name}", body), f"/operations/{{id}}/{name}", "post")
    check(await admin.send("POST", "/events", data=b"{}"), "/events", "post")
    await stage.app.store.close()
    check(await admin.get("/operations"), "/operations")
    check(await admin.get("/readyz?for=payments"), "/readyz")


def test_checking_can_fail() -> None:
    wrong = Answer(200, {}, {"status": "alive"}, "")

    with pytest.raises(ValidationError, match="version"):
        check(wrong, "/healthz")
