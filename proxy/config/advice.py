"""What is legal but unsafe in a configuration: `check` and the start say so, nothing is refused (F4)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from proxy.config.model import Mode
from proxy.config.rules import is_loopback
from proxy.config.settings import Settings
from proxy.config.units import shown_duration
from proxy.core.rules import Jitter, KeyMode, OnFailure, RetryPolicy, Route

MISSES_MIN = 3  # empty answers in a row (U8)
SECRET_CHARACTERS_MIN = 16  # a shorter one can be guessed by trying
KEY_MARGIN_MS = 3_600_000  # nothing is sent in the last hour of a key's retention (P9)
_MEMORY_FILE_SYSTEMS = frozenset({"tmpfs", "ramfs", "devtmpfs"})
_NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "fuse.sshfs", "fuse.s3fs"}
)
_MOUNTS = Path("/proc/self/mounts")


def warnings(settings: Settings) -> list[str]:
    """One line for each legal but unsafe setting, with its path in the file."""
    return [
        *_about_retries(settings),
        *_about_routes(settings),
        *_about_secrets(settings),
        *_about_the_store(settings),
        *_about_lookups(settings),
        *_about_addresses(settings),
        *_about_files(settings),
    ]


def worst_case_ms(policy: RetryPolicy) -> int:
    """All attempts, each to its time limit, and the longest waits between them."""
    waits = 0
    step = float(policy.base_ms)
    for _ in range(policy.attempts - 1):
        waits += int(min(policy.cap_ms, step)) + (
            policy.jitter_max_ms if policy.jitter is Jitter.ADDITIVE else 0
        )
        step *= policy.multiplier
    return policy.attempts * policy.attempt_timeout_ms + waits


def _about_retries(settings: Settings) -> Iterator[str]:
    for policy, routes in _by_policy(settings.platform.routes).items():
        place = f"retry ({', '.join(route.name for route in routes)})"
        worst = worst_case_ms(policy)
        if worst > policy.deadline_ms:
            yield (
                f"{place}: {policy.attempts} attempts can take {shown_duration(worst)}, the deadline is "
                f"{shown_duration(policy.deadline_ms)}: the last attempts may never be made"
            )
        retention = min(route.retention_ms for route in routes)
        if policy.attempts > 1 and policy.deadline_ms > retention - KEY_MARGIN_MS:
            yield (
                f"{place}.deadline: {shown_duration(policy.deadline_ms)} reaches into the last hour in which "
                f"the platform remembers a key ({shown_duration(retention)}): a late repeat could pay anew"
            )
        floor = settings.advice.attempt_timeout_ms_min
        if floor is not None and policy.attempt_timeout_ms < floor:
            yield (
                f"{place}.attempt_timeout: {shown_duration(policy.attempt_timeout_ms)}; the platform asks "
                f"for at least {shown_duration(floor)}: shorter ones lose answers that were on their way"
            )
        answer_within = settings.answer_within_ms
        if answer_within is not None and answer_within < policy.attempt_timeout_ms:
            yield (
                f"answer_within: {shown_duration(answer_within)} is shorter than one attempt of {place} "
                f"({shown_duration(policy.attempt_timeout_ms)}): slow good answers are told as result_unknown"
            )
        if policy.attempts > 1 and policy.jitter is Jitter.NONE:
            yield f"{place}.jitter: none: calls that failed together are sent again together"


def _by_policy(routes: tuple[Route, ...]) -> dict[RetryPolicy, list[Route]]:
    found: dict[RetryPolicy, list[Route]] = {}
    for route in routes:
        found.setdefault(route.retry, []).append(route)
    return found


def _about_the_store(settings: Settings) -> Iterator[str]:
    url = settings.store.url
    forwarding = [r.name for r in settings.platform.routes if r.on_failure is OnFailure.FORWARD]
    if forwarding:
        yield (
            f"store.on_failure: forward on {', '.join(forwarding)}: while the store is down calls are sent "
            "once, unrecorded; a repeat is then held back by the platform's own rules only"
        )
    if settings.store.on_failure is OnFailure.FORWARD and len(forwarding) < len(settings.platform.routes):
        kept = [r.name for r in settings.platform.routes if r.on_failure is OnFailure.REJECT]
        yield f"store.on_failure: forward means reject on {', '.join(kept)} (D3)"
    if url.startswith("sqlite:"):
        system = file_system_of(Path(url.removeprefix("sqlite:").removeprefix("//") or "."))
        if system in _MEMORY_FILE_SYSTEMS:
            yield f"store.url: the file is on {system}, in memory: a restart forgets every doubt (D1)"
        if system in _NETWORK_FILE_SYSTEMS:
            yield f"store.url: the file is on {system}, a network: SQLite's locks can't be trusted (D1)"
    if url.startswith("memory:"):
        yield "store.url: memory: a restart forgets every doubt; for tests only"
    if url.startswith(("redis", "unix")) and settings.store.journal is None:
        yield "store.journal: null: doubts that Redis loses in a failover can't be put back (D6)"


def file_system_of(path: Path) -> str | None:
    """The type of the file system that holds the path, or would; None where it can't be told."""
    try:
        target = path.resolve()
        lines = _MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()
    except (OSError, RuntimeError, ValueError):
        return None
    best: tuple[int, str] = (-1, "")
    for line in lines:
        _, mount, system, *_ = [*line.split(" "), "", "", ""]
        point = mount.replace("\\040", " ")
        if target.is_relative_to(point) and len(point) >= best[0]:
            best = (len(point), system)
    return best[1] or None


