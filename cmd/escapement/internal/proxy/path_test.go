package proxy

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// Behind an upstream with a path, dot segments must not lead out of it: what
// was judged as /../api/orders would be the upstream's /api/orders, whose rules
// are those of /orders.
func TestPathStaysBelowTheUpstreams(t *testing.T) {
	up := upstream(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.URL.Path) })
	below, _ := front(t, up+"/api", nil)
	top, _ := front(t, up, nil)
	for _, c := range []struct {
		path   string
		climbs bool
	}{
		{"/orders", false},
		{"/a/../orders", false},
		{"/a..b/..c/...", false},
		{"/../api/orders", true},
		{"/%2e%2e/api/orders", true},
		{"/..%2fapi/orders", true},
		{"/..;x=1/api/orders", true},
		{"/..%5capi/orders", true},
		{"/a/../../api/orders", true},
		{"/./../api/orders", true},
		{"//../api/orders", true},
	} {
		for url, want := range map[string]bool{below: c.climbs, top: false} {
			conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", c.path)
			answer, err := io.ReadAll(conn)
			conn.Close()
			if refused := strings.HasPrefix(string(answer), "HTTP/1.1 400"); err != nil || refused != want {
				t.Errorf("%s below %s: %.100q, %v", c.path, url, answer, err)
			}
		}
	}
}
