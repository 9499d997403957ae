"""The commands that start something, and `check`, which is their rehearsal: run, check, sandbox, demo."""

from __future__ import annotations

import errno
import sys
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from proxy.cli.output import DEFAULT_CONFIG, FAILED, USAGE, ConfigFile, Failure, settings_from

if TYPE_CHECKING:
    from proxy.config import Settings

Result = TypeVar("Result")

_OF_ADDRESSES = frozenset({errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES})


def add_to(app: typer.Typer) -> None:
    app.command(epilog="Example: safepost run -c /etc/safepost/config.yaml")(run)
    app.command(epilog="Example: safepost check -c config.yaml")(check)
    app.command(epilog="Example: safepost sandbox --listen 127.0.0.1:9000")(sandbox)
    app.command(epilog="Example: safepost demo")(demo)


def run(config: ConfigFile = DEFAULT_CONFIG) -> int:
    """Start the proxy. SIGTERM and SIGINT drain it, SIGHUP reads the configuration again."""
    settings = settings_from(config)
    _check_store(settings)
    _warn(settings)

    from proxy import app
    from proxy.config import load_settings

    with told_in_one_line(_addresses(settings)):
        return app.run(settings, announce=_say, read_again=lambda: load_settings(config))


def check(config: ConfigFile = DEFAULT_CONFIG) -> int:
    """Validate a configuration without starting: every mistake at once, then what is legal but unsafe."""
    settings = settings_from(config)
    _check_store(settings)
    count = _warn(settings)
    platform = settings.platform
    typer.echo(
        f"{config}: valid; preset {platform.name} {platform.version}, {len(platform.routes)} guarded "
        f"routes, {count} warning{'' if count == 1 else 's'}"
    )
    return 0


def sandbox(
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where it listens.", show_default=True)
    ] = "127.0.0.1:9000",
) -> int:
    """Run a local payment platform that keeps the platform contract, with fault injection."""
    from proxy.sandbox import serve

    try:
        _running(serve(listen, announce=typer.echo))
    except ValueError as problem:
        raise Failure(f"safepost: --listen: {problem}", code=USAGE) from None
    return 0


def demo(
    store: Annotated[
        str | None,
        typer.Option(metavar="URL", help="A store; by default an embedded one of its own."),
    ] = None,
    proxies: Annotated[
        int | None, typer.Option(min=1, max=8, help="Sidecars that share the store, taking turns.")
    ] = None,
    drill: Annotated[
        bool,
        typer.Option(
            "--drill", help="Instead: a shop at work while one thing after the other breaks; 2 min."
        ),
    ] = False,
) -> int:
    """Play scenarios S1 to S13 through real sockets; exits 0 only if every one holds."""
    if drill:
        if store is not None or proxies is not None:
            raise Failure("safepost: --drill brings a store and a sidecar of its own", code=USAGE)
        from proxy.drill import play as play_drill

        return _running(play_drill())
    from proxy.demo import play

    return _running(play(store=store, proxies=proxies))


def _check_store(settings: Settings) -> None:
    """A store's URL is read by its own kind of store, which is made for that and not opened."""
    from proxy.clock import SystemClock
    from proxy.stores import StoreUrlError, make_store

    try:
        make_store(settings.store.url, clock=SystemClock(), timeout_ms=settings.store.timeout_ms)
    except StoreUrlError as problem:
        raise Failure(f"{settings.file}: {problem}", code=USAGE) from None


def _warn(settings: Settings) -> int:
    from proxy.config import warnings

    found = warnings(settings)
    for warning in found:
        typer.echo(f"{settings.file}: warning: {warning}", err=True)
    return len(found)


def _running(work: Coroutine[object, object, Result]) -> Result:
    """Run to the end."""
    from proxy import loops

    with told_in_one_line():
        return loops.run(work)


def _addresses(settings: Settings) -> str:
    """What the operating system may refuse, since its own words don't say which it was."""
    events = [f"events.listen {settings.events.listen}"] if settings.events.listen else []
    listens = [f"listen {listen.address}" for listen in settings.listen]
    return ", ".join([*listens, f"admin {settings.admin}", *events])


@contextmanager
def told_in_one_line(addresses: str = "") -> Iterator[None]:
    """What the machine refuses (an address in use, a store) is one line and exit 1."""
    from proxy.config import ConfigError
    from proxy.ports import StoreUnavailable
    from proxy.stores import StoreUrlError
    from proxy.wire.tls import TlsFilesUnusable

    sys.stdout.flush()
    try:
        yield
    except ConfigError as error:  # made of the command's own options
        raise Failure(*map(str, error.problems), code=USAGE) from None
    except (StoreUnavailable, StoreUrlError, TlsFilesUnusable) as problem:
        raise Failure(f"safepost: {problem}", code=FAILED) from None
    except OSError as problem:
        is_nameless = problem.errno in _OF_ADDRESSES and addresses and problem.filename is None
        among = f" (one of {addresses})" if is_nameless else ""
        where = f": {problem.filename}" if problem.filename else ""
        raise Failure(f"safepost: {problem.strerror or problem}{where}{among}", code=FAILED) from None


def _say(line: str) -> None:
    """At once, also into a pipe: whoever started the process waits for these lines."""
    typer.echo(line)
    sys.stdout.flush()
