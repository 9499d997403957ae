"""An observer on a clock that stands still, and what it wrote."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from proxy.config import Settings, settings_of
from proxy.core.model import Fence, Fingerprint, Key, Operation, OperationId, Scope, State
from proxy.observe import Observer, Share

TEXT = """
upstream: {{url: "http://127.0.0.1:9"}}
platform: payhub
log: {{level: {level}, format: {format}, successes: {successes}}}
"""

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def settings(*, level: str = "debug", form: str = "json", successes: float = 1) -> Settings:
    return settings_of(TEXT.format(level=level, format=form, successes=successes), file="config.yaml")


@dataclass(slots=True)
class StillClock:
    """`ports.Clock` for tests: moves when it is told to."""

    ms: int = 1_800_000_000_000

    def monotonic_ms(self) -> int:
        return self.ms

    def monotonic_us(self) -> int:
        return self.ms * 1000

    def boot_ms(self) -> int:
        return self.ms

    def wall_ms(self) -> int:
        return self.ms

    def boot_id(self) -> str:
        return "boot"


def samples_of(page: bytes) -> Samples:
    """The page's samples by name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


@dataclass(slots=True)
class Seen:
    """An observer and the file that it logs to."""

    observer: Observer
    clock: StillClock
    file: Path
    _closed: bool = field(default=False)

    def text(self) -> str:
        """Everything that was logged; nothing more can be after that."""
        if not self._closed:
            self.observer.close()
            self._closed = True
        return self.file.read_text(encoding="utf-8")

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text().splitlines()]

    async def samples(self) -> Samples:
        _, page = await self.observer.metrics("")
        return samples_of(page)

    async def value(self, name: str, **labels: str) -> float:
        return (await self.samples())[f"safepost_{name}", frozenset(labels.items())]


Make = Callable[..., Seen]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    all_of_them: list[tuple[Seen, int]] = []

    def made(
        *, level: str = "debug", form: str = "json", successes: float = 1, share: Share | None = None
    ) -> Seen:
        file = tmp_path / f"log-{len(all_of_them)}"
        fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        clock = StillClock()
        told = settings(level=level, form=form, successes=successes)
        observer = Observer(settings=told, clock=clock, share=share, log_fd=fd)
        observer.holdings = ()  # as the application asks the store before it serves a page
        seen = Seen(observer, clock, file)
        all_of_them.append((seen, fd))
        return seen

    yield made
    for seen, fd in all_of_them:
        seen.observer.close()
        os.close(fd)


@pytest.fixture
def seen(make: Make) -> Seen:
    return make()


def operation(**changes: Any) -> Operation:
    """An unknown payment of 100.00 USD."""
    told: dict[str, Any] = {
        "id": OperationId("op_1"),
        "scope": Scope("default", "live"),
        "route": "create_payment",
        "method": "POST",
        "path": "/v1/payments",
        "key": Key("payment.create:ORDER-1:1"),
        "fingerprint": Fingerprint("s1", "payhub@1.0.0", {"amount": "x"}),
        "state": State.UNKNOWN,
        "fence": Fence(1),
        "created_ms": 1_799_999_990_000,
        "updated_ms": 1_799_999_990_000,
        "first_attempt_ms": 1_799_999_990_000,
        "amount": 10_000,
        "currency": "USD",
    }
    return Operation(**told | changes)
