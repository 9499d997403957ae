"""What must hold after every step, and at the end (architecture section 7).

Each promise is judged by what the bank did and by what callers were told, never by the product's own word.
"""

from __future__ import annotations

import json
from bisect import insort
from collections import Counter
from dataclasses import dataclass, field

from proxy.core.admit import AdmitUnrecorded
from proxy.core.fingerprint import differing
from proxy.core.guard import FIRST_START_MS
from proxy.core.messages import AttemptFinished, Claim, Fact, Reply, RetryPlanned
from proxy.core.model import Key, Knowledge, Operation, OperationId, State
from proxy.stores.memory import MemoryLedger
from tests.sim.bank import Bank, Effect
from tests.sim.platforms import Request, Setting
from tests.sim.rows import Rows, told_by_hand, written_anew
from tests.sim.world import World

Name = tuple[str, str, str]  # kind, thing, key
OPEN = frozenset({State.UNKNOWN, State.IN_FLIGHT, State.ABSENT})


@dataclass(slots=True)
class Told:
    """What callers were told of one submission: up to which step of the story it has to hold."""

    not_executed: int = -1
    failed: int = -1


@dataclass(eq=False, slots=True)
class Unrecorded:
    """One call that was sent without the store (D3), until the ledger has it.

    `begun_step`: since when its host knows of it. `is_lost`: with its host.
    """

    name: Name
    host: str
    begun_step: int
    is_lost: bool = False

    def is_unknown_to(self, host: str, asked_step: int) -> bool:
        """Whether a call for which `host` last asked then could not know of it. What it sent itself it knows."""
        mine = host == self.host and not self.is_lost
        return not (mine and self.begun_step < asked_step)


