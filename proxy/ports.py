"""The ports: what the driver and the resolver ask of the world. Adapters implement them; `app` joins them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from proxy.core.http import Headers, RequestHead, Response, WireRequest, WireResult
from proxy.core.model import Now, Operation, OperationId
from proxy.core.tables import Verb

Answer = TypeVar("Answer")


class Clock(Protocol):
    """Time, in integer milliseconds. Nothing else in the product reads a clock."""

    def monotonic_ms(self) -> int:
        """For durations and deadlines inside this process; never steps, and runs on in a suspend."""
        ...

    def monotonic_us(self) -> int:
        """The same clock in microseconds, for measurements only."""
        ...

    def boot_ms(self) -> int:
        """Since the machine booted, suspend included: comparable across processes of one boot (D1)."""
        ...

    def wall_ms(self) -> int:
        """Since the Unix epoch: for records, people and the lookup schedule; may step."""
        ...

    def boot_id(self) -> str:
        """Which boot of which machine `boot_ms` counts from."""
        ...


class BodyTooLarge(Exception):
    """The caller's body is larger than allowed. Nothing of it was forwarded."""


class CallerGone(Exception):
    """The caller's connection ended (or ran out of its time limits) before its request was whole."""


class Exchange(Protocol):
    """One call, seen from the listener: a request that is being read and the place for its answer.

    Exactly one answer is given, by `reply` or by `begin`/`write`/`end`. A caller that has gone makes these
    no-ops (`reply` and `end` then return False); it never raises, so that a call can run on without its
    caller (H6).
    """

    head: RequestHead
    peer: str

    @property
    def is_open(self) -> bool:
        """Whether the caller's connection still stands."""
        ...

    async def read_body(self, *, bytes_max: int) -> bytes:
        """The whole body. Sends `100 Continue` first if the caller waits for it.

        Raises: BodyTooLarge (also at once, from Content-Length), CallerGone.
        """
        ...

    def body_chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes, with back-pressure: no more than one read buffer is held.

        Raises: CallerGone.
        """
        ...

    @property
    def body_length(self) -> int | None:
        """The body's declared length; None for chunked; 0 where the request has no body."""
        ...

    @property
    def has_body_framing(self) -> bool:
        """Whether the request said how long its body is (Content-Length, also 0, or chunked)."""
        ...

    async def reply(self, response: Response) -> bool:
        """Answer with a whole response. True when its last byte was written to an open connection (K3)."""
        ...

    async def interim(self, status: int, headers: Headers) -> None:
        """Pass on a 1xx (103 and the like) before the answer; dropped for HTTP/1.0 callers."""
        ...

    async def begin(
        self,
        status: int,
        reason: bytes,
        headers: Headers,
        *,
        body_length: int | None,
        bodyless: bool,
    ) -> None:
        """Send a streamed answer's head.

        Args: body_length: None means chunked (or until close, for HTTP/1.0).
            bodyless: the answer has no body whatever its headers say (HEAD, 204, 304); `headers` may then
            hold the platform's Content-Length and pass as they are.
        """
        ...

    async def write(self, chunk: bytes) -> None:
        """Send a piece of a streamed answer's body; waits while the caller reads slowly."""
        ...

    async def end(self, trailers: Headers = ()) -> bool:
        """Finish a streamed answer. True when its last byte was written to an open connection."""
        ...

    def abort(self) -> None:
        """Break the caller's connection so that a cut answer can't be taken for a whole one."""
        ...


CallHandler = Callable[[Exchange], Awaitable[None]]
"""What the listener calls for each request head that is fit to be looked at."""


class StreamSink(Protocol):
    """Where a streamed upstream answer goes, piece by piece. `Exchange` fits."""

    @property
    def is_open(self) -> bool:
        """False once nobody reads the answer any more: the platform's connection is then closed (O-40)."""
        ...

    async def interim(self, status: int, headers: Headers) -> None: ...

    async def begin(
        self, status: int, reason: bytes, headers: Headers, *, body_length: int | None, bodyless: bool
    ) -> None: ...

    async def write(self, chunk: bytes) -> None: ...

    async def end(self, trailers: Headers = ()) -> bool: ...


@dataclass(frozen=True, slots=True)
class Streamed:
    """How a streamed exchange ended.

    `result` is None when a final head reached the sink and the body ended well; otherwise how it failed.
    `head_passed` tells whether the sink had been given a final head before that (then only `abort` is left).
    """

    status: int | None
    result: WireResult | None
    head_passed: bool


