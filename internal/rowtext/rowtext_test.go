package rowtext

import (
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
)

func TestWhatIsWrittenIsRead(t *testing.T) {
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 0))
	for range 200 {
		var ps []idempotency.Fingerprint
		var ms []idempotency.Mark
		var steps []idempotency.Step
		var text []string
		for i := range rnd.IntN(4) {
			p := idempotency.Fingerprint{Tag: []string{"json-1", "", "a tag with spaces", "%20 \x00\xff"}[rnd.IntN(4)]}
			m := idempotency.Mark{Until: time.UnixMicro(1 + rnd.Int64N(1<<52)).UTC()}
			for j := range p.Sum {
				p.Sum[j] = byte(rnd.Uint32())
			}
			for j := range m.Owner {
				m.Owner[j] = byte(rnd.Uint32())
			}
			ps, ms = append(ps, p), append(ms, m)
			s := idempotency.Step{Name: fmt.Sprintf("step %d", i), Done: i%2 == 0, ProviderKey: "k", Started: m.Until}
			if s.Done {
				s.ProviderID, s.Answer, s.Ended = "id", []byte{0, ' '}, m.Until.Add(time.Second)
			}
			steps = append(steps, s)
			ended := "" // no time
			if s.Done {
				ended = fmt.Sprint(s.Ended.UnixMicro())
			}
			text = append(text, fmt.Sprintf("%x %d %x %x %x %d %s", s.Name, 1-i%2, s.ProviderKey, s.ProviderID, s.Answer, s.Started.UnixMicro(), ended))
		}
		if got, err := ReadPrints(Prints(ps)); err != nil || !reflect.DeepEqual(got, ps) {
			t.Fatalf("seed %d: fingerprints: %v, %v; want %v", seed, got, err, ps)
		}
		if got, err := ReadMarks(Marks(ms)); err != nil || !reflect.DeepEqual(got, ms) {
			t.Fatalf("seed %d: marks: %v, %v; want %v", seed, got, err, ms)
		}
		if got, err := ReadSteps(strings.Join(text, " "), strings.Clone); err != nil || !reflect.DeepEqual(got, steps) {
			t.Fatalf("seed %d: steps: %v, %v; want %v", seed, got, err, steps)
		}
	}
}

// The formats are stored: what an older version has written is read.
func TestStoredFormats(t *testing.T) {
	sum := strings.Repeat("ab", 32)
	owner := strings.Repeat("cd", 16)
	ps, err := ReadPrints(sum + " json-1 " + sum + " a%20b")
	if err != nil || len(ps) != 2 || ps[1].Tag != "a b" || hex.EncodeToString(ps[0].Sum[:]) != sum {
		t.Errorf("fingerprints: %v, %v", ps, err)
	}
	if s := Prints(ps); s != sum+" json-1 "+sum+" a%20b" {
		t.Errorf("fingerprints are written as %q", s)
	}
	ms, err := ReadMarks(owner + " 1700000000000001")
	if err != nil || len(ms) != 1 || ms[0].Until.UnixMicro() != 1700000000000001 {
		t.Errorf("marks: %v, %v", ms, err)
	}
	if s := Marks(ms); s != owner+" 1700000000000001" {
		t.Errorf("marks are written as %q", s)
	}
}

func TestDamagedTexts(t *testing.T) {
	sum := strings.Repeat("ab", 32)
	for _, s := range []string{"x", sum, sum + " tag " + sum, sum[1:] + " tag", strings.Repeat("zz", 32) + " tag", sum + " %zz", sum + " tag "} {
		if ps, err := ReadPrints(s); err == nil {
			t.Errorf("fingerprints %q are read as %v", s, ps)
		}
	}
	owner := strings.Repeat("cd", 16)
	for _, s := range []string{"x", owner, owner + " soon", owner + " 1 " + owner} {
		if ms, err := ReadMarks(s); err == nil {
			t.Errorf("marks %q are read as %v", s, ms)
		}
	}
	for _, s := range []string{"x", "aa 2 aa aa aa 1 1", "aa 1 aa aa aa 1", "aa 1 aa aa aa x 1", "aa 1 aa aa aa 1 1 aa"} {
		if steps, err := ReadSteps(s, strings.Clone); err == nil {
			t.Errorf("steps %q are read as %v", s, steps)
		}
	}
	p := NewParser("-1 300 1")
	p.Duration()
	if err := p.End(); err == nil {
		t.Error("a negative duration is read")
	}
	p = NewParser("1 2")
	p.Int()
	if err := p.End(); err == nil {
		t.Error("a field that nobody reads is no fault")
	}
}
