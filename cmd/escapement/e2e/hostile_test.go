package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// raw sends bytes over a connection of their own and reads one answer.
func raw(t *testing.T, url, bytes string) reply {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = io.WriteString(conn, bytes) }() // the program may answer before it has read all
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return reply{err: err, header: http.Header{}}
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return reply{status: resp.StatusCode, header: resp.Header, body: string(b), err: err}
}

// post is a whole request with the given field lines.
func post(path, fields, body string) string {
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n%s\r\n%s", path, len(body), fields, body)
}

func TestHostileKeys(t *testing.T) {
	t.Parallel()
	up := startUpstream(t)
	p := start(t, up, options{})
	made := int64(0)
	for _, c := range []struct {
		name, fields string
		status       int
		code         string
	}{
		{"no byte", "Idempotency-Key:\r\n", 400, "idempotency-key-malformed"},
		{"spaces", "Idempotency-Key:   \r\n", 400, "idempotency-key-malformed"},
		{"no byte in quotes", "Idempotency-Key: \"\"\r\n", 400, "idempotency-key-malformed"},
		{"one byte", "Idempotency-Key: a\r\n", 201, ""},
		{"one byte in quotes", "Idempotency-Key: \"b\"\r\n", 201, ""},
		{"255 bytes", "Idempotency-Key: " + strings.Repeat("k", 255) + "\r\n", 201, ""},
		{"256 bytes", "Idempotency-Key: " + strings.Repeat("k", 256) + "\r\n", 400, "idempotency-key-malformed"},
		{"30000 bytes", "Idempotency-Key: " + strings.Repeat("k", 30000) + "\r\n", 400, "idempotency-key-malformed"},
		{"NUL", "Idempotency-Key: a\x00b\r\n", 400, "?"},
		{"a carriage return", "Idempotency-Key: a\rb\r\n", 400, "?"},
		{"a folded line", "Idempotency-Key: a\r\n b\r\n", 400, "?"},
		{"a tab", "Idempotency-Key: a\tb\r\n", 400, "idempotency-key-malformed"},
		{"DEL", "Idempotency-Key: a\x7fb\r\n", 400, "?"},
		{"UTF-8", "Idempotency-Key: ключ\r\n", 400, "idempotency-key-malformed"},
		{"UTF-8 in quotes", "Idempotency-Key: \"ключ\"\r\n", 400, "idempotency-key-malformed"},
		{"not UTF-8", "Idempotency-Key: \xff\xfe\r\n", 400, "idempotency-key-malformed"},
		{"two fields", "Idempotency-Key: c\r\nIdempotency-Key: d\r\n", 400, "idempotency-key-malformed"},
		{"two equal fields", "Idempotency-Key: c\r\nIdempotency-Key: c\r\n", 400, "idempotency-key-malformed"},
		{"two fields, written otherwise", "Idempotency-Key: c\r\nidempotency-key: d\r\n", 400, "idempotency-key-malformed"},
		{"a list", "Idempotency-Key: c, d\r\n", 400, "idempotency-key-malformed"},
		{"an open quote", "Idempotency-Key: \"c\r\n", 400, "idempotency-key-malformed"},
		{"a space before the colon", "Idempotency-Key : c\r\n", 400, "?"},
		{"a line feed ends the line", "Idempotency-Key: e\nX-Other: f\r\n", 201, ""},
	} {
		for _, path := range []string{"/v1/payments", "/v1/notes"} {
			r := raw(t, p.url, post(path, "Content-Type: application/json\r\n"+c.fields, `{"n":1}`))
			if r.err != nil || r.status != c.status || c.code != "?" && r.code() != c.code {
				t.Errorf("%s, %s: the answer is %v, want %d %s", path, c.name, r, c.status, c.code)
			}
		}
		if c.status == http.StatusCreated {
			made++
		}
	}
	for _, kind := range []string{"payments", "notes"} {
		if c := mustCount(t, up, kind); c != (counts{made, made}) {
			t.Errorf("the upstream says of %s %+v, want %d", kind, c, made)
		}
	}
}

