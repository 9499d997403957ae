"""Brotli answers are read in bounded memory: Node's fetch asks for them first."""

from __future__ import annotations

import brotli
import pytest

from proxy.decoders import unbrotlied

TEXT = b'{"id":"pay_1","status":"succeeded"}'


def test_a_whole_body_is_decoded() -> None:
    assert unbrotlied(brotli.compress(TEXT), 1_000) == TEXT


def test_a_body_of_just_the_limit_is_decoded() -> None:
    assert unbrotlied(brotli.compress(TEXT), len(TEXT)) == TEXT


@pytest.mark.parametrize("size", [len(TEXT) - 1, 1, 0])
def test_a_body_over_the_limit_is_not_read(size: int) -> None:
    assert unbrotlied(brotli.compress(TEXT), size) is None


def test_a_bomb_is_not_read() -> None:
    assert unbrotlied(brotli.compress(b"a" * 50_000_000), 1 << 20) is None


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_body_cut_short_is_not_read(cut: int) -> None:
    assert unbrotlied(brotli.compress(TEXT)[:-cut], 1_000) is None


def test_bytes_that_are_no_brotli_are_not_read() -> None:
    assert unbrotlied(b"\xff\xfe garbage", 1_000) is None
