// Statusprovider is a small service that sends money through a bank that does
// not know idempotency keys: each call is a transfer. But the bank can be asked
// for transfers by their reference, and so no transfer is made twice, also if
// the service is killed at any moment.
//
// The transfer is a step (escapement.Step), and the step's own key is the
// transfer's reference. If an attempt dies in the middle, the client's repeat
// takes over once the lease of the first is over and the quiet time behind it,
// and asks the bank: a transfer that is found is the answer; only if there is
// none, it is made. "Perhaps" is not taken for "no": then the outcome stays
// unknown, and the next repeat asks again.
//
// What is worth copying:
//
//   - on_unknown is Probe, and the quiet time is as long as the time-out: when
//     the bank is asked, the first call is no longer under way. If the bank may
//     take longer than that to carry out what it has accepted, say more.
//   - A clear "no" comes from the system that makes transfers, and from nobody
//     else: here, status 200 with an empty list. A 404, a list that lags behind
//     or a proxy's page says nothing.
//   - The client does not repeat by itself (httpgate.Transport, no redirects).
//
// Run it:
//
//	go run ./examples/statusprovider -bank http://127.0.0.1:9000 -db /tmp/transfers.db
//	curl -i http://127.0.0.1:8080/v1/transfers -H 'Idempotency-Key: rent-may' \
//	     -H 'Content-Type: application/json' -d '{"amount": 1999, "to": "DE02 1203 0000 0000 2020 51"}'
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"time"

	"github.com/escapement-dev/escapement"
	"github.com/escapement-dev/escapement/httpgate"
	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/store/sqlitestore"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run serves until ctx ends. It prints its address when it listens.
func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("statusprovider", flag.ContinueOnError)
	listen := flags.String("listen", "127.0.0.1:8080", "`address` to listen on")
	db := flags.String("db", "transfers.db", "`file` of the records")
	bank := flags.String("bank", "http://127.0.0.1:9000", "`URL` of the bank")
	lease := flags.Duration("lease", 15*time.Second, "how long after a crash an attempt counts as alive")
	timeout := flags.Duration("timeout", time.Minute, "how long a request, and a call of the bank, may take")
	if err := flags.Parse(args); err != nil {
		return err
	}
	store, err := sqlitestore.Open(ctx, *db, sqlitestore.Options{})
	if err != nil {
		return err
	}
	defer store.Close()
	gate, err := escapement.New(escapement.Options{Records: store})
	if err != nil {
		return err
	}
	hasher, err := idempotency.NewHasher([]byte(secret()))
	if err != nil {
		return err
	}
	policy := escapement.DefaultPolicy()
	policy.Timeout, policy.Terms.Lease = *timeout, *lease
	policy.Terms.OnUnknown, policy.Terms.Quiet = idempotency.Probe, *timeout
	mw, err := httpgate.New(httpgate.Config{
		Gate: gate, Hasher: hasher,
		Identity: httpgate.Identity{Tenant: httpgate.MustSources("const:landlord")},
		Routes:   map[string]httpgate.KeyPolicy{"POST /v1/transfers": {Mode: httpgate.Required, Policy: policy}},
	})
	if err != nil {
		return err
	}
	s := &service{bank: *bank, client: &http.Client{
		Timeout:   *timeout,
		Transport: httpgate.NewTransport(nil),
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse
		},
	}}
	mux := http.NewServeMux()
	mux.Handle("POST /v1/transfers", mw.Handler(s.send))

	ln, err := net.Listen("tcp", *listen)
	if err != nil {
		return err
	}
	srv := &http.Server{Handler: mw.Wrap(mux), ReadHeaderTimeout: 10 * time.Second}
	go func() {
		if err := gate.Run(ctx); err != nil { // records what could not be recorded, and sweeps
			slog.Error("the gate", "err", err)
		}
	}()
	stopped := make(chan error, 1)
	go func() {
		<-ctx.Done()
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		stopped <- errors.Join(srv.Shutdown(grace), gate.Shutdown(grace))
	}()
	fmt.Fprintf(out, "listening on %s\n", ln.Addr())
	if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-stopped
}

// secret is what keys are hashed with: the same on all nodes, and kept.
func secret() string {
	if s := os.Getenv("TRANSFERS_SECRET"); s != "" {
		return s
	}
	return "a secret of this example, and of no service"
}

type service struct {
	bank   string
	client *http.Client
}

// order is what the client sends, and, with a reference, what the bank gets.
type order struct {
	Amount    int64  `json:"amount"`
	To        string `json:"to"`
	Reference string `json:"reference,omitempty"`
}

// transfer is what the bank says of one.
type transfer struct {
	ID     string `json:"id"`
	Amount int64  `json:"amount"`
	To     string `json:"to"`
}

func (s *service) send(w http.ResponseWriter, r *http.Request) error {
	var o order
	if err := json.NewDecoder(r.Body).Decode(&o); err != nil || o.Amount <= 0 || o.To == "" {
		http.Error(w, "want an amount and an account", http.StatusBadRequest)
		return nil
	}
	step, err := escapement.Step(r.Context(), "transfer", func(ctx context.Context, key string) (escapement.StepResult, error) {
		o := o
		o.Reference = key
		return s.transfer(ctx, o)
	}, escapement.StepOptions{Status: s.find})
	if err != nil {
		return err // see httpgate.Middleware.Failed
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_, err = w.Write(step.Answer)
	return err
}

// transfer tells the bank to make one.
func (s *service) transfer(ctx context.Context, o order) (escapement.StepResult, error) {
	body, err := json.Marshal(o)
	if err != nil {
		return escapement.StepResult{}, err
	}
	var t transfer
	if err := s.call(ctx, http.MethodPost, s.bank+"/transfers", bytes.NewReader(body), http.StatusCreated, &t); err != nil {
		return escapement.StepResult{}, err
	}
	return result(t)
}

// find asks the bank for the transfer with that reference.
func (s *service) find(ctx context.Context, key string) (escapement.StepResult, escapement.StepStatus, error) {
	var list []transfer
	if err := s.call(ctx, http.MethodGet, s.bank+"/transfers?reference="+url.QueryEscape(key), nil, http.StatusOK, &list); err != nil {
		return escapement.StepResult{}, escapement.StepUnclear, err
	}
	switch len(list) {
	case 0:
		return escapement.StepResult{}, escapement.StepAbsent, nil
	case 1:
		res, err := result(list[0])
		return res, escapement.StepFound, err
	}
	return escapement.StepResult{}, escapement.StepUnclear, fmt.Errorf("the bank has %d transfers with one reference", len(list))
}

// call is one call of the bank. Any status but the one that is wanted is an
// error, which says nothing of what the bank has done.
func (s *service) call(ctx context.Context, method, url string, body io.Reader, want int, into any) error {
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := s.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != want {
		return fmt.Errorf("the bank answers %d", resp.StatusCode)
	}
	return json.NewDecoder(resp.Body).Decode(into)
}

func result(t transfer) (escapement.StepResult, error) {
	b, err := json.Marshal(t)
	return escapement.StepResult{ID: t.ID, Answer: b}, err
}
