"""Preset files: data that carries its sources, and nothing of a platform in the code (F4, F5)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy import presets
from proxy.config import ConfigError, Settings, settings_of, warnings
from proxy.config.load import preset_of
from proxy.config.text import Value, parse
from proxy.core import keys
from proxy.core.classify import Classifier
from proxy.core.http import Answered, Response
from proxy.core.model import Outcome
from proxy.core.rules import KeyMode, Replay

NUMBER = re.compile(r"[0-9]+(ms|s|m|h|d|B|KiB|MiB)?")
NOT_NUMBERS = {"version"}
SPEAK_OF_A_PLATFORM = ("sandbox", "drill", "cli")  # a platform, those who call it, and help's examples


def unsourced(value: Value, path: str = "") -> Iterator[str]:
    """The places of numbers and durations that say neither where they come from nor when that was read."""
    if isinstance(value, dict):
        if {"source", "read"} <= set(value):
            return
        for name, item in value.items():
            if name not in NOT_NUMBERS:
                yield from unsourced(item, f"{path}.{name}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from unsourced(item, f"{path}[{index}]")
    elif (isinstance(value, int | float) and not isinstance(value, bool)) or (
        isinstance(value, str) and NUMBER.fullmatch(value)
    ):
        yield path


@pytest.mark.parametrize("name", presets.names())
def test_every_number_of_a_preset_has_a_source_and_a_date(name: str) -> None:
    assert list(unsourced(parse(presets.text(name), file=name))) == []


@pytest.mark.parametrize("name", presets.names())
def test_preset_is_valid_and_named_like_its_file(name: str) -> None:
    assert preset_of(presets.text(name), file=name).name == name


def texts_of(file: Path) -> Iterator[str]:
    """The strings of a module, docstrings aside: those may give examples."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    examples = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in examples:
            yield node.value


def test_no_platform_s_words_are_in_the_code_of_the_proxy() -> None:
    package = Path(presets.__file__).parent.parent
    words = re.compile(r"merchant_order_no|merchant_refund_no|payment_in_progress|temporarily_unavailable")
    found = [
        file.name
        for file in package.rglob("*.py")
        if file.relative_to(package).parts[0] not in SPEAK_OF_A_PLATFORM
        and any(words.search(text) for text in texts_of(file))
    ]
    assert found == []


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        preset_of(text, file="p.yaml")
    return [str(problem) for problem in raised.value.problems]


