package redisstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/rueidis"

	"github.com/escapement-dev/escapement/idempotency"
)

// Options are the options of [Open] and [New]. The zero value is ready.
type Options struct {
	// Prefix stands in front of every key. It may have a-z, A-Z, 0-9 and any
	// of - . _ @ = : /
	Prefix string
	// TenantOf says to which tenant a rule's subject belongs, "" for none. It
	// must give the same answer for the same arguments in all processes that
	// share the prefix, for the answer is part of the key. In a Cluster the
	// limits of a tenant lie with its records, and are decided together in one
	// step. Nil: no subject belongs to a tenant.
	TenantOf func(rule, subject string) string
	// Spread places each record by its own hash and not by its tenant's, for
	// tenants that are too large for one node of a Cluster.
	Spread bool
	// AllowEviction lets Check pass although the server may evict records.
	AllowEviction bool
	// OnUnconfirmed, if set, is told of every write of a Confirmed store that
	// too few replicas had in time: "reserve", which was given back, "save step"
	// or "end", which stay. It must return at once, and may be called
	// concurrently.
	OnUnconfirmed func(write string)
	// Now, for tests: the time, instead of the server's. Nil: the server's.
	Now func() time.Time
}

// Store keeps records, settings and limits in Redis. Its methods may be called
// concurrently.
//
// Its errors are ErrUnavailable, those of package idempotency, and those of the
// Validate methods, after which nothing changed. A call whose context ends
// returns at once; Redis may still carry it out.
type Store struct {
	client   rueidis.Client
	owned    bool // whether Close closes the client
	prefix   string
	tenantOf func(rule, subject string) string
	spread   bool
	now      func() time.Time
	sweep    *sweeper
	confirm  confirmation
	allow    bool // AllowEviction
	pulse    *pulse

	onUnconfirmed func(write string)
}

var (
	_ idempotency.Store     = (*Store)(nil)
	_ idempotency.StepStore = (*Store)(nil)
	_ idempotency.Keeper    = (*Store)(nil)
	_ idempotency.Settings  = (*Store)(nil)
)

// New returns a store on a client of the caller's, who closes it. The client
// should be made with AlwaysPipelining, so that a call whose context is
// cancelled returns at once, and with DisableRetry: the store itself repeats
// what may be repeated. A MaxFlushDelay of 20 µs halves what many calls at once
// cost this process.
func New(client rueidis.Client, o Options) (*Store, error) {
	if client == nil {
		return nil, errors.New("redisstore: no client")
	}
	if err := validPrefix(o.Prefix); err != nil {
		return nil, err
	}
	return &Store{
		client: client, prefix: o.Prefix, tenantOf: o.TenantOf, spread: o.Spread, now: o.Now, sweep: new(sweeper),
		allow: o.AllowEviction, pulse: newPulse(), onUnconfirmed: o.OnUnconfirmed,
	}, nil
}

// Open connects to the Redis that the URL names; see [ParseURL]. Close the
// store when it is no longer used. The error is ErrUnavailable where no server
// answers, and ErrRejected too where trying again does not help.
func Open(url string, o Options) (*Store, error) {
	opt, err := ParseURL(url)
	if err != nil {
		return nil, err
	}
	if err := validPrefix(o.Prefix); err != nil {
		return nil, err
	}
	client, err := rueidis.NewClient(opt)
	if err != nil {
		return nil, explain("connect", guess(err, opt.TLSConfig != nil))
	}
	s, err := New(client, o)
	if err != nil {
		client.Close()
		return nil, err
	}
	s.owned = true
	return s, nil
}

// guess adds what an error that says little most often means at the start.
func guess(err error, tls bool) error {
	gone := errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
	switch {
	case gone && tls:
		return fmt.Errorf("the server closed the connection: does it accept the certificate (cert and key in the URL's query)? %w", err)
	case gone:
		return fmt.Errorf("the server closed the connection: does it want TLS (rediss)? %w", err)
	case tls && errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("no TLS handshake in time: does the server speak TLS there? %w", err)
	}
	return err
}

// Close closes the connections of a store that was made by Open. Calls that
// are under way fail.
func (s *Store) Close() error {
	if s.owned {
		s.client.Close()
	}
	return nil
}

// Ping asks Redis for a sign of life.
func (s *Store) Ping(ctx context.Context) error {
	return explain("ping", s.do(ctx, func() rueidis.Completed { return s.client.B().Ping().Build() }).Error())
}

// do sends a command, which build makes anew each time.
func (s *Store) do(ctx context.Context, build func() rueidis.Completed) rueidis.RedisResult {
	return insist(ctx, func() rueidis.RedisResult { return s.client.Do(ctx, build()) })
}

// clock is the first argument of every script; see now.lua.
func (s *Store) clock() string {
	if s.now == nil {
		return ""
	}
	return strconv.FormatInt(s.now().UnixMicro(), 10)
}

// sweeper remembers where the next Sweep begins.
type sweeper struct {
	cursor atomic.Pointer[place]
}

// stay notes where the next Sweep begins.
func (s *sweeper) stay(at place) { s.cursor.Store(&at) }