def _about_lookups(settings: Settings) -> Iterator[str]:
    if settings.mode is Mode.OBSERVE or not settings.lookups.enabled:
        return
    asked = settings.advice.lookup_interval_ms_min
    if settings.lookups.min_interval_ms < asked:
        yield (
            f"lookups.min_interval: {shown_duration(settings.lookups.min_interval_ms)}; the platform asks "
            f"for at least {shown_duration(asked)} between two queries of one object"
        )
    lag = settings.advice.lookup_lag_ms_min
    if settings.lookups.lag_ms < lag:
        yield (
            f"lookups.lag: {shown_duration(settings.lookups.lag_ms)} is shorter than the preset's "
            f"{shown_duration(lag)}: absence could be believed too soon (U8)"
        )
    if settings.lookups.misses < MISSES_MIN:
        yield (
            f"lookups.misses: {settings.lookups.misses}; fewer than {MISSES_MIN} empty answers in a row prove too "
            "little: absence could be believed of money that moved (U8)"
        )
    unchecked = {
        route.object.kind
        for route in settings.platform.routes
        if route.lookup and route.lookup.by_number and not route.acts_on_existing and not route.object.number
    }
    for kind in sorted(unchecked):
        yield (
            f"platform: preset {settings.platform.name} names no objects.{kind}.number: what the platform shows "
            "for a number is not compared with it, and may be another's (U8)"
        )
    credentials = settings.upstream.credentials
    if not any(route.lookup for route in settings.platform.routes):
        yield "lookups: the preset names no lookup: unknown results wait for an event or a person"
    elif not credentials:
        yield (
            "upstream.authorization: null: nothing is looked up, unknown results wait for an event or "
            "a person (U8)"
        )
    elif not settings.has_fixed_scope and "" in credentials:
        yield (
            "upstream.authorization: one credential, but merchant or environment come from a header: nothing "
            "is looked up, since an empty answer under another merchant's credential proves nothing (U8)"
        )
    elif settings.has_fixed_scope and "" not in credentials:
        scope = f"{settings.merchant.name}/{settings.environment.name}"
        if scope not in credentials:
            yield f"upstream.authorization: none for {scope}: nothing is looked up (U8)"


