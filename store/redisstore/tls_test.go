package redisstore_test

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/internal/redistest"
	"github.com/escapement-dev/escapement/ratelimit"
	"github.com/escapement-dev/escapement/store/redisstore"
)

// works makes a decision and a record.
func works(t *testing.T, s *redisstore.Store) {
	t.Helper()
	d, a, err := s.Admit(t.Context(), []ratelimit.Charge{perHour("r", "s", 1)}, nil, newClaim(1))
	if err != nil || !d.Allowed || a.Outcome != idempotency.Started {
		t.Fatalf("Admit is %v, %v, %v", d.Allowed, a.Outcome, err)
	}
	if _, err := s.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestTLS(t *testing.T) {
	certs, other := redistest.NewCertificates(t), redistest.NewCertificates(t)
	server := redistest.StartTLS(t, certs, false)
	server.Cli(t, "acl", "setuser", "app", "on", ">p@ss", "~*", "+@all")
	asks := redistest.StartTLS(t, certs, true)
	plain := redistest.Start(t)
	ca, pair := "?ca="+certs.CA, "&cert="+certs.Cert+"&key="+certs.Key

	works(t, open(t, "rediss://"+server.Addr+ca, nil))
	works(t, open(t, "rediss://app:p%40ss@"+server.Addr+"/0"+ca, nil))
	works(t, open(t, "rediss://"+asks.Addr+ca+pair, nil))

	for name, c := range map[string]struct {
		url, text string
		is        error
	}{
		"signed by somebody else":    {"rediss://" + server.Addr + "?ca=" + other.CA, "nobody trusted has signed", redisstore.ErrRejected},
		"the system's authorities":   {"rediss://" + server.Addr, "nobody trusted has signed", redisstore.ErrRejected},
		"no certificate of ours":     {"rediss://" + asks.Addr + ca, "accept the certificate", redisstore.ErrUnavailable},
		"another's certificate":      {"rediss://" + asks.Addr + ca + "&cert=" + other.Cert + "&key=" + other.Key, "accept the certificate", redisstore.ErrUnavailable},
		"TLS where there is none":    {"rediss://" + plain.Addr + ca, "does the server speak TLS there", redisstore.ErrUnavailable},
		"no TLS where there is":      {"redis://" + server.Addr, "does it want TLS", redisstore.ErrUnavailable},
		"a wrong password":           {"rediss://app:wrong@" + server.Addr + ca, "does not accept the user and password", redisstore.ErrRejected},
		"a name that is not on it":   {"rediss://" + strings.Replace(server.Addr, "127.0.0.1", "localhost", 1) + ca, "for another name", redisstore.ErrRejected},
		"a file that is not there":   {"rediss://" + server.Addr + "?ca=" + filepath.Join(t.TempDir(), "x.pem"), "no such file", redisstore.ErrFile},
		"a file without certificate": {"rediss://" + server.Addr + "?ca=" + certs.Key, "no certificate in PEM form", redisstore.ErrFile},
		"a key of another":           {"rediss://" + server.Addr + "?cert=" + certs.Cert + "&key=" + other.Key, "cert ", redisstore.ErrFile},
	} {
		s, err := redisstore.Open(c.url, redisstore.Options{})
		if err == nil {
			t.Errorf("%s: Open succeeds", name)
			_ = s.Close()
			continue
		}
		if !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.text) || strings.Contains(err.Error(), "wrong@") {
			t.Errorf("%s: the error is %v, want %v and %q", name, err, c.is, c.text)
		}
		if redisstore.CheckURL(c.url) != nil {
			t.Errorf("%s: CheckURL finds a fault", name)
		}
	}
}

func TestTLSSentinel(t *testing.T) {
	certs := redistest.NewCertificates(t)
	s := redistest.StartTLSSentinel(t, certs, 1)
	l := startLoad(t, open(t, "rediss+sentinel://"+strings.Join(s.Addrs(), ",")+"/"+redistest.MasterName+"?ca="+certs.CA, nil), 4, deadline)
	l.recovered()
	from := s.Replicas[0].Log()
	s.Master.Kill()
	s.Replicas[0].Expect(t, from, "MASTER MODE enabled")
	l.calm()
}

func TestTLSCluster(t *testing.T) {
	certs := redistest.NewCertificates(t)
	c := redistest.StartTLSCluster(t, certs, 3, 0)
	s := open(t, "rediss+cluster://"+strings.Join(c.Addrs(), ",")+"?ca="+certs.CA, nil)
	works(t, s)
	l := startLoad(t, s, 4, patience)
	l.recovered()
	if n := l.count(); n > 0 {
		t.Errorf("%d faults in a Cluster over TLS: %v", n, l.faults)
	}
}