func TestHostileBodies(t *testing.T) {
	t.Parallel()
	up := startUpstream(t)
	p := start(t, up, options{})
	const deep = 100_000
	for i, c := range []struct{ name, body, same, other string }{
		{"deep lists", strings.Repeat("[", deep) + strings.Repeat("]", deep), "", strings.Repeat("[", deep+1) + strings.Repeat("]", deep+1)},
		{"deep objects", strings.Repeat(`{"a":`, deep) + "1" + strings.Repeat("}", deep), "", strings.Repeat(`{"a":`, deep) + "2" + strings.Repeat("}", deep)},
		{"deep and open", strings.Repeat("[", deep), "", strings.Repeat("[", deep-1)},
		{"duplicate members", `{"a":1,"a":2}`, "", `{"a":2}`},
		{"duplicate members in another order", `{"a":1,"a":2,"b":3}`, "", `{"a":2,"a":1,"b":3}`},
		{"a huge number", `{"n":1` + strings.Repeat("0", 100_000) + `}`, `{"n":1` + strings.Repeat("0", 100_000) + `.0}`, `{"n":1` + strings.Repeat("0", 99_999) + `}`},
		{"a huge exponent", `{"n":1e999999999999}`, `{"n":10e999999999998}`, `{"n":1e999999999998}`},
		{"broken text", "{\"a\":\"\xff\"}", "", "{\"a\":\"\xfe\"}"},
		{"no JSON", `{"a":`, "", `{"b":`},
		{"NUL", "\x00", "", "\x00\x00"},
		{"nothing", "", "", " "},
	} {
		if c.same == "" {
			c.same = c.body
		}
		q := request{path: "/v1/payments", key: fmt.Sprint("body-", i)}
		send := func(body string) reply {
			return raw(t, p.url, post(q.path, "Content-Type: application/json\r\nIdempotency-Key: "+q.key+"\r\n", body))
		}
		first := send(c.body)
		if first.err != nil || first.status != http.StatusCreated {
			t.Errorf("%s: the answer is %v", c.name, first)
			continue
		}
		if r := send(c.same); !r.same(first) || !r.replayed() {
			t.Errorf("%s: the repeat gets %v", c.name, r)
		}
		if r := send(c.other); r.code() != "idempotency-key-reused" {
			t.Errorf("%s: another body gets %v", c.name, r)
		}
	}
}

