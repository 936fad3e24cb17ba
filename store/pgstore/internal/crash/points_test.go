package crash

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/escapement-dev/escapement/idempotency"
)

// The points at which a program is struck.
const (
	beforeClaim = "before-claim" // a request is about to be claimed
	afterClaim  = "after-claim"  // its claim has won, and is in the store
	called      = "called"       // the handler is called
	begun       = "begun"        // the business transaction has begun
	fenced      = "fenced"       // FenceIn has locked the record
	written     = "written"      // the order is inserted
	ended       = "ended"        // EndIn has written the result
	commitHalf  = "commit-half"  // half of the message COMMIT is sent
	commitSent  = "commit-sent"  // all of it, and no reply was read
	commitLate  = "commit-late"  // the connection breaks, and COMMIT arrives later
	committed   = "committed"    // its reply was read
	answering   = "answering"    // the first byte of the answer is about to go out
	storeSent   = "store-sent"   // something went out on a connection of the store

	stepNew     = "step-new"     // a step is about to be saved as started
	stepStarted = "step-started" // it is saved
	stepSent    = "step-sent"    // the call is sent, and no reply was read
	stepReplied = "step-replied" // the provider's reply is there
	stepDone    = "step-done"    // what came of it is saved
)

// How a program is struck.
const (
	byKill = "kill" // it kills itself, by SIGKILL
	byCut  = "cut"  // it loses the connection
	byHold = "hold" // it stays there until it is released
	byStop = "stop" // it stops itself, by SIGSTOP, until it is sent SIGCONT
)

// strike says where and how a program is struck, if at all.
type strike struct {
	At, How string
	Times   int64 // when it comes there for the nth time

	serving atomic.Bool // before that, nothing counts
	seen    atomic.Int64
	// By hold, held is closed at the point, and released ends it.
	held, released chan struct{}
}

func (s *strike) here(name string) bool {
	return s.At == name && s.serving.Load() && s.seen.Add(1) == s.Times
}

// at kills, stops or holds the program if this is the point.
func (s *strike) at(name string) {
	switch {
	case !s.here(name):
	case s.How == byHold:
		close(s.held)
		<-s.released
	case s.How == byStop:
		// The signal may reach another thread, a moment later.
		goesOn := make(chan os.Signal, 1)
		signal.Notify(goesOn, syscall.SIGCONT)
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
		<-goesOn
	default:
		die()
	}
}

func die() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // the signal is on its way
}

// struckStore has the points around the calls of a store.
type struckStore struct {
	idempotency.Store
	idempotency.StepStore
	s *strike
}

func (x struckStore) Reserve(ctx context.Context, c idempotency.Claim) (idempotency.Answer, error) {
	x.s.at(beforeClaim)
	a, err := x.Store.Reserve(ctx, c)
	if err == nil && a.Outcome == idempotency.Started {
		x.s.at(afterClaim)
	}
	return a, err
}

func (x struckStore) SaveStep(ctx context.Context, r idempotency.Reservation, st idempotency.Step) error {
	if st.Done {
		err := x.StepStore.SaveStep(ctx, r, st)
		x.s.at(stepDone)
		return err
	}
	x.s.at(stepNew)
	err := x.StepStore.SaveStep(ctx, r, st)
	x.s.at(stepStarted)
	return err
}

// struckTransport has the points around a call.
type struckTransport struct {
	http.RoundTripper
	s *strike
}

func (x struckTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodPost {
		ctx := httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
			WroteRequest: func(httptrace.WroteRequestInfo) { x.s.at(stepSent) },
		})
		r = r.WithContext(ctx)
	}
	res, err := x.RoundTripper.RoundTrip(r)
	if r.Method == http.MethodPost && err == nil {
		x.s.at(stepReplied)
	}
	return res, err
}

// struckPool returns the configuration of a pool whose connections have the
// points.
func struckPool(url string, s *strike, store bool) (*pgxpool.Config, error) {
	c, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	dial := c.ConnConfig.DialFunc
	c.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &struckConn{Conn: conn, s: s, store: store}, nil
	}
	return c, nil
}

type struckConn struct {
	net.Conn
	s     *strike
	store bool
	lost  atomic.Bool // nothing is read any more
}

var errLost = errors.New("the connection is lost")

// late is how much later than the loss of its connection a COMMIT arrives.
const late = 150 * time.Millisecond

func (c *struckConn) Write(p []byte) (int, error) {
	commit := !c.store && bytes.HasSuffix(p, []byte("commit\x00"))
	switch {
	case commit && c.s.here(commitHalf):
		_, _ = c.Conn.Write(p[:len(p)/2]) // it is lost either way
		return len(p), c.lose()
	case commit && c.s.here(commitLate):
		c.lost.Store(true)
		p = bytes.Clone(p)
		time.AfterFunc(late, func() {
			_, _ = c.Conn.Write(p)
			_ = c.Conn.Close()
		})
		return len(p), nil
	}
	n, err := c.Conn.Write(p)
	if err == nil && (commit && c.s.here(commitSent) || c.store && c.s.here(storeSent)) {
		return n, c.lose()
	}
	return n, err
}

// lose kills the program or closes the connection.
func (c *struckConn) lose() error {
	if c.s.How == byKill {
		die()
	}
	c.lost.Store(true)
	return c.Conn.Close()
}

func (c *struckConn) Read(p []byte) (int, error) {
	if c.lost.Load() {
		return 0, errLost
	}
	return c.Conn.Read(p)
}

func (c *struckConn) Close() error {
	if c.lost.Load() {
		return nil
	}
	return c.Conn.Close()
}
