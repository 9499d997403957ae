"""The command line: every mistake is one clear line and exit 2, never a traceback (C2, C6, C7, C8)."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from proxy import presets
from proxy.cli import main
from proxy.cli.explaining import explained as explained_call
from proxy.clock import SystemClock
from proxy.config import load_settings
from proxy.core.http import RequestHead
from proxy.core.model import Fingerprint, Owner, replace
from proxy.core.reserve import ReserveOperation
from proxy.stores import make_store

NOBODY = 65_534
COMMANDS = (
    "run",
    "check",
    "sandbox",
    "demo",
    "explain",
    "schema",
    "presets",
    "operations",
    "operation",
    "resolve",
)
ORDER = '{"merchant_order_no":"ORDER-1","amount":100,"currency":"USD"}'
VALID = """
platform: payhub
upstream: {url: https://api.payhub.example, authorization: k}
routes: {create_payment: {key: {mode: inject}}, confirm_payment: {key: {mode: inject}}}
"""

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a valid config.yaml, made the current one."""
    (tmp_path / "config.yaml").write_text(VALID, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


def run(capsys: Capture, *arguments: str) -> tuple[int, str, list[str]]:
    """(exit code, standard output, lines of standard error) of one command."""
    code = main(arguments)
    said = capsys.readouterr()
    return code, said.out, said.err.splitlines()


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_has_an_example(command: str, capsys: Capture) -> None:
    code, out, errors = run(capsys, command, "--help")
    assert (code, errors) == (0, [])
    assert f"Example: safepost {command}" in " ".join(out.split())


def test_no_command_shows_help_with_every_command(capsys: Capture) -> None:
    code, out, errors = run(capsys)
    assert (code, errors) == (0, [])
    assert all(f"  {command} " in out for command in COMMANDS)


def test_version_is_one_line(capsys: Capture) -> None:
    code, out, errors = run(capsys, "--version")
    assert (code, errors) == (0, [])
    assert out.startswith("safepost ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["rnu"], "Did you mean 'run'"),
        (["check", "--confg", "x"], "No such option: --confg"),
        (["check", "-c"], "requires an argument"),
        (["check", "surplus"], "unexpected extra argument"),
        (["explain", "POST"], "Missing argument 'PATH'"),
        (["explain", "POST", "v1/payments"], "begins with /"),
        (["explain", "POST", "/v1/payments", "-H", "no-colon"], "expected 'NAME: VALUE'"),
        (["explain", "POST", "/v1/payments", "-d", "@nothing.json"], "nothing.json: No such file"),
        (["presets", "payhb"], 'did you mean "payhub"?'),
        (["sandbox", "--listen", "nowhere"], "expected HOST:PORT"),
        (["demo", "--store", "nowhere"], "expected a store's URL"),
        (["demo", "--store", '"'], "not valid YAML"),
        (["operations", "--limit", "0"], "Invalid value for '--limit'"),
        (["operations", "--admin", "ftp://x"], "--admin: expected a URL"),
        (["operations", "--admin", "http://h:99999"], "--admin: expected a URL"),
        (["resolve", "op_1", "--status", "failed", "--by", "a"], "Missing option '--note'"),
    ],
)
def test_wrong_command_is_one_line_and_exit_2(
    arguments: list[str], words: str, here: Path, capsys: Capture
) -> None:
    code, _, errors = run(capsys, *arguments)
    assert code == 2
    assert len(errors) == 1, errors
    assert words in errors[0]


@pytest.mark.parametrize("command", [["run"], ["check"], ["explain", "POST", "/"], ["operations"]])
def test_unusable_configuration_file_is_one_line_and_exit_2(
    command: list[str], here: Path, capsys: Capture
) -> None:
    (here / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    (here / "broken.yaml").write_text("a: [", encoding="utf-8")
    for name, words in [
        ("nothing.yaml", "no such file"),
        (".", "found a directory"),
        ("bytes.yaml", "expected UTF-8 text"),
        ("broken.yaml", "not valid YAML"),
    ]:
        code, _, errors = run(capsys, *command, "-c", name)
        assert code == 2
        assert len(errors) == 1, errors
        assert words in errors[0]


@pytest.mark.parametrize(
    "url", ["redis://h:99999", "redis://h/name", "redis+sentinel://h", "redis+cluster://"]
)
@pytest.mark.parametrize("command", ["check", "run"])
def test_store_url_that_its_store_can_not_read_is_one_line_and_exit_2(
    command: str, url: str, here: Path, capsys: Capture
) -> None:
    """C2: what `check` calls valid, `run` can start with."""
    config = f"platform: payhub\nupstream: {{url: 'http://127.0.0.1:9'}}\nstore: {{url: '{url}'}}\n"
    (here / "c.yaml").write_text(config)
    code, _, errors = run(capsys, command, "-c", "c.yaml")
    assert (code, len(errors)) == (2, 1)
    assert errors[0].startswith("c.yaml: store.url: ")


@contextmanager
def as_a_plain_user() -> Iterator[None]:
    """Nothing is forbidden to root, whom tests in containers run as."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(before)


def test_forbidden_configuration_file_is_one_line(here: Path, capsys: Capture) -> None:
    (here / "config.yaml").chmod(0)
    with as_a_plain_user():
        told = run(capsys, "check")[::2]
    assert told == (2, ["config.yaml: this user may not read it"])


def test_check_tells_every_mistake_in_one_run(here: Path, capsys: Capture) -> None:
    (here / "config.yaml").write_text("platform: payhub\nwokers: 2\nwait_timeout: 1s\nmode: gaurd\n", "utf-8")
    code, out, errors = run(capsys, "check")
    assert (code, out) == (2, "")
    assert sorted(line.split(": ")[1] for line in errors) == ["mode", "upstream", "wait_timeout", "wokers"]


def test_check_says_what_is_valid_and_what_is_unsafe(here: Path, capsys: Capture) -> None:
    code, out, errors = run(capsys, "check")
    assert (code, errors) == (0, [])
    assert out == "config.yaml: valid; preset payhub 1.0.0, 5 guarded routes, 0 warnings\n"
    (here / "config.yaml").write_text(VALID + "answer_within: 1s\n", encoding="utf-8")
    code, out, errors = run(capsys, "check")
    assert code == 0
    assert "1 warning\n" in out
    assert errors[0].startswith("config.yaml: warning: answer_within: 1s")


def explained(capsys: Capture, *arguments: str) -> dict[str, object]:
    code, out, errors = run(capsys, "explain", *arguments, "--json")
    assert (code, errors) == (0, [])
    told = json.loads(out)
    assert isinstance(told, dict)
    return told


def test_explain_makes_the_key_and_plans_the_retries(here: Path, capsys: Capture) -> None:
    told = explained(capsys, "POST", "/v1/payments?x=1", "-d", ORDER)
    assert (told["route"], told["subject"]) == ("create_payment", "order:ORDER-1")
    assert told["key"] == {
        "header": "Idempotency-Key",
        "value": "payment.create:ORDER-1:1",
        "from": "the template payment.create:{body.merchant_order_no}:1",
        "looks_like": None,
    }
    assert (told["amount"], told["currency"], told["path"], told["query"]) == (
        100,
        "USD",
        "/v1/payments",
        "x=1",
    )
    assert told["fingerprint"] == ["amount", "currency", "merchant_order_no"]
    retry = told["retry"]
    assert isinstance(retry, dict)
    assert len(retry["starts_ms_latest"]) == 5
    assert retry["starts_ms_latest"][-1] + 20_000 <= retry["deadline_ms"]


def test_explain_prints_seq_as_such_and_names_a_given_key(here: Path, capsys: Capture) -> None:
    told = explained(capsys, "POST", "/v1/payments/pay_1/confirm", "-d", "{}")
    assert told["key"]["value"] == "payment.confirm:pay_1:{seq}"  # type: ignore[index]  # JSON
    assert told["operation"] is None
    told = explained(capsys, "post", "/v1/payments/pay_1/confirm", "-H", "idempotency-key:  K1 ")
    assert told["key"]["value"] == "K1"  # type: ignore[index]  # JSON
    assert str(told["operation"]).startswith("op_")


def test_explain_names_what_would_be_refused(here: Path, capsys: Capture) -> None:
    told = explained(capsys, "POST", "/v1/refunds", "-d", "{}")
    assert told["problem"]["status"] == 400  # type: ignore[index]  # JSON
    assert told["problem"]["field"] == "Idempotency-Key"  # type: ignore[index]  # JSON
    code, out, _ = run(capsys, "explain", "POST", "/v1/refunds", "-d", "{}")
    assert code == 0
    assert "nothing is sent" in out


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/v1/payments/../refunds", "a dot segment"),
        ("/v1/payments?x y", "one blank, target"),
        ("/v1/payments/", "not one of the guarded ones"),
        ("/v1//payments", "not one of the guarded ones"),
    ],
)
def test_explain_says_that_a_target_is_refused(here: Path, capsys: Capture, path: str, words: str) -> None:
    """C6: what the listener refuses does not stream through (H4, H9)."""
    assert explained(capsys, "POST", path)["problem"]["status"] == 400  # type: ignore[index]  # JSON
    _, out, _ = run(capsys, "explain", "POST", path)
    assert words in out
    assert "streamed through" not in out


@pytest.mark.parametrize("header", ["X Y: 1", "X: a\nb", "Connection: Idempotency-Key", "Content-Length: x"])
def test_explain_says_that_a_header_is_refused(here: Path, capsys: Capture, header: str) -> None:
    told = explained(capsys, "POST", "/v1/payments", "-d", ORDER, "-H", header)
    assert told["problem"]["status"] == 400  # type: ignore[index]  # JSON


@pytest.mark.parametrize(
    ("body", "status"),
    [("", 400), ("{", 400), (f'{{"p":"{"x" * 1_048_576}"}}', 413)],
    ids=["none", "cut", "large"],
)
def test_explain_of_a_refused_call_tells_the_key_that_it_brings(
    here: Path, capsys: Capture, body: str, status: int
) -> None:
    (here / "body").write_text(body)
    told = explained(capsys, "POST", "/v1/refunds", "-d", "@body", "-H", "Idempotency-Key: K1")
    assert told["problem"]["status"] == status  # type: ignore[index]  # JSON
    assert (told["key"]["value"], told["key"]["from"]) == ("K1", "the caller")  # type: ignore[index]  # JSON


def test_explain_of_another_call_says_that_it_streams(here: Path, capsys: Capture) -> None:
    assert explained(capsys, "GET", "/v1/payments/pay_1")["guarded"] is False
    _, out, _ = run(capsys, "explain", "DELETE", "/v1/other")
    assert "none: streamed through" in out
    assert "after not_sent;" in out


def test_explain_reads_the_body_from_a_file_and_the_scope_from_headers(here: Path, capsys: Capture) -> None:
    (here / "config.yaml").write_text(VALID + "merchant: {header: X-Merchant}\n", encoding="utf-8")
    (here / "body.json").write_text(ORDER, encoding="utf-8")
    told = explained(capsys, "POST", "/v1/payments", "-d", "@body.json", "-H", "x-merchant: shop-1")
    assert told["scope"] == {"merchant": "shop-1", "environment": "live"}
    _, out, _ = run(capsys, "explain", "POST", "/v1/payments", "-d", "@body.json")
    assert "the header X-Merchant holds no name, or several: the answer is 400" in out


def test_explain_says_that_a_key_looks_sensitive(here: Path, capsys: Capture) -> None:
    _, out, _ = run(
        capsys, "explain", "POST", "/v1/payments", "-d", ORDER, "-H", "Idempotency-Key: li.wei@example.com"
    )
    assert "it looks like a card number or an e-mail address (email)" in out


def recorded(here: Path) -> None:
    """A ledger in which ORDER-1's payment is under way."""

    async def claimed() -> None:
        settings = load_settings(here / "config.yaml", {})
        head = RequestHead(b"POST", b"/v1/payments", ((b"Content-Type", b"application/json"),))
        _, claim = explained_call(settings, head, ORDER.encode())
        assert claim is not None
        store = make_store(f"sqlite:{here}/safepost.db", clock=SystemClock(), timeout_ms=5_000)
        await store.open()
        printed = replace(claim, fingerprints=(Fingerprint("s1", "payhub@1.0.0", {}),))
        await store.transact(ReserveOperation(printed, Owner("somebody"), 10_000))
        await store.close()

    asyncio.run(claimed())


def test_explain_with_the_store_tells_what_is_recorded_and_fills_seq_in(here: Path, capsys: Capture) -> None:
    """K3."""
    told = explained(capsys, "POST", "/v1/payments", "-d", ORDER, "--store")
    assert told["ledger"] is None
    assert not (here / "safepost.db").exists()
    recorded(here)
    _, out, errors = run(capsys, "explain", "POST", "/v1/payments", "-d", ORDER, "--store")
    assert errors == []
    assert "ledger       in_flight: unknown, attempts 1" in out
    told = explained(capsys, "POST", "/v1/payments/pay_1/confirm", "-d", "{}", "--store")
    assert told["key"]["value"] == "payment.confirm:pay_1:1"  # type: ignore[index]  # JSON
    assert (told["seq"], told["ledger"]) == (1, None)


def test_presets_lists_and_prints_them(capsys: Capture) -> None:
    code, out, _ = run(capsys, "presets")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == list(presets.names())
    assert run(capsys, "presets", "payhub")[1] == presets.text("payhub")


def test_schema_describes_every_key_and_accepts_the_root_configuration(capsys: Capture) -> None:
    code, out, _ = run(capsys, "schema")
    schema = json.loads(out)
    assert code == 0
    assert schema["title"] == "Safepost's configuration"
    assert schema["required"] == ["platform", "upstream"]
    assert all("description" in field for field in schema["properties"].values())
    assert {kind["type"] for kind in schema["properties"]["listen"]["anyOf"] if "type" in kind} == {"array"}
