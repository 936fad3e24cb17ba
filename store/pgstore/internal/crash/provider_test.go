package crash

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// charge is what a provider has done, as its file has it.
type charge struct {
	Provider string `json:"provider"` // keyed, or asked
	Key      string `json:"key"`
	Name     string `json:"name"`
	ID       string `json:"id"`
}

// providers are two services of somebody else's, which make charges: "keyed"
// knows keys, and makes one charge for each; "asked" makes one for each call,
// and says of which it has made, by the reference that was given with it. They
// live in the process of the test, and write each charge to a file before they
// answer.
type providers struct {
	url  string
	file string

	mu    sync.Mutex
	log   *os.File
	calls map[string]int    // by provider and name
	found map[string]bool   // of asked: names of charges that were asked for and are there
	known map[string]charge // by provider and key
	made  int
}

func newProviders(t *testing.T) *providers {
	t.Helper()
	p := &providers{file: filepath.Join(t.TempDir(), "charges"), calls: map[string]int{}, found: map[string]bool{}, known: map[string]charge{}}
	var err error
	if p.log, err = os.OpenFile(p.file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /{provider}", p.charge)
	mux.HandleFunc("GET /asked/{key}", p.status)
	s := httptest.NewServer(mux)
	p.url = s.URL
	t.Cleanup(func() {
		s.Close()
		if err := p.log.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func (p *providers) charge(w http.ResponseWriter, r *http.Request) {
	var c charge
	if err := json.NewDecoder(r.Body).Decode(&c); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	c.Provider, c.Key = r.PathValue("provider"), r.Header.Get("Idempotency-Key")
	<-time.After(rand.N(10 * time.Millisecond)) // whoever called may be gone by now
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls[c.Provider+" "+c.Name]++
	known, ok := p.known["keyed "+c.Key]
	if c.Provider == "keyed" && ok {
		c = known
	} else if err := p.make(&c); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	_ = json.NewEncoder(w).Encode(c) // whoever called may be gone
}

// make makes a charge, durably.
func (p *providers) make(c *charge) error {
	p.made++
	c.ID = fmt.Sprintf("%s-%d", c.Provider, p.made)
	text, err := json.Marshal(c)
	if err != nil {
		return err
	}
	if _, err := p.log.Write(append(text, '\n')); err != nil {
		return err
	}
	p.known[c.Provider+" "+c.Key] = *c
	return p.log.Sync()
}

func (p *providers) status(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c, ok := p.known["asked "+r.PathValue("key")]
	if !ok {
		http.NotFound(w, r)
		return
	}
	p.found[c.Name] = true
	_ = json.NewEncoder(w).Encode(c) // whoever called may be gone
}

// charges reads the file.
func (p *providers) charges() ([]charge, error) {
	f, err := os.Open(p.file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var all []charge
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var c charge
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, nil
}

// of returns the ids of a provider's charges, by name.
func (p *providers) of(t *testing.T, provider string) map[string][]string {
	t.Helper()
	all, err := p.charges()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]string{}
	for _, c := range all {
		if c.Provider == provider {
			out[c.Name] = append(out[c.Name], c.ID)
		}
	}
	return out
}

// called returns how many calls of a name the provider has had.
func (p *providers) called(provider, name string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.calls[provider+" "+name]
}

// asked reports whether a charge was found by its status.
func (p *providers) asked(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.found[name]
}
