package idempotency

import "crypto/sha256"

// Fingerprint is a hash of what a request means.
type Fingerprint struct {
	Tag string
	Sum [sha256.Size]byte
}

// PrintOptions says what of a request counts. The zero value is the default:
// method, path, query, content type and the whole body.
type PrintOptions struct {
	// Ignore names parts of a JSON body that do not count, as JSON pointers.
	Ignore []string
	// Only names the parts of a JSON body that count, as JSON pointers.
	Only []string
	// Headers names fields whose values count.
	Headers []string
	// NoQuery makes the query not count.
	NoQuery bool
}
