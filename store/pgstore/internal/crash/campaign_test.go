package crash

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/escapement-dev/escapement/internal/pgserver"
	"github.com/escapement-dev/escapement/store/pgstore"
	"github.com/escapement-dev/escapement/store/pgstore/internal/pgtest"
)

// each is how many new keys a round of a campaign has.
const each = 6

// campaign is a series of rounds on one schema. In each, some programs are hurt
// while they work, or the server is; every key is repeated until its answer is
// final.
type campaign struct {
	t        *testing.T
	server   *pgserver.Server
	schema   string
	path     string // of the requests
	provider string
	random   *rand.Rand
	client   *http.Client

	mu       sync.Mutex
	programs []*process // to whom requests are sent
	keys     []*key
	answers  atomic.Int64 // how many keys have their final answer

	workers sync.WaitGroup
	failed  chan error // gets the first failure
}

// key is one operation.
type key struct {
	name, way string
	mu        sync.Mutex
	final     *answer
}

func (k *key) answered() *answer {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.final
}

// answer is what must be the same for every repeat.
type answer struct {
	location, body string
	replayed       bool
}

var ways = []string{
	"pgx read committed", "pgx repeatable read", "pgx serializable",
	"sql read committed", "sql repeatable read", "sql serializable",
}

func newCampaign(t *testing.T, seed uint64) *campaign {
	t.Helper()
	server := pgserver.Shared(t)
	c := &campaign{
		t: t, server: server, path: "/orders", random: rand.New(rand.NewPCG(seed, 0)), failed: make(chan error, 1),
		// No connection is used twice, so that the transport repeats nothing.
		client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience},
		schema: pgtest.Schema(t, server, func(ctx context.Context, c *pgx.Conn, schema string) error {
			_, _, err := pgstore.Migrate(ctx, c, schema)
			return err
		}),
	}
	err := c.query(func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "CREATE TABLE IF NOT EXISTS "+c.schema+".orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text NOT NULL, nonce text NOT NULL)")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, p := range c.programs {
			p.kill()
		}
		c.workers.Wait()
	})
	return c
}

// query runs f with a connection of its own.
func (c *campaign) query(f func(context.Context, *pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, c.server.URL())
	if err != nil {
		return err
	}
	return errors.Join(f(ctx, conn), conn.Close(ctx))
}

// start starts a program and sends it its share of the requests.
func (c *campaign) start(s *strike) *process {
	c.t.Helper()
	p, err := launch(config{URL: c.server.URL(), Schema: c.schema, Provider: c.provider, Strike: s})
	if err != nil {
		c.t.Fatal(err)
	}
	c.mu.Lock()
	c.programs = append(c.programs, p)
	c.mu.Unlock()
	return p
}

// gone takes a program out of those to whom requests are sent.
func (c *campaign) gone(p *process) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, q := range c.programs {
		if q == p {
			c.programs = append(c.programs[:i:i], c.programs[i+1:]...)
		}
	}
}

func (c *campaign) any() *process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.programs[rand.IntN(len(c.programs))]
}

// send sends new keys, each first to p, and then to any program until its answer
// is final.
func (c *campaign) send(p *process) []*key {
	var list []*key
	for i := range each {
		k := &key{name: fmt.Sprintf("key-%d", len(c.keys)+i), way: ways[c.random.IntN(len(ways))]}
		list = append(list, k)
		c.workers.Go(func() {
			if err := c.finish(k, p); err != nil {
				select {
				case c.failed <- fmt.Errorf("%s (%s): %w", k.name, k.way, err):
				default: // it is not the first
				}
			}
		})
	}
	c.keys = append(c.keys, list...)
	return list
}

// finish repeats a key until its answer is final.
func (c *campaign) finish(k *key, p *process) error {
	last := ""
	for until := time.Now().Add(patience); time.Now().Before(until); p = c.any() {
		a, again, err := c.post(k, p.url)
		if err != nil {
			return err
		}
		if a != nil {
			k.mu.Lock()
			k.final = a
			k.mu.Unlock()
			c.answers.Add(1)
			return nil
		}
		last = again
		<-time.After(10*time.Millisecond + rand.N(30*time.Millisecond))
	}
	return fmt.Errorf("no final answer in %v; the last: %s", patience, last)
}

