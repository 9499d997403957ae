"""Keys, operations' ids and handles: what names a business submission and the thing it acts on (K1-K6).

Whatever is filled into a template is percent-encoded outside RFC 3986's unreserved characters, in keys (K4)
as in handles: a caller's text can then neither end a header line, nor pass for a template's own separator,
nor matter to a store. A parameter of the path is decoded first, so that a thing has one name wherever its id
came from.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from urllib.parse import quote_from_bytes, unquote

from msgspec import Struct

from proxy.core.bodies import Json, Number, Parsed, get
from proxy.core.cards import holds_card_number
from proxy.core.http import Headers, values
from proxy.core.messages import SeqKey
from proxy.core.model import Handle, Key, OperationId, Scope
from proxy.core.problem import Problem, key_invalid
from proxy.core.routes import Params, decoded
from proxy.core.rules import KeyRule, Path

LENGTH_MAX = 255
"""Of a key (K1) and of a handle."""
ENCODINGS_MAX = 3
"""How many percent-encodings of a text are undone to see what it holds (K5)."""

_ID_CHARS = 26  # 130 bits: two ids of one ledger never meet


def given_key(headers: Headers, rule: KeyRule) -> Key | Problem | None:
    """The key that a call brought, None where it brought none (K1).

    Returns: Problem for a header that occurs twice, and for a value that is empty, too long, or not visible
    ASCII with spaces inside.
    """
    found = list(values(headers, rule.header.lower()))
    if not found:
        return None
    header = rule.header.decode("latin-1")
    if len(found) > 1:
        return key_invalid(header, what=f"occurs {len(found)} times")
    text = _unquoted(found[0]) if rule.unquote else found[0]
    if not text or text != text.strip(b" "):
        return key_invalid(
            header, what="is empty" if not text.strip(b" ") else "has blanks around it in quotes"
        )
    if len(text) > rule.length_max:
        return key_invalid(header, what=f"has {len(text)} characters of at most {rule.length_max}")
    if not _VISIBLE.fullmatch(text):
        return key_invalid(header, what="holds other bytes than visible ASCII characters and spaces")
    return Key(text.decode("ascii"))


_VISIBLE = re.compile(rb"[ -~]+")
_QUOTED = re.compile(rb'"((?:[^"\\]|\\["\\])*)"')


def _unquoted(value: bytes) -> bytes:
    """The text of a structured-field string (RFC 8941 section 3.3.3); any other value as it is."""
    match = _QUOTED.fullmatch(value)
    return value if match is None else re.sub(rb"\\(.)", rb"\1", match[1])


def operation_id(scope: Scope, method: str, path: str, key: Key) -> OperationId:
    """The name of the submission, the same on every host (K6): no two of them share one.

    Args: path: normalised, without its query.
    """
    parts = (scope.merchant, scope.environment, method, path, key)
    text = "".join(f"{len(part)}:{part}" for part in parts)
    return OperationId(f"op_{_short_hash(text)}")


class Template(Struct, frozen=True):
    """A compiled template: literal texts, and paths like `("body", "a")`, `("path", "id")` and `("seq",)`."""

    parts: tuple[str | Path, ...]

    @property
    def has_seq(self) -> bool:
        return ("seq",) in self.parts


@lru_cache(maxsize=256)
def compile_template(text: str) -> Template:
    """Read `payment.create:{body.merchant_order_no}:{seq}` (F6).

    Raises: ValueError, with what is wrong and what is allowed.
    """
    parts: list[str | Path] = []
    for index, piece in enumerate(_VARIABLE.split(text)):
        if index % 2:
            path = tuple(piece.split("."))
            if not _is_variable(path):
                raise ValueError(f"{{{piece}}}: expected {{body.FIELD}}, {{path.NAME}} or {{seq}}")
            parts.append(path)
        elif not re.fullmatch(r"[!-z|~]*", piece):
            raise ValueError(f"{text!r}: expected visible ASCII characters around whole {{variables}}")
        elif piece:
            parts.append(piece)
    if parts.count(("seq",)) > 1:
        raise ValueError(f"{text!r}: {{seq}} may stand there once")
    return Template(tuple(parts))


_VARIABLE = re.compile(r"\{([^{}]*)\}")


def _is_variable(path: Path) -> bool:
    kind, names = path[0], path[1:]
    return all(names) and {"seq": not names, "body": len(names) > 0, "path": len(names) == 1}.get(kind, False)


class Filled(Struct, frozen=True):
    """A template with its values in place, encoded. `after` is what follows `{seq}`, None without one."""

    before: str
    after: str | None = None


class Unfilled(Struct, frozen=True):
    """The variable for which a call holds no value: `place` is its field or path parameter."""

    place: str


def fill(template: str, parsed: Parsed, params: Params) -> Filled | Unfilled:
    """Put a call's values into a template, percent-encoded.

    A value is a text, a number (by its value: 10000, 10000.0 and 1e4 are one) or a boolean. Missing, null,
    empty ones and lists or objects identify nothing.
    """
    before, text = None, ""
    for part in compile_template(template).parts:
        if isinstance(part, str):
            text += part
        elif part == ("seq",):
            before, text = text, ""
        else:
            value = _scalar(part, parsed, params)
            if not value:
                return Unfilled(".".join(part[1:]))
            text += encoded(value)
    return Filled(text) if before is None else Filled(before, text)


def _scalar(part: Path, parsed: Parsed, params: Params) -> str | None:
    if part[0] == "path":
        return decoded(params.get(part[1], ""))
    return text_of(get(parsed, part[1:]))


def text_of(value: Json) -> str | None:
    """A scalar as text, None for null, a list or an object."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Number):
        return value.text
    return value if isinstance(value, str) else None


