"""The payhub platform as values, by the contract's R3 list: what core's tests and others' play with."""

from __future__ import annotations

from proxy.core.model import Outcome, Scope, replace
from proxy.core.rules import (
    ErrorShape,
    EventRule,
    GuardRule,
    Jitter,
    KeyMode,
    KeyRule,
    LookupRule,
    ObjectRule,
    OnFailure,
    OutcomeRule,
    Platform,
    ReadPolicy,
    Replay,
    RetryPolicy,
    Route,
    Shape,
    StatusRule,
)

DAY_MS = 86_400_000
SCOPE = Scope("default", "live")
SECRETS = (("s1", b"0123456789abcdef0123456789abcdef"),)

ALL_2XX = frozenset(range(200, 300))
OTHER_4XX = frozenset(range(400, 500)) - {400, 401, 402, 403, 408, 409, 422, 425, 429}

RETRY = RetryPolicy(
    attempts=5,
    attempt_timeout_ms=20_000,
    base_ms=1_000,
    multiplier=2.0,
    cap_ms=30_000,
    jitter=Jitter.ADDITIVE,
    jitter_max_ms=250,
    deadline_ms=120_000,
)

FINAL = StatusRule(is_final=True)
FAILED = StatusRule(is_final=True, is_failure=True)
OPEN = StatusRule(is_final=False)

PAYMENT = ObjectRule(
    kind="payment",
    id=("id",),
    status=("status",),
    statuses={
        "succeeded": FINAL,
        "failed": FAILED,
        "canceled": FINAL,
        "expired": FINAL,
        "processing": OPEN,
        "requires_action": OPEN,
    },
    number=("merchant_order_no",),
    version=("version",),
    attempt_count=("attempt_count",),
    failure_attempt_id=("failure", "attempt_id"),
    resolution_status=("resolution_status",),
)
REFUND = ObjectRule(
    kind="refund",
    id=("id",),
    status=("status",),
    statuses={"succeeded": FINAL, "failed": FAILED, "pending_review": OPEN, "processing": OPEN},
    number=("merchant_refund_no",),
    version=("version",),
    resolution_status=("resolution_status",),
)
SESSION = ObjectRule(kind="session", id=("id",), status=("status",), statuses={}, any_is_executed=True)


def codes(*names: str) -> frozenset[str]:
    return frozenset(names)


def outcomes(number_taken: str) -> tuple[OutcomeRule, ...]:
    """R3 in its order. `number_taken` is the code that says that the business number exists."""
    return (
        OutcomeRule(outcome=Outcome.PENDING, statuses=frozenset({202})),
        OutcomeRule(outcome=Outcome.PENDING, statuses=ALL_2XX, shape=Shape.OBJECT, statuses_final=False),
        OutcomeRule(
            outcome=Outcome.PENDING,
            statuses=frozenset({409}),
            codes=codes("payment_in_progress"),
            after_doubt=True,
        ),
        OutcomeRule(outcome=Outcome.EXECUTED, statuses=ALL_2XX, shape=Shape.OBJECT, statuses_final=True),
        OutcomeRule(outcome=Outcome.EXECUTED, statuses=frozenset({409}), codes=codes(number_taken)),
        OutcomeRule(outcome=Outcome.EXECUTED, statuses=frozenset({402})),
        OutcomeRule(outcome=Outcome.RELEASED, statuses=frozenset({400, 401, 403, 422})),
        OutcomeRule(outcome=Outcome.REFUSED, statuses=OTHER_4XX),
        OutcomeRule(
            outcome=Outcome.REFUSED,
            statuses=frozenset({409}),
            codes=codes("payment_in_progress"),
            after_doubt=False,
        ),
        OutcomeRule(
            outcome=Outcome.RELEASED,
            statuses=frozenset({409}),
            codes=codes("idempotency_conflict"),
            after_doubt=False,
        ),
        OutcomeRule(
            outcome=Outcome.IN_DOUBT,
            statuses=frozenset({409}),
            codes=codes("idempotency_conflict"),
            after_doubt=True,
            retry=False,
        ),
        OutcomeRule(outcome=Outcome.NOT_EXECUTED, statuses=frozenset({425, 429})),
        OutcomeRule(
            outcome=Outcome.NOT_EXECUTED, statuses=frozenset({503}), codes=codes("temporarily_unavailable")
        ),
        OutcomeRule(
            outcome=Outcome.IN_DOUBT,
            statuses=frozenset({409}),
            codes=codes("operation_in_progress"),
            retry=True,
            passes=True,
        ),
    )


