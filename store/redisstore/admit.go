package redisstore

import (
	"context"
	_ "embed"
	"strconv"

	"github.com/redis/rueidis"

	"github.com/escapement-dev/escapement/idempotency"
	"github.com/escapement-dev/escapement/ratelimit"
)

//go:embed lua/admit.lua
var admitLua string

var admitScript = newScript("admit", nowLua, recordLua, reserveLua, limitsLua, admitLua)

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
// In a Cluster all charges must lie with the record (see Options.TenantOf), and
// anywhere no rule and subject may be charged twice, for this to be one round
// trip: else requests, claim and executions are calls of their own, with the
// same verdict.
func (s *Store) Admit(ctx context.Context, requests, executions []ratelimit.Charge, c idempotency.Claim) (ratelimit.Decision, idempotency.Answer, error) {
	if err := s.validClaim(ctx, &c); err != nil {
		return ratelimit.Decision{}, idempotency.Answer{}, err
	}
	for _, list := range [][]ratelimit.Charge{requests, executions} {
		if err := validCharges(ctx, list); err != nil {
			return ratelimit.Decision{}, idempotency.Answer{}, err
		}
	}
	keys := []string{s.recordKey(c.Key)}
	args := []string{"", string(c.Owner[:]), packTerms(c.Terms), packPrints(c.Prints), packClient(&c), strconv.Itoa(len(requests))}
	together := s.confirm.replicas == 0
	for _, list := range [][]ratelimit.Charge{requests, executions} {
		for i := range list {
			k, _ := s.limitKey(list[i].Rule.Name, list[i].Subject)
			keys, args = append(keys, k), append(args, packCharge(&list[i]))
			together = together && (!s.cluster() || hashTag(k) == hashTag(keys[0]))
		}
	}
	if !together || !distinct(keys) {
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

// readAdmit reads the reply of admit.lua.
func (s *Store) readAdmit(ctx context.Context, requests, executions []ratelimit.Charge, c idempotency.Claim, key string, msgs []rueidis.RedisMessage) (d ratelimit.Decision, a idempotency.Answer, err error) {
	var head [3]int64 // verdict, now, asked
	if len(msgs) < len(head) {
		return d, a, errLimitForm
	}
	for i := range head {
		if head[i], err = msgs[i].AsInt64(); err != nil {
			return d, a, errLimitForm
		}
	}
	verdict, now, asked := head[0], head[1], int(head[2])
	msgs = msgs[len(head):]
	if verdict == admitSlow {
		return s.admitApart(ctx, requests, executions, c)
	}
	if len(msgs) < asked || asked > len(requests)+len(executions) {
		return d, a, errLimitForm
	}
	first := min(asked, len(requests))
	passed := verdict != admitRequestsRefused
	if d, err = readDecision(requests[:first], passed, now, msgs[:first], passed); err != nil {
		return ratelimit.Decision{}, a, err
	}
	if asked > first || verdict == admitExecutionsRefused {
		passed = verdict == admitDecided
		second, err := readDecision(executions[:asked-first], passed, now, msgs[first:asked], passed)
		if err != nil {
			return ratelimit.Decision{}, a, err
		}
		d = joined(d, second)
	}
	if verdict != admitDecided {
		return d, a, nil
	}
	a, stored, err := readAnswer(&c, msgs[asked:])
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
