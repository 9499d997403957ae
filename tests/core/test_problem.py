"""Our own errors: their shapes, codes and messages (E1-E3, H10)."""

from __future__ import annotations

import json

import pytest

from proxy.core import problem as problems
from proxy.core.http import Response, first
from proxy.core.model import (
    Entry,
    EntryKind,
    Fence,
    Fingerprint,
    Key,
    Operation,
    OperationId,
    State,
    replace,
)
from proxy.core.problem import Problem, render
from proxy.core.rules import ErrorShape
from tests.core.payhub import SCOPE

OPERATION = Operation(
    id=OperationId("op_1"),
    scope=SCOPE,
    route="create_payment",
    method="POST",
    path="/v1/payments",
    key=Key("K1"),
    fingerprint=Fingerprint("s1", "payhub@1", {}),
    state=State.IN_FLIGHT,
    fence=Fence(1),
    created_ms=0,
    updated_ms=0,
    resource_id="pay_1",
)
BY_HAND = replace(
    OPERATION,
    state=State.EXECUTED,
    by_hand="failed",
    history=(
        Entry(at_ms=0, kind=EntryKind.DOUBT, text="x"),
        Entry(at_ms=1, kind=EntryKind.BY_HAND, text="failed: the bank said so", by="Ann"),
    ),
)

# Each with its status, its code and whether it may be retried (E3).
EACH: tuple[tuple[Problem, int, str, bool], ...] = (
    (problems.key_missing("Idempotency-Key"), 400, "invalid_request", False),
    (problems.key_invalid("Idempotency-Key", what="is empty"), 400, "invalid_request", False),
    (problems.key_sensitive("Idempotency-Key", what="card"), 400, "invalid_request", False),
    (problems.field_missing("merchant_order_no"), 400, "invalid_request", False),
    (
        problems.body_invalid("/amount", what="is a member name that occurs twice"),
        400,
        "invalid_request",
        False,
    ),
    (problems.body_missing(), 400, "invalid_request", False),
    (problems.body_too_large(1_048_576), 413, "body_too_large", False),
    (problems.unsupported_encoding("gzip"), 415, "unsupported_encoding", False),
    (problems.idempotency_conflict(OPERATION, ("amount",)), 409, "idempotency_conflict", False),
    (problems.operation_in_progress(OPERATION, retry_after_ms=1), 409, "operation_in_progress", True),
    (problems.subject_held(OPERATION, twin=False, retry_after_ms=1), 409, "operation_in_progress", True),
    (
        problems.subject_held(replace(OPERATION, state=State.UNKNOWN), twin=True, retry_after_ms=1),
        409,
        "result_unknown",
        True,
    ),
    (problems.key_expired(OPERATION), 409, "key_expired", False),
    (problems.settled_by_hand(BY_HAND), 409, "settled_by_hand", False),
    (problems.result_unknown(key=Key("K1"), operation=None, retry_after_ms=1), 504, "result_unknown", True),
    (problems.store_unavailable(key=None, retry_after_ms=1), 503, "store_unavailable", True),
    (
        problems.upstream_unavailable(key=None, operation=None, retry_after_ms=1, why="refused"),
        503,
        "upstream_unavailable",
        True,
    ),
    (problems.draining(retry_after_ms=1), 503, "draining", True),
)


@pytest.mark.parametrize(("problem", "status", "code", "retryable"), EACH, ids=lambda value: str(value)[:40])
def test_each_problem_has_its_code_and_says_what_it_means_for_the_money(
    problem: Problem, status: int, code: str, retryable: bool
) -> None:
    assert (problem.status, problem.code, problem.retryable) == (status, code, retryable)
    assert (problem.retry_after_ms is not None) == retryable
    assert any(word in problem.message for word in ("money", "sent", "executed"))
    assert problem.message.endswith(".")


def body(response: Response) -> object:
    return json.loads(response.body)


def test_render_in_the_platforms_envelope() -> None:
    response = render(problems.key_missing("Idempotency-Key"), ErrorShape.ENVELOPE)
    message = problems.key_missing("Idempotency-Key").message
    assert body(response) == {
        "error": {
            "code": "invalid_request",
            "message": message,
            "field": "Idempotency-Key",
            "retryable": False,
        }
    }
    assert (response.status, response.reason) == (400, b"Bad Request")
    assert response.headers == ((b"Content-Type", b"application/json"), (b"Cache-Control", b"no-store"))


def test_render_as_problem_details_has_the_same_members_beside() -> None:
    response = render(problems.draining(retry_after_ms=1_000), ErrorShape.PROBLEM)
    message = problems.draining(retry_after_ms=1_000).message
    assert body(response) == {
        "type": "urn:safepost:draining",
        "title": "Draining",
        "status": 503,
        "detail": message,
        "code": "draining",
        "message": message,
        "retryable": True,
    }
    assert first(response.headers, b"content-type") == b"application/problem+json"


@pytest.mark.parametrize(("wait_ms", "seconds"), [(0, b"0"), (1, b"1"), (2_000, b"2"), (2_001, b"3")])
def test_render_rounds_retry_after_up(wait_ms: int, seconds: bytes) -> None:
    response = render(problems.draining(retry_after_ms=wait_ms), ErrorShape.ENVELOPE)
    assert first(response.headers, b"retry-after") == seconds


def test_render_of_unknown_after_a_refusal_shows_the_refusal() -> None:
    told = problems.result_unknown(
        key=Key("K1"),
        operation=OperationId("op_1"),
        retry_after_ms=600_000,
        last_answer=problems.last_answer(429, "rate_limited"),
        related_resource_id="pay_1",
    )
    shown = body(render(told, ErrorShape.ENVELOPE))
    assert isinstance(shown, dict)
    assert shown["error"]["last_answer"] == {"status": 429, "code": "rate_limited"}
    assert shown["error"]["idempotency_key"] == "K1"
    assert shown["error"]["operation"] == "op_1"
    assert shown["error"]["related_resource_id"] == "pay_1"
    assert "proves nothing" in shown["error"]["message"]
    assert problems.last_answer(302, None) == (("status", 302),)


def test_render_of_a_conflict_lists_its_fields() -> None:
    shown = body(
        render(problems.idempotency_conflict(OPERATION, ("amount", "currency")), ErrorShape.ENVELOPE)
    )
    assert isinstance(shown, dict)
    assert shown["error"]["fields"] == ["amount", "currency"]
    assert "amount, currency" in shown["error"]["message"]
    assert "values in the body." in problems.idempotency_conflict(OPERATION, ("*",)).message


def test_render_of_a_status_without_a_phrase_of_ours_leaves_it_empty() -> None:
    assert render(Problem(status=431, code="x", message="y"), ErrorShape.ENVELOPE).reason == b""


@pytest.mark.parametrize(
    ("state", "accepted", "says"),
    [
        (State.IN_FLIGHT, False, "no certain result yet"),
        (State.ABSENT, False, "no certain result yet"),
        (State.PENDING, True, "was accepted"),
        (State.EXECUTED, False, "has been executed"),
    ],
)
def test_held_subject_says_how_it_is_held(state: State, accepted: bool, says: str) -> None:
    holder = replace(OPERATION, state=state, accepted=accepted)
    told = problems.subject_held(holder, twin=False, retry_after_ms=1)
    assert says in told.message
    assert (told.idempotency_key, told.operation) == ("K1", "op_1")


def test_settled_by_hand_tells_status_name_and_note() -> None:
    assert "as failed by Ann: the bank said so" in problems.settled_by_hand(BY_HAND).message
    assert "as failed." in problems.settled_by_hand(replace(BY_HAND, history=())).message


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (204, "The last answer, 204, held no result of the platform's."),
        (302, "The last answer, 302, was no result; no redirect is followed."),
        (429, "The last attempt was refused, which proves nothing about an earlier one."),
        (503, "The last answer, 503, proves nothing about an earlier attempt."),
    ],
)
def test_unknown_result_says_what_the_last_answer_was(status: int, words: str) -> None:
    """E2: a page or a redirect refuses nothing."""
    told = problems.result_unknown(
        key=None, operation=None, retry_after_ms=1, last_answer=problems.last_answer(status, None)
    )
    assert words in told.message


@pytest.mark.parametrize(
    ("is_looked_up", "words"), [(True, "goes on finding out"), (False, "does not look it up")]
)
def test_unknown_result_says_whether_anybody_asks(is_looked_up: bool, words: str) -> None:
    """E2: who reads that Safepost goes on waits for what never comes."""
    told = problems.result_unknown(key=None, operation=None, retry_after_ms=1, is_looked_up=is_looked_up)
    assert words in told.message


def test_read_without_an_answer_says_nothing_of_what_it_asked_about() -> None:
    """Its 503 must not be read as the payment's end: it may have been executed long ago."""
    told = problems.read_failed(retry_after_ms=1, why="eof")
    assert (told.status, told.code, told.retryable) == (503, "upstream_unavailable", True)
    assert "no money moved" not in told.message
    assert "as unknown as before" in told.message


@pytest.mark.parametrize(
    ("has_key", "is_idempotent", "may_repeat"),
    [(True, False, True), (False, True, True), (True, True, True), (False, False, False)],
)
def test_unguarded_call_in_doubt_is_called_retryable_only_where_a_repeat_can_not_act_twice(
    has_key: bool, is_idempotent: bool, may_repeat: bool
) -> None:
    told = problems.unguarded_unknown(has_key=has_key, is_idempotent=is_idempotent, retry_after_ms=1_000)
    assert (told.status, told.code, told.retryable) == (504, "result_unknown", may_repeat)
    assert (told.retry_after_ms is not None) is may_repeat
    assert ("act twice" in told.message) is not may_repeat
    assert "goes on finding out" not in told.message
