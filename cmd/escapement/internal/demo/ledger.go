package demo

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
)

// ledger counts what came and what was made. With a file, each entry is on
// stable storage before the call that made it returns, so that no crash takes
// back what a caller was told.
type ledger struct {
	mu     sync.Mutex
	file   *os.File // nil: memory only
	broken error    // the file could not be written; nothing is made any more
	came   map[string]int64
	made   map[string]int64
	keys   map[keyed]int64
}

// keyed names the thing that a subject made with a key.
type keyed struct{ kind, subject, key string }

// entry is one line of the file: a POST that came (N is 0) or a thing made.
type entry struct {
	Kind    string `json:"kind"`
	N       int64  `json:"n,omitempty"`
	Subject string `json:"subject,omitempty"`
	Key     string `json:"key,omitempty"`
}

func openLedger(path string) (*ledger, error) {
	l := &ledger{came: map[string]int64{}, made: map[string]int64{}, keys: map[keyed]int64{}}
	if path == "" {
		return l, nil
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("demo: data file: %w", err)
	}
	end, err := l.load(f)
	if err == nil {
		// A last line without its end was being written when the process died:
		// nobody was told of it.
		err = f.Truncate(end)
	}
	if err == nil {
		_, err = f.Seek(end, io.SeekStart)
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("demo: data file %s: %w", path, err)
	}
	l.file = f
	return l, nil
}

// load applies every whole line and returns where the last one ends.
func (l *ledger) load(r io.Reader) (end int64, err error) {
	b := bufio.NewReader(r)
	for n := 1; ; n++ {
		line, err := b.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return end, nil
		}
		if err != nil {
			return end, err
		}
		var e entry
		d := json.NewDecoder(bytes.NewReader(line))
		d.DisallowUnknownFields()
		if err := d.Decode(&e); err != nil {
			return end, fmt.Errorf("line %d is not an entry of the demo: %w", n, err)
		}
		l.apply(e)
		end += int64(len(line))
	}
}

func (l *ledger) apply(e entry) {
	if e.N == 0 {
		l.came[e.Kind]++
		return
	}
	l.made[e.Kind] = max(l.made[e.Kind], e.N)
	if e.Key != "" {
		l.keys[keyed{e.Kind, e.Subject, e.Key}] = e.N
	}
}

// put writes e to the file and applies it. The caller holds mu.
func (l *ledger) put(e entry) error {
	if l.broken != nil {
		return l.broken
	}
	if l.file != nil {
		line, err := json.Marshal(e)
		if err == nil {
			_, err = l.file.Write(append(line, '\n'))
		}
		if err == nil {
			err = l.file.Sync()
		}
		if err != nil {
			// What the file holds now is not known: stop rather than guess.
			l.broken = fmt.Errorf("demo: data file: %w", err)
			return l.broken
		}
	}
	l.apply(e)
	return nil
}

// received counts a POST that came.
func (l *ledger) received(kind string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.put(entry{Kind: kind})
}

// make makes one thing and returns its number; for a kind that knows keys and a
// key that was seen, it returns the number of the first.
func (l *ledger) make(k kind, subject, key string) (int64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k.knowsKeys && key != "" {
		if n, ok := l.keys[keyed{k.name, subject, key}]; ok {
			return n, nil
		}
	}
	n := l.made[k.name] + 1
	e := entry{Kind: k.name, N: n, Key: key}
	if key != "" {
		e.Subject = subject
	}
	return n, l.put(e)
}

func (l *ledger) byKey(k kind, subject, key string) (int64, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, ok := l.keys[keyed{k.name, subject, key}]
	return n, ok
}

func (l *ledger) count(kind string) (made, received int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.made[kind], l.came[kind]
}

func (l *ledger) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.broken == nil {
		l.broken = errors.New("demo: closed")
	}
	if l.file == nil {
		return nil
	}
	f := l.file
	l.file = nil
	return f.Close()
}
