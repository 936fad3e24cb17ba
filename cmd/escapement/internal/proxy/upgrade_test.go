package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// eager is an upstream that upgrades whatever asks for it, and says what it
// then reads.
func eager(w http.ResponseWriter, r *http.Request) {
	asked := r.Header.Get("Upgrade")
	if asked == "" {
		io.WriteString(w, "no upgrade")
		return
	}
	conn, buf, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", asked)
	line, _ := buf.ReadString('\n')
	fmt.Fprintf(conn, "tunnel: %s", line)
}

// A tunnel in which the upstream reads requests would be a way around
// everything that is judged.
func TestOnlyWebSocketsAreTunnels(t *testing.T) {
	url, _ := front(t, upstream(t, eager), nil)
	for _, c := range []struct {
		method, protocol string
		tunnel           bool
	}{
		{"GET", "websocket", true},
		{"GET", "WebSocket", true},
		{"GET", "h2c", false},
		{"GET", "h2c, websocket", false},
		{"GET", "TLS/1.0", false},
		{"POST", "websocket", false},
		{"OPTIONS", "h2c", false},
	} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "%s / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: %s\r\nHTTP2-Settings: AAAA\r\nContent-Length: 0\r\n\r\n", c.method, c.protocol)
		in := bufio.NewReader(conn)
		res, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		if tunnel := res.StatusCode == http.StatusSwitchingProtocols; tunnel != c.tunnel {
			t.Errorf("%s, Upgrade: %s: %d", c.method, c.protocol, res.StatusCode)
		}
		if c.tunnel {
			io.WriteString(conn, "hello\n")
			if line, err := in.ReadString('\n'); line != "tunnel: hello\n" {
				t.Errorf("%q, %v", line, err)
			}
		}
		conn.Close()
	}
}
