package crash

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// A business transaction stays open for long. Repeats of its key are answered
// that it is in progress, at once; other keys go on, and so do the heartbeats;
// and nobody waits for a lock.
func TestLongTransactionHoldsUpNobody(t *testing.T) {
	hold := time.Duration(length(2, 10)) * time.Second
	for _, way := range []string{"pgx read committed", "sql serializable"} {
		t.Run(way, func(t *testing.T) { holdOpen(t, way, hold) })
	}
}

// atOnce is less than the store's lock_timeout: most answers come sooner on a
// busy machine too.
const atOnce = 250 * time.Millisecond

func holdOpen(t *testing.T, way string, hold time.Duration) {
	c := newCampaign(t, 0)
	open := func(at string) *service {
		s, err := serve(config{URL: c.server.URL(), Schema: c.schema, Strike: &strike{
			At: at, How: byHold, Times: 1, held: make(chan struct{}), released: make(chan struct{}),
		}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s.close(); err != nil {
				t.Error(err)
			}
		})
		return s
	}
	type answered struct {
		*answer
		err error
	}
	// In one service the transaction of a key stays open after EndIn; in the
	// other a handler works for as long, without a transaction, so that its key
	// lives by its heartbeat.
	services := []*service{open(ended), open(called)}
	var keys []*key
	var answers []chan answered
	for i, s := range services {
		k := &key{name: fmt.Sprintf("held-%d", i), way: way}
		got := make(chan answered, 1)
		go func() {
			a, again, err := c.post(k, s.url)
			if again != "" {
				err = fmt.Errorf("it must be sent again: %s", again)
			}
			got <- answered{a, err}
		}()
		keys, answers = append(keys, k), append(answers, got)
		select {
		case <-s.strike.held:
		case a := <-got:
			t.Fatalf("the point %s is not reached: %+v", s.strike.At, a)
		case <-time.After(patience):
			t.Fatalf("the point %s is not reached", s.strike.At)
		}
	}

	// Sampled for as long as it lasts.
	var waiting atomic.Pointer[string]
	watching, stop := context.WithCancel(context.Background())
	defer stop()
	samples := make(chan int, 1)
	conn, err := pgx.Connect(context.Background(), c.server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	go func() {
		n := 0
		for ; watching.Err() == nil; n++ {
			var what string
			// Who makes a table longer waits for who does so too, for as long as
			// it takes to write a page: no row's lock.
			err := conn.QueryRow(context.Background(), "SELECT coalesce(string_agg(wait_event || ': ' || query, E'\n'), '') FROM pg_stat_activity "+
				"WHERE wait_event_type = 'Lock' AND wait_event <> 'extend'").Scan(&what)
			if err != nil {
				what = err.Error()
			}
			if what != "" {
				waiting.CompareAndSwap(nil, &what)
			}
		}
		samples <- n
	}()

	repeats, others := 0, 0
	var took []time.Duration
	for until := time.Now().Add(hold); time.Now().Before(until) || repeats < 20; {
		for _, s := range services {
			for _, k := range keys {
				start := time.Now()
				a, again, err := c.post(k, s.url)
				if err != nil || a != nil || !strings.Contains(again, "request-in-progress") {
					t.Fatalf("a repeat of %s after %d others is %+v, %s, %v", k.name, repeats, a, again, err)
				}
				took = append(took, time.Since(start))
				repeats++
			}
			other := &key{name: fmt.Sprintf("other-%d", others), way: ways[others%len(ways)]}
			start := time.Now()
			if a, again, err := c.post(other, s.url); err != nil || a == nil || a.replayed {
				t.Fatalf("another key is %+v, %s, %v", a, again, err)
			}
			took = append(took, time.Since(start))
			others++
		}
	}
	stop()
	n := <-samples
	if w := waiting.Load(); w != nil {
		t.Errorf("somebody waits for a lock: %s", *w)
	}
	slices.Sort(took)
	median := took[len(took)/2]
	t.Logf("%d repeats and %d other keys; half of them in %v, all in %v; %d samples of the server's sessions", repeats, others, median, took[len(took)-1], n)
	if n < 20 {
		t.Error("too few samples")
	}
	if median > atOnce {
		t.Errorf("half of the answers took %v or more", median)
	}
	for i, s := range services {
		close(s.strike.released)
		if a := <-answers[i]; a.err != nil || a.answer == nil || a.replayed {
			t.Errorf("%s is answered %+v, %v", keys[i].name, a.answer, a.err)
		}
	}
	if n := c.takeovers(); n != 0 {
		t.Errorf("%d keys were taken over from living holders", n)
	}
	if made := c.orders(); len(made) != others+len(keys) {
		t.Errorf("there are orders of %d keys, want %d", len(made), others+len(keys))
	}
}
