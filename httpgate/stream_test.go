package httpgate

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"testing"
	"time"

	"github.com/escapement-dev/escapement"
)

// open sends a POST with a key and returns its answer unread.
func (r *rig) open(path, key string) *http.Response {
	r.t.Helper()
	req, err := http.NewRequest("POST", r.srv.URL+path, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("X-Tenant", "acme")
	req.Header.Set(KeyField, key)
	res, err := r.client.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { res.Body.Close() })
	return res
}

func TestEventStreamPassesAsItComes(t *testing.T) {
	next := make(chan string)
	r := newRig(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		rc := http.NewResponseController(w)
		if err := rc.Flush(); err != nil { // the header alone
			t.Error(err)
		}
		for event := range next {
			fmt.Fprintf(w, "data: %s\n\n", event)
			if err := rc.Flush(); err != nil {
				t.Error(err)
			}
		}
	}, nil)
	res := r.open("/x", "k") // returns: the header is there
	b := bufio.NewReader(res.Body)
	for _, event := range []string{"one", "two", "three"} {
		next <- event
		line, err := b.ReadString('\n')
		if err != nil || line != "data: "+event+"\n" {
			t.Fatal(line, err)
		}
		b.ReadString('\n')
	}
	close(next)
	if rest, err := io.ReadAll(b); err != nil || len(rest) > 0 {
		t.Fatalf("%q %v", rest, err)
	}
	r.post("/x", "k", "", "Content-Type", "").want(t, 200, "data: one\n\ndata: two\n\ndata: three\n\n")
}

// The end of an answer waits for its record: here the record cannot be
// written, and the client must not take the answer for whole.
func TestAnswerThatCannotBeRecordedIsCut(t *testing.T) {
	for name, write := range map[string]func(w http.ResponseWriter){
		"flushed": func(w http.ResponseWriter) {
			io.WriteString(w, "abc")
			http.NewResponseController(w).Flush()
		},
		"flushed, of known length": func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", "3")
			io.WriteString(w, "abc")
			http.NewResponseController(w).Flush()
		},
		"long": func(w http.ResponseWriter) { io.WriteString(w, strings.Repeat("x", 200_000)) },
		"long, of known length": func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", "200000")
			for range 2000 {
				io.WriteString(w, strings.Repeat("x", 100))
			}
		},
		"long, of known length, in large pieces": func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", "200000")
			for range 2 {
				io.WriteString(w, strings.Repeat("x", 100_000)) // more than net/http buffers
			}
		},
		"too long to be kept, in large pieces": func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", "4000000")
			for range 2 {
				io.WriteString(w, strings.Repeat("x", 2_000_000))
			}
		},
		"too long to be kept": func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", "2000000")
			for range 2000 {
				io.WriteString(w, strings.Repeat("x", 1000))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, func(w http.ResponseWriter, r *http.Request) { write(w) }, func(_ *Config, o *escapement.Options) { o.RecordsDeadline = 30 * time.Millisecond })
			r.records.set(nil, errAway)
			res := r.open("/x", "k")
			if b, err := io.ReadAll(res.Body); err == nil {
				t.Errorf("an answer of %d bytes came as a whole, and is not recorded", len(b))
			}
		})
	}
}

func TestLongAnswersPassAndAreReplayed(t *testing.T) {
	body := strings.Repeat("0123456789abcdef", 30_000)
	r := newRig(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/known" {
			w.Header().Set("Content-Length", fmt.Sprint(len(body)))
		}
		for rest := body; rest != ""; {
			n := min(len(rest), 7919)
			io.WriteString(w, rest[:n])
			rest = rest[n:]
		}
	}, nil)
	for _, path := range []string{"/known", "/unknown"} {
		first := r.post(path, "k", "")
		first.want(t, 200, body)
		again := r.post(path, "k", "")
		again.replayed(t, first)
		if again.header.Get("Content-Length") != fmt.Sprint(len(body)) || again.header.Get("Content-Type") != first.header.Get("Content-Type") {
			t.Errorf("%s: %v\n%v", path, first.header, again.header)
		}
	}
}

