package sqlitestore

import (
	"errors"
	"os"
	"testing"

	"github.com/escapement-dev/escapement/idempotency"
)

// A file that has lost its name takes nothing more: what was written to it
// would be lost with the process, and who opens the new file knows nothing of
// it. When it is back, everything goes on.
func TestFileMovedAway(t *testing.T) {
	for _, suffix := range []string{"", "-wal"} {
		t.Run("file"+suffix, func(t *testing.T) {
			ctx, path := t.Context(), newFile(t)
			s := open(t, path, Options{})
			ended := start(t, s, newClaim(newKey()))
			if err := s.End(ctx, ended, done("one")); err != nil {
				t.Fatal(err)
			}
			running := start(t, s, newClaim(newKey()))
			for _, replacement := range []bool{false, true} {
				if err := os.Rename(path+suffix, path+".away"); err != nil {
					t.Fatal(err)
				}
				if replacement {
					if err := os.WriteFile(path+suffix, nil, 0o600); err != nil {
						t.Fatal(err)
					}
				}
				_, err := s.Reserve(ctx, newClaim(newKey()))
				wantError(t, "Reserve", err, "moved, removed or replaced", "put it back")
				var e *Error
				if err := s.End(ctx, running, done("two")); !errors.As(err, &e) {
					t.Errorf("End: %v", err)
				}
				if _, _, err := s.Get(ctx, "x"); !errors.As(err, &e) {
					t.Errorf("Get: %v", err)
				}
				a, err := s.Reserve(ctx, newClaim(ended.Key))
				if err != nil || a.Outcome != idempotency.Replayed {
					t.Errorf("what was recorded before is still true: %v, %v", a.Outcome, err)
				}
				if err := os.Rename(path+".away", path+suffix); err != nil {
					t.Fatal(err)
				}
			}
			if err := s.End(ctx, running, done("two")); err != nil {
				t.Fatal(err)
			}
		})
	}
}