def _about_addresses(settings: Settings) -> Iterator[str]:
    upstream = settings.upstream
    if upstream.url.scheme == "http" and not is_loopback(upstream.url.host):
        yield f"upstream.url: {upstream.url}: plain http off loopback: cards and credentials travel in clear"
    if not upstream.verify:
        yield "upstream.tls.verify: false: anybody on the way can pose as the platform"
    for listen in settings.listen:
        if not listen.address.is_private:
            how = "without TLS" if listen.cert_file is None else "with TLS"
            yield f"listen: {listen.address} is open to other machines, {how}: whoever reaches it can pay"
    if not settings.admin.is_private:
        yield f"admin: {settings.admin} is open to other machines: results can be settled by hand there"
    is_wildcard = settings.admin.host in ("0.0.0.0", "::")  # noqa: S104 - compared, not bound
    if is_wildcard and settings.admin_url == f"http://{settings.admin}":
        yield f"admin_url: null: callers can't use the Location http://{settings.admin}"
    if settings.events.listen is not None and settings.events.secret is None:
        yield "events.secret: null: events are hints that start a lookup, and settle nothing (U4)"


def _about_routes(settings: Settings) -> Iterator[str]:
    if not settings.platform.routes:
        yield f"routes: preset {settings.platform.name} has none: no call is guarded until routes name some"
    if settings.platform.signed and settings.platform.signature_window_ms is None:
        yield (
            f"platform: preset {settings.platform.name} is signed and names no signature_window: attempts may "
            "start after the platform has stopped taking the signature (F5)"
        )
    for route in settings.platform.routes:
        if route.key.mode is KeyMode.INJECT and route.subject is None:
            yield f"routes.{route.name}.subject: null: another key for the same thing is not noticed (U1)"
        amount = ".".join(route.amount)
        holders = {".".join(route.amount[:end]) for end in range(1, len(route.amount) + 1)}
        if amount and not (holders | {"*"}) & set(route.fields):
            yield (
                f"routes.{route.name}.fingerprint: without {amount}: a repeat with another {amount} passes for "
                "the first submission, and its caller takes that one's result for its own (P2)"
            )


def _about_secrets(settings: Settings) -> Iterator[str]:
    """What was meant to be a secret and is none. Its value is never shown (F2)."""
    named = [
        ("admin_token", settings.admin_token),
        ("events.secret", settings.events.secret),
        ("store.secret", settings.store.secret),
        *(("upstream.authorization", secret) for secret in settings.upstream.credentials.values()),
    ]
    for place, secret in named:
        if secret is not None and _SHELL_VARIABLE.fullmatch(secret.reveal().rpartition(" ")[2]):
            yield f"{place}: looks like $NAME, and is taken as it stands: a variable is written ${{NAME}}"
    guards_money = [("events.secret", settings.events.secret)]
    if not settings.admin.is_private:
        guards_money.append(("admin_token", settings.admin_token))
    for place, secret in guards_money:
        if secret is not None and len(secret.reveal()) < SECRET_CHARACTERS_MIN:
            yield (
                f"{place}: shorter than {SECRET_CHARACTERS_MIN} characters: whoever guesses it can settle payments"
            )


_SHELL_VARIABLE = re.compile(r"\$[A-Za-z_][A-Za-z0-9_]*")


def _about_files(settings: Settings) -> Iterator[str]:
    upstream = settings.upstream
    named = [
        ("upstream.tls.ca_file", upstream.ca_file),
        ("upstream.tls.cert_file", upstream.cert_file),
        ("upstream.tls.key_file", upstream.key_file),
    ]
    for listen in settings.listen:
        named += [("listen.tls.cert_file", listen.cert_file), ("listen.tls.key_file", listen.key_file)]
    for place, name in named:
        if name is not None and not os.access(name, os.R_OK):
            yield f"{place}: {name} is not there, or may not be read by this user"
