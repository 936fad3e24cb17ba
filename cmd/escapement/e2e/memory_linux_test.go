package e2e

import (
	"bufio"
	"bytes"
	"crypto/sha1" //nolint:gosec // RFC 6455 names it
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

// resident is how much memory a process has in use, in bytes: now, and at most
// since it was started.
func resident(t *testing.T, p *process) (now, most int64) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	read := func(name string) int64 {
		_, rest, ok := strings.Cut(string(b), "\n"+name+":")
		var kib int64
		if _, err := fmt.Sscanf(rest, "%d kB", &kib); err != nil || !ok {
			t.Fatalf("no %s in\n%s", name, b)
		}
		return kib << 10
	}
	return read("VmRSS"), read("VmHWM")
}

// grows fails the test if the process has ever had more memory than it had at
// first, and so much more.
func grows(t *testing.T, p *process, first, more int64, what string) {
	t.Helper()
	now, most := resident(t, p)
	t.Logf("%s: %d KiB resident, %d KiB at most; at first %d KiB", what, now>>10, most>>10, first>>10)
	if most > first+more {
		t.Errorf("%s: %d KiB more than at first, want at most %d KiB", what, (most-first)>>10, more>>10)
	}
}

// zeros is a body of n bytes that nobody holds in memory.
func zeros(n int64) io.Reader { return io.LimitReader(zero{}, n) }

type zero struct{}

func (zero) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// stream sends a request with a body that is made as it goes.
func stream(t *testing.T, url, key, kind string, body io.Reader, length int64) *http.Response {
	t.Helper()
	r, err := http.NewRequest(http.MethodPost, url, body)
	if err != nil {
		t.Fatal(err)
	}
	r.ContentLength = length
	if kind != "" {
		r.Header.Set("Content-Type", kind)
	}
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	resp, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	if resp.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(resp.Body)
		t.Fatalf("%s: %s %q", url, resp.Status, b)
	}
	return resp
}

// Large and long things pass, and the program holds none of them in memory.
func TestLargeThingsInLittleMemory(t *testing.T) {
	t.Parallel()
	const (
		more   = 32 << 20
		upload = 100 * 1000 * 1000
		answer = 5 << 20
	)
	up := startUpstream(t)
	p := start(t, up, options{settings: strings.Replace(settings, "timeout: 2s", "timeout: 5m", 1)})
	for i := range 20 { // what every request needs is there
		request{key: fmt.Sprint("warm", i), body: `{"item":"tea"}`}.send(p.url).want(t, http.StatusCreated, "")
	}
	first, _ := resident(t, p.process)

	for _, c := range []struct {
		what, key, kind string
		length          int64
	}{
		{"an upload with a key", "upload", "application/octet-stream", upload},
		{"an upload with a key, in chunks", "upload-chunked", "", -1},
		{"an upload with a key, said to be JSON", "upload-json", "application/json", upload},
		{"an upload with a key, said to be a form", "upload-form", "application/x-www-form-urlencoded", upload},
		{"an upload without a key", "", "", upload},
	} {
		resp := stream(t, p.url+"/_test/upload", c.key, c.kind, zeros(upload), c.length)
		b, err := io.ReadAll(resp.Body)
		if want := fmt.Sprintf("{\"bytes\":%d}\n", upload); err != nil || string(b) != want {
			t.Errorf("%s: %q, %v, want %q", c.what, b, err, want)
		}
		grows(t, p.process, first, more, c.what)
	}

	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			const some = upload / 5
			r, err := http.NewRequest(http.MethodPost, p.url+"/_test/upload", zeros(some))
			if err != nil {
				t.Error(err)
				return
			}
			r.ContentLength = some
			r.Header.Set("Idempotency-Key", fmt.Sprint("at-once-", i))
			resp, err := client.Do(r)
			if err != nil {
				t.Error(err)
				return
			}
			resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				t.Errorf("an upload beside others: %s", resp.Status)
			}
		})
	}
	wg.Wait()
	grows(t, p.process, first, more, "eight uploads at once")

	for _, key := range []string{"events", ""} {
		resp := stream(t, p.url+"/_test/events?n=3&every=600ms", key, "", strings.NewReader("{}"), 2)
		lines := bufio.NewReader(resp.Body)
		var came []time.Time
		var all strings.Builder
		for {
			line, err := lines.ReadString('\n')
			all.WriteString(line)
			if strings.HasPrefix(line, "data: ") {
				came = append(came, time.Now())
			}
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatalf("events: %q, then %v", &all, err)
			}
		}
		if len(came) != 3 || all.String() != "data: 1\n\ndata: 2\n\ndata: 3\n\n" {
			t.Errorf("events with key %q: %q", key, &all)
		} else if gap := came[2].Sub(came[0]); gap < 400*time.Millisecond {
			t.Errorf("events with key %q came within %v: they were held back", key, gap)
		}
		grows(t, p.process, first, more, "an event stream")
	}
	again := request{path: "/_test/events?n=3&every=600ms", key: "events", body: "{}"}
	if r := again.send(p.url); r.err != nil || r.code() != "idempotency-key-reused" { // another content type
		t.Errorf("the stream's key with another content type gets %v", r)
	}

	socket(t, p.url)
	grows(t, p.process, first, more, "a WebSocket")

	for _, key := range []string{"big", ""} {
		resp := stream(t, fmt.Sprintf("%s/_test/big?bytes=%d", p.url, answer), key, "", strings.NewReader("{}"), 2)
		n, err := io.Copy(io.Discard, resp.Body)
		if n != answer || err != nil {
			t.Errorf("a large answer with key %q: %d bytes, %v", key, n, err)
		}
		grows(t, p.process, first, more, "a large answer")
	}
	resp, err := client.Do(keyed(t, fmt.Sprintf("%s/_test/big?bytes=%d", p.url, answer), "big"))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusConflict || !bytes.Contains(b, []byte(`"idempotency-response-not-kept"`)) {
		t.Errorf("the repeat of a large answer gets %s %q, %v", resp.Status, b, err)
	}
}

func keyed(t *testing.T, url, key string) *http.Request {
	t.Helper()
	r, err := http.NewRequest(http.MethodPost, url, strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Idempotency-Key", key)
	return r
}

// socket sends messages over a WebSocket (RFC 6455) and wants each back.
func socket(t *testing.T, url string) {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	key := base64.StdEncoding.EncodeToString([]byte("0123456789abcdef"))
	if _, err := fmt.Fprintf(conn, "GET /_test/socket HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: %s\r\nIdempotency-Key: ignored\r\n\r\n", key); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(conn)
	resp, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha1.Sum([]byte(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	if resp.StatusCode != http.StatusSwitchingProtocols || resp.Header.Get("Sec-WebSocket-Accept") != base64.StdEncoding.EncodeToString(sum[:]) {
		t.Fatalf("the handshake gets %s %v", resp.Status, resp.Header)
	}
	mask := [4]byte{1, 2, 3, 4}
	for i := range 500 {
		msg := bytes.Repeat([]byte{byte(i)}, 20_000)
		frame := append([]byte{0x82, 0x80 | 126, 0, 0}, mask[:]...)
		binary.BigEndian.PutUint16(frame[2:], uint16(len(msg)))
		for j, b := range msg {
			frame = append(frame, b^mask[j%4])
		}
		if _, err := conn.Write(frame); err != nil {
			t.Fatal(err)
		}
		back := make([]byte, 4+len(msg))
		if _, err := io.ReadFull(in, back); err != nil || !bytes.Equal(back[4:], msg) {
			t.Fatalf("message %d comes back as % x..., %v", i, back[:8], err)
		}
	}
}
