"""What is legal but unsafe is said, and only that (F4, C2)."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy import presets
from proxy.config import settings_of, warnings
from proxy.config.advice import file_system_of, worst_case_ms
from proxy.core.rules import RetryPolicy
from tests.config.files import authorized, route


def warned(text: str, *, upstream: str = authorized("k")) -> list[str]:
    return warnings(settings_of(upstream + text, file="c.yaml", environ={}))


def test_whole_and_safe_configuration_warns_of_nothing() -> None:
    assert warned("") == []


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("retry: {deadline: 30s}", "retry (create_payment, ", "the last attempts may never be made"),
        (
            "retry: {deadline: 7d}",
            "retry (create_payment, ",
            "the last hour in which the platform remembers a key",
        ),
        ("retry: {attempt_timeout: 5s}", "retry (create_payment, ", "asks for at least 20s"),
        ("retry: {jitter: none}", "retry (create_payment, ", "sent again together"),
        ("routes: {create_refund: {retry: {attempt_timeout: 5s}}}", "retry (create_refund)", "at least 20s"),
        ("answer_within: 10s", "answer_within: 10s", "shorter than one attempt"),
        ("store: {url: 'memory:'}", "store.url: memory", "for tests only"),
        ("store: {url: 'redis://h:6379/0'}", "store.journal: null", "D6"),
        (
            "routes: {create_refund: {on_failure: forward}}",
            "store.on_failure: forward on create_refund",
            "unrecorded",
        ),
        ("lookups: {min_interval: 1s}", "lookups.min_interval: 1s", "at least 10s"),
        ("lookups: {lag: 1s}", "lookups.lag: 1s", "believed too soon"),
        ("lookups: {misses: 1}", "lookups.misses: 1", "in a row prove too little"),
        (
            "routes: {create_payment: {fingerprint: []}}",
            "routes.create_payment.fingerprint: without amount",
            "that one's result",
        ),
        (
            "routes: {create_refund: {fingerprint: [currency]}}",
            "routes.create_refund.fingerprint: without amount",
            "P2",
        ),
        ("admin_token: $SAFEPOST_TOKEN", "admin_token: looks like $NAME", "written ${NAME}"),
        ("admin: 0.0.0.0:8081\nadmin_token: t", "admin_token: shorter than 16", "guesses it"),
        ("events: {secret: t}", "events.secret: shorter than 16", "guesses it"),
        ("merchant: {header: X-M}", "upstream.authorization: one credential", "nothing is looked up"),
        ("listen: 0.0.0.0:8080", "listen: 0.0.0.0:8080", "without TLS"),
        ("admin: 0.0.0.0:8081\nadmin_token: t", "admin: 0.0.0.0:8081", "settled by hand"),
        ("admin: 0.0.0.0:8081\nadmin_token: t", "admin_url: null", "Location"),
        ("events: {listen: 127.0.0.1:8082}", "events.secret: null", "hints"),
        (
            "listen: {address: 127.0.0.1:1, tls: {cert_file: /no/c.pem, key_file: /no/k.pem}}",
            "listen.tls.cert_file: /no/c.pem",
            "not there",
        ),
    ],
)
def test_unsafe_setting_is_said_with_its_place(text: str, place: str, words: str) -> None:
    assert [line for line in warned(text) if line.startswith(place) and words in line]


@pytest.mark.parametrize(
    ("upstream", "place", "words"),
    [
        ("{url: https://h}", "upstream.authorization: null", "nothing is looked up"),
        (
            "{url: https://h, authorization: {a/live: k}}",
            "upstream.authorization: none for default/live",
            "U8",
        ),
        ("{url: https://h, authorization: $PAYHUB_API_KEY}", "upstream.authorization: looks like $NAME", ""),
        ("{url: http://h, authorization: k}", "upstream.url: http://h", "plain http off loopback"),
        ("{url: https://h, authorization: k, tls: {verify: false}}", "upstream.tls.verify: false", "pose as"),
        (
            "{url: https://h, authorization: k, tls: {ca_file: /no/ca.pem}}",
            "upstream.tls.ca_file",
            "not there",
        ),
    ],
)
def test_unsafe_upstream_is_said_with_its_place(upstream: str, place: str, words: str) -> None:
    found = warned("", upstream=f"platform: payhub\nupstream: {upstream}\n")
    assert [line for line in found if line.startswith(place) and words in line]


def test_plain_http_on_loopback_is_not_warned_of() -> None:
    for host in ("127.0.0.1:9000", "localhost:9000", "[::1]:9000"):
        text = f"platform: payhub\nupstream: {{url: 'http://{host}', authorization: k}}\n"
        assert warned("", upstream=text) == []


def test_global_forward_is_said_to_mean_reject_on_some_routes() -> None:
    found = warned("store: {on_failure: forward}")
    assert [line for line in found if "forward means reject on confirm_payment, cancel_payment (D3)" in line]


def test_observing_proxy_is_not_told_of_lookups() -> None:
    assert warned("mode: observe", upstream="platform: payhub\nupstream: {url: https://h}\n") == []


def test_platform_without_routes_is_said_to_guard_nothing() -> None:
    text = "platform: generic\nupstream: {url: https://h, authorization: k}\n"
    assert [line for line in warned("", upstream=text) if line.startswith("routes: preset generic has none")]


def test_injected_key_without_subject_is_said_not_to_be_guarded() -> None:
    text = (
        "platform: generic\nupstream: {url: https://h}\n"
        "routes: {pay: {path: /pay, key: {mode: inject, template: 'p:{body.o}'}}}\n"
    )
    assert [line for line in warned("", upstream=text) if line.startswith("routes.pay.subject: null")]


def test_store_file_in_memory_or_on_a_network_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "/dev/a / ext4 rw 0 0\ntmpfs /run tmpfs rw 0 0\nhost:/x /mnt/my\\040share nfs4 rw 0 0\nbroken\n",
        encoding="utf-8",
    )
    monkeypatch.setattr("proxy.config.advice._MOUNTS", mounts)
    assert file_system_of(Path("/run/s.db")) == "tmpfs"
    assert file_system_of(Path("/runner/s.db")) == "ext4"
    assert [line for line in warned("store: {url: 'sqlite:/run/s.db'}") if "in memory" in line]
    assert [line for line in warned("store: {url: 'sqlite:///mnt/my share/s.db'}") if "a network" in line]
    assert warned("store: {url: 'sqlite:/var/s.db'}") == []
    monkeypatch.setattr("proxy.config.advice._MOUNTS", tmp_path / "nothing")
    assert file_system_of(Path("/run/s.db")) is None


def test_worst_case_of_payhub_fits_its_deadline() -> None:
    policy = route("create_payment").retry
    assert isinstance(policy, RetryPolicy)
    assert worst_case_ms(policy) == 5 * 20_000 + 15_000 + 4 * 250
    assert worst_case_ms(policy) <= policy.deadline_ms


def test_what_covers_the_amount_or_repeats_nothing_is_not_warned_of(tmp_path: Path) -> None:
    """F4: a field that holds the amount covers it, and a single attempt outlasts no key."""
    text = presets.text("payhub").replace("    amount: amount\n", "    amount: amount.value\n")
    (tmp_path / "own.yaml").write_text(text, encoding="utf-8")
    file = f"platform: {tmp_path}/own.yaml\nupstream: {{url: https://h, authorization: k}}\n"
    assert warned("retry: {attempts: 1, deadline: 7d}", upstream=file) == []


def test_number_that_is_not_compared_is_warned_of(tmp_path: Path) -> None:
    """U8: a platform that ignores the question would settle one payment by the answer for another."""
    text = presets.text("payhub").replace("    number: merchant_refund_no\n", "")
    (tmp_path / "own.yaml").write_text(text, encoding="utf-8")
    file = f"platform: {tmp_path}/own.yaml\nupstream: {{url: https://h, authorization: k}}\n"
    (line,) = warned("", upstream=file)
    assert line.startswith("platform: preset payhub names no objects.refund_id.number: ")
