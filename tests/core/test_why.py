"""The scenarios that broke earlier drafts, as whole calls over a ledger (docs/guarantees.md says what holds).

Each is the story of one mistake. Those that concern other rooms (clocks, readiness, names) are told there.
"""

from __future__ import annotations

from proxy.core.delivery import DeliverFailure
from proxy.core.evidence import ApplyEvidence, SettleByHand
from proxy.core.http import WireResult
from proxy.core.keys import handle
from proxy.core.messages import Blocked, Reply, Reserved
from proxy.core.model import Knowledge, Owner, State, replace
from proxy.core.reserve import WithdrawClaim
from proxy.core.resolve import EndLookup, LookupFailed, LookupTask, TakeLookup
from proxy.core.rules import GuardRule
from tests.core.payhub import CONFIRM, CREATE, DAY_MS, SCOPE, injecting
from tests.core.play import (
    BUSY,
    LEASE_MS,
    UNPROCESSABLE,
    Book,
    Desk,
    answered,
    code_of,
    confirm,
    create,
    error,
    led,
    payment,
    read_timeout,
    refund,
    refused,
    reserve,
    seen,
)
from tests.core.test_resolve import POLICY

PAYMENT = handle("payment", "pay_1")
ORDER = handle("order", "ORDER-1")
ONE_ATTEMPT = replace(CREATE, retry=replace(CREATE.retry, attempts=1))
ONE_CONFIRM = replace(injecting(CONFIRM), retry=replace(CREATE.retry, attempts=1))


def knows(reply: Reply) -> tuple[int, Knowledge | None]:
    return reply.answer.status, reply.marks.knowledge


def test_why_1_a_refusal_after_doubt_is_not_handed_over() -> None:
    desk = Desk()
    busy = error(429, "rate_limited", ((b"Retry-After", b"600"),))
    reply = desk.call(create(), [read_timeout(), busy])
    assert knows(reply) == (504, "unknown")


def test_why_2_a_later_calls_refusals_do_not_forget_the_earlier_doubt() -> None:
    desk = Desk()
    desk.call(create(route=ONE_ATTEMPT), [read_timeout()])
    for result in (refused(), BUSY, UNPROCESSABLE):
        assert knows(desk.call(create(route=ONE_ATTEMPT), [result])) == (504, "unknown")


def test_why_3_a_confirm_is_not_settled_by_the_card_before() -> None:
    desk = Desk()
    desk.call(create(), [payment("failed", version=2, attempt_count=1, failure="att_A")])
    reply = desk.call(confirm("K3", route=replace(CONFIRM, retry=ONE_CONFIRM.retry)), [read_timeout()])
    card_a = seen("failed", version=2, attempt_count=1, failure="att_A")
    desk.book.run(ApplyEvidence(SCOPE, (PAYMENT, ORDER), card_a))
    assert knows(reply) == (504, "unknown")
    assert desk.book.keyed("K3").state is State.UNKNOWN


def test_why_4_a_lost_answer_is_no_new_submission() -> None:
    """The caller heard 504; the attempt ended declined later; its repeat gets that decline, and no new charge."""
    desk = Desk()
    call = confirm(key=None, route=ONE_CONFIRM)
    desk.call(call, [read_timeout()])
    desk.book.put(replace(desk.book.only, baseline=replace(desk.book.only.baseline, attempt_count=0)))
    declined = seen("failed", version=3, attempt_count=1)
    desk.book.run(ApplyEvidence(SCOPE, (PAYMENT,), declined))
    reply = desk.call(call)
    assert knows(reply) == (200, "executed")
    assert reply.marks.replayed and len(desk.sent) == 1
    assert reply.confirm_delivery is not None
    operation = reply.confirm_delivery
    desk.book.run(DeliverFailure(SCOPE, operation.id, operation.fence))
    desk.call(call, [payment("succeeded", version=4, attempt_count=2)])
    assert desk.sent[-1] == "payment.confirm:pay_1:2"


def test_why_5_a_repeat_of_a_settled_operation_neither_releases_nor_relabels_it() -> None:
    desk = Desk()
    desk.call(create(), [payment()])
    results: tuple[WireResult, ...] = (
        error(401, "unauthorized"),
        BUSY,
        UNPROCESSABLE,
        read_timeout(),
        refused(),
    )
    for result in results:
        assert knows(desk.call(create(), [result])) == (200, "executed")
    assert code_of(desk.call(create(amount=12_000))) == "idempotency_conflict"


def test_why_6_nothing_is_sent_once_the_platform_may_have_forgotten_the_key() -> None:
    desk = Desk()
    desk.call(confirm(), [payment("failed")])
    desk.book.pass_ms(7 * DAY_MS)
    assert knows(desk.call(confirm())) == (200, "executed")
    assert len(desk.sent) == 1


def test_why_7_a_lookup_that_was_refused_proves_no_absence() -> None:
    desk = Desk()
    desk.call(create(route=ONE_ATTEMPT), [read_timeout()])
    for _ in range(4):
        desk.book.pass_ms(60_000)
        task = desk.book.run(TakeLookup(SCOPE, desk.book.only.id, Owner("r"), POLICY, 15_000, forced=True))
        assert isinstance(task, LookupTask)
        desk.book.run(EndLookup(task, LookupFailed("http_401"), POLICY))
    assert desk.book.only.state is State.UNKNOWN


