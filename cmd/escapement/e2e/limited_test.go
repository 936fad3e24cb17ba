package e2e

import (
	"math"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Rate 10/s, burst 20: at once 20 pass, then 10 per second on average. What a
// noisy machine does to the clock is measured, not assumed.
func TestT5BurstThenRate(t *testing.T) {
	t.Parallel()
	demo := startDemo(t)
	q := request{method: http.MethodGet, path: "/v1/limited", fields: map[string]string{"X-Api-Key": "one"}}
	var passed atomic.Int64
	limited := func(r reply) bool {
		switch {
		case r.err == nil && r.status == http.StatusOK:
			passed.Add(1)
			return false
		case r.err == nil && r.status == http.StatusTooManyRequests && r.code() == "quota-exceeded":
			if d, err := r.retryAfter(); err != nil || d != time.Second {
				t.Errorf("a token comes every 100ms, and Retry-After is %v (%v)", d, err)
			}
			if r.header.Get("RateLimit") == "" || r.header.Get("RateLimit-Policy") == "" {
				t.Errorf("no RateLimit fields: %v", r.header)
			}
			return true
		}
		t.Errorf("the answer is %v", r)
		return false
	}
	from := time.Now()
	atMost := func() float64 { return 20 + 10*time.Since(from).Seconds() }
	limited(q.send(demo.url))
	first := time.Now() // not before the bucket began to refill
	var wg sync.WaitGroup
	for range 39 {
		wg.Go(func() { limited(q.send(demo.url)) })
	}
	wg.Wait()
	if n := passed.Load(); n < 20 || float64(n) > atMost() {
		t.Errorf("%d passed at once, want from 20 to %v", n, atMost())
	}
	for range 4 {
		wg.Go(func() {
			for time.Since(from) < 3*time.Second {
				limited(q.send(demo.url))
			}
		})
	}
	wg.Wait()
	if n := passed.Load(); float64(n) > atMost() {
		t.Errorf("%d passed in %v, want at most %v", n, time.Since(from), atMost())
	}
	// A refusal says that the bucket is empty: all that came in has been spent.
	// The bucket has been empty since the first burst, and never full again.
	var asked time.Time
	var refused reply
	if !soon(func() bool { asked, refused = time.Now(), q.send(demo.url); return limited(refused) }) {
		t.Fatal("the limit refuses nothing")
	}
	if n, least := passed.Load(), 20+10*asked.Sub(first).Seconds()-1; float64(n) < least {
		t.Errorf("%d passed in %v, want at least %v", n, asked.Sub(first), least)
	}
	d, err := refused.retryAfter()
	if err != nil {
		t.Fatal(err)
	}
	pause(d)
	q.send(demo.url).want(t, http.StatusOK, "")
	other := q
	other.fields = map[string]string{"X-Api-Key": "two"}
	other.send(demo.url).want(t, http.StatusOK, "")
}

// A Retry-After is enough, and less than a second too much.
func TestT5RetryAfter(t *testing.T) {
	t.Parallel()
	up := startUpstream(t)
	p := start(t, up, options{more: "limits:\n  - {name: slow, routes: [GET /v1/notes], by: [tenant], rate: 2/5s, burst: 2}\n"})
	q := request{method: http.MethodGet, path: "/v1/notes"}
	const refill = 2.5 // seconds for one
	early := time.Now()
	q.send(p.url).want(t, http.StatusOK, "")
	late := time.Now()
	for passed := 1; passed < 10; passed++ {
		asked := time.Now()
		r := q.send(p.url)
		answered := time.Now()
		if r.status == http.StatusOK { // the second of the burst, or a slow machine
			continue
		}
		r.want(t, http.StatusTooManyRequests, "quota-exceeded")
		d, err := r.retryAfter()
		if err != nil {
			t.Fatal(err)
		}
		// The first came between early and late; the next can pass when all
		// that passed since are refilled but one.
		due := refill * float64(passed-1)
		least, most := due-answered.Sub(early).Seconds(), due-asked.Sub(late).Seconds()
		if s := d.Seconds(); s < math.Ceil(least) || s >= most+1 {
			t.Errorf("Retry-After is %v; the next can pass between %.3fs and %.3fs", d, least, most)
		}
		pause(d)
		q.send(p.url).want(t, http.StatusOK, "")
		return
	}
	t.Fatal("the limit refuses nothing")
}