class Upstream(Protocol):
    """The platform, over HTTP. Never retries, never follows a redirect, never decodes a body."""

    async def send(
        self,
        request: WireRequest,
        *,
        timeout_ms: int,
        not_after_ms: int | None = None,
        fresh: bool = False,
        on_first_byte: Callable[[], None] | None = None,
    ) -> WireResult:
        """Send one attempt and read its whole answer.

        Args: timeout_ms: from the first byte written to the answer's last (R5); connecting has its own limit.
            not_after_ms: monotonic instant after which no first byte may be written: `NotSent(TOO_LATE)`.
            fresh: open a connection of its own instead of taking an idle one.
        """
        ...

    async def stream(
        self,
        head: WireRequest,
        body: AsyncIterator[bytes] | None,
        *,
        body_length: int | None,
        sink: StreamSink,
        timeout_ms: int,
        fresh: bool = False,
    ) -> Streamed:
        """Send a request whose body comes in pieces and pass the answer on in pieces, with back-pressure.

        Args: head: its `body` is unused. body: None where the request has none. body_length: None means
            chunked. timeout_ms: for the first byte of the answer, and between two reads of it.
        """
        ...

    async def close(self) -> None:
        """Close idle connections and refuse new work."""
        ...


class StoreUnavailable(Exception):
    """The store did not do a step, or did not say that it did. The message is fit for an operator.

    `may_have_happened`: the step may be durable although its reply was lost; its owner reads it back or takes
    it back before anything else is done (architecture section 4, step 3).
    """

    def __init__(self, message: str, *, may_have_happened: bool = False) -> None:
        super().__init__(message)
        self.may_have_happened = may_have_happened


class RowUnreadable(StoreUnavailable):
    """A stored row that can't be understood: damaged, or written by a newer Safepost. Others are not harmed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Which operations `find` lists, newest first unless `oldest_first`. None means any.

    `cursor` is opaque, from the page before. `due_before_ms`: those whose next lookup is due (U2).
    `lapsed`: in flight with a lease that is over (U6).
    """

    knowledge: str | None = None
    subject: str | None = None
    key: str | None = None
    route: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    due_before_ms: int | None = None
    lapsed: bool = False
    oldest_first: bool = False
    limit: int = 50
    cursor: str | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """A page of operations; `cursor` leads to the next one, None at the end."""

    operations: tuple[Operation, ...]
    cursor: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdings:
    """The unresolved operations of one route, currency and knowledge, for the gauges of M1."""

    route: str
    knowledge: str
    currency: str
    count: int
    amount: int
    oldest_ms: int


@dataclass(frozen=True, slots=True)
class StoreReport:
    """What start-up and readiness say of the store: warnings are legal but unsafe settings (D1, D5)."""

    kind: str
    detail: str
    warnings: tuple[str, ...] = ()


class Store(Protocol):
    """The ledger, durable. Every method raises StoreUnavailable when the store can't answer in time."""

    async def open(self) -> StoreReport:
        """Connect, check or make the schema, read the settings that could lose claims."""
        ...

    async def close(self) -> None: ...

    async def transact(self, verb: Verb[Answer]) -> Answer:
        """Run the verb as one atomic, durable step. Verbs of one event-loop tick share one commit."""
        ...

    async def load(self, operation: OperationId) -> Operation | None:
        """One operation by its id, as it now is."""
        ...

    async def find(self, query: Query) -> Page: ...

    async def count_due(self, *, before_ms: int) -> int:
        """How many operations' lookups are due by this wall-clock instant (U2)."""
        ...

    async def wait(self, operation: Operation, *, timeout_ms: int) -> Operation | None:
        """Wait until the run with this fence is no longer in flight under a living lease, or time is up.

        Returns the record as it now is (None: it is gone). Wakes at once for changes made in this process,
        and by notification or poll for others'.
        """
        ...

    async def holdings(self) -> tuple[Holdings, ...]: ...

    async def purge(self, *, record_ms: dict[str, int]) -> int:
        """Drop resolved operations that are older than their route's `record_ms` (P9); the number dropped."""
        ...

    async def ping(self) -> None: ...

    def now(self) -> Now:
        """The store's clocks as they are known here: never ahead of those that its verbs go by (D2)."""
        ...

    def warnings(self) -> tuple[str, ...]:
        """What is unsafe about the store just now: its settings, a log that grows, data that it lost (D5, D6)."""
        ...

    def secrets(self) -> tuple[tuple[str, bytes], ...]:
        """Fingerprint secrets as (id, secret), the current one first (P1). Known after `open`."""
        ...