// What is no HTTP, or more of it than anybody needs, is refused or cut, within
// bounds of time; and the program serves on.
func TestHostileConnections(t *testing.T) {
	t.Parallel()
	up := startUpstream(t)
	p := start(t, up, options{more: "server: {read_header: 400ms, max_request: 1MiB}\n"})
	key := "Idempotency-Key: h\r\n"
	for _, c := range []struct {
		name, bytes string
		status      []int // 0: the connection may be cut
	}{
		{"garbage", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", []int{400}},
		{"HTTP/2 without negotiation", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", []int{400, 404, 405, 505}},
		{"no host", "POST /v1/payments HTTP/1.1\r\n" + key + "\r\n", []int{400}},
		{"two lengths", "POST /v1/payments HTTP/1.1\r\nHost: x\r\n" + key + "Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", []int{400}},
		{"a negative length", "POST /v1/payments HTTP/1.1\r\nHost: x\r\n" + key + "Content-Length: -1\r\n\r\n", []int{400}},
		{"an unknown coding", "POST /v1/payments HTTP/1.1\r\nHost: x\r\n" + key + "Transfer-Encoding: xchunked\r\n\r\n", []int{400, 501}},
		{"a huge chunk", "POST /v1/payments HTTP/1.1\r\nHost: x\r\n" + key + "Transfer-Encoding: chunked\r\n\r\nffffffffffffffff0\r\n", []int{400}},
		{"a chunk without size", "POST /v1/payments HTTP/1.1\r\nHost: x\r\n" + key + "Transfer-Encoding: chunked\r\n\r\nzz\r\n", []int{400}},
		{"too large a body", "POST /v1/payments HTTP/1.1\r\nHost: x\r\n" + key + "Content-Length: 2000000\r\n\r\n", []int{413}},
		{"too large a body in chunks", "POST /v1/payments HTTP/1.1\r\nHost: x\r\n" + key + "Transfer-Encoding: chunked\r\n\r\n200000\r\n" + strings.Repeat("x", 0x200000) + "\r\n0\r\n\r\n", []int{413, 0}},
		{"huge header", post("/v1/payments", key+"X-Huge: "+strings.Repeat("x", 200_000)+"\r\n", "{}"), []int{431, 0}},
		{"very many fields", post("/v1/payments", key+strings.Repeat("X-A: b\r\n", 50_000), "{}"), []int{431, 0}},
		{"a huge target", "GET /" + strings.Repeat("a", 200_000) + " HTTP/1.1\r\nHost: x\r\n\r\n", []int{431, 0}},
		{"a forward proxy", "CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n\r\n", []int{405}},
		{"a header that does not end", "POST /v1/payments HTTP/1.1\r\nHost: x\r\n" + key, []int{0, 408}},
		{"nothing at all", "", []int{0, 408}},
		{"half a line", "POST /v1/pay", []int{0, 400, 408}},
	} {
		from := time.Now()
		r := raw(t, p.url, c.bytes)
		if !slices.Contains(c.status, r.status) || r.err != nil && r.status != 0 {
			t.Errorf("%s: the answer is %v, want one of %v", c.name, r, c.status)
		}
		var timeout net.Error
		if errors.As(r.err, &timeout) && timeout.Timeout() {
			t.Errorf("%s: the connection is still open after %v", c.name, time.Since(from))
		}
	}
	if c := mustCount(t, up, "payments"); c != (counts{}) {
		t.Errorf("the upstream says %+v, want nothing", c)
	}
	// A length beside chunks, the beginning of a smuggled request: the chunks
	// count (RFC 9112, section 6.3), or the request is refused, and what
	// follows is no second request.
	smuggled := "POST /v1/payments HTTP/1.1\r\nHost: x\r\n" + key + "Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nPOST /v1/payments HTTP/1.1\r\nHost: x\r\nIdempotency-Key: s\r\nContent-Length: 0\r\n\r\n"
	r := raw(t, p.url, smuggled)
	if r.err != nil || r.status != http.StatusCreated && r.status != http.StatusBadRequest {
		t.Errorf("a length beside chunks: %v", r)
	}
	request{path: "/v1/payments", key: "after", body: "{}"}.send(p.url).want(t, http.StatusCreated, "")
	if !p.running() {
		t.Error("the program has ended")
	}
}

// A body that comes a byte at a time loses its connection, and holds nothing
// up meanwhile.
func TestHostileSlowBodies(t *testing.T) {
	t.Parallel()
	up := startUpstream(t)
	p := start(t, up, options{})
	conns := make([]net.Conn, 50)
	for i := range conns {
		conn, err := net.Dial("tcp", strings.TrimPrefix(p.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conns[i] = conn
		fields := fmt.Sprintf("Idempotency-Key: slow-%d\r\nContent-Type: application/json\r\n", i)
		if i%2 == 1 {
			fields = ""
		}
		if _, err := fmt.Fprintf(conn, "POST /v1/notes HTTP/1.1\r\nHost: x\r\n%sContent-Length: 1000\r\n\r\n{", fields); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 20 {
		request{key: fmt.Sprint("meanwhile-", i), body: "{}"}.send(p.url).want(t, http.StatusCreated, "")
	}
	for i, conn := range conns {
		if err := conn.SetReadDeadline(time.Now().Add(2 * patience)); err != nil {
			t.Fatal(err)
		}
		_, err := io.Copy(io.Discard, conn)
		var timeout net.Error
		if errors.As(err, &timeout) && timeout.Timeout() {
			t.Fatalf("connection %d is still open", i)
		}
	}
	if c := mustCount(t, up, "notes"); c.Count != 0 {
		t.Errorf("the upstream says of notes %+v, want none", c)
	}
	request{key: "afterwards", body: "{}"}.send(p.url).want(t, http.StatusCreated, "")
}
