package redisstore

import (
	"context"
	_ "embed"
	"strconv"

	"github.com/redis/rueidis"

	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/ratelimit"
)

//go:embed lua/usual.lua
var usualLua string

//go:embed lua/admit.lua
var unusualLua string

// admitLua is Admit, and Reserve where there are no charges: first the usual
// cases, and then, if it is none of them, the whole rule.
var admitLua = []string{
	nowLua, "local n, key, arg = #KEYS - 1, 1, 6\n", judgeLua, usualLua, chargeLua,
	recordLua, reserveLua, limitsLua, unusualLua,
}

var admitScript = newScript("admit", admitLua...)

// The verdicts of admit.lua.
const (
	admitRequestsRefused = iota
	admitDecided
	admitSlow
	admitExecutionsRefused
)

// Admit charges requests, makes the claim if they pass, and charges executions
// if it Started, all in one round trip; a payload over 64 KiB is read by a
// second one.
//
// If the decision is not Allowed, the answer is the zero Answer, whose Outcome
// is Refused, and no reservation is left (A2). If the claim came to anything
// but Started, executions were not asked, and the decision has only the levels
// of requests (A1). What was taken is in the decision's Taken, also where
// executions refused: then it is nil, and the requests stay charged.
//
// It is never sent twice. After an error the caller calls Void until it is
// answered, as after Reserve; the charges may have been taken.
//
// In a Cluster, requests-charges that do not lie with the record (see
// Options.TenantOf) are asked first, and given back if a later one refuses, or
// if an error says that nothing may be executed. Where an executions-charge
// does not lie with it, and anywhere where one rule and subject is charged
// twice, requests, claim and executions are calls of their own, with the same
// verdict.
func (s *Store) Admit(ctx context.Context, requests, executions []ratelimit.Charge, c idempotency.Claim) (ratelimit.Decision, idempotency.Answer, error) {
	if err := s.validClaim(ctx, &c); err != nil {
		return ratelimit.Decision{}, idempotency.Answer{}, err
	}
	for _, list := range [][]ratelimit.Charge{requests, executions} {
		if err := validCharges(ctx, list); err != nil {
			return ratelimit.Decision{}, idempotency.Answer{}, err
		}
	}
	if s.confirm.replicas > 0 {
		return s.admitApart(ctx, requests, executions, c)
	}
	if !s.cluster() {
		return s.admitTogether(ctx, requests, executions, c)
	}
	tag := hashTag(s.recordKey(c.Key))
	for i := range executions {
		if !s.near(&executions[i], tag) {
			return s.admitApart(ctx, requests, executions, c)
		}
	}
	for i := range requests {
		if !s.near(&requests[i], tag) {
			return s.admitFarFirst(ctx, requests, executions, c, tag)
		}
	}
	return s.admitTogether(ctx, requests, executions, c)
}

// near reports whether a charge lies where the tag does.
func (s *Store) near(c *ratelimit.Charge, tag string) bool {
	k, _ := s.limitKey(c.Rule.Name, c.Subject)
	return hashTag(k) == tag
}

// admitTogether is Admit in one script: everything lies with the record.
func (s *Store) admitTogether(ctx context.Context, requests, executions []ratelimit.Charge, c idempotency.Claim) (ratelimit.Decision, idempotency.Answer, error) {
	keys := make([]string, 1, 1+len(requests)+len(executions))
	args := make([]string, 6, 6+len(requests)+len(executions))
	keys[0] = s.recordKey(c.Key)
	packClaim(args, &c)
	args[5] = strconv.Itoa(len(requests))
	keys, args = s.appendCharges(keys, args, requests)
	keys, args = s.appendCharges(keys, args, executions)
	if !distinct(keys) {
		return s.admitApart(ctx, requests, executions, c)
	}
	msg, err := s.once(ctx, admitScript, keys, args)
	if err != nil {
		return ratelimit.Decision{}, idempotency.Answer{}, explain(admitScript.name, err)
	}
	msgs, err := msg.ToArray()
	if err != nil {
		return ratelimit.Decision{}, idempotency.Answer{}, errLimitForm
	}
	return s.readAdmit(ctx, requests, executions, c, keys[0], msgs)
}

// admitFarFirst charges the requests that lie elsewhere, and then admits with
// the others.
func (s *Store) admitFarFirst(ctx context.Context, requests, executions []ratelimit.Charge, c idempotency.Claim, tag string) (d ratelimit.Decision, a idempotency.Answer, err error) {
	var far, near []ratelimit.Charge
	var farAt, nearAt []int
	for i := range requests {
		if s.near(&requests[i], tag) {
			near, nearAt = append(near, requests[i]), append(nearAt, i)
		} else {
			far, farAt = append(far, requests[i]), append(farAt, i)
		}
	}
	first, undo, err := s.takeApart(ctx, far, s.groups(far))
	if err != nil {
		return d, a, err
	}
	d.Levels = make([]ratelimit.Level, len(requests))
	fill := func(levels []ratelimit.Level, at []int) {
		for i, j := range at {
			d.Levels[j] = levels[i]
		}
	}
	fill(first.Levels, farAt)
	if !first.Allowed {
		if len(near) > 0 {
			seen, err := s.look(ctx, near)
			if err != nil {
				return ratelimit.Decision{}, a, err
			}
			fill(seen.Levels, nearAt)
		}
		return d, a, nil
	}
	second, a, err := s.admitTogether(ctx, near, executions, c)
	if err != nil {
		s.refund(ctx, first.Taken, undo)
		return ratelimit.Decision{}, idempotency.Answer{}, err
	}
	fill(second.Levels, nearAt)
	if !second.Allowed && refuses(second.Levels[:len(near)]) {
		s.refund(ctx, first.Taken, undo)
		seen, err := s.look(ctx, far)
		if err != nil {
			return ratelimit.Decision{}, idempotency.Answer{}, err
		}
		fill(seen.Levels, farAt)
		return d, a, nil
	}
	d.Levels = append(d.Levels, second.Levels[len(near):]...)
	if d.Allowed = second.Allowed; !d.Allowed {
		return d, a, nil
	}
	// In the order of the charges: far and near requests, then executions.
	d.Taken = &ratelimit.Taken{Charges: append([]ratelimit.Charge(nil), requests...), Receipts: make([]ratelimit.Receipt, len(requests))}
	for i, at := range farAt {
		d.Taken.Receipts[at] = first.Taken.Receipts[i]
	}
	for i, at := range nearAt {
		d.Taken.Receipts[at] = second.Taken.Receipts[i]
	}
	d.Taken.Charges = append(d.Taken.Charges, second.Taken.Charges[len(near):]...)
	d.Taken.Receipts = append(d.Taken.Receipts, second.Taken.Receipts[len(near):]...)
	return d, a, nil
}

