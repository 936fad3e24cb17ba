package escapement_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/escapement-dev/escapement"
	"github.com/escapement-dev/escapement/idempotency"
)

// txStore keeps one record by the ground's own rule, with transactions as an
// embedded database has them: one writer at a time, and readers see what is
// committed.
type txStore struct {
	writer chan struct{}
	mu     sync.Mutex
	rec    idempotency.Record
}

func newTxStore() *txStore { return &txStore{writer: make(chan struct{}, 1)} }

// tx is a transaction, as a store.
type tx struct {
	idempotency.Store // nil: only Extend and End are used
	s                 *txStore
	rec               idempotency.Record
}

func now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }

func (s *txStore) begin(ctx context.Context) (*tx, error) {
	select {
	case s.writer <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return &tx{s: s, rec: s.read()}, nil
}

func (t *tx) commit() {
	t.s.mu.Lock()
	t.s.rec = t.rec
	t.s.mu.Unlock()
	<-t.s.writer
}

func (t *tx) rollback() { <-t.s.writer }

func (t *tx) Extend(_ context.Context, r idempotency.Reservation, lease time.Duration) (time.Time, error) {
	rec, err := idempotency.Renew(t.rec, r, lease, now())
	t.rec = rec
	return rec.LeaseEnd, err
}

func (t *tx) End(_ context.Context, r idempotency.Reservation, e idempotency.Ending) error {
	rec, err := idempotency.Finish(t.rec, r, e, now())
	t.rec = rec
	return err
}

func (s *txStore) read() idempotency.Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rec
}

func (s *txStore) Reserve(ctx context.Context, c idempotency.Claim) (idempotency.Answer, error) {
	t, err := s.begin(ctx)
	if err != nil {
		return idempotency.Answer{}, err
	}
	defer t.commit()
	rec, a := idempotency.Decide(t.rec, c, now())
	t.rec = rec
	return a, nil
}

func (s *txStore) Extend(ctx context.Context, r idempotency.Reservation, lease time.Duration) (time.Time, error) {
	t, err := s.begin(ctx)
	if err != nil {
		return time.Time{}, err
	}
	defer t.commit()
	return t.Extend(ctx, r, lease)
}

func (s *txStore) End(ctx context.Context, r idempotency.Reservation, e idempotency.Ending) error {
	t, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer t.commit()
	return t.End(ctx, r, e)
}

func (s *txStore) Void(ctx context.Context, k idempotency.Key, o idempotency.Owner) error {
	t, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer t.commit()
	t.rec = idempotency.Withdraw(t.rec, k, o, now())
	return nil
}

func (s *txStore) Lookup(context.Context, idempotency.Key) (idempotency.Record, error) {
	rec, ok := idempotency.View(s.read(), now())
	if !ok {
		return rec, idempotency.ErrNotFound
	}
	return rec, nil
}

