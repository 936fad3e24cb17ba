package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"

	"github.com/escapement-dev/escapement/cmd/escapement/internal/config"
	"github.com/escapement-dev/escapement/cmd/escapement/internal/demo"
	"github.com/escapement-dev/escapement/cmd/escapement/internal/serve"
)

// serve is the command serve.
func (p *Program) serve(ctx context.Context) (err error) {
	f := p.flags.Serve
	if f.Demo && f.Config != "" {
		return &serve.ConfigError{Err: errors.New("--demo brings its own configuration: leave out -c (or ESCAPEMENT_CONFIG), or --demo")}
	}
	if f.Demo && f.Upstream != "" {
		return &serve.ConfigError{Err: errors.New("--demo brings its own upstream: leave out --upstream (or ESCAPEMENT_UPSTREAM), or --demo")}
	}
	c, err := p.config()
	if err != nil {
		return err
	}
	if f.PrintConfig {
		return p.printConfig(c)
	}
	if f.Demo {
		up, err := p.startDemo(ctx, c)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, up.stop()) }()
	}
	if err := c.Complete(); err != nil {
		return err
	}
	s, err := serve.Open(ctx, c, version(), p.logger(c.Log))
	if err != nil {
		return err
	}
	if err := s.Block(p.Stdout); err != nil {
		return err
	}
	if f.Demo {
		fmt.Fprint(p.Stdout, curls(s.Addr()))
	}
	return s.Run(ctx)
}

// config is what flags, environment and file say together.
func (p *Program) config() (*config.Config, error) {
	f := p.flags.Serve
	c := config.Default()
	var err error
	switch {
	case f.Demo:
		c, err = config.Parse("demo.yaml", config.Demo, p.LookupEnv)
	case f.Config != "":
		c, err = p.read(f.Config)
	}
	if err != nil {
		return nil, err
	}
	err = c.Override(config.Overrides{
		Upstream: f.Upstream, Listen: f.Listen, Admin: f.Admin, Tenant: f.Tenant, Store: f.Store, Limiter: f.Limiter,
	})
	return c, err
}

func (p *Program) printConfig(c *config.Config) error {
	if p.flags.Serve.Demo {
		fmt.Fprintln(p.Stdout, "# --demo: the upstream is the demo's, on a free port of loopback"+
			map[bool]string{true: ";\n# the store is a temporary file, which --store replaces", false: ""}[p.flags.Serve.Store == ""])
	}
	_, err := fmt.Fprint(p.Stdout, c.YAML())
	return err
}

func (p *Program) logger(l config.Log) *slog.Logger {
	var o slog.HandlerOptions
	level := new(slog.LevelVar)
	if err := level.UnmarshalText([]byte(l.Level)); err == nil { // package config has checked it
		o.Level = level
	}
	if l.Format == "json" {
		return slog.New(slog.NewJSONHandler(p.Stderr, &o))
	}
	return slog.New(slog.NewTextHandler(p.Stderr, &o))
}

// demoAPI is the demo's upstream while it runs.
type demoAPI struct {
	cancel context.CancelFunc
	done   chan error
	dir    string // the temporary database's; may be empty
}

// startDemo starts the demo's upstream on a free port and puts it into c.
func (p *Program) startDemo(ctx context.Context, c *config.Config) (_ *demoAPI, err error) {
	d := &demoAPI{done: make(chan error, 1)}
	if p.flags.Serve.Store == "" {
		if d.dir, err = os.MkdirTemp("", "escapement-demo-"); err != nil {
			return nil, err
		}
		c.Store = config.StoreURL{Kind: "sqlite", Path: filepath.Join(d.dir, "escapement.db")}
	}
	api, err := demo.New(demo.Options{})
	if err == nil {
		var l net.Listener
		if l, err = net.Listen("tcp", "127.0.0.1:0"); err == nil {
			// It outlives ctx: what is under way still needs it.
			var dctx context.Context
			dctx, d.cancel = context.WithCancel(context.WithoutCancel(ctx))
			go func() { d.done <- demo.Serve(dctx, l, api) }()
			return d, c.Override(config.Overrides{Upstream: "http://" + l.Addr().String()})
		}
	}
	return nil, errors.Join(err, os.RemoveAll(d.dir))
}

func (d *demoAPI) stop() error {
	d.cancel()
	err := <-d.done
	if d.dir != "" {
		err = errors.Join(err, os.RemoveAll(d.dir))
	}
	return err
}

// curls are three lines to try.
func curls(a net.Addr) string {
	_, port, err := net.SplitHostPort(a.String())
	if err != nil {
		return ""
	}
	url := "http://localhost:" + port
	return fmt.Sprintf(`
Try, twice or more:
  curl -i %[1]s/v1/orders -H 'Idempotency-Key: first' -d '{"item":"tea"}'
  curl -i %[1]s/v1/orders -H 'Idempotency-Key: first' -d '{"item":"coffee"}'
  curl %[1]s/v1/orders
The first makes one order, however often it is sent; the second is refused, since
its key named another request; the third counts the orders that were made, and
the POSTs that reached the upstream. Ctrl-C ends it.
`, url)
}

// demoUpstream is the command demo-upstream.
func (p *Program) demoUpstream(ctx context.Context) error {
	api, err := demo.New(demo.Options{Data: p.flags.DemoUpstream.Data})
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", p.flags.DemoUpstream.Listen)
	if err != nil {
		return errors.Join(err, api.Close())
	}
	fmt.Fprintf(p.Stdout, "demo upstream on http://%s\n", l.Addr())
	return demo.Serve(ctx, l, api)
}
