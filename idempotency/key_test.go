package idempotency_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/escapement-dev/escapement/idempotency"
)

const testSecret = "0123456789abcdef"

func newHasher(t testing.TB, secret string) *idempotency.Hasher {
	t.Helper()
	h, err := idempotency.NewHasher([]byte(secret))
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func mustKey(t testing.TB, h *idempotency.Hasher, s idempotency.Scope, client string) idempotency.Key {
	t.Helper()
	k, err := h.Key(s, client)
	if err != nil {
		t.Fatal(err)
	}
	if k.ID.IsZero() || k.Tenant != s.Tenant {
		t.Fatalf("Key(%q, %q) = %+v: want an ID and the tenant", s, client, k)
	}
	return k
}

// TestFault04TenantsShareNoKey: where the client's key alone is the primary
// key, one tenant collides with another, or reads its answer.
func TestFault04TenantsShareNoKey(t *testing.T) {
	h := newHasher(t, testSecret)
	operation := []idempotency.Part{{Name: "method", Value: "POST"}, {Name: "path", Value: "/v1/orders"}}
	a := mustKey(t, h, idempotency.Scope{Tenant: "a", Parts: operation}, "order-1")
	b := mustKey(t, h, idempotency.Scope{Tenant: "b", Parts: operation}, "order-1")
	if a.ID == b.ID {
		t.Error("two tenants with one client's key have one ID")
	}
	if again := mustKey(t, h, idempotency.Scope{Tenant: "a", Parts: operation}, "order-1"); again != a {
		t.Error("the same scope and key have two IDs")
	}
}

// TestHasherBorders: what is on one side of a border never counts on the other.
func TestHasherBorders(t *testing.T) {
	h := newHasher(t, testSecret)
	part := func(kv ...string) (parts []idempotency.Part) {
		for i := 0; i < len(kv); i += 2 {
			parts = append(parts, idempotency.Part{Name: kv[i], Value: kv[i+1]})
		}
		return parts
	}
	seen := map[idempotency.ID]string{}
	for _, c := range []struct {
		tenant string
		parts  []idempotency.Part
		client string
	}{
		{"ab", nil, "c"},
		{"a", nil, "bc"},
		{"a", part("b", ""), "c"},
		{"a", part("", "b"), "c"},
		{"a", part("", ""), "bc"},
		{"a", part("b", "c"), "d"},
		{"a", part("bc", ""), "d"},
		{"a", part("b", "c", "d", "e"), "f"},
		{"a", part("d", "e", "b", "c"), "f"}, // the order of parts counts
		{"a", part("b", "c", "d", "e", "", ""), "f"},
		{"a", part("b", "cd", "", "e"), "f"},
		{"a\x00b", nil, "c"},
		{"a", nil, "b\x7ec"},
		{"a\x00\x00\x00\x00\x00\x00\x00\x01b", nil, "c"},
		{"A", nil, "bc"},
	} {
		name := fmt.Sprintf("%q %q %q", c.tenant, c.parts, c.client)
		k := mustKey(t, h, idempotency.Scope{Tenant: c.tenant, Parts: c.parts}, c.client)
		if other, ok := seen[k.ID]; ok {
			t.Errorf("%s and %s have one ID", name, other)
		}
		seen[k.ID] = name
	}
}

// TestHasherApart: scopes over a tiny alphabet, so that many would collide if
// borders did not count, have one ID only if they are equal.
func TestHasherApart(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	h := newHasher(t, testSecret)
	text := func(least int) string {
		return strings.Repeat("a", least+rng.IntN(3)) + strings.Repeat("b", rng.IntN(2))
	}
	type input struct {
		scope  idempotency.Scope
		client string
	}
	seen := map[idempotency.ID]input{}
	repeats := 0
	for range 20_000 {
		in := input{scope: idempotency.Scope{Tenant: text(1)}, client: text(1)}
		for range rng.IntN(3) {
			in.scope.Parts = append(in.scope.Parts, idempotency.Part{Name: text(0), Value: text(0)})
		}
		id := mustKey(t, h, in.scope, in.client).ID
		if other, ok := seen[id]; ok {
			repeats++
			if !reflect.DeepEqual(in, other) {
				t.Fatalf("seed %d: %q and %q have one ID", seed, in, other)
			}
		}
		seen[id] = in
	}
	if repeats == 0 {
		t.Errorf("seed %d: no scope came twice: the alphabet is too large", seed)
	}
}

func TestHasherSecret(t *testing.T) {
	if _, err := idempotency.NewHasher([]byte(testSecret[:15])); err == nil {
		t.Error("a secret of 15 bytes is taken")
	}
	if _, err := idempotency.NewHasher(nil); err == nil {
		t.Error("no secret is taken")
	}
	scope := idempotency.Scope{Tenant: "a"}
	a := mustKey(t, newHasher(t, testSecret), scope, "k")
	if b := mustKey(t, newHasher(t, testSecret+"x"), scope, "k"); a == b {
		t.Error("two secrets give one ID")
	}
	secret := []byte(testSecret)
	h, err := idempotency.NewHasher(secret)
	if err != nil {
		t.Fatal(err)
	}
	secret[0] = 'x'
	if mustKey(t, h, scope, "k") != a {
		t.Error("a change of the caller's slice changed the secret")
	}
	for _, h := range []*idempotency.Hasher{nil, {}} {
		if _, err := h.Key(scope, "k"); err == nil {
			t.Error("a hasher without a secret made a key")
		}
	}
}

func TestHasherRefuses(t *testing.T) {
	h := newHasher(t, testSecret)
	parts := []idempotency.Part{{Name: "method", Value: "POST"}}
	if k, err := h.Key(idempotency.Scope{Parts: parts}, "k"); !errors.Is(err, idempotency.ErrNoTenant) || k != (idempotency.Key{}) {
		t.Errorf("without a tenant: %v, %v; want no key and ErrNoTenant", k, err)
	}
	for _, client := range []string{"", "a b", strings.Repeat("a", 256)} {
		k, err := h.Key(idempotency.Scope{Tenant: "a", Parts: parts}, client)
		if err == nil || errors.Is(err, idempotency.ErrNoTenant) || k != (idempotency.Key{}) {
			t.Errorf("%q: %v, %v; want no key and what is wrong with it", client, k, err)
		}
	}
}

func TestValidateKey(t *testing.T) {
	for _, ok := range []string{"a", "!", "~", strings.Repeat("a", 255), "8e03978e-40d5-43dd-bc93-6894a57f9324", `"quoted"`, "a,b;c"} {
		if err := idempotency.ValidateKey(ok); err != nil {
			t.Errorf("%q: %v", ok, err)
		}
	}
	for bad, want := range map[string]string{
		"":                          "empty",
		strings.Repeat("a", 256):    "256 bytes",
		strings.Repeat("a", 64<<10): "65536 bytes",
		"a\x00":                     "0x00 at position 2",
		"a\nb":                      "0x0a at position 2",
		"\r":                        "0x0d at position 1",
		"a\tb":                      "0x09 at position 2",
		" a":                        "0x20 at position 1",
		"a ":                        "0x20 at position 2",
		"key-é":                     "0xc3 at position 5",
		"\xff":                      "0xff at position 1",
		"ab\x7f":                    "0x7f at position 3",
	} {
		err := idempotency.ValidateKey(bad)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20q: %v; want a fault that says %q", bad, err, want)
		}
	}
	if err := idempotency.ValidateKey("secret-key-\x00"); err == nil || strings.Contains(err.Error(), "secret-key") {
		t.Errorf("the fault repeats the key: %v", err)
	}
}

