"""The platform contract's scenarios S1 to S13 as data: what is sent, what must come back, what it costs.

Each is played through Safepost against a sandbox (`play.play_all`). Names in braces are filled in by the
player: `{order}`, `{refund}` and `{create}` (the create's key) are the scenario's own; others are saved by a
step. What the proxy must be configured with: at least two attempts, an attempt limit of about a second, short
back-offs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

Fields = Mapping[str, object]

CARD_A: Final = {"number": "4242424242424242"}
CARD_B: Final = {"number": "5555555555554444"}
CARD_DECLINED: Final = {"number": "4000000000000002"}

PAYMENTS: Final = "/v1/payments"
CONFIRM: Final = "/v1/payments/{payment}/confirm"
CANCEL: Final = "/v1/payments/{payment}/cancel"
REFUNDS: Final = "/v1/refunds"

EXECUTED: Final = "executed"
PENDING: Final = "pending"
NOT_EXECUTED: Final = "not_executed"


@dataclass(frozen=True, slots=True)
class Expect:
    """What the caller must be given.

    Args: status: the one allowed. knowledge, attempts: H8's headers; None where they aren't compared (a
        lookup is no operation). body: dotted path to value.
    """

    status: int
    knowledge: str | None = None
    attempts: int | None = None
    body: Fields = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Send:
    """One call of the merchant's program.

    Args: key: None for a lookup. save: name to a dotted path in the answer, for later steps.
    """

    method: str
    path: str
    expect: Expect
    body: Fields | None = None
    key: str | None = None
    save: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SendTogether:
    """The same call from several hosts at one moment: one object, and `statuses` between them."""

    send: Send
    times: int
    statuses: frozenset[int]


@dataclass(frozen=True, slots=True)
class HangUp:
    """A call whose caller gives up as soon as the platform has the request."""

    send: Send


@dataclass(frozen=True, slots=True)
class Arm:
    """A fault from now on; `name` is for `Disarm`."""

    rule: Fields
    name: str = ""


@dataclass(frozen=True, slots=True)
class Disarm:
    name: str


@dataclass(frozen=True, slots=True)
class Settle:
    """The platform learns the payment's final status from its bank."""

    status: str


Step = Send | SendTogether | HangUp | Arm | Disarm | Settle


@dataclass(frozen=True, slots=True)
class Hit:
    """One POST that must have reached the platform, or with `is_repeated` one or more of them.

    Args: answer: a status or a fault's name, as in the request log. is_retry: of the call before it, so with
        the same bytes (R1).
    """

    path: str
    key: str
    answer: str
    is_repeated: bool = False
    is_retry: bool = False


@dataclass(frozen=True, slots=True)
class Scenario:
    """One row of the contract's table.

    Args: cards: last four digits of each charge, in order. gap_s: least time between the first two hits.
    """

    name: str
    title: str
    steps: tuple[Step, ...]
    hits: tuple[Hit, ...]
    cards: tuple[str, ...] = ("4242",)
    refunds: int = 0
    cancels: int = 0
    gap_s: float = 0.0


def create(expect: Expect, *, amount: int = 10_000, card: Fields = CARD_A, key: str = "{create}") -> Send:
    body = {"merchant_order_no": "{order}", "amount": amount, "currency": "USD", "card": card}
    return Send("POST", PAYMENTS, expect, body, key, {"payment": "id"} if expect.status < 300 else {})


def paid(status: int, *, attempts: int | None = None) -> Expect:
    return Expect(status, EXECUTED, attempts, {"status": "succeeded", "merchant_order_no": "{order}"})


def look(status: str) -> Send:
    return Send("GET", "/v1/payments/{payment}", Expect(200, body={"status": status}))


def created(answer: str | int, *, is_repeated: bool = False, is_retry: bool = False) -> Hit:
    return Hit(PAYMENTS, "{create}", str(answer), is_repeated, is_retry)


def on_create(**fault: object) -> Arm:
    return Arm({"match": {"route": "create_payment", "order": "{order}"}, **fault}, "create")


K2: Final = "payment.create:{order}:2"
CONFIRM_2: Final = "payment.confirm:{order}:2"
CANCEL_1: Final = "payment.cancel:{order}:1"
REFUND_1: Final = "refund.create:{refund}:1"

_CONFLICT = Expect(409, EXECUTED, 1, {"error.code": "idempotency_conflict"})
_TAKEN = Expect(
    409, EXECUTED, 1, {"error.code": "order_no_conflict", "error.related_resource_id": "{payment}"}
)
_IN_PROGRESS = Expect(
    409, NOT_EXECUTED, 1, {"error.code": "payment_in_progress", "error.related_resource_id": "{payment}"}
)
_PAUSED = Expect(503, NOT_EXECUTED, body={"error.code": "temporarily_unavailable"})
_REFUND = Send(
    "POST",
    REFUNDS,
    Expect(200, EXECUTED, 2, {"status": "succeeded", "merchant_refund_no": "{refund}"}),
    {"merchant_refund_no": "{refund}", "payment_id": "{payment}", "amount": 10_000, "currency": "USD"},
    REFUND_1,
    {"refund_id": "id"},
)


