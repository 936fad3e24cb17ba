package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/netip"
	"net/textproto"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/escapement-dev/escapement/httpgate"
)

// front starts a Proxy before upstream and returns its URL and what its errors
// were.
func front(t *testing.T, upstream string, change func(*Options)) (string, chan error) {
	t.Helper()
	u, err := url.Parse(upstream)
	if err != nil {
		t.Fatal(err)
	}
	failures := make(chan error, 10)
	o := Options{
		Upstream: u, Logger: slog.New(slog.DiscardHandler),
		Error: func(w http.ResponseWriter, _ *http.Request, err error) {
			failures <- err
			w.WriteHeader(http.StatusBadGateway)
		},
	}
	if change != nil {
		change(&o)
	}
	p := New(o)
	s := httptest.NewServer(p)
	t.Cleanup(func() { s.Close(); p.Close() })
	return s.URL, failures
}

func upstream(t *testing.T, f http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(f)
	t.Cleanup(s.Close)
	return s.URL
}

func get(t *testing.T, req *http.Request) (*http.Response, string) {
	t.Helper()
	tr := &http.Transport{DisableCompression: true}
	t.Cleanup(tr.CloseIdleConnections)
	res, err := tr.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, string(b)
}

func request(t *testing.T, method, url string, fields ...string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(fields); i += 2 {
		req.Header.Set(fields[i], fields[i+1])
	}
	return req
}

func TestWhatTheUpstreamSees(t *testing.T) {
	type seen struct {
		host, uri string
		header    http.Header
	}
	var got seen
	up := upstream(t, func(_ http.ResponseWriter, r *http.Request) { got = seen{r.Host, r.RequestURI, r.Header} })
	ask := func(trusted string, fields ...string) {
		t.Helper()
		u, _ := front(t, up+"/base", func(o *Options) {
			if trusted != "" {
				o.Trusted = []netip.Prefix{netip.MustParsePrefix(trusted)}
			}
		})
		req := request(t, "GET", u+"/a%2Fb;c/?x=1;y&%zz&&z", fields...)
		req.Host = "shop.example:8443"
		get(t, req)
	}
	want := func(name, value string) {
		t.Helper()
		if v := strings.Join(got.header[name], "|"); v != value {
			t.Errorf("%s: got %q, want %q", name, v, value)
		}
	}

	ask("", "X-Forwarded-For", "6.6.6.6", "X-Forwarded-Proto", "https", "X-Forwarded-Host", "evil", "Forwarded", "for=6.6.6.6",
		"Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "Idempotency-Key", `"k"`)
	if got.host != "shop.example:8443" || got.uri != "/base/a%2Fb;c/?x=1;y&%zz&&z" {
		t.Errorf("got %s %s", got.host, got.uri)
	}
	want("X-Forwarded-For", "127.0.0.1")
	want("X-Forwarded-Proto", "http")
	want("X-Forwarded-Host", "shop.example:8443")
	want("Forwarded", "")
	want("Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	want("Idempotency-Key", `"k"`)
	want("Accept-Encoding", "")

	ask("127.0.0.0/8", "X-Forwarded-For", "9.9.9.9, 8.8.8.8", "X-Forwarded-Proto", "https", "X-Forwarded-Host", "outer.example", "Forwarded", "for=9.9.9.9")
	want("X-Forwarded-For", "9.9.9.9, 8.8.8.8, 127.0.0.1")
	want("X-Forwarded-Proto", "https")
	want("X-Forwarded-Host", "outer.example")
	want("Forwarded", "for=9.9.9.9")

	ask("10.0.0.0/8", "X-Forwarded-For", "6.6.6.6")
	want("X-Forwarded-For", "127.0.0.1")
}

func TestAnswerPassesAsItIs(t *testing.T) {
	up := upstream(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Link", "</style.css>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Del("Link")
		w.Header().Set("Trailer", "X-Sum")
		w.Header().Set("Content-Encoding", "gzip") // it is not, and nobody looks
		w.WriteHeader(http.StatusAccepted)
		fmt.Fprint(w, "body")
		w.Header().Set("X-Sum", "42")
	})
	u, _ := front(t, up, nil)
	hints := ""
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(_ int, h textproto.MIMEHeader) error {
		hints = h.Get("Link")
		return nil
	}})
	res, body := get(t, request(t, "GET", u).WithContext(ctx))
	if res.StatusCode != 202 || body != "body" || res.Header.Get("Content-Encoding") != "gzip" || res.Trailer.Get("X-Sum") != "42" {
		t.Errorf("got %s %q %v %v", res.Status, body, res.Header, res.Trailer)
	}
	if hints != "</style.css>; rel=preload" {
		t.Errorf("early hints: got %q", hints)
	}
}

