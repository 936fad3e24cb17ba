package redisstore

import (
	"context"
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"errors"
	"slices"
	"time"

	"github.com/redis/rueidis"
)

//go:embed lua/now.lua
var nowLua string

//go:embed lua/record.lua
var recordLua string

//go:embed lua/reserve.lua
var reserveLua string

//go:embed lua/extend.lua
var extendLua string

//go:embed lua/end.lua
var endLua string

//go:embed lua/void.lua
var voidLua string

//go:embed lua/step.lua
var stepLua string

//go:embed lua/settle.lua
var settleLua string

//go:embed lua/forget.lua
var forgetLua string

//go:embed lua/expire.lua
var expireLua string

//go:embed lua/lookup.lua
var lookupLua string

// script is one decision: a text that Redis runs, known to it by its SHA-1.
type script struct {
	name string // for errors
	text string
	sha  string
	// wrote says of a reply whether the script wrote what replicas should have;
	// nil if nobody waits for that.
	wrote func(rueidis.RedisMessage) bool
}

func newScript(name string, parts ...string) *script {
	text := ""
	for _, p := range parts {
		text += p
	}
	sum := sha1.Sum([]byte(text))
	return &script{name: name, text: text, sha: hex.EncodeToString(sum[:])}
}

var (
	claimScript  = newScript("reserve", admitLua...)
	extendScript = newScript("extend", nowLua, recordLua, extendLua)
	endScript    = newScript("end", nowLua, recordLua, endLua)
	voidScript   = newScript("void", nowLua, recordLua, voidLua)
	stepScript   = newScript("save step", nowLua, recordLua, stepLua)
	settleScript = newScript("settle", nowLua, recordLua, settleLua)
	forgetScript = newScript("forget", nowLua, recordLua, forgetLua)
	expireScript = newScript("sweep", nowLua, recordLua, expireLua)
	lookupScript = newScript("look up", nowLua, recordLua, lookupLua)
)

// doer is a rueidis client, or one of its connections.
type doer interface {
	B() rueidis.Builder
	Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult
}

func evalsha(c doer, sc *script, keys, args []string) rueidis.Completed {
	return c.B().Evalsha().Sha1(sc.sha).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build()
}

// run runs a script once. A server that does not know it has done nothing;
// EVAL then goes to the server of the same key, runs it and lets it be known
// there.
func run(ctx context.Context, c doer, sc *script, keys, args []string) rueidis.RedisResult {
	res := c.Do(ctx, evalsha(c, sc, keys, args))
	if unknown(res.Error()) {
		res = c.Do(ctx, c.B().Eval().Script(sc.text).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build())
	}
	return res
}

func unknown(err error) bool {
	re, ok := rueidis.IsRedisErr(err)
	return ok && re.IsNoScript()
}

// call is one of several runs of a script in a pipeline.
type call struct {
	keys, args []string
}

// runAll runs a script for all calls in one pipeline, and again those that a
// server did not know.
func (s *Store) runAll(ctx context.Context, sc *script, calls []call) []rueidis.RedisResult {
	cmds := make([]rueidis.Completed, len(calls))
	for i, c := range calls {
		cmds[i] = evalsha(s.client, sc, c.keys, c.args)
	}
	res := s.client.DoMulti(ctx, cmds...)
	for i := range res {
		if err := res[i].Error(); unknown(err) || othersEnd(ctx, err) {
			res[i] = insist(ctx, func() rueidis.RedisResult { return run(ctx, s.client, sc, calls[i].keys, calls[i].args) })
		}
	}
	return res
}

// othersEnd reports whether a call failed because another's context ended: the
// client connects in the name of the first call that needs the connection, and
// those that wait for it fail with that one. Nothing was sent then.
func othersEnd(ctx context.Context, err error) bool {
	return err != nil && ctx.Err() == nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded))
}

// insist calls do again while others' contexts end.
func insist(ctx context.Context, do func() rueidis.RedisResult) rueidis.RedisResult {
	res := do()
	for range 8 {
		if !othersEnd(ctx, res.Error()) {
			break
		}
		res = do()
	}
	return res
}

// repeats is how often a call that may be repeated is sent, and how long it
// waits before each time.
var repeats = [...]time.Duration{0, 2 * time.Millisecond, 20 * time.Millisecond, 100 * time.Millisecond}

// repeat runs a script that may be repeated (R3, F2), as long as what goes
// wrong may pass and ctx has not ended. Twice says that an earlier copy may
// still arrive.
func (s *Store) repeat(ctx context.Context, sc *script, key string, args ...string) (msg rueidis.RedisMessage, twice bool, err error) {
	keys := []string{key}
	for i, wait := range repeats {
		if i > 0 {
			t := time.NewTimer(wait)
			select {
			case <-t.C:
			case <-ctx.Done():
				t.Stop()
				return msg, twice, explain(sc.name, err)
			}
		}
		msg, err = s.once(ctx, sc, keys, args)
		if err == nil {
			return msg, twice, nil
		}
		if !passing(err) || ctx.Err() != nil {
			break
		}
		twice = twice || sent(err)
	}
	return msg, twice, explain(sc.name, err)
}

// once runs a script once. It ends with ctx.
func (s *Store) once(ctx context.Context, sc *script, keys, args []string) (msg rueidis.RedisMessage, err error) {
	args[0] = s.clock()
	now := s.pulse.now()
	if s.pulse.recent(now) {
		msg, err = s.send(ctx, sc, keys, args)
	} else {
		keys, args := slices.Clone(keys), slices.Clone(args) // the call may outlive this one
		msg, err = promptly(ctx, func() (rueidis.RedisMessage, error) { return s.send(ctx, sc, keys, args) })
	}
	if err == nil {
		s.pulse.felt(now)
	}
	return msg, err
}

// send is once, but may wait longer than ctx for a connection.
func (s *Store) send(ctx context.Context, sc *script, keys, args []string) (rueidis.RedisMessage, error) {
	if s.confirm.replicas > 0 && sc.wrote != nil {
		return s.runConfirmed(ctx, sc, slices.Clone(keys), slices.Clone(args))
	}
	return insist(ctx, func() rueidis.RedisResult { return run(ctx, s.client, sc, keys, args) }).ToMessage()
}