@dataclass
class Checks:
    """The watch over one world."""

    world: World
    setting: Setting
    ledger: MemoryLedger
    rows: Rows
    bank: Bank | None = None
    told: dict[tuple[Name, int], Told] = field(default_factory=dict)
    unrecorded: list[Unrecorded] = field(default_factory=list)
    forwarded: set[tuple[str, str]] = field(default_factory=set)  # things that calls were so sent for
    owed: dict[int, Unrecorded] = field(default_factory=dict)  # by the verb that will write it
    anew_step: dict[OperationId, int] = field(default_factory=dict)
    liars: set[Name] = field(default_factory=set)
    persons: set[Name] = field(default_factory=set)  # settled by hand against the truth
    bodies: dict[tuple[str, ...], bytes] = field(default_factory=dict)
    facts: Counter[str] = field(default_factory=Counter)
    ends: int = 0
    sleeps: int = 0
    submissions: Counter[str] = field(default_factory=Counter)  # of payments' confirms
    charges: Counter[str] = field(default_factory=Counter)
    replies: Counter[str] = field(default_factory=Counter)
    attempts: set[tuple[OperationId, int]] = field(default_factory=set)
    misses: dict[tuple[OperationId, int], list[int]] = field(default_factory=dict)
    looked_ms: dict[OperationId, int] = field(default_factory=dict)
    by_hand_ms: dict[OperationId, int] = field(default_factory=dict)

    def broken(self, promise: str) -> None:
        """A store that lost records can't keep every promise; what then is left is named in D6."""
        if self.rows.lossy:
            return
        raise self.world.broken(promise)

    # --- before a byte leaves ---------------------------------------------------------------------------------

    def sending(self, claim: Claim, held: Operation, n: int, claimed_step: int) -> None:
        """An attempt starts."""
        operation, fence = held.id, held.fence
        if (operation, n) in self.attempts:
            self.broken(f"attempt {n} of {operation} is sent twice")
        self.attempts.add((operation, n))
        record = self.ledger.operations.get(operation)
        if record is None or record.attempt_count < n:
            return self.broken(f"attempt {n} of {operation} leaves before it is recorded")
        if record.fence != fence:
            self.broken(f"attempt {n} of {operation} starts with fence {fence}, which is now {record.fence}")
        if differing(record.fingerprint, claim.fingerprints):
            self.broken(f"{operation}: other business fields than recorded reach the wire")
        if record.by_hand is not None:
            self.broken(f"{operation} was settled by hand and is sent again")
        self._subject(claim, record, claimed_step)
        return None

    def forwarding(self, operation: OperationId | None, decided_ms: int) -> None:
        """A call leaves without a lease: a repeat (P6), or while the store is down (D3).

        A person may settle the operation just as it does.
        """
        if self.world.now_ms - decided_ms > FIRST_START_MS:
            self.broken(
                f"{operation} is forwarded {self.world.now_ms - decided_ms} ms after that was decided"
            )
        if operation is None:
            return
        record = self.ledger.operations.get(operation)
        if record is None or record.by_hand is None:
            return
        if self.world.now_ms - self.by_hand_ms[operation] > FIRST_START_MS:
            self.broken(f"{operation} was settled by hand and is forwarded")

    def wrote(self, before: Operation | None, after: Operation) -> None:
        """The ledger has a new state of an operation."""
        if written_anew(after) and (before is None or not written_anew(before)):
            self.anew_step[after.id] = self.world.steps
        if after.by_hand is not None and (before is None or before.by_hand is None):
            self.by_hand_ms[after.id] = self.world.now_ms
        absent = after.absent_at_attempt
        if absent is not None and before is not None and before.absent_at_attempt != absent:
            self._absent(after)

    def _subject(self, claim: Claim, record: Operation, claimed_step: int) -> None:
        """U1: no other key's operation on the subject is open, unless it was written since the claim (D3)."""
        if not claim.route.guard.on:
            return
        for other in self.ledger.operations.values():
            if other.id == record.id or other.route != record.route:
                continue
            if self.anew_step.get(other.id, -1) >= claimed_step:
                continue
            is_open = other.state in OPEN or (other.state is State.MANUAL_REVIEW and not other.accepted)
            same = other.subject == record.subject or (other.twin is not None and other.twin == record.twin)
            if is_open and same:
                self.broken(f"{record.key} is sent while {other.key} on the same thing is {other.state}")

    # --- sent without the store (D3) --------------------------------------------------------------------------

    def sent_unrecorded(self, request: Request, key: Key, host: str) -> Unrecorded:
        sent = Unrecorded((request.kind, request.thing, str(key)), host, self.world.steps)
        self.unrecorded.append(sent)
        self.forwarded.add((request.kind, request.thing))
        return sent

    def owing(self, request: Request, host: str, claimed_step: int) -> None:
        """An attempt starts: what its own host had sent for this thing was written before the claim."""
        for one in self.unrecorded:
            if one.name[:2] == (request.kind, request.thing) and not one.is_unknown_to(host, claimed_step):
                self.broken(f"{request} is sent while {host} still owes {one.name[2]} to the ledger")

    def owes(self, sent: Unrecorded, verb: AdmitUnrecorded) -> None:
        self.owed[id(verb)] = sent

    def admitted(self, verb: AdmitUnrecorded) -> None:
        sent = self.owed.pop(id(verb), None)
        if sent is not None:
            self.written(sent)

    def written(self, sent: Unrecorded) -> None:
        """The ledger has it, perhaps as a doubt whose end is still to come; or it left nothing behind."""
        if sent in self.unrecorded:
            self.unrecorded.remove(sent)

    def lost_with(self, host: str) -> None:
        """What the host owed, or had on the wire, is nowhere any more."""
        for one in self.unrecorded:
            one.is_lost = one.is_lost or one.host == host

    # --- what the bank does -----------------------------------------------------------------------------------

    def effect(self, effect: Effect) -> None:
        """The bank acted."""
        assert self.bank is not None
        name = (effect.kind, effect.thing, effect.key)
        for other in self.bank.effects:
            if other is effect or other.kind != effect.kind or other.thing != effect.thing:
                continue
            if other.key == effect.key:
                self.broken(f"two effects for the key {effect.key} on {effect.thing}")
            lied = (other.kind, other.thing, other.key) in self.liars
            if other.is_good and effect.kind != "confirm" and not lied and not self.persons:
                self.broken(f"two effects on {effect.thing}: {other.key} and {effect.key}")
        told = self.told.get((name, effect.resource.amount if effect.kind != "confirm" else 0))
        if told is not None and name not in self.liars | self.persons:
            if effect.begun < told.not_executed:
                self.broken(f"{name} was told as not executed, and its attempt takes effect later")
            if effect.begun < told.failed and effect.is_good:
                self.broken(f"{name} was told as failed, and its attempt takes effect later")
        if effect.kind == "confirm":
            self.charges[effect.thing] += 1
            if self.charges[effect.thing] > self.submissions[effect.thing] > 0:
                self.broken(f"{effect.thing}: one submission charged twice")

    # --- what callers are told --------------------------------------------------------------------------------

    def tell(self, request: Request, reply: Reply, seen_step: int, *, asked: tuple[str, int]) -> None:
        """A caller is answered.

        Args: seen_step: when its call last looked at the ledger. asked: which host last asked, and when, what it
            owes itself.
        """
        marks = reply.marks
        record = self.ledger.operations.get(marks.operation) if marks.operation else None
        key = record.key if record is not None else marks.key or Key("")
        thing = request.thing
        name = (request.kind, thing, str(key))
        if name in self.liars | self.persons or (record is not None and told_by_hand(record)):
            return
        self.replies[f"{reply.answer.status} {marks.knowledge}"] += 1
        hidden = any(one.name == name and one.is_unknown_to(*asked) for one in self.unrecorded)
        if marks.knowledge is Knowledge.NOT_EXECUTED and not hidden:
            self._not_executed(name, request, reply, seen_step)
        if marks.knowledge is Knowledge.EXECUTED and _says_failed(reply):
            self._failed(name, request, seen_step)
        if marks.replayed and marks.knowledge is Knowledge.EXECUTED and 200 <= reply.answer.status < 300:
            self._same(str(marks.operation), reply.answer.body)

    def _not_executed(self, name: Name, request: Request, reply: Reply, step: int) -> None:
        amount = request.amount if request.kind != "confirm" else 0
        for effect in self._effects(name):
            if effect.begun < step and (request.kind == "confirm" or effect.resource.amount == amount):
                self.broken(f"{name} is told as not executed ({reply.answer.status}), and took effect")
        told = self.told.setdefault((name, amount), Told())
        told.not_executed = max(told.not_executed, step)

    def _failed(self, name: Name, request: Request, step: int) -> None:
        for effect in self._effects(name):
            if effect.is_good and effect.begun < step:
                self.broken(f"{name} is told as failed, and its charge is {effect.result or 'open'}")
        amount = request.amount if request.kind != "confirm" else 0
        told = self.told.setdefault((name, amount), Told())
        told.failed = max(told.failed, step)

    def _effects(self, name: Name) -> list[Effect]:
        assert self.bank is not None
        return [one for one in self.bank.effects if (one.kind, one.thing, one.key) == name]

    def _on(self, kind: str, thing: str) -> list[Effect]:
        assert self.bank is not None
        return [one for one in self.bank.effects if (one.kind, one.thing) == (kind, thing)]

    def _same(self, operation: str, body: bytes) -> None:
        """Replays equal: one version of one operation has one body."""
        if not body:
            return self.broken(f"{operation} is replayed without its body")
        try:
            shown = json.loads(body)
        except ValueError:
            return self.broken(f"{operation} is replayed as what is no object of the platform's: {body!r}")
        version = (operation, str(shown.get("version")), str(shown.get("status")))
        first = self.bodies.setdefault(version, body)
        if json.loads(first) != shown:
            self.broken(f"{operation} is replayed in two ways: {first!r} and {body!r}")
        return None

    # --- lookups ----------------------------------------------------------------------------------------------

    def missed(self, operations: tuple[OperationId, ...], *, at_ms: int) -> None:
        """A lookup for these found nothing, or nothing newer, and is about to be written."""
        for identity in operations:
            self.looked_ms[identity] = at_ms
            record = self.ledger.operations.get(identity)
            if record is not None:
                insort(self.misses.setdefault((identity, record.attempt_count), []), at_ms)

    def _absent(self, record: Operation) -> None:
        """U8: three misses since the last attempt, at least ten seconds apart."""
        seen = self.misses.get((record.id, record.attempt_count), [])
        if len(seen) < 3 or seen[-1] - seen[-3] < 20_000 - 1_000:
            self.broken(f"{record.key} is believed absent after lookups at {seen}")

    # --- facts ------------------------------------------------------------------------------------------------

    def fact(self, fact: Fact) -> None:
        self.facts[type(fact).__name__] += 1

    def facts_add_up(self) -> None:
        """Metrics come from facts only: each attempt's end and each planned retry is told once."""
        finished, planned = self.facts[AttemptFinished.__name__], self.facts[RetryPlanned.__name__]
        if (finished, planned) != (self.ends, self.sleeps):
            self.broken(
                f"{self.ends} attempts ended and {finished} are facts; {self.sleeps} waits, {planned} planned"
            )

    # --- the end ----------------------------------------------------------------------------------------------

    def settled(self) -> None:
        """The faults have stopped and time has passed: the ledger tells the truth about every operation."""
        for record in self.ledger.operations.values():
            if record.state is State.IN_FLIGHT:
                self.broken(f"{record.key} is still in flight long after every lease")
            if record.state is State.UNKNOWN and record.tracked:
                self.broken(f"{record.key} is still unknown: {record.lookups}")
            self._true(record)

    def _true(self, record: Operation) -> None:
        kind = {"create_payment": "create", "confirm_payment": "confirm", "create_refund": "refund"}.get(
            record.route
        )
        thing = (record.subject or "").partition(":")[2]
        name = (kind or "", thing, str(record.key))
        if kind is None or name in self.liars | self.persons or told_by_hand(record):
            return
        effects = self._effects(name)
        if record.state is State.NOT_EXECUTED and not any(one.name == name for one in self.unrecorded):
            wrong = [one for one in effects if kind == "confirm" or one.resource.amount == record.amount]
            if wrong:
                self.broken(f"{name} took effect and the ledger says not executed")
        mine = effects or [one for one in self._on(kind, thing) if kind != "confirm"]
        if record.state is State.EXECUTED and not mine and kind != "confirm":
            self.broken(f"{name} is held to have happened, and nothing did")
        # Evidence of a key that the ledger did not have yet was taken for this one's, which it was known by (D3).
        lied = (kind, thing) in self.forwarded or any(
            (one[0], one[1]) == (kind, thing) for one in (*self.liars, *self.persons)
        )
        if record.state is State.EXECUTED and not effects and not lied and _was_held_not_executed(record):
            self.broken(f"{name} did not happen, whatever another key did")
        # A confirm of whose payment nothing was known before shows nothing newer (U3); absent is no proof.
        if record.state is State.ABSENT and kind != "confirm" and any(one.is_good for one in effects):
            self.broken(f"{name} took effect and is still absent")
        if record.state is State.EXECUTED and kind != "confirm" and effects:
            shown = effects[-1].resource.status
            if record.version == effects[-1].resource.version and record.status != shown:
                self.broken(f"{name} is {record.status} in the ledger and {shown} at the bank")


def _was_held_not_executed(record: Operation) -> bool:
    return any("held to be not executed" in entry.text for entry in record.history)


def _says_failed(reply: Reply) -> bool:
    answer = reply.answer
    return answer.status == 402 or (200 <= answer.status < 300 and b'"status": "failed"' in answer.body)
