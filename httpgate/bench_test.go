package httpgate

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/escapement-dev/escapement"
	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/ratelimit"
	"github.com/escapement-dev/escapement/store/memstore"
)

// sink is an http.ResponseWriter that costs next to nothing.
type sink struct {
	h      http.Header
	status int
}

func (s *sink) Header() http.Header         { return s.h }
func (s *sink) WriteHeader(status int)      { s.status = status }
func (s *sink) Write(b []byte) (int, error) { return len(b), nil }

func benchMiddleware(b *testing.B, limits ...Limit) *Middleware {
	b.Helper()
	records, err := memstore.NewRecords(memstore.RecordsOptions{MaxRecords: 10_000_000, MaxBytes: 8 << 30})
	if err != nil {
		b.Fatal(err)
	}
	buckets, err := memstore.NewLimits(memstore.LimitsOptions{})
	if err != nil {
		b.Fatal(err)
	}
	gate, err := escapement.New(escapement.Options{Records: records, Limits: buckets, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	hasher, err := idempotency.NewHasher(testSecret)
	if err != nil {
		b.Fatal(err)
	}
	m, err := New(Config{Gate: gate, Hasher: hasher, Identity: Identity{Tenant: MustSources("header:X-Tenant")}, Limits: limits})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { gate.Shutdown(context.Background()) })
	return m
}

var benchBody = `{"customer":"c-17","items":[{"sku":"a","n":2},{"sku":"b","n":1}],"total":"12.50"}`

func benchRequest(method string) *http.Request {
	r, err := http.NewRequest(method, "http://api.example/v1/orders", nil)
	if err != nil {
		panic(err)
	}
	r.RemoteAddr = "192.0.2.1:1234"
	r.Header.Set("X-Tenant", "acme")
	r.Header.Set("Content-Type", "application/json")
	return r
}

var benchHandler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(201)
	io.WriteString(w, `{"order_id":17}`)
})

func BenchmarkWrap(b *testing.B) {
	oneLimit := Limit{Rule: ratelimit.Rule{Name: "tenant", Quota: 1_000_000_000, Window: time.Second}, By: []string{"tenant"}}
	bare := func(b *testing.B, h http.Handler, r *http.Request) {
		b.ReportAllocs()
		w := &sink{h: make(http.Header)}
		for b.Loop() {
			clear(w.h)
			h.ServeHTTP(w, r)
		}
	}
	b.Run("bare", func(b *testing.B) { bare(b, benchHandler, benchRequest("GET")) })
	b.Run("unkeyed", func(b *testing.B) { bare(b, benchMiddleware(b).Wrap(benchHandler), benchRequest("GET")) })
	b.Run("unkeyed-1-limit", func(b *testing.B) { bare(b, benchMiddleware(b, oneLimit).Wrap(benchHandler), benchRequest("GET")) })
	b.Run("keyed", func(b *testing.B) {
		h := benchMiddleware(b, oneLimit).Wrap(benchHandler)
		r := benchRequest("POST")
		b.ReportAllocs()
		w := &sink{h: make(http.Header)}
		n := 0
		for b.Loop() {
			n++
			clear(w.h)
			r.Header[KeyField] = []string{"key-" + strconv.Itoa(n)}
			r.Body, r.ContentLength = io.NopCloser(strings.NewReader(benchBody)), int64(len(benchBody))
			h.ServeHTTP(w, r)
			if w.status != 201 || w.h[ReplayedField] != nil {
				b.Fatal(w)
			}
		}
	})
	b.Run("replay", func(b *testing.B) {
		h := benchMiddleware(b, oneLimit).Wrap(benchHandler)
		r := benchRequest("POST")
		r.Header[KeyField] = []string{"key"}
		send := func(w *sink) {
			clear(w.h)
			r.Body, r.ContentLength = io.NopCloser(strings.NewReader(benchBody)), int64(len(benchBody))
			h.ServeHTTP(w, r)
		}
		w := &sink{h: make(http.Header)}
		send(w)
		b.ReportAllocs()
		for b.Loop() {
			send(w)
			if w.status != 201 || w.h[ReplayedField] == nil {
				b.Fatal(w)
			}
		}
	})
}

func BenchmarkCodec(b *testing.B) {
	a := Answer{Header: http.Header{"Content-Type": {"application/json"}, "Location": {"/v1/orders/17"}}}
	for name, body := range map[string]string{"small": `{"order_id":17}`, "4KiB": strings.Repeat(benchBody, 51)[:4096]} {
		a.Body = []byte(body)
		p, err := a.Encode()
		if err != nil {
			b.Fatal(err)
		}
		b.Run("encode-"+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				a.Encode()
			}
		})
		b.Run("decode-"+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := DecodeAnswer(p); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
