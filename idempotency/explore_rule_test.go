package idempotency

import "time"

// rules is the rule as the exploration calls it. The zero value has none;
// realRules has the real functions, and each mutant replaces one of them.
type rules struct {
	decide   func(Record, Claim, time.Time) (Record, Answer)
	finish   func(Record, Reservation, Ending, time.Time) (Record, error)
	renew    func(Record, Reservation, time.Duration, time.Time) (Record, error)
	withdraw func(Record, Key, Owner, time.Time) Record
	putStep  func(Record, Reservation, Step, time.Time) (Record, error)
	settle   func(Record, Revision, Result, time.Time) (Record, error)
	forget   func(Record, Revision, time.Time) (Record, error)
	expire   func(Record, time.Time) (Record, bool)
}

func realRules() rules {
	return rules{Decide, Finish, Renew, Withdraw, PutStep, SettleBy, ForgetBy, Expire}
}

// Each mutant is a mistake that somebody's own store could make.

// fenceByToken leaves the owner out of F1.
func fenceByToken(r *rules) {
	finish, renew := r.finish, r.renew
	r.finish = func(prev Record, v Reservation, e Ending, now time.Time) (Record, error) {
		if v.Token == prev.Token && !prev.Owner.IsZero() {
			v.Owner = prev.Owner
		}
		return finish(prev, v, e, now)
	}
	r.renew = func(prev Record, v Reservation, d time.Duration, now time.Time) (Record, error) {
		if v.Token == prev.Token && !prev.Owner.IsZero() {
			v.Owner = prev.Owner
		}
		return renew(prev, v, d, now)
	}
}

// fenceNothing lets every ending through, also over a result.
func fenceNothing(r *rules) {
	finish, renew := r.finish, r.renew
	r.finish = func(prev Record, v Reservation, e Ending, now time.Time) (Record, error) {
		v.Owner, v.Token = prev.Owner, prev.Token
		if prev.State == Ended {
			prev.State, prev.LeaseEnd = Held, now
		}
		return finish(prev, v, e, now)
	}
	r.renew = func(prev Record, v Reservation, d time.Duration, now time.Time) (Record, error) {
		v.Owner, v.Token = prev.Owner, prev.Token
		return renew(prev, v, d, now)
	}
}

// takeoverKeepsToken breaks F4, in a store that fences by the token.
func takeoverKeepsToken(r *rules) {
	fenceByToken(r)
	decide := r.decide
	r.decide = func(prev Record, c Claim, now time.Time) (Record, Answer) {
		next, a := decide(prev, c, now)
		if a.Reservation.Takeover && !a.Reservation.Repeated {
			next.Token, a.Reservation.Token = prev.Token, prev.Token
		}
		return next, a
	}
}

// secondRunKeepsToken does not raise the token in R6.
func secondRunKeepsToken(r *rules) {
	decide := r.decide
	r.decide = func(prev Record, c Claim, now time.Time) (Record, Answer) {
		next, a := decide(prev, c, now)
		if a.Outcome == Started && next.Found == FoundRetryable && !a.Reservation.Repeated {
			next.Token, a.Reservation.Token = prev.Token, prev.Token
		}
		return next, a
	}
}

// notRunFrees frees the key whatever the claim found, against R9.
func notRunFrees(r *rules) {
	finish, withdraw := r.finish, r.withdraw
	free := func(prev, next Record, now time.Time) Record {
		if prev.State != Held || next.State == Free || !next.Owner.IsZero() {
			return next
		}
		return written(freed(next), now)
	}
	r.finish = func(prev Record, v Reservation, e Ending, now time.Time) (Record, error) {
		next, err := finish(prev, v, e, now)
		if err == nil && e.Kind == EndedNotRun && next.Revision != prev.Revision {
			next = free(prev, next, now)
		}
		return next, err
	}
	r.withdraw = func(prev Record, k Key, o Owner, now time.Time) Record {
		next := withdraw(prev, k, o, now)
		if prev.Owner == o {
			next = free(prev, next, now)
		}
		return next
	}
}

// notRunLowersToken restores the token that the takeover found (R9).
func notRunLowersToken(r *rules) {
	finish := r.finish
	r.finish = func(prev Record, v Reservation, e Ending, now time.Time) (Record, error) {
		next, err := finish(prev, v, e, now)
		if err == nil && e.Kind == EndedNotRun && next.State != Free && next.Revision != prev.Revision {
			next.Token--
		}
		return next, err
	}
}

// notRunOneLevel remembers what the first takeover found, not the second.
func notRunOneLevel(r *rules) {
	decide := r.decide
	r.decide = func(prev Record, c Claim, now time.Time) (Record, Answer) {
		next, a := decide(prev, c, now)
		if a.Reservation.Takeover && !a.Reservation.Repeated && prev.Found == FoundUnknown {
			next.Found = FoundFree
		}
		return next, a
	}
}

// notRunForgetsSteps frees a key in which a step was started.
func notRunForgetsSteps(r *rules) {
	finish := r.finish
	r.finish = func(prev Record, v Reservation, e Ending, now time.Time) (Record, error) {
		if e.Kind == EndedNotRun {
			prev.Steps, prev.FoundSteps = nil, 0
		}
		return finish(prev, v, e, now)
	}
}

// noQuiet lets a takeover happen at the lease's end (R5).
func noQuiet(r *rules) {
	decide := r.decide
	r.decide = func(prev Record, c Claim, now time.Time) (Record, Answer) {
		prev.Terms.Quiet = 0
		return decide(prev, c, now)
	}
}

