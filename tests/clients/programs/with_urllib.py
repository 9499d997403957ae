"""A merchant's program: the standard library's urllib."""

import json
import sys
from urllib.parse import quote
from urllib.request import Request, urlopen

base, order, key = sys.argv[1:]
body = json.dumps({"merchant_order_no": order, "amount": 10000, "currency": "USD"}).encode()
told = []
for _ in range(2):
    headers = {
        "Authorization": "Bearer sk_test_A",
        "Idempotency-Key": key,
        "Content-Type": "application/json",
    }
    with urlopen(Request(f"{base}/v1/payments", body, headers), timeout=30) as paid:  # noqa: S310 -- the test's own URL
        told.append([paid.status, json.load(paid)["status"], paid.headers.get("Safepost-Knowledge")])
where = f"{base}/v1/payments?merchant_order_no={quote(order)}"
ask = Request(where, headers={"Authorization": "Bearer sk_test_A"})  # noqa: S310 -- the test's own URL
with urlopen(ask, timeout=30) as found:  # noqa: S310 -- the test's own URL
    told.append([found.status, json.load(found)["data"][0]["status"]])
sys.stdout.write(json.dumps(told))
