package httpgate

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/escapement-dev/escapement"
	"github.com/escapement-dev/escapement/idempotency"
)

// T1: ten concurrent requests with one key have one effect, and ten equal
// answers once Retry-After is obeyed.
func TestT1TenConcurrentOneEffect(t *testing.T) {
	var c counter
	enter, leave := make(chan struct{}), make(chan struct{})
	r := newRig(t, func(w http.ResponseWriter, r *http.Request) {
		close(enter)
		<-leave
		c.ServeHTTP(w, r)
	}, nil)
	first := make(chan reply, 10)
	for range 10 {
		go func() { first <- r.post("/v1/orders", "k", `{"amount":1}`) }()
	}
	<-enter
	var bodies []string
	for range 9 { // the losers do not wait
		rep := <-first
		rep.problem(t, 409, "idempotency-request-in-progress")
		if rep.header.Get("Retry-After") != "1" {
			t.Error(rep.header)
		}
	}
	close(leave)
	bodies = append(bodies, (<-first).body)
	for range 9 { // the one that they were told to wait for is over
		rep := r.post("/v1/orders", "k", `{"amount":1}`)
		if rep.status != 201 || rep.header.Get(ReplayedField) != "true" {
			t.Error(rep)
		}
		bodies = append(bodies, rep.body)
	}
	for _, b := range bodies {
		if b != "{\"order_id\":1}\n" {
			t.Errorf("%q", b)
		}
	}
	if c.calls() != 1 {
		t.Errorf("%d calls", c.calls())
	}
}

// The source texts' primary key was the client's key alone.
func TestFault04TenantsDoNotCollide(t *testing.T) {
	r := newRig(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "of "+r.Header.Get("X-Tenant")) }, nil)
	for _, pair := range [][2]string{{"a", "b"}, {"ab", "a"}, {"acme", "ACME"}, {"x, y", "x"}} {
		for _, tenant := range pair {
			for i := range 2 {
				rep := r.post("/x", "bk", "{}", "X-Tenant", tenant)
				rep.want(t, 200, "of "+tenant)
				if i == 1 && rep.header.Get(ReplayedField) != "true" {
					t.Error("no replay")
				}
			}
		}
	}
}

// The source texts did not compare the body on a replay, or lost nested
// members.
func TestFault06NestedDifferencesAreSeen(t *testing.T) {
	var c counter
	r := newRig(t, c.ServeHTTP, nil)
	first := r.post("/x", "k", `{"card":{"number":"1","cvc":"2"},"items":[{"id":1}],"n":9007199254740993}`)
	r.post("/x", "k", `{"n":9007199254740993,"items":[ {"id":1}],"card":{"cvc":"2","number":"1"}}`).replayed(t, first)
	for _, body := range []string{
		`{"card":{"number":"3","cvc":"2"},"items":[{"id":1}],"n":9007199254740993}`,
		`{"card":{"number":"1","cvc":"2"},"items":[{"id":2}],"n":9007199254740993}`,
		`{"card":{"number":"1","cvc":"2"},"items":[{"id":1}],"n":9007199254740992}`,
		"", "{}",
	} {
		r.post("/x", "k", body).problem(t, 422, "idempotency-key-reused")
	}
	if c.calls() != 1 {
		t.Errorf("%d calls", c.calls())
	}
}

// The source texts kept JSON bodies only, and no header.
func TestFault13HeadersAndBytesAreKept(t *testing.T) {
	body := "\x00\x01\xff\xfe not json \r\n\xc3\x28"
	r := newRig(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Header().Set("Location", "/v1/orders/7")
		w.Header()["Link"] = []string{"<a>", "<b>"}
		w.WriteHeader(201)
		io.WriteString(w, body)
	}, nil)
	first, again := r.post("/x", "k", ""), r.post("/x", "k", "")
	first.want(t, 201, body)
	again.replayed(t, first)
	for _, name := range []string{"Content-Type", "Location", "Link", "Content-Length"} {
		if fmt.Sprint(first.header[name]) != fmt.Sprint(again.header[name]) || len(again.header[name]) == 0 {
			t.Errorf("%s: %q, %q", name, first.header[name], again.header[name])
		}
	}
}

