package redisstore

import (
	"context"
	_ "embed"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/escapement-dev/escapement/ratelimit"
)

//go:embed lua/limits.lua
var limitsLua string

//go:embed lua/take.lua
var takeLua string

//go:embed lua/read.lua
var readLua string

//go:embed lua/swap.lua
var swapLua string

//go:embed lua/return.lua
var returnLua string

var (
	takeScript   = newScript("take", nowLua, limitsLua, takeLua)
	readScript   = newScript("read limits", nowLua, readLua)
	swapScript   = newScript("write limits", nowLua, swapLua)
	returnScript = newScript("return", nowLua, returnLua)
)

var _ ratelimit.Store = (*Store)(nil)

// The codes of take.lua.
const (
	takeRefused = iota
	takeAllowed
	takeSlow
)

// Take implements ratelimit.Store. It is never sent twice: an error that is
// ErrUnavailable and not ErrNotExecuted says that the charges may have been
// taken.
//
// It is one round trip, but three for a subject whose rule has other numbers
// than when it was charged last, and where one rule and subject is charged
// twice in one call.
//
// In a Cluster, charges that lie apart (see Options.TenantOf) are asked one
// after the other, those of no tenant first, and given back if a later one
// refuses: until then others see them taken.
func (s *Store) Take(ctx context.Context, charges []ratelimit.Charge) (ratelimit.Decision, error) {
	if err := validCharges(ctx, charges); err != nil {
		return ratelimit.Decision{}, err
	}
	if len(charges) == 0 {
		return ratelimit.Decision{Allowed: true, Taken: new(ratelimit.Taken)}, nil
	}
	groups := s.groups(charges)
	if len(groups) == 1 {
		d, _, err := s.takeTogether(ctx, charges, groups[0].keys, true, false)
		return d, err
	}
	d, _, err := s.takeApart(ctx, charges, groups)
	return d, err
}

func validCharges(ctx context.Context, charges []ratelimit.Charge) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	for i := range charges {
		if err := charges[i].Validate(); err != nil {
			return fmt.Errorf("redisstore: charge %d: %w", i, err)
		}
	}
	return nil
}

// change is what is done to a limit: its state before and after, "" for none
// and for no change, "-" to delete it.
type change struct {
	key, old, fresh string
	used            time.Duration // how long the fresh state says something
}

// undone is the change that takes c back, at the time at which it was made.
func (c change) undone(now int64) change {
	back := change{key: c.key, old: c.fresh, fresh: c.old}
	if c.old == "" {
		back.fresh = "-"
	} else if st, err := readState(c.old); err == nil {
		_, back.used = packState(&st, now)
	}
	return back
}

// takeTogether charges what lies in one slot. Unless it is for real, it only
// looks. Where undo is set it also returns what takes the charges back, as far
// as that is known.
func (s *Store) takeTogether(ctx context.Context, charges []ratelimit.Charge, keys []string, real, undo bool) (ratelimit.Decision, []change, error) {
	if !distinct(keys) {
		return s.takeSlowly(ctx, charges, keys, real)
	}
	args := make([]string, 2, 2+len(charges))
	if real {
		args[1] = "1"
	}
	for i := range charges {
		args = append(args, packCharge(&charges[i]))
	}
	msg, err := s.once(ctx, takeScript, keys, args)
	if err != nil {
		return ratelimit.Decision{}, nil, explain(takeScript.name, err)
	}
	msgs, err := msg.ToArray()
	if err != nil || len(msgs) < 2 {
		return ratelimit.Decision{}, nil, errLimitForm
	}
	code, err := msgs[0].AsInt64()
	if err != nil {
		return ratelimit.Decision{}, nil, errLimitForm
	}
	if code == takeSlow {
		return s.takeSlowly(ctx, charges, keys, real)
	}
	now, err := msgs[1].AsInt64()
	if err != nil {
		return ratelimit.Decision{}, nil, errLimitForm
	}
	d, err := readDecision(charges, code == takeAllowed, now, msgs[2:], real)
	if err != nil || !undo || d.Taken == nil {
		return d, nil, err
	}
	return d, undoOf(charges, keys, now, msgs[2:]), nil
}

