"""The fingerprints' secret (P1): its name, which the records carry, and which of several is current."""

from __future__ import annotations

import hashlib
import secrets as chance

Secret = tuple[str, bytes]
"""A secret's public name, and itself."""

SECRET_BYTES = 32


def secret_id(secret: bytes) -> str:
    """Names the secret without giving it away: 48 bits of a hash of at least 256 bits of chance, or of what
    the configuration holds."""
    return hashlib.blake2b(secret, digest_size=6, person=b"safepost-secret").hexdigest()


def made() -> bytes:
    return chance.token_bytes(SECRET_BYTES)


def in_order(configured: bytes | None, kept: tuple[bytes, ...]) -> tuple[Secret, ...]:
    """Those that records may have been made with, the current one first. `kept` are the store's own."""
    ordered = (*((configured,) if configured is not None else ()), *kept)
    return tuple((secret_id(one), one) for one in dict.fromkeys(ordered))