// A client that hangs up while it waits changes nothing: the work goes on and
// is recorded.
func TestClientHangsUpWhileWaiting(t *testing.T) {
	for _, path := range []string{"/held", "/flushed"} {
		enter, leave := make(chan struct{}), make(chan struct{})
		var ctxErr error
		r := newRig(t, func(w http.ResponseWriter, r *http.Request) {
			enter <- struct{}{}
			<-leave
			ctxErr = r.Context().Err()
			for range 300 {
				if _, err := io.WriteString(w, strings.Repeat("x", 1000)); err != nil {
					t.Errorf("the handler was told of the client: %v", err)
				}
				if path == "/flushed" {
					if err := http.NewResponseController(w).Flush(); err != nil {
						t.Errorf("the handler was told of the client: %v", err)
					}
				}
			}
		}, nil)
		conn, err := net.Dial("tcp", r.srv.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: h\r\nX-Tenant: acme\r\nContent-Length: 0\r\nIdempotency-Key: k\r\n\r\n", path)
		<-enter
		conn.(*net.TCPConn).SetLinger(0)
		conn.Close()
		close(leave)
		var rep reply
		eventually(t, "the answer is recorded", func() bool {
			rep = r.post(path, "k", "", "Content-Type", "")
			return rep.status == 200
		})
		rep.want(t, 200, strings.Repeat("x", 300_000))
		if ctxErr != nil || rep.header.Get(ReplayedField) != "true" {
			t.Errorf("%v, %v", ctxErr, rep.header)
		}
	}
}

func TestTimeout(t *testing.T) {
	short := func(c *Config, _ *escapement.Options) {
		c.Keys.Policy = policyWith(func(p *escapement.Policy) { p.Timeout = 100 * time.Millisecond })
	}
	t.Run("nothing sent", func(t *testing.T) {
		leave, left := make(chan struct{}), make(chan error, 1)
		r := newRig(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Own", "1")
			io.WriteString(w, "part")
			<-r.Context().Done()
			<-leave
			// The server has answered and may be using its connection for another
			// request: nothing of this goes there.
			for range 100 {
				if _, err := io.WriteString(w, strings.Repeat("x", 1000)); err != nil {
					left <- err
					return
				}
			}
			w.Header().Set("X-Late", "1")
			left <- http.NewResponseController(w).Flush()
		}, short)
		rep := r.post("/x", "k", "")
		if p := rep.problem(t, 504, "upstream-timeout"); p["executed"] != "unknown" || rep.header.Get("X-Own") != "" {
			t.Error(p, rep.header)
		}
		r.post("/x", "k", "").problem(t, 409, "idempotency-outcome-unknown")
		close(leave)
		if err := <-left; err != nil {
			t.Error(err)
		}
		// What it said late is the truth, and was recorded as a whole.
		eventually(t, "the late answer is recorded", func() bool {
			rep = r.post("/x", "k", "")
			return rep.status == 200
		})
		rep.want(t, 200, "part"+strings.Repeat("x", 100_000))
	})
	t.Run("something sent", func(t *testing.T) {
		leave := make(chan struct{})
		defer close(leave)
		r := newRig(t, func(w http.ResponseWriter, r *http.Request) {
			io.WriteString(w, "part")
			http.NewResponseController(w).Flush()
			<-leave
			panic(http.ErrAbortHandler)
		}, short)
		res := r.open("/x", "k")
		if b, err := io.ReadAll(res.Body); err == nil {
			t.Errorf("the answer came as a whole: %q", b)
		}
		r.post("/x", "k", "", "Content-Type", "").problem(t, 409, "idempotency-outcome-unknown")
	})
	t.Run("the client does not read", func(t *testing.T) {
		over := make(chan struct{})
		r := newRig(t, func(w http.ResponseWriter, r *http.Request) {
			defer close(over)
			for range 64 {
				w.Write(make([]byte, 1<<20)) // far more than the sockets hold
			}
			Report(r.Context(), Unknown)
		}, short)
		conn, err := net.Dial("tcp", r.srv.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprint(conn, "POST /x HTTP/1.1\r\nHost: h\r\nX-Tenant: acme\r\nContent-Length: 0\r\nIdempotency-Key: k\r\n\r\n")
		select {
		case <-over: // it was not held up for ever
		case <-time.After(20 * time.Second):
			t.Fatal("the handler hangs on a client that does not read")
		}
	})
}

func TestPanicGoesOnWithItsValue(t *testing.T) {
	type own struct{ s string }
	caught := make(chan any, 1)
	r := newRig(t, func(w http.ResponseWriter, r *http.Request) { panic(own{"boom"}) }, nil)
	inner := r.srv.Config.Handler
	r.srv.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		defer func() {
			if v := recover(); v != nil {
				caught <- v
				w.WriteHeader(500)
			}
		}()
		inner.ServeHTTP(w, req)
	})
	r.post("/x", "k", "").want(t, 500, "")
	if v := <-caught; v != (own{"boom"}) {
		t.Errorf("have %v", v)
	}
	r.post("/x", "k", "").problem(t, 409, "idempotency-outcome-unknown")
	if s := r.record().Status(); s != idempotency.StatusUnknown {
		t.Errorf("recorded as %v", s)
	}
}

