// Command escapement is a reverse proxy that lets each operation take effect
// once, and never too many at a time.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() { os.Exit(run(os.Args[1:])) }

// run is main without os.Exit. The first interrupt ends the program in order,
// the second at once, with exit code 1.
func run(args []string) int {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		cancel()
		<-signals
		os.Exit(exitFault)
	}()
	p := &Program{Stdout: os.Stdout, Stderr: os.Stderr, LookupEnv: os.LookupEnv}
	if code, done := p.ParseFlags(args); done {
		return code
	}
	return p.Run(ctx)
}
