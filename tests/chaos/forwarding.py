"""What contract D3 allows where calls are forwarded while the store is away, and nothing more.

A forwarded call is sent once, its operation is in its sidecar's memory until the store is back, and a process that
ends before that takes it along. Until it is written no other sidecar knows of it, so the platform's own rules (one
body for a key, one payment for an order) are all that stands between it and a second submission. Each allowance
here is for one call, in one stretch of trouble with the store; what was not forwarded gets none.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tests.chaos.logs import Arrival, Call, Logs, Trouble

CREATE: Final = "/v1/payments"
PATHS: Final = frozenset({CREATE, "/v1/refunds"})
"""Where the platform has a number of its own. Confirms and cancels are never forwarded."""

REFUSALS: Final = frozenset({"400", "401", "403", "404", "422", "429", "503"})

SLACK_MS: Final = 6_000
"""After trouble: a verb's time limit, the next look at the store, and what is owed written, on a busy machine."""
SILENT_MS: Final = 900
"""A call that took less was not forwarded because the store let the time limit of a claim, a second, go by."""

LAST_WORDS_MS: Final = 500
"""A process that ended this shortly after it sent may not have got its log line out, where everything is slow."""

FOREVER: Final = math.inf


@dataclass(frozen=True, slots=True)
class Memory:
    """Which calls were forwarded, and how long what they did was in one process's memory alone."""

    sidecars: dict[int, str]  # by call
    calls: dict[int, Call]
    logs: Logs
    spans: Sequence[tuple[int, int]]  # of trouble, merged
    makers: dict[str, list[Arrival]]  # by order: what made its payment, or found it made

    @classmethod
    def of(cls, logs: Logs) -> Memory:
        sidecars = {one.call: one.sidecar for one in logs.forwards}
        calls = {call.n: call for call in logs.calls}
        makers: dict[str, list[Arrival]] = defaultdict(list)
        for arrival in logs.bank.arrivals if logs.may_forward else ():
            call = calls.get(arrival.call or 0)
            if call is None:
                continue
            if arrival.executed and arrival.path == CREATE:
                makers[call.order].append(arrival)
            if _lost_its_words(logs, call, arrival):
                sidecars.setdefault(call.n, call.sidecar)
        return cls(sidecars, calls, logs, merged(logs.troubles), makers)

    def was_forwarded(self, arrival: Arrival | None) -> bool:
        return arrival is not None and arrival.call in self.sidecars and arrival.path in PATHS

    def holds_until(self, arrival: Arrival | None) -> float:
        """Until when one process alone may know of it; `FOREVER` where that ended. 0: it had to be recorded.

        That it was forwarded shows that the store was away for its sidecar, whatever the run knows of trouble:
        from there the slack counts, and trouble that comes before it is over adds its own.
        """
        if arrival is None or not self.was_forwarded(arrival) or arrival.call not in self.calls:
            return 0
        call, sidecar = self.calls[arrival.call], self.sidecars[arrival.call]
        until = arrival.at_ms + SLACK_MS
        for begin, end in self.spans:
            if begin <= until and end >= arrival.at_ms:
                until = max(until, end)
        has_ended = any(
            end.sidecar == sidecar and call.began_ms <= end.at_ms <= until for end in self.logs.ends
        )
        return FOREVER if has_ended else until

    def is_forgotten(self, arrivals: Iterable[Arrival | None]) -> bool:
        """Whether each of these was forwarded and left nothing, or its process ended before the store was back."""
        found = list(arrivals)
        return bool(found) and all(
            self.holds_until(one) == FOREVER or (self.was_forwarded(one) and _left_nothing(one))
            for one in found
        )

    def story_of(self, arrival: Arrival) -> str:
        """Who sent it, and what has to be known to judge that, for a person."""
        call = self.calls.get(arrival.call or 0)
        sidecar = self.sidecars.get(arrival.call or 0) or (call.sidecar if call else "nobody")
        how = "forwarded" if self.was_forwarded(arrival) else "not forwarded"
        end = next(
            (one.at_ms for one in self.logs.ends if one.sidecar == sidecar and one.at_ms >= arrival.at_ms),
            None,
        )
        trouble = [span for span in self.spans if span[0] <= arrival.at_ms <= span[1]]
        return (
            f"call {arrival.call} by {sidecar}, {how}, at {arrival.at_ms}, answered {arrival.answer}, "
            f"process ended at {end}, store in trouble {trouble or 'never then'}"
        )

    def has_forgotten(self, order: str) -> bool:
        """Whether all that made this order's payment was forwarded, and forgotten."""
        return self.is_forgotten(self.makers.get(order, ()))

    def leaves_it_to_the_bank(self, before: Sequence[Arrival], after: Arrival) -> bool:
        """Whether the bank alone could hold these bodies of one key apart.

        The last one was forwarded; or the one before it was, and left nothing, or nobody else could know of it;
        or an earlier one was, and whoever sent these two could not know of that.
        """
        last = before[-1]
        if self.was_forwarded(after) or (self.was_forwarded(last) and not last.executed):
            return True
        return self.holds_until(last) >= after.at_ms or any(
            self.holds_until(one) >= last.at_ms for one in before[:-1]
        )

    def is_amid_trouble(self, at_ms: int) -> bool:
        return any(begin <= at_ms <= end for begin, end in self.spans)


