package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// inTheUpstream is a point that the test kills at by itself: the request is
// with the upstream, which has not answered.
const inTheUpstream = "in-the-upstream"

// points are where the campaign kills.
var points = []string{
	"before-claim", "after-claim", inTheUpstream,
	"after-effect-before-record", "after-record-before-answer", "mid-answer",
}

const (
	kills     = 25   // in a normal run
	soakKills = 1000 // with ESCAPEMENT_SOAK=1
	lanes     = 3    // programs, each with its upstream and its file, at once
	each      = 4    // orders, and as many payments, per round
)

func soak() bool { return os.Getenv("ESCAPEMENT_SOAK") == "1" }

// seed is ESCAPEMENT_SEED, or a fresh one.
func seed(t *testing.T) uint64 {
	t.Helper()
	s := uint64(time.Now().UnixNano())
	if v := os.Getenv("ESCAPEMENT_SEED"); v != "" {
		var err error
		if s, err = strconv.ParseUint(v, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	fmt.Printf("%s: ESCAPEMENT_SEED=%d\n", t.Name(), s)
	return s
}

// The program is killed while requests run, over and over, started again on
// the same file, and every key repeated until its answer is final. What had
// been answered is replayed; a held order is taken over exactly once, and there
// is one order per key; a held payment is unknown, and there is at most one.
func TestT2T3KillCampaign(t *testing.T) {
	t.Parallel()
	s := seed(t)
	n := kills
	if soak() {
		n = soakKills
	}
	var wg sync.WaitGroup
	var seen [lanes]map[string]int
	for l := range lanes {
		dir := t.TempDir()
		wg.Go(func() {
			db := filepath.Join(dir, "escapement.db")
			lane := &lane{dir: dir, at: options{db: db}, snapshot: func() (map[string]kept, error) { return snapshot(db, dir) }, random: rand.New(rand.NewPCG(s, uint64(l))), name: fmt.Sprintf("lane %d", l)}
			err := lane.campaign(l, lanes, n)
			lane.close()
			seen[l] = lane.seen
			if err != nil {
				t.Errorf("seed %d: lane %d: %v\nhistory:\n%s", s, l, err, strings.Join(lane.history, "\n"))
			}
		})
	}
	wg.Wait()
	// A campaign that never meets a case proves nothing about it.
	for i, c := range []string{"orders held", "payments held", "orders done", "payments done", "orders ", "payments ", "taken over, then held", "taken over, then done"} {
		rare := i >= 6 // in 25 rounds
		n := 0
		for _, m := range seen {
			n += m[c]
		}
		t.Logf("kills have left: %s: %d", c, n)
		if n == 0 && !t.Failed() && (!rare || soak()) {
			t.Errorf("seed %d: no kill has left: %s", s, c)
		}
	}
}

// operation is one key of the campaign.
type operation struct {
	request
	kind  string // orders or payments
	trace string
	delay time.Duration
	wait  time.Duration // before it is sent first
	first reply         // what the first request got
	again reply         // what a repeat got before a second kill
	last  reply         // the final answer
}

// lane is one series of rounds on one store.
type lane struct {
	name    string
	dir     string
	at      options // of the programs: their store
	random  *rand.Rand
	up      *process
	upURL   string
	program *program
	// other takes its half of the repeats, where the store is shared.
	shared bool
	other  *program
	// snapshot reads the records of a store whose programs are dead.
	snapshot func() (map[string]kept, error)
	all      []*operation
	ids      map[string]string // order or payment, by what the answer names
	history  []string
	seen     map[string]int // what kills have left
}

func (l *lane) close() {
	if l.program != nil {
		l.program.kill()
	}
	if l.other != nil {
		l.other.kill()
	}
	if l.up != nil {
		l.up.kill()
	}
}

func (l *lane) note(format string, args ...any) {
	l.history = append(l.history, fmt.Sprintf(format, args...))
}

// start starts a program on the lane's store, to be killed at a point or not.
func (l *lane) start(killAt string) (*program, error) {
	o := l.at
	o.dir, o.settings, o.killAt = l.dir, patient("1s"), killAt
	return run(l.upURL, o)
}

// campaign runs the rounds of this lane: every one whose number is first plus
// a multiple of step.
func (l *lane) campaign(first, step, n int) (err error) {
	l.ids, l.seen = map[string]string{}, map[string]int{}
	if l.up, l.upURL, err = upstream(l.dir); err != nil {
		return err
	}
	for round := first; round < n; round += step {
		l.history = nil // of the last round
		if err := l.round(round); err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
	}
	return l.replayAll()
}

func (l *lane) operations(round int, point string) []*operation {
	var ops []*operation
	for i := range 2 * each {
		kind := "orders"
		if i%2 == 1 {
			kind = "payments"
		}
		o := &operation{
			kind: kind, trace: fmt.Sprintf("%016x%016x", round+1, i+1),
			wait: time.Duration(l.random.IntN(40)) * time.Millisecond,
		}
		o.delay = time.Duration(l.random.IntN(100)) * time.Millisecond
		if point == inTheUpstream {
			o.delay += 100 * time.Millisecond
		}
		o.request = request{
			path: "/v1/" + kind, key: fmt.Sprintf("round-%d-%d", round, i), tenant: l.name, body: fmt.Sprintf(`{"item":%d}`, i),
			fields: map[string]string{"X-Demo-Delay": o.delay.String(), "Traceparent": "00-" + o.trace + "-00f067aa0ba902b7-01"},
		}
		ops = append(ops, o)
	}
	return ops
}

// round is one kill and what comes after it.
func (l *lane) round(round int) error {
	point := points[round%len(points)]
	killAt := fmt.Sprintf("%s:%d", point, 1+l.random.IntN(2*each))
	ops := l.operations(round, point)
	before, err := l.counts()
	if err != nil {
		return err
	}
	if err := l.crash(point, killAt, ops); err != nil {
		return err
	}
	left, err := l.snapshot()
	if err != nil {
		return err
	}
	for _, o := range ops {
		l.note("%s %s: delay %v, first answer %v; the kill left %+v", o.kind, o.key, o.delay, o.first, left[o.trace])
		l.seen[o.kind+" "+left[o.trace].state]++
	}
	if l.random.IntN(4) == 0 {
		if left, err = l.crashAgain(ops, left); err != nil {
			return err
		}
	}

	if l.program, err = l.start(""); err != nil {
		return err
	}
	urls := []string{l.program.url, l.program.url}
	if l.shared {
		if l.other, err = l.start(""); err != nil {
			return err
		}
		urls[1] = l.other.url
	}
	if err := l.repeat(ops, urls); err != nil {
		return err
	}
	// Another run must not be hidden in what comes after the repeats.
	for _, p := range []*program{l.program, l.other} {
		if p == nil {
			continue
		}
		p.kill()
		if err := p.check(); err != nil {
			return err
		}
	}
	after, err := l.snapshot()
	if err != nil {
		return err
	}
	for _, o := range ops {
		if err := l.judge(o, left[o.trace], after[o.trace]); err != nil {
			return fmt.Errorf("%s %s: %w", o.kind, o.key, err)
		}
	}
	l.all = append(l.all, ops...)
	return l.effects(before, ops, after)
}

// crash sends the operations to a program that is killed at the point.
func (l *lane) crash(point, killAt string, ops []*operation) error {
	l.note("killed at %s", killAt)
	if point == inTheUpstream {
		killAt = ""
	}
	var err error
	if l.program, err = l.start(killAt); err != nil {
		return err
	}
	came, err := l.counts()
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	for _, o := range ops {
		wg.Go(func() {
			pause(o.wait)
			o.first = o.send(l.program.url)
		})
	}
	if point == inTheUpstream {
		some := int64(1 + l.random.IntN(2*each))
		var err error
		if !soon(func() bool {
			var now map[string]counts
			now, err = l.counts()
			return err != nil || now["orders"].Received+now["payments"].Received >= came["orders"].Received+came["payments"].Received+some
		}) || err != nil {
			return fmt.Errorf("%d requests do not reach the upstream: %w", some, err)
		}
		l.program.kill()
	}
	wg.Wait()
	if err := l.program.wait(); err != nil {
		return fmt.Errorf("the point is not reached: %w", err)
	}
	if !l.program.killedByForce() {
		return fmt.Errorf("the program ended otherwise: %w\n%s", l.program.ended, l.program.stderr)
	}
	return l.program.check()
}

// crashAgain starts the program and kills it when the repeats, which have
// waited for their Retry-After, are about to take over, or have.
func (l *lane) crashAgain(ops []*operation, before map[string]kept) (map[string]kept, error) {
	var err error
	if l.program, err = l.start(""); err != nil {
		return nil, err
	}
	after := time.Second + time.Duration(l.random.IntN(300))*time.Millisecond
	l.note("killed again after %v", after)
	var wg sync.WaitGroup
	for _, o := range ops {
		wg.Go(func() { o.again, _ = o.final(l.program.url) }) // broken by the kill, or not
	}
	pause(after)
	l.program.kill()
	wg.Wait()
	if err := l.program.check(); err != nil {
		return nil, err
	}
	left, err := l.snapshot()
	if err != nil {
		return nil, err
	}
	for _, o := range ops {
		prev, now := before[o.trace], left[o.trace]
		l.note("%s %s: the repeat got %v; the second kill left %+v", o.kind, o.key, o.again, now)
		good := true
		switch {
		case prev.state == "done", prev.state == "held" && o.kind == "payments":
			good = now == prev
		case prev.state == "held":
			good = now == prev || now.attempt == prev.attempt+1 && now.takeover
			if now.attempt > prev.attempt {
				l.seen["taken over, then "+now.state]++
			}
		default:
			good = now.attempt <= 1
		}
		if !good {
			return nil, fmt.Errorf("%s %s: the record was %+v, and after the repeats %+v", o.kind, o.key, prev, now)
		}
	}
	return left, nil
}

// repeat sends each operation again, twice at once, until both answers are
// final.
func (l *lane) repeat(ops []*operation, urls []string) error {
	errs := make([]error, 2*len(ops))
	answers := make([]reply, 2*len(ops))
	var wg sync.WaitGroup
	for i, o := range ops {
		q := o.request
		q.fields = map[string]string{"Traceparent": o.fields["Traceparent"]} // without the delay
		for j := range 2 {
			wg.Go(func() { answers[2*i+j], errs[2*i+j] = q.final(urls[j]) })
		}
	}
	wg.Wait()
	for i, o := range ops {
		a, b := answers[2*i], answers[2*i+1]
		o.last = a
		if !a.replayed() {
			o.last = a
		} else if !b.replayed() {
			o.last = b
		}
		l.note("%s %s: final answers %v and %v", o.kind, o.key, a, b)
		if a.status != b.status || a.body != b.body {
			errs = append(errs, fmt.Errorf("%s %s: two final answers: %v and %v", o.kind, o.key, a, b))
		}
		if a.status == http.StatusCreated && !a.replayed() && !b.replayed() {
			errs = append(errs, fmt.Errorf("%s %s: both repeats ran", o.kind, o.key))
		}
	}
	return errors.Join(errs...)
}

// judge says what is wrong with the end of an operation, of which the last kill
// has left a record (or none, its zero value).
func (l *lane) judge(o *operation, left, after kept) error {
	answered := o.first.err == nil && o.first.status != 0
	if answered && o.first.status != http.StatusCreated {
		return fmt.Errorf("the first answer is %v", o.first)
	}
	if !strings.HasPrefix(o.last.body, o.first.body) {
		return fmt.Errorf("a part of another answer came first: %v, then %v", o.first, o.last)
	}
	if o.again.status == http.StatusCreated && o.again.err == nil && !o.last.same(o.again) {
		return fmt.Errorf("before the second kill a repeat got %v, and now %v", o.again, o.last)
	}
	wantAttempt, wantState := max(1, left.attempt), "done"
	switch {
	case answered && left.state != "done":
		return fmt.Errorf("the first answer is whole, and the record is %+v", left)
	case left.state == "done":
		if !o.last.replayed() || answered && !o.last.same(o.first) {
			return fmt.Errorf("was done: the repeat gets %v (replayed %v), the first got %v", o.last, o.last.replayed(), o.first)
		}
	case left.state == "held" && o.kind == "payments":
		wantState = "held"
		if o.last.status != http.StatusConflict || o.last.code() != "idempotency-outcome-unknown" || strings.Contains(o.last.body, `"retryable":true`) {
			return fmt.Errorf("was held: the repeat gets %v", o.last)
		}
	case left.state == "held":
		wantAttempt++
		if o.last.status != http.StatusCreated || o.last.replayed() {
			return fmt.Errorf("was held: no repeat took over: %v (replayed %v)", o.last, o.last.replayed())
		}
	case left.state == "":
		if o.last.status != http.StatusCreated || o.last.replayed() {
			return fmt.Errorf("was not claimed: no repeat ran: %v (replayed %v)", o.last, o.last.replayed())
		}
	default:
		return fmt.Errorf("the kill left %+v", left)
	}
	if after.attempt != wantAttempt || after.state != wantState || after.takeover != (wantAttempt > 1) {
		return fmt.Errorf("the record was %+v and is %+v: want %s after attempt %d", left, after, wantState, wantAttempt)
	}
	return nil
}

func (l *lane) counts() (map[string]counts, error) {
	out := map[string]counts{}
	for _, kind := range []string{"orders", "payments"} {
		c, err := count(l.upURL, kind)
		if err != nil {
			return nil, err
		}
		out[kind] = c
	}
	return out, nil
}

// effects compares what the upstream has made with what it was to make. What
// the killed program had sent may still be on its way there: it is over when a
// request per attempt, less those that the kill kept back, has had its effect.
func (l *lane) effects(before map[string]counts, ops []*operation, after map[string]kept) error {
	var orders, attempts, payments int64
	made := func() error {
		payments = 0
		for _, o := range ops {
			if o.kind != "payments" {
				continue
			}
			r := request{method: http.MethodGet, path: "/v1/payments/by-key/" + o.key, tenant: l.name}.send(l.upURL)
			switch {
			case r.err != nil:
				return r.err
			case r.status == http.StatusOK:
				payments++
				if o.last.status == http.StatusCreated && r.body != o.last.body {
					return fmt.Errorf("payment %s: the upstream made %s, the answer says %s", o.key, r.body, o.last.body)
				}
			case o.last.status == http.StatusCreated:
				return fmt.Errorf("payment %s: answered %v, and the upstream knows none", o.key, o.last)
			}
		}
		return nil
	}
	for _, o := range ops {
		attempts += int64(after[o.trace].attempt)
		if o.last.status == http.StatusCreated {
			var id map[string]int64
			if err := json.Unmarshal([]byte(o.last.body), &id); err != nil || len(id) != 1 {
				return fmt.Errorf("%s %s: the answer is %v (%w)", o.kind, o.key, o.last, err)
			}
			if l.ids[o.last.body] != "" {
				return fmt.Errorf("%s and %s have the same %s %s", l.ids[o.last.body], o.key, o.kind, o.last.body)
			}
			l.ids[o.last.body] = o.key
		}
		if o.kind == "orders" {
			orders++
		}
	}
	var err error
	var now map[string]counts
	if !soon(func() bool {
		if err = made(); err != nil {
			return true
		}
		now, err = l.counts()
		return err != nil || now["payments"].Count-before["payments"].Count == payments
	}) {
		err = fmt.Errorf("the upstream made %d payments for %d keys", now["payments"].Count-before["payments"].Count, payments)
	}
	if err != nil {
		return err
	}
	l.note("the upstream had %+v and has %+v; attempts: %d", before, now, attempts)
	if got := now["orders"].Count - before["orders"].Count; got != orders {
		return fmt.Errorf("the upstream made %d orders for %d keys", got, orders)
	}
	got := now["orders"].Received + now["payments"].Received - before["orders"].Received - before["payments"].Received
	if got > attempts {
		return fmt.Errorf("%d POSTs reached the upstream in %d attempts", got, attempts)
	}
	return nil
}

// replayAll starts the program once more: every key of all rounds gives its
// final answer.
func (l *lane) replayAll() (err error) {
	if l.program, err = l.start(""); err != nil {
		return err
	}
	before, err := l.counts()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*patience)
	defer cancel()
	for _, o := range l.all {
		r := o.sendWithin(ctx, l.program.url)
		if r.status != o.last.status || r.body != o.last.body || r.err != nil {
			return fmt.Errorf("%s %s at the end: %v, and before %v", o.kind, o.key, r, o.last)
		}
	}
	after, err := l.counts()
	if err != nil {
		return err
	}
	if fmt.Sprint(before) != fmt.Sprint(after) {
		return fmt.Errorf("replays reached the upstream: %v, then %v", before, after)
	}
	return l.program.terminate()
}
