package redisstore

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"strings"

	"github.com/redis/rueidis"
)

// Errors of the store; test for them with errors.Is.
var (
	// ErrUnavailable: Redis is out of reach, or up and cannot do its work now.
	// Whether state changed is not known, unless it is also ErrNotExecuted.
	ErrUnavailable = errors.New("redisstore: unavailable")
	// ErrNotExecuted: Redis refused the call before it did anything; nothing
	// changed.
	ErrNotExecuted = errors.New("redisstore: not executed")
	// ErrUnconfirmed: too few replicas had the claim in time; it was given
	// back, and nothing may be executed. See [Store.Confirmed].
	ErrUnconfirmed = errors.New("redisstore: not confirmed by the replicas")
	// ErrFile: a file that the URL names cannot be read, or has not what it
	// should.
	ErrFile = errors.New("redisstore: a file that the URL names")
	// ErrRejected: the server and this program do not accept each other: user
	// or password, certificates, TLS where there is none. It does not pass by
	// itself. Nothing changed.
	ErrRejected = errors.New("redisstore: rejected")
	// ErrBusy: others kept changing the same limit; nothing changed. It comes
	// only while the numbers of a rule differ between nodes.
	ErrBusy = errors.New("redisstore: others keep changing the same limit")
)

// replyTexts say what Redis's error codes mean to whoever runs it.
var replyTexts = map[string]string{
	"READONLY":    "the server is a replica: a failover is under way, or the address is not the master's",
	"LOADING":     "the server is starting and still reads its data",
	"CLUSTERDOWN": "the cluster does not serve this slot: a master is down and has no successor yet",
	"MASTERDOWN":  "the replica has lost its master",
	"MOVED":       "the slot moves between nodes faster than the client can follow",
	"ASK":         "the slot is being moved between nodes",
	"TRYAGAIN":    "the slot is being moved between nodes",
	"BUSY":        "the server is busy with somebody's script",
	"OOM":         "the server is out of memory (maxmemory): it needs more, or fewer keys",
	"NOREPLICAS":  "the server has fewer replicas than its min-replicas-to-write",
	"MISCONF":     "the server cannot write its data to disk",
	"NOAUTH":      "the server wants a password",
	"WRONGPASS":   "the server does not accept the user and password",
	"NOPERM":      "the user may not run this: it needs the scripting, string, hash and list commands, on the prefix's keys",
}

// failure is an error of a call.
type failure struct {
	text  string
	cause error
	is    []error
}

func (f *failure) Error() string   { return f.text }
func (f *failure) Unwrap() []error { return append([]error{f.cause}, f.is...) }

// code is the first word of an error that Redis answered, or "".
func code(err error) string {
	var re *rueidis.RedisError
	if !errors.As(err, &re) || re.IsNil() {
		return ""
	}
	word, _, _ := strings.Cut(re.Error(), " ")
	return strings.TrimPrefix(word, "-")
}

// explain turns an error of the client into one of ours.
func explain(what string, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, ErrUnconfirmed) || errors.Is(err, ErrBusy) {
		return err
	}
	f := &failure{cause: err, text: "redisstore: " + what + ": " + err.Error()}
	if word := code(err); word != "" {
		if text, ok := replyTexts[word]; ok {
			f.text = "redisstore: " + what + ": " + text + " (" + err.Error() + ")"
			f.is = []error{ErrUnavailable, ErrNotExecuted}
			if word == "NOAUTH" || word == "WRONGPASS" || word == "NOPERM" {
				f.is = append(f.is, ErrRejected)
			}
		}
		return f
	}
	if text := handshake(err); text != "" {
		f.text = "redisstore: " + what + ": " + text + " (" + err.Error() + ")"
		f.is = []error{ErrUnavailable, ErrNotExecuted, ErrRejected}
		return f
	}
	if op := (*net.OpError)(nil); errors.As(err, &op) && op.Op == "dial" {
		f.text = "redisstore: " + what + ": cannot connect: " + err.Error()
		f.is = []error{ErrUnavailable, ErrNotExecuted}
		return f
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		f.text = "redisstore: " + what + ": gave up waiting for Redis: " + err.Error()
	}
	f.is = []error{ErrUnavailable}
	return f
}

// handshake says what a TLS handshake failed of; "" if err is something else.
func handshake(err error) string {
	if cert := (*tls.CertificateVerificationError)(nil); errors.As(err, &cert) {
		if name := (x509.HostnameError{}); errors.As(err, &name) {
			return "the server's certificate is for another name"
		}
		return "nobody trusted has signed the server's certificate: ca=FILE in the URL's query names who has"
	}
	if op := (*net.OpError)(nil); errors.As(err, &op) && op.Op == "remote error" { // an alert
		return "the server does not accept the certificate of this side: cert=FILE and key=FILE in the URL's query name one"
	}
	return ""
}

// passing reports whether err may pass by itself, so that a call that may be
// repeated is worth repeating.
func passing(err error) bool {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) ||
		errors.Is(err, rueidis.ErrClosing) || errors.Is(err, ErrUnconfirmed) {
		return false
	}
	switch code(err) {
	case "", "READONLY", "LOADING", "CLUSTERDOWN", "MASTERDOWN", "MOVED", "ASK", "TRYAGAIN":
		return true
	}
	return false
}

// sent reports whether the call may have reached Redis and be carried out,
// then or later.
func sent(err error) bool {
	op := (*net.OpError)(nil)
	return err != nil && code(err) == "" && (!errors.As(err, &op) || op.Op != "dial")
}
