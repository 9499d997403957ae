"""What the platform says when it declines to act, in its error shape."""

from __future__ import annotations

from proxy.sandbox.objects import Answer, Json, Payment


class RefusedError(Exception):
    """The platform declines to act on a request; `answer` says why."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        field: str | None = None,
        retryable: bool = False,
        related: str | None = None,
    ) -> None:
        super().__init__(message)
        self.answer = Answer(
            status, error_body(code, message, field=field, retryable=retryable, related=related)
        )


def error_body(
    code: str,
    message: str,
    *,
    field: str | None = None,
    retryable: bool = False,
    related: str | None = None,
) -> Json:
    """The platform's error shape."""
    error: Json = {"code": code, "message": message}
    if field is not None:
        error["field"] = field
    error["retryable"] = retryable
    if related is not None:
        error["related_resource_id"] = related
    return {"error": error}


def invalid(field: str, message: str) -> RefusedError:
    return RefusedError(422, "validation_error", f"{field}: {message}", field=field)


def unknown(object_id: str) -> RefusedError:
    return RefusedError(404, "resource_not_found", f"no such object: {object_id}")


def order_taken(payment: Payment) -> RefusedError:
    message = "this order number exists already; look the payment up, don't change the number"
    return RefusedError(409, "order_no_conflict", message, field="merchant_order_no", related=payment.id)


def in_progress(payment: Payment) -> RefusedError:
    message = f"the payment is {payment.status}; its attempt has not ended"
    return RefusedError(409, "payment_in_progress", message, retryable=True, related=payment.id)


def wrong_state(related: str, message: str, *, code: str = "invalid_state") -> RefusedError:
    return RefusedError(422, code, message, field="status", related=related)
