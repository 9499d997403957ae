"""The configuration file's sections that are about this process and its neighbours (contract section 3)."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema, PydanticCustomError

from proxy.config.rules import (
    Address,
    AddressKind,
    Choice,
    Duration,
    Flag,
    Kind,
    Number,
    Rate,
    RateKind,
    Schema,
    Secret,
    Size,
    Text,
    Unfit,
    Url,
    UrlKind,
    Whole,
)
from proxy.core.rules import OnFailure


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    JSON = "json"
    TEXT = "text"


HEADER_NAME = r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}"

FileName = Annotated[str | None, Text(what="a file's path", nullable=True)]
FlagValue = Annotated[bool, Flag()]
DurationValue = Annotated[int, Duration()]
DurationOrNone = Annotated[int | None, Duration(nullable=True)]
CREDENTIAL_HEADERS = frozenset({"authorization", "proxy-authorization", "cookie", "x-api-key"})
HOP_HEADERS = frozenset(
    {
        "host",
        "connection",
        "content-length",
        "transfer-encoding",
        "expect",
        "keep-alive",
        "te",
        "trailer",
        "upgrade",
    }
)
HeaderName = Annotated[str, Text(what="a header's name", pattern=HEADER_NAME)]
HeaderNameOrNone = Annotated[str | None, Text(what="a header's name", pattern=HEADER_NAME, nullable=True)]
SecretOrNone = Annotated[
    Secret | None,
    Text(what="visible text of 1 to 4000 characters", pattern=r"[!-~]{1,4000}", secret=True, nullable=True),
]


class Section(BaseModel):
    """A mapping of the file. Unknown keys are mistakes (F1)."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, hide_input_in_errors=True)


def setting(**options: Any) -> Any:
    """A field whose default is written as in the file (`"20s"`) and read like it."""
    return Field(**options)


class ListenerTls(Section):
    cert_file: Annotated[str, Text(what="a file's path")] = setting(
        description="Certificate chain, PEM. Read again when the file changes."
    )
    key_file: Annotated[str, Text(what="a file's path")] = setting(description="Its private key, PEM.")


class Listener(Section):
    """An address, or an address with TLS."""

    address: Annotated[Address, AddressKind()] = setting(
        description="HOST:PORT, [::1]:PORT or unix:/run/safepost.sock."
    )
    tls: ListenerTls | None = setting(default=None, description="Serve HTTPS with this certificate.")

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return value if isinstance(value, dict | list) else {"address": value}

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> Schema:
        return {"anyOf": [AddressKind().schema(), handler(schema)]}


def as_list(value: Any) -> Any:
    if isinstance(value, list) and not value:
        raise PydanticCustomError("expected", "{expected}", {"expected": "at least one address"})
    return value if isinstance(value, list) else [value]


