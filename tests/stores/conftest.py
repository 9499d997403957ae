"""What the stores' tests open."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.stores.opened import Stores


@pytest.fixture
async def stores() -> AsyncIterator[Stores]:
    stores = Stores()
    yield stores
    await stores.close_all()
