package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/escapement-dev/escapement/cmd/escapement/internal/config"
	"github.com/escapement-dev/escapement/cmd/escapement/internal/demo"
	"github.com/escapement-dev/escapement/cmd/escapement/internal/serve"
)

// Exit codes.
const (
	exitFine  = 0
	exitFault = 1 // a failure at run time
	exitUsage = 2 // usage or configuration
)

// Program is the program as a value: its flags, and what it reads and writes.
type Program struct {
	Stdout, Stderr io.Writer
	// LookupEnv finds the environment variables that a configuration names.
	LookupEnv func(string) (string, bool)

	flags   flags
	command string
}

// flags are the commands and their flags.
type flags struct {
	Serve        serveFlags   `cmd:"" help:"Stand in front of an HTTP API."`
	Check        checkFlags   `cmd:"" help:"Check a configuration: every fault with its place, what was expected, and what to write."`
	Migrate      migrateFlags `cmd:"" help:"Create or upgrade the schema of a PostgreSQL, or print it."`
	DemoUpstream demoFlags    `cmd:"" help:"Serve the demo's orders API alone, for trials and tests."`
	Version      struct{}     `cmd:"" help:"Print the version."`
}

type serveFlags struct {
	Config      string `short:"c" placeholder:"FILE" help:"Configuration. No file is read without this flag." env:"ESCAPEMENT_CONFIG"`
	Upstream    string `placeholder:"URL" help:"Where requests go." env:"ESCAPEMENT_UPSTREAM"`
	Listen      string `placeholder:"ADDR" help:"Where clients connect (:8080)." env:"ESCAPEMENT_LISTEN"`
	Admin       string `placeholder:"ADDR" help:"Where operators connect (127.0.0.1:8081)." env:"ESCAPEMENT_ADMIN"`
	Tenant      string `placeholder:"SOURCE" help:"Who is calling: header:NAME, hash:NAME, cookie:NAME, const:NAME." env:"ESCAPEMENT_TENANT"`
	Store       string `placeholder:"URL" help:"Where records are kept: sqlite:PATH (sqlite:./escapement.db), postgres://HOST/DB, redis://HOST:PORT, redis+sentinel://…, redis+cluster://…, memory:." env:"ESCAPEMENT_STORE"`
	Limiter     string `placeholder:"URL" help:"Where limits are kept: memory:, redis://HOST:PORT, postgres://HOST/DB. Default: the store where that is Redis, else memory:." env:"ESCAPEMENT_LIMITER"`
	Demo        bool   `help:"Bring a small orders API as the upstream, and a configuration for it."`
	PrintConfig bool   `help:"Print the configuration that would be in force, and stop."`
}

type checkFlags struct {
	File string `arg:"" help:"The configuration."`
}

type demoFlags struct {
	Listen string `default:"127.0.0.1:3000" placeholder:"ADDR" help:"Where to listen (127.0.0.1:3000)."`
	Data   string `placeholder:"FILE" help:"Keep orders in this file, over restarts and crashes."`
}

// Help says what the API does; kong shows it under the flags.
func (demoFlags) Help() string {
	return `POST /v1/orders knows keys: the same Idempotency-Key gives the same order. POST /v1/payments does not: every POST is a payment. GET on either says how many were made (count) and how many POSTs came (received). There are also GET /v1/payments/by-key/{key}, POST /v1/notes, GET /export, GET /search and GET /v1/limited.

X-Demo-Delay: 2s waits first. X-Demo-Status: 503 answers so (from 400: without effect). X-Demo-Fault is crash-before-effect, crash-after-effect (both close the connection) or slow-body.

` + demo.TrialsHelp
}

// exited is what kong's exit function panics with.
type exited int

// ParseFlags reads the command line. It reports done if there is nothing more
// to do: help was shown, or a fault.
func (p *Program) ParseFlags(args []string) (code int, done bool) {
	k, err := kong.New(&p.flags,
		kong.Name("escapement"),
		kong.Description("Each operation takes effect once, and never too many at a time."),
		kong.Writers(p.Stdout, p.Stderr),
		kong.Exit(func(code int) { panic(exited(code)) }),
	)
	if err != nil {
		return p.usage(err, ""), true
	}
	defer func() {
		if x := recover(); x != nil {
			e, ours := x.(exited)
			if !ours {
				panic(x)
			}
			code, done = int(e), true
		}
	}()
	switch { // what people type before they have read the help
	case len(args) == 0:
		args = []string{"--help"}
	case args[0] == "help":
		args = append(args[1:len(args):len(args)], "--help")
	case args[0] == "--version":
		args = []string{"version"}
	}
	c, err := k.Parse(args)
	if err != nil {
		of := ""
		for _, child := range k.Model.Children {
			if child.Name == args[0] {
				of = " " + child.Name
			}
		}
		return p.usage(err, of), true
	}
	p.command = strings.Fields(c.Command())[0]
	return exitFine, false
}

// usage reports a fault of the command line, in the arguments of a command if
// of is not empty.
func (p *Program) usage(err error, of string) int {
	fmt.Fprintf(p.Stderr, "escapement: %v\n    escapement%s --help says what there is\n", err, of)
	return exitUsage
}

// Run does what the command line says, until it is done or ctx ends, and
// returns the exit code.
func (p *Program) Run(ctx context.Context) int {
	var err error
	switch p.command {
	case "serve":
		err = p.serve(ctx)
	case "check":
		err = p.check()
	case "migrate":
		err = p.migrate(ctx)
	case "demo-upstream":
		err = p.demoUpstream(ctx)
	case "version":
		_, err = fmt.Fprintln(p.Stdout, "escapement", version())
	}
	if err == nil {
		return exitFine
	}
	var faults config.Faults
	var wrong *serve.ConfigError
	switch {
	case errors.As(err, &faults):
		fmt.Fprintln(p.Stderr, faults.Error())
		return exitUsage
	case errors.As(err, &wrong):
		fmt.Fprintf(p.Stderr, "escapement: %v\n", err)
		return exitUsage
	}
	fmt.Fprintf(p.Stderr, "escapement: %v\n", err)
	return exitFault
}

// read reads and parses a configuration. A file that cannot be read is a fault
// of usage.
func (p *Program) read(file string) (*config.Config, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, &serve.ConfigError{Err: err}
	}
	return config.Parse(file, data, p.LookupEnv)
}

// check reports what is wrong with a file, as serve -c would find it: the
// upstream and the tenant may come from the environment.
func (p *Program) check() error {
	file := p.flags.Check.File
	c, err := p.read(file)
	if err != nil {
		return err
	}
	env := func(name string) string { v, _ := p.LookupEnv(name); return v }
	if err := c.Override(config.Overrides{Upstream: env("ESCAPEMENT_UPSTREAM"), Tenant: env("ESCAPEMENT_TENANT")}); err != nil {
		return err
	}
	if err := c.Complete(); err != nil {
		return err
	}
	if err := serve.Check(c); err != nil {
		return err
	}
	for _, w := range c.Warnings() {
		fmt.Fprintf(p.Stdout, "warning: %s\n", w)
	}
	_, err = fmt.Fprintf(p.Stdout, "%s: no faults\n", file)
	return err
}
