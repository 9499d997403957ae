"""The business behind the endpoints: what may happen to a payment or a refund, and what it costs.

Nothing here knows HTTP, keys or faults, and nothing waits: each verb is one step. An attempt that the bank
behind the platform answers later (`Outcome.accepts`) is finished by a timer, or by `settle_*`. Money is
entered in the ledger when it moves, never when it is asked for.

Two refusals are this sandbox's choice where the platform contract is silent: an existing refund number with
another key is 409 `refund_no_conflict`, and a state that forbids an action is 422 `invalid_state`.
"""

from __future__ import annotations

from collections.abc import Callable

from proxy.sandbox import fields, refusals
from proxy.sandbox.ledger import Ledger
from proxy.sandbox.objects import (
    CLOSED_PAYMENT_STATUSES,
    FINAL_PAYMENT_STATUSES,
    FINAL_REFUND_STATUSES,
    RESOLUTIONS,
    Answer,
    Attempt,
    Card,
    Clock,
    Json,
    Lag,
    Order,
    Outcome,
    Payment,
    Refund,
    Session,
    Tenant,
    Terms,
)
from proxy.sandbox.refusals import RefusedError

Later = Callable[[float, Callable[[], None]], None]
Announce = Callable[[str, Json], None]


class Bank:
    """All objects of all merchants. One event loop uses it, so each verb is atomic."""

    def __init__(
        self, clock: Clock, *, terms: Terms, ledger: Ledger, later: Later, announce: Announce
    ) -> None:
        self._clock = clock
        self._terms = terms
        self._ledger = ledger
        self._later = later
        self._announce = announce
        self.payments: dict[str, Payment] = {}
        self.refunds: dict[str, Refund] = {}
        self.sessions: dict[str, Session] = {}
        self._by_order: dict[tuple[Tenant, str], Payment] = {}
        self._by_number: dict[tuple[Tenant, str], Refund] = {}
        self._attempts = 0

    def create_payment(self, order: Order) -> Answer:
        number = fields.business_number(order.body, "merchant_order_no")
        amount, currency = fields.amount(order.body), fields.currency(order.body)
        card = fields.card(order.body)
        taken = self._by_order.get((order.tenant, number))
        if taken is not None:
            raise refusals.order_taken(taken)
        payment = self._open(order.tenant, number, amount=amount, currency=currency)
        return self._try(payment, order, card, decided=201)

    def confirm_payment(self, order: Order) -> Answer:
        payment = self._payment(order)
        card = fields.card(order.body)
        self._expire(payment)
        if payment.has_open_attempt:
            raise refusals.in_progress(payment)
        if payment.status in CLOSED_PAYMENT_STATUSES:
            raise refusals.wrong_state(payment.id, f"the payment is {payment.status}; it can't be confirmed")
        if len(payment.attempts) >= self._terms.attempts_max:
            raise refusals.wrong_state(
                payment.id, f"all {self._terms.attempts_max} attempts are used", code="attempts_exhausted"
            )
        return self._try(payment, order, card, decided=200)

    def cancel_payment(self, order: Order) -> Answer:
        """Without proof that the open attempt can no longer charge, nothing is cancelled: 202 (S12)."""
        payment = self._payment(order)
        if payment.status == "canceled":
            return Answer(200, payment.view())
        if payment.status in CLOSED_PAYMENT_STATUSES:
            raise refusals.wrong_state(payment.id, f"the payment is {payment.status}; it can't be canceled")
        if payment.status == "processing":
            raise refusals.in_progress(payment)
        outcome = order.outcome
        if payment.has_open_attempt or outcome.accepts:
            payment.cancel_key = order.key
            self._follow(
                payment,
                outcome,
                default="canceled",
                is_open=lambda: payment.status not in FINAL_PAYMENT_STATUSES,
            )
            return Answer(202, payment.view())
        before = payment.view()
        self._cancel(payment, order.key)
        self._hide(payment, outcome, before)
        return Answer(200, payment.view())

    def create_checkout_session(self, order: Order) -> Answer:
        """A new page for the order's payment: the same payment however many pages there are."""
        number = fields.business_number(order.body, "merchant_order_no")
        amount, currency = fields.amount(order.body), fields.currency(order.body)
        payment = self._by_order.get((order.tenant, number))
        if payment is None:
            payment = self._open(order.tenant, number, amount=amount, currency=currency)
            payment.next_action = {"type": "redirect", "url": f"https://pay.payhub.example/{payment.id}"}
            self._changed(payment)
        self._expire(payment)
        if (payment.amount, payment.currency) != (
            amount,
            currency,
        ) or payment.status in CLOSED_PAYMENT_STATUSES:
            raise refusals.order_taken(payment)
        session_id = f"cs_demo_{len(self.sessions) + 1:03d}"
        now = self._clock.wall_ms()
        url = f"https://pay.payhub.example/{session_id}"
        session = Session(session_id, payment, url, now, now + round(self._terms.session_valid_s * 1000))
        self.sessions[session_id] = session
        return Answer(201, session.view())

    def create_refund(self, order: Order) -> Answer:
        number = fields.business_number(order.body, "merchant_refund_no")
        amount = fields.amount(order.body)
        taken = self._by_number.get((order.tenant, number))
        if taken is not None:
            message = "this refund number exists already; look the refund up"
            raise RefusedError(
                409, "refund_no_conflict", message, field="merchant_refund_no", related=taken.id
            )
        payment = self._refunded_payment(order)
        if payment.status != "succeeded":
            raise refusals.invalid(
                "payment_id", f"the payment is {payment.status}; only a succeeded one can be refunded"
            )
        if amount > payment.amount - payment.refunded:
            raise refusals.invalid("amount", "more than what is left of the payment")
        refund = self._open_refund(order, payment, number=number, amount=amount)
        outcome = order.outcome
        if outcome.accepts:
            refund.status = outcome.first_status
            self._changed_refund(refund, event=f"refund.{refund.status}")
            self._follow(
                refund,
                outcome,
                default="succeeded",
                is_open=lambda: refund.status not in FINAL_REFUND_STATUSES,
            )
        else:
            self._finish_refund(refund, "failed" if outcome.declines else "succeeded")
        self._hide(refund, outcome, None)
        return Answer(202 if outcome.accepts else 201, refund.view())

    def settle_payment(self, payment_id: str, status: str) -> Payment:
        """Bring a payment to its final status, as the bank's late answer, the payer or time would."""
        payment = self.payments.get(payment_id)
        if payment is None:
            raise refusals.unknown(payment_id)
        if status not in FINAL_PAYMENT_STATUSES:
            raise refusals.invalid("status", f"expected one of {', '.join(sorted(FINAL_PAYMENT_STATUSES))}")
        if payment.status in CLOSED_PAYMENT_STATUSES or payment.status == status:
            raise refusals.wrong_state(payment.id, f"the payment is {payment.status} already")
        if status == "canceled":
            self._cancel(payment, payment.cancel_key or "")
        elif status == "expired":
            self._close_attempt(payment)
            self._changed(payment, status="expired", event="payment.expired")
        else:
            if not payment.has_open_attempt:
                self._begin_attempt(payment, key="", last4=None)
            self._finish_attempt(payment, is_paid=status == "succeeded")
        return payment

    def note_resolution(self, payment_id: str, resolution: str) -> Payment:
        """How far the platform is with finding out: a change of an open payment that is no event."""
        payment = self.payments.get(payment_id)
        if payment is None:
            raise refusals.unknown(payment_id)
        if resolution not in RESOLUTIONS:
            raise refusals.invalid("resolution_status", f"expected one of {', '.join(sorted(RESOLUTIONS))}")
        if not payment.has_open_attempt:
            raise refusals.wrong_state(payment.id, f"the payment is {payment.status}; nothing is open")
        payment.resolution = resolution
        self._changed(payment)
        return payment

    def settle_refund(self, refund_id: str, status: str) -> Refund:
        refund = self.refunds.get(refund_id)
        if refund is None:
            raise refusals.unknown(refund_id)
        if status not in FINAL_REFUND_STATUSES:
            raise refusals.invalid("status", f"expected one of {', '.join(sorted(FINAL_REFUND_STATUSES))}")
        if refund.status in FINAL_REFUND_STATUSES:
            raise refusals.wrong_state(refund.id, f"the refund is {refund.status} already")
        self._finish_refund(refund, status)
        return refund

    def latest(self, object_id: str) -> Json:
        """An object as it is now, whatever lookups show."""
        held = self.payments.get(object_id) or self.refunds.get(object_id) or self.sessions.get(object_id)
        if held is None:
            raise refusals.unknown(object_id)
        return held.view()

    def order_of(self, object_id: str) -> str | None:
        """The order number behind a payment or a refund."""
        held = self.payments.get(object_id) or self.refunds.get(object_id)
        return held.order if held is not None else None

    def shown(self, tenant: Tenant, held: Payment | Refund | None) -> Json | None:
        """What a lookup by `tenant` sees of an object: None for what isn't there, isn't theirs or lags."""
        if held is None or held.tenant != tenant:
            return None
        if isinstance(held, Payment):
            self._expire(held)
        if held.lag is not None and self._clock.monotonic_ms() < held.lag.until_ms:
            return held.lag.before
        return held.view()

    def payment_of_order(self, tenant: Tenant, number: str) -> Payment | None:
        return self._by_order.get((tenant, number))

    def refund_of_number(self, tenant: Tenant, number: str) -> Refund | None:
        return self._by_number.get((tenant, number))

    def _try(self, payment: Payment, order: Order, card: Card, *, decided: int) -> Answer:
        outcome = order.outcome
        before = payment.view() if payment.version else None
        attempt = self._begin_attempt(payment, key=order.key, last4=card.last4)
        if outcome.accepts or outcome.authenticates:
            payment.next_action = None
            if outcome.authenticates:
                payment.next_action = {
                    "type": "redirect",
                    "url": f"https://pay.payhub.example/3ds/{payment.id}",
                }
            self._changed(payment, status="requires_action" if outcome.authenticates else "processing")
            self._follow(payment, outcome, default="succeeded", is_open=lambda: not attempt.is_finished)
        else:
            self._finish_attempt(payment, is_paid=not (outcome.declines or card.declines))
        self._hide(payment, outcome, before)
        return Answer(202 if outcome.accepts else decided, payment.view())

    def _open(self, tenant: Tenant, number: str, *, amount: int, currency: str) -> Payment:
        now = self._clock.wall_ms()
        payment_id = f"pay_demo_{len(self.payments) + 1:03d}"
        expires_ms = now + round(self._terms.payment_valid_s * 1000)
        payment = Payment(payment_id, tenant, number, amount, currency, now, expires_ms)
        self.payments[payment_id] = payment
        self._by_order[tenant, number] = payment
        return payment

    def _begin_attempt(self, payment: Payment, *, key: str, last4: str | None) -> Attempt:
        self._attempts += 1
        attempt = Attempt(f"att_demo_{self._attempts:03d}", key, last4)
        payment.attempts.append(attempt)
        payment.failure = None
        return attempt

    def _finish_attempt(self, payment: Payment, *, is_paid: bool) -> None:
        attempt = payment.attempts[-1]
        attempt.is_finished = True
        payment.next_action = None
        payment.resolution = "known"
        if is_paid:
            self._enter("charge", payment, key=attempt.key, amount=payment.amount, last4=attempt.last4)
        else:
            payment.failure = {
                "code": "card_declined",
                "message": "The card was declined.",
                "attempt_id": attempt.id,
            }
        status = "succeeded" if is_paid else "failed"
        self._changed(payment, status=status, event=f"payment.{status}")

    def _close_attempt(self, payment: Payment) -> None:
        if payment.attempts:
            payment.attempts[-1].is_finished = True
        payment.next_action, payment.resolution = None, "known"

    def _cancel(self, payment: Payment, key: str) -> None:
        self._close_attempt(payment)
        self._enter("cancel", payment, key=key, amount=payment.amount)
        self._changed(payment, status="canceled", event="payment.canceled")

    def _open_refund(self, order: Order, payment: Payment, *, number: str, amount: int) -> Refund:
        refund_id = f"ref_demo_{len(self.refunds) + 1:03d}"
        refund = Refund(
            id=refund_id,
            tenant=order.tenant,
            number=number,
            payment_id=payment.id,
            order=payment.order,
            amount=amount,
            currency=payment.currency,
            key=order.key,
            created_ms=self._clock.wall_ms(),
        )
        payment.refunded += amount
        self.refunds[refund_id] = refund
        self._by_number[order.tenant, number] = refund
        return refund

    def _finish_refund(self, refund: Refund, status: str) -> None:
        payment = self.payments[refund.payment_id]
        refund.status = status
        refund.resolution = "known"
        if status == "succeeded":
            self._enter("refund", payment, key=refund.key, amount=refund.amount, refund=refund.id)
            self._changed(payment)
        else:
            payment.refunded -= refund.amount
            refund.failure = {"code": "refund_declined", "message": "The refund was declined."}
        self._changed_refund(refund, event=f"refund.{status}")

    def _follow(
        self, held: Payment | Refund, outcome: Outcome, *, default: str, is_open: Callable[[], bool]
    ) -> None:
        """The bank's late answer; one that comes after its attempt has ended otherwise changes nothing."""
        finals = FINAL_PAYMENT_STATUSES if isinstance(held, Payment) else FINAL_REFUND_STATUSES
        status = outcome.final_status if outcome.final_status in finals else default

        def decide() -> None:
            if not is_open():
                return
            if isinstance(held, Payment):
                self.settle_payment(held.id, status)
            else:
                self.settle_refund(held.id, status)

        if outcome.final_after_s is not None:
            self._later(outcome.final_after_s, decide)

    def _hide(self, held: Payment | Refund, outcome: Outcome, before: Json | None) -> None:
        if outcome.lag_s > 0:
            held.lag = Lag(self._clock.monotonic_ms() + round(outcome.lag_s * 1000), before)

    def _expire(self, payment: Payment) -> None:
        """Time closes a payment only if no attempt is open: one that was submitted is followed to its end."""
        is_closed = payment.status in CLOSED_PAYMENT_STATUSES or payment.has_open_attempt
        if not is_closed and self._clock.wall_ms() >= payment.expires_ms:
            self._changed(payment, status="expired", event="payment.expired")

    def _changed(self, payment: Payment, *, status: str | None = None, event: str | None = None) -> None:
        payment.status = status or payment.status
        payment.version += 1
        payment.updated_ms = self._clock.wall_ms()
        if event is not None:
            self._announce(event, payment.view())

    def _changed_refund(self, refund: Refund, *, event: str) -> None:
        refund.version += 1
        refund.updated_ms = self._clock.wall_ms()
        self._announce(event, refund.view())

    def _enter(
        self,
        kind: str,
        payment: Payment,
        *,
        key: str,
        amount: int,
        last4: str | None = None,
        refund: str | None = None,
    ) -> None:
        self._ledger.append(
            kind,
            order=payment.order,
            payment=payment.id,
            key=key,
            amount=amount,
            currency=payment.currency,
            at_ms=self._clock.wall_ms(),
            last4=last4,
            refund=refund,
        )

    def _payment(self, order: Order) -> Payment:
        payment = self.payments.get(order.payment_id)
        if payment is None or payment.tenant != order.tenant:
            raise refusals.unknown(order.payment_id)
        return payment

    def _refunded_payment(self, order: Order) -> Payment:
        payment_id = order.body.get("payment_id")
        payment = self.payments.get(payment_id) if isinstance(payment_id, str) else None
        if payment is None or payment.tenant != order.tenant:
            raise refusals.invalid("payment_id", "no such payment")
        currency = order.body.get("currency")
        if currency is not None and currency != payment.currency:
            raise refusals.invalid("currency", "not the payment's")
        return payment
