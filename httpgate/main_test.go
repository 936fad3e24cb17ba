package httpgate

import (
	"testing"

	"github.com/escapement-dev/escapement/internal/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }
