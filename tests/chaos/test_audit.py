"""The audit bites: each kind of contradiction, put into otherwise honest logs, is found and named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.chaos.audit import CHECKS, audit
from tests.chaos.logs import Arrival, Bank, Call, End, Entry, Forward, Logs, Stored, Trouble, Witness

ORDER = "ORD-1"
KEY = "payment.create:ORD-1:own"
PATH = "/v1/payments"


def call(n: int = 1, **more: Any) -> Call:
    """An honest call that paid ORD-1."""
    told: dict[str, Any] = {
        "n": n,
        "caller": "honest",
        "submission": f"create {ORDER}",
        "order": ORDER,
        "path": PATH,
        "key": KEY,
        "body_sha256": "body",
        "amount": 100,
        "began_ms": 1_000,
        "ended_ms": 2_000,
        "status": 201,
        "knowledge": "executed",
        "told_key": KEY,
        "operation": "op_1",
        "attempts": 1,
        "object_id": "pay_1",
        "object_status": "succeeded",
        "version": 1,
        "body": '{"id": "pay_1"}',
    }
    return Call(**{**told, **more})


def refused(n: int = 1, **more: Any) -> Call:
    """A call without an object in its answer."""
    blank = {"object_id": None, "object_status": None, "version": None, "body": ""}
    return call(n, **{**blank, **more})


CHARGE = Entry("charge", ORDER, "pay_1", KEY, 100, at_ms=1_500)
ARRIVAL = Arrival(1, 1_400, PATH, KEY, "body", "201", executed=True)
STORED = Stored("op_1", "create_payment", PATH, KEY, f"order:{ORDER}", "executed", "executed", "succeeded")
HONEST = Logs(Bank([CHARGE], [ARRIVAL], {ORDER: "succeeded"}), [STORED], [call()])


def with_calls(*calls: Call) -> Logs:
    return replace(HONEST, calls=calls)


def with_bank(*entries: Entry, **more: Any) -> Logs:
    return replace(HONEST, bank=replace(HONEST.bank, entries=entries, **more))


def with_stored(**more: Any) -> Logs:
    return replace(HONEST, store=[replace(STORED, **more)])


NOT_DONE: dict[str, Any] = {"status": 503, "knowledge": "not_executed", "code": "temporarily_unavailable"}
OTHER = Arrival(2, 1_600, PATH, KEY, "other", "409", executed=False)
REFUND = Entry("refund", ORDER, "pay_1", "K-R", 50, at_ms=1_800, refund="R-1")
BURST = {"group": 1, "began_ms": 1_000}


def beside_a_doubt(*, attempts: int, at_ms: int) -> Logs:
    """A call told not executed at 1450, its first attempt; one that began before it and ended in doubt, its
    attempts, and when the bank heard of it."""
    doubt = refused(2, began_ms=900, ended_ms=2_500, status=504, knowledge="unknown", attempts=attempts)
    return replace(
        with_bank(replace(CHARGE, at_ms=at_ms + 10), arrivals=[replace(ARRIVAL, at_ms=at_ms, call=2)]),
        calls=[refused(1, ended_ms=1_450, **NOT_DONE), doubt],
        store=[STORED],
    )


AWAY = Trouble(1_000, 2_000)
UNRECORDED = call(n=7, operation=None, attempts=0, sidecar="s1")
FORWARDED = Logs(
    Bank([CHARGE], [replace(ARRIVAL, call=7)], {ORDER: "succeeded"}),
    [],
    [UNRECORDED],
    may_forward=True,
    forwards=[Forward(7, "s1")],
    ends=[End("s1", 1_900)],
    troubles=[AWAY],
)
"""The store was away from 1000 to 2000; at 1400 a call was sent without it, by a process that ended at 1900."""

LATE = replace(
    FORWARDED,
    bank=replace(FORWARDED.bank, arrivals=[replace(ARRIVAL, call=7, at_ms=7_900)]),
    calls=[replace(UNRECORDED, began_ms=6_900, ended_ms=8_000)],
)
"""Forwarded at 7900, in the last of the time that a sidecar may take to see that the store is back."""


def others(*at_ms: int) -> list[Arrival]:
    """Another body under the key of ARRIVAL, refused, and then the first one again."""
    other, again = (replace(ARRIVAL, seq=n, at_ms=at, executed=False) for n, at in enumerate(at_ms, 2))
    return [replace(other, body_sha256="other", answer="409"), again]


CONFIRM = f"/v1/payments/{ORDER}/confirm"
RECORDED_REFUSED = replace(STORED, state="not_executed", knowledge="not_executed")

DOCTORED = {
    "told of what may have been sent, and lost": (
        with_calls(call(), refused(2, operation="op_9", status=504, knowledge="unknown")),
        "no operation is lost",
    ),
    "forwarded, and lost by a process that lived": (replace(FORWARDED, ends=[]), "recorded before sent"),
    "forwarded, and lost by a process that ended long after": (
        replace(FORWARDED, ends=[End("s1", 9_000)]),
        "recorded before sent",
    ),
    "forwarded when trouble was nearly over, and lost by a process that ended long after": (
        replace(LATE, ends=[End("s1", 14_000)]),
        "recorded before sent",
    ),
    "forwarded, and lost by another process": (
        replace(FORWARDED, ends=[End("s2", 1_900)]),
        "recorded before sent",
    ),
    "answered without a record by a process that was killed long after": (
        replace(FORWARDED, forwards=[], ends=[End("s1", 2_100)]),
        "recorded before sent",
    ),
    "answered with a record that is gone, by a process that was killed": (
        replace(FORWARDED, forwards=[], ends=[End("s1", 1_850)], calls=[call(n=7, sidecar="s1")]),
        "recorded before sent",
    ),
    "forwarded, and never corrected": (
        replace(FORWARDED, ends=[], store=[RECORDED_REFUSED]),
        "each effect becomes known",
    ),
    "told not executed after what was forwarded had to be known": (
        replace(
            FORWARDED,
            ends=[],
            store=[STORED],
            calls=[UNRECORDED, refused(8, began_ms=9_000, ended_ms=9_100, **NOT_DONE)],
        ),
        "never 'not done' about an effect",
    ),
    "forwarded twice": (
        replace(
            FORWARDED,
            bank=replace(
                FORWARDED.bank, arrivals=[replace(ARRIVAL, call=7), replace(ARRIVAL, seq=2, call=7)]
            ),
        ),
        "forwarded only as allowed",
    ),
    "forwarded where it is not configured": (
        replace(FORWARDED, may_forward=False),
        "forwarded only as allowed",
    ),
    "forwarded a confirm": (
        replace(FORWARDED, calls=[replace(UNRECORDED, path=CONFIRM)]),
        "forwarded only as allowed",
    ),
    "forwarded while the store was there": (
        replace(FORWARDED, troubles=[], calls=[replace(UNRECORDED, ended_ms=1_600)]),
        "forwarded only as allowed",
    ),
    "another body after what was forwarded had to be known": (
        replace(
            FORWARDED,
            ends=[],
            bank=replace(FORWARDED.bank, arrivals=[*FORWARDED.bank.arrivals, *others(9_000, 9_100)]),
            calls=[UNRECORDED, call(8, amount=101, body_sha256="other")],
        ),
        "one body for a key",
    ),
    "forwarded, and told not executed": (
        replace(FORWARDED, calls=[replace(UNRECORDED, status=503, knowledge="not_executed")]),
        "forwarded only as allowed",
    ),
    "charged twice": (with_bank(CHARGE, replace(CHARGE, key="other")), "at most one effect"),
    "refunded twice": (with_bank(CHARGE, REFUND, replace(REFUND, key="K2")), "at most one effect"),
    "another amount": (with_bank(replace(CHARGE, amount=101)), "nothing unasked"),
    "an order of nobody": (with_bank(CHARGE, replace(CHARGE, order="X", key="K")), "nothing unasked"),
    "told not executed": (with_calls(refused(**NOT_DONE)), "never 'not done' about an effect"),
    "told not executed by the attempt that came after one in doubt": (
        beside_a_doubt(attempts=1, at_ms=1_500),
        "never 'not done' about an effect",
    ),
    "told not executed while what was in doubt was at the bank": (
        beside_a_doubt(attempts=2, at_ms=1_400),
        "never 'not done' about an effect",
    ),
    "told 429, though marked unknown": (
        with_calls(refused(status=429, knowledge="unknown", code="rate_limited")),
        "never 'not done' about an effect",
    ),
    "told 422": (
        with_calls(refused(status=422, knowledge="unknown")),
        "never 'not done' about an effect",
    ),
    "told not executed long after": (
        with_calls(call(), refused(2, began_ms=9_000, ended_ms=9_100, **NOT_DONE)),
        "never 'not done' about an effect",
    ),
    "not executed after a doubt of its own": (
        with_calls(
            refused(1, began_ms=1_000, ended_ms=1_300, status=504, knowledge="unknown"),
            refused(2, began_ms=1_420, ended_ms=1_450, **NOT_DONE),
        ),
        "never 'not done' about an effect",
    ),
    "told failed": (with_calls(call(object_status="failed")), "never 'failed' about an effect"),
    "told 402": (with_calls(refused(status=402)), "never 'failed' about an effect"),
    "success of nothing": (
        with_calls(call(), call(2, order="Z", submission="create Z", key="K", told_key="K")),
        "'succeeded' is true",
    ),
    "refund of nothing": (
        with_calls(call(), call(2, path="/v1/refunds", submission="refund R-9", key="K", told_key="K")),
        "'succeeded' is true",
    ),
    "success of a page": (with_calls(refused(status=200)), "2xx shows the object"),
    "sent unrecorded": (replace(HONEST, store=[]), "recorded before sent"),
    "bank's log cut": (with_bank(CHARGE, is_complete=False), "complete logs"),
    "operation lost": (
        with_calls(call(), refused(2, operation="op_9", knowledge="unknown", status=504)),
        "no operation is lost",
    ),
    "effect unknown for ever": (
        with_stored(state="unknown", knowledge="unknown"),
        "each effect becomes known",
    ),
    "effect absent": (with_stored(state="absent", knowledge="unknown"), "each effect becomes known"),
    "effect recorded as failed": (with_stored(status="failed"), "each effect becomes known"),
    "declined payment dropped": (
        replace(
            with_stored(state="not_executed", knowledge="not_executed"),
            bank=Bank([], [ARRIVAL], {ORDER: "failed"}),
        ),
        "each effect becomes known",
    ),
    "effect invented": (
        replace(HONEST, bank=Bank([], [ARRIVAL], {}), calls=[]),
        "no effect is invented",
    ),
    "left in flight": (with_stored(state="in_flight"), "nothing hangs"),
    "unknown and left alone": (with_stored(state="unknown", knowledge="unknown"), "nothing hangs"),
    "key changed": (
        with_calls(call(key=None), call(2, key=None, told_key="payment.create:ORD-1:2")),
        "one key for a submission",
    ),
    "key changed for a call that was answered while another process stood still": (
        replace(
            with_calls(call(key=None), call(2, key=None, told_key="payment.create:ORD-1:2")),
            troubles=[Trouble(900, 3_900, "frozen")],
        ),
        "one key for a submission",
    ),
    "key changed while the store was away": (
        replace(
            with_calls(call(key=None), call(2, key=None, told_key="payment.create:ORD-1:2")),
            troubles=[Trouble(900, 3_900, "fill")],
        ),
        "one key for a submission",
    ),
    "other body under a key": (
        replace(
            HONEST,
            bank=replace(HONEST.bank, arrivals=[ARRIVAL, OTHER]),
            calls=[call(), call(2, amount=101, body_sha256="other")],
        ),
        "one body for a key",
    ),
    "version told twice": (
        with_calls(call(), call(2, body='{"id": "pay_2"}')),
        "followers' answers are equal",
    ),
    "burst told of two": (
        with_calls(call(1, **BURST), call(2, operation="op_2", **BURST)),
        "followers' answers are equal",
    ),
    "guard let go": (
        replace(HONEST, witnesses=[Witness(KEY, "K2", "unknown", "unknown")]),
        "held back while unknown",
    ),
    "no knowledge": (with_calls(refused(status=503, knowledge=None)), "answers say what is known"),
    "final, marked as pending": (with_calls(call(knowledge="pending")), "knowledge fits the answer"),
    "process fell over": (replace(HONEST, incidents=["sidecar-1: Traceback"]), "processes behave"),
}


def test_honest_logs_have_no_violation() -> None:
    assert audit(HONEST) == []


@pytest.mark.parametrize("name", DOCTORED)
def test_contradiction_is_found(name: str) -> None:
    logs, rule = DOCTORED[name]

    assert rule in {found.rule for found in audit(logs)}


def test_every_check_bites_on_some_doctored_log() -> None:
    found = {violation.rule for logs, _ in DOCTORED.values() for violation in audit(logs)}

    assert len(found) >= len(CHECKS)


FAIR = {
    "key changed for a call that lay in a stopped process's socket": replace(
        with_calls(
            call(key=None),
            call(2, key=None, began_ms=2_500, ended_ms=4_000, told_key="payment.create:ORD-1:2"),
        ),
        troubles=[Trouble(2_400, 3_900, "frozen")],
    ),
    "told not executed before one that had waited had its first attempt": beside_a_doubt(
        attempts=2, at_ms=1_500
    ),
    "forwarded, and forgotten with its process": FORWARDED,
    "forwarded when trouble was nearly over, and lost in the next trouble": replace(
        LATE, troubles=[AWAY, Trouble(8_500, 9_500)], ends=[End("s1", 14_000)]
    ),
    "forwarded after the store had been silent for its time limit": replace(
        FORWARDED,
        troubles=[],
        ends=[],
        store=[STORED],
        bank=replace(FORWARDED.bank, arrivals=[replace(ARRIVAL, call=7, at_ms=1_950)]),
    ),
    "forwarded after the store had been silent, for a caller who had left long before": replace(
        FORWARDED,
        troubles=[],
        ends=[],
        store=[STORED],
        bank=replace(FORWARDED.bank, arrivals=[replace(ARRIVAL, call=7, at_ms=2_050)]),
        calls=[refused(7, status=0, knowledge=None, operation=None, ended_ms=1_050, hung_up=True)],
    ),
    "forwarded, and refused by the bank, which leaves nothing": replace(
        FORWARDED,
        bank=Bank([], [replace(ARRIVAL, call=7, answer="429", executed=False)]),
        ends=[],
        calls=[refused(7, status=504, knowledge="unknown", code="result_unknown", operation=None)],
    ),
    "another body by another sidecar, while one alone knew of the first": replace(
        FORWARDED,
        ends=[],
        store=[STORED],
        bank=replace(FORWARDED.bank, arrivals=[*FORWARDED.bank.arrivals, *others(1_500, 1_600)]),
        calls=[UNRECORDED, call(8, amount=101, body_sha256="other")],
    ),
    "forwarded under another key, and forgotten, so that the order's first key knows nothing": replace(
        FORWARDED,
        bank=Bank(
            [replace(CHARGE, key="other")],
            [replace(ARRIVAL, key="other", call=7), replace(OTHER, at_ms=900, answer="429", call=6)],
            {ORDER: "succeeded"},
        ),
        calls=[
            replace(UNRECORDED, key="other", told_key="other"),
            refused(6, began_ms=800, ended_ms=950, **NOT_DONE),
        ],
        store=[RECORDED_REFUSED],
    ),
    "forwarded, and written when the store was back": replace(FORWARDED, ends=[], store=[STORED]),
    "forwarded, and its record from before never corrected, for its process ended": replace(
        FORWARDED, store=[RECORDED_REFUSED]
    ),
    "told not executed by another sidecar, while one alone knew": replace(
        FORWARDED,
        ends=[],
        store=[STORED],
        calls=[UNRECORDED, refused(8, began_ms=1_600, ended_ms=1_700, **NOT_DONE)],
    ),
    "forwarded by a process that was killed over its log line": replace(
        FORWARDED,
        calls=[refused(7, status=0, knowledge=None, operation=None, told_key=None, sidecar="s1")],
        forwards=[],
        ends=[End("s1", 1_450)],
    ),
    "forwarded and answered by a process that was killed over its log line": replace(
        FORWARDED, forwards=[], ends=[End("s1", 1_850)]
    ),
    "a second key forwarded, where nobody can read the ledger": replace(
        FORWARDED, witnesses=[Witness("K1", KEY, "unknown", "unknown", call=7)]
    ),
    "a later call brought the effect": with_calls(
        refused(1, began_ms=100, ended_ms=200, **NOT_DONE), call(2, began_ms=1_000)
    ),
    "a call beside it brought the effect": with_calls(
        refused(1, began_ms=1_000, ended_ms=1_450, **NOT_DONE), call(2, began_ms=900, ended_ms=2_000)
    ),
    "a caller who left brought the effect": with_calls(
        refused(1, began_ms=1_000, ended_ms=1_450, **NOT_DONE),
        refused(2, began_ms=900, ended_ms=950, status=0, knowledge=None, operation=None, hung_up=True),
    ),
    "a caller without a key and without an answer brought the effect": with_calls(
        refused(1, began_ms=1_000, ended_ms=1_100, **NOT_DONE),
        refused(2, began_ms=1_200, status=0, key=None, told_key=None, knowledge=None, operation=None),
    ),
    "declined, then paid with another key": replace(
        HONEST,
        bank=Bank([replace(CHARGE, key="payment.confirm:pay_1:1")], [ARRIVAL], {ORDER: "succeeded"}),
        store=[replace(STORED, status="failed")],
        calls=[call(object_status="failed")],
    ),
    "released key with another body": replace(
        HONEST,
        bank=replace(HONEST.bank, arrivals=[replace(ARRIVAL, answer="422", executed=False), OTHER]),
        calls=[call(), call(2, amount=101, body_sha256="other")],
    ),
    "guard of a settled operation": replace(HONEST, witnesses=[Witness(KEY, "K2", "executed", "executed")]),
    "refused before the ledger was read": with_calls(
        call(), refused(2, key="K", status=413, knowledge=None, operation=None, told_key=None)
    ),
}


@pytest.mark.parametrize("name", FAIR)
def test_what_the_contract_allows_is_no_violation(name: str) -> None:
    assert audit(FAIR[name]) == []
