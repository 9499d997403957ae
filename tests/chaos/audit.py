"""The audit: the bank's ledger, the store and what callers were told, compared line by line.

A pure function over the three logs. Each check is one sentence of the contract and yields what contradicts it;
none trusts the product's own account of itself where the bank's or the callers' can be asked. What callers were
told is judged by status, by body and by `Safepost-Knowledge`, each on its own: many clients read only one.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from tests.chaos.forwarding import Memory, beyond_bounds
from tests.chaos.logs import Arrival, Call, Entry, Logs, Stored

RELEASING: Final = frozenset({"400", "401", "403", "422"})
"""The bank's refusals that leave the key free for other parameters (P7)."""

OF_ANOTHER: Final = frozenset({"idempotency_conflict", "operation_in_progress", "result_unknown"})
"""Codes of a 409 that tell of another call's claim."""

FINAL: Final = frozenset({"succeeded", "failed", "canceled", "expired"})

NOT_DONE_STATUSES: Final = frozenset({400, 401, 403, 404, 405, 413, 415, 422, 425, 429})
NOT_DONE_CODES: Final = frozenset({"temporarily_unavailable", "upstream_unavailable", "rate_limited"})
"""How a client that knows no `Safepost-` header hears that nothing was done."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One contradiction. `rule` names the promise, `about` the order, key or process."""

    rule: str
    about: str
    text: str

    def __str__(self) -> str:
        return f"{self.rule} | {self.about} | {self.text}"


@dataclass(frozen=True, slots=True)
class Index:
    """The logs by what they are asked for."""

    logs: Logs
    effects: dict[str, list[Entry]]  # by key; keys name their route, so that none serves two
    stored: dict[tuple[str, str], Stored]
    calls: dict[tuple[str, str], list[Call]]  # by path and key
    nameless: dict[tuple[str, str], list[Call]]  # by path and order: no answer told the key that was made
    sent: dict[tuple[str, str], Arrival]  # by path and key: the request that the bank acted on
    memory: Memory  # of what was forwarded without the store

    @classmethod
    def of(cls, logs: Logs) -> Index:
        effects: dict[str, list[Entry]] = defaultdict(list)
        for entry in logs.bank.entries:
            effects[entry.key].append(entry)
        calls: dict[tuple[str, str], list[Call]] = defaultdict(list)
        nameless: dict[tuple[str, str], list[Call]] = defaultdict(list)
        for call in logs.calls:
            if call.any_key is not None:
                calls[call.path, call.any_key].append(call)
            else:
                nameless[call.path, call.order].append(call)
        stored = {(one.path, one.key): one for one in logs.store}
        sent: dict[tuple[str, str], Arrival] = {}
        for arrival in sorted(logs.bank.arrivals, key=lambda one: one.seq):
            if arrival.executed and not arrival.answer.startswith("4"):
                sent.setdefault((arrival.path, arrival.key), arrival)
        return cls(logs, effects, stored, calls, nameless, sent, Memory.of(logs))


def audit(logs: Logs) -> list[Violation]:
    """Everything in the logs that contradicts a promise; empty for a run that kept them all."""
    index = Index.of(logs)
    return [found for check in CHECKS for found in check(index)]


def order_is_charged_at_most_once(index: Index) -> Iterator[Violation]:
    """The promise itself. A refund number moves money at most once, too."""
    charges: dict[str, list[Entry]] = defaultdict(list)
    refunds: dict[str, list[Entry]] = defaultdict(list)
    for entry in index.logs.bank.entries:
        if entry.kind == "charge":
            charges[entry.order].append(entry)
        elif entry.kind == "refund":
            refunds[entry.refund or entry.key].append(entry)
    for what, found in (("charged", charges), ("refunded", refunds)):
        for about, entries in found.items():
            if len(entries) > 1:
                keys = ", ".join(f"{one.key}@{one.payment}" for one in entries)
                yield Violation("at most one effect", about, f"{what} {len(entries)} times: {keys}")


def effect_is_of_what_was_asked(index: Index) -> Iterator[Violation]:
    """Each charge has the amount of a call with its key, and a caller who asked for it."""
    amounts: dict[str, set[int]] = defaultdict(set)
    for call in index.logs.calls:
        if call.amount is not None:
            amounts[call.order].add(call.amount)
    for entry in index.logs.bank.entries:
        asked = amounts.get(entry.order)
        if asked is None:
            yield Violation("nothing unasked", entry.order, f"{entry.kind} by {entry.key}; no caller asked")
        elif entry.kind == "charge" and entry.amount not in asked:
            yield Violation("nothing unasked", entry.order, f"charged {entry.amount}; asked were {asked}")


