package redistest

import (
	"errors"
	"io"
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

// LoseReply lets the next call reach the server and closes its connection when
// the server answers.
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
		p.wg.Go(func() {
			_, _ = io.Copy(server, client)
			end()
		})
		p.wg.Go(func() {
			defer end()
			b := make([]byte, 64<<10)
			for {
				n, err := server.Read(b)
				if n > 0 && p.lose.CompareAndSwap(true, false) {
					return
				}
				if _, werr := client.Write(b[:n]); errors.Join(err, werr) != nil {
					return
				}
			}
		})
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