// readDecision works out, by the rule, the levels of a decision of the scripts
// from the states that it found.
func readDecision(charges []ratelimit.Charge, allowed bool, now int64, found []rueidis.RedisMessage, real bool) (d ratelimit.Decision, err error) {
	if len(found) != len(charges) {
		return d, errLimitForm
	}
	d.Allowed = allowed
	d.Levels = make([]ratelimit.Level, len(charges))
	var t *ratelimit.Taken
	if allowed && real {
		t = &ratelimit.Taken{
			Charges:  append([]ratelimit.Charge(nil), charges...),
			Receipts: make([]ratelimit.Receipt, len(charges)),
		}
		d.Taken = t
	}
	for i := range charges {
		c, l := &charges[i], &d.Levels[i]
		l.Rule, l.Subject = c.Rule, c.Subject
		packed := text(found[i])
		if c.Rule.Algorithm == ratelimit.SlidingWindowLog {
			seen, err := readLogSeen(packed)
			if err != nil {
				return ratelimit.Decision{}, err
			}
			seen.level(&c.Rule, c.Cost, now, t != nil, l)
			if t != nil && c.Cost > 0 {
				t.Receipts[i] = ratelimit.Receipt{At: now, Arrival: now, Since: seen.since, Returned: seen.returned}
			}
			continue
		}
		st, err := readState(packed)
		if err != nil {
			return ratelimit.Decision{}, err
		}
		if t != nil {
			c.Rule.TakeAt(&st, c.Cost, now, l)
			if c.Cost > 0 {
				t.Receipts[i] = st.Receipt(now)
			}
			if !l.Allowed {
				return ratelimit.Decision{}, fmt.Errorf("redisstore: script and rule disagree about %q: this is a fault of Escapement", c.Rule.Name)
			}
			continue
		}
		c.Rule.LookAt(&st, c.Cost, now, l)
		if l.Allowed { // what is left without the charge
			c.Rule.LookAt(&st, 0, now, l)
		}
	}
	return d, nil
}

// undoOf is what takes back charges of token buckets, which passed.
func undoOf(charges []ratelimit.Charge, keys []string, now int64, found []rueidis.RedisMessage) (list []change) {
	for i := range charges {
		c := &charges[i]
		if c.Cost == 0 || c.Rule.Algorithm != ratelimit.TokenBucket {
			continue
		}
		old := text(found[i])
		st, err := readState(old)
		if err != nil {
			continue // readDecision has said so
		}
		var l ratelimit.Level
		c.Rule.TakeAt(&st, c.Cost, now, &l)
		fresh, _ := packState(&st, now)
		list = append(list, change{key: keys[i], old: old, fresh: fresh}.undone(now))
	}
	return list
}

// swapTries is how often states are read and worked out again because others
// changed them meanwhile.
const swapTries = 32

// takeSlowly does by package ratelimit what the scripts do not: states that
// another rule wrote, clocks that stepped back, several charges of one bucket.
func (s *Store) takeSlowly(ctx context.Context, charges []ratelimit.Charge, keys []string, real bool) (ratelimit.Decision, []change, error) {
	names, at := unique(keys)
	for i := range charges {
		for j := range charges[:i] {
			if at[i] == at[j] && charges[i].Rule != charges[j].Rule {
				return ratelimit.Decision{}, nil, fmt.Errorf("redisstore: %w: %d and %d: rule %q with different numbers in one call", ratelimit.ErrCharge, j, i, charges[i].Rule.Name)
			}
		}
	}
	for range swapTries {
		packed, states, now, err := s.readStates(ctx, names)
		if err != nil {
			return ratelimit.Decision{}, nil, err
		}
		d, changed := work(charges, at, states, now, real)
		changes := make([]change, 0, len(names))
		for i := range names {
			c := change{key: names[i], old: packed[i]}
			if changed[i] {
				c.fresh, c.used = packState(&states[i], now)
			}
			changes = append(changes, c)
		}
		done, err := s.swap(ctx, changes)
		if err != nil {
			return ratelimit.Decision{}, nil, err
		}
		if done {
			var undo []change
			for _, c := range changes {
				if c.fresh != "" && d.Taken != nil { // what a refusal repairs stays
					undo = append(undo, c.undone(now))
				}
			}
			return d, undo, nil
		}
	}
	return ratelimit.Decision{}, nil, explain(takeScript.name, ErrBusy)
}

// work decides about the charges, of which the i-th belongs to the state
// at[i], and changes the states. Changed says which.
func work(charges []ratelimit.Charge, at []int, states []ratelimit.State, now int64, real bool) (d ratelimit.Decision, changed []bool) {
	changed = make([]bool, len(states))
	d.Allowed = true
	d.Levels = make([]ratelimit.Level, len(charges))
	costs := make([]int64, len(charges)) // of the charges up to here, of one state
	for i := range charges {
		c, l := &charges[i], &d.Levels[i]
		l.Rule, l.Subject = c.Rule, c.Subject
		if costs[i] = c.Cost; c.Cost > 0 {
			for j := range i {
				if at[j] == at[i] {
					costs[i] = min(costs[i], 1<<62) + min(charges[j].Cost, 1<<62)
				}
			}
		}
		c.Rule.LookAt(&states[at[i]], costs[i], now, l)
		d.Allowed = d.Allowed && l.Allowed
	}
	if !d.Allowed || !real {
		for i := range charges {
			c, l := &charges[i], &d.Levels[i]
			if l.Allowed {
				c.Rule.LookAt(&states[at[i]], 0, now, l)
			} else if real {
				// What a new rule, or a clock that stepped back, has to have written.
				changed[at[i]] = c.Rule.TakeAt(&states[at[i]], costs[i], now, l) || changed[at[i]]
			}
		}
		return d, changed
	}
	t := &ratelimit.Taken{Charges: append([]ratelimit.Charge(nil), charges...), Receipts: make([]ratelimit.Receipt, len(charges))}
	for i := range charges {
		c, st := &charges[i], &states[at[i]]
		changed[at[i]] = c.Rule.TakeAt(st, c.Cost, now, &d.Levels[i]) || changed[at[i]]
		if c.Cost > 0 {
			t.Receipts[i] = st.Receipt(now)
		}
	}
	if len(states) < len(charges) { // every level says what is left after all of them
		for i := range charges {
			charges[i].Rule.LookAt(&states[at[i]], 0, now, &d.Levels[i])
		}
	}
	d.Taken = t
	return d, changed
}