def test_why_8_what_a_person_settled_is_not_sent_again_and_absent_frees_the_order() -> None:
    desk = Desk()
    desk.call(create("K1", route=ONE_ATTEMPT), [read_timeout()])
    desk.book.run(SettleByHand(SCOPE, desk.book.only.id, "failed", "Ann", "support said so"))
    assert code_of(desk.call(create("K1"))) == "settled_by_hand"
    assert len(desk.sent) == 1
    desk.call(create("K2", order="ORDER-2", route=ONE_ATTEMPT), [read_timeout()])
    desk.book.run(SettleByHand(SCOPE, desk.book.keyed("K2").id, "absent", "Ann", "support said so"))
    assert knows(
        desk.call(create("K3", order="ORDER-2"), [payment(order="ORDER-2", payment_id="pay_2")])
    ) == (
        200,
        "executed",
    )


def test_why_9_no_attempt_starts_that_nobody_asked_for() -> None:
    desk = Desk()
    desk.call(refund(), [read_timeout()] * 5)
    sent = len(desk.sent)
    for _ in range(30):
        desk.book.pass_ms(4 * 3_600_000)
        desk.book.run(TakeLookup(SCOPE, desk.book.only.id, Owner("r"), POLICY, 15_000))
    assert len(desk.sent) == sent


def test_why_10_a_captive_portals_page_is_no_payment() -> None:
    desk = Desk()
    page = answered(200, b"<html>welcome</html>", ((b"Content-Type", b"text/html"),))
    assert knows(desk.call(create(route=ONE_ATTEMPT), [page])) == (504, "unknown")
    assert knows(desk.call(create("K2", order="O2", route=ONE_ATTEMPT), [answered(302)])) == (504, "unknown")


def test_why_12_late_evidence_reaches_an_absent_operation() -> None:
    desk = Desk()
    desk.call(create(route=ONE_ATTEMPT), [read_timeout()])
    desk.book.put(replace(desk.book.only, state=State.ABSENT))
    desk.book.run(ApplyEvidence(SCOPE, (PAYMENT, ORDER), seen()))
    assert desk.book.only.state is State.EXECUTED


def test_why_13_absent_and_then_refused_lets_the_order_go_on() -> None:
    desk = Desk()
    desk.call(create(route=ONE_ATTEMPT), [read_timeout()])
    desk.book.put(replace(desk.book.only, state=State.ABSENT, absent_at_attempt=1, doubt_since_absent=False))
    assert knows(desk.call(create(route=ONE_ATTEMPT), [UNPROCESSABLE])) == (422, "not_executed")
    assert knows(desk.call(create("K2", amount=9_000), [payment()])) == (200, "executed")


def test_why_16_and_20_a_dead_leaders_key_is_sent_again_by_one_waiter_only() -> None:
    desk = Desk()
    led(desk.book, create(), "dead")
    reply = desk.call(create(), [payment()])
    assert knows(reply) == (200, "executed")
    assert desk.sent == ["K"]


def test_why_17_a_zombies_answer_is_not_thrown_away() -> None:
    """Its lease ended during its attempt, another call took over, and then its 201 came."""
    desk = Desk()

    def while_away() -> WireResult:
        desk.book.pass_ms(LEASE_MS)
        led(desk.book, create(), "b")
        return payment(http=201)

    assert knows(desk.call(create(), [while_away])) == (201, "executed")
    assert desk.book.only.state is State.EXECUTED


def test_why_19_a_follower_gets_its_own_runs_refusal_and_not_another_submissions_answer() -> None:
    desk = Desk()
    follower = desk.book

    def first_is_refused_and_another_amount_comes() -> None:
        follower.operations.clear()
        follower.subjects.clear()
        Desk(follower).call(create(route=ONE_ATTEMPT), [UNPROCESSABLE])
        led(follower, create(amount=12_000), "c")

    led(desk.book, create(), "a")
    reply = desk.call(create(), meanwhile=first_is_refused_and_another_amount_comes)
    assert knows(reply) == (422, "not_executed")
    assert desk.sent == []


def test_why_21_a_claim_that_was_never_sent_is_taken_back() -> None:
    book = Book()
    led(book, create(), "a")
    book.run(WithdrawClaim(create(), Owner("a")))
    assert isinstance(reserve(book, create("K2"), "b"), Reserved)


def test_why_22_two_hosts_cannot_count_a_subjects_submissions_differently() -> None:
    book = Book()
    first = led(book, confirm(key=None, route=ONE_CONFIRM), "host-1")
    running = reserve(book, confirm(key=None, route=ONE_CONFIRM), "host-2")
    assert getattr(running, "operation", None) == first


def test_why_23_another_key_is_held_off_for_life_where_the_platform_is_not_unique() -> None:
    desk = Desk()
    loose = replace(CREATE, guard=GuardRule(on=True, platform_is_unique=False))
    desk.call(create("K1", route=loose), [payment()])
    assert isinstance(reserve(desk.book, create("K2", route=loose), "b"), Blocked)
    desk.call(refund("K3", number="R-1"), [read_timeout()] * 5)
    assert isinstance(reserve(desk.book, refund("K4", number="R-2"), "b"), Blocked)
