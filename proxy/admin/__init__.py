"""The admin listener: health, metrics, the ledger, events, the console."""

from proxy.admin.server import Admin

__all__ = ["Admin"]
