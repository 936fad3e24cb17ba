package crash

import (
	"context"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// zombie sends a key to a program that stops itself (SIGSTOP) at a point, and
// returns when it has stopped. What its request is answered comes later.
func (c *campaign) zombie(k *key, at string) (p *process, late chan *answer) {
	c.t.Helper()
	p = c.start(&strike{At: at, How: byStop, Times: 1})
	late = make(chan *answer, 1)
	go func() {
		// Where the time of the attempt is over, it says that nothing was
		// executed, and is asked again.
		var a *answer
		var again string
		var err error
		for until := time.Now().Add(patience); a == nil && err == nil && time.Now().Before(until); {
			a, again, err = c.post(k, p.url)
		}
		if a == nil {
			c.t.Errorf("at %s: the zombie's request is answered %s %v\n%s", at, again, err, &p.stderr)
		}
		late <- a
	}()
	for until := time.Now().Add(patience); ; {
		var status syscall.WaitStatus
		// The state of a child that has stopped is reported once, to whoever asks
		// for it, and its end to who waits for that.
		pid, err := syscall.Wait4(p.cmd.Process.Pid, &status, syscall.WUNTRACED|syscall.WNOHANG, nil)
		switch {
		case err != nil || pid != 0 && !status.Stopped():
			c.t.Fatalf("at %s: the program ended: %v: %s", at, err, &p.stderr)
		case pid != 0:
			c.gone(p)
			return p, late
		case time.Now().After(until):
			c.t.Fatalf("the point %s is not reached", at)
		}
		<-time.After(time.Millisecond)
	}
}

// wake lets a zombie go on, and returns what its request is answered.
func (c *campaign) wake(p *process, late chan *answer) *answer {
	c.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		c.t.Fatal(err)
	}
	select {
	case a := <-late:
		return a
	case <-time.After(patience):
		c.t.Fatal("a zombie does not answer")
	}
	return nil
}

// revision is how often the records of the campaign were written, about.
func (c *campaign) revision() (sum int64) {
	c.t.Helper()
	err := c.query(func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "SELECT sum(revision)::bigint FROM "+c.schema+".escapement_records").Scan(&sum)
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return sum
}

// A program is stopped for longer than its lease, another one takes over and
// ends the operation, and then the first goes on. It starts no step and settles
// none, makes no order, and answers what the other has recorded.
func TestZombieChangesNothing(t *testing.T) {
	for _, z := range []struct {
		path, at string
		keyed    int // how often the provider that knows keys was called in the end
	}{
		{"/payments", afterClaim, 1},
		{"/payments", called, 1},
		{"/payments", stepNew, 1},
		{"/payments", stepStarted, 1}, // started, and not sent: the lease is over
		{"/payments", stepReplied, 2}, // the effect is made, and not settled
		{"/payments", stepDone, 1},
		{"/orders", called, 0},
		{"/orders", begun, 0},
	} {
		t.Run(strings.TrimPrefix(z.path, "/")+"/"+z.at, func(t *testing.T) {
			t.Parallel()
			c := newCampaign(t, 0)
			p := newProviders(t)
			c.path, c.provider = z.path, p.url
			k := &key{name: "key", way: ways[0]}
			c.keys = append(c.keys, k)
			zombie, late := c.zombie(k, z.at)
			successor := c.start(&strike{})
			if err := c.finish(k, successor); err != nil {
				t.Fatal(err)
			}
			want := k.answered()
			if n := c.takeovers(); n != 1 || want.replayed {
				t.Fatalf("%d takeovers, and the successor's answer is %+v", n, want)
			}
			before := c.revision()
			if got := c.wake(zombie, late); got == nil || got.body != want.body {
				t.Errorf("the zombie answers %+v, want %+v", got, want)
			}
			if now := c.revision(); now != before {
				t.Errorf("the zombie has written the record: revision %d, before %d", now, before)
			}
			if n := p.called("keyed", k.name); n != z.keyed {
				t.Errorf("the provider was called %d times, want %d", n, z.keyed)
			}
			if err := zombie.stop(); err != nil {
				t.Error(err)
			}
			if z.path == "/orders" {
				c.judge(c.orders)
				return
			}
			c.judge(func() map[string][]string { return p.of(t, "asked") })
			c.compare(p.of(t, "keyed"))
		})
	}
}

// A program is stopped while its transaction holds the record: nobody takes
// over, however long that lasts, and when it goes on it commits.
func TestStoppedTransactionKeepsItsKey(t *testing.T) {
	c := newCampaign(t, 0)
	k := &key{name: "key", way: ways[0]}
	c.keys = append(c.keys, k)
	stopped, late := c.zombie(k, ended)
	other := c.start(&strike{})
	repeats := 0
	for until := time.Now().Add(3 * lease); time.Now().Before(until); repeats++ {
		a, again, err := c.post(k, other.url)
		if err != nil || !strings.Contains(again, "request-in-progress") {
			t.Fatalf("a repeat is answered %+v %s %v", a, again, err)
		}
	}
	got := c.wake(stopped, late)
	if got == nil || got.replayed {
		t.Fatalf("after %d repeats the answer is %+v", repeats, got)
	}
	k.final = got
	if err := stopped.stop(); err != nil {
		t.Error(err)
	}
	c.judge(c.orders)
}
