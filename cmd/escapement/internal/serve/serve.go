// Package serve is the program's server: it opens the stores, puts the gate in
// front of the proxy, listens, and drains.
package serve

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"

	"github.com/escapement-dev/escapement"
	"github.com/escapement-dev/escapement/cmd/escapement/internal/admin"
	"github.com/escapement-dev/escapement/cmd/escapement/internal/config"
	"github.com/escapement-dev/escapement/cmd/escapement/internal/proxy"
	"github.com/escapement-dev/escapement/httpgate"
	"github.com/escapement-dev/escapement/idempotency"
)

// ConfigError wraps an error that a change of the configuration, or of a file
// that it names, mends.
type ConfigError struct{ Err error }

// Error returns the error's text.
func (e *ConfigError) Error() string { return e.Err.Error() }

// Unwrap returns the error.
func (e *ConfigError) Unwrap() error { return e.Err }

// Server is the whole of a running program. See [Open].
type Server struct {
	config  *config.Config
	version string
	log     *slog.Logger

	stores      *stores
	otherSecret bool // the store's keys were last made with another one
	gate        *escapement.Gate
	proxy       *proxy.Proxy
	admin       *admin.Handler
	ln, aln     net.Listener
	srv         *http.Server
	asrv        *http.Server
	cancel      context.CancelFunc // ends the contexts of all requests
}

// Times of the admin listener, whose answers are small.
const adminTimeout = 10 * time.Second

// Check reports what the middleware finds wrong with c beyond what package
// config does. It opens nothing. The error is a *ConfigError.
func Check(c *config.Config) error {
	gate, err := escapement.New(escapement.Options{})
	if err != nil {
		return err
	}
	hasher, err := idempotency.NewHasher(make([]byte, idempotency.MinSecret))
	if err != nil {
		return err
	}
	h := c.HTTP()
	h.Gate, h.Hasher = gate, hasher
	if _, err := httpgate.New(h); err != nil {
		return &ConfigError{err}
	}
	return nil
}

// Open makes everything ready and listens; nothing is accepted before Run. A
// fault of the configuration is a *ConfigError; any other error is one of the
// machine's. After an error nothing is left open. Nil log: slog.Default().
func Open(ctx context.Context, c *config.Config, version string, log *slog.Logger) (s *Server, err error) {
	if log == nil {
		log = slog.Default()
	}
	s = &Server{config: c, version: version, log: log}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.release())
			s = nil
		}
	}()
	upstreamTLS, err := proxy.ClientTLS(c.UpstreamTLS.CA, c.UpstreamTLS.Cert, c.UpstreamTLS.Key)
	if err != nil {
		return s, &ConfigError{err}
	}
	var serverTLS *tls.Config
	if c.TLS.Cert != "" {
		pair, err := tls.LoadX509KeyPair(c.TLS.Cert, c.TLS.Key)
		if err != nil {
			return s, &ConfigError{fmt.Errorf("tls: cert %s, key %s: %w", c.TLS.Cert, c.TLS.Key, err)}
		}
		serverTLS = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}}
	}
	if err := Check(c); err != nil {
		return s, err
	}
	if s.stores, err = openStores(ctx, c, log); err != nil {
		return s, err
	}
	handler, err := s.handler(ctx, upstreamTLS)
	if err != nil {
		return s, err
	}
	if s.ln, err = net.Listen("tcp", c.Listen); err != nil {
		return s, listenError("listen", "--listen", err)
	}
	if s.aln, err = net.Listen("tcp", c.Admin.Listen); err != nil {
		return s, listenError("admin.listen", "--admin", err)
	}
	base, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s.cancel = cancel
	faults := slog.NewLogLogger(log.Handler(), slog.LevelDebug)
	s.srv = &http.Server{
		Handler:           handler,
		TLSConfig:         serverTLS,
		ReadHeaderTimeout: c.Server.ReadHeader,
		IdleTimeout:       c.Server.Idle,
		MaxHeaderBytes:    int(c.Server.MaxHeader),
		ErrorLog:          faults,
		BaseContext:       func(net.Listener) context.Context { return base },
	}
	s.admin = admin.New(admin.Options{
		Token: c.Admin.Token, Logger: log,
		Checks: []admin.Check{
			{Name: "records", Do: recordsWork(s.stores.records)},
			{Name: "limits", Do: limitsWork(s.stores.limits)},
		},
	})
	s.asrv = &http.Server{
		Handler:     s.admin,
		ReadTimeout: adminTimeout, WriteTimeout: adminTimeout, IdleTimeout: c.Server.Idle,
		MaxHeaderBytes: int(c.Server.MaxHeader),
		ErrorLog:       faults,
		BaseContext:    func(net.Listener) context.Context { return base },
	}
	return s, nil
}

// listenError says what to do where a port cannot be had.
func listenError(field, flag string, err error) error {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("%s: %w: another program listens there, or another escapement\n    write: %s HOST:PORT with another port", field, err, flag)
	case errors.Is(err, syscall.EACCES):
		return fmt.Errorf("%s: %w: this user may not have that port; one from 1024 needs no rights\n    write: %s HOST:PORT with another port", field, err, flag)
	}
	return fmt.Errorf("%s: %w", field, err)
}

