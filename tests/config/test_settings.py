"""The file becomes settings, with the defaults of contract section 3."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.config import ConfigError, load_settings, settings_of
from proxy.config.model import Config, Mode
from proxy.config.rules import Address, Rate, Secret
from proxy.core.model import Scope
from proxy.core.rules import Jitter, KeyMode, OnFailure
from tests.config.files import SECRET, authorized, route, settings


def test_smallest_file_has_the_defaults_of_the_contract() -> None:
    found = settings()
    assert found.mode is Mode.GUARD
    assert [str(listen.address) for listen in found.listen] == ["127.0.0.1:8080"]
    assert (str(found.admin), found.admin_url) == ("127.0.0.1:8081", "http://127.0.0.1:8081")
    assert (found.merchant.name, found.environment.name) == ("default", "live")
    assert (found.store.url, found.store.on_failure) == ("sqlite:safepost.db", OnFailure.REJECT)
    assert (found.store.timeout_ms, found.store.lease_ms) == (2_000, 10_000)
    assert (found.upstream.connect_timeout_ms, found.upstream.max_connections) == (2_000, 1000)
    assert (found.budget.enabled, found.budget.ratio, found.budget.floor) == (True, 0.2, 10)
    assert (found.breaker.failures, found.breaker.window_ms, found.breaker.open_for_ms) == (20, 10_000, 5_000)
    assert (found.answer_within_ms, found.wait_timeout_ms, found.drain_timeout_ms) == (None, 20_000, 25_000)
    assert found.lookups.schedule_ms == (10_000, 30_000, 120_000, 300_000, 900_000, 3_600_000)
    assert (found.lookups.then_every_ms, found.lookups.until_ms) == (14_400_000, 86_400_000)
    assert (found.lookups.min_interval_ms, found.lookups.lag_ms) == (10_000, 60_000)
    assert (found.lookups.misses, found.lookups.rate) == (3, Rate(5, 1_000))
    assert (found.limits.body_bytes, found.limits.headers_bytes) == (1 << 20, 64 << 10)
    assert (found.limits.stored_response_bytes, found.limits.connections) == (256 << 10, 10_000)
    assert (found.log_level, found.log_format) == ("info", "json")
    assert (found.events.header, found.events.tolerance_ms) == ("Webhook-Signature", 300_000)


def test_full_file_of_the_contract_is_accepted() -> None:
    full = """
mode: guard
listen: [127.0.0.1:8080, "[::1]:8080", unix:/run/safepost.sock]
admin: 127.0.0.1:8081
admin_token: null
admin_url: null
events: {listen: null, header: Webhook-Signature, secret: null, tolerance: 5m}
workers: 1
platform: payhub
merchant: {header: X-Merchant-Id}
environment: live
upstream:
  url: https://api.payhub.example
  authorization: ${PAYHUB_API_KEY}
  connect_timeout: 2s
  tls: {ca_file: null, cert_file: null, key_file: null, verify: true}
  max_connections: 1000
store: {url: "sqlite:safepost.db", on_failure: reject, timeout: 2s, lease: 10s, secret: null, journal: null}
retry:
  attempts: 5
  attempt_timeout: 20s
  base: 1s
  multiplier: 2
  cap: 30s
  jitter: additive
  jitter_max: 250ms
  deadline: 120s
  budget: {enabled: true, ratio: 0.2, floor: 10}
breaker: {enabled: true, failures: 20, window: 10s, open_for: 5s}
routes: {}
answer_within: null
wait_timeout: 20s
lookups: {enabled: true, schedule: [10s, 30s, 2m, 5m, 15m, 1h], then_every: 4h, until: 24h,
  min_interval: 10s, lag: 60s, misses: 3, rate: 5/s}