def nobody_is_told_not_done_about_an_effect(index: Index) -> Iterator[Violation]:
    """H8, R8: by status, code or knowledge; an effect that came later needs another call to explain it."""
    for call in index.logs.calls:
        key = call.any_key
        how = _says_not_done(call)
        if key is None or how is None:
            continue
        for entry in index.effects.get(key, ()):
            sent = index.sent.get((call.path, key))
            sent_ms = sent.at_ms if sent is not None else entry.at_ms
            was_elsewhere = index.memory.holds_until(sent) >= call.began_ms
            if not was_elsewhere and not _is_explained(index, call, key, sent_ms):
                yield Violation(
                    "never 'not done' about an effect",
                    key,
                    f"call {call.n} ({call.caller}, {call.began_ms} to {call.ended_ms}) was told {how};"
                    f" {entry.kind} at {entry.at_ms}, asked for at {sent_ms} by call {sent and sent.call}",
                )


def _says_not_done(call: Call) -> str | None:
    """In which words the caller was told that nothing happened; None if it was not."""
    if not call.status:
        return None
    if call.knowledge == "not_executed":
        return f"knowledge not_executed (status {call.status})"
    if call.status in NOT_DONE_STATUSES:
        return f"status {call.status} {call.code} (knowledge {call.knowledge})"
    if call.code in NOT_DONE_CODES:
        return f"code {call.code} (knowledge {call.knowledge})"
    return None


def _is_explained(index: Index, call: Call, key: str, sent_ms: int) -> bool:
    """Whether another call may have brought the effect after this one's truth was found.

    One that began later may; one that ran beside it may, if it ended later. What was sent before this call
    began, or by a call that was over with a 504 before, explains nothing: that is the doubt to be kept.
    """
    if sent_ms < call.began_ms:
        return False
    return any(
        other.n != call.n
        and other.began_ms <= sent_ms
        and (
            other.began_ms >= call.began_ms
            or not other.status
            or (other.status not in (409, 504) and other.ended_ms >= call.ended_ms)
            or _led_after(index, other, call)
        )
        for other in (
            *index.calls.get((call.path, key), ()),
            *index.nameless.get((call.path, call.order), ()),
        )
    )


def _led_after(index: Index, other: Call, call: Call) -> bool:
    """Whether a call in doubt that began first had its only attempt after this one was told of the one before.

    It lay in the socket of a process that stood still, or followed a claim that was taken back. The ledger counts
    attempts in the order of their claims, and the bank heard nothing of it until this call was answered.
    """
    sent = [one.at_ms for one in index.logs.bank.arrivals if one.call == other.n]
    return (
        other.status == 504
        and other.operation == call.operation
        and other.attempts > call.attempts
        and len(sent) == 1
        and sent[0] >= call.ended_ms
    )


def nobody_is_told_failed_about_a_charge(index: Index) -> Iterator[Violation]:
    """A declined card and a charge exclude each other: one key is one try at the bank."""
    for call in index.logs.calls:
        key = call.any_key
        if key is None or not (call.status == 402 or call.object_status == "failed"):
            continue
        for entry in index.effects.get(key, ()):
            if entry.kind != "cancel":
                yield Violation(
                    "never 'failed' about an effect",
                    key,
                    f"call {call.n} ({call.caller}) was told {call.status} {call.object_status};"
                    f" {entry.kind} of {entry.amount} at {entry.at_ms}",
                )


def success_that_was_told_has_its_effect(index: Index) -> Iterator[Violation]:
    """Who was told `succeeded` can ship: the bank has the money of that order, or the refund."""
    charged = {entry.order for entry in index.logs.bank.entries if entry.kind == "charge"}
    refunded = {entry.refund for entry in index.logs.bank.entries if entry.kind == "refund"}
    for call in index.logs.calls:
        if call.object_status != "succeeded" or not 200 <= call.status < 300:
            continue
        number = call.submission.partition(" ")[2]
        is_there = number in refunded if call.path == "/v1/refunds" else call.order in charged
        if not is_there:
            yield Violation("'succeeded' is true", call.order, f"call {call.n} ({call.caller}): no effect")


def success_shows_the_platforms_object(index: Index) -> Iterator[Violation]:
    """R8 c: a 2xx without the object would be read as success, and nobody knows of what."""
    for call in index.logs.calls:
        if 200 <= call.status < 300 and call.object_id is None:
            yield Violation("2xx shows the object", call.order, f"call {call.n}: {call.status} without one")