// look is what a Take of the charges would say.
func (s *Store) look(ctx context.Context, charges []ratelimit.Charge) (d ratelimit.Decision, err error) {
	d = ratelimit.Decision{Allowed: true, Levels: make([]ratelimit.Level, len(charges))}
	for _, g := range s.groups(charges) {
		some := make([]ratelimit.Charge, len(g.from))
		for i, at := range g.from {
			some[i] = charges[at]
		}
		part, _, err := s.takeTogether(ctx, some, false, false)
		if err != nil {
			return ratelimit.Decision{}, err
		}
		for i, at := range g.from {
			d.Levels[at] = part.Levels[i]
		}
		d.Allowed = d.Allowed && part.Allowed
	}
	return d, nil
}

func refuses(levels []ratelimit.Level) bool {
	for _, l := range levels {
		if !l.Allowed {
			return true
		}
	}
	return false
}

// readAdmit reads the reply of admit.lua.
func (s *Store) readAdmit(ctx context.Context, requests, executions []ratelimit.Charge, c idempotency.Claim, key string, msgs []rueidis.RedisMessage) (d ratelimit.Decision, a idempotency.Answer, err error) {
	if len(msgs) == 0 {
		return d, a, errLimitForm
	}
	r := reader{b: text(msgs[0])}
	verdict, asked, now := r.byte(), int(r.uint32()), r.int()
	if r.bad || asked > len(requests)+len(executions) {
		return d, a, errLimitForm
	}
	if verdict == admitSlow {
		return s.admitApart(ctx, requests, executions, c)
	}
	first := min(asked, len(requests))
	passed := verdict != admitRequestsRefused
	d = newDecision(asked)
	if err := addLevels(&d, requests[:first], passed, now, &r, passed); err != nil {
		return ratelimit.Decision{}, a, err
	}
	if asked > first || verdict == admitExecutionsRefused {
		passed = verdict == admitDecided
		if err := addLevels(&d, executions[:asked-first], passed, now, &r, passed); err != nil {
			return ratelimit.Decision{}, a, err
		}
	}
	if verdict != admitDecided {
		return d, a, nil
	}
	a, stored, err := readAnswer(&c, msgs[1:])
	if err != nil {
		return ratelimit.Decision{}, idempotency.Answer{}, err
	}
	changed, err := s.bodies(ctx, key, &a.Record, &stored)
	if err != nil {
		return ratelimit.Decision{}, idempotency.Answer{}, err
	}
	if !changed {
		return d, a, nil
	}
	// The record is another now. If it Started, the executions are charged.
	if a.Outcome == idempotency.Started {
		executions = nil
	}
	return s.claimApart(ctx, d, executions, c)
}

// joined is the decision about the charges of both.
func joined(d, second ratelimit.Decision) ratelimit.Decision {
	d.Levels = append(d.Levels, second.Levels...)
	if d.Allowed = second.Allowed; !d.Allowed {
		d.Taken = nil
		return d
	}
	if d.Taken == nil {
		d.Taken = new(ratelimit.Taken)
	}
	if second.Taken != nil {
		d.Taken.Charges = append(d.Taken.Charges, second.Taken.Charges...)
		d.Taken.Receipts = append(d.Taken.Receipts, second.Taken.Receipts...)
	}
	return d
}

// admitApart is Admit in calls of their own.
func (s *Store) admitApart(ctx context.Context, requests, executions []ratelimit.Charge, c idempotency.Claim) (ratelimit.Decision, idempotency.Answer, error) {
	d, err := s.Take(ctx, requests)
	if err != nil || !d.Allowed {
		return d, idempotency.Answer{}, err
	}
	return s.claimApart(ctx, d, executions, c)
}

// claimApart makes the claim and charges executions if it Started, after the
// requests, about which d is.
func (s *Store) claimApart(ctx context.Context, d ratelimit.Decision, executions []ratelimit.Charge, c idempotency.Claim) (ratelimit.Decision, idempotency.Answer, error) {
	a, err := s.Reserve(ctx, c)
	if err != nil {
		return ratelimit.Decision{}, idempotency.Answer{}, err
	}
	if a.Outcome != idempotency.Started {
		return d, a, nil
	}
	second, err := s.Take(ctx, executions)
	if err == nil {
		d = joined(d, second)
	}
	if err != nil || !d.Allowed {
		if back := s.End(ctx, a.Reservation, idempotency.NotRun()); err == nil {
			err = back
		}
		if err != nil {
			return ratelimit.Decision{}, idempotency.Answer{}, err
		}
		return d, idempotency.Answer{}, nil
	}
	return d, a, nil
}