@pytest.mark.parametrize(
    ("old", "new", "path", "words"),
    [
        ("attempts: {value: 5, source", "attempts: 5 #", "retry.attempts", "{value: an integer from 1 to 10"),
        ("value: 7d", "value: 7", "retention", "a duration from"),
        ("{value: 7d, source: ", "{value: 7d, sauce: ", "retention", "source: TEXT"),
        ("    object: payment\n", "    object: paymant\n", "routes.create_payment.object", '"payment"?'),
        ("    lookup: refund\n", "    lookup: refunds\n", "routes.create_refund.lookup", '"refund"?'),
        (
            "outcomes: [session, rest]",
            "outcomes: [session, rst]",
            "routes.create_checkout_session.outcomes",
            '"rest"?',
        ),
        ("outcome: refused}", "outcome: refusd}", "outcomes.rest.rows[1].outcome", '"refused"?'),
        ("{status: 4xx,", "{status: 9xx,", "outcomes.rest.rows[14].status", "HTTP statuses such as"),
        ("succeeded: final\n", "succeeded: done\n", "objects.payment.statuses.succeeded", "open (not final)"),
        ("shape: envelope", "shape: envelop", "error.shape", '"envelope"?'),
        ("code: error.code", "code: error..code", "error.code", "a dotted path"),
        (
            'kinds: {"payment.": payment',
            'kinds: {"payment.": pay',
            "events.kinds.payment.",
            "an object defined",
        ),
        ("next_steps: [same_key_repeat", "next_steps: [same_key", "next_steps[0]", '"same_key_repeat"?'),
        ("    path: /v1/refunds\n", "", "routes.create_refund.path", "a path template"),
        (
            "read: 2026-11-29\n    rows:\n      - {status: 204",
            "read: soon\n    rows:\n      - {status: 204",
            "outcomes.bodyless_cancel.read",
            "a date",
        ),
        ("signed: false", "sigend: false", "sigend", 'did you mean "signed"?'),
    ],
)
def test_mistake_in_a_preset_names_its_place(old: str, new: str, path: str, words: str) -> None:
    text = presets.text("payhub")
    assert old in text
    found = problems(text.replace(old, new, 1))
    assert len(found) == 1, found
    assert found[0].startswith(f"p.yaml: {path}: ")
    assert words in found[0]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "by_id: /v1/payments/{id}",
            "by_id: /v1/payments",
            "lookups.payment.by_id: expected a path with {id}",
        ),
        ("order_no={number}", "order_no={order}", "lookups.payment.by_number: expected a path with {number}"),
        (
            "order_no={number}",
            "order_no={number}{id}",
            "lookups.payment.by_number: expected a path with {number}",
        ),
        (
            "    by_id: /v1/refunds/{id}\n    by_number: /v1/refunds?merchant_refund_no={number}\n",
            "",
            "lookups.refund: expected by_id or by_number, found neither",
        ),
        ('["/v1/refunds?', '["v1/refunds?', "sweeps[0]: expected a path such as"),
        (
            "header: Idempotency-Key",
            "header: Authorization",
            "key.header: expected a header that holds nothing but",
        ),
        (
            "header: Idempotency-Key",
            "header: Content-Length",
            "key.header: expected a header that holds nothing but",
        ),
        (
            "signed: false",
            "should_retry_header: Should Retry",
            "should_retry_header: expected a header's name",
        ),
        (
            "means: failed",
            "means: faild",
            'outcomes.rest.rows[3].means: expected a final status of payment, found "faild"',
        ),
        (
            "means: failed",
            "means: processing",
            "outcomes.rest.rows[3].means: expected a final status of payment",
        ),
        ("{status: 425,", "{status: 625,", "outcomes.rest.rows[9].status: expected HTTP statuses"),
        (
            "      - {status: 425,",
            "      - {status: 429, code: slow_down, outcome: in_doubt}\n      - {status: 425,",
            "outcomes.rest.rows[9]: expected answers that no earlier row takes, found rows[7]",
        ),
        (
            "    status: status\n    number: merchant_order_no\n",
            "",
            "objects.payment.status: expected a dotted path",
        ),
        (
            "    id: id\n    any_is_executed: true\n",
            "    id: id\n    status: status\n",
            "objects.checkout_session.statuses: expected one that is final or failure",
        ),
        (
            "    id: id\n    any_is_executed: true\n",
            "    id: id\n",
            "objects.checkout_session.status: expected a dotted path to its status, or any_is_executed: true",
        ),
        (
            "{status: 2xx, outcome: in_doubt}",
            "{status: 2xx, outcome: in_doubt, passes: true}",
            "outcomes.rest.rows[18].passes: expected it on 408, 409 and 5xx alone, found it on 200",
        ),
        (
            "path: /v1/checkout/sessions",
            "path: /v1/checkout/{Kind}",
            "routes.create_checkout_session.path: expected segments that are plain or a whole {name}",
        ),
        (
            'subject: "order:{body.merchant_order_no}"',
            'subject: "订单:{body.merchant_order_no}"',
            "routes.create_payment.subject: expected visible ASCII characters around the variables, found '订'",
        ),
        (
            'key_template: "payment.create:',
            'key_template: "payment create:',
            "routes.create_payment.key_template: expected visible ASCII characters around the variables",
        ),
        (
            'twin: "refund-of:{body.payment_id}',
            'twin: "refund-of:{payment_id}',
            "routes.create_refund.twin: expected variables of {body.FIELD}, found {payment_id}",
        ),
        (
            'twin: "refund-of:{body.payment_id}',
            'twin: "refund-of:{body.card.number}',
            "routes.create_refund.twin: expected no card data, found body.card.number",
        ),
        (
            'subject: "order:{body.merchant_order_no}"',
            'subject: "order:{body.shop}:{body.merchant_order_no}"',
            "routes.create_payment.subject: expected one variable behind the first colon",
        ),
        (
            'subject: "order:{body.merchant_order_no}"',
            'subject: "{body.merchant_order_no}"',
            "routes.create_payment.subject: expected one variable behind the first colon",
        ),
    ],
)
def test_preset_that_makes_no_sense_as_a_whole_is_refused(old: str, new: str, expected: str) -> None:
    """C2, F4. A lookup without its variable would settle each payment by the same answer (U8)."""
    text = presets.text("payhub")
    assert old in text
    found = problems(text.replace(old, new, 1))
    assert len(found) == 1, found
    assert found[0].startswith(f"p.yaml: {expected}")