class OneOrList:
    """For the JSON Schema: one item stands for a list of one."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> Schema:
        array = handler(schema)
        return {"anyOf": [array["items"], array]}


class ScopeSource(Section):
    """A fixed name, or the header that carries it."""

    name: Annotated[
        str | None,
        Text(what="a name of 1 to 64 letters, digits, . _ -", pattern=r"[A-Za-z0-9._-]{1,64}", nullable=True),
    ] = setting(default=None, description="The same name for every call.")
    header: Annotated[str | None, Text(what="a header's name", pattern=HEADER_NAME, nullable=True)] = setting(
        default=None, description="Each call's header of this name holds it; a call without it gets 400."
    )

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        if isinstance(value, dict) and set(value) != {"header"} and set(value) <= {"name", "header"}:
            expected = "a name, or {header: NAME}"
            raise PydanticCustomError("expected", "{expected}", {"expected": expected})
        return value if isinstance(value, dict | list) else {"name": value}

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> Schema:
        header = {"type": "object", "properties": {"header": {"type": "string"}}, "required": ["header"]}
        return {"anyOf": [{"type": "string"}, header | {"additionalProperties": False}]}


class Events(Section):
    listen: Annotated[Address | None, AddressKind(nullable=True)] = setting(
        default=None, description="A listener of its own that serves nothing but POST /events."
    )
    header: HeaderName = setting(default="Webhook-Signature", description="Where the signature travels.")
    secret: SecretOrNone = setting(
        default=None,
        description="Checks the signatures. Without it an event is only a hint that starts a lookup.",
    )
    tolerance: DurationValue = setting(default="5m", description="How old a signature may be.")


class UpstreamTls(Section):
    ca_file: FileName = setting(default=None, description="Trust these authorities, PEM; null: the system's.")
    cert_file: FileName = setting(default=None, description="Client certificate, PEM.")
    key_file: FileName = setting(default=None, description="Its private key, PEM.")
    verify: FlagValue = setting(default=True, description="Check the platform's certificate. Leave it on.")


class AuthorizationKind(Kind):
    """One credential, or one for each `MERCHANT/ENVIRONMENT`. A bare key is sent as `Bearer KEY`."""

    def expected(self) -> str:
        return "a credential, or a map of MERCHANT/ENVIRONMENT to a credential"

    def read(self, value: object) -> dict[str, Secret]:
        if isinstance(value, str):
            return {"": self._credential(value)}
        if not isinstance(value, dict) or not value:
            raise Unfit
        for scope in value:
            if not isinstance(scope, str) or not all(scope.partition("/")) or scope.count("/") > 1:
                raise Unfit("every key of the map to be MERCHANT/ENVIRONMENT, such as shop-1/live")
        return {scope: self._credential(secret) for scope, secret in value.items()}

    @staticmethod
    def _credential(value: object) -> Secret:
        text = value if isinstance(value, str) else ""
        if not text or text != text.strip() or not all(" " <= c <= "~" for c in text):
            raise Unfit("a credential of visible ASCII characters")
        return Secret(str(text) if " " in text else f"Bearer {text}")

    def schema(self) -> Schema:
        return {"anyOf": [{"type": "string"}, {"type": "object", "additionalProperties": {"type": "string"}}]}


class Upstream(Section):
    url: Annotated[Url, UrlKind()] = setting(
        description="The platform's base URL; a path in it is put before every call's."
    )
    authorization: Annotated[dict[str, Secret] | None, AuthorizationKind(nullable=True)] = setting(
        default=None,
        description="For lookups, and for calls that carry no Authorization; one, or a map by "
        "MERCHANT/ENVIRONMENT.",
    )
    connect_timeout: DurationValue = setting(default="2s", description="DNS, TCP and TLS together.")
    tls: UpstreamTls = setting(default_factory=UpstreamTls, description="How the platform's TLS is checked.")
    max_connections: Annotated[int, Whole(low=1, high=100_000)] = setting(
        default=1000, description="At once, idle ones included."
    )


class Store(Section):
    url: Annotated[str, Text(what="a store's URL, such as sqlite:safepost.db or redis://host:6379/0")] = (
        setting(
            default="sqlite:safepost.db",
            repr=False,  # it may hold a password
            description="The ledger. SQLite guards one host, Redis several.",
        )
    )
    on_failure: Annotated[OnFailure, Choice(of=OnFailure)] = setting(
        default="reject",
        description="A call while the store is down: refuse it, or send it once unrecorded (D3).",
    )
    timeout: DurationValue = setting(default="2s", description="For each step of the ledger.")
    lease: DurationValue = setting(
        default="10s",
        description="How long a dead leader blocks its key; renewed every third of it. At least 500ms: a living "
        "leader could not renew a shorter one in time (P5).",
    )
    secret: SecretOrNone = setting(
        default=None, description="Keys the fingerprints; null: made once and kept in the store."
    )
    journal: FileName = setting(
        default=None, description="Redis only: a local file of unresolved operations (D6)."
    )


class LookupSchedule(Section):
    enabled: FlagValue = setting(
        default=True, description="Ask the platform about unknown and pending results."
    )
    schedule: list[DurationValue] = setting(
        default=["10s", "30s", "2m", "5m", "15m", "1h"], description="Counted from the first attempt."
    )
    then_every: DurationValue = setting(default="4h", description="After the schedule's last point.")
    until: DurationValue = setting(
        default="24h", description="Then a person is asked, and one lookup a day goes on."
    )
    min_interval: DurationValue = setting(default="10s", description="Between two lookups of one object.")
    lag: DurationOrNone = setting(
        default=None,
        description="How long the platform may not show what it did; null: the preset's (payhub: 60s).",
    )
    misses: Annotated[int, Whole(low=1, high=100)] = setting(
        default=3, description="Empty answers in a row before absence is believed."
    )
    rate: Annotated[Rate, RateKind()] = setting(
        default="5/s", description="For all lookups of a sidecar together."
    )


class Limits(Section):
    body: Annotated[int, Size(low="1KiB", high="64MiB")] = setting(
        default="1MiB", description="Of a guarded call; 413 past it."
    )
    headers: Annotated[int, Size(low="4KiB", high="1MiB")] = setting(
        default="64KiB", description="Of a call or an answer; 431 past it."
    )
    stored_response: Annotated[int, Size(low="0B", high="16MiB")] = setting(
        default="256KiB", description="A larger answer is delivered, and kept without its body."
    )
    connections: Annotated[int, Whole(low=1, high=1_000_000)] = setting(
        default=10_000, description="From callers, at once."
    )


class Traces(Section):
    endpoint: Annotated[str | None, Text(what="a URL", pattern="https?://[!-~]+", nullable=True)] = setting(
        default=None,
        description="Where OpenTelemetry spans go (OTLP over HTTP); null: none. Needs safepost[otel].",
    )
    service: Annotated[str, Text(what="a name", pattern=r"[ -~]{1,100}")] = setting(
        default="safepost", description="The service's name in each span."
    )


class Log(Section):
    level: Annotated[LogLevel, Choice(of=LogLevel)] = setting(
        default="info", description="The least that is written."
    )
    format: Annotated[LogFormat, Choice(of=LogFormat)] = setting(
        default="json", description="json for machines, text for terminals."
    )
    successes: Annotated[float, Number(low=0, high=1)] = setting(
        default=1,
        description="Share of the calls that succeed with one attempt whose lines are written, chosen by their "
        "request ids. Whatever else happens is written.",
    )
