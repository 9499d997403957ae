"""Durable stores behind the one store port."""
