"""How a run ends when its attempts end without a definite answer (contract R8)."""

from __future__ import annotations

from proxy.core.answers import Voice
from proxy.core.classify import Verdict
from proxy.core.http import Answered
from proxy.core.messages import AttemptNote, Fact, OutcomeConflict, Settle
from proxy.core.model import EntryKind, Operation, Outcome, State, replace
from proxy.core.settle import absence_holds, with_end

STATE_OF = {Outcome.EXECUTED: State.EXECUTED, Outcome.PENDING: State.PENDING}


def ending(
    voice: Voice,
    record: Operation,
    note: AttemptNote,
    verdict: Verdict,
    *,
    last: Answered | None,
    retry_after_ms: int | None,
) -> Settle:
    """What the ledger is told of the run, and with it what its caller and its followers get.

    A refusal after an attempt in doubt proves nothing about that attempt, save by U3.

    Args: last: the last answer that this call got; `note` and `verdict` are of the last attempt, which may
        have got none.
    """
    ended = with_end(record, note)
    response = last.response if last else None
    if not ended.doubt or absence_holds(ended, note):
        told = response or voice.unavailable(record, verdict, retry_after_ms)
        state, released = State.NOT_EXECUTED, verdict.outcome is Outcome.RELEASED
    else:
        passes = response is not None and verdict.passes and note.status == response.status
        told = response if response is not None and passes else voice.unknown(ended, verdict, note)
        state, released = State.UNKNOWN, False
    answer = voice.stored(ended, told, verdict, note, from_platform=told is response, state=state)
    return Settle(record, state, note, answer, None, released)


def as_answered(operation: Operation, verdict: Verdict) -> Operation:
    """The operation as a definite answer shows it, where the store could not take that in."""
    status = verdict.seen.status if verdict.seen else None
    return replace(operation, state=STATE_OF[verdict.outcome], status=status)


def new_conflict(before: Operation | None, operation: Operation) -> tuple[Fact, ...]:
    """That the ledger's last word on it is a conflict, unless it was so before this call's write."""
    last = operation.history[-1:]
    is_new = (
        last
        and last[0].kind is EntryKind.OUTCOME_CONFLICT
        and (before is None or before.history[-1:] != last)
    )
    return (OutcomeConflict(operation, last[0].text),) if is_new else ()