func TestParseID(t *testing.T) {
	id := mustKey(t, newHasher(t, testSecret), idempotency.Scope{Tenant: "a"}, "k").ID
	if got, err := idempotency.ParseID(id.String()); err != nil || got != id {
		t.Errorf("ParseID(%s) = %s, %v", id, got, err)
	}
	if got, err := idempotency.ParseID(strings.ToUpper(id.String())); err != nil || got != id {
		t.Errorf("in capitals: %s, %v", got, err)
	}
	for _, bad := range []string{"", "x", id.String()[1:], id.String()[2:], id.String() + "00", "g" + id.String()[1:], " " + id.String()[1:]} {
		if got, err := idempotency.ParseID(bad); err == nil || !got.IsZero() {
			t.Errorf("ParseID(%q) = %s, %v; want no ID and an error", bad, got, err)
		}
	}

	type holder struct{ ID idempotency.ID }
	b, err := json.Marshal(holder{id})
	if err != nil || string(b) != `{"ID":"`+id.String()+`"}` {
		t.Fatalf("as JSON: %s, %v", b, err)
	}
	var h holder
	if err := json.Unmarshal(b, &h); err != nil || h.ID != id {
		t.Errorf("from JSON: %s, %v", h.ID, err)
	}
	if err := json.Unmarshal([]byte(`{"ID":"00"}`), &h); err == nil || h.ID != id {
		t.Errorf("from broken JSON: %s, %v; want an error and no change", h.ID, err)
	}
}

