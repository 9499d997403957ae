"""A Prometheus of our own for a while: its process, its answers, and rules whose minutes are seconds."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from aiohttp import ClientError, ClientSession
from yaml import safe_dump, safe_load

from proxy.drill.stage import LOOK_S, READY_S, free_port

SQUEEZE = 60
"""How many seconds of the rules pass in one of a drill."""

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "dashboards" / "safepost.rules.yml"
SCRAPE = "1s"
EVALUATION = "500ms"

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(r"\b(\d+)([smhd])\b")
_BEGAN = re.compile(r"(time\(\) - safepost_counts_start_time_seconds < )(\d+)")

LOOK_AT_ALERTS_S = 0.5
GAP_MS = 4_000  # shorter than that is one firing: a scrape may be late on a busy machine

Sample = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Series:
    labels: Mapping[str, str]
    samples: Sequence[Sample]


@dataclass(frozen=True, slots=True)
class Firing:
    """One alert from its first to its last firing evaluation."""

    name: str
    began_ms: int
    ended_ms: int


def program() -> str | None:
    return shutil.which("prometheus")


def squeezed(duration: str) -> str:
    """A duration of Prometheus's, by `SQUEEZE` shorter; also the one since a process began to count."""
    began = _BEGAN.sub(lambda m: f"{m[1]}{int(m[2]) // SQUEEZE}", duration)
    return _DURATION.sub(lambda m: f"{int(m[1]) * _UNITS[m[2]] * 1000 // SQUEEZE}ms", began)


def squeezed_rules(text: str) -> str:
    """The rules, each duration in them by `SQUEEZE` shorter: windows and `for`. No threshold is another."""
    rules = safe_load(text)
    for group in rules["groups"]:
        group["name"] = f"{group['name']}-squeezed"
        for rule in group["rules"]:
            rule["expr"] = squeezed(rule["expr"])
            if "for" in rule:
                rule["for"] = squeezed(rule["for"])
    return str(safe_dump(rules, sort_keys=False))


class Prometheus:
    """One process on loopback that scrapes its targets every second."""

    def __init__(self, folder: Path, *, targets: Sequence[str], port: int | None = None) -> None:
        self._folder = folder
        self._targets = list(targets)
        self._port = port or free_port()
        self._process: Process | None = None
        self._session: ClientSession | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def start(self) -> None:
        """Raises: TimeoutError when it does not get ready, FileNotFoundError where there is none."""
        found = program()
        if found is None:
            raise FileNotFoundError("prometheus: not installed; Debian: apt-get install prometheus")
        (self._folder / "safepost.rules.yml").write_text(squeezed_rules(RULES.read_text(encoding="utf-8")))
        configuration = {
            "global": {
                "scrape_interval": SCRAPE,
                "scrape_timeout": SCRAPE,
                "evaluation_interval": EVALUATION,
            },
            "rule_files": ["safepost.rules.yml"],
            "scrape_configs": [
                {"job_name": "safepost", "static_configs": [{"targets": self._targets}]},
            ],
        }
        (self._folder / "prometheus.yml").write_text(safe_dump(configuration))
        self._process = await asyncio.create_subprocess_exec(
            found,
            f"--config.file={self._folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={self._folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self._port}",
            stdin=DEVNULL,
            stdout=DEVNULL,
            stderr=DEVNULL,
        )
        self._session = ClientSession(trust_env=False)
        await self._ready()

    async def _ready(self) -> None:
        async with asyncio.timeout(READY_S):
            while not await self._is_ready():  # noqa: ASYNC110 -- another program's readiness sets no event
                await asyncio.sleep(LOOK_S)
        if self._process is not None and self._process.returncode is not None:
            raise OSError(f"{self.url}: another program listens there")

    async def _is_ready(self) -> bool:
        try:
            async with self._client.get(f"{self.url}/-/ready") as answer:
                return answer.status == 200
        except ClientError:
            return False

    @property
    def _client(self) -> ClientSession:
        if self._session is None:
            raise RuntimeError("start comes first")
        return self._session

    async def stop(self) -> None:
        if self._session is not None:
            await self._session.close()
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
            await self._process.wait()

    async def _get(self, path: str, **query: str) -> Any:
        async with self._client.get(f"{self.url}/api/v1/{path}?{urlencode(query)}") as answer:
            body = json.loads(await answer.read())
        if body["status"] != "success":
            raise ValueError(f"{path} {query}: {body.get('error')}")
        return body["data"]

    async def instant(self, expression: str, at_ms: int | None = None) -> list[Series]:
        """What an expression is at an instant; None: now."""
        when = {} if at_ms is None else {"time": f"{at_ms / 1000}"}
        data = await self._get("query", query=expression, **when)
        return [Series(one["metric"], [_sample(one["value"])]) for one in data["result"]]

    async def over(self, expression: str, *, from_ms: int, to_ms: int, step_s: float = 1.0) -> list[Series]:
        """What an expression was, from step to step."""
        data = await self._get(
            "query_range",
            query=expression,
            start=f"{from_ms / 1000}",
            end=f"{to_ms / 1000}",
            step=f"{step_s}",
        )
        return [Series(one["metric"], [_sample(value) for value in one["values"]]) for one in data["result"]]

    async def alerts(self, *, from_ms: int, to_ms: int) -> list[Firing]:
        """When which of Safepost's alerts fired, in order. One alert may have fired twice; instances are one."""
        asked = 'max by (alertname) (ALERTS{alertname=~"Safepost.*",alertstate="firing"})'
        found: list[Firing] = []
        for one in await self.over(asked, from_ms=from_ms, to_ms=to_ms, step_s=LOOK_AT_ALERTS_S):
            firings: list[Firing] = []
            for at_s, _ in one.samples:
                at_ms = round(at_s * 1000)
                if firings and at_ms - firings[-1].ended_ms <= GAP_MS:
                    firings[-1] = replace(firings[-1], ended_ms=at_ms)
                else:
                    firings.append(Firing(one.labels["alertname"], at_ms, at_ms))
            found += firings
        return sorted(found, key=lambda firing: firing.began_ms)


def _sample(value: Sequence[Any]) -> Sample:
    return float(value[0]), float(value[1])
