package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience bounds every wait for something that must happen.
const patience = 30 * time.Second

// output collects what a process writes, and signals when a pattern is there.
type output struct {
	mu    sync.Mutex
	b     bytes.Buffer
	ready *regexp.Regexp
	found chan []string // gets the pattern's groups, once
}

func newOutput(ready string) *output {
	o := &output{found: make(chan []string, 1)}
	if ready != "" {
		o.ready = regexp.MustCompile(ready)
	}
	return o
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.b.Write(p)
	if o.ready != nil {
		if m := o.ready.FindStringSubmatch(o.b.String()); m != nil {
			o.ready = nil
			o.found <- m
		}
	}
	return len(p), nil
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// process is one that a test has started.
type process struct {
	cmd            *exec.Cmd
	stdout, stderr *output
	done           chan struct{} // closed when it has ended
	ended          error         // of Wait; read after done
}

// starts are processes to be started. One thread starts them all and never
// ends, since on Linux they are told to die with the thread that made them: if
// the tests are killed, nobody is left over.
var starts = sync.OnceValue(func() chan<- func() {
	c := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range c {
			f()
		}
	}()
	return c
})

// launch starts a process and returns what the pattern ready has found in its
// standard output.
func launch(program string, args, env []string, ready string) (*process, []string, error) {
	p := &process{
		cmd: exec.Command(program, args...), stdout: newOutput(ready), stderr: newOutput(""),
		done: make(chan struct{}),
	}
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr, p.cmd.SysProcAttr = p.stdout, p.stderr, dieTogether()
	started := make(chan error)
	starts() <- func() { started <- p.cmd.Start() }
	if err := <-started; err != nil {
		return nil, nil, err
	}
	go func() {
		p.ended = p.cmd.Wait()
		close(p.done)
	}()
	t := time.NewTimer(patience)
	defer t.Stop()
	var err error
	select {
	case m := <-p.stdout.found:
		return p, m, nil
	case <-p.done:
		err = fmt.Errorf("%s %s ended at once: %w\n%s", program, strings.Join(args, " "), p.ended, p.stderr)
	case <-t.C:
		err = fmt.Errorf("%s %s is not ready after %v\n%s%s", program, strings.Join(args, " "), patience, p.stdout, p.stderr)
	}
	p.kill()
	return nil, nil, err
}

// kill ends the process by force (kill -9) and waits until it is gone.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.done
}

// running reports whether the process has not ended.
func (p *process) running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// wait waits until the process has ended by itself.
func (p *process) wait() error {
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case <-p.done:
		return nil
	case <-t.C:
		return fmt.Errorf("process %d still runs after %v", p.cmd.Process.Pid, patience)
	}
}

// terminate asks the process to end (SIGTERM), and returns an error unless it
// does, with exit code 0.
func (p *process) terminate() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	if err := p.wait(); err != nil {
		return err
	}
	if p.ended != nil {
		return fmt.Errorf("after SIGTERM: %w\n%s", p.ended, p.stderr)
	}
	return nil
}

// killedByForce reports whether the process died of SIGKILL.
func (p *process) killedByForce() bool {
	var e *exec.ExitError
	if !errors.As(p.ended, &e) {
		return false
	}
	s, ok := e.Sys().(syscall.WaitStatus)
	return ok && s.Signaled() && s.Signal() == syscall.SIGKILL
}

// traces are signs of a panic or a fatal error of the runtime.
var traces = regexp.MustCompile(`(?m)^panic: |^fatal error: |^goroutine \d+ \[|http: panic serving`)

// check returns an error if the process has written a trace.
func (p *process) check() error {
	if s := p.stderr.String(); traces.MatchString(s) {
		return fmt.Errorf("process %d has panicked:\n%s", p.cmd.Process.Pid, last(s, 8000))
	}
	return nil
}

func last(s string, n int) string {
	if len(s) > n {
		return "..." + s[len(s)-n:]
	}
	return s
}

// cleanup ends the process with the test, and looks for traces of a panic.
func (p *process) cleanup(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		p.kill()
		if err := p.check(); err != nil {
			t.Error(err)
		} else if t.Failed() {
			t.Logf("%s wrote:\n%s", p.cmd.Args[1], last(p.stderr.String(), 4000))
		}
	})
}

// soon calls f until it returns true, every few milliseconds, with bounded
// patience.
func soon(f func() bool) bool {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for !f() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return f()
		}
	}
	return true
}

// pause waits for d: where a client is told to, or a lease has to run out.
func pause(d time.Duration) { <-time.After(d) }
