package redistest

import (
	"bytes"
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// Proxy stands between a client and a server, and can lose replies.
type Proxy struct {
	// Addr is where it listens.
	Addr string

	target string
	lose   atomic.Bool
	l      net.Listener
	wg     sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]bool
}

// StartProxy starts a proxy in front of the server. It ends with the test.
func StartProxy(t testing.TB, s *Server) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{Addr: l.Addr().String(), target: s.Addr, l: l, conns: map[net.Conn]bool{}}
	p.wg.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

// LoseReply lets the next script reach the server and closes its connection
// when the server answers.
func (p *Proxy) LoseReply() { p.lose.Store(true) }

func (p *Proxy) accept() {
	for {
		client, err := p.l.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.target)
		if err != nil {
			_ = client.Close()
			continue
		}
		p.mu.Lock()
		p.conns[client], p.conns[server] = true, true
		p.mu.Unlock()
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
			pass(server, client, func(b []byte) bool {
				if bytes.Contains(b, []byte("EVALSHA")) && p.lose.CompareAndSwap(true, false) {
					lost.Store(true)
				}
				return true
			})
		})
		p.wg.Go(func() {
			defer end()
			pass(client, server, func([]byte) bool { return !lost.Load() })
		})
	}
}

// pass copies until one of the connections ends, or look says no.
func pass(to, from net.Conn, look func([]byte) bool) {
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
	_ = p.l.Close()
	p.mu.Lock()
	for c := range p.conns {
		_ = c.Close()
	}
	p.mu.Unlock()
	p.wg.Wait()
}
