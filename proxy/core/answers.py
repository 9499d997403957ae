"""What a caller is told: the answers of a guarded call, with what H8 says about each.

Knowledge is about the *operation*, over all its calls. An answer made here says `not_executed` only for an
operation that the ledger shows never to have been in doubt; where the ledger can't be read it says `unknown`,
with no attempts.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from proxy.core import problem
from proxy.core.classify import DECODERS, Decoder, Verdict, plain_body
from proxy.core.evidence import older_than
from proxy.core.http import Answered, Headers, Response
from proxy.core.messages import AttemptNote, Claim, Marks, Reply, SeqKey
from proxy.core.model import (
    DEFINITE,
    Fence,
    Key,
    Knowledge,
    Operation,
    Outcome,
    Seen,
    State,
    StoredAnswer,
    replace,
)
from proxy.core.problem import Problem, render
from proxy.core.redact import may_be_stored, stored_headers
from proxy.core.rules import Platform, Replay, Route
from proxy.core.tables import is_failure

RETRY_AFTER_MS = 2_000
"""What a caller is asked to wait where nothing better is known: longer than a blip, shorter than patience."""


def replays_stored(route: Route, operation: Operation) -> bool:
    """P6: executed ones on `stored` routes are replayed; pending ones are forwarded even there."""
    return route.replay is Replay.STORED and operation.state is State.EXECUTED


def is_older(seen: Seen, operation: Operation) -> bool:
    """Whether a repeat's object must not replace what the ledger holds (P6)."""
    return older_than(seen, operation.newest)


