package redistest

import (
	"bytes"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Proxy stands between a client and a server, and hurts what passes. Its
// methods may be called concurrently.
type Proxy struct {
	// Addr is where it listens.
	Addr string

	target string
	lose   atomic.Bool
	delay  atomic.Int64
	calls  atomic.Int64
	wg     sync.WaitGroup

	mu       sync.Mutex
	l        net.Listener // nil while it refuses
	conns    map[net.Conn]bool
	swallows chan struct{} // closed when it no longer swallows; nil if it does not
	closed   bool
	done     chan struct{}
}

// StartProxy starts a proxy in front of the server. It ends with the test.
func StartProxy(t testing.TB, s *Server) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{Addr: l.Addr().String(), target: s.Addr, l: l, conns: map[net.Conn]bool{}, done: make(chan struct{})}
	p.wg.Go(func() { p.accept(l) })
	t.Cleanup(p.close)
	return p
}

// LoseReply lets the next script reach the server and closes its connection
// when the server answers.
func (p *Proxy) LoseReply() { p.lose.Store(true) }

// Delay makes every reply later by d; 0 ends that.
func (p *Proxy) Delay(d time.Duration) { p.delay.Store(int64(d)) }

// Swallow lets connections be made and stay, and no byte pass in either
// direction, until it is called with false: then those that were swallowed go
// on.
func (p *Proxy) Swallow(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if on && p.swallows == nil {
		p.swallows = make(chan struct{})
	} else if !on && p.swallows != nil {
		close(p.swallows)
		p.swallows = nil
	}
}

// Refuse breaks all connections and lets nobody connect, until it is called
// with false.
func (p *Proxy) Refuse(t testing.TB, on bool) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if on && p.l != nil {
		_ = p.l.Close()
		p.l = nil
		for c := range p.conns {
			_ = c.Close()
		}
	} else if !on && p.l == nil {
		// Somebody's outgoing connection may have the port for a moment.
		l, err := net.Listen("tcp", p.Addr)
		for begin := time.Now(); err != nil && time.Since(begin) < patience; l, err = net.Listen("tcp", p.Addr) {
			p.wait(10 * time.Millisecond)
		}
		if err != nil {
			t.Fatal(err)
		}
		p.l = l
		p.wg.Go(func() { p.accept(l) })
	}
}

// Scripts is how many scripts have been sent through it, or to it and been
// swallowed.
func (p *Proxy) Scripts() int64 { return p.calls.Load() }

func (p *Proxy) accept(l net.Listener) {
	for {
		client, err := l.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.target)
		if err != nil {
			_ = client.Close()
			continue
		}
		if !p.keep(client, server) {
			_ = client.Close()
			_ = server.Close()
			continue
		}
		end := func() {
			_ = client.Close()
			_ = server.Close()
			p.mu.Lock()
			delete(p.conns, client)
			delete(p.conns, server)
			p.mu.Unlock()
		}
		var lost atomic.Bool // whether this connection's next reply is to be lost
		p.wg.Go(func() {
			defer end()
			p.pass(server, client, func(b []byte) bool {
				n := bytes.Count(b, []byte("EVALSHA"))
				p.calls.Add(int64(n))
				if n > 0 && p.lose.CompareAndSwap(true, false) {
					lost.Store(true)
				}
				return p.open()
			})
		})
		p.wg.Go(func() {
			defer end()
			p.pass(client, server, func([]byte) bool {
				return !lost.Load() && p.wait(time.Duration(p.delay.Load())) && p.open()
			})
		})
	}
}

// keep notes the connections, unless the proxy refuses or has ended.
func (p *Proxy) keep(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.l == nil || p.closed {
		return false
	}
	for _, c := range conns {
		p.conns[c] = true
	}
	return true
}

// open returns once nothing is swallowed any more; false if the proxy has
// ended.
func (p *Proxy) open() bool {
	p.mu.Lock()
	swallows := p.swallows
	p.mu.Unlock()
	if swallows == nil {
		return true
	}
	select {
	case <-swallows:
		return true
	case <-p.done:
		return false
	}
}

// wait waits for d; false if the proxy has ended.
func (p *Proxy) wait(d time.Duration) bool {
	if d <= 0 {
		return true
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-p.done:
		return false
	}
}

// pass copies until one of the connections ends, or look says no.
func (p *Proxy) pass(to, from net.Conn, look func([]byte) bool) {
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b)
		if n > 0 {
			if !look(b[:n]) {
				return
			}
			if _, werr := to.Write(b[:n]); werr != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (p *Proxy) close() {
	p.mu.Lock()
	p.closed = true
	close(p.done)
	if p.l != nil {
		_ = p.l.Close()
	}
	for c := range p.conns {
		_ = c.Close()
	}
	p.mu.Unlock()
	p.wg.Wait()
}
