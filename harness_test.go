package escapement_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/escapement-dev/escapement"
	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/ratelimit"
	"github.com/escapement-dev/escapement/store/memstore"
)

// errAway is what a store that is out of reach says.
var errAway = errors.New("connection refused")

// fault is what goes wrong with one call of a store.
type fault struct {
	before error         // returned; the call never gets there
	late   time.Duration // the request takes so long to get there
	after  error         // returned; the call took effect
	slow   time.Duration // the reply takes so long to come back
}

// faulty is a real store behind a bad network. A caller that stops waiting gets
// its context's error; what it sent still arrives.
type faulty struct {
	idempotency.Store
	mu    sync.Mutex
	plan  func(op string, n int) fault // n counts the calls of op from 0
	calls map[string]int
	order []string

	admits atomic.Int64 // see one
}

func (f *faulty) set(plan func(op string, n int) fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.plan = plan
}

func (f *faulty) count(op string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[op]
}

func (f *faulty) log() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.order...)
}

func through[T any](ctx context.Context, f *faulty, op string, call func(context.Context) (T, error)) (T, error) {
	f.mu.Lock()
	if f.calls == nil {
		f.calls = map[string]int{}
	}
	n := f.calls[op]
	f.calls[op]++
	f.order = append(f.order, op)
	var x fault
	if f.plan != nil {
		x = f.plan(op, n)
	}
	f.mu.Unlock()
	type reply struct {
		v   T
		err error
	}
	var none T
	if x.before != nil {
		return none, x.before
	}
	if x.late == 0 && x.slow == 0 {
		v, err := call(ctx)
		if x.after != nil {
			return none, x.after
		}
		return v, err
	}
	back := make(chan reply, 1)
	after(x.late, func() {
		v, err := call(context.WithoutCancel(ctx))
		if x.after != nil {
			v, err = none, x.after
		}
		after(x.slow, func() { back <- reply{v, err} })
	})
	select {
	case r := <-back:
		return r.v, r.err
	case <-ctx.Done():
		return none, ctx.Err()
	}
}

// after calls f after d, on a goroutine of its own. It makes no timer that is
// due at once: in a bubble such a one fires on its maker's stack, where the race
// detector of Go 1.26 has crashed.
func after(d time.Duration, f func()) {
	if d <= 0 {
		go f()
		return
	}
	time.AfterFunc(d, f)
}

func (f *faulty) Reserve(ctx context.Context, c idempotency.Claim) (idempotency.Answer, error) {
	return through(ctx, f, "reserve", func(ctx context.Context) (idempotency.Answer, error) { return f.Store.Reserve(ctx, c) })
}

func (f *faulty) Extend(ctx context.Context, r idempotency.Reservation, lease time.Duration) (time.Time, error) {
	return through(ctx, f, "extend", func(ctx context.Context) (time.Time, error) { return f.Store.Extend(ctx, r, lease) })
}

func (f *faulty) End(ctx context.Context, r idempotency.Reservation, e idempotency.Ending) error {
	_, err := through(ctx, f, "end", func(ctx context.Context) (struct{}, error) { return struct{}{}, f.Store.End(ctx, r, e) })
	return err
}

func (f *faulty) Void(ctx context.Context, k idempotency.Key, o idempotency.Owner) error {
	_, err := through(ctx, f, "void", func(ctx context.Context) (struct{}, error) { return struct{}{}, f.Store.Void(ctx, k, o) })
	return err
}

func (f *faulty) Lookup(ctx context.Context, k idempotency.Key) (idempotency.Record, error) {
	return through(ctx, f, "lookup", func(ctx context.Context) (idempotency.Record, error) { return f.Store.Lookup(ctx, k) })
}

func (f *faulty) SaveStep(ctx context.Context, r idempotency.Reservation, s idempotency.Step) error {
	steps, ok := f.Store.(idempotency.StepStore)
	if !ok {
		return errors.New("the store behind the network keeps no steps")
	}
	_, err := through(ctx, f, "step", func(ctx context.Context) (struct{}, error) { return struct{}{}, steps.SaveStep(ctx, r, s) })
	return err
}

// oneCall is true while a test runs with a store that is an Admitter. Tests of
// this package are not parallel.
var oneCall bool

// paths runs f over both ways to a verdict: three calls of two stores, and one
// call of one.
func paths(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	defer func(was bool) { oneCall = was }(oneCall)
	for _, oneCall = range []bool{false, true} {
		t.Run(map[bool]string{false: "three_calls", true: "one_call"}[oneCall], f)
	}
}

// one is records and limits in one store, an Admitter.
type one struct {
	*faulty
	ratelimit.Store
}

var _ interface {
	idempotency.Store
	ratelimit.Store
	escapement.Admitter
} = (*one)(nil)

func (s *one) Admit(ctx context.Context, requests, executions []ratelimit.Charge, c idempotency.Claim) (d ratelimit.Decision, a idempotency.Answer, err error) {
	s.admits.Add(1)
	if d, err = s.Take(ctx, requests); err != nil || !d.Allowed {
		return d, a, err
	}
	if a, err = s.Reserve(ctx, c); err != nil || a.Outcome != idempotency.Started {
		return d, a, err
	}
	second, err := s.Take(ctx, executions)
	if err != nil {
		return d, a, err
	}
	d.Levels = append(d.Levels, second.Levels...)
	if d.Allowed = second.Allowed; !d.Allowed {
		d.Taken = nil
		return d, idempotency.Answer{}, s.faulty.Store.End(ctx, a.Reservation, idempotency.NotRun())
	}
	d.Taken = &ratelimit.Taken{
		Charges:  append(append([]ratelimit.Charge(nil), requests...), executions...),
		Receipts: append(append([]ratelimit.Receipt(nil), d.Taken.Receipts...), second.Taken.Receipts...),
	}
	return d, a, nil
}

