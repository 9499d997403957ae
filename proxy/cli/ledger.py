"""The commands that talk to a running proxy's admin listener: operations, operation, lookup, resolve (C5)."""

from __future__ import annotations

import http.client
import json
import re
import socket
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote, urlencode, urlsplit

import typer

from proxy.cli.output import (
    DEFAULT_CONFIG,
    FAILED,
    USAGE,
    AsJson,
    ConfigFile,
    Failure,
    print_json,
    print_table,
    settings_from,
)

TIMEOUT_S = 10
LOOKUP_TIMEOUT_S = 40  # a place in the line of lookups, and the platform's whole patience for one
PAGE = 200  # operations asked for at once when a range is exported

AdminUrl = Annotated[
    str | None,
    typer.Option(
        "--admin",
        metavar="URL",
        help="The admin listener, also unix:/PATH; by default the configuration's.",
        show_default=False,
    ),
]
AdminToken = Annotated[
    str | None,
    typer.Option(
        "--token",
        metavar="TOKEN",
        envvar="SAFEPOST_ADMIN_TOKEN",
        help="By default the configuration's admin_token.",
        show_default=False,
    ),
]


def add_to(app: typer.Typer) -> None:
    app.command(epilog="Example: safepost operations --knowledge unknown --json")(operations)
    app.command(epilog="Example: safepost operation op_u6nq7zj3mvd2e4k5w7p2x4t6ya")(operation)
    app.command(epilog="Example: safepost lookup op_u6nq7zj3mvd2e4k5w7p2x4t6ya")(lookup)
    example = "Example: safepost resolve op_u6nq7z --status failed --by 'Li Wei' --note 'bank: declined'"
    app.command(epilog=example)(resolve)


def operations(
    knowledge: Annotated[
        str | None, typer.Option(metavar="WORD", help="executed, pending, not_executed or unknown.")
    ] = None,
    subject: Annotated[str | None, typer.Option(metavar="HANDLE", help="Such as order:ORDER-1.")] = None,
    key: Annotated[str | None, typer.Option(metavar="KEY", help="The idempotency key.")] = None,
    route: Annotated[str | None, typer.Option(metavar="NAME", help="Such as create_payment.")] = None,
    since: Annotated[str | None, typer.Option(metavar="TIME", help="Such as 2026-11-29T20:00:00Z.")] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Such as 2026-11-30T00:00:00Z.")] = None,
    oldest_first: Annotated[bool, typer.Option("--oldest-first", help="Instead of newest first.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most so many.")] = 50,
    cursor: Annotated[str | None, typer.Option(metavar="TEXT", help="From the page before.")] = None,
    config: ConfigFile = DEFAULT_CONFIG,
    admin: AdminUrl = None,
    token: AdminToken = None,
    as_json: AsJson = False,
) -> int:
    """List the ledger, newest first."""
    asked = {
        "knowledge": knowledge,
        "subject": subject,
        "key": key,
        "route": route,
        "since": since,
        "until": until,
        "order": "oldest" if oldest_first else None,
        "limit": str(limit),
        "cursor": cursor,
    }
    page = _listener(config, admin, token).page(_query(asked))
    if as_json:
        print_json(page)
        return 0
    print_table(
        ("operation", "route", "subject", "knowledge", "status", "minor units", "attempts", "updated"),
        [
            (
                str(each.get("id")),
                str(each.get("route")),
                str(each.get("subject") or ""),
                str(each.get("knowledge")),
                str(each.get("status") or ("needs a person" if each.get("needs_person") else "")),
                _money(each),
                str(each.get("attempt_count", "")),
                str(each.get("updated") or ""),
            )
            for each in page["operations"]
        ],
    )
    if page.get("cursor"):
        typer.echo(f"more: --cursor {page['cursor']}")
    return 0


