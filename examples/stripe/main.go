// Stripe is a small service that takes payments with Stripe, once for each
// Idempotency-Key of its client, also if it is killed at any moment.
//
// The payment is a step (escapement.Step): the record says that it is started
// before Stripe is called, with a key of the step's own, and what came of it
// afterwards. If the service dies in between, the client's repeat takes over
// when the lease of the first attempt is over, and calls Stripe again with the
// same key, which Stripe answers with the payment that it has already made.
//
// What is worth copying:
//
//   - stripe-go does not repeat (MaxNetworkRetries is 0), and neither does its
//     http.Client (httpgate.Transport, and no redirects). The repeat is the
//     step's, which knows whether it may.
//   - A declined card is a result. An error that says that Stripe has refused to
//     look at the request is one too; everything else is an error: nobody knows.
//   - Stripe keeps keys for at least 24 hours, so KeysFor is a little less. A
//     step that was started longer ago stays unknown, and a person looks.
//
// Run it, with stripe-mock or a test key of your own:
//
//	go run ./examples/stripe -stripe http://127.0.0.1:12111 -db /tmp/payments.db
//	curl -i http://127.0.0.1:8080/v1/payments -H 'Idempotency-Key: order-1' \
//	     -H 'Content-Type: application/json' -d '{"amount": 1999, "currency": "eur"}'
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"time"

	"github.com/stripe/stripe-go/v82"

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
	flags := flag.NewFlagSet("stripe", flag.ContinueOnError)
	listen := flags.String("listen", "127.0.0.1:8080", "`address` to listen on")
	db := flags.String("db", "payments.db", "`file` of the records")
	api := flags.String("stripe", stripe.APIURL, "`URL` of Stripe")
	lease := flags.Duration("lease", 15*time.Second, "how long after a crash a repeat takes over")
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
	policy.Terms.Lease = *lease
	// A repeat continues: right, since the only effect is a step.
	policy.Terms.OnUnknown, policy.Terms.Quiet = idempotency.Retry, 0
	mw, err := httpgate.New(httpgate.Config{
		Gate: gate, Hasher: hasher,
		// One shop, so one tenant; see httpgate.Identity for others.
		Identity: httpgate.Identity{Tenant: httpgate.MustSources("const:shop")},
		Routes:   map[string]httpgate.KeyPolicy{"POST /v1/payments": {Mode: httpgate.Required, Policy: policy}},
	})
	if err != nil {
		return err
	}
	s := &service{stripe: newStripe(os.Getenv("STRIPE_KEY"), *api)}
	mux := http.NewServeMux()
	mux.Handle("POST /v1/payments", mw.Handler(s.pay))

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
	if s := os.Getenv("PAYMENTS_SECRET"); s != "" {
		return s
	}
	return "a secret of this example, and of no service"
}

// newStripe returns a client that calls once, or not at all.
func newStripe(key, url string) *stripe.Client {
	if key == "" {
		key = "sk_test_123" // what stripe-mock takes
	}
	return stripe.NewClient(key, stripe.WithBackends(stripe.NewBackendsWithConfig(&stripe.BackendConfig{
		URL:               stripe.String(url),
		MaxNetworkRetries: stripe.Int64(0),
		LeveledLogger:     &stripe.LeveledLogger{Level: stripe.LevelNull},
		HTTPClient: &http.Client{
			Timeout:   30 * time.Second,
			Transport: httpgate.NewTransport(nil),
			CheckRedirect: func(*http.Request, []*http.Request) error {
				return http.ErrUseLastResponse
			},
		},
	})))
}

type service struct{ stripe *stripe.Client }

// payment is what the client sends.
type payment struct {
	Amount   int64  `json:"amount"`
	Currency string `json:"currency"`
}

// answer is what became of it. It is kept with the step.
type answer struct {
	Payment string `json:"payment,omitempty"`
	Status  string `json:"status"`
	Refused string `json:"refused,omitempty"`
}

func (s *service) pay(w http.ResponseWriter, r *http.Request) error {
	var p payment
	if err := json.NewDecoder(r.Body).Decode(&p); err != nil || p.Amount <= 0 || p.Currency == "" {
		http.Error(w, "want an amount and a currency", http.StatusBadRequest)
		return nil
	}
	step, err := escapement.Step(r.Context(), "payment", func(ctx context.Context, key string) (escapement.StepResult, error) {
		return s.create(ctx, key, p)
	}, escapement.StepOptions{KeysFor: 23 * time.Hour})
	if err != nil {
		return err // see httpgate.Middleware.Failed
	}
	var a answer
	if err := json.Unmarshal(step.Answer, &a); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	if a.Refused != "" {
		w.WriteHeader(http.StatusPaymentRequired)
	} else {
		w.WriteHeader(http.StatusCreated)
	}
	_, err = w.Write(step.Answer)
	return err
}

// create makes the payment at Stripe, with the step's key.
func (s *service) create(ctx context.Context, key string, p payment) (escapement.StepResult, error) {
	params := &stripe.PaymentIntentCreateParams{
		Amount: stripe.Int64(p.Amount), Currency: stripe.String(p.Currency), Confirm: stripe.Bool(true),
	}
	params.SetIdempotencyKey(key)
	intent, err := s.stripe.V1PaymentIntents.Create(ctx, params)
	if err != nil {
		var refusal *stripe.Error
		if errors.As(err, &refusal) && (refusal.HTTPStatusCode == http.StatusBadRequest || refusal.HTTPStatusCode == http.StatusPaymentRequired) {
			return result(answer{Status: "refused", Refused: string(refusal.Type)})
		}
		return escapement.StepResult{}, err
	}
	return result(answer{Payment: intent.ID, Status: string(intent.Status)})
}

func result(a answer) (escapement.StepResult, error) {
	b, err := json.Marshal(a)
	return escapement.StepResult{ID: a.Payment, Answer: b}, err
}
