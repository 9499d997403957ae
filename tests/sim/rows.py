"""Every write of the ledger, held against the state table, and counted for coverage.

The table says which moves exist; here stands which verb may make which of them, also several in one step. What
the core checks of itself is not trusted: the rows are looked up anew for each write.
"""

from __future__ import annotations

from collections import Counter

from proxy.core.evidence import ABSENT
from proxy.core.model import EntryKind, Operation, Outcome, State, replace
from proxy.core.states import TABLE, Move
from proxy.core.tables import Verb

Path = tuple[Move, ...]
Edge = tuple[State | None, Move, State | None]
M = Move

BY_THE_LEADER = frozenset({M.RECORD_ATTEMPT, M.SETTLE_NOT_EXECUTED})
"""Moves that need the lease (P5); a definite answer is true whoever brings it."""

VERBS: dict[str, tuple[Path, ...]] = {
    "reserve": ((M.RESERVE,), (M.LAPSE, M.RESERVE)),
    "record_attempt": ((M.RECORD_ATTEMPT,),),
    "renew": ((), (M.RECORD_ATTEMPT,)),
    "settle": (
        (),
        (M.SETTLE_DEFINITE,),
        (M.SETTLE_NOT_EXECUTED,),
        (M.SETTLE_UNKNOWN,),
        (M.SETTLE_DEFINITE, M.EVIDENCE),
        (M.SETTLE_UNKNOWN, M.EVIDENCE),
    ),
    "update": ((M.SETTLE_DEFINITE,),),
    "deliver": ((),),
    "answered_early": ((),),
    "withdraw": ((M.WITHDRAW,), (M.SETTLE_UNKNOWN,)),
    "admit": (
        (),
        (M.SETTLE_DEFINITE,),
        (M.RESERVE, M.SETTLE_UNKNOWN),
        (M.LAPSE, M.SETTLE_DEFINITE),
        (M.LAPSE, M.RESERVE, M.SETTLE_UNKNOWN),
    ),
    "evidence": ((), (M.EVIDENCE,), (M.LAPSE, M.EVIDENCE)),
    "take_lookup": ((), (M.LAPSE,)),
    "end_lookup": (
        (),
        (M.EVIDENCE,),
        (M.MISSES,),
        (M.OVERDUE,),
        (M.LAPSE,),
        (M.MISSES, M.OVERDUE),
        (M.EVIDENCE, M.OVERDUE),
        (M.LAPSE, M.EVIDENCE),
        (M.LAPSE, M.OVERDUE),
        (M.LAPSE, M.EVIDENCE, M.OVERDUE),
    ),
    "lapse": ((M.LAPSE,),),
    "by_hand": ((M.BY_HAND,), (M.LAPSE, M.BY_HAND)),
    "purge": ((M.PURGE,),),
}


def _walks(path: Path, source: State | None) -> list[tuple[Edge, ...]]:
    if not path:
        return [()]
    found = []
    for row in TABLE:
        if row.move is path[0] and source in row.sources:
            for target in row.targets:
                found += [((source, path[0], target), *rest) for rest in _walks(path[1:], target)]
    return found


def _legal() -> dict[tuple[str, State | None, State | None], tuple[Edge, ...]]:
    """For each verb and change of state the shortest way over the table's rows."""
    legal: dict[tuple[str, State | None, State | None], tuple[Edge, ...]] = {}
    for verb, paths in VERBS.items():
        for path in sorted(paths, key=len):
            for source in (None, *State):
                for walk in _walks(path, source):
                    target = walk[-1][2] if walk else source
                    legal.setdefault((verb, source, target), walk)
    return legal


LEGAL = _legal()
EDGES = frozenset(edge for walk in LEGAL.values() for edge in walk)


def _tells_an_end(before: Operation, after: Operation) -> bool:
    """Whether all that is new is how an attempt ended whose run evidence overtook: no move, only its story."""
    if replace(before, attempts=after.attempts) != after or len(before.attempts) != len(after.attempts):
        return False
    pairs = [(old, new) for old, new in zip(before.attempts, after.attempts, strict=True) if old != new]
    told = all(old.ended_ms is None and (old.n, old.fence) == (new.n, new.fence) for old, new in pairs)
    return bool(pairs) and told