def operation(
    operation_id: Annotated[
        str | None, typer.Argument(metavar="ID", help="The operation's id; none to export a range.")
    ] = None,
    export: Annotated[
        bool,
        typer.Option("--export", help="Write the whole story as JSON, to hand on; a range as JSON lines."),
    ] = False,
    since: Annotated[str | None, typer.Option(metavar="TIME", help="With --export: a range's begin.")] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="With --export: a range's end.")] = None,
    config: ConfigFile = DEFAULT_CONFIG,
    admin: AdminUrl = None,
    token: AdminToken = None,
    as_json: AsJson = False,
) -> int:
    """Show one operation with the timeline of its attempts, or export one or a range (O5)."""
    is_range = since is not None or until is not None
    if (operation_id is None) is not is_range or (is_range and not export):
        raise Failure("safepost: operation: expected an ID, or --export with --since or --until", code=USAGE)
    listener = _listener(config, admin, token)
    if operation_id is None:
        for story in _stories(listener, since=since, until=until):
            typer.echo(json.dumps(story, ensure_ascii=False))
        return 0
    told = listener.ask("GET", f"/operations/{_encoded(operation_id)}")
    if as_json or export:
        print_json(told)
    else:
        _print_story(told)
    return 0


def _stories(listener: AdminListener, *, since: str | None, until: str | None) -> Iterator[dict[str, Any]]:
    """The whole story of each operation of a range, oldest first."""
    cursor: str | None = None
    while True:
        asked = {"since": since, "until": until, "order": "oldest", "limit": str(PAGE), "cursor": cursor}
        page = listener.page(_query(asked))
        for each in page["operations"]:
            yield listener.ask("GET", f"/operations/{_encoded(str(each.get('id')))}")
        cursor = page.get("cursor")
        if cursor is None:
            return


def _print_story(told: Mapping[str, Any]) -> None:
    """Raises: Failure where the listener is of a release that tells other things."""
    from rich.console import Console

    from proxy.admin.story import render

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 120
    try:
        story = render(told)
    except (KeyError, TypeError, ValueError) as problem:
        message = f"safepost: the admin listener tells another story than this release knows ({problem})"
        raise Failure(f"{message}; --json prints it as it is", code=FAILED) from None
    console.print(story)


def lookup(
    operation_id: Annotated[str, typer.Argument(metavar="ID", help="The operation's id.")],
    config: ConfigFile = DEFAULT_CONFIG,
    admin: AdminUrl = None,
    token: AdminToken = None,
    as_json: AsJson = False,
) -> int:
    """Ask the platform about an operation now, at most every `lookups.min_interval`, and show what it said."""
    path = f"/operations/{_encoded(operation_id)}/lookup"
    told = _listener(config, admin, token).ask("POST", path, {}, timeout_s=LOOKUP_TIMEOUT_S)
    if as_json:
        print_json(told)
    else:
        _print_story(told)
    return 0


def resolve(
    operation_id: Annotated[str, typer.Argument(metavar="ID", help="The operation's id.")],
    status: Annotated[
        str,
        typer.Option(metavar="STATUS", help="A final status of the platform, or absent: it never happened."),
    ],
    by: Annotated[str, typer.Option(metavar="NAME", help="Who says so.")],
    note: Annotated[str, typer.Option(metavar="TEXT", help="How they know.")],
    config: ConfigFile = DEFAULT_CONFIG,
    admin: AdminUrl = None,
    token: AdminToken = None,
    as_json: AsJson = False,
) -> int:
    """Settle an operation by hand; what was settled so is never sent again."""
    path = f"/operations/{_encoded(operation_id)}/resolve"
    listener = _listener(config, admin, token)
    told = listener.ask("POST", path, {"status": status, "by": by, "note": note})
    if told.get("id") != operation_id or told.get("settled_by_hand") != status:
        raise listener.is_another()
    if as_json:
        print_json(told)
    else:
        typer.echo(f"{operation_id} is settled as {status} by {by}")
    return 0


def _query(asked: Mapping[str, str | None]) -> str:
    given = {name: value for name, value in asked.items() if value is not None}
    return urlencode(given, errors="surrogateescape")


def _encoded(operation_id: str) -> str:
    """An argument's bytes, also those that are no text in this locale."""
    return quote(operation_id, safe="", errors="surrogateescape")