func TestPseudonym(t *testing.T) {
	h := newHasher(t, testSecret)
	seen := map[string]string{}
	for _, c := range [][2]string{{"cookie", "v"}, {"api_key", "v"}, {"cookie", "w"}, {"cookiev", ""}, {"", "cookiev"}, {"cooki", "ev"}} {
		p := h.Pseudonym(c[0], c[1])
		if len(p) != 32 || strings.Trim(p, "0123456789abcdef") != "" {
			t.Errorf("%q: %q is not 32 hexadecimal digits", c, p)
		}
		if other, ok := seen[p]; ok {
			t.Errorf("%q and %s have one pseudonym", c, other)
		}
		seen[p] = fmt.Sprintf("%q", c)
		if h.Pseudonym(c[0], c[1]) != p {
			t.Errorf("%q has two pseudonyms", c)
		}
	}
	if h.Pseudonym("cookie", "v") == newHasher(t, testSecret+"x").Pseudonym("cookie", "v") {
		t.Error("two secrets give one pseudonym")
	}
	// A key's hash and a pseudonym of the same parts are in domains of their own.
	if id := mustKey(t, h, idempotency.Scope{Tenant: "cookie"}, "v").ID.String(); strings.HasPrefix(id, h.Pseudonym("cookie", "v")) {
		t.Error("a pseudonym is a piece of a key's ID")
	}
}

func TestOwner(t *testing.T) {
	a, b := idempotency.NewOwner(), idempotency.NewOwner()
	if a == b || a.IsZero() || len(a.String()) != 32 {
		t.Errorf("two owners: %s, %s; want two different ones of 32 digits", a, b)
	}
	if !(idempotency.Owner{}).IsZero() {
		t.Error("the zero Owner is somebody")
	}
}

func ExampleHasher() {
	hasher, err := idempotency.NewHasher([]byte("sixteen bytes or more, kept secret"))
	if err != nil {
		fmt.Println(err)
		return
	}
	operation := []idempotency.Part{{Name: "method", Value: "POST"}, {Name: "path", Value: "/v1/orders"}}
	ada, _ := hasher.Key(idempotency.Scope{Tenant: "ada", Parts: operation}, "order-1")
	bob, _ := hasher.Key(idempotency.Scope{Tenant: "bob", Parts: operation}, "order-1")
	fmt.Println(ada.ID == bob.ID)

	_, err = hasher.Key(idempotency.Scope{Parts: operation}, "order-1")
	fmt.Println(err)
	// Output:
	// false
	// idempotency: a key's scope must say who is calling, and the tenant is empty
}