// handler puts the gate in front of the proxy.
func (s *Server) handler(ctx context.Context, upstreamTLS *tls.Config) (http.Handler, error) {
	c := s.config
	key, err := secret(ctx, s.stores.records, c.Secret)
	if err != nil {
		return nil, err
	}
	hasher, err := idempotency.NewHasher(key)
	if err != nil {
		return nil, err
	}
	if s.otherSecret, err = checkSecret(ctx, s.stores.records, hasher); err != nil {
		return nil, err
	}
	if s.stores.records, err = killRecords(s.stores.records); err != nil {
		return nil, &ConfigError{err}
	}
	s.gate, err = escapement.New(escapement.Options{
		Records: s.stores.records, Limits: s.stores.limits,
		Logger: s.log, MaxRunning: int(c.Server.MaxRunning),
	})
	if err != nil {
		return nil, err
	}
	h := c.HTTP()
	h.Gate, h.Hasher, h.Logger = s.gate, hasher, s.log
	h.Keys.Policy.Records = s.stores.confirmed[c.Default.Confirm]
	for _, t := range c.Routes {
		p := h.Routes[t.Pattern]
		p.Policy.Records = s.stores.confirmed[t.Confirm]
		h.Routes[t.Pattern] = p
	}
	m, err := httpgate.New(h)
	if err != nil {
		return nil, &ConfigError{err}
	}
	s.proxy = proxy.New(proxy.Options{
		Upstream: c.Upstream, TLS: upstreamTLS, Trusted: c.Identity.TrustedProxies,
		Error: m.UpstreamError, Logger: s.log,
	})
	return clients(killAnswers(m.Wrap(s.proxy)), bodyPace, answerPace), nil
}

// Addr is where requests are accepted.
func (s *Server) Addr() net.Addr { return s.ln.Addr() }

// AdminAddr is where the admin listener is.
func (s *Server) AdminAddr() net.Addr { return s.aln.Addr() }

// Run serves until ctx ends, then drains: it accepts nothing more, lets what is
// under way finish for at most server.drain, and records as unknown what cannot.
// It returns nil after a drain, and an error if a listener broke. Everything is
// closed when it returns; it can be called once.
func (s *Server) Run(ctx context.Context) error {
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	broken := make(chan error, 3)
	worker := make(chan struct{})
	go func() {
		defer close(worker)
		var sweeper sync.WaitGroup
		if s.stores.sweep != nil {
			sweeper.Go(func() { s.stores.sweep(background) })
		}
		if err := s.gate.Run(background); err != nil {
			broken <- err
		}
		sweeper.Wait()
	}()
	serving := make(chan struct{}, 2)
	start := func(serve func() error) {
		go func() {
			defer func() { serving <- struct{}{} }()
			if err := serve(); !errors.Is(err, http.ErrServerClosed) {
				broken <- err
			}
		}()
	}
	start(func() error {
		if s.srv.TLSConfig != nil {
			return s.srv.ServeTLS(s.ln, "", "")
		}
		return s.srv.Serve(s.ln)
	})
	start(func() error { return s.asrv.Serve(s.aln) })

	var err error
	select {
	case <-ctx.Done():
	case err = <-broken:
		s.log.Error("a listener broke", slog.Any("error", err))
	}
	s.drain(context.WithoutCancel(ctx))
	<-serving
	<-serving
	stop()
	<-worker
	return errors.Join(err, s.release())
}

// drain ends what is under way, in time if that is possible.
func (s *Server) drain(ctx context.Context) {
	s.admin.Drain()
	s.log.Info("draining", slog.Duration("for_at_most", s.config.Server.Drain))
	ctx, cancel := context.WithTimeout(ctx, s.config.Server.Drain)
	defer cancel()
	// First the server: what it has accepted still meets an open gate.
	whole := s.srv.Shutdown(ctx) == nil
	if err := s.gate.Shutdown(ctx); err != nil {
		whole = false
		s.log.Warn("not everything finished", slog.Any("error", err))
	}
	if !whole {
		// What the gate has cancelled and recorded is now answered.
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastAnswers)
		_ = s.srv.Shutdown(last)
		cancel()
	}
	_ = s.srv.Close()
	s.cancel()
	_ = s.asrv.Close()
	last := []slog.Attr{slog.Bool("everything_finished", whole)}
	if len(s.stores.confirmed) > 0 {
		last = append(last, slog.Any("unconfirmed", &s.stores.unconfirmed))
	}
	s.log.LogAttrs(ctx, slog.LevelInfo, "drained", last...)
}

// lastAnswers is how long clients have for answers that the end of the drain
// brought about.
const lastAnswers = time.Second

// release closes what is open. It can be called in any state.
func (s *Server) release() error {
	var errs []error
	if s.cancel != nil {
		s.cancel()
	}
	for _, l := range []net.Listener{s.ln, s.aln} {
		if l != nil {
			if err := l.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
				errs = append(errs, err)
			}
		}
	}
	if s.proxy != nil {
		s.proxy.Close()
	}
	if s.stores != nil {
		errs = append(errs, s.stores.close())
	}
	return errors.Join(errs...)
}