class Voice(Struct, frozen=True, kw_only=True):
    """Makes one call's answers, in the platform's shape. `stored_bytes_max` is `limits.stored_response`."""

    platform: Platform
    claim: Claim
    stored_bytes_max: int
    decoders: Mapping[str, Decoder] = field(default_factory=lambda: DECODERS)

    # --- the platform's answers -----------------------------------------------------------------------------

    def live(self, operation: Operation, response: Response) -> Reply:
        """This call's own answer from the platform, unchanged."""
        return self._reply(response, operation, shows_result=True)

    def ended(self, operation: Operation, stored: StoredAnswer, brought: Response | None) -> Reply:
        """The answer that a run ended with; `brought` has the body that may not be stored (D4)."""
        if stored.from_platform and brought is not None and brought.status == stored.status:
            return self._reply(brought, operation)
        return self._reply(_response(stored), operation)

    def run_ended(self, operation: Operation, stored: StoredAnswer) -> Reply:
        """A follower gets what the leader's caller got (P4)."""
        return self._reply(
            _response(stored),
            operation,
            knowledge=stored.knowledge,
            replayed=True,
            shows_result=stored.outcome in DEFINITE,
        )

    def recorded_answer(self, operation: Operation) -> Reply | None:
        """The newest definite object that the ledger holds, marked replayed; None if none is kept (P6)."""
        stored, newest = operation.answer, operation.newest
        stored_is_definite = (
            stored is not None
            and stored.from_platform
            and stored.outcome in DEFINITE
            and stored.body is not None
        )
        object_is_newer = newest is not None and (not stored_is_definite or newest.source != "answer")
        if newest is not None and object_is_newer:
            if newest.body is None:
                return None  # a stored answer would tell of an older state
            response = Response(200, ((b"Content-Type", b"application/json"),), newest.body)
            return self._reply(response, operation, replayed=True, shows_result=True)
        if stored_is_definite and stored is not None:
            return self._reply(_response(stored), operation, replayed=True, shows_result=True)
        return None

    def unrecorded(self, last: Answered | None, verdict: Verdict, note: AttemptNote) -> Reply:
        """The store is down and the call was forwarded once (D3): the ledger can't say what came before."""
        marks = Marks(_KNOWN.get(verdict.outcome, Knowledge.UNKNOWN), 0, None, self.given_key())
        if last is not None and (verdict.outcome in DEFINITE or verdict.passes):
            return Reply(last.response, marks)
        told = self._unknown(None, note, _asked_ms(verdict))
        return Reply(self._render(told), marks)

    # --- what the ledger keeps ------------------------------------------------------------------------------

    def stored(
        self,
        operation: Operation,
        response: Response,
        verdict: Verdict,
        note: AttemptNote,
        *,
        from_platform: bool = True,
        state: State | None = None,
    ) -> StoredAnswer:
        """The run's answer for followers and replays; without its body where that may not be kept (D4)."""
        keep = not from_platform or (not verdict.withheld and self._may_keep(response, verdict.seen))
        return StoredAnswer(
            fence=Fence(operation.fence),
            status=response.status,
            reason=response.reason,
            headers=() if from_platform and verdict.withheld else stored_headers(response.headers),
            body=response.body if keep else None,
            ended_ms=note.ended_ms,
            from_platform=from_platform,
            knowledge=_knowledge(state, verdict),
            outcome=verdict.outcome,
        )

    def storable(self, seen: Seen | None, response: Response) -> Seen | None:
        """What the answer showed, without the object itself where that may not be kept (D4)."""
        if seen is None or seen.body is None or self._may_keep(response, seen):
            return seen
        return replace(seen, body=None)

    def shown(self, verdict: Verdict, response: Response, wall_ms: int) -> Seen | None:
        """What a definite answer showed; 402 and its like stand for a status without an object (R3)."""
        if verdict.means is None or (verdict.seen is not None and verdict.seen.status):
            return self.storable(verdict.seen, response)
        return Seen(
            status=verdict.means,
            is_final=True,
            is_failure=self.claim.route.object.fails(verdict.means),
            source="answer",
            seen_ms=wall_ms,
            resource_id=verdict.related_id,
        )

    def _may_keep(self, response: Response, seen: Seen | None) -> bool:
        """D4. An answer that was read as the platform's object, `seen`, was judged when it was read."""
        if seen is not None:
            return seen.body is not None and len(response.body) <= self.stored_bytes_max
        return may_be_stored(
            response,
            plain_body(response, self.decoders),
            card_fields=self.platform.card_fields,
            bytes_max=self.stored_bytes_max,
        )

    # --- answers of our own ---------------------------------------------------------------------------------

    def unavailable(self, operation: Operation, verdict: Verdict, retry_after_ms: int | None) -> Response:
        """No attempt left anything in doubt and the platform answered none (R8 a)."""
        wait_ms = retry_after_ms or verdict.retry_after_ms or RETRY_AFTER_MS
        return self._render(
            problem.upstream_unavailable(
                why=_why(verdict), retry_after_ms=wait_ms, key=operation.key, operation=operation.id
            )
        )

    def unknown(self, operation: Operation, verdict: Verdict, note: AttemptNote) -> Response:
        """R8 c: the refusal's status and code in `error.last_answer`, its `Retry-After` kept."""
        return self._render(self._unknown(operation, note, _asked_ms(verdict)))

    def in_doubt(self, operation: Operation) -> Reply:
        """A run that the ledger has left behind: what it sent itself may still be under way."""
        known = operation.knowledge is not Knowledge.NOT_EXECUTED
        told = self._unknown(operation, None, RETRY_AFTER_MS)
        return self._problem(told, operation, knowledge=None if known else Knowledge.UNKNOWN)

    def patience_ended(self, operation: Operation | None) -> Reply:
        """W1: 504 with the operation's address; the call goes on."""
        told = self._unknown(operation, None, RETRY_AFTER_MS)
        if operation is None:
            return Reply(self._render(told), Marks(Knowledge.UNKNOWN, 0, None, self.given_key()))
        reply = self._problem(told, operation)
        return replace(reply, location=operation.id)

    def conflict(self, operation: Operation, fields: tuple[str, ...]) -> Reply:
        return self._problem(problem.idempotency_conflict(operation, fields), operation)

    def blocked(self, holder: Operation, *, twin: bool) -> Reply:
        """U1: names the key and the operation to use instead, and carries that operation's knowledge."""
        return self._problem(problem.subject_held(holder, twin=twin, retry_after_ms=RETRY_AFTER_MS), holder)

    def key_expired(self, operation: Operation) -> Reply:
        known = self.recorded_answer(operation) if operation.state is State.EXECUTED else None
        if known is not None:
            return known
        reply = self._problem(problem.key_expired(operation), operation)
        return replace(reply, look_up=operation)

    def settled_by_hand(self, operation: Operation) -> Reply:
        told = self._render(problem.settled_by_hand(operation))
        return self._reply(told, operation, shows_result=True)

    def in_progress(self, operation: Operation) -> Reply:
        told = problem.operation_in_progress(operation, retry_after_ms=RETRY_AFTER_MS)
        return self._problem(told, operation)

    def nothing_to_show(self, operation: Operation, note: AttemptNote | None) -> Reply:
        """P6: no definite object is kept: 504 with the *recorded* knowledge."""
        return self._problem(self._unknown(operation, note, RETRY_AFTER_MS), operation)

    def not_sent(
        self, operation: Operation | None, verdict: Verdict | None, retry_after_ms: int | None
    ) -> Reply:
        """A claim that was withdrawn: nothing was sent by this call; the past decides what is told (R7)."""
        wait_ms = retry_after_ms or RETRY_AFTER_MS
        if operation is not None and operation.knowledge is not Knowledge.NOT_EXECUTED:
            return self._problem(self._unknown(operation, None, wait_ms), operation)
        told = problem.upstream_unavailable(
            why=_why(verdict) if verdict else "nothing was sent",
            retry_after_ms=wait_ms,
            key=operation.key if operation else self.given_key(),
            operation=operation.id if operation else None,
        )
        if operation is not None:
            return self._problem(told, operation)
        return Reply(self._render(told), Marks(Knowledge.NOT_EXECUTED, 0, None, self.given_key()))

    def store_unavailable(self, retry_after_ms: int) -> Reply:
        """D3: this call sent nothing; what came before can't be read."""
        told = problem.store_unavailable(retry_after_ms=retry_after_ms, key=self.given_key())
        return Reply(self._render(told), Marks(Knowledge.UNKNOWN, 0, None, self.given_key()))

    def given_key(self) -> Key | None:
        """The key where it is known without the store."""
        return None if isinstance(self.claim.key, SeqKey) else self.claim.key

    # --- parts ----------------------------------------------------------------------------------------------

    def _unknown(self, operation: Operation | None, note: AttemptNote | None, wait_ms: int) -> Problem:
        answered = note is not None and note.status is not None
        return problem.result_unknown(
            key=operation.key if operation else self.given_key(),
            operation=operation.id if operation else None,
            retry_after_ms=wait_ms,
            last_answer=problem.last_answer(note.status, note.code)
            if answered and note is not None and note.status is not None
            else (),
            related_resource_id=operation.resource_id if operation else None,
            is_looked_up=self.claim.route.lookup is not None,
        )

    def _problem(self, told: Problem, operation: Operation, *, knowledge: Knowledge | None = None) -> Reply:
        return self._reply(self._render(told), operation, knowledge=knowledge)

    def _render(self, told: Problem) -> Response:
        return render(told, self.platform.error_shape)

    def _reply(
        self,
        response: Response,
        operation: Operation,
        *,
        knowledge: Knowledge | None = None,
        replayed: bool = False,
        shows_result: bool = False,
    ) -> Reply:
        """`shows_result`: the caller learns the operation's definite result from it; only that counts (K3)."""
        marks = Marks(
            knowledge or operation.knowledge,
            operation.attempt_count,
            operation.id,
            self.claim.key if isinstance(self.claim.key, str) else operation.key,
            replayed,
        )
        due = shows_result and _is_counted(self.claim.route) and is_failure(self.claim.route, operation)
        deliver = operation if due and not operation.failure_delivered else None
        return Reply(response, marks, confirm_delivery=deliver)


