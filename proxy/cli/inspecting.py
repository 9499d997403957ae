"""The commands that only look: explain, schema, presets. None of them sends anything."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from proxy.cli.output import DEFAULT_CONFIG, USAGE, AsJson, ConfigFile, Failure, print_json, settings_from

if TYPE_CHECKING:
    from proxy.config import Settings
    from proxy.core.http import RequestHead
    from proxy.core.messages import Claim


def add_to(app: typer.Typer) -> None:
    example = (
        "Example: safepost explain POST /v1/payments -H 'Idempotency-Key: K' "
        """-d '{"merchant_order_no":"O-1","amount":100,"currency":"USD"}'"""
    )
    app.command(epilog=example)(explain)
    app.command(epilog="Example: safepost schema > safepost.schema.json")(schema)
    app.command(epilog="Example: safepost presets payhub")(presets)


def explain(
    method: Annotated[str, typer.Argument(metavar="METHOD", help="POST, GET, ...")],
    path: Annotated[str, typer.Argument(metavar="PATH", help="The path, with its query if it has one.")],
    header: Annotated[
        list[str] | None,
        typer.Option("-H", "--header", metavar="'NAME: VALUE'", help="May be given several times."),
    ] = None,
    data: Annotated[
        str, typer.Option("-d", "--data", metavar="BODY", help="The body; @FILE reads it, @- from stdin.")
    ] = "",
    config: ConfigFile = DEFAULT_CONFIG,
    look: Annotated[
        bool, typer.Option("--store", help="Look into the ledger: fills {seq} in, tells what is known.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Print what the proxy would do with a call, sending nothing: route, key, scope, subject, retries."""
    from proxy.cli.explaining import explained, lines

    head, body = _call(method, path, header or [], data)
    settings = settings_from(config)
    told, claim = explained(settings, head, body)
    if look and claim is not None:
        found = _looked_up(settings, claim)
        told["key"]["value"] = found.pop("made_key", told["key"]["value"])
        told |= found
    if as_json:
        print_json(told)
    else:
        for line in lines(told):
            typer.echo(line)
    return 0


def _looked_up(settings: Settings, claim: Claim) -> dict[str, Any]:
    """What the ledger holds of the call's operation. A SQLite file that is not there is not made."""
    from proxy import loops
    from proxy.cli.peeking import is_missing, peeked
    from proxy.cli.running import told_in_one_line

    if is_missing(settings):
        return {"ledger": None}
    with told_in_one_line():
        return loops.run(peeked(settings, claim))


def _call(method: str, path: str, headers: list[str], data: str) -> tuple[RequestHead, bytes]:
    from proxy.core.http import RequestHead

    if not path.startswith("/"):
        raise Failure("safepost: PATH: expected a path that begins with /", code=USAGE)
    fields: list[tuple[bytes, bytes]] = []
    for header in headers:
        name, colon, value = header.partition(":")
        if not colon or not name.strip():
            raise Failure(f"safepost: --header: expected 'NAME: VALUE', found {header!r}", code=USAGE)
        fields.append((_octets(name.strip()), _octets(value.strip())))
    if data and not any(name.lower() == b"content-type" for name, _ in fields):
        fields.append((b"Content-Type", b"application/json"))
    head = RequestHead(_octets(method.upper()), _octets(path), tuple(fields))
    return head, _body(data)


def _octets(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _body(data: str) -> bytes:
    if data == "@-":
        return sys.stdin.buffer.read()
    if not data.startswith("@"):
        return _octets(data)
    try:
        return Path(data[1:]).read_bytes()
    except (OSError, ValueError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else str(problem)
        raise Failure(f"safepost: --data: {data[1:]}: {reason}", code=USAGE) from None


def schema() -> int:
    """Print the JSON Schema of the configuration, for editors."""
    from proxy.config.model import Config

    print_json(
        {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            **Config.model_json_schema(),
            "title": "Safepost's configuration",
        }
    )
    return 0


def presets(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Print this one's YAML.")] = None,
) -> int:
    """List the platforms that come with the product, or print one."""
    from proxy import presets as known
    from proxy.config.load import preset_of
    from proxy.config.problems import suggestion

    if name is None:
        for each in known.names():
            preset = preset_of(known.text(each), file=f"{each}.yaml")
            typer.echo(f"{each:<12} {preset.version:<8} {preset.title}")
        return 0
    if name not in known.names():
        raise Failure(f'safepost: no preset "{name}"{suggestion(name, known.names())}', code=USAGE)
    typer.echo(known.text(name), nl=False)
    return 0
