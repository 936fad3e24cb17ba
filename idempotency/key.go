package idempotency

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
)

// MaxKey is the greatest length of a client's key, in bytes.
const MaxKey = 255

// ID identifies a key in every store: a keyed hash of its scope and of the
// client's key. Nothing of either can be read from it.
type ID [sha256.Size]byte

// String returns the ID as 64 hexadecimal digits.
func (id ID) String() string { return hex.EncodeToString(id[:]) }

// IsZero reports whether id is the zero value, which names no key.
func (id ID) IsZero() bool { return id == ID{} }

// MarshalText implements encoding.TextMarshaler: 64 hexadecimal digits.
func (id ID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (id *ID) UnmarshalText(text []byte) error {
	v, err := ParseID(string(text))
	if err == nil {
		*id = v
	}
	return err
}

// ParseID reads what [ID.String] wrote.
func ParseID(s string) (ID, error) {
	var id ID
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != len(id) {
		return ID{}, fmt.Errorf("idempotency: %q is not a key's id: want %d hexadecimal digits", s, 2*len(id))
	}
	copy(id[:], b)
	return id, nil
}

// Key names one operation of one tenant.
type Key struct {
	// ID is the key's identity. Two keys are the same if their IDs are.
	ID ID
	// Tenant says whose key it is. It is part of the ID; it stands here so that
	// a store can list, and place, a tenant's keys. It is never empty in a
	// claim. A tenant that is a secret is hashed before it comes here.
	Tenant string
}

// Part is one named part of a scope beside the tenant, such as
// {"method", "POST"}.
type Part struct{ Name, Value string }

// Scope says within what a client's key is unique. A scope without a tenant is
// refused: there is no default one.
type Scope struct {
	Tenant string
	Parts  []Part
}

// Hasher makes keys. It is safe for concurrent use. The zero value has no
// secret and makes none; see [NewHasher].
type Hasher struct{ secret []byte }

// MinSecret is the least length of a hasher's secret, in bytes.
const MinSecret = 16

// NewHasher returns a hasher with the given secret. All nodes that share a
// store must have the same one; a changed secret finds no earlier key.
func NewHasher(secret []byte) (*Hasher, error) {
	if len(secret) < MinSecret {
		return nil, fmt.Errorf("idempotency: the secret has %d bytes, want at least %d", len(secret), MinSecret)
	}
	return &Hasher{secret: append([]byte(nil), secret...)}, nil
}

// ErrNoTenant is returned by Hasher.Key for a scope without a tenant.
var ErrNoTenant = errors.New("idempotency: a key's scope must say who is calling, and the tenant is empty")

// Key hashes scope and the client's key: HMAC-SHA-256 over the length-prefixed
// parts, so that no two different scopes give one input (RFC 2104).
//
// It returns ErrNoTenant, or an error that says what is wrong with the
// client's key (see [ValidateKey]).
func (h *Hasher) Key(scope Scope, client string) (Key, error) {
	if scope.Tenant == "" {
		return Key{}, ErrNoTenant
	}
	if err := ValidateKey(client); err != nil {
		return Key{}, err
	}
	if h == nil || len(h.secret) == 0 {
		return Key{}, errors.New("idempotency: the hasher has no secret: use NewHasher")
	}
	parts := make([]string, 0, 3+2*len(scope.Parts))
	parts = append(parts, scope.Tenant)
	for _, p := range scope.Parts {
		parts = append(parts, p.Name, p.Value)
	}
	parts = append(parts, client)
	return Key{ID: h.sum("escapement key 1", parts), Tenant: scope.Tenant}, nil
}

// Pseudonym hashes a value that must not be stored as it is (a cookie, an API
// key) to 32 hexadecimal digits. Equal values with equal labels have equal
// pseudonyms.
func (h *Hasher) Pseudonym(label, value string) string {
	sum := h.sum("escapement pseudonym 1", []string{label, value})
	return hex.EncodeToString(sum[:16])
}

func (h *Hasher) sum(domain string, parts []string) ID {
	m := hmac.New(sha256.New, h.secret)
	var n [8]byte
	write := func(s string) {
		binary.BigEndian.PutUint64(n[:], uint64(len(s)))
		m.Write(n[:])
		m.Write([]byte(s))
	}
	write(domain)
	binary.BigEndian.PutUint64(n[:], uint64(len(parts)))
	m.Write(n[:])
	for _, p := range parts {
		write(p)
	}
	var id ID
	m.Sum(id[:0])
	return id
}

// ValidateKey reports why client cannot be a key: a key is 1 to MaxKey bytes
// of visible ASCII (0x21 to 0x7E). The error does not repeat the key.
func ValidateKey(client string) error {
	if client == "" {
		return errors.New("the key is empty: want 1 to 255 visible ASCII characters")
	}
	if len(client) > MaxKey {
		return fmt.Errorf("the key has %d bytes: want at most %d", len(client), MaxKey)
	}
	for i := range len(client) {
		if c := client[i]; c < 0x21 || c > 0x7e {
			return fmt.Errorf("the key has the byte 0x%02x at position %d: want visible ASCII (0x21 to 0x7e) only", c, i+1)
		}
	}
	return nil
}

// Owner identifies one attempt: 128 random bits, fresh for every attempt, never
// a node's name. The zero Owner is nobody.
type Owner [16]byte

// NewOwner returns a fresh owner from crypto/rand.
func NewOwner() Owner {
	var o Owner
	rand.Read(o[:]) // never fails (documented since Go 1.24)
	return o
}

// String returns the owner as 32 hexadecimal digits.
func (o Owner) String() string { return hex.EncodeToString(o[:]) }

// IsZero reports whether o is nobody.
func (o Owner) IsZero() bool { return o == Owner{} }

// Token is the fencing number of a reservation. Within the life of a record
// tokens only grow.
type Token int64

// Revision changes whenever a record is written.
type Revision int64