_KNOWN = {Outcome.EXECUTED: Knowledge.EXECUTED, Outcome.PENDING: Knowledge.PENDING}


def _is_counted(route: Route) -> bool:
    """Whether the route's keys count submissions on a subject (K3)."""
    return route.key.template is not None and "{seq}" in route.key.template


def _asked_ms(verdict: Verdict) -> int:
    """What the platform asked to wait, kept for the caller, also "not at all" (R8 c)."""
    return RETRY_AFTER_MS if verdict.retry_after_ms is None else verdict.retry_after_ms


def _why(verdict: Verdict) -> str:
    return f"{verdict.detail} ({verdict.cause})" if verdict.cause else verdict.detail


def _knowledge(state: State | None, verdict: Verdict) -> Knowledge:
    if state is State.NOT_EXECUTED:
        return Knowledge.NOT_EXECUTED
    return _KNOWN.get(verdict.outcome, Knowledge.UNKNOWN)


def _response(stored: StoredAnswer) -> Response:
    """The stored answer as a response. A body that was withheld (D4) is empty, its type left out."""
    headers: Headers = stored.headers
    if stored.body is None:
        headers = tuple(field for field in headers if not field[0].lower().startswith(b"content-"))
    return Response(stored.status, headers, stored.body or b"", stored.reason)