def _cancel(expect: Expect) -> Send:
    return Send("POST", CANCEL, expect, None, CANCEL_1)


SCENARIOS: Final = (
    Scenario(
        "S1",
        "time-out, no answer came",
        (on_create(fault="hang_after"), create(paid(200, attempts=2)), create(paid(200))),
        (created("hang_after"), created(200, is_retry=True), created(200)),
    ),
    Scenario(
        "S2",
        "a 5xx that had executed",
        (
            on_create(status=500, executed=True),
            on_create(fault="accept_202"),
            create(Expect(200, PENDING, 2, {"status": "processing"})),
            Settle("succeeded"),
            create(paid(200)),
        ),
        (created(500), created(200, is_retry=True), created(200)),
    ),
    Scenario(
        "S3",
        "same key, other amount",
        (create(paid(201, attempts=1)), create(_CONFLICT, amount=12_000)),
        (created(201),),
    ),
    Scenario(
        "S4",
        "other key, same order",
        (create(paid(201, attempts=1)), create(_TAKEN, key=K2)),
        (created(201), Hit(PAYMENTS, K2, "409")),
    ),
    Scenario(
        "S5",
        "same key from two hosts at once",
        (
            on_create(fault="delay", seconds=1.0),
            SendTogether(create(paid(201)), 2, frozenset({200, 201})),
        ),
        (created(201),),
    ),
    Scenario(
        "S6",
        "same key ten times in a row",
        (create(paid(201, attempts=1)), *(create(paid(200)) for _ in range(9))),
        (created(201), *(created(200) for _ in range(9))),
    ),
    Scenario(
        "S7",
        "another card in the retry",
        (
            on_create(fault="hang_after"),
            HangUp(create(paid(200))),
            create(paid(200), card=CARD_B),
            create(paid(200), card=CARD_B),
        ),
        (created("hang_after"), created(200, is_retry=True), created(200)),
    ),
    Scenario(
        "S8",
        "confirm with a new key while processing",
        (
            on_create(fault="accept_202"),
            create(Expect(202, PENDING, 1, {"status": "processing"})),
            Send("POST", CONFIRM, _IN_PROGRESS, {"card": CARD_B}, CONFIRM_2),
            Settle("succeeded"),
            look("succeeded"),
        ),
        (created(202), Hit(CONFIRM, CONFIRM_2, "409")),
    ),
    Scenario(
        "S9",
        "another card after a clear failure",
        (
            create(Expect(201, EXECUTED, 1, {"status": "failed"}), card=CARD_DECLINED),
            Send(
                "GET",
                "/v1/payments/{payment}",
                Expect(200, body={"status": "failed", "failure.code": "card_declined"}),
            ),
            Send(
                "POST",
                CONFIRM,
                Expect(200, EXECUTED, 1, {"status": "succeeded", "attempt_count": 2}),
                {"card": CARD_B},
                CONFIRM_2,
            ),
        ),
        (created(201), Hit(CONFIRM, CONFIRM_2, "200")),
        cards=("4444",),
    ),
    Scenario(
        "S10",
        "429 with Retry-After: 2",
        (
            on_create(status=429, headers={"Retry-After": "2"}),
            create(paid(201, attempts=2)),
        ),
        (created(429), created(201, is_retry=True)),
        gap_s=2.0,
    ),
    Scenario(
        "S11",
        "time-out of a refund",
        (
            create(paid(201, attempts=1)),
            Arm({"match": {"route": "create_refund", "refund": "{refund}"}, "fault": "hang_after"}),
            _REFUND,
            Send(
                "GET",
                "/v1/refunds?merchant_refund_no={refund}",
                Expect(200, body={"data.0.id": "{refund_id}"}),
            ),
        ),
        (created(201), Hit(REFUNDS, REFUND_1, "hang_after"), Hit(REFUNDS, REFUND_1, "200", is_retry=True)),
        refunds=1,
    ),
    Scenario(
        "S12",
        "a cancel answered 202",
        (
            on_create(fault="requires_action"),
            create(Expect(201, PENDING, 1, {"status": "requires_action"})),
            _cancel(Expect(202, PENDING, 1, {"status": "requires_action"})),
            look("requires_action"),
            Settle("canceled"),
            _cancel(Expect(200, EXECUTED, body={"status": "canceled"})),
            look("canceled"),
        ),
        (created(201), Hit(CANCEL, CANCEL_1, "202"), Hit(CANCEL, CANCEL_1, "200")),
        cards=(),
        cancels=1,
    ),
    Scenario(
        "S13",
        "the channel is paused",
        (
            on_create(status=503, times="always"),
            create(_PAUSED),
            Send("GET", "/v1/payments?merchant_order_no={order}", Expect(200, body={"data": []})),
            Disarm("create"),
            create(paid(201)),
        ),
        (created(503, is_repeated=True), created(201)),
    ),
)
