"""Safepost: an outbound HTTP resilience proxy for payments."""
