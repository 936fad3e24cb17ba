package demo

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"
)

const (
	readHeader = 10 * time.Second
	lastWords  = 5 * time.Second // for what is under way at the end
)

// Serve serves a on l until ctx ends, lets what is under way finish for a few
// seconds, and closes both. It returns nil after that, and an error if the
// listener broke or the data file could not be closed.
func Serve(ctx context.Context, l net.Listener, a *API) error {
	s := &http.Server{Handler: a, ReadHeaderTimeout: readHeader}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	var err error
	select {
	case <-ctx.Done():
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastWords)
		_ = s.Shutdown(last)
		cancel()
		_ = s.Close()
		<-served
	case err = <-served:
	}
	return errors.Join(err, a.Close())
}
