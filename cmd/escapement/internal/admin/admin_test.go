package admin

import (
	"context"
	"errors"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestAccess(t *testing.T) {
	for _, tt := range []struct {
		name, token, host string
		fields            []string
		want              int
	}{
		{"loopback", "", "127.0.0.1:8081", nil, 200},
		{"its name", "", "localhost:8081", nil, 200},
		{"IPv6", "", "[::1]:8081", nil, 200},
		{"rebound name", "", "evil.example:8081", nil, 421},
		{"rebound address", "", "10.0.0.1:8081", nil, 421},
		{"no Host", "", "", nil, 421},
		{"own page", "", "localhost:8081", []string{"Origin", "http://localhost:8081"}, 200},
		{"other page", "", "localhost:8081", []string{"Origin", "http://evil.example"}, 403},
		{"other port", "", "localhost:8081", []string{"Origin", "http://localhost:3000"}, 403},
		{"sandbox", "", "localhost:8081", []string{"Origin", "null"}, 403},
		{"link from elsewhere", "", "localhost:8081", []string{"Sec-Fetch-Site", "cross-site"}, 403},
		{"typed in", "", "localhost:8081", []string{"Sec-Fetch-Site", "none"}, 200},
		{"no token", "0123456789abcdef", "localhost", nil, 401},
		{"wrong token", "0123456789abcdef", "localhost", []string{"Authorization", "Bearer 0123456789abcdeF"}, 401},
		{"wrong scheme", "0123456789abcdef", "localhost", []string{"Authorization", "Basic 0123456789abcdef"}, 401},
		{"token", "0123456789abcdef", "admin.internal", []string{"Authorization", "bearer 0123456789abcdef"}, 200},
		{"token of another page", "0123456789abcdef", "admin.internal", []string{"Authorization", "Bearer 0123456789abcdef", "Origin", "http://x"}, 403},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := httptest.NewRequest("GET", "/livez", nil)
			r.Host = tt.host
			for i := 0; i+1 < len(tt.fields); i += 2 {
				r.Header.Set(tt.fields[i], tt.fields[i+1])
			}
			w := httptest.NewRecorder()
			New(Options{Token: tt.token}).ServeHTTP(w, r)
			if w.Code != tt.want {
				t.Errorf("got %d %s, want %d", w.Code, w.Body, tt.want)
			}
		})
	}
}

func TestReady(t *testing.T) {
	var broken error
	h := New(Options{
		Logger: slog.New(slog.DiscardHandler),
		Checks: []Check{
			{"records", func(ctx context.Context) error {
				if _, bounded := ctx.Deadline(); !bounded {
					t.Error("a check without a deadline")
				}
				return broken
			}},
			{"limits", func(context.Context) error { return nil }},
		},
	})
	get := func(path string) (int, string) {
		r := httptest.NewRequest("GET", path, nil)
		r.Host = "localhost"
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code, strings.TrimSpace(w.Body.String())
	}
	want := func(path string, status int, body string) {
		t.Helper()
		if s, b := get(path); s != status || b != body {
			t.Errorf("%s: got %d %s, want %d %s", path, s, b, status, body)
		}
	}
	want("/readyz", 200, `{"limits":"ok","ready":true,"records":"ok"}`)
	broken = errors.New("the disk is full of secrets")
	want("/readyz", 503, `{"limits":"ok","ready":false,"records":"unavailable"}`)
	want("/livez", 200, `{"live":true}`)
	broken = nil
	h.Drain()
	want("/readyz", 503, `{"draining":true,"limits":"ok","ready":false,"records":"ok"}`)
	if s, _ := get("/metrics"); s != 404 {
		t.Errorf("/metrics: got %d", s)
	}
}
