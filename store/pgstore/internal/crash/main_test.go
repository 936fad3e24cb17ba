package crash

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/escapement-dev/escapement/internal/pgserver"
)

func TestMain(m *testing.M) {
	if s := os.Getenv(programVar); s != "" {
		os.Exit(program(s))
	}
	status := m.Run()
	if err := pgserver.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		status = max(status, 1)
	}
	if status == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			status = 1
		}
	}
	os.Exit(status)
}

// patience bounds every wait for something that must happen.
const patience = 60 * time.Second

func soak() bool { return os.Getenv("ESCAPEMENT_SOAK") == "1" }

// length is how long a campaign is: short, or long in soak.
func length(short, long int) int {
	if soak() {
		return long
	}
	return short
}

// seed is ESCAPEMENT_SEED, or a fresh one.
func seed(t *testing.T) uint64 {
	t.Helper()
	s := uint64(time.Now().UnixNano())
	if v := os.Getenv("ESCAPEMENT_SEED"); v != "" {
		var err error
		if s, err = strconv.ParseUint(v, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	fmt.Printf("%s: ESCAPEMENT_SEED=%d\n", t.Name(), s)
	return s
}