// post is one request: an answer, or why it must be sent again.
func (c *campaign) post(k *key, url string) (a *answer, again string, err error) {
	body, err := json.Marshal(order{Name: k.name, Way: k.way})
	if err != nil {
		return nil, "", err
	}
	r, err := http.NewRequest(http.MethodPost, url+c.path, bytes.NewReader(body))
	if err != nil {
		return nil, "", err
	}
	r.Header.Set("X-Tenant-Id", "acme")
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Idempotency-Key", `"`+k.name+`"`)
	res, err := c.client.Do(r)
	if err != nil {
		return nil, err.Error(), nil
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	switch {
	case err != nil:
		return nil, err.Error(), nil
	case res.StatusCode == http.StatusCreated:
		return &answer{res.Header.Get("Location"), string(text), res.Header.Get("Idempotent-Replayed") == "true"}, "", nil
	case res.StatusCode == http.StatusConflict, res.StatusCode >= 500:
		return nil, fmt.Sprintf("%d %s", res.StatusCode, text), nil
	}
	return nil, "", fmt.Errorf("it is answered %d %s", res.StatusCode, text)
}

// await waits until n keys have their final answers.
func (c *campaign) await(n int) {
	c.t.Helper()
	for until := time.Now().Add(2 * patience); c.answers.Load() < int64(n); {
		c.check()
		if time.Now().After(until) {
			c.t.Fatalf("%d keys of %d have no final answer", n-int(c.answers.Load()), n)
		}
		<-time.After(time.Millisecond)
	}
}

// check fails the test if a key has failed.
func (c *campaign) check() {
	c.t.Helper()
	select {
	case err := <-c.failed:
		c.t.Fatalf("%v\nNot done are:\n%s", err, strings.Join(c.open(), "\n"))
	default:
	}
}

// orders returns the nonces of the orders that there are, by key.
func (c *campaign) orders() map[string][]string {
	c.t.Helper()
	out := map[string][]string{}
	err := c.query(func(ctx context.Context, conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, "SELECT name, nonce FROM "+c.schema+".orders")
		if err != nil {
			return err
		}
		var name, nonce string
		_, err = pgx.ForEachRow(rows, []any{&name, &nonce}, func() error {
			out[name] = append(out[name], nonce)
			return nil
		})
		return err
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return out
}

// judge waits until every key has its answer, and compares what was done with
// what was answered, and that with what is replayed by each program.
func (c *campaign) judge(made func() map[string][]string) {
	c.t.Helper()
	c.workers.Wait()
	c.check()
	c.compare(made())
	for _, k := range c.keys {
		a := k.answered()
		for _, p := range c.programs {
			b, again, err := c.post(k, p.url)
			if err != nil || b == nil {
				c.t.Errorf("%s: not replayed: %s %v", k.name, again, err)
			} else if !b.replayed || b.location != a.location || b.body != a.body {
				c.t.Errorf("%s: replayed %+v, answered %+v", k.name, b, a)
			}
		}
	}
	c.compare(made())
	for _, p := range c.programs {
		if err := p.stop(); err != nil {
			c.t.Error(err)
		}
	}
	c.programs = nil
}

// compare compares what was made, by key, with the keys and their answers.
func (c *campaign) compare(made map[string][]string) {
	c.t.Helper()
	if len(made) != len(c.keys) {
		c.t.Errorf("something was made for %d keys, want %d", len(made), len(c.keys))
	}
	for _, k := range c.keys {
		if n := made[k.name]; len(n) != 1 || !strings.Contains(k.answered().body, `"`+n[0]+`"`) {
			c.t.Errorf("%s (%s): made was %q, and the answer is %s", k.name, k.way, n, k.answered().body)
		}
	}
}

// open describes the records that have no result.
func (c *campaign) open() (list []string) {
	err := c.query(func(ctx context.Context, conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, "SELECT to_jsonb(k)::text || ' at ' || clock_timestamp() FROM "+c.schema+".escapement_keys k WHERE state <> 'done'")
		if err == nil {
			list, err = pgx.CollectRows(rows, pgx.RowTo[string])
		}
		return err
	})
	if err != nil {
		list = append(list, err.Error())
	}
	return list
}

// takeovers counts the keys that needed more than one attempt.
func (c *campaign) takeovers() (n int) {
	c.t.Helper()
	err := c.query(func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "SELECT count(*) FROM "+c.schema+".escapement_records WHERE takeover").Scan(&n)
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return n
}
