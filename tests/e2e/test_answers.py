"""R3, R4 and R8 as a table: each answer as the first one, and as the one after a doubt."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from proxy.core.model import State
from tests.e2e.callers import cancel, confirm, payment, post, refund, request
from tests.e2e.platforms import JSON, ok, page, refuses, says, thing
from tests.e2e.stage import Stage
from tests.wire.peers import Reset, Script, Send, answer

DOUBT = Script(Reset())
RETRY_AFTER = (b"Retry-After", b"70")


@dataclass(frozen=True, slots=True)
class Row:
    """One answer of the platform.

    `hits`: how often it is asked (3 attempts at most) where it always says so. `alone`: the knowledge when
    nothing was in doubt before. `after`: the status told when it is the answer to the attempt after a doubt.
    `known`: the knowledge then. `second`: hits in all then, with at most three attempts.
    """

    script: Script
    hits: int
    alone: str
    after: int
    known: str = "unknown"
    second: int = 2


PENDING = thing("processing")
ROWS = {
    # definite: the platform's own object, or what stands for it
    "201 succeeded": Row(ok(201), 1, "executed", 201, "executed"),
    "200 failed": Row(ok(200, status="failed"), 1, "executed", 200, "executed"),
    "200 canceled": Row(ok(200, status="canceled"), 1, "executed", 200, "executed"),
    "200 processing": Row(ok(200, status="processing"), 1, "pending", 200, "pending"),
    "200 with a status nobody lists": Row(ok(200, status="parked"), 1, "pending", 200, "pending"),
    "202": Row(says(202, PENDING), 1, "pending", 202, "pending"),
    "202 without a body": Row(Script(Send(answer(202))), 1, "pending", 202, "pending"),
    "402": Row(refuses(402, "card_declined"), 1, "executed", 402, "executed"),
    "409 order_no_conflict": Row(refuses(409, "order_no_conflict"), 1, "executed", 409, "executed"),
    "409 payment_in_progress": Row(refuses(409, "payment_in_progress"), 1, "not_executed", 409, "pending"),
    # refusals
    "400": Row(refuses(400, "invalid_request"), 1, "not_executed", 504),
    "401": Row(refuses(401, "unauthorized"), 1, "not_executed", 504),
    "403": Row(refuses(403, "forbidden"), 1, "not_executed", 504),
    "404": Row(refuses(404, "resource_not_found"), 1, "not_executed", 504),
    "404 in HTML": Row(page(404), 1, "not_executed", 504),
    "405": Row(refuses(405, "method_not_allowed"), 1, "not_executed", 504),
    "410": Row(refuses(410, "gone"), 1, "not_executed", 504),
    "413": Row(refuses(413, "body_too_large"), 1, "not_executed", 504),
    "422": Row(refuses(422, "validation_error"), 1, "not_executed", 504),
    "409 idempotency_conflict": Row(refuses(409, "idempotency_conflict"), 1, "not_executed", 504),
    # said not to be executed, and asked again
    "425": Row(refuses(425, "too_early"), 3, "not_executed", 504, second=3),
    "429": Row(refuses(429, "rate_limited"), 3, "not_executed", 504, second=3),
    "503 temporarily_unavailable": Row(
        refuses(503, "temporarily_unavailable"), 3, "not_executed", 504, second=3
    ),
    # in doubt
    "408": Row(refuses(408, "request_timeout"), 3, "unknown", 408, second=3),
    "409 operation_in_progress": Row(refuses(409, "operation_in_progress"), 3, "unknown", 409, second=3),
    "409 with a code nobody lists": Row(refuses(409, "something_new"), 1, "unknown", 504),
    "409 in HTML": Row(page(409), 1, "unknown", 504),
    "500": Row(refuses(500, "internal_error"), 3, "unknown", 500, second=3),
    "500 in HTML": Row(page(500), 3, "unknown", 500, second=3),
    "502": Row(page(502), 3, "unknown", 502, second=3),
    "503 in HTML": Row(page(503), 3, "unknown", 503, second=3),
    "503 with another code": Row(refuses(503, "maintenance"), 3, "unknown", 503, second=3),
    "504": Row(page(504), 3, "unknown", 504, second=3),
    "501": Row(refuses(501, "not_implemented"), 1, "unknown", 501),
    "505": Row(page(505), 1, "unknown", 505),
    "302": Row(page(302, (b"Location", b"http://other.test:9/x")), 1, "unknown", 504),
    "304": Row(Script(Send(answer(304, length=None))), 1, "unknown", 504),
    "200 of a captive portal": Row(page(200), 3, "unknown", 504, second=3),
    "200 without a body": Row(Script(Send(answer(200))), 3, "unknown", 504, second=3),
    "200 with JSON that is no payment": Row(says(200, b'{"ok":true}'), 3, "unknown", 504, second=3),
    "200 with half a JSON": Row(says(200, b'{"id":"pay_t1"'), 3, "unknown", 504, second=3),
    "204": Row(Script(Send(answer(204, length=None))), 3, "unknown", 504, second=3),
}
UNTOLD = {"302", "304", "200 of a captive portal", "200 without a body", "200 with JSON that is no payment"}
UNTOLD |= {"200 with half a JSON", "204"}
"""In doubt, and not to be handed on: a client would read success, or follow (R8 c)."""
STATES = {
    "executed": State.EXECUTED,
    "pending": State.PENDING,
    "not_executed": State.NOT_EXECUTED,
    "unknown": State.UNKNOWN,
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
async def test_answer_alone_is_asked_for_and_known_as_the_table_says(stage: Stage, row: Row) -> None:
    platform = await stage.platform(row.script)
    proxy = await stage.proxy(platform.url)

    told = await proxy.call(payment())

    assert (platform.hits, told.knowledge, told.attempts) == (row.hits, row.alone, row.hits)
    assert {tuple(seen.header(b"idempotency-key")) for seen in platform.received} == {(b"K",)}
    operation = await proxy.operation()
    assert operation.state is STATES[row.alone]
    assert operation.doubt is (row.alone == "unknown")
    if row.alone == "unknown":
        assert not told.reads_as_failed


@pytest.mark.parametrize("name", sorted(UNTOLD))
async def test_answer_that_reads_as_success_reaches_the_caller_as_504(stage: Stage, name: str) -> None:
    platform = await stage.platform(ROWS[name].script)
    proxy = await stage.proxy(platform.url)

    told = await proxy.call(payment())

    assert (told.status, told.code) == (504, "result_unknown")
    assert told.error["last_answer"]["status"] == int(name[:3])
    assert told.header("location") is None


@pytest.mark.parametrize("name", sorted(ROWS.keys() - UNTOLD))
async def test_answer_alone_reaches_the_caller_byte_for_byte(stage: Stage, name: str) -> None:
    platform = await stage.platform(ROWS[name].script)
    proxy = await stage.proxy(platform.url)

    told = await proxy.call(payment())

    body = _body_of(ROWS[name].script)
    assert (told.status, told.body) == (int(name[:3]), body)
    assert told.header("content-length") == str(len(body))


def _body_of(script: Script) -> bytes:
    sent = script.steps[0]
    assert isinstance(sent, Send)
    return sent.data.partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
async def test_answer_after_doubt_never_reads_as_failed(stage: Stage, row: Row) -> None:
    """R8 c: a refusal after an attempt in doubt proves nothing about that attempt."""
    platform = await stage.platform(row.script)
    platform.plan(DOUBT)
    proxy = await stage.proxy(platform.url)

    told = await proxy.call(payment())

    assert (told.status, told.knowledge, platform.hits) == (row.after, row.known, row.second)
    operation = await proxy.operation()
    assert operation.state is STATES[row.known]
    if row.known == "unknown":
        assert not told.reads_as_failed
        assert operation.doubt


REFUSALS = ["400", "401", "403", "404", "422", "429", "425", "503 temporarily_unavailable"]


@pytest.mark.parametrize("name", REFUSALS)
async def test_refusal_after_doubt_is_named_in_last_answer(stage: Stage, name: str) -> None:
    platform = await stage.platform(ROWS[name].script)
    platform.plan(DOUBT)
    proxy = await stage.proxy(platform.url)

    told = await proxy.call(payment())

    code = {"400": "invalid_request", "401": "unauthorized", "403": "forbidden", "404": "resource_not_found"}
    code |= {"422": "validation_error", "429": "rate_limited", "425": "too_early"}
    wanted = {"status": int(name[:3]), "code": code.get(name, "temporarily_unavailable")}
    assert told.error["last_answer"] == wanted
    assert "same key" in told.error["message"]


@pytest.mark.parametrize("status", [429, 503])
async def test_refusal_after_doubt_keeps_its_retry_after(stage: Stage, status: int) -> None:
    code = "rate_limited" if status == 429 else "temporarily_unavailable"
    platform = await stage.platform(refuses(status, code, RETRY_AFTER))
    platform.plan(DOUBT)
    proxy = await stage.proxy(platform.url)

    told = await proxy.call(payment())

    assert (told.status, told.code, told.header("retry-after")) == (504, "result_unknown", "70")
    assert told.error["last_answer"]["status"] == status


async def test_doubt_stays_over_later_calls(stage: Stage) -> None:
    """A later call's refusal is no more than the first call's: knowledge is about the operation."""
    platform = await stage.platform(refuses(401, "unauthorized"))
    platform.plan(DOUBT)
    proxy = await stage.proxy(platform.url, retry={"attempts": 1})
    first = await proxy.call(payment())

    second = await proxy.call(payment())

    assert (first.status, first.attempts) == (504, 1)
    assert (second.status, second.knowledge, second.attempts) == (504, "unknown", 2)
    assert second.error["last_answer"] == {"status": 401, "code": "unauthorized"}


# --- what a status means on other routes -------------------------------------------------------------------------


async def test_s8_payment_in_progress_on_a_fresh_confirm_is_refused_and_keeps_its_key(stage: Stage) -> None:
    platform = await stage.platform(refuses(409, "payment_in_progress", related_resource_id="pay_t1"))
    proxy = await stage.proxy(platform.url)

    told = await proxy.call(confirm("K2"))

    assert (told.status, told.code, told.knowledge, platform.hits) == (
        409,
        "payment_in_progress",
        "not_executed",
        1,
    )


async def test_refund_number_that_exists_is_executed(stage: Stage) -> None:
    platform = await stage.platform(refuses(409, "refund_no_conflict", related_resource_id="ref_1"))
    proxy = await stage.proxy(platform.url)

    told = await proxy.call(refund("K", "R-1"))

    assert (told.status, told.knowledge, platform.hits) == (409, "executed", 1)


async def test_u5_cancel_answered_202_is_pending(stage: Stage) -> None:
    platform = await stage.platform(says(202, thing("requires_action")))
    proxy = await stage.proxy(platform.url)

    told = await proxy.call(cancel("K"))

    assert (told.status, told.knowledge) == (202, "pending")
    assert (await proxy.operation()).status == "requires_action"


async def test_cancel_answered_204_is_executed(stage: Stage) -> None:
    platform = await stage.platform(Script(Send(answer(204, length=None))))
    proxy = await stage.proxy(platform.url)

    told = await proxy.call(cancel("K"))

    assert (told.status, told.body, told.knowledge) == (204, b"", "executed")


async def test_checkout_session_is_executed_whatever_its_status(stage: Stage) -> None:
    platform = await stage.platform(says(201, b'{"id":"cs_1","status":"open","url":"https://pay.test/1"}'))
    proxy = await stage.proxy(platform.url)
    fields = {"merchant_order_no": "ORDER-1", "amount": 10, "currency": "USD"}

    told = await proxy.call(post("/v1/checkout/sessions", fields, key="K"))

    assert (told.status, told.knowledge) == (201, "executed")


async def test_o31_redirect_is_not_followed_nor_handed_over(stage: Stage) -> None:
    """A 302 on a payment is in doubt; a client that follows it would pay elsewhere (R8 c)."""
    other = await stage.platform(ok())
    platform = await stage.platform(page(302, (b"Location", other.url.encode() + b"/x")))
    proxy = await stage.proxy(platform.url)

    told = await proxy.call(payment())

    assert (told.status, told.code, platform.hits) == (504, "result_unknown", 1)
    assert told.error["last_answer"] == {"status": 302}
    assert other.streams == []
    assert (await proxy.operation()).state is State.UNKNOWN


async def test_o31_redirect_of_a_read_passes_unchanged(stage: Stage) -> None:
    other = await stage.platform(ok())
    there = other.url.encode() + b"/x"
    platform = await stage.platform(Script(Send(answer(302, b"moved", (b"Location", there)))))
    proxy = await stage.proxy(platform.url)

    told = await proxy.call(request("GET", "/v1/payments/pay_t1"))

    assert (told.status, told.body, told.header("location")) == (302, b"moved", there.decode())
    assert other.streams == []


@pytest.mark.parametrize(
    ("second", "ending"),
    [
        (ok(200), (200, None, "executed")),
        (refuses(409, "idempotency_conflict"), (504, "result_unknown", "unknown")),
    ],
    ids=["200", "conflict"],
)
async def test_o46_operation_in_progress_is_waited_for(
    stage: Stage, second: Script, ending: tuple[int, str | None, str]
) -> None:
    platform = await stage.platform(second)
    platform.plan(refuses(409, "operation_in_progress"))
    proxy = await stage.proxy(platform.url)

    told = await proxy.call(payment())

    assert platform.hits == 2
    assert (told.status, told.code, told.knowledge) == ending


@pytest.mark.parametrize("name", ["409 idempotency_conflict", "402", "422", "501", "505"])
async def test_o46_definite_refusals_pass_byte_for_byte(stage: Stage, name: str) -> None:
    platform = await stage.platform(ROWS[name].script)
    proxy = await stage.proxy(platform.url)

    told = await proxy.call(payment())

    assert platform.hits == 1
    assert told.body == _body_of(ROWS[name].script)
    assert told.status == int(name[:3])


async def test_p8_conflict_of_the_platform_never_overwrites_the_record(stage: Stage) -> None:
    platform = await stage.platform(refuses(409, "idempotency_conflict"))
    platform.plan(ok())
    proxy = await stage.proxy(platform.url)
    await proxy.call(payment())

    again = await proxy.call(payment())

    assert (again.status, again.knowledge, again.replayed) == (201, "executed", True)
    assert again.body == thing()
    assert (await proxy.operation()).status == "succeeded"


async def test_o18_post_outside_the_guarded_routes_is_sent_once(stage: Stage) -> None:
    platform = await stage.platform(page(502))
    proxy = await stage.proxy(platform.url)

    told = await proxy.call(post("/v1/customers", {"name": "x"}))
    assert (told.status, platform.hits, told.knowledge) == (502, 1, None)

    platform.plan(Script(Reset()))
    broken = await proxy.call(post("/v1/customers", {"name": "x"}))
    assert (broken.status, platform.hits) == (504, 2)
    assert broken.code == "result_unknown"


async def test_o23_contradictory_framing_is_never_a_cut_success(stage: Stage) -> None:
    body = thing()
    head = b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n"
    framed = head + b"%x\r\n%b\r\n0\r\n\r\n"
    platform = await stage.platform(Script(Send(framed % (len(body), body))))
    proxy = await stage.proxy(platform.url)

    told = await proxy.call(payment())

    assert (told.status, told.code, told.knowledge) == (504, "result_unknown", "unknown")
    assert len(platform.streams) == platform.hits


async def test_o24_short_body_is_never_a_whole_answer(stage: Stage) -> None:
    cut = Script(Send(answer(200, b'{"id":"pay_t1","status":"succe', JSON, length=400)))
    platform = await stage.platform(Script(*cut.steps, Reset()))
    proxy = await stage.proxy(platform.url)

    told = await proxy.call(payment())

    assert (told.status, told.knowledge) == (504, "unknown")
    assert (await proxy.operation()).state is State.UNKNOWN


CUT = "cut \ud83d"  # half a character, escaped: grammatical JSON, and no text that a store or a URL takes


@pytest.mark.parametrize(
    ("script", "told"),
    [
        (says(201, thing(resolution_status=CUT)), "executed"),
        (says(201, thing("failed", failure={"attempt_id": CUT})), "executed"),
        (refuses(409, "order_no_conflict", related_resource_id=CUT), "executed"),
        (refuses(400, CUT), "not_executed"),
        (says(201, thing(id=CUT)), "unknown"),
        (says(201, thing(CUT)), "unknown"),
    ],
)
async def test_answer_with_a_text_cut_inside_a_character_is_recorded(
    stage: Stage, script: Script, told: str
) -> None:
    """R3: what names nothing is left out; a 2xx without a readable id or status is no object of the platform's."""
    platform = await stage.platform(script)
    proxy = await stage.proxy(platform.url)

    assert (await proxy.call(payment())).knowledge == told

    assert (await proxy.operation()).knowledge == told


@pytest.mark.parametrize("raw", ["%ff", "%ED%A0%BD"])
async def test_id_in_the_path_that_is_no_text_names_no_resource(stage: Stage, raw: str) -> None:
    """H1: it is the platform's to refuse; until then the call is guarded like any."""
    platform = await stage.platform(Script(Reset()))
    proxy = await stage.proxy(platform.url)

    told = await proxy.call(confirm("K", raw))

    assert (told.status, told.code) == (504, "result_unknown")
    assert platform.received[0].target == f"/v1/payments/{raw}/confirm".encode()
    assert (await proxy.operation()).resource_id is None
    assert (await proxy.call(confirm("K2", raw))).code == "result_unknown"