def test_absence_told_by_an_error_without_a_code_is_refused() -> None:
    """U8: any JSON of something in between would count as the platform's word."""
    found = problems(presets.text("payhub").replace("  code: error.code\n", "  code: ''\n", 1))
    assert [line.partition(": expected none")[0] for line in found] == [
        "p.yaml: lookups.payment.absent_statuses",
        "p.yaml: lookups.refund.absent_statuses",
    ]


def test_mistake_in_a_template_is_told_where_it_is_written(tmp_path: Path) -> None:
    """C2. One that core could not read would fail each call of its route."""
    text = presets.text("payhub").replace('subject: "payment:{path.payment_id}"', 'subject: "{path.id}"', 1)
    (tmp_path / "own.yaml").write_text(text, encoding="utf-8")
    file = f"platform: {tmp_path}/own.yaml\nupstream: {{url: https://h}}\n"
    with pytest.raises(
        ConfigError, match=r"^\S+own\.yaml: routes\.confirm_payment\.subject: .*found \{path\.id\}$"
    ):
        settings_of(file, file="c.yaml", environ={})
    override = "subject: 'shop {body.shop}:{body.merchant_order_no}', key: {template: '№{body.x}'}"
    file = f"platform: payhub\nupstream: {{url: https://h}}\nroutes: {{create_payment: {{{override}}}}}\n"
    with pytest.raises(ConfigError) as raised:
        settings_of(file, file="c.yaml", environ={})
    found = [str(problem).partition(", ")[0] for problem in raised.value.problems]
    assert found == [
        "c.yaml: routes.create_payment.subject: expected visible ASCII characters around the variables",
        "c.yaml: routes.create_payment.subject: expected one variable behind the first colon",
        "c.yaml: routes.create_payment.key.template: expected visible ASCII characters around the variables",
    ]


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("value: 7d, ", "value: 7, ", "found 7 as value"),
        ('source: "platform contract v1.0.0, Retention"', "source: '-'", "found '-' as source"),
        ('Retention", read: 2026-11-29', 'Retention", read: soon', "found 'soon' as read"),
        ('Retention", read: 2026-11-29', 'Retention"', "found nothing as read"),
        ('Retention", read: 2026-11-29', 'Retention", read: 2026-11-29, reed: 1', "found 1 as reed"),
    ],
)
def test_number_of_a_preset_tells_which_of_its_members_is_wrong(old: str, new: str, found: str) -> None:
    """C2: each mistake with its place, what is allowed and what was found."""
    text = presets.text("payhub")
    assert old in text
    (problem,) = problems(text.replace(old, new, 1))
    assert problem.startswith("p.yaml: retention: expected {value: a duration from 1ms to 365d")
    assert problem.endswith(found)


GENERIC = """
upstream: {url: https://api.example}
platform: generic
routes:
  pay: {path: /pay, subject: "order:{body.order}", key: {mode: inject, template: "pay:{body.order}:1"}}
  capture: {path: "/pay/{id}/capture", method: PUT, fingerprint: [amount]}
"""


def generic(text: str = GENERIC) -> Settings:
    return settings_of(text, file="c.yaml", environ={})


