// A merchant's program: Node's fetch.
const [base, order, key] = process.argv.slice(2);
const body = JSON.stringify({ merchant_order_no: order, amount: 10000, currency: 'USD' });
const told = [];
for (let n = 0; n < 2; n++) {
  const paid = await fetch(`${base}/v1/payments`, {
    method: 'POST',
    headers: { Authorization: 'Bearer sk_test_A', 'Content-Type': 'application/json', 'Idempotency-Key': key },
    body,
    signal: AbortSignal.timeout(30_000),
  });
  told.push([paid.status, (await paid.json()).status, paid.headers.get('safepost-knowledge')]);
}
const found = await fetch(`${base}/v1/payments?merchant_order_no=${encodeURIComponent(order)}`, {
  headers: { Authorization: 'Bearer sk_test_A' },
});
told.push([found.status, (await found.json()).data[0].status]);
process.stdout.write(JSON.stringify(told));
