package crash

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// process is a program under test that a test has started.
type process struct {
	url    string
	cmd    *exec.Cmd
	stdin  io.Closer // the program ends with it, and so with this process
	stderr buffer
	done   chan struct{} // closed when it has ended
	err    error         // of Wait; read after done
}

// buffer is a bytes.Buffer for two.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// launch starts a program, and waits until it serves.
func launch(c config) (*process, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.Command(exe), done: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), programVar+"="+string(text))
	p.cmd.Stderr = &p.stderr
	stdout, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer stdout.Close()
	defer w.Close()
	p.cmd.Stdout = w
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	w.Close()
	if err := stdout.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		p.kill()
		return nil, fmt.Errorf("a program does not start: %w: %s", err, &p.stderr)
	}
	p.url = strings.TrimSpace(line)
	return p, nil
}

// kill ends the program by force, if it has not ended, and waits for its end.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.done
}

// struck waits until the program has killed itself.
func (p *process) struck() error {
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case <-p.done:
	case <-t.C:
		return errors.New("the point is not reached")
	}
	if s, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || s.Signal() != syscall.SIGKILL {
		return fmt.Errorf("the program ended otherwise: %w: %s", p.err, &p.stderr)
	}
	return nil
}

// stop lets the program end by itself. Its error holds what a race detector has
// to say.
func (p *process) stop() error {
	p.stdin.Close()
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case <-p.done:
	case <-t.C:
		p.kill()
		return errors.New("the program does not end")
	}
	if p.err != nil {
		return fmt.Errorf("%w: %s", p.err, &p.stderr)
	}
	return nil
}