// rig is a Gate over memstore behind a network that the test controls.
type rig struct {
	*testing.T
	store  *memstore.Records
	net    *faulty
	limits *memstore.Limits
	gate   *escapement.Gate
	events *events
}

func newRig(t *testing.T, o escapement.Options) *rig {
	t.Helper()
	store, err := memstore.NewRecords(memstore.RecordsOptions{})
	if err != nil {
		t.Fatal(err)
	}
	limits, err := memstore.NewLimits(memstore.LimitsOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{T: t, store: store, net: &faulty{Store: store}, limits: limits, events: &events{}}
	r.gate = r.another(o)
	return r
}

// another is a second node on the same store.
func (r *rig) another(o escapement.Options) *escapement.Gate {
	r.Helper()
	if o.Records == nil {
		o.Records = r.net
	}
	if o.Limits == nil {
		o.Limits = r.limits
		if oneCall && o.Records == idempotency.Store(r.net) {
			both := &one{faulty: r.net, Store: r.limits}
			o.Records, o.Limits = both, both
		}
	}
	if o.Observer == nil {
		o.Observer = r.events
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	g, err := escapement.New(o)
	if err != nil {
		r.Fatal(err)
	}
	return g
}

// work starts Gate.Run and returns a function that ends it.
func (r *rig) work(g *escapement.Gate) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			r.Errorf("Run: %v", err)
		}
	}
}

// record returns what the store says of k, and false if it has nothing.
func (r *rig) record(k idempotency.Key) (idempotency.Record, bool) {
	r.Helper()
	rec, err := r.store.Lookup(context.Background(), k)
	if errors.Is(err, idempotency.ErrNotFound) {
		return rec, false
	}
	if err != nil {
		r.Fatal(err)
	}
	return rec, true
}

// status is the record's status now; "free" where there is none.
func (r *rig) status(k idempotency.Key) idempotency.Status {
	r.Helper()
	rec, ok := r.record(k)
	if !ok {
		return idempotency.StatusFree
	}
	return rec.Status()
}

func (r *rig) wantStatus(k idempotency.Key, want idempotency.Status) {
	r.Helper()
	if got := r.status(k); got != want {
		r.Errorf("the record is %s, want %s", got, want)
	}
}

// events is an Observer that remembers.
type events struct {
	mu  sync.Mutex
	all []escapement.Event
}

func (e *events) Observe(_ context.Context, ev escapement.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, ev)
}

func (e *events) of(kind escapement.EventKind) (found []escapement.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, ev := range e.all {
		if ev.Kind == kind {
			found = append(found, ev)
		}
	}
	return found
}

func key(n uint64) idempotency.Key {
	var id idempotency.ID
	id[0] = 1
	binary.BigEndian.PutUint64(id[8:], n)
	return idempotency.Key{ID: id, Tenant: "tenant"}
}

func request(n uint64) escapement.Request {
	r := escapement.Request{
		Key: key(n), Policy: escapement.DefaultPolicy(), ID: "request",
		Origin: idempotency.Origin{Method: "POST", Route: "/orders", Trace: "trace"},
	}
	if oneCall { // without charges, a Gate has nothing to put together
		r.Charges = []ratelimit.Charge{charge("wide", ratelimit.Executions, 1e6), charge("open", ratelimit.Requests, 1e6)}
	}
	return r
}

func retrying(n uint64) escapement.Request {
	r := request(n)
	r.Policy.Terms.OnUnknown, r.Policy.Terms.Quiet = idempotency.Retry, 0
	return r
}

var created = idempotency.Result{Class: idempotency.Succeeded, Status: 201, Payload: []byte("the answer")}

// operation counts its effects and ends as told, after a while.
type operation struct {
	mu      sync.Mutex
	effects int
	takes   time.Duration
	ending  idempotency.Ending
	obeys   bool // returns, unknown, when its context ends
}

func creating(takes time.Duration) *operation {
	return &operation{takes: takes, ending: idempotency.Done(created)}
}

func (o *operation) run(ctx context.Context, _ *escapement.Run) idempotency.Ending {
	o.mu.Lock()
	o.effects++
	o.mu.Unlock()
	if o.takes > 0 {
		var gone <-chan struct{}
		if o.obeys {
			gone = ctx.Done()
		}
		select {
		case <-time.After(o.takes):
		case <-gone:
			return idempotency.UnknownEnding()
		}
	}
	return o.ending
}

func (o *operation) count() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.effects
}

func (r *rig) wantEffects(o *operation, want int) {
	r.Helper()
	if got := o.count(); got != want {
		r.Errorf("the operation took effect %d times, want %d", got, want)
	}
}

// result is what one Do came to.
type result struct {
	v   escapement.Verdict
	err error
}

func do(g *escapement.Gate, req escapement.Request, o *operation) <-chan result {
	c := make(chan result, 1)
	go func() {
		v, err := g.Do(context.Background(), req, o.run)
		c <- result{v, err}
	}()
	return c
}

// bubble runs f in virtual time. Everything that f starts must end.
func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	paths(t, func(t *testing.T) { synctest.Test(t, f) })
}

// pass lets virtual time go by.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func within(t *testing.T, name string, got, least, most time.Duration) {
	t.Helper()
	if got < least || got > most {
		t.Errorf("%s took %v, want %v to %v", name, got, least, most)
	}
}
