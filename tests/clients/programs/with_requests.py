"""A merchant's program: requests."""

import json
import sys

import requests

base, order, key = sys.argv[1:]
body = {"merchant_order_no": order, "amount": 10000, "currency": "USD"}
told = []
with requests.Session() as session:
    session.headers["Authorization"] = "Bearer sk_test_A"
    for _ in range(2):
        paid = session.post(f"{base}/v1/payments", json=body, headers={"Idempotency-Key": key}, timeout=30)
        told.append([paid.status_code, paid.json()["status"], paid.headers.get("Safepost-Knowledge")])
    found = session.get(f"{base}/v1/payments", params={"merchant_order_no": order}, timeout=30)
told.append([found.status_code, found.json()["data"][0]["status"]])
sys.stdout.write(json.dumps(told))