// An attempt that lost its key is answered by the record's state.
func TestFenced(t *testing.T) {
	for _, flush := range []bool{false, true} {
		enter, leave := make(chan struct{}), make(chan struct{})
		var calls atomic.Int32
		r := newRig(t, func(w http.ResponseWriter, r *http.Request) {
			n := calls.Add(1)
			if n == 1 {
				if flush {
					io.WriteString(w, "zombie")
					http.NewResponseController(w).Flush()
				}
				close(enter)
				<-leave
			}
			fmt.Fprintf(w, "by %d", n)
		}, func(c *Config, _ *escapement.Options) {
			c.Keys.Policy = policyWith(func(p *escapement.Policy) { p.Terms.OnUnknown, p.Terms.Quiet = idempotency.Retry, 0 })
		})
		done := make(chan error, 1)
		var first reply
		go func() {
			var err error
			first, err = r.try("POST", "/x", nil, KeyField, "k", "Content-Type", "application/json")
			done <- errors.Join(err, first.err)
		}()
		<-enter
		r.clock.move(time.Minute) // the store's clock: the lease is over, and the holder does not know
		r.post("/x", "k", "").want(t, 200, "by 2")
		close(leave)
		err := <-done
		if flush {
			if err == nil {
				t.Errorf("the zombie's answer came as a whole: %q", first.body)
			}
		} else {
			if err != nil {
				t.Fatal(err)
			}
			first.want(t, 200, "by 2")
			if first.header.Get(ReplayedField) != "true" {
				t.Error(first.header)
			}
		}
		r.post("/x", "k", "").want(t, 200, "by 2")
	}
}

// An attempt that lost its key to one that still runs does not say that it has
// executed nothing.
func TestFencedWhileTheSuccessorRuns(t *testing.T) {
	entered, leave, stay := make(chan struct{}, 2), make(chan struct{}), make(chan struct{})
	var calls atomic.Int32
	r := newRig(t, func(w http.ResponseWriter, r *http.Request) {
		n := calls.Add(1)
		entered <- struct{}{}
		if n == 1 {
			<-leave
		} else {
			<-stay
		}
		fmt.Fprintf(w, "by %d", n)
	}, func(c *Config, _ *escapement.Options) {
		c.Keys.Policy = policyWith(func(p *escapement.Policy) { p.Terms.OnUnknown, p.Terms.Quiet = idempotency.Retry, 0 })
	})
	first, second := make(chan reply, 1), make(chan reply, 1)
	go func() { first <- r.post("/x", "k", "") }()
	<-entered
	r.clock.move(time.Minute)
	go func() { second <- r.post("/x", "k", "") }()
	<-entered
	close(leave)
	rep := <-first
	rep.problem(t, 409, "idempotency-request-in-progress")
	if strings.Contains(rep.body, "othing was executed") {
		t.Errorf("the first was executed, and says %s", rep.body)
	}
	close(stay)
	rep = <-second
	rep.want(t, 200, "by 2")
}

// Many clients, keys and repeats at once: each key has one effect.
func TestManyKeysManyRepeats(t *testing.T) {
	const keys, repeats = 20, 8
	var mu sync.Mutex
	effects := map[string]int{}
	r := newRig(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		mu.Lock()
		effects[r.Header.Get(KeyField)]++
		mu.Unlock()
		w.Write(body)
	}, nil)
	var wg sync.WaitGroup
	for i := range keys * repeats {
		wg.Go(func() {
			key := fmt.Sprint("k-", i%keys)
			for {
				rep, err := r.try("POST", "/x", strings.NewReader(key), KeyField, key)
				if err != nil {
					t.Error(err)
					return
				}
				if rep.status == 409 {
					continue
				}
				if rep.status != 200 || rep.body != key {
					t.Errorf("%d %s", rep.status, rep.body)
				}
				return
			}
		})
	}
	wg.Wait()
	if len(effects) != keys {
		t.Errorf("%d keys", len(effects))
	}
	for key, n := range effects {
		if n != 1 {
			t.Errorf("%s: %d effects", key, n)
		}
	}
}
