package idempotency

import "crypto/sha256"

// Fingerprint is a hash of what a request means.
type Fingerprint struct {
	Tag string
	Sum [sha256.Size]byte
}