def _listener(config: Path, admin: str | None, token: str | None) -> AdminListener:
    """The admin listener to ask. The configuration is read only where something is not given."""
    if token and not re.fullmatch("[!-~]+", token):
        raise Failure("safepost: --token: expected visible ASCII characters, found others", code=USAGE)
    if admin is not None:
        return AdminListener.at(admin, token)
    settings = settings_from(config)
    if token is None and settings.admin_token is not None:
        token = settings.admin_token.reveal()
    return AdminListener.at(str(settings.admin), token)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminListener:
    """Where the admin listener stands. Asked directly: no proxy of the environment comes between."""

    host: str
    port: int
    token: str | None
    is_tls: bool = False
    base_path: str = ""
    unix_path: str | None = None

    @classmethod
    def at(cls, url: str, token: str | None) -> AdminListener:
        """Raises: Failure for what is no `http://HOST:PORT`, `HOST:PORT` or `unix:/PATH`."""
        if url.startswith("unix:/"):
            return cls(host="localhost", port=80, unix_path=url.removeprefix("unix:"), token=token)
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        is_plain = re.fullmatch("[!-~]+", url) and not (parts.query or parts.fragment or "@" in parts.netloc)
        if not is_plain or parts.scheme not in ("http", "https") or not parts.hostname:
            message = "safepost: --admin: expected a URL such as http://127.0.0.1:8081, or unix:/PATH"
            raise Failure(message, code=USAGE)
        is_tls = parts.scheme == "https"
        return cls(
            host=parts.hostname,
            port=port or (443 if is_tls else 80),
            token=token,
            is_tls=is_tls,
            base_path=parts.path.rstrip("/"),
        )

    def ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, str] | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
    ) -> dict[str, Any]:
        """The answer's JSON. Raises: Failure, in one line."""
        headers = {"Accept": "application/json"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        content = None if body is None else json.dumps(body).encode()
        if content is not None:
            headers["Content-Type"] = "application/json"
        connection = self._connection(timeout_s)
        doubt = ""
        try:
            connection.request(method, self.base_path + path, content, headers)
            doubt = "" if content is None else "; what was asked for may have been done all the same"
            answer = connection.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException, ValueError) as problem:
            reason = problem.strerror if isinstance(problem, OSError) and problem.strerror else str(problem)
            message = f"safepost: no answer from the admin listener {self}: {reason}{doubt}"
            raise Failure(message, code=FAILED) from None
        finally:
            connection.close()
        return self._read(answer.status, text)

    def page(self, query: str) -> dict[str, Any]:
        """One page of the ledger. Raises: Failure, also for an answer that is none: it is no empty ledger."""
        page = self.ask("GET", f"/operations?{query}")
        if not isinstance(page.get("operations"), list):
            raise self.is_another()
        return page

    def is_another(self) -> Failure:
        """An answer that no admin listener gives to what was asked."""
        message = f"safepost: {self} answers, and not as an admin listener does: is it the proxy's own port?"
        return Failure(message, code=FAILED)

    def __str__(self) -> str:
        return f"unix:{self.unix_path}" if self.unix_path else f"{self.host}:{self.port}"

    def _connection(self, timeout_s: float) -> http.client.HTTPConnection:
        if self.unix_path is not None:
            return _UnixConnection(self.unix_path, timeout_s)
        if self.is_tls:
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(self.host, self.port, timeout=timeout_s, context=context)
        return http.client.HTTPConnection(self.host, self.port, timeout=timeout_s)

    def _read(self, status: int, text: bytes) -> dict[str, Any]:
        try:
            told = json.loads(text)
        except ValueError:
            told = None
        if not isinstance(told, dict):
            message = f"safepost: {self} answered {status}, and not as an admin listener does"
            raise Failure(message, code=FAILED)
        if status >= 400:
            error = told.get("error")
            said = error.get("message") if isinstance(error, dict) else told.get("detail") or error
            raise Failure(f"safepost: {self} answered {status}: {said or 'no reason given'}", code=FAILED)
        return told


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _money(told: Mapping[str, Any]) -> str:
    amount = told.get("amount")
    return "" if amount is None else f"{amount} {told.get('currency') or ''}".rstrip()
