// Command proxy compares the program with a bare, tuned
// httputil.ReverseProxy, in one run: an unprotected route, limits in memory,
// and keys on SQLite. The load comes from wrk (Debian package wrk), on
// loopback, in short interleaved rounds; it prints the medians and the ratios.
//
//	go run ./bench/proxy -program bin/escapement
package main

import (
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

func main() {
	program := flag.String("program", "bin/escapement", "the built program")
	rounds := flag.Int("rounds", 5, "interleaved rounds")
	seconds := flag.Int("seconds", 3, "seconds of each measurement")
	conns := flag.Int("connections", 64, "connections of the load")
	flag.Parse()
	var err error
	switch flag.Arg(0) {
	case "upstream":
		err = upstream(flag.Arg(1))
	case "bare":
		err = bare(flag.Arg(1), flag.Arg(2))
	case "":
		err = compare(*program, *rounds, *seconds, *conns)
	default:
		err = fmt.Errorf("unknown argument %q", flag.Arg(0))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench/proxy:", err)
		os.Exit(1)
	}
}

func upstream(addr string) error {
	body := []byte(`{"ok":true,"answer":"an answer of about the size of a small JSON object"}`)
	return http.ListenAndServe(addr, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(body)
	}))
}

// bare is the ReverseProxy that one would tune by hand: enough idle
// connections, no compression, pooled buffers.
func bare(addr, target string) error {
	u, err := url.Parse(target)
	if err != nil {
		return err
	}
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConns, t.MaxIdleConnsPerHost = 0, 1024
	t.DisableCompression = true
	p := &httputil.ReverseProxy{
		Transport:  t,
		BufferPool: &buffers{},
		ErrorLog:   log.New(io.Discard, "", 0), // of clients that wrk cut off
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(u)
			r.Out.Host = r.In.Host
			r.SetXForwarded()
		},
	}
	return http.ListenAndServe(addr, p)
}

type buffers struct{ sync.Pool }

func (b *buffers) Get() []byte {
	if p, ok := b.Pool.Get().(*[]byte); ok {
		return *p
	}
	return make([]byte, 32<<10)
}

func (b *buffers) Put(p []byte) { b.Pool.Put(&p) }

const config = `
upstream: %s
listen: %s
admin: {listen: %s}
store: "sqlite:%s"
log: {level: error}
identity: {tenant: const:bench}
idempotency:
  routes:
    POST /keyed: {key: required, on_unknown: retry}
%s`

const limits = `
limits:
  - {name: tenant, by: [tenant], rate: 100000000/s}
`

// post has a fresh key in every request of every connection.
const post = `
local n = 0
local id = tostring({}):sub(8)
wrk.method = "POST"
wrk.body = '{"item":"clock","amount":17}'
wrk.headers["Content-Type"] = "application/json"
request = function()
  n = n + 1
  wrk.headers["Idempotency-Key"] = "k-" .. id .. "-" .. os.time() .. "-" .. n
  return wrk.format(nil, "/keyed")
end
`

func compare(program string, rounds, seconds, conns int) error {
	if _, err := exec.LookPath("wrk"); err != nil {
		return fmt.Errorf("wrk is not here: install the Debian package wrk")
	}
	dir, err := os.MkdirTemp("", "escapement-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	var children []*exec.Cmd
	defer func() {
		for _, c := range children {
			_ = c.Process.Kill()
			_ = c.Wait()
		}
	}()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	up := "http://" + free()
	bareAddr := free()
	start := func(name string, arg ...string) error {
		c := exec.Command(name, arg...)
		c.Stderr = os.Stderr
		if err := c.Start(); err != nil {
			return err
		}
		children = append(children, c)
		return nil
	}
	if err := start(self, "upstream", strings.TrimPrefix(up, "http://")); err != nil {
		return err
	}
	if err := start(self, "bare", bareAddr, up); err != nil {
		return err
	}
	serve := func(name, extra string) (string, error) {
		addr := free()
		file := filepath.Join(dir, name+".yaml")
		text := fmt.Sprintf(config, up, addr, free(), filepath.Join(dir, name+".db"), extra)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return "", err
		}
		return addr, start(program, "serve", "-c", file)
	}
	plain, err := serve("plain", "")
	if err != nil {
		return err
	}
	limited, err := serve("limited", limits)
	if err != nil {
		return err
	}
	script := filepath.Join(dir, "post.lua")
	if err := os.WriteFile(script, []byte(post), 0o600); err != nil {
		return err
	}
	type contender struct {
		name, addr, path string
		script           string
		base             int // the contender that it is compared with
	}
	all := []contender{
		{"upstream alone, GET", strings.TrimPrefix(up, "http://"), "/", "", 1},
		{"bare ReverseProxy, GET", bareAddr, "/", "", 1},
		{"escapement, unprotected GET", plain, "/", "", 1},
		{"escapement, limit in memory, GET", limited, "/", "", 1},
		{"bare ReverseProxy, POST", bareAddr, "/keyed", script, 4},
		{"escapement, keys on SQLite, POST", plain, "/keyed", script, 4},
	}
	for _, c := range all {
		if err := ready(c.addr); err != nil {
			return err
		}
	}
	got := make([][]float64, len(all))
	for range rounds {
		for i, c := range all {
			n, err := load(c.addr+c.path, c.script, seconds, conns)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			got[i] = append(got[i], n)
		}
	}
	fmt.Printf("%-36s %12s %8s   (median of %d rounds of %d s, %d connections)\n", "", "requests/s", "ratio", rounds, seconds, conns)
	for i, c := range all {
		fmt.Printf("%-36s %12.0f %8.2f\n", c.name, median(got[i]), median(got[i])/median(got[c.base]))
	}
	return nil
}

var (
	rate = regexp.MustCompile(`Requests/sec:\s+([0-9.]+)`)
	bad  = regexp.MustCompile(`Non-2xx or 3xx responses: \d+|Socket errors: .*`)
)

func load(target, script string, seconds, conns int) (float64, error) {
	arg := []string{"-t1", "-c" + strconv.Itoa(conns), fmt.Sprintf("-d%ds", seconds)}
	if script != "" {
		arg = append(arg, "-s", script)
	}
	out, err := exec.Command("wrk", append(arg, "http://"+target)...).CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("%w: %s", err, out)
	}
	if m := bad.Find(out); m != nil {
		return 0, fmt.Errorf("%s", m)
	}
	m := rate.FindSubmatch(out)
	if m == nil {
		return 0, fmt.Errorf("no rate in: %s", out)
	}
	return strconv.ParseFloat(string(m[1]), 64)
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}

// free returns a loopback address that nobody listens on.
func free() string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func ready(addr string) error {
	end := time.Now().Add(20 * time.Second)
	for {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			return c.Close()
		}
		if time.Now().After(end) {
			return fmt.Errorf("%s does not listen: %w", addr, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