def test_generic_takes_its_routes_from_the_configuration() -> None:
    pay, capture = generic().platform.routes
    assert (pay.method, pay.template, pay.fields, pay.replay) == ("POST", "/pay", ("*",), Replay.STORED)
    assert (pay.key.mode, pay.key.unquote, pay.guard.on) == (KeyMode.INJECT, True, True)
    assert "card" in pay.left_out
    assert (capture.method, capture.fields, capture.guard.on) == ("PUT", ("amount",), False)
    assert not pay.guard.platform_is_unique
    assert pay.key_expires


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("routes: {pay: {}}", "routes.pay.path: expected the path template"),
        ("routes: {pay: {path: pay}}", "routes.pay.path: expected a path template"),
        ("routes: {pay: {path: '/pay/x{id}'}}", "plain or a whole {name}, found x{id}"),
        ("routes: {pay: {path: '/pay/../x'}}", "dot segments"),
        ("routes: {pay: {path: '/pay/%61'}}", "routes.pay.path: expected plain characters"),
        (
            "routes: {pay: {path: '/pay/{id}/x/{id}'}}",
            "routes.pay.path: expected variables of different names",
        ),
        ("routes: {pay: {path: /pay, method: GET}}", "expected POST, PUT, PATCH or DELETE, found 'GET'"),
        ("routes: {pay: {path: /pay, key: {mode: inject}}}", "or a key.template to make the key from"),
        ("routes: {a: {path: '/p/{x}'}, b: {path: '/p/{y}'}}", "routes.b: expected calls of its own"),
        ("routes: {pay: {path: /pay, guard: {on: true}}}", "routes.pay.guard.on: expected a subject"),
        (
            "routes: {pay: {path: /pay, key: {mode: inject, template: '{body.o}:{seq}'}}}",
            "routes.pay.subject: expected a subject: {seq} counts its submissions",
        ),
    ],
)
def test_mistake_in_a_route_of_ones_own_is_told(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        generic(f"upstream: {{url: https://api.example}}\nplatform: generic\n{text}")
    assert len(raised.value.problems) == 1
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("status", "body", "outcome", "retried"),
    [
        (201, b'{"anything": 1}', Outcome.EXECUTED, False),
        (200, b"", Outcome.EXECUTED, False),
        (200, b"<html>", Outcome.IN_DOUBT, True),
        (202, b"{}", Outcome.PENDING, False),
        (409, b'{"title": "in progress"}', Outcome.IN_DOUBT, True),
        (422, b"{}", Outcome.RELEASED, False),
        (400, b"{}", Outcome.RELEASED, False),
        (404, b"{}", Outcome.REFUSED, False),
        (429, b"", Outcome.NOT_EXECUTED, True),
        (503, b"{}", Outcome.IN_DOUBT, True),
        (501, b"", Outcome.IN_DOUBT, False),
        (303, b"", Outcome.IN_DOUBT, False),
    ],
)
def test_generic_classes_answers_by_the_draft(
    status: int, body: bytes, outcome: Outcome, retried: bool
) -> None:
    settings = generic()
    classifier = Classifier(settings.platform.routes[0], settings.platform)
    answered = Answered(Response(status, (), body))
    verdict = classifier.classify(answered, after_doubt=False, received_wall_ms=0)
    assert (verdict.outcome, verdict.retry) == (outcome, retried)


def test_generic_takes_a_quoted_key_and_payhub_does_not() -> None:
    header = ((b"Idempotency-Key", b'"k-1"'),)
    assert keys.given_key(header, generic().platform.routes[0].key) == "k-1"
    payhub = settings_of("platform: payhub\nupstream: {url: https://h}", file="c.yaml", environ={})
    assert keys.given_key(header, payhub.platform.routes[0].key) == '"k-1"'


def signed(tmp_path: Path, route: str) -> str:
    text = presets.text("payhub").replace("signed: false", "signed: true")
    (tmp_path / "signed.yaml").write_text(text, encoding="utf-8")
    return f"platform: {tmp_path}/signed.yaml\nupstream: {{url: https://h}}\nroutes: {{create_payment: {route}}}\n"


def test_signed_platform_gets_nothing_injected(tmp_path: Path) -> None:
    """F5: the signature covers body, path or key."""
    with pytest.raises(ConfigError, match=r"routes\.create_payment\.key\.mode: expected require.*F5"):
        settings_of(signed(tmp_path, "{key: {mode: inject}}"), file="c.yaml", environ={})
    assert settings_of(signed(tmp_path, "{}"), file="c.yaml", environ={}).platform.signed


def test_signed_platform_without_a_window_is_warned_of(tmp_path: Path) -> None:
    """F5: an attempt that starts after the signature's window would be refused, or worse."""
    found = settings_of(signed(tmp_path, "{}"), file="c.yaml", environ={})
    assert [line for line in warnings(found) if "signature_window" in line]
    window = 'signature_window: {value: 5m, source: "their page on signatures", read: 2026-11-29}'
    text = presets.text("payhub").replace("signed: false", f"signed: true\n{window}")
    (tmp_path / "signed.yaml").write_text(text, encoding="utf-8")
    file = f"platform: {tmp_path}/signed.yaml\nupstream: {{url: https://h, authorization: k}}\n"
    assert warnings(settings_of(file, file="c.yaml", environ={})) == []
