"""A merchant's program: httpx, with a body that comes in pieces (so it goes out chunked)."""

import json
import sys
from collections.abc import Iterator

import httpx

base, order, key = sys.argv[1:]
whole = json.dumps({"merchant_order_no": order, "amount": 10000, "currency": "USD"}).encode()


def pieces() -> Iterator[bytes]:
    yield whole[:10]
    yield whole[10:]


told = []
given = {"Authorization": "Bearer sk_test_A"}
with httpx.Client(base_url=base, headers=given, timeout=30, trust_env=False) as client:
    for _ in range(2):
        headers = {"Idempotency-Key": key, "Content-Type": "application/json"}
        paid = client.post("/v1/payments", content=pieces(), headers=headers)
        told.append([paid.status_code, paid.json()["status"], paid.headers.get("Safepost-Knowledge")])
    found = client.get("/v1/payments", params={"merchant_order_no": order})
told.append([found.status_code, found.json()["data"][0]["status"]])
sys.stdout.write(json.dumps(told))
