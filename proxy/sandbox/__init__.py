"""A local payment platform that keeps the platform contract, with fault injection (contract C3)."""

from proxy.sandbox.objects import Terms
from proxy.sandbox.play import ScenarioResult, play_all
from proxy.sandbox.refusals import RefusedError
from proxy.sandbox.rules import Fault, FaultRule, Match
from proxy.sandbox.scenarios import SCENARIOS
from proxy.sandbox.server import Sandbox, Settings, serve

__all__ = [
    "SCENARIOS",
    "Fault",
    "FaultRule",
    "Match",
    "RefusedError",
    "Sandbox",
    "ScenarioResult",
    "Settings",
    "Terms",
    "play_all",
    "serve",
]