def what_was_sent_was_recorded_first(index: Index) -> Iterator[Violation]:
    """R1: nothing is sent before its claim is durable, so each key that the bank saw is in the store."""
    if not index.logs.bank.is_complete:
        yield Violation("complete logs", "bank", "requests were forgotten before they were read")
    arrivals: dict[tuple[str, str], list[Arrival]] = defaultdict(list)
    for one in index.logs.bank.arrivals:
        arrivals[one.path, one.key].append(one)
    for path, key in sorted(arrivals.keys() - index.stored.keys()):
        if index.memory.is_forgotten(arrivals[path, key]):
            continue  # D3: kept in memory, and its process ended while the store was away
        seen = "; ".join(index.memory.story_of(one) for one in arrivals[path, key])
        yield Violation("recorded before sent", key, f"{path}: the store has no operation. {seen}")


def what_was_told_is_remembered(index: Index) -> Iterator[Violation]:
    """An operation that a caller was told of, and that may have been sent, is in the store at the end.

    Who is told of another call (a conflict, a wait that timed out, a guard) may be told of a claim that is taken
    back unsent: its own process knows, the ledger does not yet.
    """
    kept = {one.id for one in index.logs.store}
    for call in index.logs.calls:
        is_of_another = call.status == 409 and call.code in OF_ANOTHER
        may_be_sent = call.attempts > 0 and call.knowledge != "not_executed" and not is_of_another
        if call.operation is not None and may_be_sent and call.operation not in kept:
            yield Violation(
                "no operation is lost",
                call.operation,
                f"call {call.n} ({call.caller}) was told {call.status} {call.knowledge} of {call.any_key}",
            )


def store_agrees_with_the_bank(index: Index) -> Iterator[Violation]:
    """After the calm each effect is known, and no effect is claimed that isn't there."""
    creators: dict[str, set[str]] = defaultdict(set)
    for arrival in index.logs.bank.arrivals:
        one = index.stored.get((arrival.path, arrival.key))
        if one is not None and one.route == "create_payment":
            creators[one.subject.removeprefix("order:")].add(one.key)
    for one in index.logs.store:
        effects = index.effects.get(one.key, [])
        if index.memory.is_forgotten([index.sent.get((one.path, one.key))]):
            continue
        if effects and one.knowledge != "executed":
            yield Violation(
                "each effect becomes known",
                one.key,
                f"{effects[0].kind} at the bank; the store says {one.state} ({one.knowledge})",
            )
        if effects and one.status == "failed":
            yield Violation("each effect becomes known", one.key, "the store says failed about an effect")
        order = one.subject.removeprefix("order:")
        if (
            one.route != "create_payment"
            or creators.get(order) != {one.key}
            or index.memory.has_forgotten(order)
        ):
            continue
        if order in index.logs.bank.payments and one.state in ("not_executed", "absent"):
            yield Violation("each effect becomes known", one.key, f"its payment exists; store: {one.state}")
        if order not in index.logs.bank.payments and one.knowledge == "executed":
            yield Violation("no effect is invented", one.key, f"no payment; store: executed {one.status}")


def nothing_is_left_in_flight(index: Index) -> Iterator[Violation]:
    """After the calm no run is under way, and what is unclear is looked for or waits for a person."""
    for one in index.logs.store:
        if one.state == "in_flight":
            yield Violation("nothing hangs", one.key, f"{one.route} is still in flight")
        elif one.state == "unknown" and not one.has_next_lookup and one.route != "create_checkout_session":
            yield Violation("nothing hangs", one.key, f"{one.route} is unknown and nobody looks")


def submission_has_one_key(index: Index) -> Iterator[Violation]:
    """K3: until a definite failure was given to a caller, a submission's made key is the same."""
    keys: dict[str, set[str]] = defaultdict(set)
    for call in index.logs.calls:
        is_made = call.key is None and call.told_key is not None and call.operation is not None
        if is_made and call.told_key is not None and not _lay_waiting(index, call):
            keys[call.submission].add(call.told_key)
    for submission, told in keys.items():
        if len(told) > 1:
            yield Violation("one key for a submission", submission, f"told {', '.join(sorted(told))}")


def _lay_waiting(index: Index, call: Call) -> bool:
    """Perhaps in the socket of a process that stood still: it counts from when that went on (guarantees.md)."""
    return any(
        one.what == "frozen" and call.began_ms <= one.ended_ms <= call.ended_ms for one in index.logs.troubles
    )


