package redistest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Certificates are PEM files of a certificate authority of the test's own, and
// of a certificate for 127.0.0.1 that it has signed, which servers and clients
// may both use.
type Certificates struct {
	CA, Cert, Key string
}

// NewCertificates makes them. They are good for an hour.
func NewCertificates(t testing.TB) Certificates {
	t.Helper()
	dir := t.TempDir()
	write := func(name, kind string, der []byte) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	sign := func(c, by *x509.Certificate, key *ecdsa.PrivateKey, with *ecdsa.PrivateKey) []byte {
		c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
		der, err := x509.CreateCertificate(rand.Reader, c, by, key.Public(), with)
		if err != nil {
			t.Fatal(err)
		}
		return der
	}
	newKey := func() *ecdsa.PrivateKey {
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	caKey, key := newKey(), newKey()
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "redistest authority"},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "redistest"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	priv, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return Certificates{
		CA:   write("ca.pem", "CERTIFICATE", sign(ca, ca, caKey, caKey)),
		Cert: write("cert.pem", "CERTIFICATE", sign(leaf, ca, key, caKey)),
		Key:  write("key.pem", "PRIVATE KEY", priv),
	}
}

// args make a server speak TLS on its port, and ask callers for a certificate
// if clients says so.
func (c Certificates) args(port string, clients bool) []string {
	auth := map[bool]string{false: "no", true: "yes"}[clients]
	return []string{
		"--port", "0", "--tls-port", port, "--tls-cert-file", c.Cert, "--tls-key-file", c.Key, "--tls-ca-cert-file", c.CA,
		"--tls-auth-clients", auth, "--tls-replication", "yes", "--tls-cluster", "yes",
	}
}

// cli are the arguments of redis-cli.
func (c Certificates) cli() []string {
	return []string{"--tls", "--cacert", c.CA, "--cert", c.Cert, "--key", c.Key}
}

// StartTLS is Start for a server that speaks only TLS; it asks callers for a
// certificate if clients says so.
func StartTLS(t testing.TB, c Certificates, clients bool, args ...string) *Server {
	t.Helper()
	s, err := newServer(t.TempDir(), &c, clients, args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Kill)
	return s
}
