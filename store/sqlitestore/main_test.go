package sqlitestore

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// childVar names the variable that makes the test binary a child process.
const childVar = "ESCAPEMENT_SQLITESTORE_CHILD"

func TestMain(m *testing.M) {
	if what := os.Getenv(childVar); what != "" {
		os.Exit(child(what))
	}
	goleak.VerifyTestMain(m)
}
