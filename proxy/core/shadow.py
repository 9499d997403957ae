"""Shadow mode: what the guard would have done, told of calls that pass untouched (contract C9).

Everything is by what was seen within a window, in bounded memory, and nothing is written anywhere. A finding
names the fault and what it would have meant for the money, never a value of a call.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from enum import StrEnum

from proxy.core.fingerprint import differing
from proxy.core.http import Headers, first
from proxy.core.messages import Claim, SeqKey
from proxy.core.model import Fingerprint, Key, Outcome
from proxy.core.problem import Problem

WINDOW_MS = 3_600_000  # an hour: far above any client's own retries, far below an order's life
REMEMBERED_MAX = 20_000
RETRY_WINDOW_MS = 120_000  # one call of the reference client with all its attempts (R5)
ATTEMPT_HEADERS = (b"x-envoy-attempt-count", b"x-retry-attempt", b"x-attempt", b"stripe-retry-count")
OPEN = frozenset({Outcome.IN_DOUBT, Outcome.PENDING})


class Finding(StrEnum):
    """What the guard would have had to say."""

    MISSING_KEY = "missing_key"  # refused with 400, or a key injected
    INVALID_CALL = "invalid_call"  # refused with 400: the body or the key can't be trusted
    UNSTABLE_KEY = "unstable_key"  # the same submission under another key: the platform may execute twice
    NEW_KEY_AFTER_DOUBT = "new_key_after_doubt"  # another key while the first one's result is open
    CONFLICT = "conflict"  # one key with two submissions
    STACKED_RETRIES = "stacked_retries"  # a mesh, a client and the proxy retrying each other's retries
    SENSITIVE_KEY = "sensitive_key"  # personal data in a key or an order number


@dataclass(slots=True)
class _Known:
    """The last submission seen on a subject."""

    key: Key
    fingerprint: Fingerprint
    seen_ms: int
    is_open: bool = True


class Shadow:
    """One process's memory of the calls that passed."""

    def __init__(self) -> None:
        self._subjects: OrderedDict[tuple[str, ...], _Known] = OrderedDict()
        self._keys: OrderedDict[tuple[str, ...], _Known] = OrderedDict()

    def refused(self, told: Problem, *, key_header: str) -> Finding:
        """What a call would have been refused for before it was claimed."""
        is_key = told.field is not None and told.field.lower() == key_header.lower()
        return Finding.MISSING_KEY if is_key and "missing" in told.message else Finding.INVALID_CALL

    def passed(
        self, claim: Claim, headers: Headers, *, sensitive: str | None, now_ms: int
    ) -> tuple[Finding, ...]:
        """What is to be said of a call that passes now."""
        found: list[Finding] = []
        if claim.key_injected:
            found.append(Finding.MISSING_KEY)
        if sensitive is not None:
            found.append(Finding.SENSITIVE_KEY)
        key = Key("") if isinstance(claim.key, SeqKey) else claim.key
        known = self._keys.get(_by_key(claim, key))
        is_recent = known is not None and now_ms - known.seen_ms <= WINDOW_MS
        if known is not None and is_recent:
            if differing(known.fingerprint, claim.fingerprints):
                found.append(Finding.CONFLICT)
            elif now_ms - known.seen_ms <= RETRY_WINDOW_MS and _is_retried(headers):
                found.append(Finding.STACKED_RETRIES)
        if not claim.key_injected:
            found.extend(self._other_key(claim, key, now_ms))
            self._remember(claim, key, now_ms)
        return tuple(found)

    def ended(self, claim: Claim, outcome: Outcome) -> None:
        """How the platform answered it, so that a new key after doubt is told from one after a failure."""
        if isinstance(claim.key, SeqKey):
            return
        for memory, name in ((self._keys, _by_key(claim, claim.key)), (self._subjects, _by_subject(claim))):
            known = memory.get(name)
            if known is not None and known.key == claim.key:
                known.is_open = outcome in OPEN

    def _other_key(self, claim: Claim, key: Key, now_ms: int) -> tuple[Finding, ...]:
        known = self._subjects.get(_by_subject(claim)) if claim.subject else None
        if known is None or known.key == key or now_ms - known.seen_ms > WINDOW_MS:
            return ()
        if known.is_open:
            return (Finding.NEW_KEY_AFTER_DOUBT,)
        same = not differing(known.fingerprint, claim.fingerprints)
        return (Finding.UNSTABLE_KEY,) if same and not claim.route.acts_on_existing else ()

    def _remember(self, claim: Claim, key: Key, now_ms: int) -> None:
        known = _Known(key, claim.fingerprints[0], now_ms)
        names = [(self._keys, _by_key(claim, key))]
        if claim.subject:
            names.append((self._subjects, _by_subject(claim)))
        for memory, name in names:
            memory[name] = known
            memory.move_to_end(name)
            while len(memory) > REMEMBERED_MAX:
                memory.popitem(last=False)


def _by_key(claim: Claim, key: Key) -> tuple[str, ...]:
    return (claim.scope.tag, claim.method, claim.path, key)


def _by_subject(claim: Claim) -> tuple[str, ...]:
    return (claim.scope.tag, claim.route.name, claim.subject or "")


def _is_retried(headers: Headers) -> bool:
    """Whether somebody on the way says that this is not its first try."""
    for name in ATTEMPT_HEADERS:
        value = first(headers, name)
        if value is not None and value.isdigit() and int(value) > 1:
            return True
    return False
