package pgstore

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/escapement-dev/escapement/internal/pgserver"
)

func TestMain(m *testing.M) {
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