func TestFailuresSayWhatWasSent(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	free := "http://" + l.Addr().String()
	l.Close()
	u, failures := front(t, free, nil)
	if res, _ := get(t, request(t, "POST", u)); res.StatusCode != 502 {
		t.Errorf("got %s", res.Status)
	}
	if err := <-failures; !errors.Is(err, httpgate.ErrNotSent) {
		t.Errorf("a refused dial: got %v", err)
	}

	up := upstream(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	u, failures = front(t, up, nil)
	if res, _ := get(t, request(t, "POST", u)); res.StatusCode != 502 {
		t.Errorf("got %s", res.Status)
	}
	if err := <-failures; errors.Is(err, httpgate.ErrNotSent) {
		t.Errorf("a broken connection: got %v", err)
	}
}

func TestClientThatGoesAwayEndsItsRequest(t *testing.T) {
	arrived, gone := make(chan struct{}), make(chan struct{})
	up := upstream(t, func(_ http.ResponseWriter, r *http.Request) {
		close(arrived)
		<-r.Context().Done()
		close(gone)
	})
	u, _ := front(t, up, nil)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-arrived
		cancel()
	}()
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	if res, err := tr.RoundTrip(request(t, "GET", u).WithContext(ctx)); err == nil {
		res.Body.Close()
		t.Errorf("got %s", res.Status)
	}
	<-gone
}

func TestUpstreamTLS(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.Proto, " ", len(r.TLS.PeerCertificates))
	}))
	s.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)

	u, failures := front(t, s.URL, nil)
	if res, _ := get(t, request(t, "GET", u)); res.StatusCode != 502 {
		t.Errorf("an unknown authority: got %s", res.Status)
	}
	if err := <-failures; err == nil {
		t.Error("no error")
	}

	ca := filepath.Join(t.TempDir(), "ca.pem")
	writePEM(t, ca, "CERTIFICATE", s.Certificate().Raw)
	keyFile := filepath.Join(t.TempDir(), "key.pem")
	writePEM(t, keyFile, "PRIVATE KEY", pkcs8(t, s.TLS.Certificates[0].PrivateKey))
	c, err := ClientTLS(ca, ca, keyFile)
	if err != nil {
		t.Fatal(err)
	}
	u, _ = front(t, s.URL, func(o *Options) { o.TLS = c })
	req := request(t, "GET", u)
	if res, body := get(t, req); res.StatusCode != 200 || body != "HTTP/1.1 1" {
		t.Errorf("got %s %q", res.Status, body)
	}

	empty := filepath.Join(t.TempDir(), "empty.pem")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, files := range [][3]string{{"/no/such", "", ""}, {empty, "", ""}, {"", empty, empty}, {"", ca, "/no/such"}} {
		if _, err := ClientTLS(files[0], files[1], files[2]); err == nil {
			t.Errorf("%v: no error", files)
		}
	}
	if c, err := ClientTLS("", "", ""); c != nil || err != nil {
		t.Errorf("nothing: got %v, %v", c, err)
	}
}

func TestBuffersKeepTheirSize(t *testing.T) {
	b := buffers.Get()
	if len(b) != copyBuffer {
		t.Errorf("got %d bytes", len(b))
	}
	buffers.Put(b)
	buffers.Put(b[:10])
	if n := len(buffers.Get()); n != copyBuffer {
		t.Errorf("got %d bytes", n)
	}
}
