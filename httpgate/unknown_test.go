package httpgate

import (
	"net/http"
	"strings"
	"testing"
)

// An unknown outcome is a person's work: the log names the request by all that
// may stand in a log, and once.
func TestUnknownIsTold(t *testing.T) {
	const told = "nobody knows how an operation ended"
	for _, tt := range []struct {
		name   string
		answer func(http.ResponseWriter)
		has    []string
	}{
		{"status", func(w http.ResponseWriter) { w.WriteHeader(504) }, []string{"status=504"}},
		{"broken", func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", "100")
			w.Write([]byte("half"))
			panic(http.ErrAbortHandler)
		}, nil},
		{"known", func(w http.ResponseWriter) { w.WriteHeader(500) }, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, func(w http.ResponseWriter, _ *http.Request) { tt.answer(w) }, nil)
			for range 2 { // the repeat runs nothing, and is not told of
				r.try("POST", "/v1/orders/a%20b", strings.NewReader("{}"), KeyField, "raw-key", "X-Request-Id", "req-1")
			}
			var lines []string
			for line := range strings.Lines(r.logs.String()) {
				if strings.Contains(line, told) {
					lines = append(lines, line)
				}
			}
			if tt.name == "known" {
				if len(lines) != 0 {
					t.Errorf("told of an outcome that is known: %s", lines)
				}
				return
			}
			if len(lines) != 1 {
				t.Fatalf("want one line, have %d:\n%s", len(lines), r.logs)
			}
			want := append(tt.has, "method=POST", "path=/v1/orders/a%20b", "tenant=acme", "on_unknown=hold",
				"request=req-1", "key="+r.record().Key.ID.String())
			for _, w := range want {
				if !strings.Contains(lines[0], w) {
					t.Errorf("no %s in %s", w, lines[0])
				}
			}
			if strings.Contains(r.logs.String(), "raw-key") {
				t.Errorf("the client's key is in the log:\n%s", r.logs)
			}
		})
	}
}
