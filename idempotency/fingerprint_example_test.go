package idempotency_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/escapement-dev/escapement/idempotency"
)

func ExamplePrinter() {
	printer, err := idempotency.NewPrinter(idempotency.PrintOptions{
		Ignore: []string{"/client_timestamp"},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	take := func(body string) idempotency.Fingerprint {
		r, err := http.NewRequest("POST", "https://api.example.com/v1/orders?dry_run=false", strings.NewReader(body))
		if err != nil {
			panic(err)
		}
		digest := printer.Begin(idempotency.Meaning{
			Method:      r.Method,
			Path:        r.URL.EscapedPath(),
			RawQuery:    r.URL.RawQuery,
			ContentType: "application/json",
			Header:      r.Header.Values,
		})
		if _, err := io.Copy(digest, r.Body); err != nil {
			panic(err)
		}
		return digest.Fingerprint()
	}
	first := take(`{"amount": 100, "currency": "EUR", "client_timestamp": 1}`)
	fmt.Println(first == take(`{"client_timestamp":2,"currency":"EUR","amount":1e2}`))
	fmt.Println(first == take(`{"client_timestamp":2,"currency":"EUR","amount":101}`))
	// Output:
	// true
	// false
}

func ExampleNewPrinter_faults() {
	_, err := idempotency.NewPrinter(idempotency.PrintOptions{
		Ignore: []string{"client_timestamp", "/a~b"},
	})
	fmt.Println(err)
	// Output:
	// idempotency: ignore: "client_timestamp" is not a JSON pointer that can be used: want "/" in front of each name, as in "/meta/time"
	// idempotency: ignore: "/a~b" is not a JSON pointer that can be used: want "~0" for "~" and "~1" for "/" in a name
}