def encoded(value: str) -> str:
    """`value` with everything outside the unreserved set percent-encoded (K4)."""
    return value if _UNRESERVED.fullmatch(value) else quote_from_bytes(_bytes(value), safe="")


_UNRESERVED = re.compile(r"[A-Za-z0-9._~-]*")


def _bytes(value: str) -> bytes:
    """UTF-8; bytes that a form or a path kept as lone surrogates come back as they were."""
    try:
        return value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return value.encode("utf-8", "surrogatepass")


def injected(
    template: str, parsed: Parsed, params: Params, *, length_max: int = LENGTH_MAX
) -> Key | SeqKey | Unfilled:
    """The key that a template makes of a call (K2): the same on every host and after every restart."""
    filled = fill(template, parsed, params)
    if isinstance(filled, Unfilled):
        return filled
    if filled.after is None:
        return Key(shortened(filled.before, length_max))
    return SeqKey(filled.before, filled.after, length_max)


def key_for(seq_key: SeqKey, seq: int) -> Key:
    """The key of submission number `seq` on a subject (K3)."""
    return Key(shortened(f"{seq_key.before}{seq}{seq_key.after}", seq_key.length_max))


def handle_of(template: str, parsed: Parsed, params: Params) -> Handle | Unfilled:
    """The business thing that a call names by a template: `order:{body.merchant_order_no}`."""
    filled = fill(template, parsed, params)
    return Handle(shortened(filled.before, LENGTH_MAX)) if isinstance(filled, Filled) else filled


def handle(kind: str, value: str) -> Handle:
    """The handle `kind:value` of something that an answer, a lookup or an event told of."""
    return Handle(shortened(f"{kind}:{encoded(value)}", LENGTH_MAX))


def shortened(text: str, length_max: int) -> str:
    """`text`, or where it is too long its readable beginning and a hash of all of it (K4)."""
    if len(text) <= length_max:
        return text
    digest = _short_hash(text)
    readable = re.sub(r"%.?\Z", "", text[: max(0, length_max - len(digest) - 1)])
    return f"{readable}~{digest}"[-length_max:]


def looks_sensitive(text: str) -> str | None:
    """What a key or a subject seems to hold that belongs in none (K5): `card`, `email` or None."""
    for _ in range(ENCODINGS_MAX):
        if "%" not in text:
            break
        text = unquote(text)
    if holds_card_number(text):
        return "card"
    return "email" if "@" in text and _EMAIL.search(text) else None


def masked(text: str) -> str:
    """`text`, or what it seems to be where that must not be written or shown (K5, D4)."""
    what = looks_sensitive(text)
    return text if what is None else f"[{what}, {len(text)} characters, masked]"


_EMAIL = re.compile(r"[A-Za-z0-9_+-]@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,63}\b")


def _short_hash(text: str) -> str:
    """26 characters of base32 in lower case: five bits each of as many bytes of SHA-256."""
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    return digest[:_ID_CHARS].translate(_BASE32).decode()


_BASE32 = bytes(b"abcdefghijklmnopqrstuvwxyz234567"[byte & 31] for byte in range(256))
"""What a byte's low five bits are written as. Python's `base64` takes five times as long."""
