package escapement_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/escapement-dev/escapement"
	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/store/memstore"
)

// What nobody knows the outcome of is found, counted and told, once a minute to
// the Observer, and in the log when the number changes; also where there is more
// of it than one turn of the sweeper looks at.
func TestAbandonedAreCounted(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const many = 10_500 // the sweeper looks at 10 pages of 1000 at a time
		var log journal
		r := newRig(t, escapement.Options{})
		g := r.another(escapement.Options{
			Records: r.store, SweepEvery: 10 * time.Second, AbandonedAfter: 5 * time.Minute,
			Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
		unknown := func(context.Context, *escapement.Run) idempotency.Ending { return idempotency.UnknownEnding() }
		for n := range uint64(many) {
			if _, err := g.Do(t.Context(), request(n), unknown); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := g.Do(t.Context(), request(many), creating(0).run); err != nil { // is done, and not counted
			t.Fatal(err)
		}
		begin := time.Now()
		work := r.work(g)
		pass(4 * time.Minute)
		for _, e := range r.events.of(escapement.AbandonedCounted) {
			if e.Count != 0 {
				t.Fatalf("%d are counted after %v", e.Count, time.Since(begin))
			}
		}
		if strings.Contains(log.String(), "outcome") {
			t.Errorf("the log says %s", log.String())
		}
		pass(4 * time.Minute)
		counts := r.events.of(escapement.AbandonedCounted)
		if len(counts) < 5 || len(counts) > 8 {
			t.Errorf("%d counts in 8 minutes, want one a minute or a little less", len(counts))
		}
		last := counts[len(counts)-1]
		if last.Count != many || last.Oldest < 6*time.Minute || last.Oldest > 9*time.Minute || !last.Background {
			t.Errorf("the last count is %+v", last)
		}
		if n := strings.Count(log.String(), "level=WARN"); n != 1 || !strings.Contains(log.String(), "count=10500") {
			t.Errorf("%d warnings for one number:\n%s", n, log.String())
		}
		for n := range uint64(many) {
			rec, ok := r.record(key(n))
			if !ok {
				t.Fatal("a record is gone")
			}
			if err := r.store.Settle(t.Context(), rec.Key, rec.Revision, idempotency.Result{Class: idempotency.FailedFinal, Status: 500}); err != nil {
				t.Fatal(err)
			}
		}
		pass(2 * time.Minute)
		work()
		counts = r.events.of(escapement.AbandonedCounted)
		if last := counts[len(counts)-1]; last.Count != 0 {
			t.Errorf("%d are counted when all are settled", last.Count)
		}
		if !strings.Contains(log.String(), "no operation with an unknown outcome is left") {
			t.Errorf("the log says %s", log.String())
		}
	})
}

// A store that cannot be listed for a while is counted anew, not in halves.
func TestAbandonedAreCountedAnewAfterAFault(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, escapement.Options{})
		lists := &listing{Records: r.store, fail: 2} // the second page of the first count
		g := r.another(escapement.Options{Records: lists, SweepEvery: 10 * time.Second, AbandonedAfter: time.Second})
		unknown := func(context.Context, *escapement.Run) idempotency.Ending { return idempotency.UnknownEnding() }
		for n := range uint64(2500) {
			if _, err := g.Do(t.Context(), request(n), unknown); err != nil {
				t.Fatal(err)
			}
		}
		pass(time.Hour)
		work := r.work(g)
		pass(15 * time.Second)
		if n := len(r.events.of(escapement.AbandonedCounted)); n != 0 {
			t.Fatalf("%d counts though a page is missing", n)
		}
		pass(10 * time.Second)
		work()
		if all := r.events.of(escapement.AbandonedCounted); len(all) != 1 || all[0].Count != 2500 {
			t.Errorf("the counts are %+v", all)
		}
	})
}

// listing is a store of records whose n-th list fails, once.
type listing struct {
	*memstore.Records
	fail, lists int
}

func (l *listing) List(ctx context.Context, f idempotency.Filter) (idempotency.Page, error) {
	l.lists++
	if l.lists == l.fail {
		return idempotency.Page{}, errAway
	}
	return l.Records.List(ctx, f)
}

// journal is a log that is written and read at once.
type journal struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (j *journal) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.all.Write(b)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.all.String()
}