// Once EndIn was called, the fate of the transaction is the ending.
func TestSameTransaction(t *testing.T) {
	type body func(t *testing.T, ctx context.Context, s *txStore, run *escapement.Run) idempotency.Ending
	other := idempotency.Done(idempotency.Result{Class: idempotency.FailedFinal, Status: 500})
	open := func(t *testing.T, ctx context.Context, s *txStore, run *escapement.Run) *tx {
		x, err := s.begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := run.FenceIn(ctx, x); err != nil {
			t.Error(err)
		}
		if err := run.EndIn(ctx, x, created); err != nil {
			t.Error(err)
		}
		return x
	}
	for _, c := range []struct {
		name     string
		body     body
		away     time.Duration // Lookup cannot be reached for so long
		ending   idempotency.EndingKind
		recorded bool
		timedOut bool
		panicked bool
		status   idempotency.Status // in the end
	}{
		{
			name: "committed, and says so",
			body: func(t *testing.T, ctx context.Context, s *txStore, run *escapement.Run) idempotency.Ending {
				open(t, ctx, s, run).commit()
				return idempotency.Done(created)
			},
			ending: idempotency.EndedDone, recorded: true, status: idempotency.StatusSucceeded,
		}, {
			name: "committed, and says something else",
			body: func(t *testing.T, ctx context.Context, s *txStore, run *escapement.Run) idempotency.Ending {
				open(t, ctx, s, run).commit()
				return other
			},
			ending: idempotency.EndedDone, recorded: true, status: idempotency.StatusSucceeded,
		}, {
			name: "committed, and panics",
			body: func(t *testing.T, ctx context.Context, s *txStore, run *escapement.Run) idempotency.Ending {
				open(t, ctx, s, run).commit()
				panic("boom")
			},
			ending: idempotency.EndedDone, recorded: true, panicked: true, status: idempotency.StatusSucceeded,
		}, {
			name: "committed, and takes long to send",
			body: func(t *testing.T, ctx context.Context, s *txStore, run *escapement.Run) idempotency.Ending {
				open(t, ctx, s, run).commit()
				<-time.After(20 * time.Second)
				if ctx.Err() != nil {
					t.Error(ctx.Err())
				}
				return idempotency.Ending{}
			},
			ending: idempotency.EndedDone, recorded: true, status: idempotency.StatusSucceeded,
		}, {
			name: "rolled back, and says done",
			body: func(t *testing.T, ctx context.Context, s *txStore, run *escapement.Run) idempotency.Ending {
				open(t, ctx, s, run).rollback()
				return idempotency.Done(created)
			},
			ending: idempotency.EndedNotRun, recorded: true, status: idempotency.StatusFree,
		}, {
			name: "rolled back by a panic",
			body: func(t *testing.T, ctx context.Context, s *txStore, run *escapement.Run) idempotency.Ending {
				defer open(t, ctx, s, run).rollback()
				panic("boom")
			},
			ending: idempotency.EndedNotRun, recorded: true, panicked: true, status: idempotency.StatusFree,
		}, {
			name: "rolled back, then tried again",
			body: func(t *testing.T, ctx context.Context, s *txStore, run *escapement.Run) idempotency.Ending {
				open(t, ctx, s, run).rollback()
				open(t, ctx, s, run).commit()
				return idempotency.Done(created)
			},
			ending: idempotency.EndedDone, recorded: true, status: idempotency.StatusSucceeded,
		}, {
			name: "an invalid result changes nothing",
			body: func(t *testing.T, ctx context.Context, s *txStore, run *escapement.Run) idempotency.Ending {
				x, _ := s.begin(ctx)
				defer x.commit()
				if err := run.EndIn(ctx, x, idempotency.Result{}); err == nil {
					t.Error("no error")
				}
				return other
			},
			ending: idempotency.EndedDone, recorded: true, status: idempotency.StatusFailedFinal,
		}, {
			name: "its fate is not known for a while",
			body: func(t *testing.T, ctx context.Context, s *txStore, run *escapement.Run) idempotency.Ending {
				open(t, ctx, s, run).commit()
				return idempotency.Done(created)
			},
			away: 40 * time.Second, ending: idempotency.EndedUnknown, status: idempotency.StatusSucceeded,
		}, {
			name: "rolled back, which is not known for a while",
			body: func(t *testing.T, ctx context.Context, s *txStore, run *escapement.Run) idempotency.Ending {
				open(t, ctx, s, run).rollback()
				return idempotency.Done(created)
			},
			away: 40 * time.Second, ending: idempotency.EndedUnknown, status: idempotency.StatusFree,
		}, {
			name: "its COMMIT lost, and still to come",
			body: func(t *testing.T, ctx context.Context, s *txStore, run *escapement.Run) idempotency.Ending {
				x := open(t, ctx, s, run)
				time.AfterFunc(3*time.Second, x.commit)
				return idempotency.UnknownEnding()
			},
			ending: idempotency.EndedDone, recorded: true, status: idempotency.StatusSucceeded,
		}, {
			name: "its ROLLBACK lost, and still to come",
			body: func(t *testing.T, ctx context.Context, s *txStore, run *escapement.Run) idempotency.Ending {
				x := open(t, ctx, s, run)
				time.AfterFunc(3*time.Second, x.rollback)
				return idempotency.UnknownEnding()
			},
			ending: idempotency.EndedNotRun, recorded: true, status: idempotency.StatusFree,
		}, {
			name: "open for longer than anybody waits, then committed",
			body: func(t *testing.T, ctx context.Context, s *txStore, run *escapement.Run) idempotency.Ending {
				x := open(t, ctx, s, run)
				time.AfterFunc(40*time.Second, x.commit)
				return idempotency.UnknownEnding()
			},
			ending: idempotency.EndedUnknown, status: idempotency.StatusSucceeded,
		}, {
			name: "given up, then committed",
			body: func(t *testing.T, ctx context.Context, s *txStore, run *escapement.Run) idempotency.Ending {
				x := open(t, ctx, s, run)
				<-time.After(80 * time.Second)
				x.commit()
				return idempotency.Done(created)
			},
			ending: idempotency.EndedUnknown, timedOut: true, status: idempotency.StatusSucceeded,
		}, {
			name: "given up, then rolled back",
			body: func(t *testing.T, ctx context.Context, s *txStore, run *escapement.Run) idempotency.Ending {
				x := open(t, ctx, s, run)
				<-time.After(80 * time.Second)
				x.rollback()
				return idempotency.Done(created)
			},
			ending: idempotency.EndedUnknown, timedOut: true, status: idempotency.StatusFree,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, escapement.Options{})
				s := newTxStore()
				r.net.Store = s
				defer r.work(r.gate)()
				begin := time.Now()
				r.net.set(func(op string, _ int) fault {
					if op == "lookup" && time.Since(begin) < c.away {
						return fault{before: errAway}
					}
					return fault{}
				})
				req := retrying(1)
				v, err := r.gate.Do(t.Context(), req, func(ctx context.Context, run *escapement.Run) idempotency.Ending {
					return c.body(t, ctx, s, run)
				})
				if err != nil || v.Ending.Kind != c.ending || v.Recorded != c.recorded || v.Fenced ||
					v.TimedOut != c.timedOut || (v.Panicked != nil) != c.panicked {
					t.Errorf("%v: %+v", err, v)
				}
				if n := r.net.count("end"); n > 0 && strings.HasPrefix(c.name, "committed") {
					t.Errorf("%d calls of End for what was committed", n)
				}
				pass(time.Until(begin.Add(2 * time.Minute)))
				got := idempotency.StatusFree
				if rec, err := s.Lookup(t.Context(), req.Key); err == nil {
					got = rec.Status()
				}
				if got != c.status {
					t.Errorf("the record is %s, want %s", got, c.status)
				}
				if n := len(r.events.of(escapement.LeaseLost)); n != 0 {
					t.Errorf("%d events that the lease is lost", n)
				}
				if err := r.gate.Shutdown(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// Somebody took the key over before the transaction began: it is refused, and
// the record's state is the answer.
func TestSameTransactionFenced(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, escapement.Options{})
		s := newTxStore()
		r.net.Store = s
		r.net.set(frozen)
		req := retrying(1)
		v, err := r.gate.Do(t.Context(), req, func(ctx context.Context, run *escapement.Run) idempotency.Ending {
			<-time.After(16 * time.Second)
			c := idempotency.Claim{Key: req.Key, Owner: idempotency.NewOwner(), Terms: req.Policy.Terms}
			if a, err := s.Reserve(ctx, c); err != nil || a.Outcome != idempotency.Started {
				t.Error(a, err)
			}
			x, err := s.begin(ctx)
			if err != nil {
				t.Error(err)
				return idempotency.UnknownEnding()
			}
			defer x.rollback()
			if err := run.FenceIn(ctx, x); !errors.Is(err, idempotency.ErrFenced) {
				t.Errorf("FenceIn: %v", err)
			}
			if err := run.EndIn(ctx, x, created); !errors.Is(err, idempotency.ErrFenced) {
				t.Errorf("EndIn: %v", err)
			}
			return idempotency.NotRun()
		})
		if err != nil || !v.Fenced || v.Outcome != escapement.InProgress {
			t.Errorf("%+v, %v", v, err)
		}
	})
}