// unique returns the different keys, and for each key which of them it is.
func unique(keys []string) (names []string, at []int) {
	seen := map[string]int{}
	for _, k := range keys {
		i, ok := seen[k]
		if !ok {
			i = len(names)
			seen[k] = i
			names = append(names, k)
		}
		at = append(at, i)
	}
	return names, at
}

func (s *Store) readStates(ctx context.Context, names []string) (packed []string, states []ratelimit.State, now int64, err error) {
	msg, err := s.once(ctx, readScript, names, []string{""})
	if err != nil {
		return nil, nil, 0, explain(readScript.name, err)
	}
	msgs, err := msg.ToArray()
	if err != nil || len(msgs) != 1+len(names) {
		return nil, nil, 0, errLimitForm
	}
	if now, err = msgs[0].AsInt64(); err != nil {
		return nil, nil, 0, errLimitForm
	}
	packed, states = make([]string, len(names)), make([]ratelimit.State, len(names))
	for i, m := range msgs[1:] {
		packed[i] = text(m)
		if states[i], err = readState(packed[i]); err != nil {
			return nil, nil, 0, err
		}
	}
	return packed, states, now, nil
}

// swap writes the fresh states, if none of the old ones has changed in Redis.
// Done is false if one has; nothing was written then.
func (s *Store) swap(ctx context.Context, changes []change) (done bool, err error) {
	keys, args, some := make([]string, 0, len(changes)), make([]string, 1, 1+3*len(changes)), false
	for _, c := range changes {
		keys = append(keys, c.key)
		args = append(args, c.old, c.fresh, strconv.FormatInt(c.used.Microseconds(), 10))
		some = some || c.fresh != ""
	}
	if !some {
		return true, nil
	}
	msg, err := s.once(ctx, swapScript, keys, args)
	if err != nil {
		return false, explain(swapScript.name, err)
	}
	n, err := msg.AsInt64()
	if err != nil {
		return false, errLimitForm
	}
	return n == 1, nil
}

// Return implements ratelimit.Store. Each charge is given back on its own, in
// one round trip; an entry of a log in two. After an error some may have been,
// and t cannot be returned again. A log that others keep changing gives
// nothing back.
func (s *Store) Return(ctx context.Context, t *ratelimit.Taken) error {
	if t == nil {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if !t.Once() {
		return nil
	}
	var calls []call
	for i := range min(len(t.Charges), len(t.Receipts)) {
		c, rc := &t.Charges[i], t.Receipts[i]
		if c.Cost <= 0 {
			continue
		}
		key, _ := s.limitKey(c.Rule.Name, c.Subject)
		if c.Rule.Algorithm == ratelimit.SlidingWindowLog {
			if err := s.returnLog(ctx, c, rc, key); err != nil {
				return err
			}
			continue
		}
		us, rem, _ := c.Rule.Increment(c.Cost)
		packed := appendInts(nil, c.Rule.Window.Microseconds(), c.Rule.Quota, us, rem, rc.Arrival, rc.Rem, rc.Since, rc.Returned)
		calls = append(calls, call{keys: []string{key}, args: []string{s.clock(), string(packed)}})
	}
	if len(calls) == 0 {
		return nil
	}
	for _, res := range s.runAll(ctx, returnScript, calls) {
		if err := res.Error(); err != nil {
			return explain(returnScript.name, err)
		}
	}
	return nil
}

func (s *Store) returnLog(ctx context.Context, c *ratelimit.Charge, rc ratelimit.Receipt, key string) error {
	names := []string{key}
	for range swapTries {
		packed, states, now, err := s.readStates(ctx, names)
		if err != nil {
			return err
		}
		if !c.Rule.ReturnAt(&states[0], c.Cost, rc, now) {
			return nil
		}
		fresh, used := packState(&states[0], now)
		done, err := s.swap(ctx, []change{{key: key, old: packed[0], fresh: fresh, used: used}})
		if done || err != nil {
			return err
		}
	}
	return nil
}

// Reset implements ratelimit.Store.
func (s *Store) Reset(ctx context.Context, rule, subject string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	key, _ := s.limitKey(rule, subject)
	return explain("reset", s.do(ctx, func() rueidis.Completed { return s.client.B().Del().Key(key).Build() }).Error())
}