def key_rule(template: str | None, mode: KeyMode = KeyMode.REQUIRE) -> KeyRule:
    return KeyRule(header=b"Idempotency-Key", mode=mode, template=template)


PAYMENT_LOOKUP = LookupRule(
    by_id="/v1/payments/{id}",
    by_number="/v1/payments?merchant_order_no={number}",
    list_path=("data",),
    absent_statuses=frozenset({404}),
)
REFUND_LOOKUP = LookupRule(
    by_id="/v1/refunds/{id}",
    by_number="/v1/refunds?merchant_refund_no={number}",
    list_path=("data",),
    absent_statuses=frozenset({404}),
)

CREATE = Route(
    name="create_payment",
    method="POST",
    template="/v1/payments",
    key=key_rule("payment.create:{body.merchant_order_no}:1"),
    fields=("merchant_order_no", "amount", "currency"),
    subject="order:{body.merchant_order_no}",
    retry=RETRY,
    outcomes=outcomes("order_no_conflict"),
    object=PAYMENT,
    guard=GuardRule(on=True),
    replay=Replay.FORWARD,
    on_failure=OnFailure.REJECT,
    retention_ms=7 * DAY_MS,
    record_ms=8 * DAY_MS,
    lookup=PAYMENT_LOOKUP,
    amount=("amount",),
    currency=("currency",),
)
CONFIRM = replace(
    CREATE,
    name="confirm_payment",
    template="/v1/payments/{payment_id}/confirm",
    key=key_rule("payment.confirm:{path.payment_id}:{seq}"),
    fields=(),
    subject="payment:{path.payment_id}",
    record_ms=30 * DAY_MS,
    amount=(),
    currency=(),
    acts_on_existing=True,
    key_expires=True,
)
CANCEL = replace(
    CONFIRM,
    name="cancel_payment",
    template="/v1/payments/{payment_id}/cancel",
    key=key_rule("payment.cancel:{path.payment_id}:1"),
    guard=GuardRule(on=False),
    body_required=False,
)
CHECKOUT = replace(
    CREATE,
    name="create_checkout_session",
    template="/v1/checkout/sessions",
    key=key_rule(None),
    object=SESSION,
    outcomes=(
        OutcomeRule(outcome=Outcome.EXECUTED, statuses=ALL_2XX, shape=Shape.OBJECT),
        *outcomes("order_no_conflict"),
    ),
    guard=GuardRule(on=False),
    lookup=None,
    tracked=False,
)
REFUNDS = replace(
    CREATE,
    name="create_refund",
    template="/v1/refunds",
    key=key_rule("refund.create:{body.merchant_refund_no}:1"),
    fields=("merchant_refund_no", "payment_id", "amount", "currency"),
    subject="refund:{body.merchant_refund_no}",
    twin="twin:{body.payment_id}:{body.amount}",
    object=REFUND,
    outcomes=outcomes("refund_no_conflict"),
    lookup=REFUND_LOOKUP,
    polled_while_pending=False,
)

PAYHUB = Platform(
    name="payhub",
    version="1",
    routes=(CREATE, CONFIRM, CANCEL, CHECKOUT, REFUNDS),
    error_shape=ErrorShape.ENVELOPE,
    error_code=("error", "code"),
    error_related_id=("error", "related_resource_id"),
    reads=ReadPolicy(attempts=3, attempt_timeout_ms=10_000, statuses=frozenset({429, 502, 503, 504})),
    card_fields=frozenset({"card", "card_number", "cvc"}),
    events=EventRule(object=("data", "object"), kinds={"payment.": "payment", "refund.": "refund"}),
    sweeps=(
        "/v1/refunds?status=pending_review",
        "/v1/refunds?status=processing",
    ),
)


def injecting(route: Route, template: str | None = None) -> Route:
    """`route` with `key.mode: inject`."""
    rule = route.key
    return replace(route, key=replace(rule, mode=KeyMode.INJECT, template=template or rule.template))