func TestTrailers(t *testing.T) {
	r := newRig(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-Sum, X-Absent")
		w.Header().Add("Trailer", "X-Other")
		w.WriteHeader(201)
		io.WriteString(w, "body")
		if r.URL.Path == "/flushed" {
			http.NewResponseController(w).Flush()
		}
		w.Header().Set("X-Sum", "7")
		w.Header()["X-Other"] = []string{"a", "b"}
		w.Header().Set(http.TrailerPrefix+"X-Late", "late")
	}, nil)
	for _, path := range []string{"/held", "/flushed"} {
		first, again := r.post(path, "k", ""), r.post(path, "k", "")
		again.replayed(t, first)
		for _, rep := range []reply{first, again} {
			if rep.trailer.Get("X-Sum") != "7" || fmt.Sprint(rep.trailer["X-Other"]) != "[a b]" || rep.trailer.Get("X-Late") != "late" || rep.header["X-Sum"] != nil {
				t.Errorf("%s: header %v, trailer %v", path, rep.header, rep.trailer)
			}
		}
	}
}

func TestInformationalAnswersPass(t *testing.T) {
	r := newRig(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", "</style.css>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Set("Link", "</final>")
		w.WriteHeader(201)
		io.WriteString(w, "body")
	}, nil)
	for i, wantHints := range []int{1, 0} {
		hints := 0
		req, err := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
			Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
				hints++
				if code != 103 || h.Get("Link") != "</style.css>; rel=preload" {
					t.Errorf("%d %v", code, h)
				}
				return nil
			},
		}), "POST", r.srv.URL+"/x", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Tenant", "acme")
		req.Header.Set(KeyField, "k")
		res, err := r.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(res.Body)
		if err != nil || string(b) != "body" || hints != wantHints || fmt.Sprint(res.Header["Link"]) != "[</final>]" {
			t.Errorf("%d: %q, %v, %d hints, %v", i, b, err, hints, res.Header)
		}
	}
}

func TestStatusWithoutBody(t *testing.T) {
	r := newRig(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Etag", `"1"`)
		w.WriteHeader(204)
		http.NewResponseController(w).Flush()
		if _, err := io.WriteString(w, "x"); !errors.Is(err, http.ErrBodyNotAllowed) {
			t.Errorf("a body after 204: %v", err)
		}
	}, nil)
	first, again := r.post("/x", "k", ""), r.post("/x", "k", "")
	again.replayed(t, first)
	if first.header["Content-Length"] != nil || again.header["Content-Length"] != nil || again.header.Get("Etag") != `"1"` {
		t.Errorf("%v\n%v", first.header, again.header)
	}
}

func TestBrokenAnswers(t *testing.T) {
	for name, h := range map[string]http.HandlerFunc{
		"less than Content-Length": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "10")
			io.WriteString(w, "12345")
		},
		"more than Content-Length": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "3")
			if _, err := io.WriteString(w, "12345"); !errors.Is(err, http.ErrContentLength) {
				t.Errorf("have %v", err)
			}
		},
		"aborted": func(w http.ResponseWriter, r *http.Request) {
			io.WriteString(w, "12345")
			panic(http.ErrAbortHandler)
		},
		"aborted after a flush": func(w http.ResponseWriter, r *http.Request) {
			io.WriteString(w, "12345")
			http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		},
		"aborted after much": func(w http.ResponseWriter, r *http.Request) {
			io.WriteString(w, strings.Repeat("x", 300_000))
			panic(http.ErrAbortHandler)
		},
		"switched": func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(101) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, h, nil)
			if rep, err := r.try("POST", "/x", nil, KeyField, "k"); err == nil && rep.err == nil {
				t.Errorf("the client has an answer: %d %q", rep.status, rep.body)
			}
			r.post("/x", "k", "").problem(t, 409, "idempotency-outcome-unknown")
		})
	}
}

