// A merchant's program: Node's http.request, its body written in two pieces (so it goes out chunked).
import http from 'node:http';

const [base, order, key] = process.argv.slice(2);
const body = JSON.stringify({ merchant_order_no: order, amount: 10000, currency: 'USD' });
const agent = new http.Agent({ keepAlive: true });

function ask(path, options, pieces = []) {
  return new Promise((resolve, reject) => {
    const request = http.request(base + path, { agent, timeout: 30_000, ...options }, (answer) => {
      let text = '';
      answer.on('data', (piece) => { text += piece; });
      answer.on('end', () => resolve([answer, JSON.parse(text)]));
    });
    request.on('error', reject);
    for (const piece of pieces) request.write(piece);
    request.end();
  });
}

const told = [];
for (let n = 0; n < 2; n++) {
  const headers = { Authorization: 'Bearer sk_test_A', 'Content-Type': 'application/json', 'Idempotency-Key': key };
  const pieces = [body.slice(0, 10), body.slice(10)];
  const [paid, shown] = await ask('/v1/payments', { method: 'POST', headers }, pieces);
  told.push([paid.statusCode, shown.status, paid.headers['safepost-knowledge'] ?? null]);
}
const headers = { Authorization: 'Bearer sk_test_A' };
const [found, listed] = await ask(`/v1/payments?merchant_order_no=${encodeURIComponent(order)}`, { headers });
told.push([found.statusCode, listed.data[0].status]);
agent.destroy();
process.stdout.write(JSON.stringify(told));
