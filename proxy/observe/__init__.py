"""What is seen of the product from outside: metrics, log lines, announcements. All of it comes from facts."""

from proxy.observe.news import Share
from proxy.observe.observer import Observer

__all__ = ["Observer", "Share"]
