<?php
// A merchant's program: PHP's curl extension, one handle for all calls.
[, $base, $order, $key] = $argv;
$handle = curl_init();
$told = [];
for ($n = 0; $n < 2; $n++) {
    $knowledge = null;
    curl_setopt_array($handle, [
        CURLOPT_URL => "$base/v1/payments",
        CURLOPT_POST => true,
        CURLOPT_POSTFIELDS => json_encode(['merchant_order_no' => $order, 'amount' => 10000, 'currency' => 'USD']),
        CURLOPT_HTTPHEADER => ["Authorization: Bearer sk_test_A", "Content-Type: application/json", "Idempotency-Key: $key"],
        CURLOPT_RETURNTRANSFER => true,
        CURLOPT_TIMEOUT => 30,
        CURLOPT_HEADERFUNCTION => function ($handle, string $line) use (&$knowledge): int {
            if (stripos($line, 'safepost-knowledge:') === 0) {
                $knowledge = trim(explode(':', $line, 2)[1]);
            }
            return strlen($line);
        },
    ]);
    $text = curl_exec($handle);
    $told[] = [curl_getinfo($handle, CURLINFO_RESPONSE_CODE), json_decode($text)->status, $knowledge];
}
curl_setopt_array($handle, [
    CURLOPT_URL => "$base/v1/payments?merchant_order_no=" . rawurlencode($order),
    CURLOPT_HTTPGET => true,
    CURLOPT_HTTPHEADER => ["Authorization: Bearer sk_test_A"],
]);
$text = curl_exec($handle);
$told[] = [curl_getinfo($handle, CURLINFO_RESPONSE_CODE), json_decode($text)->data[0]->status];
echo json_encode($told);
