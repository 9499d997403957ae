"""A merchant's program: aiohttp."""

import asyncio
import json
import sys

import aiohttp

base, order, key = sys.argv[1:]
body = {"merchant_order_no": order, "amount": 10000, "currency": "USD"}


async def pay() -> list[list[object]]:
    told: list[list[object]] = []
    async with aiohttp.ClientSession(base, headers={"Authorization": "Bearer sk_test_A"}) as session:
        for _ in range(2):
            async with session.post("/v1/payments", json=body, headers={"Idempotency-Key": key}) as paid:
                shown = await paid.json()
                told.append([paid.status, shown["status"], paid.headers.get("Safepost-Knowledge")])
        async with session.get("/v1/payments", params={"merchant_order_no": order}) as found:
            told.append([found.status, (await found.json())["data"][0]["status"]])
    return told


sys.stdout.write(json.dumps(asyncio.run(pay())))
