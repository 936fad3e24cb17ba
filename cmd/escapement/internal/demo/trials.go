package demo

import (
	"bufio"
	"crypto/sha1" //nolint:gosec // RFC 6455, section 4.2.2 names it
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"
)

// TrialsHelp says what the endpoints under /_test/ are for.
const TrialsHelp = `For trials there are also:
  GET|POST /_test/events?n=N&every=D    N events (default 3), D apart (default 100ms), text/event-stream
  POST     /_test/upload                {"bytes":N}: how much of the body came
  GET|POST /_test/big?bytes=N           an answer of N bytes (default 5242880)
  GET      /_test/socket                a WebSocket that sends back each message
  GET      /_test/fields                the request's header fields as they came`

const (
	maxEvents = 10_000
	maxBig    = 1 << 30
)

func (a *API) trials() {
	a.mux.HandleFunc("/_test/events", a.events)
	a.mux.HandleFunc("POST /_test/upload", upload)
	a.mux.HandleFunc("/_test/big", big)
	a.mux.HandleFunc("GET /_test/socket", socket)
	a.mux.HandleFunc("GET /_test/fields", func(w http.ResponseWriter, r *http.Request) {
		writeJSON(w, http.StatusOK, map[string]any{"host": r.Host, "fields": r.Header})
	})
}

func intParam(r *http.Request, name string, standard, most int) (int, error) {
	v := r.URL.Query().Get(name)
	if v == "" {
		return standard, nil
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 0 || n > most {
		return 0, fmt.Errorf("%s is %q: want a number from 0 to %d", name, v, most)
	}
	return n, nil
}

func (a *API) events(w http.ResponseWriter, r *http.Request) {
	n, err := intParam(r, "n", 3, maxEvents)
	every := 100 * time.Millisecond
	if v := r.URL.Query().Get("every"); v != "" && err == nil {
		every, err = time.ParseDuration(v)
	}
	if err != nil {
		writeJSON(w, http.StatusBadRequest, map[string]any{"error": err.Error()})
		return
	}
	_, _ = io.Copy(io.Discard, r.Body)
	w.Header().Set("Content-Type", "text/event-stream")
	c := http.NewResponseController(w)
	for i := range n {
		if i > 0 {
			a.pause(every)
		}
		if _, err := fmt.Fprintf(w, "data: %d\n\n", i+1); err != nil || c.Flush() != nil {
			return
		}
	}
}

func upload(w http.ResponseWriter, r *http.Request) {
	n, err := io.Copy(io.Discard, r.Body)
	if err != nil {
		writeJSON(w, http.StatusBadRequest, map[string]any{"error": "the body is cut", "bytes": n})
		return
	}
	writeJSON(w, http.StatusOK, map[string]any{"bytes": n})
}

func big(w http.ResponseWriter, r *http.Request) {
	n, err := intParam(r, "bytes", 5<<20, maxBig)
	if err != nil {
		writeJSON(w, http.StatusBadRequest, map[string]any{"error": err.Error()})
		return
	}
	_, _ = io.Copy(io.Discard, r.Body)
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.Itoa(n))
	piece := make([]byte, 32<<10)
	for i := range piece {
		piece[i] = byte(i % 251)
	}
	for n > 0 {
		m := min(n, len(piece))
		if _, err := w.Write(piece[:m]); err != nil {
			return
		}
		n -= m
	}
}

const (
	socketGUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11" // RFC 6455, section 1.3
	maxMessage = 1 << 16
)

// socket is the least WebSocket server that sends back what it gets: single
// frames of up to 64 KiB, each with the kind that it came with (RFC 6455).
func socket(w http.ResponseWriter, r *http.Request) {
	key := r.Header.Get("Sec-Websocket-Key")
	if r.Header.Get("Upgrade") != "websocket" || key == "" {
		writeJSON(w, http.StatusUpgradeRequired, map[string]any{"error": "want a WebSocket handshake"})
		return
	}
	conn, buf, err := http.NewResponseController(w).Hijack()
	if err != nil {
		writeJSON(w, http.StatusInternalServerError, map[string]any{"error": err.Error()})
		return
	}
	defer conn.Close()
	sum := sha1.Sum([]byte(key + socketGUID)) //nolint:gosec // see above
	fmt.Fprintf(buf, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: %s\r\n\r\n",
		base64.StdEncoding.EncodeToString(sum[:]))
	for buf.Flush() == nil {
		kind, data, err := readFrame(buf.Reader)
		if err != nil {
			return
		}
		writeFrame(buf.Writer, kind, data)
		if kind == 8 { // close
			_ = buf.Flush()
			return
		}
	}
}

func readFrame(r *bufio.Reader) (kind byte, data []byte, err error) {
	var head [2]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := int(head[1] & 0x7f)
	if n == 126 {
		var long [2]byte
		if _, err := io.ReadFull(r, long[:]); err != nil {
			return 0, nil, err
		}
		n = int(binary.BigEndian.Uint16(long[:]))
	}
	if head[0]&0x80 == 0 || head[1]&0x80 == 0 || n > maxMessage || head[1]&0x7f == 127 {
		return 0, nil, fmt.Errorf("demo: want single masked frames of up to %d bytes", maxMessage)
	}
	var mask [4]byte
	if _, err := io.ReadFull(r, mask[:]); err != nil {
		return 0, nil, err
	}
	data = make([]byte, n)
	if _, err := io.ReadFull(r, data); err != nil {
		return 0, nil, err
	}
	for i := range data {
		data[i] ^= mask[i%4]
	}
	return head[0] & 0x0f, data, nil
}

func writeFrame(w *bufio.Writer, kind byte, data []byte) {
	_ = w.WriteByte(0x80 | kind)
	if n := len(data); n < 126 {
		_ = w.WriteByte(byte(n))
	} else {
		_ = w.WriteByte(126)
		_ = binary.Write(w, binary.BigEndian, uint16(n))
	}
	_, _ = w.Write(data)
}
