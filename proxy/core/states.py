"""The state table, as a literal: every write of the ledger is a row of it, or a bug (architecture section 3).

The simulator checks each write against it, and the picture in the docs is drawn from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from proxy.core.model import State


class Move(StrEnum):
    """Why an operation's state changes, or stays."""

    RESERVE = "reserve"
    RECORD_ATTEMPT = "record_attempt"
    SETTLE_DEFINITE = "settle executed or pending"
    SETTLE_NOT_EXECUTED = "settle not_executed"
    SETTLE_UNKNOWN = "settle unknown"
    WITHDRAW = "withdraw"
    LAPSE = "lease over"
    EVIDENCE = "evidence"
    MISSES = "three misses"
    OVERDUE = "schedule over"
    BY_HAND = "settled by a person"
    PURGE = "purge"


@dataclass(frozen=True, slots=True)
class Row:
    """From one of `sources`, `move` may lead to one of `targets`; None is "no record"."""

    sources: frozenset[State | None]
    move: Move
    targets: frozenset[State | None]
    condition: str


S = State


def _row(sources: set[State | None], move: Move, targets: set[State | None], condition: str) -> Row:
    return Row(frozenset(sources), move, frozenset(targets), condition)


TABLE: tuple[Row, ...] = (
    _row({None, S.NOT_EXECUTED}, Move.RESERVE, {S.IN_FLIGHT}, "subject free or ours; fingerprint (P2, P7)"),
    _row({S.UNKNOWN, S.ABSENT, S.MANUAL_REVIEW}, Move.RESERVE, {S.IN_FLIGHT}, "same key; P9; doubt kept"),
    _row({S.IN_FLIGHT, None}, Move.RECORD_ATTEMPT, {S.IN_FLIGHT}, "fence equal, or record lost"),
    _row(
        {S.IN_FLIGHT, S.UNKNOWN, S.ABSENT, S.MANUAL_REVIEW, S.PENDING, S.EXECUTED, S.NOT_EXECUTED, None},
        Move.SETTLE_DEFINITE,
        {S.EXECUTED, S.PENDING},
        "any fence; version not lower than recorded",
    ),
    _row(
        {S.IN_FLIGHT, None}, Move.SETTLE_NOT_EXECUTED, {S.NOT_EXECUTED}, "fence equal; never in doubt, or U3"
    ),
    _row({S.IN_FLIGHT, None}, Move.SETTLE_UNKNOWN, {S.UNKNOWN}, "fence equal"),
    _row(
        {S.IN_FLIGHT},
        Move.WITHDRAW,
        {None, S.NOT_EXECUTED, S.UNKNOWN, S.ABSENT, S.MANUAL_REVIEW},
        "fence equal, claimed and never sent: as before the claim",
    ),
    _row({S.IN_FLIGHT}, Move.LAPSE, {S.UNKNOWN}, "lease over: doubt set, never back to free"),
    _row(
        {S.IN_FLIGHT, S.UNKNOWN, S.ABSENT, S.PENDING, S.EXECUTED, S.MANUAL_REVIEW, S.NOT_EXECUTED},
        Move.EVIDENCE,
        {S.EXECUTED, S.PENDING},
        "U3; a version higher than recorded, or any where none is; no success undone by the latter",
    ),
    _row({S.UNKNOWN, S.MANUAL_REVIEW}, Move.MISSES, {S.ABSENT}, "U8: three misses over the lag"),
    _row({S.UNKNOWN, S.ABSENT, S.PENDING}, Move.OVERDUE, {S.MANUAL_REVIEW}, "from 24 h on; never failed"),
    _row(
        {S.UNKNOWN, S.ABSENT, S.MANUAL_REVIEW, S.PENDING},
        Move.BY_HAND,
        {S.EXECUTED, S.NOT_EXECUTED},
        "named person (C5)",
    ),
    _row({S.EXECUTED, S.NOT_EXECUTED}, Move.PURGE, {None}, "P9; unresolved ones never"),
)


class ImpossibleMoveError(Exception):
    """A write that is no row of the table: a bug in Safepost, never a state of the world."""


_ALLOWED: frozenset[tuple[State | None, Move, State | None]] = frozenset(
    (source, row.move, target) for row in TABLE for source in row.sources for target in row.targets
)


def check(source: State | None, move: Move, target: State | None) -> None:
    """Raises: ImpossibleMoveError unless (source, move, target) is a row of the table."""
    if (source, move, target) not in _ALLOWED:
        raise ImpossibleMoveError(f"{source or 'no record'} -- {move} --> {target or 'no record'}")
