"""Probes and the metrics page (A1), on a live process."""

from __future__ import annotations

from tests.admin.conftest import Stage


async def test_alive_and_ready(stage: Stage) -> None:
    assert (await stage.admin.get("/healthz")).body["status"] == "alive"
    assert (await stage.admin.get("/readyz")).body == {"ready": True, "listening": True, "draining": False}


async def test_payments_readiness_tells_of_the_store(stage: Stage) -> None:
    answer = await stage.admin.get("/readyz?for=payments")

    assert answer.status == 200
    assert answer.body["store"]["kind"] == "sqlite"
    assert answer.body["store"]["answers"] is True


async def test_payments_readiness_fails_with_the_store(stage: Stage) -> None:
    await stage.app.store.close()

    payments = await stage.admin.get("/readyz?for=payments")
    process = await stage.admin.get("/readyz")

    assert (payments.status, payments.body["ready"], payments.body["store"]["answers"]) == (503, False, False)
    assert payments.body["store"]["fault"]
    assert process.status == 200


async def test_ledger_of_a_lost_store_is_503_and_says_when_to_come_back(stage: Stage) -> None:
    await stage.app.store.close()

    answer = await stage.admin.get("/operations")

    assert (answer.status, answer.code) == (503, "store_unavailable")
    assert answer.headers["Retry-After"] == "1"


async def test_drain_fails_readiness_and_not_health(stage: Stage) -> None:
    stage.app.now.driver.start_drain()

    assert (await stage.admin.get("/healthz")).status == 200
    ready = await stage.admin.get("/readyz?for=payments")
    assert (ready.status, ready.body["draining"]) == (503, True)


async def test_readiness_for_something_else_is_refused(stage: Stage) -> None:
    answer = await stage.admin.get("/readyz?for=fun")

    assert (answer.status, answer.body["error"]["field"]) == (400, "for")


async def test_metrics_of_real_calls(stage: Stage) -> None:
    await stage.pay("ORDER-1")
    await stage.unknown("ORDER-2~reset_after")

    page = (await stage.admin.get("/metrics")).text

    lines = set(page.splitlines())
    assert (
        'safepost_requests_total{knowledge="executed",method="POST",route="create_payment",status="201"} 1.0'
    ) in lines
    assert 'safepost_unknown_results_total{route="create_payment"} 1.0' in lines
    assert 'safepost_attempts_total{outcome="in_doubt",route="create_payment"} 1.0' in lines
    assert 'safepost_store_duration_seconds_count{operation="reserve"} 2.0' in lines
    assert "ORDER-" not in page
