// A merchant's program: Go's net/http.
package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
)

type payment struct {
	Status string `json:"status"`
}

type page struct {
	Data []payment `json:"data"`
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	base, order, key := os.Args[1], os.Args[2], os.Args[3]
	client := &http.Client{Timeout: 30 * time.Second}
	var told []any
	for n := 0; n < 2; n++ {
		body := fmt.Sprintf(`{"merchant_order_no":%q,"amount":10000,"currency":"USD"}`, order)
		pay, err := http.NewRequest("POST", base+"/v1/payments", strings.NewReader(body))
		must(err)
		pay.Header.Set("Authorization", "Bearer sk_test_A")
		pay.Header.Set("Content-Type", "application/json")
		pay.Header.Set("Idempotency-Key", key)
		paid, err := client.Do(pay)
		must(err)
		var shown payment
		must(json.NewDecoder(paid.Body).Decode(&shown))
		paid.Body.Close()
		var knowledge any
		if said := paid.Header.Get("Safepost-Knowledge"); said != "" {
			knowledge = said
		}
		told = append(told, []any{paid.StatusCode, shown.Status, knowledge})
	}
	ask, err := http.NewRequest("GET", base+"/v1/payments?merchant_order_no="+url.QueryEscape(order), nil)
	must(err)
	ask.Header.Set("Authorization", "Bearer sk_test_A")
	found, err := client.Do(ask)
	must(err)
	var listed page
	must(json.NewDecoder(found.Body).Decode(&listed))
	found.Body.Close()
	told = append(told, []any{found.StatusCode, listed.Data[0].Status})
	must(json.NewEncoder(os.Stdout).Encode(told))
}