class Rows:
    """Checks and counts the writes of one world. `lossy`: the store may lose records (D6)."""

    def __init__(self) -> None:
        self.taken: Counter[Edge] = Counter()
        self.lossy = False

    def wrote(
        self, verb: Verb[object], before: Operation | None, after: Operation | None, boot_ms: int, boot: str
    ) -> str:
        """What is wrong with the write, empty if nothing is."""
        source = before.state if before else None
        target = after.state if after else None
        if verb.name == "purge" and before is not None and not before.tracked:
            return ""  # U2: an unknown checkout session is no money, and dropped after retention
        if before and after and _tells_an_end(before, after):
            return ""
        walk = LEGAL.get((verb.name, source, target))
        if walk is None:
            return f"{verb.name}: {source} -> {target} is no row of the state table"
        self.taken.update(walk)
        if before and after and not walk and before.version != after.version:
            is_overdue = target is State.MANUAL_REVIEW  # pending, and at once under review again
            self.taken[source, M.EVIDENCE, State.PENDING if is_overdue else target] += 1
        if before and after and not walk and verb.name == "end_lookup" and _newly_absent(before, after):
            self.taken[source, M.MISSES, State.ABSENT] += 1  # absent, and at once under review again
        lapses = any(move is M.LAPSE for _, move, _ in walk)
        if lapses and after is not None and not (after.doubt or after.by_hand == ABSENT):
            return f"{verb.name}: a dead leader's attempt left no doubt"
        if before is None or after is None:
            if verb.name == "withdraw" and before is not None and before.doubt:
                return "a claim with doubt was dropped"
            return ""
        run = getattr(verb, "operation", None)
        leads = isinstance(run, Operation) and (run.fence, run.owner) == (before.fence, before.owner)
        if any(edge[1] in BY_THE_LEADER for edge in walk) and not leads:
            return f"{verb.name}: written by a run that no longer leads"
        return self._compared(verb.name, before, after, boot_ms, boot)

    def _compared(self, verb: str, before: Operation, after: Operation, boot_ms: int, boot: str) -> str:
        if after.fence < before.fence:
            return f"{verb}: the fence went back from {before.fence} to {after.fence}"
        alive = before.lease_epoch == boot and before.lease_until_ms > boot_ms
        if before.state is State.IN_FLIGHT and alive and after.owner not in (before.owner, None):
            return f"{verb}: a living lease changed its owner"
        if before.state is State.IN_FLIGHT and alive and after.fence != before.fence:
            return f"{verb}: a living lease lost its fence"
        if verb != "withdraw" and after.attempt_count < before.attempt_count:
            return f"{verb}: attempts were forgotten"
        if before.doubt and not after.doubt:
            proven = verb == "settle" and after.state is State.NOT_EXECUTED and _was_absent(before)
            by_hand = verb == "by_hand" and after.by_hand == "absent"
            if not proven and not by_hand:
                return f"{verb}: doubt was forgotten"
        frees = verb == "settle" and after.state is State.NOT_EXECUTED and after.released and not before.doubt
        if frees and after.attempts[-1].outcome is not Outcome.RELEASED:
            return "settle: a key was released that the platform still holds"
        same = before.fingerprint == after.fingerprint
        accepted = verb == "admit" and after.state in (State.EXECUTED, State.PENDING)
        released = before.state is State.NOT_EXECUTED and (before.released or verb == "admit")
        if not same and not (released or accepted):
            return f"{verb}: a key that was not released changed its fingerprint"
        if (
            same
            and not released
            and before.version is not None
            and (after.version is None or after.version < before.version)
        ):
            return f"{verb}: version {before.version} was replaced by {after.version}"
        return ""


def _newly_absent(before: Operation, after: Operation) -> bool:
    return after.absent_at_attempt is not None and before.absent_at_attempt != after.absent_at_attempt


def _was_absent(operation: Operation) -> bool:
    return operation.absent_at_attempt is not None and operation.attempt_count > operation.absent_at_attempt


def told_by_hand(operation: Operation) -> bool:
    """Whether a person ever settled it: what is told then rests on that person's word."""
    return any(entry.kind is EntryKind.BY_HAND for entry in operation.history)


def written_anew(operation: Operation) -> bool:
    """Whether it was sent without the store, or lost by it: another key may have come in between (D3, D6)."""
    return any(entry.kind is EntryKind.WRITTEN_ANEW for entry in operation.history)
