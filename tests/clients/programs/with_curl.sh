#!/bin/sh
# A merchant's program: curl, one process for each call.
set -eu
base=$1 order=$2 key=$3
body="{\"merchant_order_no\":\"$order\",\"amount\":10000,\"currency\":\"USD\"}"
pay() {
    curl -s -m 30 -o "$answer" -w '%{http_code} %header{safepost-knowledge}' -H 'Authorization: Bearer sk_test_A' \
        -H 'Content-Type: application/json' -H "Idempotency-Key: $key" -d "$body" "$base/v1/payments"
}
status() { sed -E 's/.*"status": ?"([a-z_]+)".*/\1/' "$answer"; }
answer=$(mktemp)
trap 'rm -f "$answer"' EXIT
told=''
for n in 1 2; do
    set -- $(pay)
    knowledge=null
    [ $# -lt 2 ] || knowledge="\"$2\""
    told="$told[$1,\"$(status)\",$knowledge],"
done
code=$(curl -s -m 30 -o "$answer" -w '%{http_code}' -G -H 'Authorization: Bearer sk_test_A' \
    --data-urlencode "merchant_order_no=$order" "$base/v1/payments")
printf '[%s[%s,"%s"]]' "$told" "$code" "$(status)"
