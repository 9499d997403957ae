"""The kinds of values that a configuration and a preset hold: each knows what it allows, in words.

A kind is metadata of a pydantic field (`Annotated[int, Duration(low="1s")]`): it reads the YAML value, says
what was expected where it doesn't fit, and describes itself in the JSON Schema.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import PydanticCustomError, core_schema

from proxy.config.text import Substituted
from proxy.config.units import duration_ms, rate, size_bytes

Schema = dict[str, Any]


class Unfit(Exception):
    """The value is not what the kind allows.

    `expected` overrides the kind's own words; `at`: which member of the value is at fault.
    """

    def __init__(self, expected: str | None = None, *, at: str | None = None) -> None:
        super().__init__(expected)
        self.expected = expected
        self.at = at


class Secret:
    """A value that is never shown, not even in a traceback's locals (F2)."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "Secret(***)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)


@dataclass(frozen=True, kw_only=True)
class Kind:
    """The base of all kinds. `nullable`: `null` is allowed and means what the field's description says."""

    nullable: bool = False

    def expected(self) -> str:
        raise NotImplementedError

    def read(self, value: object) -> object:
        """The value as the product uses it. Raises: Unfit."""
        raise NotImplementedError

    def schema(self) -> Schema:
        raise NotImplementedError

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(self._validated)

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> Schema:
        own = self.schema()
        return {"anyOf": [own, {"type": "null"}]} if self.nullable else own

    def _validated(self, value: object) -> object:
        if value is None and self.nullable:
            return None
        try:
            return self.read(value)
        except Unfit as unfit:
            context = {"expected": unfit.expected or self.expected(), "at": unfit.at}
            raise PydanticCustomError("expected", "{expected}", context) from None


@dataclass(frozen=True, kw_only=True)
class Duration(Kind):
    """Milliseconds, written `250ms`, `20s`, `5m`, `4h`, `7d`."""

    low: str = "1ms"
    high: str = "365d"

    def expected(self) -> str:
        return f"a duration from {self.low} to {self.high}, such as 250ms, 20s, 5m, 4h or 7d"

    def read(self, value: object) -> int:
        found = duration_ms(value) if isinstance(value, str) else None
        low, high = duration_ms(self.low), duration_ms(self.high)
        if found is None or low is None or high is None or not low <= found <= high:
            raise Unfit
        return found

    def schema(self) -> Schema:
        return {"type": "string", "pattern": "^[0-9]+(ms|s|m|h|d)$"}


@dataclass(frozen=True, kw_only=True)
class Size(Kind):
    """Bytes, written `64KiB`, `1MiB`."""

    low: str = "1B"
    high: str = "1GiB"

    def expected(self) -> str:
        return f"a size from {self.low} to {self.high}, such as 64KiB or 1MiB"

    def read(self, value: object) -> int:
        found = size_bytes(value) if isinstance(value, str) else None
        low, high = size_bytes(self.low), size_bytes(self.high)
        if found is None or low is None or high is None or not low <= found <= high:
            raise Unfit
        return found

    def schema(self) -> Schema:
        return {"type": "string", "pattern": "^[0-9]+(B|KiB|MiB|GiB)$"}


@dataclass(frozen=True, slots=True)
class Rate:
    """So many per so long."""

    count: int
    per_ms: int


@dataclass(frozen=True, kw_only=True)
class RateKind(Kind):
    def expected(self) -> str:
        return "a rate such as 5/s, 30/m or 100/h"

    def read(self, value: object) -> Rate:
        found = rate(value) if isinstance(value, str) else None
        if found is None or found[0] == 0:
            raise Unfit
        return Rate(*found)

    def schema(self) -> Schema:
        return {"type": "string", "pattern": "^[0-9]+/(s|m|h)$"}


@dataclass(frozen=True, kw_only=True)
class Whole(Kind):
    """An integer. Digits from the environment count as one."""

    low: int
    high: int

    def expected(self) -> str:
        return f"an integer from {self.low} to {self.high}"

    def read(self, value: object) -> int:
        if isinstance(value, Substituted) and re.fullmatch(r"[0-9]{1,12}", value):
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not self.low <= value <= self.high:
            raise Unfit
        return value

    def schema(self) -> Schema:
        return {"type": "integer", "minimum": self.low, "maximum": self.high}


@dataclass(frozen=True, kw_only=True)
class Number(Kind):
    low: float
    high: float

    def expected(self) -> str:
        return f"a number from {self.low:g} to {self.high:g}"

    def read(self, value: object) -> float:
        if isinstance(value, Substituted) and re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", value):
            value = float(value)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise Unfit
        if not self.low <= value <= self.high:
            raise Unfit
        return float(value)

    def schema(self) -> Schema:
        return {"type": "number", "minimum": self.low, "maximum": self.high}


