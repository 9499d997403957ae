"""The loop that the product runs on, and the stage of the whole-product tests."""

from __future__ import annotations

from tests.e2e.conftest import pytest_asyncio_loop_factories, stage

__all__ = ["pytest_asyncio_loop_factories", "stage"]
