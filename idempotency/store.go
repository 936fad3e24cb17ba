package idempotency

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"
)

// Errors of stores. Test for them with errors.Is. Any other error of a store
// means that it could not be reached or could not do its work; whether state
// changed is then not known.
var (
	// ErrFenced: the reservation is not, or no longer, the key's; nothing
	// changed.
	ErrFenced = errors.New("idempotency: the reservation no longer owns its key")
	// ErrNotFound: there is no such record or setting; nothing changed.
	ErrNotFound = errors.New("idempotency: not found")
	// ErrConflict: the record or setting is not the one that was seen; nothing
	// changed. Look again and decide anew.
	ErrConflict = errors.New("idempotency: changed since it was seen")
	// ErrLive: an attempt may still be under way; nothing changed. Wait for
	// the end of its lease and quiet time.
	ErrLive = errors.New("idempotency: an attempt may still be under way")
	// ErrStep: the step was saved before and said something else, or would be
	// one too many; nothing changed.
	ErrStep = errors.New("idempotency: the step contradicts the record, or is one too many")
	// ErrFull: the store is bounded and full of records that it must not
	// forget; nothing changed.
	ErrFull = errors.New("idempotency: the store is full")
	// ErrNotSent: the store is known to be out of reach, and the call was not
	// even sent; nothing changed, and nothing will. A claim need not be voided.
	ErrNotSent = errors.New("idempotency: not sent to the store")
)

// Store keeps records. This is all that somebody's own store must write. Its
// methods may be called concurrently; each is atomic. The time is the store's.
//
// A context that ends means that the caller does not wait any longer; the call
// may still take effect.
type Store interface {
	// Reserve applies [Decide]. An error means that nothing may be executed,
	// though the claim may be in the store: its owner must never be claimed
	// again, and the caller calls Void until it is answered (R10).
	//
	// A store that sends a claim again inside one call, because a reply was
	// lost, says so in the Reservation (Repeated). Where the answer is not
	// Started it voids the claim itself before it returns: a copy that arrives
	// when the key is free again must not claim it for nobody (R12).
	Reserve(ctx context.Context, c Claim) (Answer, error)
	// Extend applies [Renew] and returns the end of the lease, which is never
	// earlier than before. ErrFenced: stop (F1).
	Extend(ctx context.Context, r Reservation, lease time.Duration) (time.Time, error)
	// End applies [Finish]. ErrFenced: the record's state is the answer (F1).
	// The same End may be repeated (F2).
	End(ctx context.Context, r Reservation, e Ending) error
	// Void applies [Withdraw]: whatever the owner holds of k ends as NotRun,
	// and a late Reserve of it changes nothing.
	Void(ctx context.Context, k Key, o Owner) error
	// Lookup returns the record as it is at the store's time, or ErrNotFound
	// if there is none or if it has expired.
	Lookup(ctx context.Context, k Key) (Record, error)
}

// StepStore is implemented by stores that keep steps.
type StepStore interface {
	// SaveStep applies [PutStep]. ErrFenced: stop. ErrStep: see there.
	SaveStep(ctx context.Context, r Reservation, s Step) error
}

// Filter selects records. Its zero value selects all.
type Filter struct {
	Status Status        // "" is any
	Tenant string        // "" is any
	Route  string        // "" is any
	Older  time.Duration // only records last changed at least this long ago
	Cursor string        // Page.Next of the page before; "" is the first page
	Limit  int           // records per page; see PageSize
}

// Validate reports every fault of f at once, but that of a cursor, whose form
// is the store's: a status that there is none, a limit out of bounds.
func (f Filter) Validate() error {
	var errs []error
	switch f.Status {
	case "", StatusFree, StatusInProgress, StatusUnknown, StatusSucceeded, StatusFailedFinal, StatusFailedRetryable, StatusArchived:
	default:
		errs = append(errs, fmt.Errorf("idempotency: list: there is no status %q: want in_progress, unknown, succeeded, failed_final, failed_retryable or archived", f.Status))
	}
	if _, err := PageSize(f.Limit); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Selects reports whether f selects r as it is at r.AsOf (see [View]), whatever
// the cursor says.
func (f Filter) Selects(r Record) bool {
	return (f.Status == "" || f.Status == r.Status()) &&
		(f.Tenant == "" || f.Tenant == r.Key.Tenant) &&
		(f.Route == "" || f.Route == r.Origin.Route) &&
		(f.Older <= 0 || r.AsOf.Sub(r.Updated) >= f.Older)
}

// Bounds of a page of records or of audit entries.
const (
	DefaultPage = 100
	MaxPage     = 1000
)

// PageSize is how many records or entries a page with the given limit has at
// most: DefaultPage for 0. A limit below 0 or over MaxPage is an error.
func PageSize(limit int) (int, error) {
	if limit < 0 || limit > MaxPage {
		return 0, fmt.Errorf("idempotency: a page's limit is %d: want 1 to %d, or 0 for %d", limit, MaxPage, DefaultPage)
	}
	return cmp.Or(limit, DefaultPage), nil
}

// Page is one page of a list.
type Page struct {
	// Records are without payloads and steps' answers; their order is stable
	// and not specified. A page may have fewer records than the limit, and
	// none, though there is a next one.
	Records []Record
	// Next is "" on the last page.
	Next string
}

// Keeper is implemented by stores whose records can be listed and swept.
type Keeper interface {
	// Sweep removes or shrinks at most limit records whose time has come (E1),
	// and returns how many. It may be called by several nodes at once.
	Sweep(ctx context.Context, limit int) (removed int, err error)
	// List returns one page of the live records.
	List(ctx context.Context, f Filter) (Page, error)
	// Settle applies [SettleBy]: an operator's answer. ErrNotFound,
	// ErrConflict, ErrLive.
	Settle(ctx context.Context, k Key, seen Revision, r Result) error
	// Forget applies [ForgetBy]: an operator's release; the next request runs.
	// ErrNotFound, ErrConflict, ErrLive.
	Forget(ctx context.Context, k Key, seen Revision) error
}

// AuditEntry is one change made by a person. Entries are only ever appended.
type AuditEntry struct {
	// Seq and At are given by the store: its order and its time.
	Seq int64
	At  time.Time

	Who    string // who did it
	What   string // such as "settle"
	On     string // what it was done to
	Before string
	After  string
	Why    string
}

// MaxSetting is the greatest size of a setting's value, in bytes.
const MaxSetting = 64 << 10

// Settings is implemented by stores that keep small shared facts (the secret,
// the profile, plans) and the audit log.
type Settings interface {
	// Get returns the value and its version, which is 1 or more. ErrNotFound.
	Get(ctx context.Context, name string) (value []byte, version int64, err error)
	// PutIf writes the value if its version is still the given one; 0 means
	// that it must not exist. ErrConflict. Values are at most MaxSetting.
	PutIf(ctx context.Context, name string, value []byte, version int64) error
	// Append adds an entry to the audit log.
	Append(ctx context.Context, e AuditEntry) error
	// Audit returns entries with a Seq greater than after, in order, at most as
	// many as PageSize says of limit.
	Audit(ctx context.Context, after int64, limit int) ([]AuditEntry, error)
}
