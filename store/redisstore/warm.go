package redisstore

import (
	"context"

	"github.com/escapement-dev/escapement/ratelimit"
)

// Warm charges to the local store what was admitted by a call that went past
// the guard, such as [Store.Admit]; see [Guard].
func (g *Guard) Warm(ctx context.Context, charges []ratelimit.Charge) { g.warm(ctx, charges) }