def _left_nothing(arrival: Arrival | None) -> bool:
    """The bank refused it without acting on it, and said so."""
    return arrival is not None and not arrival.executed and arrival.answer in REFUSALS


def _lost_its_words(logs: Logs, call: Call, arrival: Arrival) -> bool:
    """What a process sent may also arrive when it is gone. An answer without a record names no operation."""
    is_unrecorded = not call.status or (call.operation is None and not call.attempts)
    return is_unrecorded and any(
        end.sidecar == call.sidecar and call.began_ms <= end.at_ms <= arrival.at_ms + LAST_WORDS_MS
        for end in logs.ends
    )


def merged(troubles: Iterable[Trouble]) -> list[tuple[int, int]]:
    """Stretches of time with trouble, each with the slack after it."""
    spans: list[tuple[int, int]] = []
    for trouble in sorted(troubles, key=lambda one: one.began_ms):
        begin, end = trouble.began_ms, trouble.ended_ms + SLACK_MS
        if spans and begin <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
        else:
            spans.append((begin, end))
    return spans


def beyond_bounds(memory: Memory) -> Iterator[tuple[str, str]]:
    """What was forwarded against D3: the order, and what was wrong."""
    logs = memory.logs
    calls = {call.n: call for call in logs.calls}
    sends = Counter(arrival.call for arrival in logs.bank.arrivals)
    arrived_ms = {arrival.call: arrival.at_ms for arrival in logs.bank.arrivals}
    for one in logs.forwards:
        call = calls.get(one.call)
        if call is None:
            continue  # its caller was stopped with the run
        about = f"call {call.n} ({call.caller}) at {one.sidecar}"
        if not logs.may_forward:
            yield call.order, f"{about}: store.on_failure is reject"
        if call.path not in PATHS:
            yield call.order, f"{about}: {call.path}"
        if sends[call.n] > 1:
            yield call.order, f"{about}: sent {sends[call.n]} times"
        if call.status and (call.knowledge == "not_executed" or call.operation is not None):
            yield (
                call.order,
                f"{about}: told {call.knowledge} of {call.operation}; the ledger could say neither",
            )
        # A caller who left tells nothing of when it was sent; what never arrived may have been sent at any time.
        known_ms = arrived_ms.get(call.n, call.ended_ms if call.status else call.began_ms + SILENT_MS)
        is_late = known_ms - call.began_ms >= SILENT_MS
        if not is_late and not any(map(memory.is_amid_trouble, (call.began_ms, known_ms))):
            yield call.order, f"{about}: the store was there"