@dataclass(frozen=True, kw_only=True)
class Flag(Kind):
    def expected(self) -> str:
        return "true or false"

    def read(self, value: object) -> bool:
        if isinstance(value, Substituted) and value in ("true", "false"):
            return value == "true"
        if not isinstance(value, bool):
            raise Unfit
        return value

    def schema(self) -> Schema:
        return {"type": "boolean"}


@dataclass(frozen=True, kw_only=True)
class Choice(Kind):
    """One word of an enum."""

    of: type[StrEnum]

    def expected(self) -> str:
        return " or ".join(self.of)

    def read(self, value: object) -> StrEnum:
        if not isinstance(value, str) or value not in tuple(self.of):
            raise Unfit
        return self.of(value)

    def schema(self) -> Schema:
        return {"enum": [str(word) for word in self.of]}


@dataclass(frozen=True, kw_only=True)
class Text(Kind):
    """One line of text. `what` says which; `secret`: it is wrapped and never shown."""

    what: str = "text"
    pattern: str = r"[^\x00-\x1f\x7f]{1,2000}"
    secret: bool = False

    def expected(self) -> str:
        return self.what

    def read(self, value: object) -> str | Secret:
        if not isinstance(value, str) or not re.fullmatch(self.pattern, value):
            raise Unfit
        return Secret(str(value)) if self.secret else str(value)

    def schema(self) -> Schema:
        return {"type": "string"} | ({"writeOnly": True} if self.secret else {})


@dataclass(frozen=True, kw_only=True)
class DottedPath(Kind):
    """A path into a JSON object, as its parts: `error.code`. Empty: not read."""

    def expected(self) -> str:
        return "a dotted path into a JSON object, such as error.code"

    def read(self, value: object) -> tuple[str, ...]:
        if not isinstance(value, str) or not re.fullmatch(r"([^.\s]+(\.[^.\s]+)*)?", value):
            raise Unfit
        return tuple(value.split(".")) if value else ()

    def schema(self) -> Schema:
        return {"type": "string"}


@dataclass(frozen=True, slots=True)
class Address:
    """Where a listener stands: a host and a port, or a Unix socket's path."""

    host: str | None
    port: int | None
    path: str | None

    def __str__(self) -> str:
        if self.path is not None:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if self.host and ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_private(self) -> bool:
        """Reachable from this machine only."""
        return self.path is not None or is_loopback(self.host or "")


def is_loopback(host: str) -> bool:
    if host.lower() == "localhost" or host.lower().endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, kw_only=True)
class AddressKind(Kind):
    def expected(self) -> str:
        return "an address such as 127.0.0.1:8080, [::1]:8080 or unix:/run/safepost.sock"

    def read(self, value: object) -> Address:
        if not isinstance(value, str):
            raise Unfit
        if value.startswith("unix:"):
            path = value.removeprefix("unix:")
            if not path.startswith("/") or "\x00" in path or len(path.encode("utf-8", "replace")) > 107:
                raise Unfit("unix: and an absolute path of at most 107 bytes")
            return Address(None, None, path)
        found = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+)):([0-9]{1,5})", value)
        if found is None or int(found[3]) > 65_535:
            raise Unfit
        if found[1] is not None:
            try:
                ipaddress.IPv6Address(found[1])
            except ValueError:
                raise Unfit from None
        return Address(found[1] or found[2], int(found[3]), None)

    def schema(self) -> Schema:
        return {"type": "string", "examples": ["127.0.0.1:8080", "[::1]:8080", "unix:/run/safepost.sock"]}


@dataclass(frozen=True, slots=True)
class Url:
    """An HTTP base URL. `base_path` has no slash at its end; empty for none."""

    scheme: str
    host: str
    port: int
    base_path: str

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = self.port == (443 if self.scheme == "https" else 80)
        return f"{self.scheme}://{host}{'' if usual else f':{self.port}'}{self.base_path}"


@dataclass(frozen=True, kw_only=True)
class UrlKind(Kind):
    def expected(self) -> str:
        return "an http:// or https:// URL with a host and no query, such as https://api.payhub.example"

    def read(self, value: object) -> Url:
        if not isinstance(value, str) or not re.fullmatch(r"[!-~]+", value):
            raise Unfit
        try:
            parts = urlsplit(value)
            port = parts.port
        except ValueError:
            raise Unfit from None
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise Unfit
        if parts.username is not None or parts.password is not None:
            raise Unfit("a URL without a user name or password in it (a credential goes into authorization)")
        if port == 0 or "?" in value or "#" in value or set(parts.path.split("/")) & {".", ".."}:
            raise Unfit
        usual = 443 if parts.scheme == "https" else 80
        return Url(parts.scheme, parts.hostname, port or usual, parts.path.rstrip("/"))

    def schema(self) -> Schema:
        return {"type": "string", "format": "uri"}
