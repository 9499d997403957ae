"""Everything that is wrong with a file is told in one run, with its place and what is allowed (C2, F1)."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from proxy import stores
from proxy.config import ConfigError, settings_of
from proxy.config.compile import SCHEMES
from proxy.config.model import Config
from tests.config.files import SECRET, SMALLEST, authorized, problems

DURATION = "expected a duration from 1ms to 365d, such as 250ms, 20s, 5m, 4h or 7d"
NO_PRESET = "expected a preset's name or a path to a preset file"
NO_ROUTE = "expected the name of a route of preset payhub"


def test_five_mistakes_are_five_lines_with_path_and_suggestion() -> None:
    found = problems("""
upstream: {url: https://api.payhub.example, max_conections: 5}
platform: payhub
wait_timeout: twenty
store: {lease: 10}
routes:
  create_paymnt: {key: {mode: inject}}
  create_refund: {retry: {attempts: 0}}
""")
    assert sorted(found) == [
        f'c.yaml: routes.create_paymnt: {NO_ROUTE}, found "create_paymnt"; did you mean "create_payment"?',
        "c.yaml: routes.create_refund.retry.attempts: expected an integer from 1 to 10, found 0",
        f"c.yaml: store.lease: {DURATION}, found 10",
        'c.yaml: upstream.max_conections: unknown key "max_conections"; did you mean "max_connections"?',
        f"c.yaml: wait_timeout: {DURATION}, found 'twenty'",
    ]


@pytest.mark.parametrize(
    ("text", "path", "words"),
    [
        ("mode: gaurd", "mode", 'did you mean "guard"?'),
        ("listen: 8080", "listen", "an address such as"),
        ("listen: []", "listen", "at least one address"),
        ("listen: [127.0.0.1:1, nowhere]", "listen[1]", "an address such as"),
        ("listen: 127.0.0.1:70000", "listen", "an address such as"),
        ("listen: '[zz]:80'", "listen", "an address such as"),
        ("listen: 'unix:relative.sock'", "listen", "an absolute path"),
        (
            "listen: {address: 127.0.0.1:1, tls: {cert_file: c}}",
            "listen.tls.key_file",
            "expected to be given",
        ),
        ("admin: 127.0.0.1:8080", "listen", "is taken by admin"),
        ("admin: 0.0.0.0:8081", "admin_token", "A4"),
        ("admin_url: ftp://x", "admin_url", "a URL"),
        ("events: {listen: 127.0.0.1:8081}", "events.listen", "of its own"),
        ("workers: 0", "workers", "an integer from 1 to 64, found 0"),
        ("workers: true", "workers", "found true"),
        ("workers: 1.5", "workers", "found 1.5"),
        ("merchant: ''", "merchant", "a name of 1 to 64"),
        ("merchant: {heder: X}", "merchant.heder", 'did you mean "header"?'),
        ("merchant: {header: 'bad name'}", "merchant.header", "a header's name"),
        ("merchant: {}", "merchant", "a name, or {header: NAME}"),
        ("merchant: [a]", "merchant", "found a list"),
        ("store: {url: 'postgres:x'}", "store.url", "expected a store's URL"),
        ("store: {url: 'redis+sentinal://x'}", "store.url", 'did you mean "redis+sentinel"?'),
        ("store: {url: 'sqlite:'}", "store.url", "the path of a file"),
        ("store: {url: 'sqlite::memory:'}", "store.url", "the path of a file"),
        ("store: {url: 'sqlite:a?b'}", "store.url", "without options"),
        ("store: {url: 'sqlite://host/a'}", "store.url", "a host name"),
        ("store: {journal: j}", "store.journal", "D6"),
        ("store: {on_failure: forwards}", "store.on_failure", 'did you mean "forward"?'),
        ("store: 5", "store", "a mapping of settings, found 5"),
        ("retry: {attempts: 11}", "retry.attempts", "from 1 to 10"),
        ("retry: {jitter: ful}", "retry.jitter", "expected additive or full or none"),
        ("retry: {multiplier: 0.5}", "retry.multiplier", "a number from 1 to 10"),
        ("retry: {budget: {ratio: 20}}", "retry.budget.ratio", "a number from 0 to 1"),
        ("breaker: {windows: 1s}", "breaker.windows", 'did you mean "window"?'),
        ("wait_timeout: 19s", "wait_timeout", "twice store.lease"),
        ("store: {lease: 499ms}", "store.lease", "at least 500ms"),
        ("lookups: {schedule: [10s, x]}", "lookups.schedule[1]", "a duration"),
        ("lookups: {schedule: [30s, 10s]}", "lookups.schedule", "that grow"),
        ("lookups: {schedule: 10s}", "lookups.schedule", "a list"),
        ("lookups: {rate: 0/s}", "lookups.rate", "a rate such as"),
        ("lookups: {enabled: 'yes'}", "lookups.enabled", "true or false, found 'yes'"),
        ("limits: {body: 1MB}", "limits.body", "a size from 1KiB to 64MiB"),
        ("routes: {confirm_payment: {on_failure: forward}}", "routes.confirm_payment.on_failure", "D3"),
        ("routes: {create_payment: {path: /x}}", "routes.create_payment", "no path or method"),
        ("routes: {create_payment: 1}", "routes.create_payment", "a mapping of settings, found 1"),
        ("routes: [create_payment]", "routes", "a mapping, found a list"),
        (
            "routes: {create_checkout_session: {key: {mode: inject, template: 'a:{body.b}'}}}",
            "routes.create_checkout_session.key.mode",
            "K2",
        ),
        (
            "routes: {create_payment: {key: {template: 'pay:{body.}'}}}",
            "routes.create_payment.key.template",
            "expected variables of {body.FIELD}, {seq}, found {body.}",
        ),
        (
            "routes: {confirm_payment: {key: {template: '{path.id}:{seq}'}}}",
            "routes.confirm_payment.key.template",
            "{path.payment_id}",
        ),
        (
            "routes: {create_payment: {key: {template: 'always-the-same'}}}",
            "routes.create_payment.key.template",
            "one submission",
        ),
        (
            "routes: {create_payment: {key: {template: '{body.a}:{seq}:{seq}'}}}",
            "routes.create_payment.key.template",
            "at most once",
        ),
        (
            "routes: {create_payment: {key: {template: '{body.a'}}}",
            "routes.create_payment.key.template",
            "every { to have its }",
        ),
        (
            "routes: {create_payment: {subject: 'order:{seq}'}}",
            "routes.create_payment.subject",
            "found {seq}",
        ),
        ("routes: {create_payment: {fingerprint: amount}}", "routes.create_payment.fingerprint", "a list"),
        (
            "routes: {create_payment: {fingerprint: [amount, card.number]}}",
            "routes.create_payment.fingerprint",
            "no card data, found card.number",
        ),
        (
            "routes: {create_payment: {key: {template: 'pay:{body.payer.PAN}'}}}",
            "routes.create_payment.key.template",
            "no card data",
        ),
        (
            "routes: {create_payment: {subject: 'order:{body.cvc}'}}",
            "routes.create_payment.subject",
            "no card data",
        ),
        ("merchant: {header: Authorization}", "merchant.header", "a credential"),
        ("environment: {header: cookie}", "environment.header", "a credential"),
        ("merchant: {header: Host}", "merchant.header", "which no call carries"),
        ("merchant: {header: Safepost-Merchant}", "merchant.header", "which no call carries"),
        ("merchant: {header: idempotency-key}", "merchant.header", "another for each submission"),
        ("listen: 0.0.0.0:8081", "listen", "is taken by admin"),
        ("listen: [127.0.0.1:8080, localhost:8080]", "listen", "is taken by listen"),
        ("events: {listen: '0.0.0.0:8081', secret: s}", "events.listen", "of its own"),
    ],
)
def test_mistake_names_its_place_and_what_is_allowed(text: str, path: str, words: str) -> None:
    found = problems(SMALLEST + text)
    assert len(found) == 1, found
    assert found[0].startswith(f"c.yaml: {path}: ")
    assert words in found[0]


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("api.payhub.example", "an http:// or https:// URL"),
        ("ftp://api.payhub.example", "an http:// or https:// URL"),
        ("https://", "an http:// or https:// URL"),
        ("https://h?x=1", "an http:// or https:// URL"),
        ("https://h:99999", "an http:// or https:// URL"),
        ("https://h/../x", "an http:// or https:// URL"),
        ("https://[::1", "an http:// or https:// URL"),
        ("https://user:hunter2@h", "without a user name or password"),
    ],
)
def test_upstream_url_in_another_form_is_refused(url: str, words: str) -> None:
    found = problems(f"platform: payhub\nupstream: {{url: '{url}'}}")
    assert len(found) == 1
    assert words in found[0]
    assert "hunter2" not in found[0]


@pytest.mark.parametrize(
    ("url", "ours"),
    [
        ("http://127.0.0.1:8080", "listen: 127.0.0.1:8080"),
        ("http://localhost:8080/v1", "listen: 0.0.0.0:8080"),
        ("http://[::1]:8080", "listen: localhost:8080"),
        ("http://10.0.0.1:8080", "listen: 10.0.0.1:8080"),
        ("http://127.0.0.1:8081", "admin: 127.0.0.1:8081"),
        ("http://127.0.0.1:8082", "events: {listen: 127.0.0.1:8082}"),
        ("https://localhost", "listen: 127.0.0.1:443"),
        ("http://api.localhost:8080", "listen: 127.0.0.1:8080"),
    ],
)
def test_upstream_that_is_safepost_itself_is_refused(url: str, ours: str) -> None:
    """Each call would wait for itself, and end as money that may have moved."""
    found = problems(f"platform: payhub\nupstream: {{url: '{url}'}}\n{ours}\n")
    assert len(found) == 1, found
    assert found[0].startswith("c.yaml: upstream.url: expected the platform's address, found our own ")


@pytest.mark.parametrize(
    ("url", "ours"),
    [
        ("http://127.0.0.2:8080", "listen: 127.0.0.1:8080"),
        ("http://[::1]:8080", "listen: 127.0.0.1:8080"),
        ("http://127.0.0.1:8080", "listen: '[::]:8080'"),
        ("http://127.0.0.2:8080", "listen: localhost:8080"),
        ("http://10.0.0.1:8080", "listen: 0.0.0.0:8080"),
    ],
)
def test_upstream_beside_safepost_on_its_port_is_not_refused(url: str, ours: str) -> None:
    """Another address is another server."""
    settings = settings_of(f"platform: payhub\nupstream: {{url: '{url}'}}\n{ours}\n", file="c.yaml")
    assert str(settings.upstream.url) == url


@pytest.mark.parametrize(
    "listen",
    ["[0.0.0.0:8080, '[::]:8080']", "[127.0.0.1:8080, '[::1]:8080']", "'[::1]:8081'", "10.0.0.1:8081"],
)
def test_addresses_that_do_not_meet_are_taken(listen: str) -> None:
    assert settings_of(f"{SMALLEST}listen: {listen}\n", file="c.yaml", environ={}).listen


def test_missing_required_keys_are_all_told_and_the_rest_is_checked() -> None:
    found = problems("wait_timeout: 1s\n")
    assert [line.split(":")[1].strip() for line in found] == ["platform", "upstream", "wait_timeout"]
    assert "expected to be given, found nothing (A preset's name" in found[0]


def test_missing_upstream_url_is_told() -> None:
    (found,) = problems("platform: payhub\nupstream: {}")
    assert found.startswith(
        "c.yaml: upstream.url: expected to be given, found nothing (The platform's base URL"
    )


def test_unknown_preset_is_told_with_the_close_one_and_the_rest() -> None:
    found = problems("platform: payhbu\nupstream: {url: https://h}\nworkers: 0")
    assert found == [
        "c.yaml: workers: expected an integer from 1 to 64, found 0",
        f'c.yaml: platform: {NO_PRESET}, found "payhbu"; did you mean "payhub"?',
    ]


def test_unset_variable_is_named_once() -> None:
    text = SMALLEST.replace("}", ", authorization: '${NOPE}'}")
    assert problems(text) == [
        "c.yaml: upstream.authorization: expected the environment variable NOPE to be set, found it unset"
    ]


@pytest.mark.parametrize(
    "text",
    [
        "admin_token: ['${S}']",
        "admin_token: '${S} with blank'",
        "workers: ${S}",
        "listen: ${S}",
        "store: {url: 'redis://u:${S}@h:1/0', lease: 1}",
        "store: {url: 'nosuch://u:${S}@h:1/0'}",
        f"store: {{url: 'nosuch://u:{SECRET}@h:1/0'}}",
        f"store: {{secret: '{SECRET} x'}}",
        f"events: {{secret: [{SECRET}]}}",
        f"admin_tokn: {SECRET}",
        f"upstream: {{authorization: {{shop: {SECRET}}}}}",
        "mode: ${S}",
        "routes: {'${S}': {}}",
    ],
)
def test_secret_is_never_in_an_error(text: str) -> None:
    found = problems(f"platform: payhub\n{text}", {"S": SECRET})
    assert SECRET not in "\n".join(found)


@pytest.mark.parametrize(
    "value", ["{shop: k}", "{a/b/c: k}", "{/live: k}", "{}", "5", "['k']", "' k'", "{a/b: 5}"]
)
def test_credentials_in_another_form_are_refused(value: str) -> None:
    found = problems(authorized(value))
    assert len(found) == 1
    assert found[0].startswith("c.yaml: upstream.authorization: expected ")


def test_schemes_of_the_stores_are_those_that_are_accepted() -> None:
    assert set(SCHEMES) == set(stores.SCHEMES)


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from(["20s", "1MiB"]),
)
KEYS = st.one_of(
    st.sampled_from(
        [*Config.model_fields, "key", "mode", "tls", "create_payment", "header", "attempts", "on"]
    ),
    st.text(max_size=5),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(KEYS, VALUES, max_size=6), st.booleans())
def test_random_settings_are_accepted_or_explained(value: dict[str, object], is_based: bool) -> None:
    if is_based:
        value = {"platform": "payhub", "upstream": {"url": "https://h"}, **value}
    text = yaml.safe_dump(value, allow_unicode=True)
    try:
        settings_of(text, file="c.yaml", environ={})
    except ConfigError as error:
        assert all(problem.text for problem in error.problems)
        assert error.problems


@given(st.text(max_size=60))
def test_random_text_is_accepted_or_explained(text: str) -> None:
    with pytest.raises(ConfigError):
        settings_of(text, file="c.yaml", environ={})
