package idempotency

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// hostileBodies are as expensive as a body can be.
func hostileBodies() map[string]string {
	members := func(n int) string {
		var b strings.Builder
		b.WriteByte('{')
		for i := n - 1; i >= 0; i-- {
			b.WriteString(`"` + strconv.Itoa(i) + `":1`)
			if i > 0 {
				b.WriteByte(',')
			}
		}
		b.WriteByte('}')
		return b.String()
	}
	prefixed := func(n int) string { // long names that differ at their ends
		var b strings.Builder
		b.WriteByte('{')
		for i := n - 1; i >= 0; i-- {
			fmt.Fprintf(&b, `"%s%04x":1`, strings.Repeat("k", PrintLimit/n-16), i)
			if i > 0 {
				b.WriteByte(',')
			}
		}
		b.WriteByte('}')
		return b.String()
	}
	const mib = PrintLimit
	deep := strings.Repeat(`{"b":0,"a":`, jsonDepth)
	return map[string]string{
		"open arrays":           strings.Repeat("[", mib),
		"nested 100,000 deep":   strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000),
		"objects 100,000 deep":  strings.Repeat(`{"a":`, 100_000) + "1" + strings.Repeat("}", 100_000),
		"deepest, then wide":    deep + `"` + strings.Repeat("x", mib-len(deep)-jsonDepth-2) + `"` + strings.Repeat("}", jsonDepth),
		"many at full depth":    "[" + strings.Repeat(strings.Repeat("[", 500)+strings.Repeat("]", 500)+",", 1047) + "1]",
		"number":                strings.Repeat("1", mib),
		"number of zeros":       "1" + strings.Repeat("0", mib-1),
		"fraction of zeros":     "0." + strings.Repeat("0", mib-3) + "1",
		"exponent":              "1e" + strings.Repeat("9", mib-2),
		"exponent of zeros":     "1e" + strings.Repeat("0", mib-3) + "1",
		"a million members":     members(1_000_000),
		"members":               members(80_000),
		"members, long prefix":  prefixed(1024),
		"members, long prefix2": prefixed(16384),
		"numbers":               "[" + strings.Repeat("1,", mib/2-2) + "1]",
		"tens":                  "[" + strings.Repeat("10,", mib/3-2) + "10]",
		"empty objects":         "[" + strings.Repeat("{},", mib/3-2) + "{}]",
		"small objects":         "[" + strings.Repeat(`{"b":1,"a":1},`, mib/14-2) + "{}]",
		"escapes":               `"` + strings.Repeat(`\u0001`, mib/6-1) + `"`,
		"surrogates":            `"` + strings.Repeat(`\ud83d\ude00`, mib/12-1) + `"`,
		"open string":           `"` + strings.Repeat("x", mib-1),
		"white space":           strings.Repeat(" ", mib),
	}
}

// hostileBound is no measure of speed (BenchmarkFingerprintHostile is): it is a
// thousand times what a body takes, and far below what anything worse than
// n log n would take, so that a busy machine cannot fail the test.
const hostileBound = time.Minute

// TestFingerprintHostile: no body takes more than n log n.
func TestFingerprintHostile(t *testing.T) {
	pointers := []string{strings.Repeat("/a", jsonDepth), "/0/0/0", "/1", strings.Repeat("/0", jsonDepth)}
	printers := []*Printer{
		mustPrinter(t, PrintOptions{}),
		mustPrinter(t, PrintOptions{Ignore: pointers}),
		mustPrinter(t, PrintOptions{Only: pointers}),
	}
	nested := map[string]bool{"numbers": true, "members": true, "many at full depth": true, "deepest, then wide": true}
	for name, body := range hostileBodies() {
		if fits := len(body) <= PrintLimit; fits == (name == "a million members") {
			t.Errorf("%s: %d bytes, so that it is not what it is to be", name, len(body))
		}
		for i, p := range printers {
			if i > 0 && !nested[name] {
				continue // pointers find nothing there to follow
			}
			start := time.Now()
			jsonPrint(p, body)
			if d := time.Since(start); d > hostileBound {
				t.Errorf("%s, printer %d: %v", name, i, d)
			}
		}
	}
	for _, body := range []string{
		strings.Repeat("&", PrintLimit), strings.Repeat("a&", PrintLimit/2), strings.Repeat("=&", PrintLimit/2),
		strings.Repeat("%", PrintLimit), strings.Repeat("%41&", PrintLimit/4), strings.Repeat("+", PrintLimit),
	} {
		start := time.Now()
		printOf(printers[0], Meaning{RawQuery: body, ContentType: "application/x-www-form-urlencoded"}, []byte(body))
		if d := time.Since(start); d > hostileBound {
			t.Errorf("form of %.8q: %v", body, d)
		}
	}
}

// orderBody is an order of about 1 KiB.
func orderBody() []byte {
	var b strings.Builder
	b.WriteString(`{"customer": {"name": "Ada Lovelace", "email": "ada@example.com", "id": 815}, "currency": "EUR", "items": [`)
	for i := range 10 {
		fmt.Fprintf(&b, `{"sku": "AB-%04d", "quantity": %d, "price": %d.%d0, "note": "caf\u00e9"}, `, i, i+1, 10*i, i)
	}
	b.WriteString(`{}], "client_timestamp": "2026-01-02T03:04:05Z", "tags": ["a", "b", true, null]}`)
	return []byte(b.String())
}

func BenchmarkFingerprint(b *testing.B) {
	body := orderBody()
	form := bytes.Repeat([]byte("name=Ada+Lovelace&amount=10&"), 36)
	for _, c := range []struct {
		name, contentType string
		body              []byte
		o                 PrintOptions
	}{
		{"json", "application/json", body, PrintOptions{}},
		{"json-charset", "application/json; charset=utf-8", body, PrintOptions{}},
		{"json-ignore", "application/json", body, PrintOptions{Ignore: []string{"/client_timestamp", "/customer/id", "/items/3"}}},
		{"json-only", "application/json", body, PrintOptions{Only: []string{"/currency", "/items"}}},
		{"form", "application/x-www-form-urlencoded", form, PrintOptions{}},
		{"text", "text/plain", body, PrintOptions{}},
		{"empty", "", nil, PrintOptions{}},
	} {
		b.Run(c.name, func(b *testing.B) {
			p := mustPrinter(b, c.o)
			m := Meaning{Method: "POST", Path: "/v1/orders", RawQuery: "dry_run=false", ContentType: c.contentType}
			b.SetBytes(int64(len(c.body)))
			b.ReportAllocs()
			for b.Loop() {
				printOf(p, m, c.body)
			}
		})
	}
}

func BenchmarkFingerprintHostile(b *testing.B) {
	bodies := hostileBodies()
	for _, name := range slices.Sorted(maps.Keys(bodies)) {
		b.Run(strings.ReplaceAll(name, " ", "-"), func(b *testing.B) {
			p := mustPrinter(b, PrintOptions{})
			b.SetBytes(int64(len(bodies[name])))
			b.ReportAllocs()
			for b.Loop() {
				jsonPrint(p, bodies[name])
			}
		})
	}
}
