"""A process that claims operations and says which ones were acknowledged, until it is killed."""

from __future__ import annotations

import asyncio
import sys

from proxy.clock import SystemClock
from proxy.stores import make_store
from tests.contract.values import lead


async def claim_for_ever(url: str) -> None:
    store = make_store(url, clock=SystemClock(), timeout_ms=5_000)
    await store.open()
    n = 0
    while True:
        claims = await asyncio.gather(*(lead(store, f"K-{n + i}") for i in range(16)))
        n += 16
        sys.stdout.write("".join(f"{operation.id}\n" for operation in claims))
        sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(claim_for_ever(sys.argv[1]))
