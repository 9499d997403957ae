"""The fidelity matrix, row by row: what one end sends comes out at the other (H1-H5)."""

from __future__ import annotations

import pytest

from proxy import loops
from tests.wire.fidelity import Verdict, matrix, verdicts
from tests.wire.fidelity_rows import ANSWERS, REQUESTS

NAMES = [
    *(("request", row.kind, row.name) for row in REQUESTS),
    *(("answer", row.kind, row.name) for row in ANSWERS),
]


@pytest.fixture(scope="module")
def found() -> dict[tuple[str, str, str], Verdict]:
    """Every row's verdict, all of them from one running product."""
    made = loops.run(verdicts([*REQUESTS, *ANSWERS]))
    return {(one.direction, one.kind, one.row): one for one in made}


@pytest.mark.parametrize("name", NAMES, ids=": ".join)
def test_row_arrives_as_it_was_sent(
    found: dict[tuple[str, str, str], Verdict], name: tuple[str, str, str]
) -> None:
    assert found[name].arrived == found[name].wanted, found[name].told()


def test_rows_have_names_of_their_own() -> None:
    assert len(NAMES) == len(set(NAMES))


def test_matrix_shows_what_was_sent_and_what_arrived_where_they_differ() -> None:
    good = Verdict("request", "one", "streamed", b"GET", [b"a"], [b"a"])
    bad = Verdict("answer", "two", "guarded", b"HTTP", [b"a", b"b"], [b"a", b"c"])

    told = matrix([good, bad])

    assert "PASS" in told
    assert "FAIL" in told
    assert "sent:    b'HTTP'\n    wanted:  b'b'\n    arrived: b'c'" in told
    assert "1 of 2 rows hold" in told
