"""A local payment platform that keeps the platform contract, with fault injection (contract C3)."""

from proxy.sandbox.objects import Terms
from proxy.sandbox.refusals import RefusedError
from proxy.sandbox.rules import Fault, FaultRule, Match
from proxy.sandbox.server import Sandbox, Settings, serve

__all__ = ["Fault", "FaultRule", "Match", "RefusedError", "Sandbox", "Settings", "Terms", "serve"]
