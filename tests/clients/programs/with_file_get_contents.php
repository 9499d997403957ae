<?php
// A merchant's program: PHP's file_get_contents, which reads until the server closes.
[, $base, $order, $key] = $argv;
$told = [];
for ($n = 0; $n < 2; $n++) {
    $context = stream_context_create(['http' => [
        'method' => 'POST',
        'header' => ["Authorization: Bearer sk_test_A", "Content-Type: application/json", "Idempotency-Key: $key"],
        'content' => json_encode(['merchant_order_no' => $order, 'amount' => 10000, 'currency' => 'USD']),
        'timeout' => 30,
        'ignore_errors' => true,
    ]]);
    $text = file_get_contents("$base/v1/payments", false, $context);
    $told[] = [(int) explode(' ', $http_response_header[0])[1], json_decode($text)->status, header_of($http_response_header, 'safepost-knowledge')];
}
$context = stream_context_create(['http' => ['header' => ["Authorization: Bearer sk_test_A"]]]);
$text = file_get_contents("$base/v1/payments?merchant_order_no=" . rawurlencode($order), false, $context);
$told[] = [(int) explode(' ', $http_response_header[0])[1], json_decode($text)->data[0]->status];
echo json_encode($told);

function header_of(array $lines, string $name): ?string
{
    foreach ($lines as $line) {
        if (stripos($line, "$name:") === 0) {
            return trim(substr($line, strlen($name) + 1));
        }
    }
    return null;
}