func TestControllerOfKeyedRequests(t *testing.T) {
	r := newRig(t, func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		if _, _, err := rc.Hijack(); !errors.Is(err, http.ErrNotSupported) || !strings.Contains(err.Error(), "idempotency key") {
			t.Errorf("Hijack: %v", err)
		}
		for name, err := range map[string]error{
			"SetReadDeadline": rc.SetReadDeadline(time.Now().Add(time.Hour)), "SetWriteDeadline": rc.SetWriteDeadline(time.Now().Add(time.Hour)),
			"EnableFullDuplex": rc.EnableFullDuplex(), "Flush": rc.Flush(),
		} {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		w.(http.Flusher).Flush()
	}, nil)
	r.post("/x", "k", "").want(t, 200, "")
}

func TestUnkeyedRequestsPassUntouched(t *testing.T) {
	type seen struct{ w, body any }
	got := make(chan seen, 1)
	r := newRig(t, func(w http.ResponseWriter, r *http.Request) {
		got <- seen{w, r.Body}
		rc := http.NewResponseController(w)
		for name, err := range map[string]error{
			"SetReadDeadline": rc.SetReadDeadline(time.Time{}), "SetWriteDeadline": rc.SetWriteDeadline(time.Time{}), "EnableFullDuplex": rc.EnableFullDuplex(),
		} {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if r.Header.Get("Upgrade") == "echo" {
			conn, rw, err := rc.Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
			rw.Flush()
			line, _ := rw.ReadString('\n')
			rw.WriteString("echo " + line)
			rw.Flush()
			return
		}
		// Each line goes back before the next one comes.
		b := bufio.NewReader(r.Body)
		for {
			line, err := b.ReadString('\n')
			if err != nil {
				return
			}
			io.WriteString(w, "echo "+line)
			if err := rc.Flush(); err != nil {
				t.Error(err)
			}
		}
	}, func(c *Config, _ *escapement.Options) { c.Keys.Mode = Optional })

	for _, fields := range []string{"", KeyField + ": a,b\r\n"} { // with our ResponseWriter, and without
		conn, err := net.Dial("tcp", r.srv.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(10 * time.Second))
		fmt.Fprintf(conn, "GET /ws HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: echo\r\n%s\r\n", fields)
		b := bufio.NewReader(conn)
		res, err := http.ReadResponse(b, nil)
		if err != nil || res.StatusCode != 101 {
			t.Fatal(res, err)
		}
		fmt.Fprint(conn, "hello\n")
		if line, err := b.ReadString('\n'); err != nil || line != "echo hello\n" {
			t.Fatal(line, err)
		}
		<-got
	}

	pr, pw := io.Pipe()
	req, err := http.NewRequest("PUT", r.srv.URL+"/duplex", pr)
	if err != nil {
		t.Fatal(err)
	}
	req.ContentLength = -1
	type answered struct {
		res *http.Response
		err error
	}
	done := make(chan answered, 1)
	go func() {
		res, err := r.client.Do(req)
		done <- answered{res, err}
	}()
	io.WriteString(pw, "one\n")
	a := <-done
	if a.err != nil {
		t.Fatal(a.err)
	}
	defer a.res.Body.Close()
	b := bufio.NewReader(a.res.Body)
	for _, line := range []string{"one\n", "two\n", "three\n"} {
		if line != "one\n" {
			io.WriteString(pw, line)
		}
		if have, err := b.ReadString('\n'); err != nil || have != "echo "+line {
			t.Fatal(have, err)
		}
	}
	pw.Close()
	if rest, err := io.ReadAll(b); err != nil || len(rest) > 0 {
		t.Error(rest, err)
	}
	<-got

	// Without limits and key field there is nothing of ours in between.
	r.do("GET", "/plain", "")
	if s := <-got; fmt.Sprintf("%T", s.w) != "*http.response" {
		t.Errorf("the handler has a %T", s.w)
	}
}
