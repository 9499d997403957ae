"""The admin listener under requests that its own description allows, and under others (A2, A4)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis import strategies as st
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from proxy.admin.openapi import description
from tests.admin.conftest import Stage

EXAMPLES = 40  # of each endpoint; enough that each parameter is wrong and right in turn
STREAM = "/events"  # GET ends only with its reader: the stream's own tests read it
CHECKS = [
    schemathesis.checks.not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
]


WRONG = {"/readyz", "/operations", "/operations/{id}/resolve", "/operations/{id}/lookup", "/events"}
"""Where a request can be other than described: elsewhere any text will do."""


def endpoints() -> list[Any]:
    """What the description names, each with requests as described, and with others where there are any."""
    described: dict[str, Any] = description("1")
    schema = schemathesis.openapi.from_dict(described)
    found = [result.ok() for result in schema.get_all_operations() if isinstance(result, Ok)]
    assert len(found) == sum(map(len, described["paths"].values()))
    return [
        pytest.param(one, mode, id=f"{one.method} {one.path} {mode.value}")
        for one in found
        for mode in schemathesis.GenerationMode
        if (one.path, one.method) != (STREAM, "get")
        and (one.path in WRONG or mode is schemathesis.GenerationMode.POSITIVE)
    ]


def explore(endpoint: Any, url: str, identities: list[str], mode: schemathesis.GenerationMode) -> None:
    """Raises: what schemathesis found. Half of the requests are about operations that are there."""

    @given(case=endpoint.as_strategy(generation_mode=mode), known=st.sampled_from([None, *identities]))
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        verbosity=Verbosity.quiet,
        suppress_health_check=list(HealthCheck),
    )
    def holds(case: Any, known: str | None) -> None:
        if known is not None and "id" in (case.path_parameters or {}):
            case.path_parameters["id"] = known
        case.query.pop("wait", None)  # a wait that is allowed may last a minute
        case.call_and_validate(base_url=url, checks=CHECKS, timeout=10)

    holds()


@pytest.mark.slow
@pytest.mark.parametrize(("endpoint", "mode"), endpoints())
async def test_answers_hold_to_the_description(
    stage: Stage, endpoint: Any, mode: schemathesis.GenerationMode
) -> None:
    identities = [await stage.unknown(), (await stage.pay("ORDER-2")).headers["Safepost-Operation"]]

    await asyncio.to_thread(explore, endpoint, stage.admin.url, identities, mode)
