package pgstore

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// OldestServer is the oldest major version of PostgreSQL that this package is
// tested on.
const OldestServer = 15

// Report says what a server is and what can be lost in it.
type Report struct {
	// Version is the server's, such as 15.4; Major its first number.
	Version string
	Major   int
	// Fsync and FullPageWrites are true where a crash of the server's machine
	// leaves the database whole.
	Fsync, FullPageWrites bool
	// SynchronousCommit is the setting as it is for the store's connections: on,
	// off, local, remote_write or remote_apply.
	SynchronousCommit string
	// SynchronousStandbys is synchronous_standby_names; "" waits for none.
	SynchronousStandbys string
	// Pooler is true if the connection ends at something that is not the
	// server, such as pgbouncer.
	Pooler bool
	// Connections is how many connections the store opens at most.
	Connections int
	// Ahead is how far the server's clock is ahead of this process's.
	Ahead time.Duration
	// Warnings are what whoever runs this should know, each a sentence.
	Warnings []string
}

// ErrStandby is returned by Check for a server that takes no writes: a standby,
// or one that is set to be read-only.
var ErrStandby = errors.New("pgstore: the server takes no writes")

// Check asks the server for its version and for the settings that decide what
// a crash can lose. It changes nothing. The error is ErrStandby, or that of a
// server that does not answer.
func (s *Store) Check(ctx context.Context) (Report, error) {
	if err := s.usable(ctx); err != nil {
		return Report{}, err
	}
	rep, err := s.check(ctx)
	return rep, s.explain(err)
}

func (s *Store) check(ctx context.Context) (rep Report, err error) {
	c, err := s.pool.Acquire(ctx)
	if err != nil {
		return rep, s.saw(err)
	}
	defer c.Release()
	var number int
	var pid uint32
	var readOnly bool
	var at int64
	begin := time.Now()
	err = c.QueryRow(ctx, `SELECT current_setting('server_version'), current_setting('server_version_num')::int,
		current_setting('fsync')::bool, current_setting('full_page_writes')::bool,
		current_setting('synchronous_commit'), current_setting('synchronous_standby_names'),
		pg_backend_pid(), pg_is_in_recovery() OR current_setting('transaction_read_only')::bool,
		(extract(epoch FROM clock_timestamp()) * 1000000)::int8`).Scan(
		&rep.Version, &number, &rep.Fsync, &rep.FullPageWrites, &rep.SynchronousCommit, &rep.SynchronousStandbys,
		&pid, &readOnly, &at)
	if err != nil {
		return rep, s.saw(err)
	}
	rep.Ahead = timeOf(at).Sub(begin.Add(time.Since(begin) / 2))
	rep.Major = number / 10000
	// A pooler makes up the process id by which its clients cancel.
	rep.Pooler = c.Conn().PgConn().PID() != pid
	rep.Connections = int(s.pool.Config().MaxConns)
	rep.Warnings = rep.warn()
	if readOnly {
		return rep, fmt.Errorf("%w: it is a standby, or read-only: name all servers in the URL, with target_session_attrs=read-write", ErrStandby)
	}
	return rep, nil
}

// warn says what the server can lose.
func (r *Report) warn() (list []string) {
	say := func(format string, args ...any) { list = append(list, fmt.Sprintf(format, args...)) }
	if r.Major < OldestServer {
		say("PostgreSQL %s is older than %d, the oldest version that is tested", r.Version, OldestServer)
	}
	if !r.Fsync {
		say("fsync is off: a crash of the server's machine can destroy the database, with every record")
	} else if !r.FullPageWrites {
		say("full_page_writes is off: a crash of the server's machine can destroy pages of the database")
	}
	if r.SynchronousCommit == "off" {
		say("synchronous_commit is off: a crash of the server loses the records of its last moments, and operations run again")
	}
	if r.SynchronousStandbys != "" && (r.SynchronousCommit == "off" || r.SynchronousCommit == "local") {
		say("synchronous_standby_names is set, and synchronous_commit is %s: no commit waits for a standby", r.SynchronousCommit)
	}
	return list
}

// Failover says what a failover to a replica loses.
func (r *Report) Failover() string {
	switch {
	case r.SynchronousStandbys == "" || r.SynchronousCommit == "off" || r.SynchronousCommit == "local":
		return "no commit waits for a replica: a failover can lose the last ones, and their operations run again"
	case r.SynchronousCommit == "remote_write":
		return "commits wait until a replica has received them: a failover to it loses nothing, unless its machine crashes too"
	}
	return "commits wait until a replica has them on its disk: a failover to it loses nothing"
}