// quietAfterDeathOnly does not wait after an attempt that said Unknown (R11).
func quietAfterDeathOnly(r *rules) {
	finish := r.finish
	r.finish = func(prev Record, v Reservation, e Ending, now time.Time) (Record, error) {
		next, err := finish(prev, v, e, now)
		if err == nil && e.Kind == EndedUnknown && next.State == Held {
			if over := now.Add(-next.Terms.Quiet); over.Before(next.LeaseEnd) {
				next.LeaseEnd = over
				next = written(next, now)
			}
		}
		return next, err
	}
}

// repeatLooksAtClock refuses R3 once the lease is over.
func repeatLooksAtClock(r *rules) {
	decide := r.decide
	r.decide = func(prev Record, c Claim, now time.Time) (Record, Answer) {
		if prev.State == Held && prev.Owner == c.Owner && !now.Before(prev.LeaseEnd) {
			other := prev
			other.Owner = ownerOf(maxWho)
			next, a := decide(other, c, now)
			if next.Revision == prev.Revision {
				next = prev
			}
			return next, a
		}
		return decide(prev, c, now)
	}
}

// repeatLosesTakeover forgets the takeover mark in R3's answer.
func repeatLosesTakeover(r *rules) {
	decide := r.decide
	r.decide = func(prev Record, c Claim, now time.Time) (Record, Answer) {
		next, a := decide(prev, c, now)
		if a.Reservation.Repeated {
			a.Reservation.Takeover = false
		}
		return next, a
	}
}

// comparesOnlyWhileHeld leaves R2 out for records with a result.
func comparesOnlyWhileHeld(r *rules) {
	decide := r.decide
	r.decide = func(prev Record, c Claim, now time.Time) (Record, Answer) {
		if prev.State == Ended {
			c.Prints = prev.Prints
		}
		return decide(prev, c, now)
	}
}

// inProgressForEver never lets a lease end (R4).
func inProgressForEver(r *rules) {
	decide := r.decide
	r.decide = func(prev Record, c Claim, now time.Time) (Record, Answer) {
		if prev.State == Held && prev.Owner != c.Owner {
			live := prev
			live.LeaseEnd = now.Add(time.Hour)
			_, a := decide(live, c, now)
			return prev, a
		}
		return decide(prev, c, now)
	}
}

// unknownExpires lets an unknown record count for nothing (R1).
func unknownExpires(r *rules) {
	decide := r.decide
	r.decide = func(prev Record, c Claim, now time.Time) (Record, Answer) {
		if prev.State == Held && !now.Before(prev.LeaseEnd) {
			prev = freed(prev)
		}
		return decide(prev, c, now)
	}
}

// sweepsUnknown removes an unknown record (E1).
func sweepsUnknown(r *rules) {
	expire := r.expire
	r.expire = func(prev Record, now time.Time) (Record, bool) {
		if prev.State == Held && !now.Before(prev.LeaseEnd) {
			return Record{}, false
		}
		return expire(prev, now)
	}
}

// sweepsMarks removes a free record whose marks still count (E1, R12).
func sweepsMarks(r *rules) {
	expire := r.expire
	r.expire = func(prev Record, now time.Time) (Record, bool) {
		prev.Marks = nil
		return expire(prev, now)
	}
}

// forgetsMarks does not look at the marks (R12).
func forgetsMarks(r *rules) {
	decide := r.decide
	r.decide = func(prev Record, c Claim, now time.Time) (Record, Answer) {
		prev.Marks = nil
		return decide(prev, c, now)
	}
}

// notRunLeavesNoMark forgets that Reserve had been repeated (R12).
func notRunLeavesNoMark(r *rules) {
	finish := r.finish
	r.finish = func(prev Record, v Reservation, e Ending, now time.Time) (Record, error) {
		v.Repeated = false
		return finish(prev, v, e, now)
	}
}

// voidOnlyMarks leaves the key with the owner (R10).
func voidOnlyMarks(r *rules) {
	r.withdraw = func(prev Record, _ Key, o Owner, now time.Time) Record {
		return prev.withMark(o, now)
	}
}

// settleComparesNothing leaves the revision out of F9.
func settleComparesNothing(r *rules) {
	settle, forget := r.settle, r.forget
	r.settle = func(prev Record, _ Revision, res Result, now time.Time) (Record, error) {
		return settle(prev, prev.Revision, res, now)
	}
	r.forget = func(prev Record, _ Revision, now time.Time) (Record, error) {
		return forget(prev, prev.Revision, now)
	}
}

// settleDoesNotWait lets an operator decide at the end of the lease (F9).
func settleDoesNotWait(r *rules) {
	settle, forget := r.settle, r.forget
	r.settle = func(prev Record, seen Revision, res Result, now time.Time) (Record, error) {
		prev.Terms.Quiet = 0
		return settle(prev, seen, res, now)
	}
	r.forget = func(prev Record, seen Revision, now time.Time) (Record, error) {
		prev.Terms.Quiet = 0
		return forget(prev, seen, now)
	}
}

// settleKeepsOwner does not clear the owner and raise the token (F9).
func settleKeepsOwner(r *rules) {
	settle := r.settle
	r.settle = func(prev Record, seen Revision, res Result, now time.Time) (Record, error) {
		next, err := settle(prev, seen, res, now)
		if err == nil {
			next.Owner, next.Token = prev.Owner, prev.Token
		}
		return next, err
	}
}

// anyEndingTwice takes every later ending of its owner for the same one (F2).
func anyEndingTwice(r *rules) {
	finish := r.finish
	r.finish = func(prev Record, v Reservation, e Ending, now time.Time) (Record, error) {
		if prev.State == Ended && prev.ownedBy(v) {
			return prev, nil
		}
		return finish(prev, v, e, now)
	}
}
