"""The sandbox as a process of its own for a chaos run: it forgets nothing, and tells all of it at its end.

    python -m tests.chaos.platform --dump FILE --webhook URL --secret TEXT [--careless] [--certificate FILE]

`--careless` makes it a bank without order uniqueness: another key for an order charges the order again. Nothing
but the key and the guard stands between such a bank and a double charge. `--certificate` (a key and its chain)
lets it speak TLS on a second port, in the same process, so that whatever freezes one freezes both.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import ssl
import sys
from collections import deque
from dataclasses import asdict
from pathlib import Path
from typing import Any

from proxy.sandbox import Sandbox, Settings
from proxy.sandbox.bank import Bank
from proxy.sandbox.objects import Answer, Order
from tests.chaos.journal import call_of, wall_ms
from tests.chaos.tls import Front


class CarelessBank(Bank):
    """Creates and charges once for each key, whatever the order's number."""

    def create_payment(self, order: Order) -> Answer:
        self._by_order.pop((order.tenant, str(order.body.get("merchant_order_no"))), None)
        return super().create_payment(order)


class Remembering(Sandbox):
    """A sandbox with a request log without end."""

    bank_type: type[Bank] = Bank

    def _open_books(self) -> None:
        super()._open_books()
        self.requests._seen = deque()
        if self.bank_type is not Bank:
            self.bank.__class__ = self.bank_type
            self._platform._verbs = {
                **self._platform._verbs,
                "create_payment": self.bank.create_payment,
            }

    def dump(self, *, wall_at_zero_ms: int) -> dict[str, Any]:
        """The bank's whole log. `wall_at_zero_ms`: the wall clock when the monotonic one was zero."""
        refunds = self.bank.refunds
        return {
            "entries": [
                {**asdict(entry), "refund": refunds[entry.refund].number if entry.refund else None}
                for entry in self.ledger.entries
            ],
            "arrivals": [
                {
                    "seq": one.seq,
                    "at_ms": one.at_ms + wall_at_zero_ms,
                    "path": one.path,
                    "key": one.key,
                    "body_sha256": one.body_sha256,
                    "answer": one.answer or "",
                    "executed": one.executed,
                    "call": call_of(one.headers.get("x-request-id", "")),
                }
                for one in self.requests.seen
                if one.method == "POST" and one.key is not None
            ],
            "payments": {payment.order: payment.status for payment in self.bank.payments.values()},
        }


class CarelessSandbox(Remembering):
    bank_type = CarelessBank


async def serve(arguments: argparse.Namespace) -> None:
    """Run until SIGTERM; then write the log."""
    kind = CarelessSandbox if arguments.careless else Remembering
    settings = Settings(webhook_url=arguments.webhook, webhook_secret=arguments.secret, wait_s=arguments.wait)
    sandbox = await kind.start(settings=settings)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    zero_ms = wall_ms() - settings.clock.monotonic_ms()
    front = None
    if arguments.certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(arguments.certificate)
        front = await Front.open(sandbox.url.removeprefix("http://"), context)
    reached = front.address if front is not None else sandbox.url.removeprefix("http://")
    sys.stdout.write(f"sandbox listening on {sandbox.url} and {reached}\n")
    sys.stdout.flush()
    await stop.wait()
    if front is not None:
        await front.close()
    assert isinstance(sandbox, Remembering)
    _write(Path(arguments.dump), sandbox.dump(wall_at_zero_ms=zero_ms))
    await sandbox.close()


def _write(file: Path, log: dict[str, Any]) -> None:
    file.write_text(json.dumps(log), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.platform")
    parser.add_argument("--dump", required=True, help="where the log goes at the end")
    parser.add_argument("--webhook", help="where events go")
    parser.add_argument("--secret", help="what they are signed with")
    parser.add_argument(
        "--wait", type=float, default=2.0, help="seconds that a repeated key waits for the first"
    )
    parser.add_argument("--careless", action="store_true", help="no order uniqueness")
    parser.add_argument("--certificate", help="a key and its chain, to speak TLS with")
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