limits: {body: 1MiB, headers: 64KiB, stored_response: 256KiB, connections: 10000}
drain_timeout: 25s
log: {level: info, format: json}
"""
    found = settings_of(full, file="c.yaml", environ={"PAYHUB_API_KEY": "k"})
    assert [str(listen.address) for listen in found.listen][1:] == ["[::1]:8080", "unix:/run/safepost.sock"]
    assert found.merchant.header == "X-Merchant-Id"
    assert {route.retry for route in found.platform.routes} == {
        route.retry for route in settings().platform.routes
    }


def test_upstream_url_keeps_its_base_path_and_port() -> None:
    found = settings_of("platform: payhub\nupstream: {url: 'http://[::1]:9000/pay/'}", file="c", environ={})
    assert (found.upstream.url.host, found.upstream.url.port) == ("::1", 9000)
    assert str(found.upstream.url) == "http://[::1]:9000/pay"


def test_numbers_and_flags_from_the_environment_are_read_as_such() -> None:
    text = "workers: ${N}\nlookups: {enabled: '${ON}'}\nretry: {multiplier: '${M}'}\nadmin: 127.0.0.1:${PORT}"
    found = settings(text, {"N": "3", "ON": "false", "M": "1.5", "PORT": "9999"})
    assert (found.workers, found.lookups.enabled, str(found.admin)) == (3, False, "127.0.0.1:9999")
    assert found.platform.routes[0].retry.multiplier == 1.5


def test_secret_is_never_in_a_repr() -> None:
    url = f"redis://u:{SECRET}@h:6379/0"
    store = f"{{secret: {SECRET}, url: '{url}', journal: j}}"
    found = settings(f"admin_token: {SECRET}\nstore: {store}\nevents: {{secret: {SECRET}}}")
    assert SECRET not in repr(found)
    assert found.admin_token == Secret(SECRET)
    assert found.store.url == url
    value = {"platform": "p", "upstream": {"url": "http://h"}, "store": {"url": url, "secret": SECRET}}
    assert SECRET not in repr(Config.model_validate(value))


def test_bare_key_is_sent_as_bearer_and_a_whole_value_as_it_is() -> None:
    scope = Scope("default", "live")
    bare = settings_of(authorized("sk_live_1"), file="c", environ={})
    whole = settings_of(authorized("'Basic eDp5'"), file="c", environ={})
    assert bare.authorization_of_call(scope) == b"Bearer sk_live_1"
    assert whole.authorization_of_lookup(scope) == b"Basic eDp5"


def test_map_of_credentials_serves_each_scope_its_own() -> None:
    text = authorized("{a/live: ka, b/live: kb}") + "merchant: {header: X-Merchant}"
    found = settings_of(text, file="c", environ={})
    assert found.authorization_of_lookup(Scope("b", "live")) == b"Bearer kb"
    assert found.authorization_of_call(Scope("c", "live")) is None


def test_one_credential_looks_nothing_up_for_merchants_of_a_header() -> None:
    """An empty answer under another merchant's credential proves nothing (U8)."""
    found = settings_of(authorized("k") + "merchant: {header: X-Merchant}", file="c", environ={})
    assert found.authorization_of_call(Scope("b", "live")) == b"Bearer k"
    assert found.authorization_of_lookup(Scope("b", "live")) is None


def test_one_credential_is_no_other_merchant_s_of_the_same_store() -> None:
    """U8: sidecars of several merchants may share a Redis, each with its own."""
    found = settings_of(authorized("k") + "merchant: a", file="c", environ={})
    assert found.authorization_of_lookup(Scope("a", "live")) == b"Bearer k"
    assert found.authorization_of_lookup(Scope("b", "live")) is None
    assert found.authorization_of_lookup(Scope("a", "test")) is None


def test_route_overrides_go_before_those_for_all_routes() -> None:
    text = "retry: {attempts: 3, base: 2s}\nroutes: {create_refund: {retry: {attempts: 2, jitter: none}}}"
    refund, payment = route("create_refund", text).retry, route("create_payment", text).retry
    assert (refund.attempts, refund.base_ms, refund.jitter) == (2, 2_000, Jitter.NONE)
    assert (payment.attempts, payment.base_ms, payment.jitter) == (3, 2_000, Jitter.ADDITIVE)


def test_inject_is_per_route_and_require_the_default() -> None:
    text = "routes: {create_payment: {key: {mode: inject}}}"
    assert route("create_payment", text).key.mode is KeyMode.INJECT
    assert route("create_refund", text).key.mode is KeyMode.REQUIRE


def test_global_forward_means_reject_where_the_key_is_all_there_is() -> None:
    found = settings("store: {on_failure: forward}")
    modes = {route.name: str(route.on_failure) for route in found.platform.routes}
    assert modes == {
        "create_payment": "forward",
        "confirm_payment": "reject",
        "cancel_payment": "reject",
        "create_checkout_session": "forward",
        "create_refund": "forward",
    }


def test_port_zero_may_be_given_to_several_listeners() -> None:
    found = settings("listen: [127.0.0.1:0, 127.0.0.1:0]\nadmin: 127.0.0.1:0")
    assert found.listen[0].address == Address("127.0.0.1", 0, None)


def test_preset_file_of_ones_own_is_found_beside_the_configuration(tmp_path: Path) -> None:
    from proxy import presets

    (tmp_path / "mine.yaml").write_text(presets.text("payhub").replace("name: payhub", "name: mine"))
    file = tmp_path / "config.yaml"
    file.write_text("platform: ./mine.yaml\nupstream: {url: https://h}\n")
    assert load_settings(file, {}).platform.name == "mine"
    file.write_text("platform: ./other.yaml\nupstream: {url: https://h}\n")
    with pytest.raises(ConfigError, match=r"config.yaml: platform: .*other.yaml: no such file"):
        load_settings(file, {})


def test_version_changes_with_the_file_and_only_then() -> None:
    assert settings().version == settings().version
    assert settings().version != settings("workers: 2").version
