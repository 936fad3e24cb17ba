package pgstore

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// wire is one of the store's connections, for one transaction. It is given up
// after Options.Timeout, by a deadline of the connection: to watch a context,
// the driver starts a goroutine for every statement.
type wire struct {
	s    *Store
	conn *pgxpool.Conn
	net  net.Conn
	lone context.Context // the caller's, if it has the wire for itself; or nil
	stop func() bool

	mu   sync.Mutex
	over bool
}

// wire takes a connection. If lone is not nil, its end breaks the connection.
func (s *Store) wire(lone context.Context) (*wire, error) {
	limit := context.Background()
	if lone != nil {
		limit = lone
	}
	ctx, cancel := context.WithTimeout(limit, s.o.Timeout)
	defer cancel()
	c, err := s.pool.Acquire(ctx)
	if err != nil {
		if lone != nil && lone.Err() != nil {
			return nil, lone.Err()
		}
		return nil, s.saw(err)
	}
	w := &wire{s: s, conn: c, net: c.Conn().PgConn().Conn(), lone: lone}
	w.deadline(time.Now().Add(s.o.Timeout))
	if lone != nil {
		w.stop = context.AfterFunc(lone, w.cut)
	}
	return w, nil
}

// deadline cannot fail on a connection that is open; on one that is not, the
// next statement fails.
func (w *wire) deadline(t time.Time) { _ = w.net.SetDeadline(t) }

// cut ends what is under way. Whether it takes effect is then not known.
func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.over {
		w.deadline(time.Unix(1, 0))
	}
}

// release gives the connection back, or closes it where a transaction is still
// open.
func (w *wire) release() {
	if w.stop != nil {
		w.stop()
	}
	w.mu.Lock()
	w.over = true
	w.mu.Unlock()
	w.deadline(time.Time{})
	w.conn.Release()
}

// fault is the error of an operation whose statement failed.
func (w *wire) fault(err error) error {
	if w.lone != nil && w.lone.Err() != nil {
		return w.lone.Err()
	}
	return w.s.saw(err)
}