def key_is_sent_with_one_body(index: Index) -> Iterator[Violation]:
    """P2: other fields under a key reach the bank only after it was released, and never after an effect."""
    amounts = {call.body_sha256: call.amount for call in index.logs.calls}
    by_key: dict[tuple[str, str], list[Arrival]] = defaultdict(list)
    for arrival in sorted(index.logs.bank.arrivals, key=lambda one: one.seq):
        by_key[arrival.path, arrival.key].append(arrival)
    for (_, key), arrivals in by_key.items():
        for n, (before, after) in enumerate(itertools.pairwise(arrivals), 1):
            first, second = amounts.get(before.body_sha256), amounts.get(after.body_sha256)
            if first == second or before.answer in RELEASING:
                continue
            if not index.memory.leaves_it_to_the_bank(arrivals[:n], after):
                yield Violation(
                    "one body for a key", key, f"{first}, answered {before.answer}, then {second} was sent"
                )


def one_version_is_told_in_one_way(index: Index) -> Iterator[Violation]:
    """P4: whoever is shown an object in one version is shown the same object."""
    seen: dict[tuple[str, int], tuple[str, int]] = {}
    for call in index.logs.calls:
        if call.object_id is None or call.version is None:
            continue
        body, n = seen.setdefault((call.object_id, call.version), (call.body, call.n))
        if body != call.body:
            yield Violation(
                "followers' answers are equal",
                call.object_id,
                f"version {call.version} told differently to calls {n} and {call.n}",
            )


def burst_has_one_outcome(index: Index) -> Iterator[Violation]:
    """P4: of calls sent at one moment with one key, none is told of another object or another operation."""
    groups: dict[int, list[Call]] = defaultdict(list)
    for call in index.logs.calls:
        is_told = call.group is not None and call.operation is not None and call.code is None
        if is_told and call.group is not None and not (call.key is None and _lay_waiting(index, call)):
            groups[call.group].append(call)
    for group, calls in groups.items():
        operations = {call.operation for call in calls}
        objects = {call.object_id for call in calls if call.object_id is not None}
        if len(operations) > 1 or len(objects) > 1:
            text = f"operations {sorted(map(str, operations))}, objects {sorted(objects)}"
            yield Violation("followers' answers are equal", f"burst {group}", text)


def guard_held_while_unknown(index: Index) -> Iterator[Violation]:
    """U1: another key on the subject does not pass while the first is in doubt."""
    for seen in index.logs.witnesses:
        if seen.call in index.memory.sidecars:
            continue  # D3: where the ledger can't be read, the platform's own number holds it back
        if seen.knowledge_of_first == "unknown" and seen.state_of_first != "in_flight":
            yield Violation(
                "held back while unknown",
                seen.first,
                f"{seen.second} went through while it was {seen.state_of_first}",
            )


def answers_say_what_is_known(index: Index) -> Iterator[Violation]:
    """H8: every guarded answer but a refusal made before the ledger was read carries the knowledge."""
    for call in index.logs.calls:
        if call.status and call.status not in (400, 413, 415) and call.knowledge is None:
            yield Violation(
                "answers say what is known",
                call.order,
                f"call {call.n}: {call.status} {call.code}, no knowledge",
            )


def knowledge_fits_the_answer(index: Index) -> Iterator[Violation]:
    """H8: a final status in a 2xx is executed, in the header as in the body."""
    for call in index.logs.calls:
        if 200 <= call.status < 300 and call.object_status in FINAL and call.knowledge != "executed":
            text = f"call {call.n}: {call.status} {call.object_status}, marked {call.knowledge}"
            yield Violation("knowledge fits the answer", call.order, text)


def forwarding_keeps_its_bounds(index: Index) -> Iterator[Violation]:
    """D3: only where it is configured, on routes with a number of their own, while the store is away, once."""
    for order, text in beyond_bounds(index.memory):
        yield Violation("forwarded only as allowed", order, text)


def processes_behaved(index: Index) -> Iterator[Violation]:
    for incident in index.logs.incidents:
        yield Violation("processes behave", "process", incident)


Check = Callable[[Index], Iterator[Violation]]

CHECKS: Final[tuple[Check, ...]] = (
    order_is_charged_at_most_once,
    effect_is_of_what_was_asked,
    nobody_is_told_not_done_about_an_effect,
    nobody_is_told_failed_about_a_charge,
    success_that_was_told_has_its_effect,
    success_shows_the_platforms_object,
    what_was_sent_was_recorded_first,
    what_was_told_is_remembered,
    store_agrees_with_the_bank,
    nothing_is_left_in_flight,
    submission_has_one_key,
    key_is_sent_with_one_body,
    one_version_is_told_in_one_way,
    burst_has_one_outcome,
    guard_held_while_unknown,
    answers_say_what_is_known,
    knowledge_fits_the_answer,
    forwarding_keeps_its_bounds,
    processes_behaved,
)
